//! The VM exits of a virtual machine.
//!
//! The probe determines the level and computes the table; this module queries the hypervisor for
//! level C where events may not be observed, and measures the overhead with a micro-guest.

mod micro;

use pinfold_exits::{Architecture, cost, expected, name};
use pinfold_exits::{ExitTable, ExitsError, Statistics, VIRT_DISTRIBUTOR, VcpuThread, Watch};
use pinfold_host::{Clock as _, ExitKey, ExitScope, ExitSource, LiveHost, SystemClock};
use pinfold_model::{Accelerator, Figure, Finding};
use pinfold_vm::Monitor;

use crate::helper_program::HelperProgram;
use crate::target::Vm;
use crate::{Exit, Failure, interrupt, time};

pub use micro::{micro_guest, watch_micro as micro_watched};

const SECOND_NS: u64 = 1_000_000_000;

/// Duration of the check which events fire.
const LOOK: &str = "2s";

/// Name of an exit that KVM handles, by the reason of [`ExitKey`].
pub fn name_of_reason(reason: u64) -> String {
    let key = ExitKey { reason, is_mmio: false, is_ipi: false };
    name(ExitSource::Hardware, Architecture::here(), key)
}

/// A table with additional information.
pub struct Answer {
    /// Description of the machine.
    pub subject: String,
    /// Its exits.
    pub table: ExitTable,
    /// The scope of the observation; `None` at level C.
    pub scope: Option<ExitScope>,
    /// Why the cost was not measured, if so.
    pub no_cost: Option<String>,
    /// The expected exits of the micro-guest.
    pub expected: Vec<expected::Expected>,
    /// True if a vCPU ended during the observation.
    pub has_ended: bool,
}

/// The options of an observation, as given.
#[derive(Clone, Copy, Debug)]
pub struct ExitOptions<'a> {
    /// `--look`, a time.
    pub look: Option<&'a str>,
    /// `--distributor`, an address.
    pub distributor: Option<&'a str>,
    /// Addresses are counted too.
    pub addresses: bool,
    /// Its duration (ns).
    pub duration_ns: u64,
}

/// The settings of an observation.
pub struct ObservationSettings {
    look_ns: u64,
    distributor: u64,
    /// Addresses are counted too.
    pub addresses: bool,
    duration_ns: u64,
}

impl ObservationSettings {
    /// The settings from the options.
    pub fn from_options(options: ExitOptions<'_>) -> Result<Self, Failure> {
        let ExitOptions { look, distributor, addresses, duration_ns } = options;
        let look_ns = time::parse_ns("--look", look.unwrap_or(LOOK))?;
        let distributor = address(distributor)?;
        Ok(Self { look_ns, distributor, addresses, duration_ns })
    }
}

fn address(text: Option<&str>) -> Result<u64, Failure> {
    let Some(text) = text else { return Ok(VIRT_DISTRIBUTOR) };
    let digits = text.trim().trim_start_matches("0x");
    u64::from_str_radix(digits, 16).map_err(|_| {
        Failure::new(Exit::Input, format!("--distributor {text:?}: not an address"))
            .with_hint("write it in hexadecimal, such as 0x8000000")
    })
}

impl Answer {
    /// The rows of all vCPUs together as figures, and optionally of each.
    pub fn figures(&self, per_vcpu: bool) -> Vec<Figure> {
        let mut figures = pinfold_exits::figures(&self.table);
        figures.retain(|figure| {
            per_vcpu || figure.labels.get("vcpu").is_some_and(|vcpu| vcpu == "all")
        });
        figures
    }

    /// Measures the overhead, with a micro-guest that runs next to the machine.
    pub fn measure_cost(&mut self, host: &LiveHost, program: &HelperProgram) {
        let Some(scope) = self.scope else { return };
        let cost = if interrupt::is_requested() {
            Err("it was interrupted".to_owned())
        } else {
            measure_cost(host, program, scope)
        };
        self.no_cost = cost.map(|cost| self.table.cost = Some(cost)).err();
    }

    /// The failure for wrong counts, a machine that has ended, and no exit at all.
    pub fn verdict(&self) -> Result<(), Failure> {
        let wrong: Vec<String> =
            self.expected.iter().filter_map(expected::Expected::wrong).collect();
        if !wrong.is_empty() {
            let text = format!(
                "the exits of the micro-guest were not counted exactly: {}",
                wrong.join(", ")
            );
            return Err(Failure::new(Exit::No, text).with_hint(
                "see the findings above: the counts for other machines are just as inaccurate on \
                 this host",
            ));
        }
        if self.has_ended {
            let text = format!("{} exited while it was observed", self.subject);
            return Err(Failure::new(Exit::Vm, text)
                .with_hint("the counts up to then are above; measure again while it runs"));
        }
        match self.table.total.exits() {
            0 => Err(Failure::new(Exit::No, format!("{} made no exits", self.subject)).with_hint(
                "an idle or stopped guest causes none: give it work, or observe it longer",
            )),
            _ => Ok(()),
        }
    }
}

