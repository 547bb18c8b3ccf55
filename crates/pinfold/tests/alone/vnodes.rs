//! Virtual nodes of slow CPUs on this machine, in groups of the tests' own: they come, they are
//! slow, they go, and nothing of them outlives a supervisor that is killed or stopped.

use std::sync::{Mutex, PoisonError};

use crate::common::{
    Checked as _, PINFOLD, SECOND_NS, Sandbox, WITHOUT_CLAIMS, assert_parts, is_missing, run, skip,
    take_turn, until,
};
use pinfold_emulate::{Facts, GROUP_PREFIX};
use pinfold_host::files::StateDir;
use pinfold_host::process::{self, Child, Output, Signaled, Spawn, Stdio};
use pinfold_host::{Clock, Host, HostMut as _, LiveHost, SystemClock, paths, proc_stat};
use pinfold_model::{CpuSet, Tid};
use pinfold_probe::cpu_speed::{Progress, SpeedBenchmark, Workers};
use pinfold_probe::loads::Placement;
use pinfold_probe::pinload::Pinload;
use serde_json::Value;

/// What one start has measured is kept for the next, as in one state directory.
static KEPT: Mutex<Option<Vec<u8>>> = Mutex::new(None);
const KEPT_FILE: &str = "calibration.json";

/// A platform of one vnode in the foreground of a child.
struct TestPlatform {
    host: LiveHost,
    sandbox: Sandbox,
    name: String,
    supervisor: Child,
}

fn why_not(host: &LiveHost, method: &str) -> Option<String> {
    let facts = Facts::find(host).expect("facts");
    let method = pinfold_model::Method::from_name(method).expect("a method");
    pinfold_emulate::refusal(method, &facts)
}

/// True, and reported, if a method is not possible here.
fn is_refused(host: &LiveHost, method: &str) -> bool {
    let why = why_not(host, method);
    if let Some(why) = &why {
        skip(format!("{method}: {why}"));
    }
    why.is_some()
}

impl TestPlatform {
    fn set(test: &str, method: &str, speed: &str) -> Option<Self> {
        Self::with(test, method, &format!("speed = {speed:?}\n"), &[])
    }

    /// With a cost that is measured fully at this start.
    fn calibrated(test: &str, method: &str, speed: &str) -> Option<Self> {
        let lines = format!("speed = {speed:?}\n");
        Self::started(test, method, &lines, &[], &["--calibrate"])
    }

    /// With these lines in the platform file, and these files beside it.
    fn with(test: &str, method: &str, lines: &str, files: &[(&str, &str)]) -> Option<Self> {
        Self::started(test, method, lines, files, &[])
    }

    fn started(
        test: &str,
        method: &str,
        lines: &str,
        files: &[(&str, &str)],
        options: &[&str],
    ) -> Option<Self> {
        let host = LiveHost::new().expect("a host");
        if is_refused(&host, method) {
            return None;
        }
        let sandbox = Sandbox::new();
        // Groups are the whole machine's: each test has names of its own.
        let name = format!("{test}-{}", process::own_pid());
        let text = format!("[[vnode]]\nname = {name:?}\ncores = 1\nmethod = {method:?}\n{lines}");
        for (name, text) in files {
            sandbox.write(name, text);
        }
        let file = sandbox.write("platform.toml", text);
        let state = sandbox.path("state");
        let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(bytes) = kept {
            let state = StateDir::open(&state).expect("a state directory");
            state.replace(KEPT_FILE, &bytes).expect("kept costs");
        }
        // Where the tests run under nohup, SIGHUP would end nothing.
        let words = ["--default-signal=HUP", PINFOLD, "--state-dir", &state];
        let spawn = Spawn::new("env").args(words).args(["emulate", "up", "--foreground", &file]);
        let spawn = spawn.args(options);
        let spawn =
            spawn.env(WITHOUT_CLAIMS, "true").stdin(Stdio::Null).die_with_parent(true).own_group();
        let supervisor = spawn.start().expect("pinfold starts");
        let stage = Self { host, sandbox, name, supervisor };
        assert!(until(|| stage.emulate(&["status"]).status.success()), "it is not up");
        Some(stage)
    }

    fn state(&self) -> String {
        self.sandbox.path("state")
    }

    fn pinfold(&self, words: &[&str]) -> Output {
        self.sandbox.run(words)
    }

    fn emulate(&self, words: &[&str]) -> Output {
        self.pinfold(&[&["emulate"], words].concat())
    }

    /// A process in the vnode, when it runs.
    fn sleeper(&self) -> Child {
        let words = ["emulate", "exec", &self.name, "--", "sleep", "300"];
        let command = self.sandbox.start(&words);
        let name = format!("/proc/{}/comm", command.pid());
        assert!(
            until(|| self.host.read_text(&name).is_ok_and(|name| name.trim() == "sleep")),
            "it does not become the command"
        );
        command
    }

    fn core(&self) -> Value {
        let output = self.emulate(&["status", "--json"]);
        let status: Value = output.json();
        status.pointer("/vnodes/0/cores/0").expect("a core").clone()
    }

    /// ID of the platform's journal.
    fn journal(&self) -> String {
        let journals: Value =
            serde_json::from_str(&self.pinfold(&["journal", "--json"]).stdout_text())
                .expect("JSON");
        journals["journals"][0]["id"].as_str().expect("an ID").to_owned()
    }

    fn groups(&self) -> Vec<String> {
        groups(&self.host, &self.name)
    }

    /// Work per second of one thread in the vnode.
    fn rate(&self, pinload: &Pinload) -> f64 {
        let cgroup_files = self.groups().iter().map(|at| paths::cgroup_procs(at)).collect();
        let benchmark = Progress::new(Workers::Threads(1), 300);
        let outcome = benchmark.run_on_host(pinload, &Placement { cgroup_files, affinity: None });
        let outcome = outcome.expect("a rate");
        outcome.units as f64 * 1e9 / outcome.elapsed_ns as f64
    }
}

/// A test that fails leaves no group either.
impl Drop for TestPlatform {
    fn drop(&mut self) {
        match self.supervisor.kill() {
            Ok(_) | Err(_) => {}
        }
        self.pinfold(&["undo", "--all"]);
        if let Ok(bytes) = pinfold_host::files::read(&format!("{}/{KEPT_FILE}", self.state())) {
            *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
        }
    }
}

