//! `pinfold measure gaps` names what this test does to a process.

use crate::common::machine::Machine;
use crate::common::{Checked as _, Sandbox, TIMEOUT_NS, pinfold, skip, until};
use pinfold_host::process::{self, is_root};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files, mountinfo, paths};
use pinfold_model::Tid;
use serde_json::Value;

/// A process that spins on a CPU, and ends with this value.
struct Spinner(std::process::Child);

impl Spinner {
    #[expect(clippy::disallowed_methods, reason = "a child that is stopped and killed by its test")]
    fn new(cpu: &str) -> Self {
        let script = "while :; do :; done";
        let mut command = std::process::Command::new("taskset");
        Self(command.args(["-c", cpu, "sh", "-c", script]).spawn().expect("taskset"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.kill().expect("a child that runs");
        self.0.wait().expect("a child");
    }
}

fn run(program: &str, words: &[&str]) {
    let ran = process::capture(program, words, TIMEOUT_NS).expect(program);
    assert!(ran.status.success(), "{program} {words:?}: {}", ran.stderr_text());
}

/// Measures until a gap of at least 1 ms is mostly one of this kind; `None` without BPF.
fn found(
    pid: &str,
    file: &str,
    meanwhile: &dyn Fn(),
    is_it: &dyn Fn(&Value) -> bool,
) -> Option<Value> {
    let end = SystemClock.now_ns() + TIMEOUT_NS;
    loop {
        let mut words = vec!["measure", "gaps", "--process", pid, "--seconds", "1.5"];
        words.extend(["--over", "1ms", "--json", "--record", file]);
        if files::exists(file) {
            // A record is not overwritten.
            run("rm", &[file]);
        }
        let output = std::thread::scope(|scope| {
            let measured = scope.spawn(|| {
                let spawn = Sandbox::with_cache().spawn(&words);
                spawn.capture(TIMEOUT_NS).expect("runs")
            });
            while !measured.is_finished() {
                meanwhile();
            }
            measured.join().expect("a thread that ends")
        });
        if output.status.code() == Some(3) {
            skip(output.stderr_text());
            return None;
        }
        let reported = output.expect_success().json();
        let gaps = reported["found"][0]["gaps"].as_array().expect("gaps").clone();
        if let Some(gap) =
            gaps.iter().find(|gap| !gap["cause"].is_null() && is_it(&gap["parts"][0]["cause"]))
        {
            return Some(gap.clone());
        }
        assert!(SystemClock.now_ns() < end, "{pid} has no such gap: {reported}");
    }
}

fn pause() {
    SystemClock.sleep_ns(20_000_000);
}

#[test]
fn another_task_a_stop_and_a_quota_are_named() {
    if !is_root() {
        return skip("gaps need BPF, and this is not root");
    }
    let host = LiveHost::new().expect("this host");
    let cpu = host.affinity(Tid(0)).expect("a mask").first().expect("a CPU").to_string();
    let sandbox = Sandbox::new();
    let file = sandbox.path("gaps.jsonl");
    let (victim, hog) = (Spinner::new(&cpu), Spinner::new(&cpu));
    let of_hog = |cause: &Value| cause["kind"] == "thread" && cause["tid"] == hog.0.id();
    let Some(gap) = found(&victim.pid(), &file, &pause, &of_hog) else { return };
    assert_eq!(gap["cpu"].to_string(), cpu, "{gap}");
    // Without the hog the processor is often idle while the victim is stopped or throttled.
    drop(hog);
    let stop = || {
        run("kill", &["-STOP", &victim.pid()]);
        pause();
        run("kill", &["-CONT", &victim.pid()]);
        pause();
    };
    found(&victim.pid(), &file, &stop, &|cause| cause["kind"] == "stopped").expect("as before");
    let text = pinfold(["measure", "gaps", "--from", &file]).expect_success().stdout_text();
    assert!(text.contains("against stopped: nothing; a signal"), "{text}");
    quota(&host, &victim, &file);
    cut_off(&sandbox, &file);
}

/// A cgroup with one process; removed when dropped.
struct Group {
    path: String,
    above: String,
    pid: String,
}

impl Group {
    fn new(host: &LiveHost, process: &Spinner) -> Option<Self> {
        let mount = mountinfo::controller(host, "cpu").ok()??.mount;
        let (above, pid) = (mount.path, process.pid());
        let path = format!("{above}/pinfold-test-group-{pid}");
        let script = format!("mkdir {path} && echo {pid} > {path}/cgroup.procs");
        let made = process::capture("sh", ["-ec", &script], TIMEOUT_NS).expect("sh");
        made.status.success().then_some(Self { path, above, pid })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Self { path, above, pid } = self;
        run("sh", &["-ec", &format!("echo {pid} > {above}/cgroup.procs; rmdir {path}")]);
    }
}

#[test]
fn several_processes_and_a_group_are_told_apart() {
    if !is_root() {
        return skip("gaps need BPF, and this is not root");
    }
    let host = LiveHost::new().expect("this host");
    let cpu = host.affinity(Tid(0)).expect("a mask").first().expect("a CPU").to_string();
    let sandbox = Sandbox::with_cache();
    let file = sandbox.path("several.jsonl");
    let [one, other, grouped] = [(); 3].map(|()| Spinner::new(&cpu));
    let Some(group) = Group::new(&host, &grouped) else {
        return skip("no group can be made");
    };
    let (first, second) = (one.pid(), other.pid());
    let mut words = vec!["measure", "gaps", "--process", &first, "--process", &second];
    words.extend(["--group", &group.path, "--seconds", "1", "--over", "1ms", "--json"]);
    words.extend(["--record", &file]);
    let output = sandbox.run(&words);
    if output.status.code() == Some(3) {
        return skip(output.stderr_text());
    }
    let reported = output.expect_success().json();
    let found = &reported["found"][0];
    let names: Vec<_> = [&first, &second].map(|pid| format!("process {pid}")).into();
    let names = [names, vec![format!("group {}", group.path)]].concat();
    let subjects = found["summary"]["subjects"].as_array().expect("subjects");
    let listed: Vec<&str> = subjects.iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(listed, names);
    let gaps = found["gaps"].as_array().expect("gaps");
    for (pid, name) in [&first, &second, &group.pid].into_iter().zip(&names) {
        let own: Vec<_> =
            gaps.iter().filter(|gap| gap["tid"].as_u64() == pid.parse().ok()).collect();
        assert!(!own.is_empty(), "{name} shared its CPU with two others: {reported}");
        assert!(own.iter().all(|gap| gap["subject"] == name.as_str()), "{own:?}");
    }
    let text = pinfold(["measure", "gaps", "--from", &file]).expect_success().stdout_text();
    for part in [" in ", "main cause", &names[0], &names[1]] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let missing = pinfold(["measure", "gaps", "--group", "/pinfold-no-such-group"]);
    assert_eq!(missing.status.code(), Some(2), "{}", missing.stderr_text());
    assert!(missing.stderr_text().contains("no such cgroup"), "{}", missing.stderr_text());
}

/// Meanwhile other programs may use the monitor; the first signal ends the observation, not the
/// command.
#[test]
fn an_interrupted_observation_shows_and_stores_what_it_has() {
    let Some(machine) = Machine::new("-smp 2") else { return };
    let record = machine.path("record");
    let words =
        ["measure", "gaps", "--qmp", &machine.qmp(), "--seconds", "600", "--record", &record];
    let mut measuring = machine.start_logged(&words);
    let said = || files::read_text(&machine.path("said")).unwrap_or_default();
    // A command without a right to load the programs ends before it waits.
    let waits = || {
        files::read_text(&format!("/proc/{}/wchan", measuring.pid()))
            .is_ok_and(|text| text.contains("nanosleep"))
    };
    assert!(until(|| said().contains("observing") && (waits() || said().contains("BTF"))));
    if said().contains("BTF") {
        return skip(said());
    }
    drop(machine.connect());
    process::signal(measuring.pid(), process::Signaled::Interrupt).expect("a signal");
    let ended = measuring.wait_for(&SystemClock, TIMEOUT_NS).expect("it ends");
    assert_eq!(ended.and_then(|status| status.code()), Some(130), "{}", said());
    let is_shown = ["gap", "gaps"]
        .iter()
        .any(|noun| said().contains(&format!(" {noun} of at least 200 µs in ")));
    assert!(is_shown, "{}", said());
    pinfold(["measure", "gaps", "--from", &record]).expect_success();
}

/// A loop on each CPU. On a busy machine most gaps have further causes too.
fn disturb_all_cpus() -> Vec<Spinner> {
    let host = LiveHost::new().expect("this host");
    let cpus = host.affinity(Tid(0)).expect("a mask");
    cpus.iter().map(|cpu| Spinner::new(&cpu.to_string())).collect()
}

/// What quiet reports about these commands next to a loop on each CPU, with its exit code 7; `None`,
/// reported, if gaps cannot be observed.
fn report_of_quiet(commands: &[&str]) -> Option<String> {
    if !is_root() {
        skip("gaps need BPF, and this is not root");
        return None;
    }
    let _loops = disturb_all_cpus();
    let sandbox = Sandbox::new();
    let state = sandbox.root();
    let words = ["--state-dir", &state, "quiet", "--ignore-claims", "--isolate", "none"];
    let text = pinfold([&words[..], &["--profile", "none"], commands].concat()).expect_code(7);
    if text.contains("gaps cannot be observed") {
        skip(text);
        return None;
    }
    Some(text)
}

/// The command shares its CPU with a loop.
#[test]
fn quiet_names_what_disturbed_its_command() {
    let command = "k=0; while [ $k -lt 1000000 ]; do k=$((k+1)); done; exit 7";
    let Some(text) = report_of_quiet(&["--", "sh", "-c", command]) else { return };
    assert!(text.contains(" by sh"), "{text}");
    assert!(text.contains("the CPUs were not quiet: "), "{text}");
    assert!(text.contains("gaps took"), "{text}");
}

/// Each job shares its CPU with a loop, and the line and the warning name the job.
#[test]
fn quiet_names_what_disturbed_each_job() {
    let script = "k=0; while [ $k -lt 300000 ]; do k=$((k+1)); done";
    let (server, load) =
        (format!("server: sh -c '{script}; exit 7'"), format!("load: sh -c '{script}'"));
    let Some(text) = report_of_quiet(&["--job", &server, "--job", &load]) else { return };
    for name in ["server", "load"] {
        let lines = text.lines().filter(|line| line.starts_with(&format!("quiet: {name}: CPU ")));
        let lines: Vec<&str> = lines.collect();
        let [line] = lines.as_slice() else { panic!("one line of {name}: {text}") };
        assert!(line.contains(" together, longest ") && line.contains(" by "), "{line}");
        assert!(line.contains("migration"), "{line}");
        let warning = format!("warning: quiet: {name}: the CPUs were not quiet: ");
        assert!(text.contains(&warning) && text.contains("gaps took"), "{text}");
    }
}

/// In a group below one with a small quota.
fn quota(host: &LiveHost, victim: &Spinner, file: &str) {
    let Ok(Some(mount)) = mountinfo::controller(host, "cpu") else {
        return skip("no cgroup has the controller cpu");
    };
    let group = format!("{}/pinfold-test-{}", mount.mount.path, victim.pid());
    run("mkdir", &["-p", &format!("{group}/below")]);
    let limit = match mount.version {
        mountinfo::Version::V1 => "echo 100000 > cpu.cfs_period_us; echo 2000 > cpu.cfs_quota_us",
        mountinfo::Version::V2 => "echo 2000 100000 > cpu.max",
    };
    let back = mount.mount.path.clone();
    let script = format!("cd {group} && {limit} && echo {} > below/cgroup.procs", victim.pid());
    if process::capture("sh", ["-ec", &script], TIMEOUT_NS).expect("sh").status.success() {
        let is_it = |cause: &Value| cause["kind"] == "quota" && cause["group"] == group.as_str();
        let gap = found(&victim.pid(), file, &pause, &is_it).expect("as before");
        let remedy = gap["remedy"].as_str().expect("a command");
        assert!(remedy.contains(&group), "{remedy}");
        run("sh", &["-ec", &format!("echo {} > {back}/cgroup.procs", victim.pid())]);
    } else {
        skip("the controller cpu is not enabled for groups");
    }
    run("rmdir", &[&format!("{group}/below"), &group]);
}

/// Pinned to the CPU of a task with a real-time priority, and stopped before the observation.
#[test]
fn what_lasts_from_before_the_observation_to_its_end_has_its_cause() {
    if !is_root() {
        return skip("gaps need BPF, and this is not root");
    }
    let host = LiveHost::new().expect("this host");
    let cpu = host.affinity(Tid(0)).expect("a mask").first().expect("a CPU").to_string();
    let (victim, hog) = (Spinner::new(&cpu), Spinner::new(&cpu));
    let pid = victim.pid();
    let words = ["measure", "gaps", "--process", &pid, "--seconds", "0.3", "--json"];
    run("kill", &["-STOP", &pid]);
    let output = Sandbox::with_cache().run(&words);
    run("kill", &["-CONT", &pid]);
    if output.status.code() == Some(3) {
        return skip(output.stderr_text());
    }
    let warning = format!("1 of 1 thread is stopped (a signal or a debugger): `kill -CONT {pid}`");
    assert!(output.stderr_text().contains(&warning), "{}", output.stderr_text());
    let gaps = output.expect_success().json()["found"][0]["gaps"].clone();
    assert_eq!(gaps[0]["is_open"], true, "{gaps}");
    assert_eq!((&gaps[0]["at_ns"], &gaps[0]["cause"]), (&0.into(), &"stopped".into()), "{gaps}");
    let priority = ["--fifo", "--pid", "50", &hog.pid()].map(str::to_owned);
    let set = process::capture("chrt", &priority, TIMEOUT_NS).expect("chrt");
    if !set.status.success() {
        return skip(set.stderr_text());
    }
    // Once a second the kernel lets other tasks run; between these times the hog runs.
    let end = SystemClock.now_ns() + TIMEOUT_NS;
    loop {
        let reported = Sandbox::with_cache().run(&words).expect_success().json();
        let gaps = reported["found"][0]["gaps"].as_array().expect("gaps").clone();
        let open = gaps.iter().find(|gap| gap["is_open"] == true && gap["cause"] == "thread");
        if let Some(open) = open {
            let cause = &open["parts"][0]["cause"];
            assert_eq!((&cause["tid"], &cause["policy"]), (&hog.0.id().into(), &"fifo:50".into()));
            return;
        }
        assert!(SystemClock.now_ns() < end, "the hog runs at no end: {reported}");
    }
}

/// A record without its last line, one that is none, and one of other options.
fn cut_off(sandbox: &Sandbox, file: &str) {
    let text = files::read_text(file).expect("the record");
    for (words, part) in [
        (["--record", file, "--process", "1"], "os error 17"),
        (["--from", file, "--process", "1"], "--from shows a record, and observes nothing"),
        (["--from", file, "--over", "500us"], "has gaps from 1.00 ms on only"),
    ] {
        let output = pinfold([&["measure", "gaps"][..], &words].concat());
        assert_eq!(output.status.code(), Some(2), "{}", output.stderr_text());
        assert!(output.stderr_text().contains(part), "{part}: {}", output.stderr_text());
    }
    let words = ["measure", "gaps", "--from", file, "--over", "10s"];
    let longer = pinfold(words).expect_success().stdout_text();
    assert!(longer.contains("0 gaps of at least 10.0 s in "), "{longer}");
    let bad = sandbox.path("bad.jsonl");
    let (first, _) = text.split_once('\n').expect("lines");
    for (text, why) in [(first, "truncated"), ("{\"format\":\"pinfold-gaps/7\"}", "pinfold-gaps/7")]
    {
        files::write_atomic(&bad, text.as_bytes()).expect("a file");
        let output = pinfold(["measure", "gaps", "--from", &bad]);
        assert_eq!(output.status.code(), Some(2), "{}", output.stderr_text());
        assert!(output.stderr_text().contains(why), "{}", output.stderr_text());
    }
    assert!(files::exists(&paths::cpu_online()), "the host is as it was");
}
