//! Table tests of `capabilities`.

use pinfold_host::{LiveHost, SnapshotHost, osrelease};
use pinfold_model::PuId;
use pinfold_model::tunables::TUNABLES;

use super::{Capability, Verdict, capabilities, captured_capabilities, has_required_capabilities};
use crate::schema;

const ROOT: &str = "CapEff:\t000001ffffffffff\n";
const USER: &str = "CapEff:\t0000000000000000\n";
const V1: &str = "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                  35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

/// Checks the verdict on one question for these files.
fn check(name: &str, files: &[(&str, &str)], expected: Verdict, part: &str) {
    let found = one(name, &SnapshotHost::from_files(files.iter().copied()));
    assert_eq!(found.verdict, expected, "{name} {files:?}: {}", found.why);
    assert!(found.why.contains(part), "{name}: {}", found.why);
}

fn one(name: &str, host: &SnapshotHost) -> Capability {
    let all = capabilities(host);
    all.into_iter().find(|one| one.name == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn cpusets_and_partitions() {
    let v1 = [("/proc/self/mountinfo", V1), ("/proc/self/cgroup", "3:cpuset:/\n1:cpu:/\n")];
    let v2 = [("/proc/self/mountinfo", V2), ("/proc/self/cgroup", "0::/\n")];
    let has = ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory");
    check("cgroup cpuset", &with_more(&v1, &[status(ROOT)]), Verdict::Yes, "v1");
    check("cgroup cpuset", &with_more(&v1, &[status(USER)]), Verdict::Partly, "needs root");
    check("cgroup cpuset", &with_more(&v2, &[status(ROOT), has]), Verdict::Yes, "v2");
    check("cgroup cpuset", &[], Verdict::Partly, "not known");
    check("cgroups", &with_more(&v1, &[]), Verdict::Partly, "not there: memory, io, freezer");
    check(
        "cgroups",
        &with_more(&v2, &[has]),
        Verdict::Yes,
        "cpuset v2, cpu v2, memory v2, io v2, freezer v2",
    );
    check(
        "isolated partitions",
        &with_more(&v2, &[has, release("6.1.0-18-amd64")]),
        Verdict::Yes,
        "6.1.0",
    );
    check(
        "isolated partitions",
        &with_more(&v2, &[has, release("5.15.0")]),
        Verdict::No,
        "older than 6.1",
    );
    check("isolated partitions", &with_more(&v1, &[release("6.18.0")]), Verdict::No, "cgroup v1");
}

fn with_more(
    base: &[(&'static str, &'static str)],
    more: &[(&'static str, &'static str)],
) -> Vec<(&'static str, &'static str)> {
    [base, more].concat()
}

fn status(text: &'static str) -> (&'static str, &'static str) {
    ("/proc/self/status", text)
}

fn release(text: &'static str) -> (&'static str, &'static str) {
    ("/proc/sys/kernel/osrelease", text)
}

#[test]
fn real_time() {
    let groups = [("/proc/self/mountinfo", V1), ("/proc/self/cgroup", "3:cpuset:/\n1:cpu:/g\n")];
    let run = |status: &str, limit: &str, runtime: Option<&str>, expected, part: &str| {
        let limits = limits(limit);
        let mut files = groups.to_vec();
        files.extend([("/proc/self/status", status), ("/proc/self/limits", &limits)]);
        files.extend(runtime.map(|text| ("/sys/fs/cgroup/cpu/g/cpu.rt_runtime_us", text)));
        check("real-time scheduling", &files, expected, part);
    };
    run(ROOT, "0", None, Verdict::Yes, "CAP_SYS_NICE");
    run(ROOT, "0", Some("950000\n"), Verdict::Yes, "new groups have none");
    run(ROOT, "0", Some("0\n"), Verdict::No, "RT_GROUP_SCHED");
    run(USER, "0", None, Verdict::No, "neither");
    run(USER, "95", None, Verdict::Yes, "RLIMIT_RTPRIO of 95");
    run(USER, "unlimited", None, Verdict::Yes, "RLIMIT_RTPRIO of 99");
    check_throttle("950000\n", Verdict::Yes, "95 %");
    check_throttle("-1\n", Verdict::Partly, "switched off");
    check_throttle("0\n", Verdict::No, "no runtime");
    check_throttle("x\n", Verdict::Partly, "cannot parse");
}

fn check_throttle(runtime: &'static str, expected: Verdict, part: &str) {
    let files = [
        ("/proc/sys/kernel/sched_rt_runtime_us", runtime),
        ("/proc/sys/kernel/sched_rt_period_us", "1000000\n"),
    ];
    check("real-time throttle", &files, expected, part);
}

fn limits(priority: &str) -> String {
    format!("Max realtime priority     {priority}   {priority}\n")
}

#[test]
fn observing() {
    let pmu = ("/sys/bus/event_source/devices/cpu", "");
    let (root, user) = (("/proc/self/status", ROOT), ("/proc/self/status", USER));
    check("perf events", &[paranoid("2"), pmu, user], Verdict::Yes, "own threads");
    check("perf events", &[paranoid("2"), root], Verdict::Partly, "no PMU");
    check("perf events", &[paranoid("3"), pmu, user], Verdict::No, "perf_event_paranoid is 3");
    check("perf events", &[], Verdict::No, "built without");
    let knows = ("/proc/filesystems", "nodev\ttracefs\nnodev\tresctrl\n\text4\n");
    check("tracefs", &[knows], Verdict::Partly, "not mounted");
    check("tracefs", &[("/proc/filesystems", "\text4\n")], Verdict::No, "without tracing");
    check("tracefs", &[], Verdict::Partly, "not known");
    check("resctrl", &[knows], Verdict::Partly, "not mounted");
    let disabled = ("/proc/sys/kernel/unprivileged_bpf_disabled", "2");
    let btf = ("/sys/kernel/btf/vmlinux", "");
    check("BPF", &[disabled, btf, root], Verdict::Yes, "BTF");
    check("BPF", &[disabled, btf, user], Verdict::No, "may not load");
    check("BPF", &[disabled, root], Verdict::Partly, "without kernel type information");
}

fn paranoid(level: &'static str) -> (&'static str, &'static str) {
    ("/proc/sys/kernel/perf_event_paranoid", level)
}

#[test]
fn what_moves_things() {
    check("irqbalance off", &[("/proc/7/comm", "irqbalance\n")], Verdict::No, "process 7");
    check("irqbalance off", &[("/proc/7/comm", "bash\n")], Verdict::Yes, "no process");
    check("irqbalance off", &[], Verdict::Partly, "not known");
    let thp = |text| [("/sys/kernel/mm/transparent_hugepage/enabled", text)];
    check("transparent huge pages", &thp("always [madvise] never\n"), Verdict::Yes, "madvise");
    check("transparent huge pages", &thp("always madvise [never]\n"), Verdict::No, "off");
    check(
        "NUMA balancing off",
        &[("/proc/sys/kernel/numa_balancing", "1\n")],
        Verdict::No,
        "moves",
    );
    let policy = "/sys/devices/system/cpu/cpufreq/policy0";
    let files = [
        (format!("{policy}/scaling_driver"), "intel_pstate\n"),
        (format!("{policy}/scaling_governor"), "powersave\n"),
    ];
    let host = SnapshotHost::from_files(files.iter().map(|(path, text)| (path, *text)));
    assert_eq!(one("cpufreq", &host).why, "driver intel_pstate, governor powersave");
}

#[test]
fn what_cannot_be_read_is_partly_with_the_reason() {
    let mut host = SnapshotHost::new();
    for path in [
        "/proc/sys/kernel/osrelease",
        "/proc/sys/kernel/sched_rt_runtime_us",
        "/proc/sys/kernel/sched_schedstats",
        "/proc/sys/kernel/perf_event_paranoid",
        "/proc/sys/kernel/unprivileged_bpf_disabled",
        "/proc/sys/kernel/numa_balancing",
        "/proc/self/limits",
        "/proc/self/schedstat",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/devices/system/cpu/cpufreq",
    ] {
        host.insert_bare(path);
    }
    for name in [
        "isolated partitions",
        "real-time throttle",
        "schedstats",
        "perf events",
        "BPF",
        "NUMA balancing off",
        "real-time scheduling",
        "run delay",
        "transparent huge pages",
        "cpufreq",
    ] {
        let found = one(name, &host);
        assert_eq!(found.verdict, Verdict::Partly, "{name}: {}", found.why);
        assert!(found.why.contains("os error"), "{name}: {}", found.why);
    }
}

#[test]
fn releases() {
    fn check(text: &str, version: std::option::Option<(u32, u32)>) {
        assert_eq!(osrelease::version(text), version, "{text}");
    }

    check("6.18.44-fc-v595", Some((6, 18)));
    check("6.12", Some((6, 12)));
    check("5.10.0-28-amd64", Some((5, 10)));
    check("next", None);
}

#[test]
fn the_main_job_needs_what_is_required() {
    assert!(has_required_capabilities(&capability_of(Verdict::Yes, true)));
    assert!(has_required_capabilities(&capability_of(Verdict::Partly, true)));
    assert!(has_required_capabilities(&capability_of(Verdict::No, false)));
    assert!(!has_required_capabilities(&capability_of(Verdict::No, true)));
}

fn capability_of(verdict: Verdict, required: bool) -> [Capability; 1] {
    let mut one = Capability::yes("x", "y");
    (one.verdict, one.required) = (verdict, required);
    [one]
}

#[test]
fn the_running_machine_answers_every_question() {
    let all = capabilities(&LiveHost::new().unwrap());
    let value: serde_json::Value =
        serde_json::from_str(&schema::capabilities_to_json(&all)).unwrap();
    assert_eq!(value["format"], schema::CAPABILITIES_FORMAT);
    assert_eq!(value["capabilities"].as_array().unwrap().len(), all.len());
    let mut names: Vec<&str> = all.iter().map(|one| one.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
    let required: Vec<&str> = all.iter().filter(|one| one.required).map(|one| one.name).collect();
    assert_eq!(required, ["QEMU", "affinity", "run delay"]);
    assert!(all.iter().all(|one| !one.why.is_empty() && !one.why.ends_with('.')));
}

#[test]
fn devices_to_pass_through() {
    let one = group("/sys/kernel/iommu_groups/0/devices/0000:00:02.0/x");
    let two = [
        group("/sys/kernel/iommu_groups/14/devices/0000:01:00.1/x"),
        group("/sys/kernel/iommu_groups/14/devices/0000:01:00.0/x"),
    ];
    let booted = ("/proc/cmdline", "quiet intel_iommu=on root=/dev/vda iommu=pt\n");
    check("IOMMU groups", &[booted], Verdict::No, "booted with intel_iommu=on iommu=pt");
    check("IOMMU groups", &[one], Verdict::Yes, "1 with 1 device, each device alone");
    let all = [one, two[0], two[1], booted];
    let text = "2 with 3 devices, must be passed through together: 14: 0000:01:00.0 0000:01:00.1; \
                booted with intel_iommu=on iommu=pt";
    check("IOMMU groups", &all, Verdict::Yes, text);

    check("VFIO", &[], Verdict::No, "not loaded");
    check("VFIO", &[module("/sys/module/vfio/x")], Verdict::No, "vfio_pci is not");
    let loaded = module("/sys/module/vfio_pci/x");
    let bound = ("/sys/bus/pci/drivers/vfio-pci/0000:01:00.0/x", "");
    let other = ("/sys/bus/pci/drivers/vfio-pci/new_id", "");
    check("VFIO", &[loaded, other], Verdict::Yes, "no device is bound");
    check("VFIO", &[loaded, other, bound], Verdict::Yes, "bound: 0000:01:00.0");
    let allowed = ("/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n");
    check("VFIO", &[loaded, allowed], Verdict::Partly, "allow_unsafe_interrupts is on");
}

fn group(path: &'static str) -> (&'static str, &'static str) {
    (path, "")
}

fn module(path: &'static str) -> (&'static str, &'static str) {
    (path, "")
}

#[test]
fn what_makes_a_host_answer_late() {
    check("KSM off", &[ksm("0\n")], Verdict::Yes, "not merged");
    check("KSM off", &[ksm("1\n")], Verdict::No, "merged");
    check("KSM off", &[ksm("2\n")], Verdict::Yes, "not merged");
    check("KSM off", &[], Verdict::Yes, "not built in");

    let head = "Filename\tType\tSize\tUsed\tPriority\n";
    let swaps = format!("{head}/dev/sda2 partition 2097152 524288 -2\n/swap file 1048576 0 -3\n");
    check("swap off", &[("/proc/swaps", head)], Verdict::Yes, "no swap area");
    check("swap off", &[("/proc/swaps", &swaps)], Verdict::Partly, "512 of 3072 MiB in use");

    let idle = "/sys/devices/system/cpu/cpu1/cpuidle/";
    let (name, latency) = (file(idle, "state3/name"), file(idle, "state3/latency"));
    let (short_name, short_latency) = (file(idle, "state1/name"), file(idle, "state1/latency"));
    let disable = file(idle, "state3/disable");
    let base = [
        ("/sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n"),
        ("/sys/devices/system/cpu/online", "0-1\n"),
        (short_name.as_str(), "C1\n"),
        (&short_latency, "2\n"),
        (&name, "C10\n"),
        (&latency, "890\n"),
    ];
    check("C-states", &[], Verdict::No, "no idle driver");
    let deep = "driver intel_idle, deepest state C10: 890 µs";
    check("C-states", &base, Verdict::Partly, deep);
    let off = [&base[..], &[(disable.as_str(), "1\n")]].concat();
    check("C-states", &off, Verdict::Yes, "deepest state C1: 2 µs");
}

#[test]
fn what_schedules_the_host_and_its_guests() {
    check("halt polling", &[], Verdict::No, "not loaded");
    check(
        "halt polling",
        &[("/sys/module/kvm/parameters/halt_poll_ns", "0\n")],
        Verdict::Partly,
        "off",
    );
    let grow = ("/sys/module/kvm/parameters/halt_poll_ns_grow", "2\n");
    check(
        "halt polling",
        &[("/sys/module/kvm/parameters/halt_poll_ns", "200000\n"), grow],
        Verdict::Yes,
        "up to 200000 ns when a vCPU halts, grow 2",
    );

    check("scheduler", &[], Verdict::Partly, "no kernel release");
    check("scheduler", &[release("many")], Verdict::Partly, "cannot parse \"many\"");
    check(
        "scheduler",
        &[release("6.1.0-18-amd64")],
        Verdict::Yes,
        "CFS; a thread cannot have a slice",
    );
    let slice = ("/sys/kernel/debug/sched/base_slice_ns", "2800000\n");
    let text = "EEVDF, base slice 2800 µs; not cache-aware";
    check("scheduler", &[release("6.12.9"), slice], Verdict::Yes, text);
    let cache = |value| ("/sys/kernel/debug/sched/llc_balancing/enabled", value);
    let newer = release("7.3.0");
    check("scheduler", &[newer], Verdict::Yes, "only visible in debugfs");
    check("scheduler", &[newer, cache("0\n")], Verdict::Yes, "cache-aware scheduling is off");
    check("scheduler", &[newer, cache("1\n")], Verdict::Yes, "EEVDF; cache-aware: draws");

    let ops = ("/sys/kernel/sched_ext/root/ops", "lavd\n");
    let autogroup = "/proc/sys/kernel/sched_autogroup_enabled";
    check("autogroup off", &[], Verdict::Yes, "not built in");
    check("autogroup off", &[(autogroup, "0\n")], Verdict::Yes, "all tasks");
    check("autogroup off", &[(autogroup, "1\n")], Verdict::Partly, "tasks of one session");
    check("no BPF scheduler", &[], Verdict::Yes, "not built in");
    check(
        "no BPF scheduler",
        &[("/sys/kernel/sched_ext/state", "disabled\n")],
        Verdict::Yes,
        "no BPF scheduler runs",
    );
    check(
        "no BPF scheduler",
        &[("/sys/kernel/sched_ext/state", "enabled\n"), ops],
        Verdict::Partly,
        "scheduler lavd is enabled",
    );
}

fn ksm(value: &'static str) -> (&'static str, &'static str) {
    ("/sys/kernel/mm/ksm/run", value)
}

fn file(idle: &str, name: &str) -> String {
    format!("{idle}{name}")
}

/// A capture answers the questions that were recorded, and reports the others as unknown.
#[test]
fn a_capture_answers_for_its_machine() {
    fn check(found: &[Capability], name: &str, verdict: Verdict, part: &str) {
        let one = found.iter().find(|one| one.name == name).unwrap();
        assert_eq!(one.verdict, verdict, "{name}: {}", one.why);
        assert!(one.why.contains(part), "{name}: {}", one.why);
    }

    let xml = "<topology version=\"2.0\"/>";
    let files = [
        ("/pinfold/hwloc.xml", xml),
        ("/pinfold/doctor", "KSM off\nswap off\nC-states\nIOMMU groups\n"),
        ("/sys/kernel/mm/ksm/run", "1\n"),
        ("/proc/swaps", "Filename\n/dev/disk/by-uuid/0c1d-secret partition 1024 0 -2\n"),
        ("/sys/kernel/iommu_groups/3/devices/0000:01:00.0/x", ""),
        ("/proc/cmdline", "root=UUID=secret intel_iommu=on\n"),
    ];
    let text = crate::capture(&SnapshotHost::from_files(files)).unwrap();
    assert!(!text.contains("secret"), "{text}");
    let found = captured_capabilities(&SnapshotHost::parse(&text).unwrap());
    check(&found, "KSM off", Verdict::No, "merged");
    check(&found, "swap off", Verdict::Partly, "0 of 1 MiB");
    check(&found, "C-states", Verdict::No, "no idle driver");
    check(
        &found,
        "IOMMU groups",
        Verdict::Yes,
        "1 with 1 device, each device alone; booted with intel_iommu=on",
    );
    for unknown in ["VFIO", "KVM", "QEMU", "halt polling", "affinity"] {
        check(&found, unknown, Verdict::Partly, "not in the capture");
    }
    assert!(has_required_capabilities(&found), "what is not known is not missing");
}

/// A capture of this host gives the same rows as the host.
#[test]
fn a_capture_of_this_machine_says_what_it_says() {
    let host = LiveHost::new().unwrap();
    let text = crate::capture(&host).unwrap();
    let live = capabilities(&host);
    let captured = captured_capabilities(&SnapshotHost::parse(&text).unwrap());
    let mut answered = 0;
    for (own, kept) in live.iter().zip(&captured) {
        assert_eq!(own.name, kept.name);
        // The amount of used swap changes meanwhile.
        if kept.why != "not in the capture" && own.name != "swap off" {
            assert_eq!(own, kept);
            answered += 1;
        }
    }
    assert_eq!(answered, 13);
}

#[test]
fn each_tunable_has_a_row() {
    let names: Vec<&str> = capabilities(&SnapshotHost::new()).iter().map(|one| one.name).collect();
    for tunable in TUNABLES {
        assert!(names.contains(&tunable.doctor), "{} has no row {}", tunable.key, tunable.doctor);
    }
    let online = ("/sys/devices/system/cpu/online", "0-3\n");
    check("tunables", &[online], Verdict::No, "no file of any");
    let thp = ("/sys/kernel/mm/transparent_hugepage/enabled", "[never]\n");
    let hotplug = ("/sys/devices/system/cpu/cpu3/online", "1\n");
    check(
        "tunables",
        &[online, thp, hotplug],
        Verdict::Partly,
        "no new-irqs, workqueues, writeback, watchdog-cpus",
    );
    let last = TUNABLES.iter().filter_map(|one| Some(one.kernel?.path(PuId(3))));
    let files: Vec<String> = last.collect();
    let files: Vec<(&str, &str)> = files.iter().map(|path| (path.as_str(), "")).collect();
    check("tunables", &[&files[..], &[online]].concat(), Verdict::Yes, "all");
}