/// The directories of a vnode's groups in all hierarchies.
fn groups(host: &LiveHost, name: &str) -> Vec<String> {
    let table = host.read_text(&paths::own_mountinfo()).expect("mounts");
    let mounts = pinfold_host::mountinfo::parse(&table).expect("mounts");
    let cgroups = mounts.iter().filter(|mount| mount.kind.starts_with("cgroup"));
    let groups = cgroups.map(|mount| format!("{}/{GROUP_PREFIX}{name}", mount.path));
    groups.filter(|group| host.exists(group)).collect()
}

/// Who signals `emulate exec` signals the command.
fn end_by_signal(stage: &TestPlatform) {
    use std::os::unix::process::ExitStatusExt as _;
    let mut command = stage.sleeper();
    command.signal(Signaled::Terminate).expect("a signal");
    assert_eq!(command.wait().expect("an end").signal(), Some(15));
}

/// A process that outlives its vnode has all CPUs again.
#[test]
fn a_process_has_its_mask_again_when_its_vnode_has_ended() {
    let _turn = take_turn();
    let Some(stage) = TestPlatform::set("outlived", "stall", "40%") else { return };
    let own = stage.host.affinity(process::own_pid()).expect("a mask");
    if !stage.groups().iter().any(|group| stage.host.exists(&paths::cpuset_cpus(group))) {
        return skip("no cpuset: a mask restricts the vnode");
    }
    let mut command = stage.sleeper();
    let mask = || stage.host.affinity(command.pid()).expect("a mask");
    assert_eq!(mask().len(), 1);
    stage.emulate(&["down"]).expect_success();
    assert!(until(|| mask() == own), "{} instead of {own}", mask());
    command.kill().expect("an end");
}

#[test]
fn a_vnode_comes_changes_and_goes() {
    let _turn = take_turn();
    let Some(mut stage) = TestPlatform::set("life", "stall", "40%") else { return };
    assert!(!stage.groups().is_empty(), "it has groups");
    let inside = stage.emulate(&["exec", &stage.name, "--", "cat", "/proc/self/cgroup"]);
    assert!(inside.stdout_text().contains(&stage.name), "{}", inside.stdout_text());
    let ended = stage.emulate(&["exec", &stage.name, "--", "false"]);
    assert_eq!(ended.status.code(), Some(1), "its exit code is the command's");
    end_by_signal(&stage);
    assert_eq!(stage.core()["asked"], 0.4);
    assert!(stage.emulate(&["set", &stage.name, "--speed", "25%"]).status.success());
    assert_eq!(stage.core()["asked"], 0.25);
    let state = format!("PINFOLD_STATE_DIR={}", stage.state());
    let completed: [(&[&str], _); 2] =
        [(&["emulate", "exec", ""], &stage.name), (&["undo", ""], &stage.journal())];
    for (words, value) in completed {
        let ask = ["PINFOLD_COMPLETE=fish", &state, PINFOLD, "--", "pinfold"];
        let words = [&ask, words].concat();
        let output = run("env", &words);
        let text = output.stdout_text();
        assert!(text.starts_with(&format!("{value}\t")), "{words:?}: {text}");
    }
    let sleeper = Spawn::new("sleep")
        .args(["300"])
        .cgroup_files(stage.groups().iter().map(|at| paths::cgroup_procs(at)).collect())
        .die_with_parent(true)
        .start()
        .expect("a sleeper");
    stage.emulate(&["down"]).expect_success();
    assert!(until(|| matches!(stage.supervisor.try_wait(), Ok(Some(_)))), "it does not end");
    assert_eq!(stage.groups(), Vec::<String>::new());
    assert!(process::task_alive(&stage.host, sleeper.task()).expect("a state"), "it goes on");
    assert_parts(&stage.pinfold(&["status"]).stdout_text(), &["no placement is active"]);
}

#[test]
fn a_busy_vnode_is_as_slow_as_asked_by_its_own_account() {
    let _turn = take_turn();
    for method in ["stall", "hogs"] {
        let Some(stage) = TestPlatform::set(&format!("busy-{method}"), method, "30%") else {
            continue;
        };
        let pinload = Pinload::install().expect("pinload");
        let mut got = None;
        if stage.core()["cost_known"] == false {
            // Other tasks ran there during the calibration: no speed is stated.
            stage.rate(&pinload);
            assert!(stage.core()["got"].is_null(), "{}", stage.core());
            skip(format!("{method}: its cost cannot be measured next to other tasks"));
            continue;
        }
        let seen = until(|| {
            stage.rate(&pinload);
            got = stage.core()["got"].as_f64();
            // Other tasks on its core take a part of its time; nothing makes it faster.
            got.is_some_and(|got| (0.1..0.35).contains(&got))
        });
        assert!(seen, "{method}: {got:?}");
        assert!(stage.emulate(&["down"]).status.success());
    }
}

/// The interval of the interrupts of `stall` in the status of its only core.
fn interval(stage: &TestPlatform) -> String {
    let text = stage.emulate(&["status"]).stdout_text();
    let words = text.split("an interrupt every ").nth(1).unwrap_or_default();
    words.split(',').next().unwrap_or_default().to_owned()
}

#[test]
fn a_busy_core_has_longer_turns_unless_their_length_is_requested() {
    let _turn = take_turn();
    for (lines, busy) in [("", "1000.0 µs"), ("period = \"200us\"\n", "200.0 µs")] {
        let lines = format!("speed = \"50%\"\n{lines}");
        let Some(stage) = TestPlatform::with("turns", "stall", &lines, &[]) else { return };
        assert_eq!(interval(&stage), "200.0 µs", "{lines}");
        let refused = stage.emulate(&["set", &stage.name, "--speed", "99.99%"]).expect_code(3);
        assert_parts(&refused, &["more than the requested slowdown", "use 100%, or at most 9"]);
        // Real-time, so that other work on the machine does not make it pause.
        let exec = ["emulate", "exec", &stage.name, "--", "chrt", "--fifo", "1", "sh", "-c", SPIN];
        let mut spinner = stage.sandbox.start(&exec);
        let ran = || stage.core()["got"].is_number() && interval(&stage) == busy;
        assert!(until(ran), "{lines}: {}", stage.emulate(&["status"]).stdout_text());
        spinner.kill().expect("killed");
        assert!(until(|| interval(&stage) == "200.0 µs"), "{lines}");
        assert!(stage.emulate(&["down"]).status.success());
    }
}

