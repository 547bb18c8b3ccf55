//! `pinfold watch` on real QEMUs of this test's own.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use crate::common::{Checked as _, PINFOLD, SECOND_NS, Sandbox};
use pinfold_host::process::{Child, Output, Signaled, Spawn, Stdio, capture, find_program, signal};
use pinfold_host::{
    Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, files, mountinfo, paths,
};
use pinfold_model::{CpuSet, Tid};
use pinfold_vm::qemu::{Qmp, QmpTransport as _};
use serde_json::{Value, json};

/// More than any of this takes; a watch that does nothing fails by it.
const PATIENCE_NS: u64 = 60 * SECOND_NS;

struct TestMachine {
    folder: tempfile::TempDir,
    host: LiveHost,
    qemu: Child,
}

impl TestMachine {
    /// A stopped QEMU with one vCPU of two, placed for two; `None` where there is no QEMU.
    fn new() -> Option<Self> {
        find_program("qemu-system-x86_64")?;
        let folder = tempfile::tempdir().expect("a folder");
        let monitor =
            |name: &str| format!("unix:{}/{name},server=on,wait=off", folder.path().display());
        let line = "-S -M q35 -accel tcg,thread=multi -display none -nodefaults -m 64M -cpu qemu64 -smp 1,maxcpus=2 -name guest=t,debug-threads=on";
        let qemu = Spawn::new("qemu-system-x86_64")
            .args(line.split(' '))
            .args(["-qmp", &monitor("qmp"), "-qmp", &monitor("other")])
            .stdin(Stdio::Null)
            .die_with_parent(true)
            .start()
            .expect("QEMU starts");
        let scene = Self { folder, host: LiveHost::new().expect("a host"), qemu };
        wait("QEMU's socket", || files::exists(&scene.file("other")).then_some(()));
        files::StateDir::open(&scene.file("own")).expect("a private directory");
        Some(scene)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn pinfold(&self, arguments: &[&str]) -> Output {
        let state = self.file("state");
        let words = [&["--state-dir", &state], arguments].concat();
        capture(PINFOLD, words, PATIENCE_NS).expect("pinfold runs")
    }

    /// Starts to watch; what it prints goes into a file.
    fn watch(&self) -> Child {
        let (state, metrics) = (self.file("state"), self.file("own/metrics"));
        let line = "exec \"$@\" >\"$0\" 2>&1";
        if files::exists(&self.file("told")) {
            files::remove(&self.file("told")).expect("what an earlier one told is forgotten");
        }
        let child = Spawn::new("sh")
            .args(["-c", line, &self.file("told"), PINFOLD, "--state-dir", &state, "watch"])
            .args(["--json", "--metrics", &metrics, "--qmp", &self.file("other")])
            .stdin(Stdio::Null)
            .die_with_parent(true)
            .start()
            .expect("pinfold starts");
        self.reported("watching");
        child
    }

    fn reported(&self, words: &str) {
        let until = SystemClock.now_ns() + PATIENCE_NS;
        loop {
            let text = files::read_text(&self.file("told")).unwrap_or_default();
            if text.contains(words) {
                return;
            }
            assert!(SystemClock.now_ns() < until, "waited in vain for {words} in:\n{text}");
            SystemClock.sleep_ns(SECOND_NS / 50);
        }
    }

    fn thread(&self, name: &str) -> Option<Tid> {
        let tids = self.host.list(&paths::task_dir(self.qemu.pid())).ok()?;
        let of_name = |tid: &Tid| {
            let stat = self.host.read_text(&paths::process_stat(*tid)).unwrap_or_default();
            stat.contains(&format!("({name})"))
        };
        tids.iter().filter_map(|tid| tid.parse().ok().map(Tid)).find(of_name)
    }

    fn mask(&self, tid: Tid) -> CpuSet {
        self.host.affinity(tid).expect("a mask")
    }

    fn metrics(&self) -> String {
        let mut stream = UnixStream::connect(self.file("own/metrics")).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("asked");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        text
    }

    /// A plan for so many vCPUs, each on CPUs of its own if there are enough.
    fn plan(&self, vcpus: &str) -> String {
        let words = ["plan", "--strategy", "compact", "--vcpus", vcpus, "--name", "t", "--json"];
        let made = self.pinfold(&words).expect_success();
        let file = self.file("plan.json");
        files::write_atomic(&file, made.stdout_text().as_bytes()).expect("written");
        file
    }

    fn apply(&self) {
        let plan = self.plan("1");
        self.pinfold(&["apply", "--qmp", &self.file("qmp"), "--plan", &plan]).expect_success();
    }
}

fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = SystemClock.now_ns() + PATIENCE_NS;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(SystemClock.now_ns() < until, "waited in vain for {what}");
        SystemClock.sleep_ns(SECOND_NS / 50);
    }
}

