//! `pinfold watch` on real QEMUs of this test's own.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::machine::{Machine, QEMU, list_threads, start_quietly};
use crate::common::{Checked as _, SECOND_NS, Sandbox, run, skip, until};
use pinfold_host::process::{Child, Signaled, Spawn, signal};
use pinfold_host::{
    Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, files, mountinfo, paths,
};
use pinfold_model::text::{cpus_text, pus_text};
use pinfold_model::{CpuSet, Tid};
use pinfold_vm::qemu::{Qmp, QmpTransport as _};
use serde_json::{Value, json};

struct TestMachine(Machine);

impl Deref for TestMachine {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.0
    }
}

impl TestMachine {
    /// A stopped QEMU with one vCPU of three; `None` where there is no QEMU.
    fn new() -> Option<Self> {
        Self::new_in(Sandbox::new())
    }

    fn new_in(sandbox: Sandbox) -> Option<Self> {
        let other = format!("unix:{},server=on,wait=off", sandbox.path("other"));
        let options = format!("-cpu qemu64 -smp 1,maxcpus=3 -qmp {other}");
        let scene = Self(Machine::new_in(sandbox, &options)?);
        files::StateDir::open(&scene.path("own")).expect("a private directory");
        Some(scene)
    }

    /// Starts to watch; what it prints goes into a file.
    fn watch(&self) -> Child {
        self.watch_with(&[])
    }

    /// With these options, such as the machine that is watched.
    fn watch_with(&self, options: &[&str]) -> Child {
        if files::exists(&self.path("said")) {
            files::remove(&self.path("said")).expect("what an earlier one told is forgotten");
        }
        let (metrics, other) = (self.path("own/metrics"), self.path("other"));
        let words = ["watch", "--json", "--metrics", &metrics, "--qmp", &other];
        let child = self.start_logged(&[&words[..], options].concat());
        self.reported("watching");
        child
    }

    fn reported(&self, words: &str) {
        assert!(
            until(|| self.said_text().contains(words)),
            "waited in vain for {words} in:\n{}",
            self.said_text()
        );
    }

    /// The last event whose sentence has these words.
    fn event(&self, words: &str) -> Value {
        let said = self.said_text();
        let events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut own = events.filter(|it| it["text"].as_str().is_some_and(|it| it.contains(words)));
        own.next_back().expect("the event was reported")
    }

    fn said_text(&self) -> String {
        files::read_text(&self.path("said")).unwrap_or_default()
    }

    fn vcpu(&self) -> Tid {
        self.thread("CPU 0/").expect("a vCPU")
    }

    fn mask(&self, tid: Tid) -> CpuSet {
        self.host.affinity(tid).expect("a mask")
    }

    /// Waits until the metrics have this text.
    fn counted(&self, text: &str) {
        assert!(until(|| self.metrics().contains(text)), "{text}: {}", self.metrics());
    }

    fn metrics(&self) -> String {
        let mut stream = UnixStream::connect(self.path("own/metrics")).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("asked");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        text
    }

    fn apply(&self) {
        let words = ["plan", "--strategy", "compact", "--vcpus", "1", "--name"];
        let plan = self.print(&[&words[..], &[&self.name, "--json"]].concat());
        let plan = self.write("plan.json", plan);
        self.print(&["apply", "--qmp", &self.qmp(), "--plan", &plan]);
    }
}

/// A vCPU that was plugged in while nothing watched has no mask to drift from.
fn is_outside_the_plan(scene: &TestMachine, vcpu: &str) {
    let status = scene.run(&["status"]);
    assert_eq!(status.status.code(), Some(1), "a vCPU without a place is drift");
    let shown = status.stdout_text();
    assert!(shown.contains(&format!("{vcpu} (thread")), "{shown}");
    assert!(shown.contains("not in the plan"), "{shown}");
    let row = shown.lines().find(|line| line.trim_start().starts_with(&format!("{vcpu} ")));
    assert!(row.is_some_and(|row| row.contains(" none ") && !row.contains("DRIFTED")), "{shown}");
    let json = scene.run(&["status", "--json"]).json();
    let roles = json["in_force"][0]["roles"].as_array().expect("roles");
    let plugged = roles.iter().find(|role| role["role"] == vcpu).expect("the new vCPU");
    assert!(plugged["planned"].is_null() && plugged["ok"] == false, "{plugged}");
}

