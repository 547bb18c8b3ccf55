//! A placement that `apply` leaves ends with its machine, although no command runs at that time.

use std::ops::Deref;

use crate::common::machine::Machine;
use crate::common::{Checked as _, until};
use pinfold_host::files;
use pinfold_host::process::{self, Output, Signaled};
use pinfold_host::{Host as _, paths};
use pinfold_model::Tid;

/// A placed machine of this test.
struct PlacedMachine(Machine);

impl Deref for PlacedMachine {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.0
    }
}

impl PlacedMachine {
    fn new() -> Option<Self> {
        let machine = Self(Machine::new("")?);
        let said = machine.apply().expect_code(0);
        assert!(said.contains("active until the machine ends or `pinfold"), "{said}");
        assert!(until(|| machine.waiter().is_some()), "no process waits");
        Some(machine)
    }

    /// From a shell with a file open, as a script that holds a lock.
    fn apply(&self) -> Output {
        let line = r#"exec 9>"$0/held" && exec "$@""#;
        let words = ["sh", "-c", line, &self.root()];
        self.run_by(&words, &["apply", "--qmp", &self.qmp(), "-s", "compact"])
    }

    /// The process that waits for the end of this machine.
    fn waiter(&self) -> Option<Tid> {
        self.waiters().first().copied()
    }

    fn waiters(&self) -> Vec<Tid> {
        let (state, pids) = (self.path("state"), self.host.list(&paths::proc_dir()));
        let mut pids: Vec<Tid> = pids
            .expect("processes")
            .into_iter()
            .filter_map(|pid| pid.parse().ok().map(Tid))
            .collect();
        pids.retain(|pid| {
            let words = self.host.read_text(&paths::process_cmdline(*pid)).unwrap_or_default();
            words.contains(&state) && words.contains("\0end-waiter\0")
        });
        pids
    }

    /// The files that waiting processes hold.
    fn files(&self) -> Vec<String> {
        let mut names = files::list(&self.path("state/journal")).expect("journals");
        names.retain(|name| name.ends_with(".waiter"));
        names
    }

    fn journal(&self) -> String {
        let folder = self.path("state/journal");
        let names = files::list(&folder).expect("journals");
        let name = names.iter().find(|name| name.ends_with(".jsonl")).expect("a journal");
        files::read_text(&format!("{folder}/{name}")).expect("text")
    }
}

#[test]
fn the_placement_of_a_machine_that_ends_is_reverted_without_a_command() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    assert!(!machine.journal().contains(r#"{"end""#));
    machine.0.qemu.kill().expect("QEMU ends");
    assert!(until(|| machine.journal().contains(r#""why":"ended with its process""#)));
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    let status = machine.run(&["status"]).expect_success();
    assert!(!status.stderr_text().contains("has ended with"), "{}", status.stderr_text());
}

#[test]
fn the_process_ends_when_the_placement_is_undone() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    machine.run(&["undo", "--all"]).expect_success();
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    assert!(machine.0.qemu.try_wait().expect("its state").is_none());
    // The next placement has a process of its own.
    machine.apply().expect_success();
    assert!(until(|| machine.waiter().is_some()), "no process waits");
    machine.0.qemu.kill().expect("QEMU ends");
    assert!(until(|| machine.waiter().is_none()), "the process stays");
}

/// A plan that replaces another one has a process that waits too, and only one.
#[test]
fn one_process_waits_after_the_plan_is_replaced() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    let waiter = machine.waiter().expect("it waits");
    assert!(until(|| machine.files().len() == 1), "{:?}", machine.files());
    process::signal(waiter, Signaled::Kill).expect("a signal");
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    machine.run(&["status"]).expect_success();
    assert_eq!(machine.files().len(), 1, "its placement is active");
    for _ in 0..2 {
        let again = machine.apply();
        assert!(again.stderr_text().contains("was replaced"), "{}", again.stderr_text());
        assert!(until(|| machine.waiters().len() == 1), "{:?} wait", machine.waiters());
    }
    machine.0.qemu.kill().expect("QEMU ends");
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    assert!(machine.journal().contains(r#""why":"ended with its process""#));
    assert!(machine.files().is_empty(), "{:?}", machine.files());
}

#[test]
fn the_file_of_a_process_that_was_killed_goes_with_the_placement() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    let waiter = machine.waiter().expect("it waits");
    assert!(until(|| machine.files().len() == 1), "{:?}", machine.files());
    process::signal(waiter, Signaled::Kill).expect("a signal");
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    machine.0.qemu.kill().expect("QEMU ends");
    machine.run(&["status"]).expect_success();
    assert!(machine.files().is_empty(), "{:?}", machine.files());
}

#[test]
fn the_process_takes_nothing_of_its_caller_and_can_be_ended() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    let waiter = machine.waiter().expect("it waits");
    assert!(until(|| machine.files().len() == 1), "{:?}", machine.files());
    let stat = machine.host.read_text(&paths::process_stat(waiter)).expect("its stat");
    let own = machine.host.read_text(&paths::own_stat()).expect("own stat");
    assert_eq!(session(&stat), waiter.to_string());
    assert_ne!(session(&stat), session(&own));
    assert_eq!(machine.host.link(&format!("/proc/{waiter}/cwd")).expect("a link"), "/");
    let open = machine.host.list(&format!("/proc/{waiter}/fd")).expect("descriptors");
    let links = open.iter().map(|fd| machine.host.link(&format!("/proc/{waiter}/fd/{fd}")));
    // A file that it closed since the list was read has no link any more.
    let links: Vec<String> = links.filter_map(Result::ok).collect();
    assert!(links.len() >= 3, "{links:?}");
    let held = machine.path("held");
    assert!(!links.contains(&held) && !links.iter().any(|link| link.starts_with("pipe:")));
    assert!(!links.iter().any(|link| link.ends_with(".lock")), "it holds a lock: {links:?}");
    // SIGTERM changes nothing; the next command after the end of the machine reverts the placement.
    let journal = machine.journal();
    process::signal(waiter, Signaled::Terminate).expect("a signal");
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    assert_eq!(machine.journal(), journal);
    machine.0.qemu.kill().expect("QEMU ends");
    let status = machine.run(&["status"]);
    assert!(status.stderr_text().contains("has ended with its process"), "{status:?}");
}

fn session(stat: &str) -> String {
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    rest.split_whitespace().nth(3).expect("a session").to_owned()
}
