//! What each method writes, and in which order, on machines that keep the kernel's rules.

use std::sync::atomic::Ordering;

use crate::common::{node, speed, take, undo};
use crate::notes::Notes;
use pinfold_emulate::{
    Burner, Cleanup, HelperSpawner, Hierarchies, Node, ProfileRow, ReferenceRun, SpeedError,
    Throughput, VnodeCgroup, VnodeController, Watchdog, Window, release,
};
use pinfold_host::{Clock as _, Host as _, HostMut as _, SimClock, paths};
use pinfold_model::{Attach, Change, CpuSet, Method, PuId, Tid, Undo, Variant};
use pinfold_sim::{CgroupVersion, SimHost, SimTask, WriteRule};

const CPU: &str = "/sys/fs/cgroup/cpu/pinfold-vnode-web";
const CPUSET: &str = "/sys/fs/cgroup/cpuset/pinfold-vnode-web";
const UNIFIED: &str = "/sys/fs/cgroup/pinfold-vnode-web";
const MS: u64 = 1_000_000;

fn machine(version: CgroupVersion) -> SimHost {
    let builder = SimHost::builder(version, 4).speed_groups();
    (500..506).fold(builder, |builder, tid| builder.task(SimTask::new(tid, "work"))).build()
}

/// Makes a vnode's groups, and starts its method; the writes since then are those of the method.
fn enclose(host: &SimHost, node: &Node) -> (VnodeCgroup, Vec<pinfold_model::Step>) {
    let hierarchies = Hierarchies::find(host).expect("a mount table");
    let (cgroup, steps) = VnodeCgroup::plan(host, &hierarchies, node).expect("a plan");
    take(host, &steps);
    (cgroup, steps)
}

/// The changes beyond the first so many.
fn since(host: &SimHost, count: usize) -> Vec<String> {
    host.changes().split_off(count)
}

fn start_error(host: &SimHost, node: Node) -> String {
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let (cgroup, steps) = enclose(host, &node);
    let error = VnodeController::start(host, &clock, &spawner, vec![(node, cgroup)])
        .err()
        .expect("an error");
    undo(host, &steps);
    error.to_string()
}

#[test]
fn quota_of_each_core_on_version_1() {
    let host = machine(CgroupVersion::V1);
    let before = host.snapshot();
    let node = node(Method::Quota, &[(2, 50), (3, 25)]);
    let (cgroup, steps) = enclose(&host, &node);
    assert_eq!(
        cgroup.entries(),
        [
            format!("{CPU}/pinfold-core-2/cgroup.procs"),
            format!("{CPUSET}/pinfold-core-2/cgroup.procs")
        ]
    );
    assert_eq!(host.read_text(&format!("{CPUSET}/pinfold-core-3/cpuset.cpus")).unwrap(), "3\n");
    let (clock, spawner, count) = (SimClock::at(0), Notes::default(), host.changes().len());
    let mut nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    nodes.set("web", speed(1_000_000), Some(PuId(2))).unwrap();
    nodes.stop().unwrap();
    let expected = [
        file(2, "cfs_period_us", "100000"),
        file(3, "cfs_period_us", "100000"),
        file(2, "cfs_quota_us", "50000"),
        file(3, "cfs_quota_us", "25000"),
        file(2, "cfs_quota_us", "-1"),
        file(3, "cfs_quota_us", "25000"),
        file(2, "cfs_quota_us", "-1"),
        file(3, "cfs_quota_us", "-1"),
    ];
    assert_eq!(since(&host, count), expected);
    undo(&host, &steps);
    assert_eq!(host.snapshot(), before);
}

fn file(core: u32, name: &str, value: &str) -> String {
    format!("write {CPU}/pinfold-core-{core}/cpu.{name} {value}")
}