/// The masks of all threads of the machine.
fn masks(scene: &TestMachine) -> BTreeMap<Tid, CpuSet> {
    let threads = scene.host.list(&paths::task_dir(scene.qemu.pid())).expect("threads");
    let threads = threads.iter().filter_map(|name| name.parse().ok().map(Tid));
    threads.map(|tid| (tid, scene.mask(tid))).collect()
}

/// vCPUs and iothreads that come and go get a place of the machine's strategy and give it back.
/// Returns the CPU of the new vCPU.
fn grows_and_shrinks(scene: &TestMachine, vcpu: Tid) -> CpuSet {
    let planned = scene.mask(vcpu);
    let mut qmp = scene.connect();
    plug_in(&mut qmp, json!({"id": "c1"}));
    scene.reported("new plan: vcpu(1) was added and has CPU");
    let second = scene.thread("CPU 1/").expect("the new vCPU");
    let own = scene.mask(second);
    assert_eq!((own.len(), own.is_disjoint(&planned)), (1, true), "a CPU of its own: {own}");
    assert_eq!(scene.mask(vcpu), planned, "nothing else is moved");
    qmp.execute("object-add", Some(json!({"qom-type": "iothread", "id": "io7"}))).expect("one");
    scene.reported("iothread(io7) was added");
    scene.run(&["status"]).expect_success();
    assert!(scene.run(&["status"]).stdout_text().contains("iothread(io7)"));
    scene.counted("_replanned_total{id=");

    qmp.execute("object-del", Some(json!({"id": "io7"}))).expect("it ends");
    scene.reported("iothread(io7) was removed");
    let status = scene.run(&["status"]).expect_success().stdout_text();
    assert!(!status.contains("io7") && status.contains("vcpu(1)"), "{status}");
    own
}

/// Unplugs a vCPU and plays the guest that releases it, through the registers of QEMU's
/// docs/specs/acpi_cpu_hotplug: the number of the CPU, then the command. The first write switches
/// from the old interface, which cannot unplug.
fn eject(qmp: &mut Qmp, vcpu: u32) {
    write_hmp("b 0xcd8 0".to_owned(), qmp);
    write_hmp(format!("w 0xcd8 {vcpu}"), qmp);
    let id = json!({"id": format!("c{vcpu}")});
    qmp.execute("device_del", Some(id)).expect("the guest is asked");
    let line = json!({"command-line": "o/b 0xcdc 8"});
    qmp.execute("human-monitor-command", Some(line)).expect("HMP");
}

fn write_hmp(words: String, qmp: &mut Qmp) {
    let line = json!({"command-line": format!("o/{words}")});
    qmp.execute("human-monitor-command", Some(line)).expect("HMP");
}

/// A plan that replaces the watched one is watched from then on.
fn follows_another_plan(scene: &TestMachine, vcpu: Tid, cpus: &CpuSet) {
    let before = scene.mask(vcpu);
    let (socket, pin) = (scene.qmp(), format!("vcpu={cpus}"));
    let words = ["apply", "--qmp", &socket, "--strategy", "compact", "--pin", &pin];
    scene.run(&words).expect_success();
    assert_eq!(scene.mask(vcpu), *cpus);
    scene.host.set_affinity(vcpu, &before).expect("moved");
    assert!(until(|| scene.mask(vcpu) == *cpus), "the mask of the new plan");
}