#[test]
fn the_period_is_checked_for_the_method_that_is_taken() {
    let host = LiveHost::new().expect("a host");
    if is_refused(&host, "stall") {
        return;
    }
    let sandbox = Sandbox::new();
    let [good, bad] = ["1 ms", "30 ms"].map(|period| {
        let text = "[[vnode]]\nname = \"v\"\ncores = 1\nspeed = 0.5\nperiod = ";
        sandbox.write(&format!("{period}.toml"), format!("{text}{period:?}\n"))
    });
    sandbox.print(&["emulate", "up", &good, "--dry-run"]);
    let why = "stall cannot work with a period of 30 ms: use 50 µs to 1 ms";
    sandbox.refuse(&["emulate", "up", &bad, "--dry-run"], 3, why);
}

/// Next to a spinner on each CPU; on a busier machine than that, one of three starts is enough.
#[test]
fn the_cost_is_measured_next_to_other_tasks() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    let cpus = host.affinity(process::own_tid()).expect("a mask");
    let mut spinners: Vec<Child> = cpus
        .iter()
        .map(|cpu| {
            let spawn = Spawn::new("sh").args(["-c", SPIN]).die_with_parent(true);
            spawn.affinity(CpuSet::single(cpu)).start().expect("a spinner")
        })
        .collect();
    let pinload = Pinload::install().expect("pinload");
    let is_measured = |method: &str, start: u32| {
        // Nothing that an earlier start has measured.
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stage = TestPlatform::calibrated(&format!("next-{method}-{start}"), method, "50%");
        let stage = stage.expect("a method of this host");
        stage.rate(&pinload);
        let core = stage.core();
        if core["cost_known"] == false {
            assert!(core["got"].is_null(), "{core}");
            return false;
        }
        let got = || {
            stage.rate(&pinload);
            stage.core()["got"].as_f64()
        };
        assert!(until(|| got().is_some_and(|got| (0.2..0.6).contains(&got))), "{core}");
        true
    };
    for method in ["stall", "hogs"] {
        match why_not(&host, method) {
            Some(why) => println!("skipped: {method}: {why}"),
            None => assert!((0..3).any(|start| is_measured(method, start)), "{method}"),
        }
    }
    spinners.iter_mut().for_each(|spinner| spinner.kill().map(drop).expect("an end"));
}

#[test]
fn nothing_is_slow_any_more_when_the_supervisor_is_stopped_or_killed() {
    let _turn = take_turn();
    for method in ["stall", "hogs"] {
        let Some(mut stage) = TestPlatform::set(&format!("dead-{method}"), method, "5%") else {
            continue;
        };
        let pinload = Pinload::install().expect("pinload");
        // The least of three: a beat that comes late lets a vnode run at full speed for a while.
        // Other work on the machine takes its part of either rate.
        let slow = (0..3).map(|_| stage.rate(&pinload)).fold(f64::INFINITY, f64::min);
        let becomes = |stage: &TestPlatform, is_slow: bool, when: &str| {
            let mut last = 0.0;
            let seen = until(|| {
                last = stage.rate(&pinload);
                (last < 4.0 * slow) == is_slow
            });
            assert!(seen, "{method}: {when}: {last} and {slow} a second");
        };
        stage.supervisor.signal(Signaled::Stop).expect("stopped");
        becomes(&stage, false, "slow while stopped");
        stage.supervisor.signal(Signaled::Continue).expect("goes on");
        becomes(&stage, true, "not slow again");
        stage.supervisor.signal(Signaled::Kill).expect("killed");
        becomes(&stage, false, "slow after the kill");
        assert_parts(&stage.pinfold(&["status"]).stdout_text(), &["supervisor has exited"]);
        let again = stage.emulate(&["up", &stage.sandbox.path("platform.toml")]).expect_code(1);
        assert!(again.starts_with("pinfold: the supervisor has exited, but"), "{again}");
        stage.pinfold(&["undo"]).expect_success();
        assert_eq!(stage.groups(), Vec::<String>::new(), "{method}");
    }
}

