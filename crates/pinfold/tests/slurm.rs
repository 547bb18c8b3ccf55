//! `pinfold study --engine slurm` on a real cluster: munged, slurmctld and three slurmd of Debian,
//! as ordinary processes of this test on loopback, with ports and folders of their own.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::net::TcpListener;

mod common;

use common::machine::QEMU;
use common::{
    Checked as _, MINUTE_NS, PINFOLD, ROOT, Sandbox, assert_parts, is_missing, pinfold, skip,
};
use pinfold_host::process::{self, Child, Signaled, Spawn, Stdio};
use pinfold_host::{Clock as _, SystemClock, files};
use pinfold_model::Tid;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Three cells in three blocks, the first one twice: a block is a part of four trials.
const STUDY: &str = r#"
name = "tiny"
title = "Three cells on three nodes"
repetitions = 3
time-limit = "20s"
[baseline]
kind = "a"
[values]
nap = "0.05"
[[factor]]
name = "kind"
levels = ["a", "b", "c"]
[[workload]]
name = "shell"
command = ["sh", "-c", "sleep {nap}; echo time: 1$(echo $0 | wc -c)", "{kind}"]
lasts = "50ms"
[[workload.figure]]
name = "time"
unit = "ns"
regex = 'time: (\S+)'
[[plot]]
name = "times"
figure = "time"
x = "kind"
[preset.slow]
note = "slower"
values = { nap = "0.8" }
"#;

/// One machine under two placements.
const GUESTS: &str = r#"
name = "guests"
repetitions = 1
probes = ["switches"]
[baseline]
strategy = "none"
[[factor]]
name = "strategy"
levels = ["none", "compact"]
[[factor]]
name = "n_vcpu"
levels = [1]
[[workload]]
name = "swaptions"
pinload = ["parallel", "swaptions", "--threads", "{n_vcpu}", "--size", "small"]
time-limit = "60s"
lasts = "1s"
"#;

/// A cluster of three nodes on this machine. Dropping it ends all its processes.
struct Cluster {
    daemons: BTreeMap<String, Child>,
    sandbox: Sandbox,
}

impl Cluster {
    /// Starts one; `None`, told why, where that cannot be.
    fn start() -> Option<Self> {
        if is_missing(&["munged", "slurmctld", "slurmd", "sbatch"]) {
            return None;
        }
        if !process::is_root() {
            skip("slurmd and munged need root");
            return None;
        }
        let mut cluster = Self { daemons: BTreeMap::new(), sandbox: Sandbox::new() };
        for name in ["state", "log", "run", "shared"] {
            files::make_dirs(&cluster.path(name)).expect("a folder");
        }
        cluster.configure();
        let words = [
            ("--key-file", "munge.key"),
            ("--socket", "run/munge.sock"),
            ("--pid-file", "run/munged.pid"),
            ("--log-file", "log/munged.log"),
            ("--seed-file", "run/munged.seed"),
        ];
        let words = words.map(|(option, file)| format!("{option}={}", cluster.path(file)));
        let fixed = ["--force", "--foreground"].map(str::to_owned);
        cluster.daemon("munged", &[fixed.to_vec(), words.to_vec()].concat());
        cluster.wait("munge's socket", |c| files::exists(&c.path("run/munge.sock")));
        cluster.daemon("slurmctld", &["-D".to_owned()]);
        NODES.iter().for_each(|node| cluster.node(node));
        cluster.wait("three idle nodes", |c| {
            c.ask("sinfo", &["-h", "-p", "pf", "-t", "idle", "-o", "%D"]).trim() == "3"
        });
        Some(cluster)
    }

    /// The controller anew, with room for so many jobs, those that it still knows among them.
    fn restart(&mut self, most_jobs: usize) {
        let text = self.sandbox.read("slurm.conf");
        let lines = text.lines().filter(|line| !line.starts_with("MaxJobCount="));
        let text = lines.map(|line| format!("{line}\n")).collect::<String>();
        self.write("slurm.conf", &format!("MaxJobCount={most_jobs}\n{text}"));
        let mut daemon = self.daemons.remove("slurmctld").expect("it runs");
        daemon.terminate().expect("signalled");
        daemon.wait_for(&SystemClock, MINUTE_NS).expect("it ends").expect("in time");
        self.daemon("slurmctld", &["-D".to_owned()]);
        self.wait("controller", |c| c.ask("sinfo", &["-h", "-o", "%P"]).contains("pf*"));
    }

