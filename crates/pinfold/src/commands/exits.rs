//! `pinfold exits`: what makes a virtual machine leave the processor.
//!
//! The library finds the level and makes the table; here the machine is named, level C is asked
//! of QEMU where no event may be watched, and the table is printed.

mod micro;
mod text;

use pinfold_host::{Clock as _, ExitSource, LiveHost, SystemClock};
use pinfold_model::{Accelerator, Finding, Role};
use pinfold_probe::exits::cost;
use pinfold_probe::exits::{
    self, ExitTable, ExitsError, Statistics, VIRT_DISTRIBUTOR, VcpuThread, Watch,
};
use pinfold_vm::Monitor;
use serde_json::json;

use crate::cli::exits::ExitsArgs;
use crate::failure::{Exit, Failure};
use crate::output::data;
use crate::target::{Vm, vm_failure};
use crate::{common, interrupt, time};

pub use micro::micro_guest;

const SECOND_NS: u64 = 1_000_000_000;

/// A table with what belongs to it.
struct Answer {
    /// Whose it is.
    subject: String,
    table: ExitTable,
    /// Why the cost was not measured, if it was not.
    no_cost: Option<String>,
    /// What the micro-guest was to make.
    expected: Vec<micro::Expected>,
    /// True if a vCPU ended meanwhile.
    has_ended: bool,
}

/// Watches a machine, prints the table.
pub fn exits(arguments: &ExitsArgs) -> Result<(), Failure> {
    let host = common::host()?;
    let look_ns = time::parse_ns("--look", &arguments.look)?;
    let distributor = distributor(arguments.distributor.as_deref())?;
    interrupt::install()?;
    let answer = match arguments.micro_guest {
        true => micro::watched(&host)?,
        false => {
            let vm = Vm::find(&host, &arguments.vm)?;
            of_machine(&host, vm, &Wish { look_ns, distributor, seconds: arguments.seconds })?
        }
    };
    data(&match arguments.json {
        true => text::json(&answer),
        false => text::table(&answer, arguments),
    });
    verdict(&answer)
}

/// How a machine is to be watched.
struct Wish {
    look_ns: u64,
    distributor: u64,
    seconds: u64,
}

fn distributor(text: Option<&str>) -> Result<u64, Failure> {
    let Some(text) = text else { return Ok(VIRT_DISTRIBUTOR) };
    let digits = text.trim().trim_start_matches("0x");
    u64::from_str_radix(digits, 16).map_err(|_| {
        Failure::new(Exit::Input, format!("--distributor {text:?}: is not an address"))
            .with_hint("write it in hexadecimal, such as 0x8000000")
    })
}

/// A failure of the probe.
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

fn of_machine(host: &LiveHost, mut vm: Vm, wish: &Wish) -> Result<Answer, Failure> {
    if matches!(vm.found.accelerator, Some(Accelerator::TcgMulti | Accelerator::TcgSingle)) {
        let text = format!(
            "{} runs in QEMU's translator (TCG), which never gives the processor to the guest: it \
             makes no exits at all",
            vm.name
        );
        return Err(Failure::new(Exit::No, text).with_hint(
            "start it with -accel kvm; `pinfold doctor` tells whether this host has KVM",
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
    Ok(Answer { subject, table, no_cost, expected: Vec::new(), has_ended: false })
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
    let watch = Watch::begin(host, &clock, (source, wish.distributor), threads).map_err(failed)?;
    let duration_ns = wish.seconds.saturating_mul(SECOND_NS);
    watch.wait(host, &clock, duration_ns, &interrupt::requested).map_err(failed)?;
    let has_ended = !watch.ended(host).map_err(failed)?.is_empty();
    let mut table = watch.finish(host, &clock).map_err(failed)?;
    let cost = match interrupt::requested() {
        true => Err("it was interrupted".to_owned()),
        false => measured(host, source),
    };
    let no_cost = cost.map(|cost| table.cost = Some(cost)).err();
    Ok(Answer { subject, table, no_cost, expected: Vec::new(), has_ended })
}

/// What watching costs, on a micro-guest beside the machine.
fn measured(host: &LiveHost, source: ExitSource) -> Result<cost::Cost, String> {
    let told = |error: ExitsError| {
        let failure = exits_failure(&error);
        failure.message
    };
    let mut guest = micro::MicroChild::start().map_err(told)?;
    cost::measure(host, &SystemClock, source, &mut guest).map_err(told)
}

/// Level C, because of `why`; without a monitor that reason is the answer.
fn counted(vm: &mut Vm, wish: &Wish, why: &ExitsError) -> Result<ExitTable, Failure> {
    let because = exits_failure(why);
    let Some(monitor) = vm.teller.monitor() else { return Err(because) };
    let clock = SystemClock;
    let Ok(before) = statistics(monitor) else { return Err(because) };
    let began = clock.now_ns();
    let until = began.saturating_add(wish.seconds.saturating_mul(SECOND_NS));
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
    let reply = monitor.execute("query-stats", Some(of_vcpus)).map_err(|e| vm_failure(&e))?;
    Statistics::parse(&reply).map_err(|error| exits_failure(&error))
}

fn verdict(answer: &Answer) -> Result<(), Failure> {
    let wrong: Vec<String> = answer.expected.iter().filter_map(micro::Expected::wrong).collect();
    if !wrong.is_empty() {
        let text =
            format!("the micro-guest's exits were not counted exactly: {}", wrong.join(", "));
        return Err(Failure::new(Exit::No, text)
            .with_hint("see the findings above: counts of other machines are as wrong here"));
    }
    if answer.has_ended {
        let text = format!("{} ended while it was watched", answer.subject);
        return Err(Failure::new(Exit::Vm, text)
            .with_hint("what was counted until then is above; measure again while it runs"));
    }
    match answer.table.total.exits() {
        0 => Err(Failure::new(Exit::No, format!("{} made no exits", answer.subject))
            .with_hint("an idle or stopped guest makes none: give it work, or watch longer")),
        _ => Ok(()),
    }
}