#[test]
fn quota_of_each_core_on_version_2_and_threads_are_dealt() {
    let host = machine(CgroupVersion::V2);
    let node = node(Method::Quota, &[(2, 50), (3, 50)]);
    let (cgroup, _) = enclose(&host, &node);
    assert_eq!(
        host.read_text(&format!("{UNIFIED}/pinfold-core-2/cgroup.type")).unwrap(),
        "threaded\n"
    );
    assert_eq!(cgroup.entries(), [format!("{UNIFIED}/pinfold-core-2/cgroup.procs")]);
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    for tid in [500, 501, 502, 503] {
        host.write(&cgroup.entries()[0], tid.to_string().as_bytes()).unwrap();
        // The last one sleeps.
        host.edit_task(Tid(tid), |task| task.state = if tid == 503 { 'S' } else { 'R' });
    }
    host.write(&paths::cgroup_procs(UNIFIED), b"504").unwrap();
    let mut nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    assert_eq!(
        host.read_text(&paths::cpu_max(&format!("{UNIFIED}/pinfold-core-3"))).unwrap(),
        "50000 100000\n"
    );
    assert_eq!(nodes.turn(clock.now_ns()).unwrap(), 5 * MS);
    assert_eq!(
        [500, 501, 502, 503, 504].map(|tid| groups_of(tid, &host)),
        [2, 2, 3, 2, 3].map(group)
    );
    let (ours, count) = (host.task(Tid(500)).unwrap(), host.changes().len());
    assert_eq!(ours.tid, Tid(500));
    // Nothing changed: nothing is moved.
    for _ in 0..8 {
        clock.sleep_ns_until_next(&mut nodes);
    }
    assert_eq!(since(&host, count), [] as [String; 0]);
    // A thread is born where its maker is.
    assert!(host.clone_thread(Tid(502), Tid(600)) && host.clone_thread(Tid(502), Tid(601)));
    for tid in [600, 601] {
        host.edit_task(Tid(tid), |task| task.state = 'R');
    }
    for _ in 0..2 {
        clock.sleep_ns_until_next(&mut nodes);
    }
    assert_eq!(
        [500, 501, 502, 600, 601].map(|tid| groups_of(tid, &host)),
        [2, 2, 3, 3, 3].map(group)
    );
    host.exit(Tid(501));
    for _ in 0..2 {
        clock.sleep_ns_until_next(&mut nodes);
    }
    assert_eq!([500, 502, 600, 601].map(|tid| groups_of(tid, &host)), [2, 3, 3, 2].map(group));
    // Where undo looks for those that were moved in.
    nodes.stop().unwrap();
    assert_eq!([500, 502, 600, 601].map(|tid| groups_of(tid, &host)), [2; 4].map(group));
}

fn groups_of(tid: u32, host: &SimHost) -> String {
    host.task(Tid(tid)).unwrap().group
}

fn group(core: u32) -> String {
    format!("/pinfold-vnode-web/pinfold-core-{core}")
}

/// From so many milliseconds on so many hundredths of a percent, below a head.
fn profile(rows: &[(u64, u32)]) -> Vec<ProfileRow> {
    (2..)
        .zip(rows)
        .map(|(line, (ms, percent))| ProfileRow {
            at_ns: ms * MS,
            speed: speed(percent * 100),
            line,
        })
        .collect()
}

#[test]
fn a_profile_is_played_and_a_speed_that_is_set_ends_it() {
    let host = machine(CgroupVersion::V2);
    let rows = profile(&[(100, 2_500), (200, 10_000), (300, 7_500)]);
    let node = Node { profile: rows, ..node(Method::Quota, &[(2, 50)]) };
    let (cgroup, _) = enclose(&host, &node);
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let mut nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    let mut at = |ms: u64, expected: &str, asked: u32| {
        // A supervisor that is held up plays what holds by then.
        assert!(nodes.turn(ms * MS).unwrap() <= ms * MS + 100 * MS);
        let max = paths::cpu_max(&format!("{UNIFIED}/pinfold-core-2"));
        assert_eq!(host.read_text(&max).unwrap(), format!("{expected} 100000\n"), "{ms}");
        assert_eq!(nodes.status().unwrap()[0].cores[0].asked, speed(asked), "{ms}");
    };
    at(0, "50000", 500_000);
    at(99, "50000", 500_000);
    at(100, "25000", 250_000);
    at(250, "max", 1_000_000);
    nodes.set("web", speed(400_000), None).unwrap();
    nodes.turn(400 * MS).unwrap();
    let status = nodes.status().unwrap().remove(0);
    assert_eq!(status.cores[0].asked, speed(400_000));
    let ended = "its profile ended before line 4: its speed was set by a command";
    assert!(status.notes.iter().any(|note| note == ended), "{:?}", status.notes);
}

