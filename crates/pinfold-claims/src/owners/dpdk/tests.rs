//! Command lines of programs with DPDK or SPDK.

use pinfold_model::Tid;

use super::*;
use crate::owners::tests::{claims_of, found, host};

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
    check("spdk_tgt -s 1024", None);
    check("spdk_tgt --lcores 1@18,2@19", Some("18-19"));
    check("nvmf_tgt --lcores=(1,2)@(18,19)", Some("18-19"));
}

fn check(line: &str, expected: Option<&str>) {
    let found = cores(&process(line)).map(|cores| cores.cpus.unwrap().to_string());
    assert_eq!(found.as_deref(), expected, "{line}");
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
