//! Every command that holds something, ended by every signal that ends a program: the host is as
//! before (masks, cgroups, files), nothing that was started is left, and no journal is open.
//!
//! The commands run next to each other, each with folders and a virtual machine of its own. By
//! default each of them gets three of the signals, so that each signal ends several commands;
//! `PINFOLD_TEST_SIZE=full` tries all of them with all commands.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::machine::{list_masks, start_quietly};
use crate::common::{
    MINUTE_NS, PINFOLD, Sandbox, WITHOUT_CLAIMS, is_missing, run, skip, take_turn, until_rarely,
};
use pinfold_host::process::{Child, Signaled, Spawn, Stdio, is_root};
use pinfold_host::{Host as _, LiveHost, SystemClock, files};
use pinfold_model::{CpuSet, Tid};

/// What finds the processes that a test started: a variable that all of them inherit.
const MARK: &str = "PINFOLD_TEST_SIGNALS";

const TCG: &str = "-accel tcg,thread=multi";

/// Signals that end a command by default, and the distance between those of one command.
const FEW: usize = 3;
const STEP: usize = 3;

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
    /// It has events of the kernel open.
    Events,
}

/// What one command has to itself.
struct TestMachine {
    sandbox: Sandbox,
    host: LiveHost,
    /// A virtual machine that it may be pointed at.
    qemu: Option<Child>,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

const QEMU: &str = "qemu-system-x86_64 -M q35 -display none -nodefaults -m 64M -smp 2 -name guest=s,debug-threads=on";

impl TestMachine {
    fn new() -> Self {
        Self { sandbox: Sandbox::new(), host: LiveHost::new().expect("a host"), qemu: None }
    }

    /// The same with a virtual machine.
    fn with_machine(more: &str) -> Self {
        let mut scene = Self::new();
        let line = format!("{QEMU} {more} -qmp unix:{},server=on,wait=off", scene.file("qmp"));
        let line = words(&line);
        scene.qemu = Some(start_quietly(Spawn::new(&line[0]).args(&line[1..])));
        assert!(until_rarely(|| scene.masks().len() > 2), "QEMU makes its vCPUs");
        scene
    }

    /// A name for a vnode that no other test has.
    fn vnode(&self) -> String {
        let folder = self.sandbox.root();
        let letters = folder.rsplit('/').next().unwrap_or_default().chars();
        letters.filter(char::is_ascii_alphanumeric).collect()
    }

    fn file(&self, name: &str) -> String {
        self.sandbox.path(name)
    }

    fn masks(&self) -> BTreeMap<Tid, CpuSet> {
        let qemu = self.qemu.as_ref();
        qemu.map(|qemu| list_masks(&self.host, qemu.pid())).unwrap_or_default()
    }

    /// Processes of the commands under test, with their names.
    fn started(&self) -> BTreeMap<Tid, String> {
        let mark = format!("{MARK}={}", self.sandbox.root());
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
        let names = files::list(&folder).unwrap_or_default().into_iter();
        let journals = names.filter(|name| name.ends_with(".jsonl"));
        journals.filter_map(|name| files::read_text(&format!("{folder}/{name}")).ok()).collect()
    }

    fn open_journals(&self) -> usize {
        self.journals()
            .iter()
            .filter(|text| text.contains("{\"step\"") && !text.contains("{\"end\""))
            .count()
    }

    fn is_ready(&self, ready: &Ready, pid: Tid) -> bool {
        match ready {
            Ready::Journal => self.open_journals() > 0,
            Ready::Started(name) => self.started().values().any(|found| found == name),
            Ready::Processes(count) => self.started().len() >= *count,
            Ready::Events => {
                let folder = format!("/proc/{pid}/fd");
                let files = self.host.list(&folder).unwrap_or_default().into_iter();
                let links =
                    files.filter_map(|file| self.host.link(&format!("{folder}/{file}")).ok());
                links.into_iter().any(|link| link.contains("perf_event") || link.contains("bpf"))
            }
        }
    }

    /// What is left of a command's temporary files, of its folders in memory, sockets and marks,
    /// and of its cgroups. All are named after a process, or after the vnode of this test.
    fn left(&self, pids: &BTreeSet<Tid>) -> BTreeSet<String> {
        let mut left: BTreeSet<String> =
            files::list(&self.file("tmp")).unwrap_or_default().into_iter().collect();
        fn of_pid(name: &str, pids: &BTreeSet<Tid>) -> bool {
            pids.iter().any(|pid| name.contains(&format!("-{pid}-")))
        }
        for folder in ["/dev/shm", "/run/pinfold", "/run/pinfold-placed"] {
            let names = files::list(folder).unwrap_or_default().into_iter();
            left.extend(names.filter(|name| of_pid(name, pids)));
        }
        let groups = pinfold_groups();
        let groups = groups.into_iter().filter(|path| {
            path.split('/').any(|name| {
                name.starts_with("pinfold")
                    && (of_pid(&format!("{name}-"), pids)
                        || *name == format!("pinfold-vnode-{}", self.vnode()))
            })
        });
        left.extend(groups);
        left
    }