#[test]
fn a_row_that_cannot_be_played_is_reported_at_the_start() {
    let host = machine(CgroupVersion::V2);
    let rows = profile(&[(100, 2_500), (200, 50)]);
    let profile_file = "web.csv".to_owned();
    let node = Node { profile: rows, profile_file, ..node(Method::Quota, &[(2, 50)]) };
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let (cgroup, _) = enclose(&host, &node);
    let error =
        VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).err().unwrap();
    let expected = "web.csv: line 3: vnode web: quota cannot emulate 0.5%: that is 500 µs of \
                    each 100000 µs, but the kernel accepts no quota below 1000 µs";
    assert_eq!(pinfold_host::with_causes(&error), expected);
    assert!(error.hint().unwrap().starts_with("use a higher speed"));
}

#[test]
fn profiles_of_one_frequency_domain_agree_or_are_reported() {
    let host = scaling();
    let start = |rows: &[(u64, u32)], others: &[(u64, u32)]| {
        let mut all = Vec::new();
        let mut steps = Vec::new();
        for node in [one("web", 2, rows), one("db", 3, others)] {
            let (cgroup, taken) = enclose(&host, &node);
            all.push((node, cgroup));
            steps.extend(taken);
        }
        (all, steps)
    };
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    // Both change at once, and then somebody sets them both to what a row does not want.
    let (all, steps) = start(&[(100, 5_000), (200, 9_000)], &[(100, 5_000), (200, 9_000)]);
    let mut nodes = VnodeController::start(&host, &clock, &spawner, all).unwrap();
    nodes.turn(100 * MS).unwrap();
    assert_eq!(asked_speeds(&nodes), [500_000, 500_000]);
    nodes.set("db", speed(500_000), None).unwrap();
    nodes.turn(200 * MS).unwrap();
    assert_eq!(asked_speeds(&nodes), [500_000, 500_000], "the other one's speed was set");
    let notes = nodes.status().unwrap().remove(0).notes;
    assert!(
        notes.iter().any(|note| note.starts_with("its profile ended before line 3: ")),
        "{notes:?}"
    );
    nodes.stop().unwrap();
    drop(nodes);
    undo(&host, &steps);
    let (all, _) = start(&[(100, 5_000)], &[(100, 5_000), (200, 9_000)]);
    let error = VnodeController::start(&host, &clock, &spawner, all).err().unwrap();
    let reported = pinfold_host::with_causes(&error);
    assert!(reported.starts_with("db.csv: line 3: "), "{reported}");
}

fn asked_speeds(nodes: &VnodeController<'_>) -> Vec<u32> {
    let status = nodes.status().unwrap();
    status.iter().map(|one| one.cores[0].asked.millionths()).collect::<Vec<_>>()
}

fn one(name: &str, pu: u32, rows: &[(u64, u32)]) -> Node {
    let profile_file = format!("{name}.csv");
    Node {
        name: name.to_owned(),
        profile: profile(rows),
        profile_file,
        ..node(Method::Freq, &[(pu, 100)])
    }
}

#[test]
fn looks_that_are_dear_come_less_often() {
    let host = machine(CgroupVersion::V2);
    let node = node(Method::Quota, &[(2, 50), (3, 50)]);
    let (cgroup, _) = enclose(&host, &node);
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let mut nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    assert_eq!(nodes.turn(0).unwrap(), 5 * MS);
    clock.set_effort_ns(3 * MS);
    assert_eq!(nodes.turn(5 * MS).unwrap(), 155 * MS);
    // Not sooner.
    assert_eq!(nodes.turn(80 * MS).unwrap(), 155 * MS);
    clock.set_effort_ns(0);
    assert_eq!(nodes.turn(155 * MS).unwrap(), 175 * MS);
}