#[test]
fn apply_watch_restores_or_reports_a_moved_thread() {
    let Some(scene) = TestMachine::new() else { return };
    let vcpu = scene.vcpu();
    let before = scene.mask(vcpu);
    if before.len() < 2 {
        return skip("with one CPU nothing can be moved");
    }
    let cpus: Vec<CpuSet> = before.iter().take(2).map(CpuSet::single).collect();
    let (pin, socket) = (format!("vcpu={}", cpus[0]), scene.qmp());
    let words = ["apply", "--qmp", &socket, "-s", "compact", "--pin", &pin, "--watch", "--drift"];
    for (action, sentence, after, status) in
        [("restore", "affinity was changed", &cpus[0], 0), ("report", "stays there", &cpus[1], 1)]
    {
        let mut child = scene.start_logged(&[&words[..], &[action]].concat());
        scene.reported("watching;");
        assert_eq!(scene.mask(vcpu), cpus[0]);
        scene.host.set_affinity(vcpu, &cpus[1]).expect("moved");
        scene.reported(sentence);
        assert_eq!(scene.mask(vcpu), *after);
        // The plan does not follow a change that is only reported.
        scene.run(&["status"]).expect_code(status);
        scene.host.set_affinity(vcpu, &cpus[0]).expect("moved");
        child.signal(Signaled::Interrupt).expect("it runs");
        child.wait().expect("it ends");
        assert_eq!(scene.mask(vcpu), before);
        files::remove(&scene.path("said")).expect("what it told is forgotten");
    }
    scene.refuse(&["apply", "--drift", "report", "--qmp", &socket], 2, "--watch");
}

#[test]
fn drift_is_put_back_hot_plug_is_followed_and_undo_works_next_to_it() {
    let Some(scene) = TestMachine::new() else { return };
    let vcpu = scene.vcpu();
    let before = scene.mask(vcpu);
    if before.len() < 2 {
        return skip("with one CPU nothing can be moved");
    }
    let watch = scene.watch_with(&["--drift", "restore"]);
    // It comes after the watch has begun.
    scene.apply();
    let planned = scene.mask(vcpu);
    scene.counted("placements 1");
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

    let second = scene.run(&["watch"]);
    assert_eq!(second.status.code(), Some(3));
    assert!(second.stderr_text().contains("kill -HUP"), "{}", second.stderr_text());

    let own = grows_and_shrinks(&scene, vcpu);
    let reported = scene.read("said");
    assert!(reported.contains("\"found\":\"CPU") && reported.contains("\"who\":\""), "{reported}");

    signal(watch.pid(), Signaled::Terminate).expect("asked to end");
    assert!(
        until(|| !scene.host.exists(&paths::process_stat(watch.pid()))
            || !files::exists(&scene.path("own/metrics"))),
        "its end"
    );
    assert_eq!(scene.mask(vcpu), planned, "the placement stays");
    plug_in(&mut scene.connect(), json!({"id": "c2"}));
    is_outside_the_plan(&scene, "vcpu(2)");
    let _again = scene.watch();
    scene.reported("vcpu(2) was added");
    scene.run(&["status"]).expect_success();
    // QEMU 7.2 with TCG ends at the next `device_add` after this.
    eject(&mut scene.connect(), 1);
    // Where there was no CPU for the third vCPU, that stays there.
    let added = format!("vcpu(2) was added and has CPU {own}, which it shares with vcpu(1)");
    let is_shared = scene.said_text().contains(&added);
    let released = if is_shared { String::new() } else { format!(", which releases CPU {own}") };
    scene.reported(&format!("new plan: vcpu(1) was removed{released}\""));
    assert!(!scene.run(&["status"]).expect_success().stdout_text().contains("vcpu(1)"));
    scene.run(&["undo"]).expect_success();
    assert!(masks(&scene).values().all(|mask| *mask == before), "{:?}", masks(&scene));
    scene.counted("placements 0");
    scene.reported("the placement was undone, and is no longer watched");
    assert_eq!(scene.mask(vcpu), before, "what was taken back is not put there again");
}