/// Observes a machine, without measuring the overhead.
pub fn of_machine(
    host: &LiveHost,
    mut vm: Vm,
    observation_settings: &ObservationSettings,
) -> Result<Answer, Failure> {
    if matches!(vm.found.accelerator, Some(Accelerator::TcgMulti | Accelerator::TcgSingle)) {
        let text = format!(
            "{} runs in QEMU's translator (TCG), which never runs guest code natively, so there \
             are no exits",
            vm.name
        );
        return Err(Failure::new(Exit::No, text).with_hint(
            "start it with -accel kvm; `pinfold doctor` shows whether this host has KVM",
        ));
    }
    let threads: Vec<VcpuThread> = vm
        .found
        .threads
        .iter()
        .filter_map(|thread| Some(VcpuThread { vcpu: thread.role.vcpu()?, task: thread.task }))
        .collect();
    let subject = vm.name.clone();
    let mut table = match pinfold_exits::detect_exit_source(
        host,
        &SystemClock,
        &threads,
        observation_settings.look_ns,
    ) {
        Ok(source) => {
            return watch_exits(host, subject, source, observation_settings, &threads);
        }
        Err(error) => read_counts(&mut vm, observation_settings, error.into())?,
    };
    table.findings.extend(vm.findings);
    let no_cost = Some("no kernel event is observed at level C".to_owned());
    Ok(Answer { subject, table, scope: None, no_cost, expected: Vec::new(), has_ended: false })
}

/// Levels A and B.
fn watch_exits(
    host: &LiveHost,
    subject: String,
    source: ExitSource,
    observation_settings: &ObservationSettings,
    threads: &[VcpuThread],
) -> Result<Answer, Failure> {
    let clock = SystemClock;
    let scope = ExitScope {
        source,
        addresses: observation_settings.addresses,
        distributor: observation_settings.distributor,
    };
    let watch = Watch::begin(host, &clock, scope, threads)?;
    watch.wait(host, &clock, observation_settings.duration_ns, &interrupt::is_requested)?;
    let has_ended = !watch.find_ended(host)?.is_empty();
    let table = watch.finish(host, &clock)?;
    Ok(Answer {
        subject,
        table,
        scope: Some(scope),
        no_cost: None,
        expected: Vec::new(),
        has_ended,
    })
}

/// The overhead, measured with a micro-guest that runs next to the machine.
fn measure_cost(
    host: &LiveHost,
    program: &HelperProgram,
    scope: ExitScope,
) -> Result<cost::Cost, String> {
    let mut guest = micro::MicroChild::start(program)
        .map_err(|error: ExitsError| Failure::from(error).message)?;
    cost::measure(host, &SystemClock, scope, &mut guest)
        .map_err(|error: ExitsError| Failure::from(error).message)
}

/// Level C, because of a failure of the others; without a monitor, it is that failure.
fn read_counts(
    vm: &mut Vm,
    observation_settings: &ObservationSettings,
    because: Failure,
) -> Result<ExitTable, Failure> {
    let Some(monitor) = vm.monitor.as_deref_mut() else { return Err(because) };
    let clock = SystemClock;
    let Ok(before) = statistics(monitor) else { return Err(because) };
    let began = clock.now_ns();
    let until = began.saturating_add(observation_settings.duration_ns);
    while clock.now_ns() < until && !interrupt::is_requested() {
        clock.sleep_ns((SECOND_NS / 20).min(until.saturating_sub(clock.now_ns())));
    }
    let after = statistics(monitor)?;
    let duration_ns = clock.now_ns().saturating_sub(began);
    let mut table = pinfold_exits::table_between(&before, &after, duration_ns)?;
    let finding = Finding::note("exits", format!("level C, because: {}", because.message));
    table.findings.push(match because.hint {
        Some(hint) => finding.with_hint(hint),
        None => finding,
    });
    Ok(table)
}

fn statistics(monitor: &mut dyn Monitor) -> Result<Statistics, Failure> {
    let reply = monitor.kvm_statistics()?.ok_or_else(|| ExitsError::Statistics {
        why: "the hypervisor does not provide it".to_owned(),
    })?;
    Ok(Statistics::parse(&reply)?)
}