    fn configure(&self) {
        let host = files::read_text("/proc/sys/kernel/hostname").expect("a name");
        let host = host.trim().split('.').next().unwrap_or("localhost");
        let ports: Vec<TcpListener> =
            (0..4).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let ports: Vec<u16> =
            ports.iter().map(|port| port.local_addr().expect("bound").port()).collect();
        let at = self.sandbox.root();
        let mut text = format!(
            "ClusterName=pinfold-test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={at}/run/munge.sock\nSlurmctldPort={}\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool-%n\n\
             SlurmctldPidFile={at}/run/ctld.pid\nSlurmdPidFile={at}/run/slurmd-%n.pid\n\
             SlurmctldLogFile={at}/log/ctld.log\nSlurmdLogFile={at}/log/slurmd-%n.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=100000\n\
             JobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nMpiDefault=none\n\
             SwitchType=switch/none\nReturnToService=2\nSlurmdTimeout=4\nKillWait=5\n\
             SlurmdParameters=config_overrides\nMaxArraySize=3\n",
            ports[0]
        );
        for (node, port) in NODES.iter().zip(&ports[1..]) {
            text.push_str(&format!(
                "NodeName={node} NodeHostName={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 \
                 RealMemory=1000 State=UNKNOWN\n"
            ));
        }
        text.push_str(
            "PartitionName=pf Nodes=n[1-3] Default=YES MaxTime=1:00:00 State=UP\n\
             PartitionName=shut Nodes=n1 MaxTime=1:00:00 State=DOWN\n",
        );
        self.write("slurm.conf", &text);
        // munged wants a key of at least 32 bytes that only its owner can read.
        let key: Vec<u8> = (0..64).map(|i| SystemClock.now_ns().to_le_bytes()[i % 4]).collect();
        let state = files::StateDir::open(&self.path("keys")).expect("a folder");
        state.create_new("munge.key", &key).expect("written");
        files::rename(&self.path("keys/munge.key"), &self.path("munge.key")).expect("renamed");
    }

