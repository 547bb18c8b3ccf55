//! Table tests of `facts`.

use pinfold_host::SnapshotHost;

use super::{Facts, model_name};

const CPU: &str = "/sys/devices/system/cpu";

fn facts(files: &[(String, &str)]) -> Facts {
    Facts::read(&SnapshotHost::from_files(files.iter().map(|(path, text)| (path.as_str(), *text))))
}

#[test]
fn what_is_missing_is_no_finding() {
    let facts = facts(&[]);
    assert!(facts.findings.is_empty(), "{:?}", facts.findings);
    assert_eq!((facts.online, facts.mask, facts.hypervisor), (None, None, None));
}

#[test]
fn what_is_unreadable_is_a_finding() {
    let mut host = SnapshotHost::new();
    host.insert_bare(&format!("{CPU}/online"));
    host.insert_file(&format!("{CPU}/isolated"), "3-1");
    host.insert_file(&format!("{CPU}/cpufreq/policy0/related_cpus"), "x");
    host.insert_file(&format!("{CPU}/cpufreq/policy1/related_cpus"), "1");
    host.insert_file(&format!("{CPU}/cpufreq/policy1/cpuinfo_max_freq"), "<unknown>");
    let facts = Facts::read(&host);
    let subjects: Vec<&str> = facts.findings.iter().map(|one| one.subject.as_str()).collect();
    let files =
        ["online", "cpufreq/policy0/related_cpus", "cpufreq/policy1/cpuinfo_max_freq", "isolated"];
    let expected = files.map(|file| format!("{CPU}/{file}"));
    assert_eq!(subjects, expected);
}

#[test]
fn lists_of_old_and_new_kernels() {
    let facts = facts(&[
        (format!("{CPU}/online"), "0-3\n"),
        (format!("{CPU}/nohz_full"), "  (null)\n"),
        (format!("{CPU}/isolated"), "\n"),
        (format!("{CPU}/cpufreq/policy2/related_cpus"), "2 3\n"),
        (format!("{CPU}/cpufreq/policy0/related_cpus"), "0 1\n"),
        (format!("{CPU}/cpufreq/policy0/cpuinfo_max_freq"), "2500000\n"),
        (format!("{CPU}/cpufreq/boost"), "1\n"),
    ]);
    assert!(facts.findings.is_empty(), "{:?}", facts.findings);
    let domains: Vec<String> = facts.frequency_domains.iter().map(ToString::to_string).collect();
    assert_eq!(domains, ["0-1", "2-3"]);
    let highest: Vec<_> = facts.highest_khz.iter().map(|(pu, khz)| (pu.0, *khz)).collect();
    assert_eq!(highest, [(0, 2_500_000), (1, 2_500_000)]);
    assert!(facts.nohz_full.is_empty() && facts.isolated.is_empty());
}

#[test]
fn free_memory_by_node() {
    const NODE: &str = "/sys/devices/system/node";
    let nodes = (format!("{NODE}/has_memory"), "0-2\n");
    let file = |node: u32, text| (format!("{NODE}/node{node}/meminfo"), text);
    let host = [
        nodes,
        file(0, "Node 0 MemTotal: 8 kB\nNode 0 MemFree: 3 kB\nNode 0 Inactive(file): 1 kB\n"),
        file(1, "Node 1 MemTotal: 8 kB\n"),
    ];
    let found = facts(&host);
    assert!(found.findings.is_empty(), "{:?}", found.findings);
    let free: Vec<_> = found.free_bytes.iter().map(|(node, bytes)| (node.0, *bytes)).collect();
    assert_eq!(free, [(0, 4096)], "nodes without data stay unknown");
    let [nodes, ..] = host;
    let wrong = facts(&[nodes, file(0, "Node 0 MemFree: x kB\n")]);
    assert_eq!((wrong.findings.len(), wrong.free_bytes.len()), (1, 0));
}

/// The driver's ranking, else the firmware's; a ranking of equal values counts as none.
#[test]
fn which_cores_the_firmware_prefers() {
    check(["236\n", "231\n"], ["166\n", "166\n"], &[(0, 236), (1, 231)]);
    check(["", ""], ["196\n", "201\n"], &[(0, 196), (1, 201)]);
    check(["0\n", "0\n"], ["", ""], &[]);
    check(["", ""], ["", ""], &[]);
}

fn check(ranks: [&str; 2], cppc: [&str; 2], expected: &[(u32, u32)]) {
    let mut files = vec![(format!("{CPU}/online"), "0-1\n")];
    for pu in 0..2 {
        let policy = format!("{CPU}/cpufreq/policy{pu}");
        files.push((format!("{policy}/related_cpus"), ["0\n", "1\n"][pu]));
        files.push((format!("{policy}/amd_pstate_prefcore_ranking"), ranks[pu]));
        files.push((format!("{CPU}/cpu{pu}/acpi_cppc/highest_perf"), cppc[pu]));
    }
    files.retain(|(_, text)| !text.is_empty());
    let facts = facts(&files);
    let ranking: Vec<_> = facts.core_ranking.iter().map(|(pu, rank)| (pu.0, *rank)).collect();
    assert_eq!(ranking, expected);
    assert!(facts.findings.is_empty(), "{:?}", facts.findings);
}

#[test]
fn whose_guest_this_is() {
    fn check(cpuinfo: &str, vendor: &str, kind: &str, clocks: &str, expected: Option<&str>) {
        let all = [
            ("/proc/cpuinfo", cpuinfo),
            ("/sys/devices/virtual/dmi/id/sys_vendor", vendor),
            ("/sys/hypervisor/type", kind),
            ("/sys/devices/system/clocksource/clocksource0/available_clocksource", clocks),
        ];
        let given = all.iter().filter(|(_, text)| !text.is_empty()).copied();
        let facts = Facts::read(&SnapshotHost::from_files(given));
        assert_eq!(facts.hypervisor.as_deref(), expected, "{cpuinfo:?} {vendor:?} {kind:?}");
    }

    let (guest, bare) = ("flags\t: fpu hypervisor sse\n", "flags\t: fpu sse\n");
    check(guest, "QEMU\n", "", "tsc", Some("QEMU/KVM"));
    check(guest, "", "", "tsc kvm-clock", Some("KVM"));
    check(guest, "", "xen\n", "", Some("xen"));
    check(guest, "Unheard Of\n", "", "tsc", Some("a hypervisor that does not name itself"));
    check(bare, "Amazon EC2\n", "", "tsc", None);
    check(bare, "Dell Inc.\n", "", "", None);
    check("", "QEMU\n", "", "", Some("QEMU/KVM"));
    check("", "Amazon EC2\n", "", "", None);
    check("", "", "", "", None);
}

#[test]
fn models_of_several_architectures() {
    fn check(cpuinfo: &str, expected: Option<&str>) {
        assert_eq!(model_name(cpuinfo).as_deref(), expected, "{cpuinfo:?}");
    }

    check("cpu family\t: 6\nmodel\t\t: 60\nmodel name\t: Intel(R)  i7 \n", Some("Intel(R) i7"));
    check("processor\t: 0\ncpu\t\t: POWER9\n", Some("POWER9"));
    check("CPU part\t: 0xd05\n", None);
}
