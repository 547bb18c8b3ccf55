//! Power cuts: the machine itself is killed after a call of an apply, or of an undo, that changes
//! the disk, and booted again from that disk.
//!
//! `/etc` and `/var/lib` are on the disk, systemd is init, and `pinfold-recover.service` is
//! enabled. `strace` stops Pinfold when the chosen call returns; then QEMU gets `SIGKILL`, so that
//! data that the guest's kernel had not written are lost. The volatile parts of the placement are
//! gone with the machine. The host after the next boot is compared with the host before the first
//! apply: every file on the disk except the journals, every tunable, and the masks, policies and
//! groups of all tasks. Each boot recovers from one cut and is then cut itself.
//!
//! A disk that loses acknowledged writes is not tested: QEMU's image keeps them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::kill::{self, Call};
use super::{Extent, longest, systemd};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::{Snapshot, host_knobs};

const ROOT: &str = "/sys/fs/cgroup";
const MONITOR: &str = "/run/vm.qmp";
const PLAN: &str = "/tmp/plan.json";
const UNDO: [&str; 2] = ["undo", "--all"];
/// The calls that change the disk refer to a file there.
const LASTING: &str = "/var/lib/pinfold";
/// Number of cuts in a fixed extent: of an apply, and of an undo.
const FIXED: [usize; 2] = [2, 1];
/// Maximum number of snapshots: a host that has just booted is not settled.
const LOOKS: usize = 10;

/// Every file of the disk except the journals, with its content, mode and owner.
const FILES: &str = "cd /disk
    own='( -path ./lib/pinfold -o -path ./lib/pinfold/journal )'
    find . -xdev ! $own ! -path './lib/pinfold/journal/*' -exec stat -c '%n: %A %u:%g' {} + | sort
    find . -xdev -type f ! -path './lib/pinfold/journal/*' -exec md5sum {} + | sort";
/// Waits until the unit has started, or its conditions were not met, and it is inactive.
const RECOVERED: &str = "
    unit() { systemctl show --value -p $1 pinfold-recover; }
    until [ $(unit ConditionTimestampMonotonic) -gt 0 ]; do usleep 50000; done
    while [ $(unit ActiveState) = activating ]; do usleep 50000; done
    unit Result";
/// Waits until Pinfold is stopped at the chosen call, or has ended.
const STOPPED: &str = "
    until grep -q 'stopped by SIGSTOP' /tmp/strace.log || [ -e /tmp/ended ]; do usleep 20000; done
    [ -e /tmp/ended ] && echo ended || echo stopped";

/// The state of a host, independent of the identity of its tasks.
#[derive(Debug, Default, PartialEq, Eq)]
struct State {
    /// Files by path, of the disk and of the kernel.
    files: BTreeMap<String, String>,
    /// Group, mask and policy of the tasks, by name.
    tasks: BTreeMap<String, BTreeSet<String>>,
}

/// A command that is cut, and the call after which it is.
#[derive(Clone, Debug)]
struct Cut {
    command: Command,
    call: Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Apply,
    Undo,
}

/// The cuts so far, over all boots.
#[derive(Debug)]
pub(super) struct Cuts {
    extent: Extent,
    before: State,
    plan: Vec<Cut>,
    /// Number of calls of both commands that change the disk.
    calls: usize,
    done: usize,
    came: usize,
    /// Number of journals that a recovery has ended, and of those that had not reached the disk.
    ended: usize,
    none: usize,
}

impl Cuts {
    pub(super) fn new(extent: Extent) -> Self {
        let (before, plan) = (State::default(), Vec::new());
        Self { extent, before, plan, calls: 0, done: 0, came: 0, ended: 0, none: 0 }
    }

    /// Number of cuts so far.
    pub(super) fn count_cuts(&self) -> usize {
        self.done
    }

    /// The work after one boot: the recovery is checked, and a command runs up to its cut. `None`
    /// if the machine is to be cut now, else a description of what was tested.
    pub(super) fn boot(&mut self, guest: &mut Guest) -> Result<Option<String>, LabError> {
        let apply = if self.plan.is_empty() {
            guest.shell("systemctl enable pinfold-recover")?;
            self.before = look(guest)?;
            let apply = prepare(guest)?;
            self.count(guest, &apply)?;
            apply
        } else {
            self.recover(guest)?;
            if self.done == self.plan.len() {
                return self.report().map(Some);
            }
            prepare(guest)?
        };
        let Some(cut) = self.plan.get(self.done).cloned() else { return self.report().map(Some) };
        let came = match cut.command {
            Command::Apply => run_until(guest, &apply, &cut.call)?,
            Command::Undo => {
                guest.pinfold(&words(&apply))?;
                run_until(guest, &UNDO.map(str::to_owned), &cut.call)?
            }
        };
        self.came += usize::from(came);
        self.done += 1;
        Ok(None)
    }