    /// The files of the cgroups above ours that a placement may change.
    fn group_files(&self) -> BTreeMap<String, String> {
        let names = "-name cpuset.cpus -o -name cpuset.mems -o -name cgroup.subtree_control";
        let find = format!("/sys/fs/cgroup -maxdepth 2 -type f ( {names} )");
        let found = run("find", find.split(' ')).stdout_text();
        let files = found.lines().filter(|path| !path.contains("/pinfold"));
        files.filter_map(|path| Some((path.to_owned(), files::read_text(path).ok()?))).collect()
    }

    /// It writes to a log; ignored signals, as of a test under nohup, are as usual again.
    fn start(&self, long: &Long) -> Child {
        let (state, temporary) = (self.file("state"), self.file("tmp"));
        files::make_dirs(&temporary).expect("a folder for temporary files");
        let script = format!("exec env --default-signal \"$@\" >{} 2>&1", self.file("log"));
        Spawn::new("sh")
            .env(WITHOUT_CLAIMS, "true")
            .args(["-c", &script, "-", PINFOLD, "--state-dir", &state])
            .args(&long.words)
            .env(MARK, &self.sandbox.root())
            .env("TMPDIR", &temporary)
            .stdin(Stdio::Null)
            .own_group()
            .die_with_parent(true)
            .start()
            .expect("pinfold starts")
    }

    /// Starts a command and ends it by a signal once it is at work: the processes that it was;
    /// `None` if it cannot work here.
    fn end_by(&self, long: &Long, signal: Signaled) -> Option<BTreeSet<Tid>> {
        let mut child = self.start(long);
        let mut ended = false;
        // The first demo guest of a machine has a kernel to be fetched.
        let minutes = if long.name == "tune --demo" { 5 } else { 1 };
        let is_ready = (0..minutes).any(|_| {
            until_rarely(|| {
                ended = child.try_wait().expect("its state").is_some();
                ended || self.is_ready(&long.ready, child.pid())
            })
        });
        if ended {
            skip(format!("{}: {}", long.name, self.log().replace('\n', " ")));
            return None;
        }
        assert!(is_ready, "{} is not at work: {}", long.name, self.log());
        let mut pids: BTreeSet<Tid> = self.started().into_keys().collect();
        pids.extend(self.qemu.as_ref().map(Child::pid));
        child.signal(signal).expect("it runs");
        let status = child.wait_for(&SystemClock, MINUTE_NS).expect("its state");
        assert!(status.is_some(), "{} goes on after {signal:?}: {}", long.name, self.log());
        Some(pids)
    }

    fn log(&self) -> String {
        files::read_text(&self.file("log")).unwrap_or_default()
    }

