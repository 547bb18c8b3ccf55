//! Command lines of programs with DPDK or SPDK.

use pinfold_model::Tid;

use super::*;
use crate::owners::tests::{claims_of, found, host, status};

fn process(line: &str) -> Process {
    let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let program = arguments[0].rsplit('/').next().unwrap().to_owned();
    Process { pid: Tid(1), program, arguments }
}

#[test]
fn masks_lists_and_maps_are_read() {
    check("/usr/bin/dpdk-testpmd -l 1-3 -n 4 -- -i --nb-cores=2", Some("1-3"));
    check("dpdk-testpmd -l1,5 -n4", Some("1,5"));
    check("./build/l3fwd -c 0x3e -n 4", Some("1-5"));
    check("app -c 3e --huge-dir /mnt/huge", Some("1-5"));
    check("app --lcores=(0-1)@8,2@(9,10),5 --file-prefix a", Some("5,8-10"));
    check("app --lcores 1,2@4 --proc-type=primary", Some("1,4"));
    check("spdk_tgt -m 0xF", Some("0-3"));
    check("/opt/spdk/build/bin/nvmf_tgt -m [4,6-7] -s 1024", Some("4,6-7"));
    check("spdk_tgt --cpumask=30", Some("4-5"));
    check("app -l 2-3 --vdev=net_tap0 -m 1024 /dev/hugepages/a", Some("2-3"));
    // Options of other programs, and those after `--`.
    check("qemu-system-x86_64 -m 4096 -mem-path /dev/hugepages", None);
    check("ls -l 1-3", None);
    check("gcc -c 0x3", None);
    check("grep -c f -m 1 file", None);
    check("dpdk-proc-info -- -l 1-3", None);
    check("spdk_tgt -s 1024", Some("0"));
    check("spdk_top -s 1", None);
    // The last one counts.
    check("spdk_tgt -m [16,17] -m [18]", Some("18"));
    check("spdk_nvme_perf -q 32 -c 0xC0000", Some("18-19"));
    check("spdk_nvme_perf -q 32 -m -r trtype:PCIe --core-mask=[4,5]", Some("4-5"));
    check("spdk_nvme_perf -q 32 -m 0x10 -r trtype:PCIe", Some("0"));
    check("dpdk-testpmd -l 0-1@(20,21)", Some("20-21"));
    check("dpdk-testpmd -n 4", None);
    check("spdk_tgt --lcores 1@18,2@19", Some("18-19"));
    check("nvmf_tgt --lcores=(1,2)@(18,19)", Some("18-19"));
}

fn check(line: &str, expected: Option<&str>) {
    let found = cores(&process(line)).map(|cores| cores.cpus.unwrap().to_string());
    assert_eq!(found.as_deref(), expected, "{line}");
}

/// Without an option, DPDK binds a thread to each CPU that it may use.
#[test]
fn without_an_option_the_bound_threads_of_dpdk_count() {
    fn check(line: &str, threads: &[(&str, &str)], expected: &[&str]) {
        let mut files = vec![("/proc/70/cmdline".to_owned(), line.replace(' ', "\0") + "\0")];
        for (number, (name, cpus)) in (70..).zip(threads) {
            let path = format!("/proc/70/task/{number}/status");
            files.push((path, status(name, 70, cpus)));
        }
        let files: Vec<(&str, String)> =
            files.iter().map(|(path, text)| (path.as_str(), text.clone())).collect();
        assert_eq!(found(&claims_of(&host(8, &files))), expected, "{line}");
    }

    let control = ("dpdk-intr", "0-3,6-7");
    let new = [("dpdk-testpmd", "4"), control, ("dpdk-worker5", "5")];
    check("dpdk-testpmd -n 4", &new, &["dpdk-testpmd 4-5 exclusive"]);
    let old = [("l3fwd", "4"), ("eal-intr-thread", "0-7"), ("lcore-worker-5", "5")];
    check("l3fwd -n 4 -- -p 1", &old, &["l3fwd 4-5 exclusive"]);
    check("dpdk-testpmd -n 4", &[("dpdk-testpmd", "3"), control], &["dpdk-testpmd 3 exclusive"]);
    check("dpdk-devbind.py -s", &[("dpdk-devbind.py", "0-7")], &[]);
    check("dpdk-testpmd -l 6 -n 4", &new, &["dpdk-testpmd 6 exclusive"]);
}

#[test]
fn bad_values_are_findings() {
    fn check(line: &str, part: &str) -> Vec<String> {
        let text = line.replace(' ', "\0") + "\0";
        let claims = claims_of(&host(8, &[("/proc/77/cmdline", text)]));
        let findings: Vec<String> = claims.findings().iter().map(ToString::to_string).collect();
        assert_eq!(findings.len(), 1, "{line}: {findings:?}");
        assert!(findings[0].contains("process 77") && findings[0].contains(part), "{findings:?}");
        found(&claims)
    }

    assert!(check("dpdk-testpmd -l 3-1", "backwards").is_empty());
    assert!(check("dpdk-testpmd --lcores=(1-2", "not closed").is_empty());
    assert!(check("dpdk-testpmd --lcores=1@", "cannot parse the lcore map").is_empty());
    assert!(check("spdk_tgt -m 0xz", "hexadecimal").is_empty());
    assert_eq!(
        check("spdk_tgt -m 0x10f", "CPU that this host does not have: 8"),
        ["spdk_tgt 0-3 exclusive"]
    );
}