/// One turn, and the time to the next.
trait CoreShares {
    fn sleep_ns_until_next(&self, nodes: &mut VnodeController<'_>);
}

impl CoreShares for SimClock {
    fn sleep_ns_until_next(&self, nodes: &mut VnodeController<'_>) {
        let next = nodes.turn(self.now_ns()).expect("a turn");
        self.sleep_until(next);
    }
}

#[test]
fn quota_as_published_is_one_for_all_cores() {
    let host = machine(CgroupVersion::V2);
    let node = Node { variant: Variant::AsPublished, ..node(Method::Quota, &[(2, 50), (3, 25)]) };
    let (cgroup, _) = enclose(&host, &node);
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    assert_eq!(host.read_text(&paths::cpu_max(UNIFIED)).unwrap(), "75000 100000\n");
    assert_eq!(nodes.status().unwrap()[0].notes[0], "CPU 2-3: 75000 µs of each 100000 µs");
    drop(nodes);
    assert_eq!(host.read_text(&paths::cpu_max(UNIFIED)).unwrap(), "max 100000\n");
}

#[test]
fn what_a_quota_cannot_do_is_refused_with_the_bound() {
    let host = machine(CgroupVersion::V1);
    let short = Node { period_ns: Some(5 * MS), ..node(Method::Quota, &[(1, 50)]) };
    assert_eq!(
        start_error(&host, short),
        "vnode web: quota cannot work with a period of 5 ms: use 10 ms to 1000 ms"
    );
    let small = Node { period_ns: Some(10 * MS), ..node(Method::Quota, &[(1, 5)]) };
    assert_eq!(
        start_error(&host, small),
        "vnode web: quota cannot emulate 5%: that is 500 µs of each 10000 µs, but the kernel \
         accepts no quota below 1000 µs"
    );
}

#[test]
fn fracas_weighs_a_burner_on_each_core() {
    for (version, cpu, file, weights) in [
        (CgroupVersion::V1, CPU, "cpu.shares", ["87381", "262143", "262144", "262144"]),
        (CgroupVersion::V2, UNIFIED, "cpu.weight", ["3333", "9999", "10000", "10000"]),
    ] {
        let host = machine(version);
        let before = host.snapshot();
        let node = node(Method::Fracas, &[(1, 25), (2, 50)]);
        let (cgroup, steps) = enclose(&host, &node);
        let (clock, spawner, count) = (SimClock::at(0), Notes::default(), host.changes().len());
        let mut nodes =
            VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
        let expected = [
            weight_written("core-1", weights[0], cpu, file),
            weight_written("burn-1", weights[1], cpu, file),
            weight_written("core-2", weights[2], cpu, file),
            weight_written("burn-2", weights[3], cpu, file),
        ];
        assert_eq!(since(&host, count), expected);
        assert_eq!(
            spawner.take(),
            [1, 2].map(|pu: u32| format!("burn on {pu} in {cpu}/pinfold-burn-{pu}/cgroup.procs"))
        );
        nodes.turn(0).unwrap();
        nodes.set("web", speed(1_000_000), Some(PuId(1))).unwrap();
        assert_eq!(spawner.take(), ["end burner on 1"]);
        drop(nodes);
        assert_eq!(spawner.take(), ["end burner on 2"]);
        undo(&host, &steps);
        assert_eq!(host.snapshot(), before);
    }
}

fn weight_written(name: &str, value: &str, cpu: &str, file: &str) -> String {
    format!("write {cpu}/pinfold-{name}/{file} {value}")
}

#[test]
fn a_burner_of_fracas_that_ends_is_started_anew_and_one_that_cannot_live_is_reported() {
    let host = machine(CgroupVersion::V2);
    let node = node(Method::Fracas, &[(1, 50)]);
    let (cgroup, _) = enclose(&host, &node);
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let mut nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    spawner.take();
    nodes.turn(1_500 * MS).unwrap();
    assert_eq!(spawner.take(), [] as [String; 0]);
    spawner.1.store(true, Ordering::Relaxed);
    nodes.turn(2_000 * MS).unwrap();
    let said = spawner.take();
    assert!(said[0].starts_with("burn on 1 in ") && said[1] == "end burner on 1", "{said:?}");
    let notes = nodes.status().unwrap().remove(0).notes;
    let expected = "1 burner restarted, the last because of CPU 1: a burner: killed by signal 9";
    assert_eq!(notes.last().unwrap(), expected);
    spawner.1.store(true, Ordering::Relaxed);
    let error = nodes.turn(2_500 * MS).unwrap_err().to_string();
    assert_eq!(error, "a burner: killed by signal 9");
}

/// The groups of Fig. 4 of Buchert 2011: one for all tasks, and one around each burner.
#[test]
fn fracas_as_published_has_a_group_for_all_tasks_and_one_around_each_burner() {
    fn burn(pu: u32) -> String {
        format!("burn on {pu} in {CPU}/pinfold-burn-{pu}/cgroup.procs")
    }

    let host = machine(CgroupVersion::V1);
    assert_eq!(
        start_error(&host, published_node(&[(1, 25), (2, 50)])),
        "vnode web: fracas cannot emulate 25%: with one group for all cores there is one speed, \
         but CPU 2 has the speed 50%"
    );
    let node = published_node(&[(1, 25), (2, 25)]);
    let (cgroup, _) = enclose(&host, &node);
    assert_eq!(cgroup.entries()[0], format!("{CPU}/pinfold-all/cgroup.procs"));
    let (clock, spawner, count) = (SimClock::at(0), Notes::default(), host.changes().len());
    let _nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    let expected = [weight("all", "87381"), weight("burn-1", "262143"), weight("burn-2", "262143")];
    assert_eq!(since(&host, count), expected);
    assert_eq!(spawner.take(), [burn(1), burn(2)]);
}

fn published_node(cores: &[(u32, u32)]) -> Node {
    Node { variant: Variant::AsPublished, ..node(Method::Fracas, cores) }
}

fn weight(name: &str, value: &str) -> String {
    format!("write {CPU}/pinfold-{name}/cpu.shares {value}")
}

#[test]
fn fracas_with_a_common_burner_group_has_all_burners_in_it() {
    fn burn(pu: u32) -> String {
        format!("burn on {pu} in {CPU}/pinfold-burn/cgroup.procs")
    }

    let host = machine(CgroupVersion::V1);
    let node =
        Node { variant: Variant::CommonBurnerGroup, ..node(Method::Fracas, &[(1, 50), (2, 50)]) };
    let (cgroup, _) = enclose(&host, &node);
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let _nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    assert_eq!(spawner.take(), [burn(1), burn(2)]);
}

#[test]
fn fracas_makes_slices_short_and_gives_them_back() {
    let slice = paths::debug_sched("base_slice_ns");
    let host = SimHost::builder(CgroupVersion::V2, 2)
        .writable_file(&slice, WriteRule::Integer, "2800000\n")
        .build();
    let before = host.snapshot();
    let node = node(Method::Fracas, &[(1, 50)]);
    let (cgroup, steps) = enclose(&host, &node);
    assert_eq!(host.read_text(&slice).unwrap(), "100000\n");
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    assert_eq!(nodes.status().unwrap()[0].notes[1], "base_slice_ns is 100000");
    drop(nodes);
    undo(&host, &steps);
    assert_eq!(host.snapshot(), before);
}

/// Two domains of two CPUs.
fn scaling() -> SimHost {
    let domains = [CpuSet::first_n(2), CpuSet::parse_list("2-3").expect("a list")];
    SimHost::builder(CgroupVersion::V2, 4)
        .cpufreq(&domains, &[1_200_000, 2_000_000, 2_400_000])
        .build()
}

#[test]
fn gov_has_two_frequencies_in_turns() {
    let host = scaling();
    let before = host.snapshot();
    let node = Node { cores: vec![(PuId(0), speed(875_000))], ..node(Method::Gov, &[]) };
    let (cgroup, steps) = enclose(&host, &node);
    let governor = paths::cpufreq_policy_file("policy0", "scaling_governor");
    assert_eq!(host.read_text(&governor).unwrap(), "userspace\n");
    let (clock, spawner, count) = (SimClock::at(0), Notes::default(), host.changes().len());
    let mut nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    let mut at = Vec::new();
    while clock.now_ns() < 200 * MS {
        let known = host.changes().len();
        nodes.turn(clock.now_ns()).unwrap();
        if host.changes().len() > known {
            at.push(clock.now_ns() / MS);
        }
        clock.sleep_ns(MS);
    }
    let notes = nodes.status().unwrap()[0].notes.clone();
    assert_eq!(notes[0], "CPU 0: 25.0% of the time at 2400 MHz, 75.0% at 2000 MHz");
    assert_eq!(notes[1], "CPU 1 shares this frequency");
    nodes.stop().unwrap();
    // High from the start of each period, low for three quarters of it, the highest at the end.
    let path = paths::cpufreq_policy_file("policy0", "scaling_setspeed");
    let expected: Vec<String> = [2_400_000, 2_000_000, 2_400_000, 2_000_000, 2_400_000]
        .iter()
        .map(|khz| format!("write {path} {khz}"))
        .collect();
    assert_eq!(since(&host, count), expected);
    assert_eq!(at, [25, 100, 125]);
    assert_eq!(spawner.take(), [] as [String; 0]);
    undo(&host, &steps);
    let after = host.snapshot().replace("\"2400000\\n\"", "\"<unsupported>\\n\"");
    assert_eq!(after, before);
}

/// A CPU whose highest frequency gives less than it says: as much as 2.2 GHz.
struct Boastful<'h>(&'h SimHost, Notes);

