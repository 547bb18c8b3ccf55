//! A placement that `apply` leaves ends with its machine, although no command runs at that time.

use pinfold_host::files;
use pinfold_host::process::{self, Child, Output, Signaled, Spawn, find_program};
use pinfold_host::{Host as _, LiveHost, paths};
use pinfold_model::Tid;

use crate::common::until;

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const MINUTE_NS: u64 = 60_000_000_000;
const QEMU: &str = "qemu-system-x86_64";

/// A placed machine of this test.
struct PlacedMachine {
    host: LiveHost,
    folder: tempfile::TempDir,
    qemu: Child,
}

impl PlacedMachine {
    fn new() -> Option<Self> {
        if find_program(QEMU).is_none() {
            println!("skipped: {QEMU} is not installed");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("qmp").to_string_lossy().into_owned();
        let line = "-S -M q35 -accel tcg,thread=multi -display none -nodefaults -m 64M -name guest=t,debug-threads=on";
        let monitor = format!("unix:{socket},server=on,wait=off");
        let command = Spawn::new(QEMU).args(line.split(' ')).args(["-qmp", &monitor]);
        let qemu = crate::common::machine::start_qemu(command);
        assert!(until(|| files::exists(&socket)), "QEMU starts");
        let machine = Self { host: LiveHost::new().expect("a host"), folder, qemu };
        let placed = machine.apply();
        assert!(placed.status.success(), "{}", placed.stderr_text());
        let said = placed.stderr_text();
        assert!(said.contains("active until the machine ends or `pinfold"), "{said}");
        assert!(until(|| machine.waiter().is_some()), "no process waits");
        Some(machine)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn pinfold(&self, words: &[&str]) -> Output {
        let own = ["--state-dir".to_owned(), self.file("state")];
        let words = own.into_iter().chain(words.iter().map(|word| (*word).to_owned()));
        process::capture(PINFOLD, words, MINUTE_NS).expect("pinfold runs")
    }

    /// From a shell with a file open, as a script that holds a lock.
    fn apply(&self) -> Output {
        let line = r#"exec 9>"$0/held" && exec "$@""#;
        let qmp = self.file("qmp");
        let words = ["-c", line, &self.file(""), PINFOLD, "--state-dir", &self.file("state")]
            .map(str::to_owned);
        let apply = ["apply", "--qmp", &qmp, "-s", "compact"].map(str::to_owned);
        process::capture("sh", words.into_iter().chain(apply), MINUTE_NS).expect("it runs")
    }

    /// The process that waits for the end of this machine.
    fn waiter(&self) -> Option<Tid> {
        self.waiters().first().copied()
    }

    fn waiters(&self) -> Vec<Tid> {
        let (state, pids) = (self.file("state"), self.host.list(&paths::proc_dir()));
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

    fn journal(&self) -> String {
        let folder = self.file("state/journal");
        let names = files::list(&folder).expect("journals");
        let name = names.iter().find(|name| name.ends_with(".jsonl")).expect("a journal");
        files::read_text(&format!("{folder}/{name}")).expect("text")
    }
}

#[test]
fn the_placement_of_a_machine_that_ends_is_reverted_without_a_command() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    assert!(!machine.journal().contains(r#"{"end""#));
    machine.qemu.kill().expect("QEMU ends");
    assert!(until(|| machine.journal().contains(r#""why":"ended with its process""#)));
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    let status = machine.pinfold(&["status"]);
    assert!(status.status.success(), "{}", status.stderr_text());
    assert!(!status.stderr_text().contains("has ended with"), "{}", status.stderr_text());
}

#[test]
fn the_process_ends_when_the_placement_is_undone() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    let undone = machine.pinfold(&["undo", "--all"]);
    assert!(undone.status.success(), "{}", undone.stderr_text());
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    assert!(machine.qemu.try_wait().expect("its state").is_none());
    // The next placement has a process of its own.
    let again = machine.apply();
    assert!(again.status.success(), "{}", again.stderr_text());
    assert!(until(|| machine.waiter().is_some()), "no process waits");
    machine.qemu.kill().expect("QEMU ends");
    assert!(until(|| machine.waiter().is_none()), "the process stays");
}

/// A plan that replaces another one has a process that waits too, and only one.
#[test]
fn one_process_waits_after_the_plan_is_replaced() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    let waiter = machine.waiter().expect("it waits");
    process::signal(waiter, Signaled::Kill).expect("a signal");
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    for _ in 0..2 {
        let again = machine.apply();
        assert!(again.stderr_text().contains("was replaced"), "{}", again.stderr_text());
        assert!(until(|| machine.waiters().len() == 1), "{:?} wait", machine.waiters());
    }
    machine.qemu.kill().expect("QEMU ends");
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    assert!(machine.journal().contains(r#""why":"ended with its process""#));
}

#[test]
fn the_process_takes_nothing_of_its_caller_and_can_be_ended() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    let waiter = machine.waiter().expect("it waits");
    let stat = machine.host.read_text(&paths::process_stat(waiter)).expect("its stat");
    let own = machine.host.read_text(&paths::own_stat()).expect("own stat");
    let session = |stat: &str| {
        let (_, rest) = stat.rsplit_once(')').expect("a name");
        rest.split_whitespace().nth(3).expect("a session").to_owned()
    };
    assert_eq!(session(&stat), waiter.to_string());
    assert_ne!(session(&stat), session(&own));
    assert_eq!(machine.host.link(&format!("/proc/{waiter}/cwd")).expect("a link"), "/");
    let open = machine.host.list(&format!("/proc/{waiter}/fd")).expect("descriptors");
    let links = open.iter().map(|fd| machine.host.link(&format!("/proc/{waiter}/fd/{fd}")));
    let links: Vec<String> = links.map(|link| link.expect("a link")).collect();
    let held = machine.file("held");
    assert!(!links.contains(&held) && !links.iter().any(|link| link.starts_with("pipe:")));
    assert!(!links.iter().any(|link| link.ends_with(".lock")), "it holds a lock: {links:?}");
    // SIGTERM changes nothing; the next command after the end of the machine reverts the placement.
    let journal = machine.journal();
    process::signal(waiter, Signaled::Terminate).expect("a signal");
    assert!(until(|| machine.waiter().is_none()), "the process stays");
    assert_eq!(machine.journal(), journal);
    machine.qemu.kill().expect("QEMU ends");
    let status = machine.pinfold(&["status"]);
    assert!(status.stderr_text().contains("has ended with its process"), "{status:?}");
}
