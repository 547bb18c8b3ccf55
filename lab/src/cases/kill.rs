//! `kill -9` before each system call of an apply, or of an undo, that could change anything.
//!
//! `strace` counts the calls in a complete run, then runs the same command again for each of them
//! and injects `SIGKILL` at the entry of that call. Pinfold has no code for this. (With
//! `--seccomp-bpf`, which would be faster, strace 6.1 injects no signal.) After each kill the
//! shells fork, then `pinfold undo` must restore the host, with the tasks created in between equal
//! to their parents.

use std::collections::BTreeMap;

use pinfold_probe::agent::Exit;

use super::Extent;
use super::isolate::APPLY;
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::stage::LabHost;

/// Calls that change the host or the journal; those with a question mark do not exist on all
/// architectures.
const CALLS: &str = "write,fsync,fdatasync,?mkdir,mkdirat,?rmdir,unlinkat,?renameat,renameat2,sched_setaffinity,sched_setattr";
/// The threads of a command, without the process that an apply leaves and that strace would wait
/// for.
const FOLLOWED: [&str; 4] = ["-f", "-b", "execve", "-qq"];
const STRACE: &str = "/usr/bin/strace";
const LOG: &str = "/tmp/strace.log";
const UNDO: [&str; 2] = ["undo", "--all"];
/// Number of kills in a sample and in a fixed extent, spread over all calls.
const SAMPLE: usize = 1;
const FIXED: usize = 2;
const KILLED: u32 = 9;

/// A system call by its name and the number of times that it was entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    name: String,
    count: usize,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.count)
    }
}

pub(super) fn apply_killed(stage: &mut LabHost, extent: Extent) -> Result<String, LabError> {
    kill_apply(stage, &APPLY, extent)
}

/// The same for any apply.
pub(super) fn kill_apply(
    stage: &mut LabHost,
    apply: &[&str],
    extent: Extent,
) -> Result<String, LabError> {
    let calls = calls_of(&mut stage.guest, apply)?;
    stage.guest.pinfold(&UNDO)?;
    check(stage, "undo of a traced apply")?;
    let (chosen, mut killed) = (choose(&calls, extent), 0);
    for call in &chosen {
        killed += usize::from(kill_at(&mut stage.guest, apply, call)?);
        stage.fork()?;
        stage.guest.pinfold(&UNDO)?;
        check(stage, &format!("apply killed before {call}"))?;
        stage.reap()?;
    }
    report(killed, chosen.len(), &calls)
}

pub(super) fn undo_killed(stage: &mut LabHost, extent: Extent) -> Result<String, LabError> {
    stage.guest.pinfold(&APPLY)?;
    let calls = calls_of(&mut stage.guest, &UNDO)?;
    check(stage, "a traced undo")?;
    let (chosen, mut killed) = (choose(&calls, extent), 0);
    for call in &chosen {
        stage.guest.pinfold(&APPLY)?;
        stage.fork()?;
        killed += usize::from(kill_at(&mut stage.guest, &UNDO, call)?);
        stage.guest.pinfold(&UNDO)?;
        check(stage, &format!("undo killed before {call}"))?;
        stage.reap()?;
    }
    report(killed, chosen.len(), &calls)
}

/// Kills an apply at its calls, undoes it each time, and calls `check` with what happened.
pub(super) fn kill_at_calls(
    guest: &mut Guest,
    apply: &[&str],
    extent: Extent,
    check: &dyn Fn(&mut Guest, &str) -> Result<(), LabError>,
) -> Result<String, LabError> {
    let calls = calls_of(guest, apply)?;
    guest.pinfold(&UNDO)?;
    let (chosen, mut killed) = (choose(&calls, extent), 0);
    for call in &chosen {
        killed += usize::from(kill_at(guest, apply, call)?);
        guest.pinfold(&UNDO)?;
        check(guest, &format!("apply killed before {call}"))?;
    }
    report(killed, chosen.len(), &calls)
}

/// Most kills must have hit, otherwise nothing was tested.
pub(super) fn report(killed: usize, chosen: usize, calls: &[Call]) -> Result<String, LabError> {
    if killed * 2 > chosen {
        Ok(format!("killed before {killed} of {} calls", calls.len()))
    } else {
        Err(LabError::wrong("kills", format!("{killed} of {chosen} came")))
    }
}