impl HelperSpawner for Boastful<'_> {
    fn measure_throughput(
        &self,
        _: &[String],
        pus: &CpuSet,
        _: u64,
    ) -> Result<Throughput, SpeedError> {
        let path = paths::cpufreq_policy_file("policy0", "scaling_setspeed");
        let text = self.0.read_text(&path).expect("a frequency was set");
        let khz: u64 = text.trim().parse().expect("a number");
        let rate = khz.min(2_200_000);
        let windows =
            [rate - 1, rate, rate + 1].map(|units| Window { units, ..Window::default() }).to_vec();
        let witnessed = ReferenceRun { windows, ..ReferenceRun::default() };
        Ok(pus.iter().map(|pu| (pu, witnessed.clone())).collect())
    }

    fn spawn_burner(&self, entries: &[String], pu: PuId) -> Result<Box<dyn Burner>, SpeedError> {
        self.1.spawn_burner(entries, pu)
    }

    fn spawn_watchdog(&self, what: Cleanup) -> Result<Box<dyn Watchdog>, SpeedError> {
        self.1.spawn_watchdog(what)
    }
}

#[test]
fn frequencies_are_taken_for_what_they_give_if_asked() {
    let host = scaling();
    // 2.0 GHz is 83.3 % of 2.4 by its name, and 90.9 % of what that gives.
    let cores = vec![(PuId(0), speed(920_000))];
    let node = Node { cores, calibrate: true, ..node(Method::Gov, &[]) };
    let (cgroup, _) = enclose(&host, &node);
    let clock = SimClock::at(0);
    let spawner = Boastful(&host, Notes::default());
    let mut nodes =
        VnodeController::start(&host, &clock, &spawner, vec![(node.clone(), cgroup.clone())])
            .unwrap();
    let notes = nodes.status().unwrap()[0].notes.clone();
    assert_eq!(notes[0], "CPU 0: 12.0% of the time at 2400 MHz, 88.0% at 2000 MHz");
    assert!(
        notes.contains(
            &"CPUs 0-1 measured: 1200 MHz 54.5%, 2000 MHz 90.9%, 2400 MHz 100.0%".to_owned()
        ),
        "{notes:?}"
    );
    nodes.stop().unwrap();
    drop(nodes);
    // Where the witness cannot work, frequencies are what they are called, and that is reported.
    let silent = Notes::default();
    let mut nodes = VnodeController::start(&host, &clock, &silent, vec![(node, cgroup)]).unwrap();
    let said = silent.take();
    assert!(
        said.iter()
            .any(|said: &String| said.starts_with("report vnode web: the frequencies of CPU 0")),
        "{said:?}"
    );
    let notes = nodes.status().unwrap()[0].notes.clone();
    assert!(!notes.iter().any(|note| note.contains("measured")), "{notes:?}");
    nodes.stop().unwrap();
}