/// The groups of burners below a vnode's.
fn burners(stage: &TestPlatform) -> Vec<Tid> {
    let mut left = stage.groups();
    let mut found = Vec::new();
    while let Some(group) = left.pop() {
        if group.rsplit('/').next().is_some_and(|name| name.starts_with("pinfold-burn")) {
            let members = stage.host.read_text(&paths::cgroup_procs(&group)).unwrap_or_default();
            found.extend(members.lines().filter_map(|line| line.parse().ok().map(Tid)));
        }
        let names = stage.host.list(&group).unwrap_or_default();
        let below = names.iter().map(|name| paths::cgroup_file(&group, name));
        left.extend(below.filter(|path| stage.host.exists(&paths::cgroup_procs(path))));
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn burners_of_fracas_pause_with_their_supervisor_and_end_with_it() {
    let _turn = take_turn();
    let Some(mut stage) = TestPlatform::set("burners", "fracas", "30%") else { return };
    let burners = burners(&stage);
    assert!(!burners.is_empty());
    let burned = || -> u64 {
        let stat = |tid: &Tid| proc_stat::read(&stage.host, *tid).expect("stat");
        burners.iter().filter_map(stat).map(|stat| stat.cpu_ticks).sum()
    };
    let burns = || {
        let before = burned();
        SystemClock.sleep_ns(SECOND_NS / 2);
        burned() > before
    };
    assert!(until(burns), "they burn");
    stage.supervisor.signal(Signaled::Stop).expect("stopped");
    let before = burned();
    assert!(until(|| !burns()), "they go on while their supervisor is stopped");
    // By their own CPU time, which a machine that is late makes no longer: 90 ms of beats that do
    // not come, and some for who listens. A load that is no burner goes on for 1.5 s. A tick is 10
    // ms.
    let after = burned() - before;
    assert!(after < 60, "they burned {after} ticks more");
    stage.supervisor.signal(Signaled::Continue).expect("goes on");
    assert!(until(burns), "they burn again");
    stage.supervisor.signal(Signaled::Kill).expect("killed");
    assert!(
        until(|| burners
            .iter()
            .all(|tid: &Tid| proc_stat::read(&stage.host, *tid).expect("stat").is_none())),
        "they outlive their supervisor"
    );
}

/// Its burners are killed, again and again: one that lived is started anew, one that cannot live
/// ends the platform, and why is told when it is gone.
#[test]
fn a_burner_that_is_killed_comes_again_and_the_reason_outlives_the_platform() {
    let _turn = take_turn();
    let Some(mut stage) = TestPlatform::set("killed", "fracas", "50%") else { return };
    let first = burners(&stage);
    SystemClock.sleep_ns(3 * SECOND_NS / 2);
    kill(&first);
    assert!(
        until(|| {
            let now = burners(&stage);
            !now.is_empty() && now.iter().all(|tid| !first.contains(tid))
        }),
        "nothing is slow any more, and nobody says so"
    );
    let status = stage.emulate(&["status"]).stdout_text();
    assert!(status.contains("restarted"), "{status}");
    assert!(
        until(|| {
            kill(&burners(&stage));
            matches!(stage.supervisor.try_wait(), Ok(Some(_)))
        }),
        "burners that cannot live end the platform"
    );
    let reported = stage.emulate(&["status"]).stderr_text();
    assert!(reported.contains("the last one failed: a burner: the cpu load ended"), "{reported}");
    assert_eq!(stage.groups(), Vec::<String>::new());
}

fn kill(tids: &[Tid]) {
    for tid in tids {
        // One that has ended meanwhile is what is wanted.
        match process::signal(*tid, Signaled::Kill) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// In the background nobody reads what a supervisor says after `up`. What its undo finds must not
/// keep it from its answer.
#[test]
fn a_platform_in_the_background_answers_although_no_one_reads_what_it_says() {
    let _turn = take_turn();
    let Some(mut stage) = TestPlatform::set("quiet", "stall", "50%") else { return };
    assert!(stage.emulate(&["down"]).status.success());
    assert!(until(|| matches!(stage.supervisor.try_wait(), Ok(Some(_)))), "it does not end");
    let file = stage.sandbox.path("platform.toml");
    stage.emulate(&["up", &file]).expect_success();
    for group in stage.groups() {
        stage.host.remove_dir(&group).expect("an empty group");
    }
    let down = stage.emulate(&["down"]).expect_success();
    assert!(down.stderr_text().contains("is down"), "{}", down.stderr_text());
}

/// Who is interrupted while the costs are measured leaves no supervisor that goes on.
#[test]
fn an_interrupted_up_ends_the_supervisor_that_it_started() {
    let _turn = take_turn();
    let Some(mut stage) = TestPlatform::set("interrupted", "stall", "50%") else { return };
    assert!(stage.emulate(&["down"]).status.success());
    assert!(until(|| matches!(stage.supervisor.try_wait(), Ok(Some(_)))), "it does not end");
    let file = stage.sandbox.path("platform.toml");
    for signal in [Signaled::Interrupt, Signaled::Terminate, Signaled::HangUp] {
        assert!(stage.emulate(&["forget"]).status.success());
        let mut up = Spawn::new("env")
            .args(["--default-signal=HUP", PINFOLD, "--state-dir", &stage.state()])
            .args(["emulate", "up", &file])
            .env(WITHOUT_CLAIMS, "true")
            .own_group()
            .start()
            .expect("pinfold starts");
        assert!(until(|| !stage.groups().is_empty()), "{signal:?}: it does not begin");
        up.signal(signal).expect("a signal");
        assert_eq!(up.wait().expect("an end").code(), Some(130), "{signal:?}");
        assert_eq!(stage.groups(), Vec::<String>::new(), "{signal:?}");
        let status = stage.emulate(&["status"]);
        assert!(status.stderr_text().contains("no platform is up"), "{signal:?}");
    }
}

/// What the kernel refuses is no method here, and is not chosen.
#[test]
fn without_the_rights_the_next_method_is_taken_and_says_why() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    if is_missing(&["setpriv"]) || is_refused(&host, "hogs") {
        return;
    }
    let sandbox = Sandbox::new();
    let without = |caps: &str, words: &[&str]| {
        let wrap = ["setpriv", "--bounding-set", caps, "--inh-caps", caps];
        sandbox.run_by(&wrap, &[&["emulate"], words].concat())
    };
    let check = |caps: &str, method: &str, part: &str| {
        let output = without(caps, &["methods", "--json"]);
        let json = output.json();
        let methods = json["methods"].as_array().expect("methods");
        let one = methods.iter().find(|one| one["method"] == method).expect("the method");
        let why = one["refused_here"].as_str().unwrap_or_default();
        assert!(!why.is_empty() && why.contains(part), "{method} without {caps}: {why:?}");
    };
    check("-sys_nice", "hogs", "does not permit real-time threads");
    check("-sys_nice", "inject", "does not permit real-time threads");
    let caps = "-sys_nice,-bpf,-perfmon,-sys_admin";
    check(caps, "stall", "");
    let said = without(caps, &["methods"]).stderr_text();
    assert!(said.contains("uses fracas here") || said.contains("uses quota here"), "{said}");
    let text = "[[vnode]]\nname = \"rights\"\ncores = 1\nspeed = \"50%\"\nmethod = \"hogs\"\n";
    let file = sandbox.write("platform.toml", text);
    let refused = without("-sys_nice", &["up", &file]);
    let reported = refused.stderr_text();
    assert!(
        !refused.status.success() && reported.contains("hogs: the kernel does not permit"),
        "{reported}"
    );
}

#[test]
fn a_second_platform_and_strangers_are_refused() {
    let _turn = take_turn();
    let Some(stage) = TestPlatform::set("second", "stall", "50%") else { return };
    let check = |words: &[&str], part: &str| {
        let output = stage.emulate(words);
        assert!(!output.status.success(), "{words:?}");
        assert!(output.stderr_text().contains(part), "{words:?}: {}", output.stderr_text());
    };
    let file = stage.sandbox.path("platform.toml");
    check(&["up", &file], "a platform is already up");
    check(&["set", "nobody", "--speed", "10%"], "there is no vnode \"nobody\"");
    check(&["exec", "nobody", "--", "true"], "there is no vnode \"nobody\"");
    for speed in ["0", "100.1%", "-5%", "NaN", "0.0000001"] {
        check(&["set", &stage.name, &format!("--speed={speed}")], "--speed");
    }
    check(&["set", &stage.name, "--speed", "10%", "--pu", "4095"], "has no CPU 4095");
    // Another Pinfold's platform may not have a vnode of the same name.
    let output = Sandbox::new().run(&["emulate", "up", &file]);
    assert!(output.stderr_text().contains("already exists"), "{}", output.stderr_text());
    let whose = "a platform of another state directory has a vnode of this name";
    assert!(output.stderr_text().contains(whose), "{}", output.stderr_text());
    assert!(!stage.groups().is_empty(), "the first one's groups stay");
    assert!(stage.emulate(&["down"]).status.success());
}

#[test]
fn one_command_runs_slowly_and_its_vnode_ends_with_it() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    if is_refused(&host, "stall") {
        return;
    }
    let sandbox = Sandbox::new();
    let run = |command: &[&str]| {
        let words = ["run", "--cores", "1", "--speed", "40%", "--"];
        sandbox.run(&[&words, command].concat())
    };
    let inside = run(&["cat", "/proc/self/cgroup"]);
    // Where the core was busy nothing could be measured, which is reported and ends no start.
    let kept = format!("{}/{KEPT_FILE}", sandbox.path("state"));
    let is_kept = pinfold_host::files::exists(&kept);
    let said = inside.stderr_text();
    assert!(is_kept || said.contains("is not measured yet"), "{said}");
    assert!(!is_kept || said.contains("was measured briefly"), "{said}");
    assert!(inside.stdout_text().contains(&format!("{GROUP_PREFIX}run-")), "{inside:?}");
    // Nothing is reported of a command without a second of work.
    assert!(!said.contains("achieved"), "{said}");
    let busy = run(&["timeout", "3", "sha256sum", "/dev/zero"]);
    let measured = busy.stderr_text();
    assert!(!is_kept || measured.contains("40.00% requested, "), "{measured}");
    let second = run(&["false"]);
    assert_eq!(second.status.code(), Some(1));
    let vnode = run(&["sh", "-c", "echo $PINFOLD_VNODE"]).stdout_text();
    assert!(vnode.starts_with("run-"), "{vnode}");
    let missing = run(&["no-such-program"]);
    assert!(missing.stderr_text().contains("no-such-program"), "{missing:?}");
    let text = inside.stdout_text();
    let name = text.split(GROUP_PREFIX).nth(1).and_then(|rest| rest.lines().next());
    assert_eq!(groups(&host, name.expect("a name")), Vec::<String>::new());
    // `undo` leaves what was measured, `forget` removes it.
    sandbox.print(&["undo", "--all"]);
    assert_eq!(pinfold_host::files::exists(&kept), is_kept);
    sandbox.print(&["emulate", "forget"]);
    assert!(!pinfold_host::files::exists(&kept));
}

#[test]
fn a_busy_core_keeps_no_command_from_running_slowly() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    let sandbox = Sandbox::new();
    let online = host.read_text(&paths::cpu_online()).expect("CPUs");
    let online = pinfold_model::CpuSet::parse_list(online.trim()).expect("a list");
    let _spinners: Vec<Child> = online
        .iter()
        .map(|pu| {
            let spawn = Spawn::new("sh").args(["-c", SPIN]).die_with_parent(true);
            spawn.affinity(pinfold_model::CpuSet::single(pu)).start().expect("a spinner")
        })
        .collect();
    for method in ["stall", "hogs"] {
        if is_refused(&host, method) {
            continue;
        }
        let words = ["run", "--speed", "60%", "--method", method, "--share-housekeeping"];
        let output = sandbox.run(&[&words[..], &["--", "echo", "it ran"]].concat());
        let said = output.stderr_text();
        assert!(output.status.success(), "{method}: {said}");
        assert_eq!(output.stdout_text(), "it ran\n", "{method}: {said}");
        let lines = said.lines().filter(|line| line.contains("could not be measured")).count();
        assert!(lines <= 1, "{method}: {said}");
    }
}

#[test]
fn what_a_method_cannot_do_is_stated_when_it_is_chosen() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    if is_refused(&host, "lim") {
        return;
    }
    let sandbox = Sandbox::new();
    let output = sandbox.run(&["run", "--speed", "60%", "--method", "lim", "--", "true"]);
    let said = output.stderr_text();
    assert!(output.status.success() && said.contains("a process that is new"), "{said}");
}