/// The vCPU that was plugged in has no mask to drift from.
fn is_outside_the_plan(scene: &TestMachine, shown: &str) {
    let row = shown.lines().find(|line| line.trim_start().starts_with("vcpu(1) "));
    assert!(row.is_some_and(|row| row.contains(" none ") && !row.contains("DRIFTED")), "{shown}");
    let json = scene.pinfold(&["status", "--json"]).stdout_text();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let roles = json["in_force"][0]["roles"].as_array().expect("roles");
    let plugged = roles.iter().find(|role| role["role"] == "vcpu(1)").expect("the new vCPU");
    assert!(plugged["planned"].is_null() && plugged["ok"] == false, "{plugged}");
}

/// A plan that replaces the watched one is watched from then on.
fn follows_another_plan(scene: &TestMachine, vcpu: Tid, cpus: &CpuSet) {
    let before = scene.mask(vcpu);
    let (socket, pin) = (scene.file("qmp"), format!("vcpu={cpus}"));
    let words = ["apply", "--qmp", &socket, "--strategy", "compact", "--pin", &pin];
    scene.pinfold(&words).expect_success();
    assert_eq!(scene.mask(vcpu), *cpus);
    scene.host.set_affinity(vcpu, &before).expect("moved");
    wait("the mask of the new plan", || (scene.mask(vcpu) == *cpus).then_some(()));
}

#[test]
fn drift_is_put_back_hot_plug_is_followed_and_undo_works_next_to_it() {
    let Some(scene) = TestMachine::new() else {
        println!("skipped: qemu-system-x86_64 is not installed");
        return;
    };
    let vcpu = wait("the vCPU", || scene.thread("CPU 0/TCG"));
    let before = scene.mask(vcpu);
    if before.len() < 2 {
        println!("skipped: with one CPU nothing can be moved");
        return;
    }
    let watch = scene.watch();
    // It comes after the watch has begun.
    scene.apply();
    let planned = scene.mask(vcpu);
    wait("the placement", || scene.metrics().contains("placements 1").then_some(()));
    let elsewhere = match before.difference(&planned) {
        rest if rest.is_empty() => before.iter().take(1).collect(),
        rest => rest,
    };
    scene.host.set_affinity(vcpu, &elsewhere).expect("moved");
    scene.reported("\"event\":\"restored\"");
    assert_eq!(scene.mask(vcpu), planned);
    assert!(scene.metrics().contains("restored_total{id="), "{}", scene.metrics());

    follows_another_plan(&scene, vcpu, &elsewhere);
    scene.apply();
    assert_eq!(scene.mask(vcpu), planned);

    let second = scene.pinfold(&["watch"]);
    assert_eq!(second.status.code(), Some(3));
    assert!(second.stderr_text().contains("kill -HUP"), "{}", second.stderr_text());

    let mut qmp = Qmp::connect(&scene.file("qmp"), 60 * SECOND_NS, SystemClock).expect("QMP");
    let plug = json!({"driver": "qemu64-x86_64-cpu", "id": "c1", "socket-id": 1, "core-id": 0, "thread-id": 0});
    plug_in(&mut qmp, plug);
    let one = json!({"qom-type": "iothread", "id": "io7"});
    qmp.execute("object-add", Some(one)).expect("an iothread");
    scene.reported("vcpu(1) (thread");
    scene.reported("iothread(io7)");
    scene.reported("is not in the plan");
    let reported = files::read_text(&scene.file("told")).expect("text");
    assert!(
        reported.contains("\"found\":\"CPUs ") && reported.contains("\"who\":\""),
        "{reported}"
    );

    signal(watch.pid(), Signaled::Terminate).expect("asked to end");
    wait("its end", || {
        (!scene.host.exists(&paths::process_stat(watch.pid()))
            || !files::exists(&scene.file("own/metrics")))
        .then_some(())
    });
    assert_eq!(scene.mask(vcpu), planned, "the placement stays");
    let status = scene.pinfold(&["status"]);
    assert_eq!(status.status.code(), Some(1), "a vCPU without a place is drift");
    let shown = status.stdout_text();
    assert!(shown.contains("vcpu(1) (thread") && shown.contains("not in the plan"), "{shown}");
    is_outside_the_plan(&scene, &shown);
    let _again = scene.watch();
    scene.pinfold(&["undo"]).expect_success();
    assert_eq!(scene.mask(vcpu), before);
    wait("its notice", || scene.metrics().contains("placements 0").then_some(()));
    assert_eq!(scene.mask(vcpu), before, "what was taken back is not put there again");
}

/// A cpuset group of this test's own; it goes away with this value.
struct Group {
    host: LiveHost,
    path: String,
    root: String,
}

