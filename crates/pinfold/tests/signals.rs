//! Every command that holds something, ended by every signal that ends a program: the host is as
//! before, nothing that was started is left, and no journal is open.
//!
//! `exits` is not among them: it holds descriptors of its own and starts nothing that stays.

#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]
#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod common;
#[path = "common/qemu.rs"]
mod qemu;

use std::collections::{BTreeMap, BTreeSet};

use common::until;
use pinfold_host::process::{Child, Signaled, Spawn, Stdio, capture, find_program, is_root};
use pinfold_host::{Host as _, LiveHost, SystemClock, paths, user};
use pinfold_model::{CpuSet, Tid};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const MINUTE_NS: u64 = 60_000_000_000;
/// What finds the processes that a test started: a variable that all of them inherit.
const MARK: &str = "PINFOLD_SIGNALS_TEST";

const SIGNALS: [Signaled; 8] = [
    Signaled::HangUp,
    Signaled::Interrupt,
    Signaled::Quit,
    Signaled::Terminate,
    Signaled::Pipe,
    Signaled::Alarm,
    Signaled::User1,
    Signaled::User2,
];

/// A command, and what shows that it is at work.
struct Long {
    name: &'static str,
    words: Vec<String>,
    ready: Ready,
}

enum Ready {
    /// Its journal has steps.
    Journal,
    /// It has started a process of this name.
    Started(&'static str),
    /// It is so many processes.
    Processes(usize),
}

struct Scene {
    folder: tempfile::TempDir,
    host: LiveHost,
    qemu: Child,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

const QEMU: &str = "qemu-system-x86_64 -M q35 -accel tcg,thread=multi -display none -nodefaults -m 64M -smp 2 -name guest=s,debug-threads=on";

impl Scene {
    fn new() -> Result<Self, String> {
        find_program("qemu-system-x86_64").ok_or("qemu-system-x86_64 is not installed")?;
        let folder = tempfile::tempdir().expect("a folder");
        let socket = format!("unix:{}/qmp,server=on,wait=off", folder.path().display());
        let line = words(&format!("{QEMU} -S -qmp {socket}"));
        let qemu = qemu::start(Spawn::new(&line[0]).args(&line[1..]));
        let scene = Self { folder, host: LiveHost::new().expect("a host"), qemu };
        assert!(until(|| scene.masks().len() > 2), "QEMU makes its vCPUs");
        Ok(scene)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn masks(&self) -> BTreeMap<Tid, CpuSet> {
        let tids = self.host.list(&paths::task_dir(self.qemu.pid())).expect("threads");
        let tids = tids.iter().filter_map(|tid| tid.parse().ok().map(Tid));
        tids.filter_map(|tid| Some((tid, self.host.affinity(tid).ok()?))).collect()
    }

    /// Processes of the commands under test, with their names.
    fn started(&self) -> BTreeMap<Tid, String> {
        let mark = format!("{MARK}={}", self.folder.path().display());
        let pids = self.host.list("/proc").expect("processes");
        let pids = pids.iter().filter_map(|pid| pid.parse().ok().map(Tid));
        let name = |pid: Tid| {
            let environment = self.host.read(&format!("/proc/{pid}/environ")).ok()?;
            let has_it = environment.split(|byte| *byte == 0).any(|one| one == mark.as_bytes());
            has_it.then(|| self.host.read_text(&format!("/proc/{pid}/comm")).unwrap_or_default())
        };
        pids.filter_map(|pid| Some((pid, name(pid)?.trim().to_owned()))).collect()
    }

    fn journals(&self) -> Vec<String> {
        let folder = self.file("state/journal");
        let names = user::list(&folder).unwrap_or_default().into_iter();
        let journals = names.filter(|name| name.ends_with(".jsonl"));
        journals.filter_map(|name| user::read_text(&format!("{folder}/{name}")).ok()).collect()
    }

    fn open_journals(&self) -> usize {
        let is_open = |text: &&String| text.contains("{\"step\"") && !text.contains("{\"end\"");
        self.journals().iter().filter(is_open).count()
    }

    fn is_ready(&self, ready: &Ready) -> bool {
        match ready {
            Ready::Journal => self.open_journals() > 0,
            Ready::Started(name) => self.started().values().any(|found| found == name),
            Ready::Processes(count) => self.started().len() >= *count,
        }
    }

    /// What is left of a command's temporary files and of folders in memory.
    fn files(&self) -> BTreeSet<String> {
        let listed = |folder: String| user::list(&folder).unwrap_or_default();
        let temporary = listed(self.file("tmp")).into_iter();
        let memory = listed("/dev/shm".to_owned()).into_iter();
        let sockets = listed("/run/pinfold".to_owned()).into_iter();
        let memory = memory.filter(|name| name.starts_with("pinfold-"));
        temporary.chain(memory).chain(sockets).collect()
    }

    fn commands(&self) -> Vec<Long> {
        let long = |name, text: String, ready| Long { name, words: words(&text), ready };
        let qmp = self.file("qmp");
        let platform = self.file("platform.toml");
        let study = self.file("study.toml");
        let vnode =
            "[[vnode]]\nname = \"signals\"\ncores = 1\nspeed = \"60%\"\nmethod = \"quota\"\n";
        user::write_atomic(&platform, vnode.as_bytes()).expect("a platform");
        let text = "name = \"s\"\ntitle = \"s\"\nrepetitions = 2\ntime-limit = \"90s\"\n[baseline]\nkind = \"a\"\n[[factor]]\nname = \"kind\"\nlevels = [\"a\", \"b\"]\n[[workload]]\nname = \"w\"\ncommand = [\"sleep\", \"60\"]\nlasts = \"60s\"\ntime-limit = \"80s\"\n";
        user::write_atomic(&study, text.as_bytes()).expect("a study");
        let mut commands = vec![
            long(
                "apply --watch",
                format!("apply --qmp {qmp} --strategy compact --watch"),
                Ready::Journal,
            ),
            long("run", format!("run --strategy compact -- {QEMU}"), Ready::Journal),
            long("measure", "measure wakeup --seconds 100".to_owned(), Ready::Processes(2)),
            long(
                "study run",
                format!("study run {study} --store {}", self.file("store")),
                Ready::Started("sleep"),
            ),
        ];
        if is_root() {
            commands.push(long(
                "run --speed",
                "run --speed 60% --method quota -- sleep 100".to_owned(),
                Ready::Started("sleep"),
            ));
            commands.push(long(
                "emulate up",
                format!("emulate up --foreground {platform}"),
                Ready::Journal,
            ));
        }
        commands.push(long(
            "tune",
            format!(
                "tune --demo --budget 7m --strategies none,compact --store {} --report {}",
                self.file("runs"),
                self.file("page")
            ),
            Ready::Started("qemu-system-x86"),
        ));
        commands
    }

    /// It writes to a log; ignored signals, as of a test under nohup, are as usual again.
    fn start(&self, long: &Long) -> Child {
        let (state, temporary) = (self.file("state"), self.file("tmp"));
        user::make_dirs(&temporary).expect("a folder for temporary files");
        let script = format!("exec env --default-signal \"$@\" >{} 2>&1", self.file("log"));
        Spawn::new("sh")
            .args(["-c", &script, "-", PINFOLD, "--state-dir", &state])
            .args(&long.words)
            .env(MARK, &self.folder.path().to_string_lossy())
            .env("TMPDIR", &temporary)
            .stdin(Stdio::Null)
            .own_group()
            .die_with_parent(true)
            .start()
            .expect("pinfold starts")
    }

    /// Starts a command and ends it by a signal once it is at work; false if it cannot work here.
    fn end_by(&self, long: &Long, signal: Signaled) -> bool {
        let mut child = self.start(long);
        let mut ended = false;
        let is_ready = until(|| {
            ended = child.try_wait().expect("its state").is_some();
            ended || self.is_ready(&long.ready)
        });
        let log = || user::read_text(&self.file("log")).unwrap_or_default();
        if ended {
            println!("skipped: {}: {}", long.name, log());
            return false;
        }
        assert!(is_ready, "{} is not at work: {}", long.name, log());
        child.signal(signal).expect("it runs");
        let status = child.wait_for(&SystemClock, MINUTE_NS).expect("its state");
        assert!(status.is_some(), "{} goes on after {signal:?}: {}", long.name, log());
        true
    }
}

#[test]
fn no_command_leaves_anything_whatever_signal_ends_it() {
    let scene = match Scene::new() {
        Ok(scene) => scene,
        Err(why) => return println!("skipped: {why}"),
    };
    let (masks, files) = (scene.masks(), scene.files());
    let mut left = Vec::new();
    for long in scene.commands() {
        for signal in SIGNALS {
            if (long.name, signal) == ("measure", Signaled::Pipe) {
                // It holds nothing, and no program of Rust ends by this signal from outside.
                continue;
            }
            if user::exists(&scene.file("store")) {
                user::remove(&scene.file("store")).expect("the store of the last one");
            }
            if !scene.end_by(&long, signal) {
                break;
            }
            let log = user::read_text(&scene.file("log")).unwrap_or_default();
            let name = long.name;
            let mut note = |what: &str, found: String| {
                left.push(format!("{name} by {signal:?}: {what}: {found}\n{log}"));
            };
            // A QEMU makes threads as it likes.
            let now = scene.masks();
            if masks.iter().any(|(tid, mask)| now.get(tid).is_some_and(|now| now != mask)) {
                note("masks", format!("{:?}", scene.masks()));
            }
            if scene.open_journals() > 0 {
                note("open journals", scene.journals().join("\n"));
            }
            if !until(|| scene.started().is_empty()) {
                note("processes", format!("{:?}", scene.started()));
            }
            // Folders of other programs in memory come and go.
            if !until(|| scene.files().is_subset(&files)) {
                note("files", format!("{:?}", scene.files()));
            }
            capture(PINFOLD, ["--state-dir", &scene.file("state"), "undo", "--all"], MINUTE_NS)
                .expect("it runs");
            println!("{} ended by {signal:?}", long.name);
        }
    }
    assert!(left.is_empty(), "{}", left.join("\n"));
}