/// A profile with this share of the scores of the one that the library tests with.
fn profile(share: f64) -> String {
    let real = include_str!("../../../pinfold-probe/src/profile-epyc.jsonl");
    let mut lines = real.lines().map(str::to_owned);
    let mut text = lines.next().expect("a machine") + "\n";
    for line in lines {
        let mut figure: Value = serde_json::from_str(&line).expect("JSON");
        for sample in figure["samples"].as_array_mut().expect("samples") {
            *sample = (sample.as_f64().expect("a number") * share).into();
        }
        text += &format!("{figure}\n");
    }
    text
}

#[test]
fn a_command_runs_at_the_speed_of_another_machine() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    if is_refused(&host, "quota") {
        return;
    }
    let sandbox = Sandbox::new();
    let here = sandbox.write("here.jsonl", profile(1.0));
    let slow = sandbox.write("slow.jsonl", profile(0.5));
    let fast = sandbox.write("fast.jsonl", profile(3.0));
    let cut = sandbox.write("cut.jsonl", profile(0.5).trim_end());
    let wide = profile(0.5).replace("\"cores\":2", "\"cores\":9999");
    let wide = sandbox.write("wide.jsonl", wide);
    let later = sandbox.write("later.jsonl", profile(0.5).replace("profile/1", "profile/2"));
    let arm = sandbox.write("arm.jsonl", profile(0.5).replace("\"x86_64\"", "\"arm\""));
    let like = |file: &str, more: &[&str]| {
        let words = ["run", "--cores", "1", "--method", "quota", "--like", file, "--own", &here];
        sandbox.run(&[&words[..], more, &["--", "echo", "it ran"]].concat())
    };
    let ran = like(&slow, &[]).expect_success();
    assert_eq!(ran.stdout_text(), "it ran\n");
    let said = ran.stderr_text();
    assert!(said.contains("speed 50%, like ") && said.contains("integer: 50.0% ("), "{said}");
    let integer = like(&slow, &["--kind", "integer"]).expect_success();
    assert!(integer.stderr_text().contains("work of the kind integer"), "{integer:?}");
    let other = like(&arm, &[]).expect_success().stderr_text();
    assert!(other.contains("speed 50%, ") && other.contains("cannot predict how fast"), "{other}");
    for (file, more, expected) in [
        (&fast, [].as_slice(), "is faster than this machine"),
        (&wide, &[], "wide.jsonl: that machine has 9999 cores, this one"),
        (&later, &[], "later.jsonl: line 1: the format is \"pinfold-profile/2\""),
        (&cut, &[], "cut.jsonl: line 11: the file is cut off"),
        (&slow, &["--kind", "magic"], "there is no kind of work"),
    ] {
        let refused = like(file, more);
        assert!(refused.stderr_text().contains(expected), "{refused:?}");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert_eq!(refused.stdout_text(), "");
    }
}

