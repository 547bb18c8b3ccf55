//! `pinfold exits`: prints the VM exits of a virtual machine.
//!
//! The library determines the level and computes the table; this module finds the machine, queries
//! QEMU for level C where events may not be observed, and prints the table.

mod micro;
mod text;

use pinfold_host::{Clock as _, ExitScope, ExitSource, LiveHost, SystemClock};
use pinfold_model::{Accelerator, Figure, Finding, Role};
use pinfold_probe::exits::{
    self, ExitTable, ExitsError, Statistics, VIRT_DISTRIBUTOR, VcpuThread, Watch,
};
use pinfold_probe::exits::{cost, expected};
use pinfold_run::{Exit, Failure, host, interrupt, target::Vm, time};
use pinfold_vm::Monitor;
use serde_json::{Value, json};

use crate::cli::exits::{ExitsArgs, ExitsHow};
use crate::output::data;
use crate::{common, screen};

pub use micro::micro_guest;

const SECOND_NS: u64 = 1_000_000_000;

/// Duration of the check which events fire.
const LOOK: &str = "2s";

/// A table with additional information.
pub struct Answer {
    /// Description of the machine.
    subject: String,
    table: ExitTable,
    /// The scope of the observation; `None` at level C.
    scope: Option<ExitScope>,
    /// Why the cost was not measured, if so.
    no_cost: Option<String>,
    /// The expected exits of the micro-guest.
    expected: Vec<expected::Expected>,
    /// True if a vCPU ended during the observation.
    has_ended: bool,
}

/// Observes a machine and prints the table.
pub fn exits(arguments: &ExitsArgs) -> Result<(), Failure> {
    let host = host::live()?;
    let wish = Wish::of(&arguments.how, arguments.seconds.saturating_mul(SECOND_NS))?;
    interrupt::install()?;
    let answer = match arguments.micro_guest {
        true => micro::watched(&host, wish.addresses)?,
        false => {
            let mut answer =
                of_machine(&host, Vm::find(&host, &common::vm(&arguments.vm)?)?, &wish)?;
            answer.measure_cost(&host);
            answer
        }
    };
    data(&match arguments.json {
        true => answer.json().to_string(),
        false => screen::fitted(&answer.text(&arguments.how)),
    });
    answer.verdict()
}

/// The settings of an observation.
pub struct Wish {
    look_ns: u64,
    distributor: u64,
    addresses: bool,
    duration_ns: u64,
}

impl Wish {
    /// The settings from the command line, with this duration.
    pub fn of(how: &ExitsHow, duration_ns: u64) -> Result<Self, Failure> {
        let look_ns = time::parse_ns("--look", how.look.as_deref().unwrap_or(LOOK))?;
        let distributor = distributor(how.distributor.as_deref())?;
        let addresses = how.top.is_some_and(|top| top > 0);
        Ok(Self { look_ns, distributor, addresses, duration_ns })
    }
}

fn distributor(text: Option<&str>) -> Result<u64, Failure> {
    let Some(text) = text else { return Ok(VIRT_DISTRIBUTOR) };
    let digits = text.trim().trim_start_matches("0x");
    u64::from_str_radix(digits, 16).map_err(|_| {
        Failure::new(Exit::Input, format!("--distributor {text:?}: is not an address"))
            .with_hint("write it in hexadecimal, such as 0x8000000")
    })
}

impl Answer {
    /// The answer as text.
    pub fn text(&self, how: &ExitsHow) -> String {
        text::table(self, how)
    }

    /// The answer as JSON.
    pub fn json(&self) -> Value {
        text::json(self)
    }

    /// The rows of all vCPUs together as figures, and optionally of each.
    pub fn figures(&self, how: &ExitsHow) -> Vec<Figure> {
        let mut figures = exits::figures(&self.table);
        let is_of_all =
            |figure: &Figure| figure.labels.get("vcpu").is_some_and(|vcpu| vcpu == "all");
        figures.retain(|figure| how.per_vcpu || is_of_all(figure));
        figures
    }

    /// True if the machine has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Measures the overhead, with a micro-guest that runs next to the machine.
    pub fn measure_cost(&mut self, host: &LiveHost) {
        let Some(scope) = self.scope else { return };
        let cost = match interrupt::requested() {
            true => Err("it was interrupted".to_owned()),
            false => measured(host, scope),
        };
        self.no_cost = cost.map(|cost| self.table.cost = Some(cost)).err();
    }