impl Group {
    /// One with all CPUs, or why there can be none here.
    fn make() -> Result<Self, String> {
        let host = LiveHost::new().map_err(|error| error.to_string())?;
        let found = mountinfo::controller(&host, "cpuset").map_err(|error| error.to_string())?;
        let Some(found) = found.filter(|found| found.version == mountinfo::Version::V1) else {
            return Err("no cpuset hierarchy of cgroup v1".to_owned());
        };
        let root = found.mount.path;
        let path = format!("{root}/pinfold-watch-test-{}", pinfold_host::process::own_pid());
        host.make_dir(&path).map_err(|error| error.to_string())?;
        let group = Self { host, path, root };
        for file in ["cpuset.mems", "cpuset.cpus"] {
            let value = group.host.read(&format!("{}/{file}", group.root));
            let value = value.expect("a list");
            group.host.write(&format!("{}/{file}", group.path), &value).expect("written");
        }
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its members are killed before; the kernel takes a moment to forget them.
        for _ in 0..250 {
            if self.host.remove_dir(&self.path).is_ok() {
                return;
            }
            SystemClock.sleep_ns(SECOND_NS / 50);
        }
    }
}

#[test]
fn a_write_to_the_machines_group_is_reported_with_what_and_since_when() {
    let group = match Group::make() {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let Some(scene) = TestMachine::new() else {
        println!("skipped: qemu-system-x86_64 is not installed");
        return;
    };
    wait("the vCPU", || scene.thread("CPU 0/TCG"));
    let procs = paths::cgroup_procs(&group.path);
    scene.host.write(&procs, scene.qemu.pid().to_string().as_bytes()).expect("moved");
    scene.apply();
    let _watch = scene.watch();
    wait("the placement", || scene.metrics().contains("placements 1").then_some(()));
    let file = paths::cpuset_cpus(&group.path);
    let all = scene.host.read_text(&file).expect("a list");
    let first = CpuSet::parse_list(&all).expect("a list").iter().take(1).collect::<CpuSet>();
    if first.to_string() == all.trim() {
        println!("skipped: with one CPU a group cannot be narrowed");
        return;
    }
    scene.host.write(&file, first.to_string().as_bytes()).expect("narrowed");
    scene.reported("\"event\":\"groups\"");
    let reported = files::read_text(&scene.file("told")).expect("text");
    let line = reported.lines().find(|line| line.contains("\"event\":\"groups\"")).expect("a line");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(
        (line["what"].as_str(), line["found"].as_str()),
        (Some(file.as_str()), Some(&*first.to_string()))
    );
    assert!(line["who"].is_string() && line["after_unix_s"].as_u64() <= line["unix_s"].as_u64());
    wait("the count", || scene.metrics().contains("_groups_total{id=").then_some(()));
}

/// A socket of metrics is made in a private directory that exists, and nowhere else.
#[test]
fn a_socket_of_metrics_needs_a_private_directory() {
    let sandbox = Sandbox::new();
    let watch = |socket: &str| {
        let words = ["--state-dir", &sandbox.path("state"), "watch", "--metrics", socket];
        capture(PINFOLD, words, PATIENCE_NS).expect("pinfold runs")
    };
    let said = watch(&sandbox.path("none/metrics")).expect_code(2);
    assert!(said.contains("there is no directory") && said.contains("install -d -m 700"), "{said}");
    assert!(!files::exists(&sandbox.path("none")));
    let open = sandbox.path("open");
    files::StateDir::open(&open).expect("a directory");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    watch(&sandbox.path("open/metrics")).expect_code(3);
    assert!(!files::exists(&sandbox.path("open/metrics")));
}

fn plug_in(qmp: &mut Qmp, mut device: Value) {
    // Sockets or cores: older and newer machines count a second vCPU differently.
    let slots = qmp.execute("query-hotpluggable-cpus", None).expect("slots");
    let free = slots
        .as_array()
        .and_then(|slots| slots.iter().find(|slot| slot.get("qom-path").is_none()).cloned())
        .expect("a free slot");
    for (key, value) in free["props"].as_object().expect("props") {
        device[key] = value.clone();
    }
    device["driver"] = free["type"].clone();
    qmp.execute("device_add", Some(device)).expect("a vCPU");
}

#[test]
fn the_end_of_a_machine_is_reported_and_the_watch_goes_on() {
    let Some(scene) = TestMachine::new() else {
        println!("skipped: qemu-system-x86_64 is not installed");
        return;
    };
    wait("the vCPU", || scene.thread("CPU 0/TCG"));
    scene.apply();
    let watch = scene.watch();
    wait("the placement", || scene.metrics().contains("placements 1").then_some(()));
    assert!(
        capture("kill", ["-HUP", &watch.pid().to_string()], SECOND_NS)
            .expect("runs")
            .status
            .success()
    );
    scene.reported("reading everything again");
    wait("the placement", || scene.metrics().contains("placements 1").then_some(()));
    signal(scene.qemu.pid(), Signaled::Kill).expect("killed");
    scene.reported("\"event\":\"ended\"");
    assert!(scene.metrics().contains("placements 0"));
}