#[test]
fn what_a_vnode_achieves_is_measured() {
    let _turn = take_turn();
    let sandbox = Sandbox::new();
    sandbox.refuse(&["emulate", "verify", "a"], 1, "no platform is up");
    let Some(stage) = TestPlatform::set("verify", "stall", "50%") else { return };
    let shown = stage.sandbox.print_json(&["top", "--once", "--json"]);
    assert_eq!(shown["vnodes"][0]["name"], stage.name.as_str(), "{shown}");
    assert_eq!(shown["vnodes"][0]["requested"], 0.5, "{shown}");
    let stranger = stage.emulate(&["verify", "nobody"]);
    assert_eq!(stranger.status.code(), Some(2));
    assert!(stranger.stderr_text().contains("no vnode \"nobody\""), "{}", stranger.stderr_text());
    stage.emulate(&["verify", &stage.name, "--repetitions", "0"]).expect_code(2);
    let output = stage
        .emulate(&["verify", &stage.name, "--json", "--quick", "--repetitions", "1"])
        .expect_success();
    let found: Value = output.json();
    let rows = found["benchmarks"].as_array().expect("rows");
    assert_eq!(rows.len(), 7);
    for row in rows {
        assert_eq!(row["requested"], 0.5, "{row}");
        assert!(row["achieved"].as_f64().is_some_and(|achieved| achieved > 0.0), "{row}");
    }
    assert_eq!(stage.core()["asked"], 0.5, "it has its speed again");
}

/// Programs that tell the quota of the group in which they begin, at three speeds of one vnode.
const QUOTAS: &str = r#"
name = "quotas"
repetitions = 2
time-limit = "10s"
share = ["workload", "speed"]
[baseline]
speed = 0.5
[[factor]]
name = "method"
levels = ["quota"]
[[factor]]
name = "speed"
levels = [0.5, 0.25, 0.75]
[[factor]]
name = "cores"
levels = [1]
[[workload]]
name = "one"
command = ["sh", "-c", """
for group in $(sed -n 's|^[0-9]*:\\(cpu[^:]*\\):|/sys/fs/cgroup/\\1|p; s|^0::|/sys/fs/cgroup|p' /proc/self/cgroup); do
  cat $group/cpu.cfs_quota_us $group/cpu.max
done 2>/dev/null | sed 's/^/quota: /'"""]
lasts = "10ms"
[[workload.figure]]
name = "quota"
regex = 'quota: (\d+)'
[[workload]]
name = "other"
command = ["true"]
lasts = "10ms"
[[table]]
name = "quotas"
figure = "quota"
rows = ["speed"]
"#;

#[test]
fn trials_of_one_vnode_have_their_own_speeds() {
    let _turn = take_turn();
    if let Some(why) = why_not(&LiveHost::new().expect("a host"), "quota") {
        return skip(format!("quota: {why}"));
    }
    let sandbox = Sandbox::new();
    let file = sandbox.write("quotas.toml", QUOTAS);
    let store = sandbox.path("quotas.sqlite");
    let reported = sandbox.print(&["study", "run", &file, "--store", &store]);
    assert!(reported.contains("16 of 16 trials done, 0 failed"), "{reported}");
    sandbox.print(&["study", "report", &store, "--out", &sandbox.path("quotas.html")]);
    let table = sandbox.read("quotas-tables/quotas.csv");
    for (speed, quota) in [("0.5", "50000"), ("0.25", "25000"), ("0.75", "75000")] {
        let row = table.lines().find(|line| line.split(',').next() == Some(speed));
        let row = row.unwrap_or_else(|| panic!("{speed}: {table}"));
        // Value and interval: each trial had it.
        assert_eq!(row.matches(quota).count(), 3, "{table}");
    }
}

const SPIN: &str = "while :; do :; done";

/// The sentinel of a supervisor.
fn sentinel(stage: &TestPlatform) -> Option<Tid> {
    let supervisor = stage.supervisor.pid();
    let path = paths::task_file(supervisor, supervisor, "children");
    let children = stage.host.read_text(&path).expect("its children");
    let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok().map(Tid));
    pids.into_iter().find(|pid| {
        let words = stage.host.read_text(&paths::process_cmdline(*pid)).unwrap_or_default();
        words.split('\0').any(|word| word == "sentinel")
    })
}

/// Kills a supervisor together with its sentinel at a moment when something is so.
fn kill_both(stage: &mut TestPlatform, is_so: impl Fn(&LiveHost) -> bool) {
    assert!(until(|| sentinel(stage).is_some()), "there is a sentinel");
    let sentinel = sentinel(stage).expect("a sentinel");
    process::signal(sentinel, Signaled::Stop).expect("stopped");
    let caught = until(|| {
        stage.supervisor.signal(Signaled::Stop).expect("stopped");
        let found = is_so(&stage.host);
        if !found {
            stage.supervisor.signal(Signaled::Continue).expect("goes on");
        }
        found
    });
    assert!(caught, "it comes to that");
    stage.supervisor.signal(Signaled::Kill).expect("killed");
    process::signal(sentinel, Signaled::Kill).expect("killed");
    stage.supervisor.wait().expect("an end");
    assert!(
        until(|| {
            proc_stat::read(&stage.host, sentinel)
                .expect("a stat")
                .is_none_or(|stat: proc_stat::ProcStat| stat.has_ended())
        }),
        "the sentinel has ended"
    );
}

fn state(host: &LiveHost, pid: Tid) -> char {
    proc_stat::read(host, pid).expect("a stat").expect("a process").state
}

fn spinner(files: Vec<String>) -> Child {
    let spawn = Spawn::new("/bin/sh").args(["-c", SPIN]).cgroup_files(files);
    spawn.own_group().die_with_parent(true).start().expect("a shell")
}

/// A group of version 2 of the test's own, which no vnode makes or removes.
struct Slice {
    host: LiveHost,
    name: String,
    path: String,
}

impl Slice {
    fn make(test: &str) -> Option<Self> {
        let host = LiveHost::new().expect("a host");
        let table = host.read_text(&paths::own_mountinfo()).expect("mounts");
        let mounts = pinfold_host::mountinfo::parse(&table).expect("mounts");
        let Some(mount) = pinfold_host::mountinfo::v2_mount(&mounts) else {
            skip("cgroup version 2 is not mounted");
            return None;
        };
        let name = format!("pinfold-test-{test}-{}", process::own_pid());
        let path = paths::cgroup_file(&mount.mount.path, &name);
        match host.make_dir(&path) {
            Ok(()) => Some(Self { host, name, path }),
            Err(error) => {
                skip(error);
                None
            }
        }
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        let done = until(|| self.host.remove_dir(&self.path).is_ok());
        assert!(done || std::thread::panicking(), "{} is empty", self.path);
    }
}