    /// Ends a command by signals, and says what was left.
    fn run(&self, long: &Long, signals: &[Signaled]) -> Vec<String> {
        let (masks, files) = (self.masks(), self.group_files());
        // A group of another program, made hours ago, may be named after a PID of today.
        let earlier = pinfold_groups();
        let mut left = Vec::new();
        for signal in signals.iter().copied() {
            if files::exists(&self.file("store")) {
                files::remove(&self.file("store")).expect("the store of the last one");
            }
            let Some(pids) = self.end_by(long, signal) else { break };
            let log = files::read_text(&self.file("log")).unwrap_or_default();
            let mut note = |what: &str, found: String| {
                left.push(format!("{} by {signal:?}: {what}: {found}\n{log}", long.name));
            };
            // A QEMU makes threads as it likes.
            let now = self.masks();
            if masks.iter().any(|(tid, mask)| now.get(tid).is_some_and(|now| now != mask)) {
                note("masks", format!("{now:?}"));
            }
            if self.open_journals() > 0 {
                note("open journals", self.journals().join("\n"));
            }
            if !until_rarely(|| self.started().is_empty()) {
                note("processes", format!("{:?}", self.started()));
            }
            let remains = self.left(&pids);
            let new: Vec<_> = remains.difference(&earlier).collect();
            if !new.is_empty() {
                note("files and cgroups", format!("{new:?}"));
            }
            let now = self.group_files();
            if files.iter().any(|(path, text)| now.get(path).is_some_and(|now| now != text)) {
                note("files of cgroups", format!("{now:?}, before {files:?}"));
            }
            self.sandbox.run(&["undo", "--all"]);
            println!(
                "{} ended by {signal:?} at {}",
                long.name,
                pinfold_host::Clock::now_ns(&SystemClock) / 100_000_000
            );
        }
        left
    }
}

/// The cgroups that have Pinfold's name, of whatever program.
fn pinfold_groups() -> BTreeSet<String> {
    let found = run("find", ["/sys/fs/cgroup", "-type", "d", "-name", "pinfold*"]).stdout_text();
    found.lines().map(str::to_owned).collect()
}

/// The signals that a command gets, by its place among the commands: those of one place and the next
/// are different ones.
fn signals(long: &Long, place: usize) -> Vec<Signaled> {
    let is_full = std::env::var("PINFOLD_TEST_SIZE").is_ok_and(|size| size == "full");
    let many = if is_full { SIGNALS.len() } else { FEW };
    let turns = (0..many).map(|at| SIGNALS[(place + at * STEP) % SIGNALS.len()]);
    match long.name {
        // It holds nothing, and no program of Rust ends by this signal from outside.
        "measure" => turns.filter(|signal| *signal != Signaled::Pipe).collect(),
        // Its guest takes seconds to be made; what catches signals is that of `tune`.
        "tune --demo" if is_full => vec![Signaled::HangUp, Signaled::Terminate],
        "tune --demo" => vec![Signaled::Terminate],
        _ => turns.collect(),
    }
}

/// The commands, each with its scene.
fn commands() -> Vec<(TestMachine, Long)> {
    let mut commands = Vec::new();
    let mut add = |scene: TestMachine, name, text: &str, ready| {
        let text = text.replace("FOLDER", &scene.sandbox.root());
        commands.push((scene, Long { name, words: words(&text), ready }));
    };
    // Most of the time that this takes is that of the guest's start.
    let tune =
        "tune --strategies none,compact --store FOLDER/runs --report FOLDER/page --budget 2h";
    let settling = format!("{tune} --settle 1h -- {QEMU} {TCG} -S");
    add(TestMachine::new(), "tune", &settling, Ready::Started("qemu-system-x86"));
    let demo = format!("{tune} --demo --vcpus 1");
    add(TestMachine::new(), "tune --demo", &demo, Ready::Started("qemu-system-x86"));
    let apply = "apply --qmp FOLDER/qmp --strategy compact --watch";
    add(TestMachine::with_machine(&format!("{TCG} -S")), "apply --watch", apply, Ready::Journal);
    let run = format!("run --strategy compact -- {QEMU} {TCG} -S");
    add(TestMachine::new(), "run", &run, Ready::Journal);
    add(TestMachine::new(), "measure", "measure wakeup --seconds 100", Ready::Processes(2));
    let scene = TestMachine::new();
    let study = "name = \"s\"\ntitle = \"s\"\nrepetitions = 2\ntime-limit = \"90s\"\n[baseline]\nkind = \"a\"\n[[factor]]\nname = \"kind\"\nlevels = [\"a\", \"b\"]\n[[workload]]\nname = \"w\"\ncommand = [\"sleep\", \"60\"]\nlasts = \"60s\"\ntime-limit = \"80s\"\n";
    scene.sandbox.write("study.toml", study);
    let run = "study run FOLDER/study.toml --store FOLDER/store";
    add(scene, "study run", run, Ready::Started("sleep"));
    if is_root() {
        let slow = "run --speed 60% --method quota -- sleep 100";
        add(TestMachine::new(), "run --speed", slow, Ready::Started("sleep"));
        let scene = TestMachine::new();
        let vnode =
            "[[vnode]]\nname = \"signals\"\ncores = 1\nspeed = \"60%\"\nmethod = \"quota\"\n";
        let vnode = vnode.replace("NAME", &scene.vnode());
        scene.sandbox.write("platform.toml", vnode);
        let up = "emulate up --foreground FOLDER/platform.toml";
        add(scene, "emulate up", up, Ready::Journal);
    }
    if files::exists("/dev/kvm") {
        let scene = TestMachine::with_machine("-accel kvm");
        add(scene, "exits", "exits --qmp FOLDER/qmp --seconds 100", Ready::Events);
    }
    commands
}

#[test]
fn no_command_leaves_anything_whatever_signal_ends_it() {
    let _turn = take_turn();
    if is_missing(&["qemu-system-x86_64"]) {
        return;
    }
    let left: Vec<String> = std::thread::scope(|scope| {
        let commands = commands();
        let runs: Vec<_> = commands
            .into_iter()
            .enumerate()
            .map(|(place, (scene, long))| {
                scope.spawn(move || scene.run(&long, &signals(&long, place)))
            })
            .collect();
        runs.into_iter().flat_map(|run| run.join().expect("it is run")).collect()
    });
    assert!(left.is_empty(), "{}", left.join("\n"));
}
