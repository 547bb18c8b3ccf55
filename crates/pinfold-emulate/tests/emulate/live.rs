//! The methods on this machine, in groups of their own: what exists, moves, ends and is released.
//! No figures: those are the benchmark's.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::common::{node, take, undo};
use pinfold_emulate::{
    Burner, Cleanup, Facts, HelperSpawner, Node, SpeedError, Throughput, VnodeCgroup,
    VnodeController, Watchdog, record, refusal, release,
};
use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_host::{
    Clock as _, Host as _, HostMut as _, LiveHost, Stall, StallConfig, SystemClock, mountinfo,
    paths, proc_stat,
};
use pinfold_model::{Attach, CpuSet, Method, PuId, Step, Tid};

const MS: u64 = 1_000_000;
/// Longer than anything here takes on a busy machine.
const TIMEOUT_NS: u64 = 20_000 * MS;
const SPIN: &str = "while :; do :; done";

/// Burners are shells, the sentinel is a thread that does what the binary's process does.
struct Shells;

/// Ends when it is dropped.
struct Shell(#[expect(dead_code, reason = "held for its end")] Child);

impl Burner for Shell {
    fn check(&self) -> Result<(), SpeedError> {
        Ok(())
    }
}

struct Watch {
    received_ns: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HelperSpawner for Shells {
    fn measure_throughput(
        &self,
        _: &[String],
        _: &CpuSet,
        _: u64,
    ) -> Result<Throughput, SpeedError> {
        Ok(Throughput::new())
    }

    fn spawn_burner(&self, entries: &[String], pu: PuId) -> Result<Box<dyn Burner>, SpeedError> {
        let spawn = Spawn::new("/bin/sh").args(["-c", SPIN]).cgroup_files(entries.to_vec());
        let child = spawn.affinity(CpuSet::single(pu)).die_with_parent(true).start()?;
        Ok(Box::new(Shell(child)))
    }

    fn spawn_watchdog(&self, what: Cleanup) -> Result<Box<dyn Watchdog>, SpeedError> {
        let received_ns = Arc::new(AtomicU64::new(SystemClock.now_ns()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (received, over) = (Arc::clone(&received_ns), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            let host = LiveHost::new().expect("the kernel's door");
            while !over.load(Ordering::SeqCst) {
                let silence = SystemClock.now_ns().saturating_sub(received.load(Ordering::SeqCst));
                if silence > 100 * MS {
                    release(&host, &what).expect("a release");
                }
                SystemClock.sleep_ns(10 * MS);
            }
        });
        Ok(Box::new(Watch { received_ns, is_over, thread: Some(thread) }))
    }
}

impl Watchdog for Watch {
    fn beat(&mut self) -> Result<(), SpeedError> {
        self.received_ns.store(SystemClock.now_ns(), Ordering::SeqCst);
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a sentinel");
        }
    }
}

/// The groups of a vnode, removed when this is dropped.
struct Groups {
    host: LiveHost,
    steps: Vec<Step>,
    cgroup: VnodeCgroup,
    node: Node,
    pus: Vec<u32>,
}

impl Drop for Groups {
    fn drop(&mut self) {
        // Those that were just killed leave their groups a little later.
        for group in self.cgroup.directories() {
            wait("an empty group", || members(&self.host, &group).is_empty());
        }
        SystemClock.sleep_ns(20 * MS);
        undo(&self.host, &self.steps);
    }
}

/// Everybody in a group and below it.
fn members(host: &LiveHost, group: &str) -> Vec<String> {
    let mut found = Vec::new();
    let below = host.list(group).unwrap_or_default();
    for name in below {
        let path = paths::cgroup_file(group, &name);
        if host.exists(&paths::cgroup_procs(&path)) {
            found.extend(members(host, &path));
        }
    }
    let text = host.read_text(&paths::cgroup_procs(group)).unwrap_or_default();
    found.extend(text.lines().map(str::to_owned));
    found
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = SystemClock.now_ns() + TIMEOUT_NS;
    while !is_so() {
        assert!(SystemClock.now_ns() < until, "waited in vain for {what}");
        SystemClock.sleep_ns(5 * MS);
    }
}

/// A vnode of two cores at these speeds in percent, with its groups; `None` where that cannot be.
fn groups(method: Method, percent: u32) -> Option<Groups> {
    groups_with(method, percent, |node| node)
}

fn groups_with(method: Method, percent: u32, change: impl Fn(Node) -> Node) -> Option<Groups> {
    let host = LiveHost::new().expect("the kernel's door");
    let facts = match Facts::find(&host) {
        Ok(facts) => facts,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    if let Some(why) = refusal(method, &facts) {
        eprintln!("skipped: {method}: {why}");
        return None;
    }
    let online = host.read_text(&paths::cpu_online()).expect("CPUs");
    let online = CpuSet::parse_list(online.trim()).expect("a list");
    let pus: Vec<u32> = online.iter().take(2).map(|pu| pu.0).collect();
    if pus.len() < 2 {
        eprintln!("skipped: it needs two CPUs");
        return None;
    }
    let cores: Vec<(u32, u32)> = pus.iter().map(|pu| (*pu, percent)).collect();
    let name = format!("test-{}-{method}", process::own_pid());
    let node = change(Node { name, ..node(method, &cores) });
    let (cgroup, steps) = match VnodeCgroup::plan(&host, &facts.hierarchies, &node) {
        Ok(planned) => planned,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    take(&host, &steps);
    Some(Groups { host, steps, cgroup, node, pus })
}

impl Groups {
    fn start<'h>(&'h self, spawner: &'h Shells) -> VnodeController<'h> {
        let all = vec![(self.node.clone(), self.cgroup.clone())];
        VnodeController::start(&self.host, &SystemClock, spawner, all).expect("a method at work")
    }

    /// A shell inside the vnode.
    fn shell(&self, script: &str) -> Child {
        let spawn = Spawn::new("/bin/sh").args(["-c", script]).stdout(Stdio::Pipe);
        spawn
            .cgroup_files(self.cgroup.entries())
            .own_group()
            .die_with_parent(true)
            .start()
            .expect("a shell")
    }

    fn state(&self, pid: Tid) -> char {
        let text = self.host.read_text(&paths::process_stat(pid)).expect("a process");
        proc_stat::parse(&text).expect("a stat").state
    }
}

/// Turns until something is so.
fn turn_until(nodes: &mut VnodeController<'_>, what: &str, mut is_so: impl FnMut() -> bool) {
    let until = SystemClock.now_ns() + TIMEOUT_NS;
    while !is_so() {
        let now = SystemClock.now_ns();
        assert!(now < until, "waited in vain for {what}");
        let next = nodes.turn(now).expect("a turn");
        SystemClock.sleep_until(next);
    }
}

#[test]
fn quota_deals_threads_to_their_cores() {
    let Some(groups) = groups(Method::Quota, 20) else { return };
    let spawner = Shells;
    let mut nodes = groups.start(&spawner);
    let mut shell = groups.shell(&format!("({SPIN}) & ({SPIN}) & wait"));
    let spinning = |part: usize| {
        let group = &groups.cgroup.parts[part].cpu;
        members(&groups.host, group)
            .iter()
            .filter(|pid| groups.state(Tid(pid.parse().expect("a pid"))) == 'R')
            .count()
    };
    turn_until(&mut nodes, "one thread on each core", || spinning(0) == 1 && spinning(1) == 1);
    for part in &groups.cgroup.parts {
        let text = if groups.host.exists(&paths::cpu_max(&part.cpu)) {
            groups.host.read_text(&paths::cpu_max(&part.cpu)).unwrap()
        } else {
            groups.host.read_text(&paths::cpu_cfs_quota(&part.cpu)).unwrap()
        };
        assert!(text.starts_with("20000"), "{text}");
    }
    // Dealt is held: each may run on the core of its group alone.
    for (part, pu) in groups.cgroup.parts.iter().zip(&groups.pus) {
        let spinner = members(&groups.host, &part.cpu);
        let held = spinner.iter().filter(|pid| {
            let mask = groups.host.affinity(Tid(pid.parse().unwrap())).unwrap();
            mask == CpuSet::single(PuId(*pu))
        });
        assert_eq!(held.count(), spinner.len());
    }
    nodes.stop().unwrap();
    shell.kill().unwrap();
}

#[test]
fn burners_of_fracas_die_with_it() {
    let Some(groups) = groups(Method::Fracas, 50) else { return };
    let spawner = Shells;
    let mut nodes = groups.start(&spawner);
    let burners: Vec<String> = groups
        .cgroup
        .parts
        .iter()
        .flat_map(|part| part.burns.iter().flat_map(|burn| members(&groups.host, burn)))
        .collect();
    assert_eq!(burners.len(), 2);
    nodes.turn(SystemClock.now_ns()).unwrap();
    drop(nodes);
    for pid in burners {
        wait("the end of a burner", || {
            !groups.host.exists(&paths::process_stat(Tid(pid.parse().unwrap())))
        });
    }
}

#[test]
fn what_gov_froze_is_thawed_behind_a_supervisor_that_hangs() {
    if let Some(groups) = groups(Method::Gov, 10) {
        freezes_and_thaws(&groups);
    }
}

#[test]
fn a_group_of_another_program_is_frozen_as_it_is() {
    let host = LiveHost::new().expect("an answer");
    let text = host.read_text(&paths::own_mountinfo()).expect("an answer");
    let Some(mount) = mountinfo::v2_mount(&mountinfo::parse(&text).expect("an answer")) else {
        return eprintln!("skipped: cgroup version 2 is not mounted");
    };
    let name = format!("pinfold-test-{}-attached", process::own_pid());
    let directory = paths::cgroup_file(&mount.mount.path, &name);
    if let Err(error) = host.make_dir(&directory) {
        return eprintln!("skipped: {error}");
    }
    if let Some(groups) = groups_with(Method::Gov, 10, |node: Node| Node {
        attach: Some(Attach::Group(format!("/{name}"))),
        ..node
    }) {
        assert_eq!(groups.cgroup.freezer.as_ref(), Some(&directory));
        freezes_and_thaws(&groups);
    }
    assert!(host.exists(&directory), "it is not ours");
    host.remove_dir(&directory).expect("an answer");
}

fn freezes_and_thaws(groups: &Groups) {
    if groups.host.list(&paths::cpufreq_dir()).is_ok_and(|policies| !policies.is_empty()) {
        eprintln!("skipped: frequencies of the whole host are for guests only");
        return;
    }
    let spawner = Shells;
    let mut nodes = groups.start(&spawner);
    let mut shell = groups.shell(SPIN);
    let group = groups.cgroup.freezer.clone().expect("a freezer");
    let is_frozen = || {
        let state = paths::freezer_state(&group);
        if groups.host.exists(&state) {
            groups.host.read_text(&state).expect("an answer").trim() == "FROZEN"
        } else {
            groups
                .host
                .read_text(&paths::cgroup_events(&group))
                .expect("an answer")
                .contains("frozen 1")
        }
    };
    turn_until(&mut nodes, "a frozen vnode", is_frozen);
    // No more turns: nobody beats.
    wait("the sentinel", || !is_frozen());
    // It works on when the supervisor does, and leaves nothing frozen.
    turn_until(&mut nodes, "a frozen vnode again", is_frozen);
    nodes.stop().expect("an answer");
    assert!(!is_frozen());
    shell.kill().expect("an answer");
}

#[test]
fn lim_is_seen_by_the_stopped_and_continued_by_the_sentinel() {
    // So slow that it is too fast on a busy machine too.
    let Some(groups) = groups(Method::Lim, 2) else { return };
    let spawner = Shells;
    let mut nodes = groups.start(&spawner);
    // The second defect: a program sees that it was continued.
    let mut shell = groups.shell(&format!("trap 'echo seen' CONT; {SPIN}"));
    let pid = shell.pid();
    turn_until(&mut nodes, "a stopped process", || groups.state(pid) == 'T');
    wait("the sentinel", || groups.state(pid) != 'T');
    let mut word = [0; 4];
    let mut reported = shell.stdout().expect("a pipe");
    reported.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"seen");
    turn_until(&mut nodes, "a stopped process", || groups.state(pid) == 'T');
    nodes.stop().unwrap();
    wait("a process that runs", || groups.state(pid) != 'T');
    shell.kill().unwrap();
}

/// A vnode at full speed, next to those of other tests.
fn groups_at_full_speed(method: Method) -> Option<Groups> {
    groups_with(method, 100, |node| Node { name: format!("{}-full", node.name), ..node })
}

#[test]
fn at_full_speed_the_timers_of_stall_do_not_fire() {
    let Some(groups) = groups_at_full_speed(Method::Stall) else { return };
    let pus: CpuSet = groups.pus.iter().map(|pu| PuId(*pu)).collect();
    let group = groups.cgroup.perf.as_deref().expect("a group");
    let mut stall = Stall::open(&groups.host, group, &pus, 200_000).expect("a program");
    let mut spinner = groups.shell(SPIN);
    let half = StallConfig { stolen: 500_000, usual_ns: 100_000, longest_ns: 180_000 };
    for _ in 0..2 {
        let before = interrupts(&stall, &pus);
        pus.iter().for_each(|pu| stall.set(pu, half).expect("a share"));
        wait("interrupts", || {
            stall.extend_deadline(90 * MS);
            interrupts(&stall, &pus) > before + 100
        });
        pus.iter().for_each(|pu| stall.set(pu, StallConfig::default()).expect("no share"));
        let at_full_speed = interrupts(&stall, &pus);
        SystemClock.sleep_ns(100 * MS);
        assert_eq!(interrupts(&stall, &pus), at_full_speed);
    }
    spinner.kill().expect("killed");
}

fn interrupts(stall: &Stall, pus: &CpuSet) -> u64 {
    pus.iter().map(|pu| stall.account(pu).expect("an account").interrupts).sum()
}

#[test]
fn at_full_speed_nothing_is_limited_frozen_stopped_or_burned() {
    for method in [Method::Quota, Method::Fracas, Method::Gov, Method::Lim] {
        let Some(groups) = groups_at_full_speed(method) else { continue };
        let (spawner, host) = (Shells, &groups.host);
        let mut nodes = groups.start(&spawner);
        let mut spinner = groups.shell(&format!("({SPIN}) & {SPIN}"));
        for _ in 0..20 {
            SystemClock.sleep_until(nodes.turn(SystemClock.now_ns()).expect("a turn"));
            assert_ne!(groups.state(spinner.pid()), 'T', "{method}");
            for part in &groups.cgroup.parts {
                let burning = part.burns.iter().flat_map(|burn| members(host, burn));
                assert_eq!(burning.count(), 0, "{method}");
                let quota = [paths::cpu_cfs_quota(&part.cpu), paths::cpu_max(&part.cpu)];
                for text in quota.iter().filter_map(|path| host.read_text(path).ok()) {
                    assert!(text.starts_with("-1") || text.starts_with("max"), "{method}: {text}");
                }
            }
            if let Some(freezer) = &groups.cgroup.freezer {
                let state = host.read_text(&paths::freezer_state(freezer)).unwrap_or_default();
                let events = host.read_text(&paths::cgroup_events(freezer)).unwrap_or_default();
                assert!(!state.contains("FR") && !events.contains("frozen 1"), "{method}");
            }
        }
        drop(nodes);
        kill_group(&mut spinner);
    }
}

/// Kills a shell with its children, which are a process group.
fn kill_group(shell: &mut Child) {
    let group = format!("-{}", shell.pid());
    process::capture("kill", ["-KILL", "--", &group], TIMEOUT_NS).expect("kill");
    shell.wait().expect("an end");
}

#[test]
fn inject_burns_while_it_lives() {
    let load = vec![(0, vec![300_000, 100_000]), (3_600_000 * MS, vec![0, 0])];
    let Some(groups) =
        groups_with(Method::Inject, 100, |node: Node| Node { load: load.clone(), ..node })
    else {
        return;
    };
    let all = vec![(groups.node.clone(), groups.cgroup.clone())];
    let spawner = Shells;
    let mut nodes = match VnodeController::start(&groups.host, &SystemClock, &spawner, all) {
        Ok(nodes) => nodes,
        Err(error @ SpeedError::Unavailable { .. }) => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let burners = || {
        let threads = groups.host.list(&paths::task_dir(process::own_pid())).unwrap();
        threads
            .iter()
            .map(|tid| {
                let path = paths::process_comm(Tid(tid.parse().unwrap()));
                groups.host.read_text(&path).unwrap_or_default()
            })
            .filter(|name| name.starts_with("hog-"))
            .count()
    };
    assert_eq!(burners(), 2);
    // By its own account the first core loses more than the second, in some second at the latest
    // when other work leaves the burners their time.
    let until = SystemClock.now_ns() + TIMEOUT_NS;
    let mut got: Vec<u32> = Vec::new();
    while !(got.len() == 2 && got[0] < got[1]) {
        let now = SystemClock.now_ns();
        assert!(now < until, "{got:?}");
        SystemClock.sleep_until(nodes.turn(now).expect("a turn"));
        let status = nodes.status().expect("a status");
        assert_eq!(status[0].cores.len(), 2);
        got = status[0].cores.iter().filter_map(|core| core.achieved_millionths).collect();
    }
    drop(nodes);
    wait("the end of the burners", || burners() == 0);
}

#[test]
fn a_running_process_moves_in_and_back() {
    let mut shell = Spawn::new("/bin/sh")
        .args(["-c", "sleep 1000 & sleep 1000"])
        .own_group()
        .die_with_parent(true)
        .start()
        .unwrap();
    let pid = shell.pid();
    let host = LiveHost::new().unwrap();
    wait("two children", || {
        let children = paths::task_file(pid, pid, "children");
        host.read_text(&children).is_ok_and(|text| text.split_whitespace().count() == 2)
    });
    let Some(mut groups) = groups_with(Method::Quota, 50, |node: Node| Node {
        name: format!("{}-attached", node.name),
        attach: Some(Attach::Process(pid.0)),
        ..node
    }) else {
        shell.kill().unwrap();
        return;
    };
    let found = count_inside(&groups);
    assert!(found.iter().all(|count| *count == 3), "{found:?}");
    // One move for each hierarchy, the last of the steps.
    let moves = groups.steps.split_off(groups.steps.len() - found.len());
    undo(&host, &moves);
    let found = count_inside(&groups);
    assert!(found.iter().all(|count| *count == 0), "{found:?}");
    shell.kill().unwrap();
}

fn count_inside(groups: &Groups) -> Vec<usize> {
    groups
        .cgroup
        .directories()
        .into_iter()
        .map(|group: String| members(&groups.host, &group).len())
        .collect::<Vec<_>>()
}

#[test]
fn a_recording_has_a_row_for_each_interval() {
    let host = LiveHost::new().unwrap();
    let online = host.read_text(&paths::cpu_online()).unwrap();
    let pus = CpuSet::parse_list(online.trim()).unwrap();
    let load = record(&host, &SystemClock, &pus, 50 * MS, 200 * MS).unwrap();
    let times: Vec<u64> = load.iter().map(|(at, _)| at / MS).collect();
    assert_eq!(times, [0, 50, 100, 150]);
    assert!(load.iter().all(|(_, row)| row.len() == pus.len()));
}