#[test]
fn an_attached_group_is_held_on_its_pus_and_freed_when_all_of_pinfold_is_killed() {
    let _turn = take_turn();
    let Some(slice) = Slice::make("held") else { return };
    let mut spinner = spinner(vec![paths::cgroup_procs(&slice.path)]);
    let pid = spinner.pid();
    let anywhere = slice.host.affinity(pid).expect("a mask");
    if anywhere.len() < 2 {
        return skip("it needs two CPUs");
    }
    let lines = format!("speed = \"10%\"\nattach = \"group:/{}\"\n", slice.name);
    let Some(mut stage) = TestPlatform::with("held", "gov", &lines, &[]) else { return };
    let pu = stage.core().get("pu").and_then(Value::as_u64).expect("a CPU");
    let held = slice.host.affinity(pid).expect("a mask");
    assert_eq!(held.iter().map(|pu| u64::from(pu.0)).collect::<Vec<_>>(), [pu]);
    let events = paths::cgroup_events(&slice.path);
    let is_frozen =
        |host: &LiveHost| host.read_text(&events).is_ok_and(|text| text.contains("frozen 1"));
    kill_both(&mut stage, is_frozen);
    assert!(is_frozen(&slice.host), "nobody has thawed it");
    let undone = stage.pinfold(&["undo", "--all"]).expect_success();
    assert!(!is_frozen(&slice.host), "{}", undone.stdout_text());
    assert_eq!(slice.host.affinity(pid).expect("a mask"), anywhere);
    assert!(stage.groups().is_empty());
    spinner.kill().expect("killed");
}

#[test]
fn what_lim_stopped_goes_on_after_undo_when_all_of_pinfold_is_killed() {
    let _turn = take_turn();
    let Some(mut stage) = TestPlatform::set("lim", "lim", "2%") else { return };
    let files = stage.groups().iter().map(|group| paths::cgroup_procs(group)).collect();
    let mut spinner = spinner(files);
    let pid = spinner.pid();
    kill_both(&mut stage, |host| state(host, pid) == 'T');
    assert_eq!(state(&stage.host, pid), 'T', "nobody continued it");
    let undone = stage.pinfold(&["undo", "--all"]).expect_success();
    assert!(until(|| state(&stage.host, pid) != 'T'), "{}", undone.stdout_text());
    spinner.kill().expect("killed");
}

#[test]
fn a_command_hears_the_signals_and_decides_itself_how_it_ends() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    if is_refused(&host, "lim") {
        return;
    }
    for (signal, name) in [(Signaled::Interrupt, "INT"), (Signaled::Terminate, "TERM")] {
        let sandbox = Sandbox::new();
        let script = format!(
            "trap 'sleep 0.3; echo told; exit 7' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let words = ["run", "--cores", "1", "--speed", "90%", "--method", "lim", "--"];
        let run = sandbox.spawn(&[&words[..], &["sh", "-c", &script]].concat());
        let run = run.stdout(Stdio::Pipe).die_with_parent(true).own_group();
        let mut run = run.start().expect("pinfold starts");
        let mut reported = String::new();
        let mut pipe = std::io::BufReader::new(run.stdout().expect("a pipe"));
        std::io::BufRead::read_line(&mut pipe, &mut reported).expect("a line");
        run.signal(signal).expect("sent");
        std::io::Read::read_to_string(&mut pipe, &mut reported).expect("the rest");
        assert_eq!(reported, "ready\ntold\n", "{name}");
        assert_eq!(run.wait().expect("an end").code(), Some(7), "{name}");
        assert_eq!(groups(&host, &format!("run-{}", run.pid())), Vec::<String>::new());
    }
}

/// The vnode of `run --speed` has no supervisor that `emulate` reaches.
#[test]
fn a_vnode_of_one_command_is_ended_by_its_process() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    if is_refused(&host, "stall") {
        return;
    }
    let sandbox = Sandbox::new();
    let words = ["run", "--cores", "1", "--speed", "50%", "--", "sleep", "300"];
    let run = sandbox.spawn(&words).own_group().die_with_parent(true);
    let mut run = run.start().expect("pinfold starts");
    let status = || sandbox.run(&["status"]).stdout_text();
    let way = format!("kill -INT {}", run.pid());
    assert!(until(|| status().contains(&way)), "{}", status());
    assert!(!status().contains("emulate"), "{}", status());
    let undo = sandbox.run(&["undo", "--all"]).stderr_text();
    assert!(undo.contains(&way) && !undo.contains("emulate"), "{undo}");
    run.signal(Signaled::Interrupt).expect("a signal");
    run.wait().expect("an end");
    assert!(status().contains("no placement is active"), "{}", status());
}

#[test]
fn a_supervisor_whose_terminal_is_gone_takes_its_vnodes_down() {
    let _turn = take_turn();
    let Some(mut stage) = TestPlatform::set("hung-up", "lim", "90%") else { return };
    assert!(!stage.groups().is_empty());
    stage.supervisor.signal(Signaled::HangUp).expect("sent");
    stage.supervisor.wait().expect("an end");
    assert_eq!(stage.groups(), Vec::<String>::new());
}

#[test]
fn steps_are_printed_and_files_are_found_next_to_the_platform() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    if is_refused(&host, "lim") {
        return;
    }
    let sandbox = Sandbox::new();
    let name = format!("dry-{}", process::own_pid());
    let text =
        format!("[[vnode]]\nname = {name:?}\ncores = 1\nspeed = \"50%\"\nmethod = \"lim\"\n");
    let text = format!("{text}profile = \"speeds.csv\"\n");
    sandbox.write("speeds.csv", "seconds,speed\n1,40%\n");
    let file = sandbox.write("platform.toml", text);
    let output = sandbox.run(&["emulate", "up", "--dry-run", &file]).expect_success();
    let (steps, said) = (output.stdout_text(), output.stderr_text());
    let group = format!("{GROUP_PREFIX}{name}");
    assert_parts(
        &steps,
        &[&group, "stop and continue processes in", "send SIGSTOP and SIGCONT to the processes in"],
    );
    assert!(said.contains("nothing was changed"), "{said}");
    assert_eq!(groups(&host, &name), Vec::<String>::new());
}