    /// Runs both commands once to list their calls, and chooses the cuts.
    fn count(&mut self, guest: &mut Guest, apply: &[String]) -> Result<(), LabError> {
        for (command, share) in [Command::Apply, Command::Undo].into_iter().zip(FIXED) {
            let all = match command {
                Command::Apply => kill::calls_with(guest, &words(apply), LASTING)?,
                Command::Undo => kill::calls_with(guest, &UNDO, LASTING)?,
            };
            self.calls += all.len();
            let chosen = match self.extent {
                Extent::Full => all,
                Extent::Sample | Extent::Fixed => spread(&all, share),
            };
            self.plan.extend(chosen.into_iter().map(|call| Cut { command, call }));
        }
        Ok(())
    }

    /// Fails unless the recovery at boot removed all traces of the cut command.
    fn recover(&mut self, guest: &mut Guest) -> Result<(), LabError> {
        let last = &self.plan[self.done - 1];
        let what = format!("{:?} cut after {}", last.command, last.call);
        let result = guest.shell(RECOVERED)?;
        if result.trim() != "success" {
            let why = guest.shell("pinfold undo --left 2>&1 || true; dmesg | tail -n 40")?;
            return Err(LabError::wrong(format!("{what}: pinfold-recover: {result}"), why));
        }
        self.journals(guest, &what)?;
        let mut found = Vec::new();
        for _ in 0..LOOKS {
            found = look(guest)?.differences(&self.before);
            if found.is_empty() {
                break;
            }
        }
        expect_none(&what, found)
    }

    /// Each journal must have ended, the last one because of the restart, and there must be no
    /// other files.
    fn journals(&mut self, guest: &mut Guest, what: &str) -> Result<(), LabError> {
        let text = guest.shell("pinfold journal --json")?;
        let all = states(&text).ok_or_else(|| LabError::wrong("pinfold journal", text.clone()))?;
        let allowed = ["ended by a restart of the host", "reverted"];
        let open = all.iter().filter(|state| !allowed.contains(&state.as_str()));
        expect_none(what, open.map(|state| format!("a journal is {state}")).collect())?;
        if all.iter().any(|state| state == allowed[0]) {
            self.ended += 1
        } else {
            self.none += 1
        }
        let status = guest.shell("pinfold status --json")?;
        let json = serde_json::from_str::<Value>(&status).unwrap_or_default();
        if !["in_force", "platforms", "damaged", "leftovers"]
            .into_iter()
            .all(|key: &str| json.get(key).and_then(Value::as_array).is_some_and(Vec::is_empty))
        {
            return Err(LabError::wrong(format!("{what}: status"), status));
        }
        let names = guest.shell("ls -A /var/lib/pinfold/journal 2>/dev/null || true")?;
        let odd = names.lines().filter(|name| {
            name.starts_with('.') || !(name.ends_with(".jsonl") || name.ends_with(".lock"))
        });
        expect_none(what, odd.map(|name| format!("the journals' folder has {name}")).collect())?;
        // The next cut starts without them, like the first one.
        guest.shell("rm -rf /var/lib/pinfold/journal; sync")?;
        Ok(())
    }

    /// Most cuts must have hit, otherwise nothing was tested.
    fn report(&self) -> Result<String, LabError> {
        if self.came * 2 <= self.done {
            return Err(LabError::wrong("cuts", format!("{} of {} came", self.came, self.done)));
        }
        let ends = match self.done - self.came {
            0 => String::new(),
            many => format!(", and {many} times after the end of the command"),
        };
        Ok(format!(
            "cut after {} of {} calls that change the disk, of an apply and its undo{ends}; each time {} \
             files and tunables and all tasks as before; {} journals ended by the restart, {} times no \
             journal had reached the disk",
            self.came,
            self.calls,
            self.before.files.len(),
            self.ended,
            self.none
        ))
    }
}