#[test]
fn gov_freezes_below_the_lowest_frequency_and_a_sentinel_watches() {
    for (version, group, file, words) in [
        (
            CgroupVersion::V1,
            "/sys/fs/cgroup/freezer/pinfold-vnode-web",
            "freezer.state",
            ["FROZEN", "THAWED"],
        ),
        (CgroupVersion::V2, UNIFIED, "cgroup.freeze", ["1", "0"]),
    ] {
        let host = machine(version);
        let node = node(Method::Gov, &[(1, 40)]);
        let (cgroup, _) = enclose(&host, &node);
        host.write(&paths::cgroup_procs(group), b"500").unwrap();
        let (clock, spawner, count) = (SimClock::at(0), Notes::default(), host.changes().len());
        let mut nodes =
            VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
        let path = format!("{group}/{file}");
        let files = vec![(path.clone(), words[1].to_owned())];
        assert_eq!(
            spawner.take(),
            [format!("sentinel {:?}", Cleanup::Thaw { files: files.clone() })]
        );
        while clock.now_ns() < 160 * MS {
            clock.sleep_ns_until_next(&mut nodes);
        }
        let account = nodes.status().unwrap();
        assert_eq!(
            account[0].notes[1],
            "this host has no cpufreq: the freezer alone slows the vnode"
        );
        assert_eq!(
            since(&host, count),
            [written(words[0], &path), written(words[1], &path), written(words[0], &path)]
        );
        // The supervisor is gone without a word: what the sentinel does.
        release(&host, &Cleanup::Thaw { files }).unwrap();
        assert_eq!(since(&host, count)[3..], [written(words[1], &path)]);
        // And what stopping does.
        drop(nodes);
        assert_eq!(since(&host, count)[4..], [written(words[1], &path)]);
        assert_eq!(spawner.take().last().unwrap(), "end sentinel");
    }
}

