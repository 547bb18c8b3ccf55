//! Boot parameters.

use super::*;
use crate::owners::tests::{claims_of, found, host};

#[test]
fn the_last_parameter_counts() {
    check_parameter("quiet isolcpus=1 isolcpus=nohz,domain,2-N\n", Some("nohz,domain,2-N"));
    check_parameter("quiet xisolcpus=1", None);
    check_parameter("", None);
}

fn check_parameter(text: &str, expected: Option<&str>) {
    assert_eq!(parameter(text, "isolcpus"), expected, "{text}");
}

#[test]
fn the_kernel_reads_the_parameters() {
    let claims = claims_with("2-7\n", "  (null)\n");
    assert_eq!(found(&claims), ["isolcpus 2-7 preferred"]);
    assert!(claims.all()[0].source.to_string().ends_with("isolcpus=nohz,domain,2-N"));
    assert_eq!(claims_with("2-7\n", "2-7\n").all().len(), 2);
    assert_eq!(claims_with("7-2\n", "2-7\n").findings().len(), 1);
}

fn claims_with(isolated: &str, full: &str) -> Claims {
    let files = [
        ("/proc/cmdline", "isolcpus=nohz,domain,2-N nohz_full=2-N\n".to_owned()),
        ("/sys/devices/system/cpu/isolated", isolated.to_owned()),
        ("/sys/devices/system/cpu/nohz_full", full.to_owned()),
    ];
    claims_of(&host(8, &files))
}

/// A host with fewer CPUs than the parameters and masks name, after one was taken out.
#[test]
fn sets_beyond_the_cpus_of_the_host_are_cut_and_named() {
    fn check(files: &[(&str, &str)], expected: &str, strange: &str) {
        let files: Vec<(&str, String)> =
            files.iter().map(|(path, text)| (*path, (*text).to_owned())).collect();
        let claims = claims_of(&host(8, &files));
        assert_eq!(found(&claims), [expected]);
        let finding = claims.findings()[0].to_string();
        let part = format!("this host does not have: {strange}");
        assert!(finding.contains(&part), "{finding}");
    }

    let cmdline = ("/proc/cmdline", "isolcpus=6-9\n");
    check(
        &[cmdline, ("/sys/devices/system/cpu/isolated", "6-9\n")],
        "isolcpus 6-7 preferred",
        "8-9",
    );
    let cmdline = ("/proc/cmdline", "nohz_full=4-15\n");
    check(
        &[cmdline, ("/sys/devices/system/cpu/nohz_full", "4-15\n")],
        "nohz_full 4-7 preferred",
        "8-15",
    );
    check(
        &[("/etc/nova/nova.conf", "[compute]\ncpu_dedicated_set=7,64\n")],
        "OpenStack Nova 7 exclusive",
        "64",
    );
    check(&[("/proc/9/cmdline", "spdk_tgt\0-m\x000x180\0")], "spdk_tgt 7 exclusive", "8");
}