impl State {
    fn differences(&self, before: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let paths: BTreeSet<&String> = self.files.keys().chain(before.files.keys()).collect();
        for path in paths {
            let (is, was) = (self.files.get(path), before.files.get(path));
            if is != was {
                found.push(format!("{path}: {is:?}, was {was:?}"));
            }
        }
        for (name, is) in &self.tasks {
            // The kernel creates workers on demand.
            if let Some(was) = before.tasks.get(name)
                && is != was
            {
                found.push(format!("tasks {name}: {is:?}, were {was:?}"));
            }
        }
        found
    }
}

fn look(guest: &mut Guest) -> Result<State, LabError> {
    let snapshot = Snapshot::take_with(guest, ROOT, false, &host_knobs())?;
    let mut state = State { files: snapshot.knobs.clone(), ..State::default() };
    for line in guest.quiet_shell(FILES)?.lines() {
        state.files.insert(line.to_owned(), String::new());
    }
    for task in snapshot.tasks.values().filter(|task| !task.name.starts_with("kworker/")) {
        let how = format!("{} {} {:?}", task.group, task.mask, task.policy);
        state.tasks.entry(task.name.clone()).or_default().insert(how);
    }
    Ok(state)
}

/// Starts the virtual machine in its unit, and returns the arguments of the apply.
fn prepare(guest: &mut Guest) -> Result<Vec<String>, LabError> {
    let machine = format!("{} {}", guest.machine(), longest::IOTHREAD);
    guest.shell(&systemd::PREPARE.replace("MACHINE", &machine))?;
    let plan = guest.run(&longest::PLANNING)?.stdout_text();
    guest.shell(&format!("cat > {PLAN} <<'END'\n{plan}\nEND"))?;
    let mut apply: Vec<String> =
        ["apply", "--qmp", MONITOR, "--plan", PLAN].map(str::to_owned).to_vec();
    for (knob, ..) in &longest::KNOBS {
        apply.extend(["--knob".to_owned(), (*knob).to_owned()]);
    }
    Ok(apply)
}

/// Runs a command of Pinfold until it is stopped at a call; false if it ended before.
fn run_until(guest: &mut Guest, arguments: &[String], call: &Call) -> Result<bool, LabError> {
    guest.shell("rm -f /tmp/ended /tmp/strace.log; touch /tmp/strace.log")?;
    let script = format!(
        "{} /usr/bin/pinfold {} > /tmp/cut.txt 2>&1 || true; touch /tmp/ended",
        kill::stopping(call),
        arguments.join(" ")
    );
    guest.background(&script)?;
    Ok(guest.shell(STOPPED)?.trim() == "stopped")
}

fn words(command: &[String]) -> Vec<&str> {
    command.iter().map(String::as_str).collect()
}

/// This number of calls, including the first and the last; the middle one if it is 1.
fn spread(calls: &[Call], wanted: usize) -> Vec<Call> {
    let last = calls.len().saturating_sub(1);
    let places: BTreeSet<usize> = match wanted {
        1 => BTreeSet::from([last / 2]),
        _ => (0..wanted).map(|at| at * last / (wanted - 1)).collect(),
    };
    places.into_iter().filter_map(|at| calls.get(at).cloned()).collect()
}

/// The states of all journals.
fn states(text: &str) -> Option<Vec<String>> {
    let json: Value = serde_json::from_str(text).ok()?;
    let journals = json.get("journals")?.as_array()?;
    journals.iter().map(|one| Some(one.get("state")?.as_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::{kill, spread, states};

    #[test]
    fn cuts_are_spread_from_the_first_call_to_the_last() {
        let text: String = (0..9).map(|_| "7 write(3</d/x>, \"\", 0) = 0\n").collect();
        let calls = kill::calls_in(&text, "/d/");
        assert_eq!(calls.len(), 9);
        let chosen = spread(&calls, 4);
        assert_eq!(chosen, [0, 2, 5, 8].map(|at: usize| calls[at].clone()));
        assert_eq!(spread(&calls[..1], 4), calls[..1]);
        assert_eq!(spread(&calls, 1), calls[4..5]);
        assert!(spread(&[], 4).is_empty());
    }

    #[test]
    fn the_states_of_journals_are_read() {
        let text = r#"{"format":"x","journals":[{"id":"1-2","state":"reverted"}]}"#;
        assert_eq!(states(text).unwrap(), ["reverted"]);
        assert!(states("{}").is_none());
    }
}
