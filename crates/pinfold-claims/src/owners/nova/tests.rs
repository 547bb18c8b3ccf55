//! Configuration files of Nova.

use crate::owners::tests::{claims_of, found, host};

const CONF: &str = "[DEFAULT]
# vcpu_pin_set = 0-3
compute_driver = libvirt.LibvirtDriver

[compute]
cpu_dedicated_set = 4-12,^8,15
cpu_shared_set=0-3
[libvirt]
cpu_dedicated_set = 1
";

#[test]
fn sets_are_read_from_their_section() {
    let claims = claims_of(&host(16, &[("/etc/nova/nova.conf", CONF.to_owned())]));
    assert_eq!(
        found(&claims),
        ["OpenStack Nova 4-7,9-12,15 exclusive", "OpenStack Nova 0-3 shared"]
    );
    let source = claims.all()[0].source.to_string();
    assert_eq!(source, "/etc/nova/nova.conf, line 6: cpu_dedicated_set=4-12,^8,15");
}

#[test]
fn the_later_file_and_the_newer_name_count() {
    let files = [
        ("/etc/nova/nova.conf", "[DEFAULT]\nvcpu_pin_set = 1\n".to_owned()),
        ("/etc/nova/nova-cpu.conf", CONF.replace("4-12,^8,15", "2")),
        ("/etc/nova/nova.conf.d/50-local.conf", "[compute]\ncpu_shared_set: 0\n".to_owned()),
    ];
    let claims = claims_of(&host(16, &files));
    assert_eq!(found(&claims), ["OpenStack Nova 2 exclusive", "OpenStack Nova 0 shared"]);
    let claims = claims_of(&host(16, &files[..1]));
    assert_eq!(found(&claims), ["OpenStack Nova 1 exclusive"]);
}

#[test]
fn a_bad_list_is_a_finding_with_its_line() {
    let text = CONF.replace("4-12,^8,15", "12-4");
    let claims = claims_of(&host(16, &[("/etc/nova/nova.conf", text)]));
    assert_eq!(found(&claims), ["OpenStack Nova 0-3 shared"]);
    let finding = claims.findings()[0].to_string();
    for part in ["/etc/nova/nova.conf, line 6", "cpu_dedicated_set", "backwards"] {
        assert!(finding.contains(part), "{finding}");
    }
}

/// Each of these is read, or said.
#[test]
fn other_ways_to_write_a_set_are_read() {
    fn check(text: &str, expected: &str) {
        let claims = claims_of(&host(16, &[("/etc/nova/nova.conf", text.to_owned())]));
        let shown = match claims.findings() {
            [] => found(&claims).join("; "),
            [first, ..] => first.to_string(),
        };
        assert!(shown.contains(expected), "{text:?}: {shown}");
    }

    check("\u{feff}[compute]\ncpu_dedicated_set = 4-5\n", "Nova 4-5 exclusive");
    check("[Compute]\r\ncpu_dedicated_set = 4-5\r\n", "Nova 4-5 exclusive");
    check("[compute] # CPUs\ncpu_dedicated_set = 4-5\n", "Nova 4-5 exclusive");
    check("[compute]\ncpu_dedicated_set = 4-5,\n# more\n  8-9\n", "Nova 4-5,8-9 exclusive");
    check("[compute]\ncpu_dedicated_set 4-5\n", "expected cpu_dedicated_set = CPUS, got");
    check("[compute]\ncpu_dedicated_set = 4-5\n 8-9\n", "line 2");
}

#[test]
fn exclusions_are_read_as_nova_reads_them() {
    fn check(text: &str, expected: &str) {
        assert_eq!(super::parse_cpus(text).unwrap().to_string(), expected, "{text}");
    }

    check("4-12,^8,15", "4-7,9-12,15");
    check("^8, 4-12,,^9", "4-7,10-12");
    check("^1,4-5", "4-5");
    check("4-15,^6-7", "4-5,8-15");
    assert!(super::parse_cpus("4-5,^x").unwrap_err().contains('x'));
}

#[test]
fn the_file_of_nova_compute_overrides_that_of_all_services() {
    let files = [
        ("/etc/nova/nova.conf", CONF.to_owned()),
        ("/etc/nova/nova-compute.conf", "[compute]\ncpu_dedicated_set=^4,4-6\n".to_owned()),
    ];
    let claims = claims_of(&host(16, &files));
    assert_eq!(found(&claims), ["OpenStack Nova 0-3 shared", "OpenStack Nova 5-6 exclusive"]);
}