/// The number of groups that were made.
static MADE: AtomicUsize = AtomicUsize::new(0);

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
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let own = pinfold_host::process::own_pid();
        let path = format!("{root}/pinfold-watch-test-{own}-{number}");
        Self::make_at(host, path, root)
    }

    /// One in it, as libvirt makes one for the threads of a role, with these threads.
    fn with_threads(&self, name: &str, threads: &[Tid]) -> Self {
        let host = LiveHost::new().expect("a host");
        let path = format!("{}/{name}", self.path);
        let group = Self::make_at(host, path, self.root.clone()).expect("a group");
        for tid in threads {
            let file = paths::cgroup_tasks(&group.path);
            group.host.write(&file, tid.to_string().as_bytes()).expect("moved");
        }
        group
    }

    /// What libvirt does for a pin: it writes the list of the group, then the mask of a thread.
    fn pin(&self, tid: Tid, cpus: &CpuSet) {
        let file = paths::cpuset_cpus(&self.path);
        self.host.write(&file, cpus.to_string().as_bytes()).expect("written");
        self.host.set_affinity(tid, cpus).expect("a mask");
    }

    fn make_at(host: LiveHost, path: String, root: String) -> Result<Self, String> {
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
        Err(why) => return skip(why),
    };
    let Some(scene) = TestMachine::new() else { return };
    let procs = paths::cgroup_procs(&group.path);
    scene.host.write(&procs, scene.qemu.pid().to_string().as_bytes()).expect("moved");
    scene.apply();
    let _watch = scene.watch();
    scene.counted("placements 1");
    let file = paths::cpuset_cpus(&group.path);
    let all = scene.host.read_text(&file).expect("a list");
    let first = CpuSet::parse_list(&all).expect("a list").iter().take(1).collect::<CpuSet>();
    if first.to_string() == all.trim() {
        return skip("with one CPU a group cannot be narrowed");
    }
    scene.host.write(&file, first.to_string().as_bytes()).expect("narrowed");
    scene.reported("\"event\":\"groups\"");
    let reported = scene.read("said");
    let line = reported.lines().find(|line| line.contains("\"event\":\"groups\"")).expect("a line");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(
        (line["what"].as_str(), line["found"].as_str()),
        (Some(file.as_str()), Some(&*first.to_string()))
    );
    assert!(line["who"].is_string() && line["after_unix_s"].as_u64() <= line["unix_s"].as_u64());
    scene.counted("_groups_total{id=");
}

/// libvirt keeps the threads of each role of a domain in a cpuset, and writes pins there.
#[test]
fn a_pin_in_a_cpuset_of_libvirt_moves_the_thread_and_the_plan() {
    let group = match Group::make() {
        Ok(group) => group,
        Err(why) => return skip(why),
    };
    let mut below = Vec::new();
    let Some(scene) = TestMachine::new() else { return };
    let (vcpu, main) = (scene.vcpu(), scene.qemu.pid());
    let threads = list_threads(&scene.host, main);
    let others: Vec<Tid> = threads.into_iter().filter(|tid| *tid != vcpu).collect();
    below.push(group.with_threads("vcpu0", &[vcpu]));
    below.push(group.with_threads("emulator", &others));
    let all = scene.mask(vcpu);
    if all.len() < 2 {
        return skip("with one CPU nothing can be moved");
    }
    scene.apply();
    let watch = scene.watch();
    scene.counted("placements 1");
    let count = |kind: &str| {
        let said = scene.said_text();
        let text = format!("\"event\":\"{kind}\"");
        said.lines().filter(|line| line.contains(&text)).count()
    };
    for (group, tid, role) in [(&below[0], vcpu, "vcpu(0)"), (&below[1], main, "emulator")] {
        let planned = scene.mask(tid);
        let cpus = match all.difference(&planned) {
            none if none.is_empty() => planned.iter().take(1).collect::<CpuSet>(),
            others => others.iter().take(1).collect(),
        };
        let (moved, planned_again) = (count("yielded"), count("replanned"));
        group.pin(tid, &cpus);
        scene.reported(&format!("{role} stays on {}, where its owner moved it", pus_text(&cpus)));
        let label = format!("{role} to {cpus}:\n{}", scene.said_text());
        assert_eq!(
            (count("yielded"), count("replanned")),
            (moved + 1, planned_again + 1),
            "{label}"
        );
        assert_eq!(count("groups"), 0, "{label}");
        assert!(!scene.said_text().contains("its cpuset has only"), "{label}");
        assert_eq!(scene.mask(tid), cpus, "{label}");
        let status = scene.run(&["status"]).expect_success().stdout_text();
        assert!(!status.contains("DRIFTED"), "{status}");
    }
    // A pin of the plan, as `apply` sets it through libvirt, is no news.
    below[0].pin(vcpu, &scene.mask(vcpu));
    signal(watch.pid(), Signaled::Terminate).expect("asked to end");
    scene.run(&["undo"]).expect_success();
    drop(scene);
    below.clear();
}