fn written(word: &str, path: &str) -> String {
    format!("write {path} {word}")
}

#[test]
fn a_task_that_does_not_freeze_is_waited_for_and_reported() {
    let host = machine(CgroupVersion::V1);
    let node = node(Method::Gov, &[(1, 50)]);
    let (cgroup, _) = enclose(&host, &node);
    host.write(&paths::cgroup_procs("/sys/fs/cgroup/freezer/pinfold-vnode-web"), b"500").unwrap();
    host.edit_task(Tid(500), |task| task.state = 'D');
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let mut nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    while clock.now_ns() <= 50 * MS {
        clock.sleep_ns_until_next(&mut nodes);
    }
    assert_eq!(nodes.status().unwrap()[0].notes[2], "a task did not freeze in time (1 time)");
}

#[test]
fn freq_takes_the_nearest_level_and_says_how_far_off() {
    let host = scaling();
    let node = node(Method::Freq, &[(2, 80)]);
    let (cgroup, _) = enclose(&host, &node);
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let mut nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    nodes.turn(0).unwrap();
    let speed = paths::cpufreq_policy_file("policy2", "scaling_setspeed");
    assert_eq!(host.read_text(&speed).unwrap(), "2000000\n");
    let notes = nodes.status().unwrap()[0].notes.clone();
    assert_eq!(notes, ["CPU 2-3: 2000 MHz, which is +3.33 points off 80%"]);
    drop(nodes);
    assert_eq!(host.read_text(&speed).unwrap(), "2400000\n");
}

#[test]
fn one_domain_has_one_frequency() {
    let host = scaling();
    let (first, second) = (node(Method::Gov, &[(0, 60)]), node(Method::Gov, &[(1, 70)]));
    let second = Node { name: "other".to_owned(), ..second };
    let (clock, spawner) = (SimClock::at(0), Notes::default());
    let both = |second: &Node| {
        let all =
            vec![(first.clone(), VnodeCgroup::default()), (second.clone(), VnodeCgroup::default())];
        VnodeController::start(&host, &clock, &spawner, all).map(|_| ())
    };
    let error = both(&second).unwrap_err();
    assert_eq!(
        error.to_string(),
        "vnode other: gov cannot emulate 70%: CPU 1 shares its frequency with CPU 0 of vnode web, \
         which has the speed 60%"
    );
    assert!(error.hint().unwrap().contains("CPUs 0-1 are one domain"));
    let apart = Node { cores: vec![(PuId(2), speed(700_000))], ..second };
    let (governors, _) = (enclose(&host, &first), enclose(&host, &apart));
    assert!(both(&apart).is_ok(), "{governors:?}");
}

#[test]
fn lim_stops_and_continues_what_parents_can_see() {
    let host = machine(CgroupVersion::V1);
    let node = node(Method::Lim, &[(1, 50)]);
    let (cgroup, _) = enclose(&host, &node);
    let group = "/sys/fs/cgroup/freezer/pinfold-vnode-web";
    host.write(&paths::cgroup_procs(group), b"500").unwrap();
    // Created 15 s after boot; 1 s of CPU time.
    host.edit_task(Tid(500), |task| {
        task.start_time = 1_500;
        task.schedstat.run_ns = 1_000 * MS;
    });
    let (clock, spawner, count) = (SimClock::at(0), Notes::default(), host.changes().len());
    let mut nodes = VnodeController::start(&host, &clock, &spawner, vec![(node, cgroup)]).unwrap();
    let what = Cleanup::Continue { group: group.to_owned() };
    assert_eq!(spawner.take(), [format!("sentinel {what:?}")]);
    for (seconds, expected) in [(16, 'T'), (17, 'S')] {
        set_uptime(seconds, &host);
        nodes.turn(clock.now_ns()).unwrap();
        assert_eq!(host.task(Tid(500)).unwrap().state, expected, "{seconds} s");
        clock.sleep_ns(10 * MS);
    }
    assert_eq!(since(&host, count), ["signal 500 Stop", "signal 500 Continue"]);
    set_uptime(16, &host);
    nodes.turn(clock.now_ns()).unwrap();
    // What the sentinel would do, and what stopping does.
    release(&host, &what).unwrap();
    assert_eq!(host.task(Tid(500)).unwrap().state, 'S');
    drop(nodes);
    assert_eq!(since(&host, count)[3..], ["signal 500 Continue", "signal 500 Continue"]);
}