    /// The failure for wrong counts, a machine that has ended, and no exit at all.
    pub fn verdict(&self) -> Result<(), Failure> {
        let wrong: Vec<String> =
            self.expected.iter().filter_map(expected::Expected::wrong).collect();
        if !wrong.is_empty() {
            let text =
                format!("the micro-guest's exits were not counted exactly: {}", wrong.join(", "));
            return Err(Failure::new(Exit::No, text)
                .with_hint("see the findings above: counts of other machines are as wrong here"));
        }
        if self.has_ended {
            let text = format!("{} ended while it was watched", self.subject);
            return Err(Failure::new(Exit::Vm, text)
                .with_hint("what was counted until then is above; measure again while it runs"));
        }
        match self.table.total.exits() {
            0 => Err(Failure::new(Exit::No, format!("{} made no exits", self.subject))
                .with_hint("an idle or stopped guest makes none: give it work, or watch longer")),
            _ => Ok(()),
        }
    }
}

/// The failure for an error of the probe.
fn exits_failure(error: &ExitsError) -> Failure {
    let exit = match error {
        ExitsError::Silent { .. } => Exit::No,
        ExitsError::Ended | ExitsError::Statistics { .. } => Exit::Vm,
        ExitsError::LockedDown { .. }
        | ExitsError::Rights { .. }
        | ExitsError::NoTracing { .. }
        | ExitsError::NoKvm { .. }
        | ExitsError::Refused { .. }
        | ExitsError::Container
        | ExitsError::MicroGuest { .. }
        | ExitsError::Host(_) => Exit::Host,
    };
    Failure::from_error(exit, error, error.hint())
}

/// Observes a machine, without measuring the overhead.
pub fn of_machine(host: &LiveHost, mut vm: Vm, wish: &Wish) -> Result<Answer, Failure> {
    if matches!(vm.found.accelerator, Some(Accelerator::TcgMulti | Accelerator::TcgSingle)) {
        let text = format!(
            "{} runs in QEMU's translator (TCG), which never gives the processor to the guest: it \
             makes no exits at all",
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
        .filter_map(|thread| match thread.role {
            Role::Vcpu(vcpu) => Some(VcpuThread { vcpu, task: thread.task }),
            Role::Emulator | Role::Iothread(_) | Role::Vhost(_) | Role::Worker | Role::Task => None,
        })
        .collect();
    let subject = vm.name.clone();
    let mut table = match exits::look(host, &SystemClock, &threads, wish.look_ns) {
        Ok(source) => return watched(host, subject, (source, wish), &threads),
        Err(error) => counted(&mut vm, wish, &error)?,
    };
    table.findings.extend(vm.findings);
    let no_cost = Some("nothing of the kernel's is watched at level C".to_owned());
    Ok(Answer { subject, table, scope: None, no_cost, expected: Vec::new(), has_ended: false })
}

/// Levels A and B.
fn watched(
    host: &LiveHost,
    subject: String,
    (source, wish): (ExitSource, &Wish),
    threads: &[VcpuThread],
) -> Result<Answer, Failure> {
    let failed = |error: ExitsError| exits_failure(&error);
    let clock = SystemClock;
    let scope = ExitScope { source, addresses: wish.addresses, distributor: wish.distributor };
    let watch = Watch::begin(host, &clock, scope, threads).map_err(failed)?;
    watch.wait(host, &clock, wish.duration_ns, &interrupt::requested).map_err(failed)?;
    let has_ended = !watch.ended(host).map_err(failed)?.is_empty();
    let table = watch.finish(host, &clock).map_err(failed)?;
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
fn measured(host: &LiveHost, scope: ExitScope) -> Result<cost::Cost, String> {
    let reported = |error: ExitsError| {
        let failure = exits_failure(&error);
        failure.message
    };
    let mut guest = micro::MicroChild::start().map_err(reported)?;
    cost::measure(host, &SystemClock, scope, &mut guest).map_err(reported)
}

/// Level C, because of `why`; without a monitor, `why` is the failure.
fn counted(vm: &mut Vm, wish: &Wish, why: &ExitsError) -> Result<ExitTable, Failure> {
    let because = exits_failure(why);
    let Some(monitor) = vm.teller.monitor() else { return Err(because) };
    let clock = SystemClock;
    let Ok(before) = statistics(monitor) else { return Err(because) };
    let began = clock.now_ns();
    let until = began.saturating_add(wish.duration_ns);
    while clock.now_ns() < until && !interrupt::requested() {
        clock.sleep_ns((SECOND_NS / 20).min(until.saturating_sub(clock.now_ns())));
    }
    let after = statistics(monitor)?;
    let duration_ns = clock.now_ns().saturating_sub(began);
    let mut table =
        exits::counted(&before, &after, duration_ns).map_err(|error| exits_failure(&error))?;
    let finding = Finding::note("exits", format!("level C, because: {}", because.message));
    table.findings.push(match because.hint {
        Some(hint) => finding.with_hint(hint),
        None => finding,
    });
    Ok(table)
}

fn statistics(monitor: &mut dyn Monitor) -> Result<Statistics, Failure> {
    let of_vcpus = json!({"target": "vcpu", "providers": [{"provider": "kvm"}]});
    let reply = monitor.execute("query-stats", Some(of_vcpus))?;
    Statistics::parse(&reply).map_err(|error| exits_failure(&error))
}