/// A socket of metrics is made in a private directory that exists, and nowhere else.
#[test]
fn a_socket_of_metrics_needs_a_private_directory() {
    let sandbox = Sandbox::new();
    let watch = |socket: &str| sandbox.run(&["watch", "--metrics", socket]);
    let said = watch("").expect_code(2);
    assert!(said.contains("--metrics: the path is empty"), "{said}");
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
    // The lowest free slot is the last one. Sockets or cores: older and newer machines count a second vCPU differently.
    let slots = qmp.execute("query-hotpluggable-cpus", None).expect("slots");
    let free = slots
        .as_array()
        .and_then(|slots| slots.iter().rfind(|slot| slot.get("qom-path").is_none()).cloned())
        .expect("a free slot");
    for (key, value) in free["props"].as_object().expect("props") {
        device[key] = value.clone();
    }
    device["driver"] = free["type"].clone();
    qmp.execute("device_add", Some(device)).expect("a vCPU");
}

#[test]
fn the_end_of_a_machine_is_reported_and_the_watch_goes_on() {
    let Some(scene) = TestMachine::new() else { return };
    scene.apply();
    let watch = scene.watch();
    scene.counted("placements 1");
    run("kill", ["-HUP", &watch.pid().to_string()]).expect_success();
    scene.reported("reloading all placements");
    scene.counted("placements 1");
    signal(scene.qemu.pid(), Signaled::Kill).expect("killed");
    scene.reported("\"event\":\"ended\"");
    assert!(scene.metrics().contains("placements 0"));
}

/// Who moves a thread wins at once, and the plan follows.
#[test]
fn a_change_by_another_program_stays_and_the_plan_follows() {
    let Some(scene) = TestMachine::new() else { return };
    let vcpu = scene.vcpu();
    let before = scene.mask(vcpu);
    if before.len() < 2 {
        return skip("with one CPU nothing can be moved");
    }
    scene.apply();
    let planned = scene.mask(vcpu);
    let _watch = scene.watch_with(&[scene.name.as_str()]);
    let elsewhere = before.difference(&planned);
    let main = scene.qemu.pid();
    scene.host.set_affinity(main, &before).expect("moved");
    scene.host.set_affinity(vcpu, &elsewhere).expect("moved");
    scene.reported("\"event\":\"yielded\"");
    scene.reported(&format!("vcpu(0) stays on {}", pus_text(&elsewhere)));
    scene.reported(&format!("thread {main} (emulator) stays on {}", pus_text(&before)));
    assert_eq!((scene.mask(vcpu), scene.mask(main)), (elsewhere.clone(), before.clone()));
    scene.counted("_yielded_total{id=");
    scene.run(&["status"]).expect_success();
    // A new vCPU keeps clear of it.
    plug_in(&mut scene.connect(), json!({"id": "c1"}));
    scene.reported(&format!("vcpu(1) was added and has {}", pus_text(&planned)));
    assert_eq!((scene.mask(vcpu), scene.mask(main)), (elsewhere.clone(), before.clone()));
    scene.run(&["status"]).expect_success();
    assert!(!scene.read("said").contains("\"restored\""), "{}", scene.read("said"));
    // The next change came after the new plan, not after the last comparison with the old one.
    let planned_at = scene.event("vcpu(1) was added")["unix_s"].as_u64();
    scene.host.set_affinity(vcpu, &before).expect("moved");
    scene.reported(&format!("vcpu(0) stays on {}", pus_text(&before)));
    let moved = scene.event(&format!("(vcpu(0)): its owner moved it to {}", cpus_text(&before)));
    assert!(planned_at.is_some() && moved["after_unix_s"].as_u64() >= planned_at, "{moved}");
    let undo = scene.run(&["undo"]).expect_success();
    assert_eq!(scene.mask(vcpu), before, "its owner's: {}", undo.stderr_text());
    let others = masks(&scene).into_iter().filter(|(tid, _)| *tid != vcpu);
    others.for_each(|(tid, mask)| assert_eq!(mask, before, "{tid}"));
}