fn set_uptime(seconds: u64, host: &SimHost) {
    host.set_file(&paths::uptime(), &format!("{seconds}.00 0.00\n"))
}

#[test]
fn a_group_of_another_program_is_used_as_it_is() {
    let host = SimHost::v2_eight_pus();
    let hierarchies = Hierarchies::find(&host).unwrap();
    let (cgroup, _) =
        VnodeCgroup::plan(&host, &hierarchies, &attached_node(Method::Gov, "/system.slice"))
            .unwrap();
    assert!(cgroup.is_attached);
    assert_eq!(cgroup.freezer.as_deref(), Some("/sys/fs/cgroup/system.slice"));
    let check = |node: Node, expected: &str| {
        assert_eq!(
            VnodeCgroup::plan(&host, &hierarchies, &node).unwrap_err().to_string(),
            expected
        );
    };
    check(
        attached_node(Method::Quota, "/system.slice"),
        "vnode web: quota cannot work on this host: it distributes threads to groups below that of \
         the vnode, but /system.slice belongs to another program",
    );
    check(
        attached_node(Method::Stall, "/"),
        "vnode web: group \"/\" is not a group below the root",
    );
    check(
        attached_node(Method::Stall, "/machine.slice"),
        "vnode web: group \"/machine.slice\" is not below /sys/fs/cgroup",
    );
}

fn attached_node(method: Method, group: &str) -> Node {
    Node { attach: Some(Attach::Group(group.to_owned())), ..node(method, &[(1, 50)]) }
}

#[test]
fn a_process_moves_with_threads_and_children_and_back() {
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let host = SimHost::builder(version, 4)
            .speed_groups()
            .task(SimTask::new(500, "qemu"))
            .task(SimTask::new(501, "CPU 0/KVM").thread_of(500))
            .task(SimTask::new(510, "helper").child_of(500))
            .build();
        let before = host.snapshot();
        let node =
            Node { attach: Some(Attach::Process(500)), ..node(Method::Quota, &[(1, 50), (2, 50)]) };
        let (cgroup, steps) = enclose(&host, &node);
        let expected = if version == CgroupVersion::V1 { 2 } else { 1 };
        let moves = steps.iter().filter(|step| matches!(step.change, Change::MoveTasks { .. }));
        assert_eq!(moves.count(), expected);
        let Undo::MoveTasks { tasks, .. } = &steps.last().unwrap().undo else { panic!("no move") };
        assert_eq!(tasks.len(), 3);
        for tid in [500, 501, 510] {
            assert_eq!(host.task(Tid(tid)).unwrap().group, "/pinfold-vnode-web/pinfold-core-1");
        }
        assert!(!cgroup.is_attached);
        let hierarchies = Hierarchies::find(&host).unwrap();
        let missed = || cgroup.count_missed(&host, &hierarchies, &node).unwrap();
        assert_eq!(missed(), []);
        // As if it had been born while the others were moved.
        host.add_task(SimTask::new(511, "late").child_of(510));
        let late = missed();
        assert_eq!(late.len(), expected);
        take(&host, &late);
        assert_eq!(host.task(Tid(511)).unwrap().group, "/pinfold-vnode-web/pinfold-core-1");
        assert_eq!(missed(), []);
        undo(&host, &late);
        host.exit(Tid(511));
        undo(&host, &steps);
        assert_eq!(host.snapshot(), before);
        let gone = Node { attach: Some(Attach::Process(999)), ..node };
        let error =
            VnodeCgroup::plan(&host, &Hierarchies::find(&host).unwrap(), &gone).unwrap_err();
        assert!(matches!(error, SpeedError::Unattached { .. }), "{error}");
        assert_eq!(error.to_string(), "vnode web: process 999 is not running");
    }
}
