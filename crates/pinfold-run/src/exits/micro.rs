//! The micro-guest as a separate process, which ends itself if it takes too long.
//!
//! A line of four numbers on its standard input (CPUID, RDMSR, port writes, MMIO writes) requests a
//! run. The response has the port writes and MMIO writes that were returned and its CPU time in
//! nanoseconds, or `error` and the reason. Only its main thread ever runs the guest.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pinfold_exits::cost::{self, MicroRunner};
use pinfold_exits::expected::{WORK, compare_expected};
use pinfold_exits::{EventSurvey, ExitsError, VcpuThread, Watch, from_source};
use pinfold_host::process::{Child, Stdio};
use pinfold_host::{ExitScope, LiveHost, MicroGuest, SystemClock, VcpuRun, Work};
use pinfold_model::Tid;

use super::Answer;
use crate::helper_program::{Helper, HelperProgram};
use crate::{Exit, Failure};

/// Timeout of a run.
const LONGEST: Duration = Duration::from_secs(120);

/// Observes a run of the micro-guest, with all addresses; the overhead is measured for the scope of
/// the caller.
pub fn watch_micro(
    host: &LiveHost,
    program: &HelperProgram,
    addresses: bool,
) -> Result<Answer, Failure> {
    let clock = SystemClock;
    let mut guest = MicroChild::start(program)?;
    let threads = [VcpuThread { vcpu: 0, task: guest.child.task() }];
    let look = EventSurvey::begin(host, &threads)?;
    guest.run(WORK)?;
    let silent = ExitsError::Silent { timeout_ns: 0 };
    let source = look.find_fired()?.ok_or(silent)?;
    drop(look);
    let all = ExitScope { addresses: true, ..from_source(source) };
    let watch = Watch::begin(host, &clock, all, &threads)?;
    guest.run(WORK)?;
    let mut table = watch.finish(host, &clock)?;
    let scope = ExitScope { addresses, ..all };
    let cost = cost::measure(host, &clock, scope, &mut guest);
    let no_cost = cost.map(|cost| table.cost = Some(cost)).err().map(|e| Failure::from(e).message);
    let expected = compare_expected(&table);
    let subject = "the micro-guest".to_owned();
    let scope = Some(scope);
    Ok(Answer { subject, table, scope, no_cost, expected, has_ended: false })
}

/// The process, on the side of its parent.
pub struct MicroChild {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl MicroChild {
    /// Starts the process, which then waits for its first run.
    pub fn start(program: &HelperProgram) -> Result<Self, ExitsError> {
        let failed = |what: &str| ExitsError::MicroGuest { what: what.to_owned() };
        let mut child = program
            .spawn(Helper::MicroGuest)
            .stdin(Stdio::Pipe)
            .stdout(Stdio::Pipe)
            .stderr(Stdio::Null)
            .own_group()
            .die_with_parent(true)
            .start()?;
        let ask = child.stdin().ok_or_else(|| failed("has no standard input"))?;
        let answers = child.stdout().ok_or_else(|| failed("has no standard output"))?;
        let mut guest = Self { child, ask, answers: BufReader::new(answers) };
        // The first response is to an empty run: so a host without KVM is detected before the
        // observation.
        guest.run(Work::default())?;
        Ok(guest)
    }
}

impl MicroRunner for MicroChild {
    fn thread(&self) -> Tid {
        self.child.pid()
    }

    fn run(&mut self, work: Work) -> Result<VcpuRun, ExitsError> {
        let Work { cpuid, rdmsr, out, mmio } = work;
        let mut answer = String::new();
        let asked =
            writeln!(self.ask, "{cpuid} {rdmsr} {out} {mmio}").and_then(|()| self.ask.flush());
        asked
            .and_then(|()| self.answers.read_line(&mut answer))
            .map_err(|error| guest_failure(format!("does not answer: {error}")))?;
        if let Some(why) = answer.strip_prefix("error ") {
            return Err(guest_failure(format!("cannot run here: {}", why.trim())));
        }
        let numbers: Vec<u64> = answer.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        match numbers.as_slice() {
            [ports, addresses, cpu_ns]
                if *ports == u64::from(out) && *addresses == u64::from(mmio) =>
            {
                Ok(VcpuRun { out, mmio, cpu_ns: *cpu_ns })
            }
            [] => {
                Err(guest_failure(format!("exited, or took longer than {} s", LONGEST.as_secs())))
            }
            _ => Err(guest_failure(format!("answered {:?} to {work:?}", answer.trim()))),
        }
    }
}

fn guest_failure(what: String) -> ExitsError {
    ExitsError::MicroGuest { what }
}

/// The process itself; `answer` prints a line.
pub fn micro_guest(answer: fn(&str)) -> Result<(), Failure> {
    let (begin, begun) = mpsc::channel();
    std::thread::spawn(move || {
        let mut is_running = false;
        loop {
            match begun.recv_timeout(LONGEST) {
                Ok(running) => is_running = running,
                Err(RecvTimeoutError::Timeout) if is_running => {
                    std::process::exit(i32::from(Exit::Vm.code()))
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    let mut guest = MicroGuest::new();
    for line in std::io::stdin().lock().lines() {
        let line =
            line.map_err(|error| Failure::new(Exit::Host, format!("standard input: {error}")))?;
        let numbers: Vec<u32> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let [cpuid, rdmsr, out, mmio] = numbers.as_slice() else {
            return Err(Failure::new(Exit::Input, format!("{line:?} is not four numbers")));
        };
        let work = Work { cpuid: *cpuid, rdmsr: *rdmsr, out: *out, mmio: *mmio };
        // The receiver is gone only if the observing thread has ended, which it does not.
        let report = |running| begin.send(running).is_ok();
        report(true);
        let ran = match &mut guest {
            Ok(guest) => guest.run(work).map_err(|error| error.to_string() + &cause(&error)),
            Err(error) => Err(error.to_string() + &cause(error)),
        };
        report(false);
        match ran {
            Ok(ran) => answer(&format!("{} {} {}", ran.out, ran.mmio, ran.cpu_ns)),
            Err(why) => answer(&format!("error {why}")),
        }
    }
    Ok(())
}

fn cause(error: &dyn std::error::Error) -> String {
    error.source().map_or(String::new(), |source| format!(": {source}"))
}