fn check(stage: &mut LabHost, what: &str) -> Result<(), LabError> {
    let after = stage.look()?;
    expect_none(what, after.differences(&stage.before, &BTreeMap::new()))
}

pub(super) fn choose(calls: &[Call], extent: Extent) -> Vec<Call> {
    let step = match extent {
        Extent::Full => 1,
        Extent::Sample => calls.len().div_ceil(SAMPLE).max(1),
        Extent::Fixed => calls.len().div_ceil(FIXED).max(1),
    };
    // From the middle of each interval, so that the last one is not always the same end.
    calls.iter().skip(step / 2).step_by(step).cloned().collect()
}

/// Runs a command of Pinfold to its end and lists its calls.
pub(super) fn calls_of(guest: &mut Guest, arguments: &[&str]) -> Result<Vec<Call>, LabError> {
    calls_with(guest, arguments, "")
}

/// As [`calls_of`], with only the calls that contain a text, such as the folder of the file that is
/// written.
pub(super) fn calls_with(
    guest: &mut Guest,
    arguments: &[&str],
    part: &str,
) -> Result<Vec<Call>, LabError> {
    let trace = format!("trace={CALLS}");
    let options = ["-y", "-e", &trace, "-e", "signal=none", "-o", LOG, "/usr/bin/pinfold"];
    let mut words = [&[STRACE][..], &FOLLOWED, &options].concat();
    words.extend(arguments);
    let output = guest.run(&words)?;
    if !output.success() {
        return Err(LabError::Command {
            command: words.join(" "),
            how: output.exit.to_string(),
            output: output.stderr_text(),
        });
    }
    let text = guest.quiet_shell(&format!("cat {LOG}"))?;
    let calls = calls_in(&text, part);
    if calls.is_empty() { Err(LabError::wrong("strace saw no call", text)) } else { Ok(calls) }
}

/// The calls of the first process: `812   write(3, "…", 4) = 4`.
pub(super) fn calls_in(text: &str, part: &str) -> Vec<Call> {
    let first = text.split_whitespace().next().unwrap_or_default();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut calls = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(first) else { continue };
        let Some((name, _)) = rest.trim_start().split_once('(') else { continue };
        let count = counts.entry(name.to_owned()).or_default();
        *count += 1;
        if line.contains(part) {
            calls.push(Call { name: name.to_owned(), count: *count });
        }
    }
    calls
}

/// Arguments that stop a command when it returns from a call.
pub(super) fn stopping(call: &Call) -> String {
    let Call { name, count } = call;
    let followed = FOLLOWED.join(" ");
    format!(
        "{STRACE} {followed} -e trace={name} -e inject={name}:signal=STOP:when={count} -o {LOG}"
    )
}

/// Runs a command of Pinfold that is killed when it enters a call. False if it ended before: the
/// number of calls depends on the present number of kernel threads.
pub(super) fn kill_at(
    guest: &mut Guest,
    arguments: &[&str],
    call: &Call,
) -> Result<bool, LabError> {
    let trace = format!("trace={}", call.name);
    let inject = format!("inject={}:signal=KILL:when={}", call.name, call.count);
    let options = ["-e", &trace, "-e", &inject, "-o", LOG, "/usr/bin/pinfold"];
    let mut words = [&[STRACE][..], &FOLLOWED, &options].concat();
    words.extend(arguments);
    let output = guest.run(&words)?;
    match output.exit {
        Exit::Signal(KILLED) => Ok(true),
        Exit::Code(0) => Ok(false),
        Exit::Code(_) | Exit::Signal(_) => Err(LabError::Command {
            command: words.join(" "),
            how: format!("{} instead of being killed", output.exit),
            output: output.stderr_text(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, calls_in};

    #[test]
    fn calls_are_counted_by_name_in_the_first_process() {
        let text = "90    write(3, \"a(b\", 3) = 3\n91    write(3, \"x\", 1) = 1\n90    fsync(3) = 0\n90    write(3, \"\", 0) = 0\n90    +++ exited with 0 +++\n";
        assert_eq!(calls_in(text, ""), [call("write", 1), call("fsync", 1), call("write", 2)]);
        let text = "90 write(1</dev/null>, \"\", 0) = 0\n90 write(3</var/x>, \"\", 0) = 0\n";
        assert_eq!(calls_in(text, "/var/"), [call("write", 2)]);
    }

    fn call(name: &str, count: usize) -> Call {
        Call { name: name.to_owned(), count }
    }
}