#[test]
fn one_machine_or_all_are_watched() {
    let Some(scene) = TestMachine::new() else { return };
    let said = scene.run(&["watch", "nonesuch"]).expect_code(2);
    assert!(said.contains("no active placement with the ID or of the machine nonesuch"), "{said}");
    scene.run(&["watch", "nonesuch", "--all"]).expect_code(2);
    scene.apply();
    let said = scene.run(&["watch", "nonesuch"]).expect_code(2);
    assert!(said.contains("`pinfold status` lists them") || said.contains("status"), "{said}");
    let mut group = scene.start_logged(&["run", "--cores", "1", "--", "sleep", "60"]);
    let status = || scene.run(&["status"]).stdout_text();
    let is_active = until(|| status().contains("2 placements are active"));
    assert!(is_active, "{}\n{}", scene.read("said"), status());
    let text = ", monitored by a running Pinfold process";
    assert_eq!(status().matches(text).count(), 1, "the group's own: {}", status());
    let watch = scene.watch_with(&[&scene.pid()]);
    scene.reported("watching 1 placement;");
    scene.counted("placements 1");
    assert!(until(|| status().matches(text).count() == 2), "the watched one too: {}", status());
    signal(watch.pid(), Signaled::Terminate).expect("asked to end");
    assert!(until(|| !files::exists(&scene.path("own/metrics"))), "its end");
    let _all = scene.watch_with(&["--all"]);
    scene.reported("watching 2 placements;");
    scene.counted("placements 2");
    // It removes its cgroup. After a kill the cgroup would stay: its state is in a temporary folder.
    signal(group.pid(), Signaled::Terminate).expect("asked to end");
    assert!(until(|| group.try_wait().expect("its state").is_some()), "its end");
}

/// A CPU that two placements use is reported while that lasts.
#[test]
fn a_cpu_that_is_used_twice_is_reported_when_it_begins_and_when_it_ends() {
    let Some(scene) = TestMachine::new_in(Sandbox::with_claims()) else { return };
    let other = format!("unix:{},server=on,wait=off", scene.path("second"));
    let words =
        ["-S", "-M", "q35", "-accel", "tcg", "-display", "none", "-nodefaults", "-m", "32M"];
    let name = format!("{}-second", scene.name);
    let named = format!("guest={name},debug-threads=on");
    let more = ["-name", named.as_str(), "-qmp", &other];
    let second = Spawn::new(QEMU).args([&words[..], &more].concat());
    let _second = start_quietly(second);
    let second = scene.path("second");
    assert!(until(|| UnixStream::connect(&second).is_ok()), "its socket");
    let cpu = scene.mask(scene.vcpu()).first().expect("a CPU").to_string();
    let (qmp, pin) = (scene.qmp(), format!("vcpu={cpu}"));
    let place = ["--strategy", "compact", "--ignore-claims", "--pin", &pin];
    scene.run(&[&["apply", "--qmp", &qmp][..], &place].concat()).expect_success();
    let watch = scene.watch_with(&["--all"]);
    scene.counted("placements 1");
    scene.run(&[&["apply", "--qmp", &second][..], &place].concat()).expect_success();
    scene.counted("placements 2");
    let twice = format!("warning: cpu-used-twice: CPU {cpu} is used by");
    scene.reported(&twice);
    let said = scene.read("said");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(&twice)).collect();
    assert!(lines.iter().any(|line| line.contains(&scene.name) && line.contains(&name)), "{said}");
    let count = lines.len();
    assert!(count >= 2, "each of the two: {said}");
    run("kill", ["-HUP", &watch.pid().to_string()]).expect_success();
    scene.reported("reloading all placements");
    let before = scene.read("said").lines().count();
    scene.run(&["undo", &name]).expect_success();
    // Machines of other tests may have the CPU too.
    let is_end = |line: &str| {
        line.contains("resolved: ") || (line.contains(&twice) && !line.contains(&name))
    };
    let has_ended = || scene.read("said").lines().skip(before).any(is_end);
    assert!(until(has_ended), "{}", scene.read("said"));
    scene.counted("placements 1");
}