#[test]
fn a_recorded_load_takes_no_speed() {
    let _turn = take_turn();
    let load = [("load.csv", "ms,pu0\n100,0.1\n")];
    let Some(stage) = TestPlatform::with("load", "inject", "profile = \"load.csv\"\n", &load)
    else {
        return;
    };
    let refused = stage.emulate(&["set", &stage.name, "--speed", "30%"]);
    let said = refused.stderr_text();
    assert!(!refused.status.success() && said.contains("not possible with inject"), "{said}");
}

#[test]
fn a_supervisor_that_is_stopped_or_killed_is_named_with_a_hint() {
    let _turn = take_turn();
    let Some(mut stage) = TestPlatform::set("silent", "quota", "60%") else { return };
    let pid = stage.supervisor.pid();
    let up = stage.pinfold(&["undo", "--all"]);
    assert_eq!(up.status.code(), Some(3), "{}", up.stderr_text());
    assert!(up.stderr_text().contains(" emulate down`"), "{}", up.stderr_text());
    let vnode = stage.name.clone();
    let set = ["set", &vnode, "--speed", "10%"];
    for words in [&["status"][..], &["exec", &vnode, "--", "true"], &set, &["down"]] {
        stage.supervisor.signal(Signaled::Stop).expect("it runs");
        let output = stage.emulate(words);
        let said = output.stderr_text();
        assert_eq!(output.status.code(), Some(3), "{words:?}: {said}");
        let hint = format!("kill -CONT {pid}");
        assert_parts(&said, &[&format!("process {pid}"), "it is stopped", &hint]);
        // What was reported as not done is not done later.
        stage.supervisor.signal(Signaled::Continue).expect("it is stopped");
        assert!(stage.emulate(&["status"]).status.success(), "it goes on");
        assert_eq!(stage.core()["asked"], 0.6, "{words:?}");
    }
    stage.supervisor.signal(Signaled::Kill).expect("it runs");
    stage.supervisor.wait_for(&SystemClock, 60 * SECOND_NS).expect("it ends");
    for words in [&["emulate", "status"][..], &["emulate", "down"], &["status"]] {
        let output = stage.pinfold(words);
        let said = output.stderr_text();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains(" undo --left`"), "{words:?}: {said}");
    }
    stage.pinfold(&["undo", "--left"]).expect_success();
    assert_eq!(groups(&stage.host, &stage.name), Vec::<String>::new());
    assert_parts(&stage.emulate(&["status"]).stderr_text(), &["no platform is up"]);
}

fn run_limited(sandbox: &Sandbox, options: &[&str], command: &str) -> Output {
    let words = [&["run", "--speed", "50%"], options, &["--", "sh", "-c", command]].concat();
    sandbox.run(&words)
}

#[test]
fn the_disk_of_one_command_is_limited() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    if is_refused(&host, "stall") {
        return;
    }
    let sandbox = Sandbox::new();
    for (options, words) in [
        (["--disk", "50 apples"], ["--disk: ", "a number with a unit"]),
        (["--iops", "0"], ["--iops: ", "a whole number"]),
    ] {
        assert_parts(&run_limited(&sandbox, &options, "true").stderr_text(), &words);
    }
    // Its group in the hierarchy of io, of either version.
    let show = "d=/sys/fs/cgroup/*/pinfold-vnode-$PINFOLD_VNODE; \
                d=\"$d /sys/fs/cgroup/pinfold-vnode-$PINFOLD_VNODE\"; \
                for d in $d; do cat $d/io.max $d/blkio.throttle.*_device; done 2>/dev/null; true";
    let options = ["--disk", "50 MB/s", "--iops", "500"];
    let output = run_limited(&sandbox, &options, show);
    if !output.status.success() {
        assert_parts(&output.stderr_text(), &["--disk: "]);
        return skip(format!("the disk cannot be limited: {}", output.stderr_text()));
    }
    let text = output.stdout_text();
    assert!(text.contains("50000000") && text.contains("500"), "{text}");
}

/// The disk of the sandbox is limited in the kernel's own files, a direct write takes as long as
/// the limit says, `verify` has a row for each limit, and nothing is left.
#[test]
fn the_disk_of_a_vnode_is_as_slow_as_asked() {
    let _turn = take_turn();
    let folder = Sandbox::new();
    let lines = format!("disk = \"4 MB/s\"\niops = 200\ndisk-path = {:?}\n", folder.path(""));
    let text = format!("[[vnode]]\nname = \"try\"\ncores = 1\n{lines}");
    let steps = folder.run(&["emulate", "up", "--dry-run", &folder.write("try.toml", text)]);
    if !steps.status.success() {
        return skip(format!("the disk cannot be limited: {}", steps.stderr_text()));
    }
    assert!(steps.stdout_text().contains("4 MB/s and 200 operations/s"), "{}", steps.stdout_text());
    let Some(stage) = TestPlatform::with("disk", "stall", &lines, &[]) else { return };
    let to = format!("of={}", folder.path("written"));
    let words = ["dd", "if=/dev/zero", &to, "bs=500k", "count=8", "oflag=direct"];
    let begin = SystemClock.now_ns();
    stage.emulate(&[&["exec", &stage.name, "--"], &words[..]].concat()).expect_success();
    // The kernel lets the first tenth of a second pass at once.
    let ns = SystemClock.now_ns() - begin;
    assert!(ns > SECOND_NS / 2, "4 MB in {ns} ns");
    let status: Value = stage.emulate(&["status", "--json"]).json();
    let disk = status.pointer("/vnodes/0/disk").expect("a disk");
    assert_eq!(
        (&disk["bytes_per_second"], &disk["operations_per_second"]),
        (&4_000_000.into(), &200.into())
    );
    let words = ["verify", &stage.name, "--quick", "--repetitions", "1", "--json"];
    let found: Value = stage.emulate(&words).json();
    let rows = found["disk"].as_array().expect("rows");
    let names: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {}", row["operation"], row["unit"]).replace('"', ""))
        .collect();
    assert_eq!(names, ["write bytes", "read bytes", "write operations", "read operations"]);
    for row in rows {
        let (achieved, requested) = (row["achieved"].as_f64(), row["requested"].as_f64());
        let share = achieved.expect("a rate") / requested.expect("a limit");
        assert!(share > 0.0 && share < 1.5, "{row}");
    }
    stage.emulate(&["down"]).expect_success();
    assert_eq!(stage.groups(), Vec::<String>::new());
    let left = pinfold_host::files::list(&folder.path("")).expect("a folder");
    assert!(!left.iter().any(|name| name.starts_with(".pinfold")), "{left:?}");
}