    fn path(&self, name: &str) -> String {
        self.sandbox.path(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        self.sandbox.write(name, text)
    }

    /// A `pinfold` for the nodes: each has a state of its own, as on machines of their own.
    fn program(&self, name: &str, before: &str) -> String {
        let path = self.path(name);
        let state = self.path("state-of");
        let text = format!(
            "#!/bin/sh\n{before}\nexec '{PINFOLD}' --state-dir '{state}'-$SLURMD_NODENAME \"$@\"\n"
        );
        files::write_program(&path, text.as_bytes()).expect("the file is written");
        path
    }

    fn daemon(&mut self, name: &str, words: &[String]) {
        let program = name.split('-').next().unwrap_or(name);
        let child = self.spawn(program).args(words).stdout(Stdio::Null).stderr(Stdio::Null);
        // Also when this test is killed.
        let child = child.die_with_parent(true).start().expect("it starts");
        self.daemons.insert(name.to_owned(), child);
    }

    fn node(&mut self, node: &str) {
        files::make_dirs(&self.path(&format!("spool-{node}"))).expect("a folder");
        self.daemon(&format!("slurmd-{node}"), &["-D", "-N", node].map(str::to_owned));
    }

    fn spawn(&self, program: &str) -> Spawn {
        let configuration = self.path("slurm.conf");
        Spawn::new(program).env("SLURM_CONF", &configuration).env("PINFOLD_IGNORE_CLAIMS", "true")
    }

    fn ask(&self, program: &str, words: &[&str]) -> String {
        self.spawn(program).args(words).capture(MINUTE_NS).expect("it runs").stdout_text()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = SystemClock.now_ns() + MINUTE_NS;
        while !is_so(self) {
            assert!(
                SystemClock.now_ns() < end,
                "no {what} in a minute: {}",
                files::read_text(&self.path("log/ctld.log")).unwrap_or_default()
            );
            SystemClock.sleep_ns(100_000_000);
        }
    }

    fn study(&self, words: &[&str]) -> Spawn {
        let state = self.path("collector");
        self.spawn(PINFOLD).args([&["--state-dir", &state, "study"], words].concat())
    }

    fn run(&self, words: &[&str]) -> (Option<i32>, String, String) {
        self.study(words).capture(5 * MINUTE_NS).expect("it runs").parts()
    }

    /// Asserts the exit code, and returns output and messages.
    #[track_caller]
    fn expect(&self, code: i32, words: &[&str]) -> (String, String) {
        let (found, printed, said) = self.run(words);
        assert_eq!(found, Some(code), "{printed}{said}");
        (printed, said)
    }

    /// The rows of `trials.csv`.
    fn trials(&self, store: &str) -> Vec<BTreeMap<String, String>> {
        self.table(store, "trials")
    }

    fn table(&self, store: &str, name: &str) -> Vec<BTreeMap<String, String>> {
        let out = self.path("tables");
        self.expect(0, &["export", store, "--out", &out]);
        let text = files::read_text(&format!("{out}/{name}.csv")).expect("a table");
        let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
        let head: Vec<String> = lines.next().expect("a head").collect();
        lines.map(|line| head.iter().cloned().zip(line).collect()).collect()
    }

    /// Every process that was started under this cluster and has this in its environment.
    fn processes(&self, mark: &str) -> Vec<Tid> {
        let own = self.path("slurm.conf");
        let mut found = Vec::new();
        for name in files::list("/proc").unwrap_or_default() {
            let Ok(bytes) = files::read(&format!("/proc/{name}/environ")) else { continue };
            let text = String::from_utf8_lossy(&bytes);
            let pid = name.parse::<u32>().ok().map(Tid).filter(|pid| *pid != process::own_pid());
            if let Some(pid) = pid.filter(|_| {
                text.split('\0').any(|one| one.contains(&own))
                    && text.split('\0').any(|one| one.contains(mark))
            }) {
                found.push(pid);
            }
        }
        found
    }

    /// Ends them, with the `slurmstepd` that each has for a parent, which would tell of it.
    fn end_all(&self, mark: &str) {
        let found = self.processes(mark);
        let parents: Vec<Tid> = found
            .iter()
            .filter_map(|pid: &Tid| status_of(*pid, "PPid:").parse().ok().map(Tid))
            .collect();
        let steps = parents.into_iter().filter(|pid| status_of(*pid, "Name:") == "slurmstepd");
        for pid in steps.chain(found.iter().copied()) {
            // It may have ended meanwhile.
            match process::signal(pid, Signaled::Kill) {
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// A field of `/proc/PID/status`; empty if the process has ended.
fn status_of(pid: Tid, name: &str) -> String {
    let text = files::read_text(&format!("/proc/{}/status", pid.0)).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    line.map(str::to_owned).unwrap_or_default()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.daemons.contains_key("slurmctld") {
            match self.spawn("scancel").args(["--quiet", "--user=root"]).capture(MINUTE_NS) {
                Ok(_) | Err(_) => {}
            }
        }
        for name in ["slurmd-n1", "slurmd-n2", "slurmd-n3", "slurmctld", "munged"] {
            drop(self.daemons.remove(name));
        }
        self.end_all("");
    }
}

/// What is tried on the cluster, with the study's file.
type TestMachine = fn(&Cluster, &str);

#[test]
fn studies_run_on_a_real_cluster() {
    let Some(mut cluster) = Cluster::start() else { return };
    let file = cluster.write("tiny.toml", STUDY);
    let scenes: [(&str, TestMachine); 8] = [
        ("through a shared folder", through_a_shared_folder),
        ("tasks that fail once and always", tasks_that_fail_once_and_always),
        ("guests on nodes", guests_on_nodes),
        ("a node that does not fit", a_node_that_does_not_fit_ends_the_study),
        ("what is wrong", what_is_wrong_is_told),
        ("interrupted and detached", interrupted_and_detached),
        ("a locked store", a_store_that_is_locked),
        ("the same preset here", the_same_tables_as_here),
    ];
    for (name, scene) in scenes {
        let began = SystemClock.now_ns();
        scene(&cluster, &file);
        println!("{name}: {:.1} s", (SystemClock.now_ns() - began) as f64 / 1e9);
    }
    a_cluster_without_room(&mut cluster, &file);
    a_node_dies_and_the_collector_too(&mut cluster);
}

fn through_a_shared_folder(cluster: &Cluster, file: &str) {
    let (store, shared) = (cluster.path("shared.sqlite"), cluster.path("shared"));
    let program = cluster.program("pinfold-1", "");
    let words = ["run", file, "--engine", "slurm", "--store", &store];
    let more = ["--shared", &shared, "--program", &program, "--time", "10"];
    let (reported, said) = cluster.expect(0, &[&words[..], &more].concat());
    assert!(said.contains("3 nodes, 3 of them up; array jobs"), "{said}");
    assert!(reported.contains("12 of 12 trials done, 0 failed"), "{reported}");
    assert_eq!(files::list(&shared).expect("a folder"), Vec::<String>::new());
    let trials = cluster.trials(&store);
    let mut nodes_of_block: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for trial in &trials {
        assert!(NODES.contains(&trial["node"].as_str()), "{trial:?}");
        assert!(trial["job"].contains('_') && !trial["allowed_pus"].is_empty(), "{trial:?}");
        assert!(!trial["topology"].is_empty() && !trial["kernel"].is_empty(), "{trial:?}");
        nodes_of_block.entry(&trial["block"]).or_default().insert(&trial["node"]);
    }
    assert_eq!((trials.len(), nodes_of_block.len()), (12, 3));
    assert!(nodes_of_block.values().all(|nodes| nodes.len() == 1), "{nodes_of_block:?}");
    let all: BTreeSet<&str> = nodes_of_block.into_values().flatten().collect();
    assert!(all.len() > 1, "the blocks should run side by side: {all:?}");
    let page = cluster.path("page.html");
    cluster.expect(0, &["report", &store, "--out", &page]);
    let html = files::read_text(&page).expect("the page");
    assert!(html.contains("The nodes") && all.iter().all(|node| html.contains(node)));
}

fn tasks_that_fail_once_and_always(cluster: &Cluster, file: &str) {
    let (store, shared) = (cluster.path("failing.sqlite"), cluster.path("shared"));
    let once = cluster.path("once");
    // Of the array 0-2, with MaxArraySize 3.
    let before = format!(
        "case $SLURM_ARRAY_TASK_ID in\n0) mkdir {once} 2>/dev/null && {{ echo broken >&2; exit 3; }};;\n\
         1) echo 'pinfold: no luck here' >&2; exit 4;;\nesac"
    );
    let program = cluster.program("pinfold-2", &before);
    let words = ["run", file, "--engine", "slurm", "--store", &store];
    let more = ["--shared", &shared, "--program", &program, "--nodes", "n[1,3]"];
    let (reported, said) = cluster.expect(1, &[&words[..], &more].concat());
    assert!(said.contains("4 of 12 trials failed"), "{said}");
    assert!(said.contains("exit code 3: broken; trying again"), "{said}");
    assert!(said.contains("exit code 4: no luck here; recorded as failed"), "{said}");
    assert!(reported.contains("12 of 12 trials done, 4 failed"), "{reported}");
    let trials = cluster.trials(&store);
    for trial in &trials {
        let failed = trial["ok"] == "false";
        assert_eq!(failed, trial["block"] == "1", "{trial:?}");
        assert!(!failed || trial["attempts"] == "2" && trial["error"].contains("exit code 4"));
        assert_ne!(trial["node"], "n2");
    }
}

fn guests_on_nodes(cluster: &Cluster, _: &str) {
    if is_missing(&[QEMU]) {
        return;
    }
    let file = cluster.write("guests.toml", GUESTS);
    let (store, shared) = (cluster.path("guests.sqlite"), cluster.path("shared"));
    let program = cluster.program("pinfold-guests", "");
    let words = ["run", &file, "--engine", "slurm", "--store", &store];
    let (reported, said) =
        cluster.expect(0, &[&words[..], &["--shared", &shared, "--program", &program]].concat());
    assert!(reported.contains("3 of 3 trials done, 0 failed"), "{reported}{said}");
    let samples = cluster.table(&store, "samples");
    let of = |figure: &str| -> BTreeSet<&str> {
        let rows = samples.iter().filter(|row| row["figure"] == figure);
        rows.map(|row| row["trial"].as_str()).collect()
    };
    assert_eq!([of("boot").len(), of("parallel").len(), of("switches").len()], [3; 3]);
    let left = cluster.processes("SLURM_JOB_ID=");
    let left: Vec<String> = left.into_iter().map(|pid| status_of(pid, "Name:")).collect();
    assert!(!left.iter().any(|name| name.starts_with("qemu")), "guests outlived tasks: {left:?}");
}

fn a_node_that_does_not_fit_ends_the_study(cluster: &Cluster, file: &str) {
    // A directory of its own, because the refused result is kept in it.
    let (store, shared) = (cluster.path("versions.sqlite"), cluster.path("shared-versions"));
    files::make_dirs(&shared).expect("a folder");
    // On n2 the job seems to come from a later Pinfold: its own is older than that.
    let change = r#"case $SLURMD_NODENAME in n2) sed 's/"pinfold":"[^"]*"/"pinfold":"99.0.0"/' "$4" > "$0.$$"; shift 4; set -- study worker --job "$0.$$" "$@";; esac"#;
    let program = cluster.program("pinfold-3", change);
    let words = ["run", file, "--engine", "slurm", "--store", &store];
    let more = ["--shared", &shared, "--program", &program];
    let (_, said) = cluster.expect(3, &[&words[..], &more].concat());
    let own = env!("CARGO_PKG_VERSION");
    let expected = format!("node n2 cannot be used: it has Pinfold {own}, not 99.0.0");
    assert!(said.contains(&expected), "{said}");
    cluster.wait("empty queue", |c| c.ask("squeue", &["-h"]).trim().is_empty());
    // Without that node it goes on.
    let (reported, _) = cluster.expect(0, &["resume", &store, "--nodes", "n1,n3"]);
    assert!(reported.contains("12 of 12 trials done, 0 failed"), "{reported}");
}

fn what_is_wrong_is_told(cluster: &Cluster, file: &str) {
    let store = cluster.path("wrong.sqlite");
    let check = |more: &[&str], code: i32, expected: &[&str]| {
        let words = ["run", file, "--engine", "slurm", "--store", &store];
        let (found, _, said) = cluster.run(&[&words[..], more].concat());
        assert_eq!(found, Some(code), "{more:?}: {said}");
        expected.iter().for_each(|text| assert!(said.contains(text), "{more:?}: {said}"));
    };
    check(&["--partition", "none"], 2, &["there is no partition \"none\"", "pf, shut"]);
    check(&["--partition", "x; y"], 2, &["--partition: \"x; y\" is not the name"]);
    check(&["--nodes", "n7"], 2, &["the partition pf has no node \"n7\"", "n1, n2, n3"]);
    check(&["--time", "soon"], 2, &["--time: \"soon\" is not a Slurm time"]);
    check(&["--shared", "/nonexistent"], 2, &["--shared: /nonexistent is not a directory"]);
    check(&[], 2, &["--engine slurm needs --shared", "--shared /home/me/runs"]);
    let shared = cluster.path("shared");
    let shut = ["--partition", "shut", "--patience", "2s", "--shared", &shared];
    check(&shut, 3, &["no task ran or finished for ", "; waiting: 1 × PartitionDown", "sinfo -R"]);
    let (_, said) = cluster.expect(2, &["run", file, "--partition", "pf"]);
    assert!(said.contains("--partition needs --engine slurm"), "{said}");
    // The same configuration, with a munge that is not there.
    let conf = cluster.sandbox.read("slurm.conf");
    let other = cluster.write("other.conf", &conf.replace("munge.sock", "nothing.sock"));
    let words = ["study", "run", file, "--engine", "slurm", "--store", &store];
    let spawn = Spawn::new(PINFOLD).env("SLURM_CONF", &other).args(words);
    let said = spawn.capture(MINUTE_NS).expect("it runs").stderr_text();
    assert!(said.contains("cannot authenticate: munge does not answer"), "{said}");
}

fn interrupted_and_detached(cluster: &Cluster, file: &str) {
    let (store, shared) = (cluster.path("detached.sqlite"), cluster.path("shared"));
    let program = cluster.program("pinfold-1", "");
    let words = ["run", file, "--preset", "slow", "--engine", "slurm", "--store", &store];
    let more = ["--shared", &shared, "--program", &program, "--detach"];
    let (_, said) = cluster.expect(0, &[&words[..], &more].concat());
    assert!(said.contains("Slurm has 3 tasks"), "{said}");
    // Who collects is interrupted: the tasks are cancelled, nothing is lost or counted as failed.
    let child = cluster.study(&["resume", &store]).stdout(Stdio::Pipe).stderr(Stdio::Pipe);
    let mut child = child.start().expect("it starts");
    cluster.wait("running tasks", |c| c.ask("squeue", &["-h", "-t", "R"]).lines().count() == 3);
    SystemClock.sleep_ns(1_000_000_000);
    child.signal(Signaled::Interrupt).expect("sent");
    let status = child.wait_for(&SystemClock, MINUTE_NS).expect("it ends").expect("in time");
    assert_eq!(status.code(), Some(130));
    cluster.wait("empty queue", |c| c.ask("squeue", &["-h"]).trim().is_empty());
    let (reported, said) = cluster.expect(0, &["resume", &store]);
    assert!(reported.contains("12 of 12 trials done, 0 failed"), "{reported}");
    assert!(!said.contains("trying again"), "{said}");
}

/// A preset gives the same tables on the cluster as on this machine.
fn the_same_tables_as_here(cluster: &Cluster, file: &str) {
    let here = cluster.path("here.sqlite");
    cluster.expect(0, &["run", file, "--preset", "slow", "--store", &here]);
    for table in ["cells", "estimates", "times"] {
        let found = table_rows(&here, table, cluster);
        assert!(!found.is_empty() && !found[0].is_empty(), "{table}");
        assert_eq!(table_rows(&cluster.path("detached.sqlite"), table, cluster), found, "{table}");
    }
}

fn table_rows(store: &str, table: &str, cluster: &Cluster) -> Vec<BTreeSet<String>> {
    let rows = cluster.table(store, table);
    rows.iter()
        .map(|row| {
            let known = row
                .iter()
                .filter(|(name, _)| ["cell", "kind", "cells", "blocks"].contains(&name.as_str()));
            known.map(|(name, value)| format!("{name} {value}")).collect::<BTreeSet<_>>()
        })
        .collect::<Vec<_>>()
}

/// Another process holds the store while results come.
fn a_store_that_is_locked(cluster: &Cluster, file: &str) {
    let (store, shared) = (cluster.path("locked.sqlite"), cluster.path("shared"));
    let program = cluster.program("pinfold-1", "");
    let words = ["run", file, "--preset", "slow", "--engine", "slurm", "--store", &store];
    let more = ["--shared", &shared, "--program", &program, "--patience", "20s"];
    let child = cluster.study(&[&words[..], &more].concat());
    let mut child = child.stdout(Stdio::Null).stderr(Stdio::Pipe).start().expect("it starts");
    cluster.wait("running tasks", |c| c.ask("squeue", &["-h", "-t", "R"]).lines().count() == 3);
    SystemClock.sleep_ns(500_000_000);
    let other = rusqlite::Connection::open(&store).expect("the store");
    other.execute_batch("PRAGMA busy_timeout = 5000; BEGIN IMMEDIATE").expect("locked");
    let mut said = String::new();
    let mut stderr = child.stderr().expect("a pipe");
    stderr.read_to_string(&mut said).expect("it says why");
    let status = child.wait_for(&SystemClock, MINUTE_NS).expect("it ends").expect("in time");
    assert_eq!(status.code(), Some(2), "{said}");
    assert_parts(
        &said,
        &[
            "is locked by another process; waiting for it, up to 20 s",
            "is locked by another process (waited for 2",
            "its tasks continue, and their results stay in the shared directory",
            " study resume ",
        ],
    );
    cluster.wait("empty queue", |c| c.ask("squeue", &["-h"]).trim().is_empty());
    let folder = files::list(&shared).expect("a folder").remove(0);
    let results = files::list(&format!("{shared}/{folder}/results/0")).expect("results");
    assert_eq!(results.len(), 3, "{results:?}");
    drop(other);
    let (reported, said) = cluster.expect(0, &["resume", &store]);
    assert!(reported.contains("12 of 12 trials done, 0 failed"), "{reported}");
    assert!(!said.contains("trying again"), "{said}");
    assert_eq!(files::list(&shared).expect("a folder"), Vec::<String>::new());
}

/// The controller keeps so many jobs that there is no room for all tasks: the rest comes later.
fn a_cluster_without_room(cluster: &mut Cluster, file: &str) {
    let known = cluster.ask("squeue", &["-h", "--array", "--states=all"]).lines().count();
    // One more than the first look and a task.
    cluster.restart(known + 3);
    let (store, shared) = (cluster.path("full.sqlite"), cluster.path("shared"));
    let program = cluster.program("pinfold-1", "");
    let words = ["run", file, "--engine", "slurm", "--store", &store];
    let more = ["--shared", &shared, "--program", &program];
    let child = cluster.study(&[&words[..], &more].concat());
    let mut child = child.stdout(Stdio::Pipe).stderr(Stdio::Pipe).start().expect("it starts");
    cluster.wait("refusal of a task", |c| {
        let log = files::read_text(&c.path("log/ctld.log")).unwrap_or_default();
        let refusal = log.find("MaxJobCount limit from slurm.conf reached");
        // The array of three, then a single one beside the one that was taken.
        refusal.is_some_and(|at| log[at..].matches("MaxJobCount limit").count() >= 2)
    });
    cluster.restart(1_000);
    let (mut reported, mut said) = (String::new(), String::new());
    child.stdout().expect("a pipe").read_to_string(&mut reported).expect("read");
    child.stderr().expect("a pipe").read_to_string(&mut said).expect("read");
    let status = child.wait_for(&SystemClock, MINUTE_NS).expect("it ends").expect("in time");
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(reported.contains("12 of 12 trials done, 0 failed"), "{reported}");
    assert_parts(
        &said,
        &[
            "note: sbatch: Slurm temporarily unable to accept job",
            "1 task submitted, 2 more follow when the queue has room",
            "note: Slurm accepts tasks again; all tasks are submitted",
        ],
    );
    assert!(!said.contains("trying again"), "{said}");
}

fn a_node_dies_and_the_collector_too(cluster: &mut Cluster) {
    // A trial on that node still runs when it dies.
    let held = "\"case $SLURMD_NODENAME in n2) sleep 15;; esac; sleep {nap};";
    assert!(STUDY.contains("\"sleep {nap};"));
    let file = &cluster.write("dying.toml", &STUDY.replace("\"sleep {nap};", held));
    let (store, shared) = (cluster.path("dying.sqlite"), cluster.path("shared"));
    let program = cluster.program("pinfold-1", "");
    let words = ["run", file, "--preset", "slow", "--engine", "slurm", "--store", &store];
    let more = ["--shared", &shared, "--program", &program];
    let child = cluster.study(&[&words[..], &more].concat());
    let mut child = child.stdout(Stdio::Null).stderr(Stdio::Null).start().expect("it starts");
    // A task that runs by the queue may not have begun: Slurm starts that anew, unasked.
    cluster.wait("trial on n2", |c| {
        c.processes("SLURMD_NODENAME=n2")
            .iter()
            .any(|pid: &Tid| status_of(*pid, "Name:") == "sleep")
    });
    child.kill().expect("killed");
    let daemon = cluster.daemons.remove("slurmd-n2");
    drop(daemon);
    cluster.end_all("SLURMD_NODENAME=n2");
    let (reported, said) = cluster.expect(0, &["resume", &store]);
    assert!(said.contains("its node failed"), "{said}");
    assert!(reported.contains("12 of 12 trials done, 0 failed"), "{reported}");
    let trials = cluster.trials(&store);
    assert!(trials.iter().all(|trial| trial["node"] != "n2"), "{trials:?}");
}

#[test]
fn the_commands_of_the_page_are_understood() {
    let page = files::read_text(&format!("{ROOT}/docs/scale.md")).expect("the page");
    let commands: Vec<&str> = page.lines().filter(|line| line.starts_with("pinfold ")).collect();
    assert!(commands.len() >= 6, "{commands:?}");
    for line in commands {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let help = pinfold([words[0], words[1], "--help-all"]);
        let help = help.stdout_text();
        for option in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(*option), "{line}: {option} is not an option");
        }
    }
}

#[test]
fn without_slurm_that_is_reported() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("tiny.toml", STUDY);
    let words = ["study", "run", &file, "--engine", "slurm"];
    let spawn = Spawn::new(PINFOLD).args(words).env("PATH", "/nonexistent");
    let said = spawn.capture(MINUTE_NS).expect("it runs").expect_code(3);
    assert!(said.contains("there is no Slurm here: sbatch is not in PATH"), "{said}");
    pinfold(["study", "worker", "--job", "-", "--out", "-"]).expect_code(2);
}
