//! Domain files as libvirt writes them.

use pinfold_host::SnapshotHost;

use super::*;
use crate::owners::tests::{claims_of, found, host};

const WEB: &str = "<!--
WARNING: THIS IS AN AUTO-GENERATED FILE. CHANGES TO IT ARE LIKELY TO BE
OVERWRITTEN AND LOST. Changes to this xml configuration should be made using:
  virsh edit web
or other application using the libvirt API.
-->

<domain type='kvm'>
  <name>web</name>
  <uuid>c7a5fdbd-cdaf-9455-926a-d65c16db1809</uuid>
  <memory unit='KiB'>4194304</memory>
  <vcpu placement='static'>2</vcpu>
  <iothreads>1</iothreads>
  <cputune>
    <vcpupin vcpu='0' cpuset='2'/>
    <vcpupin vcpu='1' cpuset='3'/>
    <emulatorpin cpuset='0-1'/>
    <iothreadpin iothread='1' cpuset='1'/>
  </cputune>
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
</domain>
";

fn status(domain: &str, pid: u32) -> String {
    let domain = domain.split_once("<domain ").map_or(domain, |(_, rest)| rest);
    format!(
        "<domstatus state='running' reason='booted' pid='{pid}'>\n  <taint flag='x'/>\n  \
         <monitor path='/var/lib/libvirt/qemu/domain-1-web/monitor.sock' type='unix'/>\n  \
         <domain {domain}</domstatus>\n"
    )
}

#[test]
fn pins_of_a_definition_have_their_lines() {
    let file = parse(WEB).unwrap();
    assert_eq!((file.name.as_str(), file.pid), ("web", None));
    let pins: Vec<(String, Option<u32>)> =
        file.pins.iter().map(|pin| (pin.cpus.to_string(), pin.line)).collect();
    let pin = |cpus: &str, line| (cpus.to_owned(), Some(line));
    assert_eq!(pins, [pin("2", 15), pin("3", 16), pin("0-1", 17), pin("1", 18)]);
}

#[test]
fn twenty_thousand_pins_have_their_cpus_and_lines() {
    let vcpus = (0..16_384).map(|vcpu| format!("<vcpupin vcpu='{vcpu}' cpuset='{}'/>", vcpu % 64));
    let iothreads =
        (1..=3_616).map(|number| format!("<iothreadpin iothread='{number}' cpuset='64'/>\n"));
    let pins: String = vcpus.chain(["\n".to_owned()]).chain(iothreads).collect();
    let text = format!(
        "<domain type='kvm'>\n<name>web</name>\n<vcpu>16384</vcpu>\n<cputune>{pins}</cputune>\n\
         </domain>\n"
    );
    let file = parse(&text).unwrap();
    assert_eq!(file.pins.len(), 20_000);
    let lines: Vec<Option<u32>> = file.pins.iter().map(|pin| pin.line).collect();
    assert_eq!([lines[0], lines[16_383], lines[16_384]], [Some(4), Some(4), Some(5)]);
    assert_eq!(lines[19_999], Some(4 + 3_616));
    let files = [("/run/libvirt/qemu/web.xml", status(&text, 4242))];
    assert_eq!(found(&claims_of(&host(80, &files))), ["web 0-64 shared"]);
}

#[test]
fn a_status_file_has_its_process() {
    let file = parse(&status(WEB, 4242)).unwrap();
    assert_eq!((file.name.as_str(), file.pid), ("web", Some(Tid(4242))));
    assert_eq!(file.pins.len(), 4);
    assert_eq!(file.pins[0].line, Some(11));
}

#[test]
fn a_running_domain_counts_with_its_present_pins() {
    let moved = WEB.replace("cpuset='2'", "cpuset='6'");
    let defined = [("/etc/libvirt/qemu/web.xml", WEB.to_owned())];
    let running = [("/run/libvirt/qemu/web.xml", status(&moved, 4242))];
    let claims = claims_of(&host(8, &defined));
    assert_eq!(found(&claims), ["web 2-3 exclusive, not running", "web 0-1 shared, not running"]);
    let both: Vec<_> = defined.into_iter().chain(running).collect();
    assert_eq!(found(&claims_of(&host(8, &both))), ["web 3,6 exclusive", "web 0-1 shared"]);
}

#[test]
fn a_status_file_counts_only_with_the_process_of_its_domain() {
    fn check(pid: u32, line: &str, expected: &[&str]) {
        let files = [
            ("/etc/libvirt/qemu/web.xml", WEB.replace("cpuset='2'", "cpuset='6'")),
            ("/run/libvirt/qemu/web.xml", status(WEB, pid)),
            (&format!("/proc/{pid}/cmdline"), line.replace(' ', "\0") + "\0"),
        ];
        let claims = claims_of(&host(8, &files));
        assert_eq!(found(&claims)[..expected.len()], *expected, "{line}");
        let findings: Vec<String> = claims.findings().iter().map(ToString::to_string).collect();
        let is_stale = expected[0].ends_with("not running");
        assert_eq!(findings.len(), usize::from(is_stale), "{line}: {findings:?}");
        if is_stale {
            let part = format!("web.xml: stale, because process {pid} is not the QEMU of domain");
            assert!(findings[0].contains(&part), "{findings:?}");
        }
    }

    let running = ["web 2-3 exclusive", "web 0-1 shared"];
    let defined = ["web 3,6 exclusive, not running", "web 0-1 shared, not running"];
    let uuid = "c7a5fdbd-cdaf-9455-926a-d65c16db1809";
    let qemu = "/usr/bin/qemu-system-x86_64 -name guest=web,debug-threads=on";
    check(4242, &format!("{qemu} -uuid {}", uuid.to_uppercase()), &running);
    check(4242, qemu, &running);
    check(4242, &format!("{qemu} -uuid {}", uuid.replace('c', "d")), &defined);
    check(4242, &qemu.replace("web", "db"), &defined);
    check(1, "/sbin/init splash", &defined);
}

#[test]
fn cpus_of_two_vcpus_and_masks_are_shared() {
    check(
        "<vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='2'/>",
        &["web 2 shared, not running"],
    );
    check("<vcpupin vcpu='0' cpuset='2-5'/>", &["web 2-5 shared, not running"]);
    check("", &[]);
}

fn check(vcpus: &str, expected: &[&str]) {
    let (begin, rest) = WEB.split_once("    <vcpupin").unwrap();
    let (_, end) = rest.split_once("    <emulatorpin cpuset='0-1'/>\n").unwrap();
    let text = format!(
        "{begin}{vcpus}{}",
        end.replace("    <iothreadpin iothread='1' cpuset='1'/>\n", "")
    );
    let host = host(8, &[("/etc/libvirt/qemu/web.xml", text)]);
    assert_eq!(found(&claims_of(&host)), expected, "{vcpus}");
}

#[test]
fn a_damaged_file_is_a_finding_with_its_place() {
    fn check(text: &str, expected: &str) {
        let claims = claims_of(&host(8, &[("/etc/libvirt/qemu/web.xml", text.to_owned())]));
        assert!(claims.all().is_empty(), "{text}");
        let finding = claims.findings()[0].to_string();
        assert!(finding.contains("/etc/libvirt/qemu/web.xml: line"), "{finding}");
        assert!(finding.contains(expected), "{finding}");
    }

    check(&WEB[..WEB.len() / 2], "line");
    check(&WEB.replace("cpuset='2'", "cpuset='2-'"), "column");
    check("<!DOCTYPE a [<!ENTITY b 'c'>]><domain/>", "line 1");
}

#[test]
fn cpus_beyond_those_of_the_host_are_a_finding() {
    let text = WEB.replace("vcpu='1' cpuset='3'", "vcpu='1' cpuset='99'");
    let claims = claims_of(&host(8, &[("/etc/libvirt/qemu/web.xml", text)]));
    assert_eq!(found(&claims)[0], "web 2 exclusive, not running");
    let finding = claims.findings()[0].to_string();
    for part in ["/etc/libvirt/qemu/web.xml, line 16", "web (libvirt domain)", "99", "0-7"] {
        assert!(finding.contains(part), "{finding}");
    }
}

/// Each is a finding, compared with none of those before it.
#[test]
fn thousands_of_pins_and_schedulers_are_read_and_each_fault_is_reported_once() {
    let count = 16_384;
    let pins = (0..count).map(|vcpu| format!("\n<vcpupin vcpu='{vcpu}' cpuset='99'/>"));
    let schedulers =
        (0..count).map(|vcpu| format!("<vcpusched vcpus='{vcpu}' scheduler='fifo' priority='1'/>"));
    let tune: String = pins.chain(schedulers).collect();
    let text = format!(
        "<domain type='kvm'>\n<name>web</name>\n<vcpu>{count}</vcpu>\n<cputune>{tune}</cputune>\n\
         </domain>\n"
    );
    let files = [("/run/libvirt/qemu/web.xml", status(&text, 4242))];
    let claims = claims_of(&host(8, &files));
    assert_eq!(claims.findings().len(), count);
    let mut again = claims.clone();
    again.report(claims.findings()[count / 2].clone());
    assert_eq!(again, claims);
    let twice = text.replace("vcpus='1'", "vcpus='0'");
    let why = parse(&twice).unwrap_err();
    assert!(why.contains("given a scheduler a second time"), "{why}");
}

#[test]
fn a_name_of_any_length_is_cut_where_it_is_shown_and_stays_whole_in_the_claim() {
    let long = "n".repeat(65_536);
    let text = WEB.replace("<name>web</name>", &format!("<name>{long}</name>"));
    let text = text.replace("vcpu='1' cpuset='3'", "vcpu='1' cpuset='99'");
    let claims = claims_of(&host(8, &[("/etc/libvirt/qemu/web.xml", text)]));
    let owner = &claims.all()[0].owner;
    assert_eq!(owner.name, long);
    let shown = format!("{}… (libvirt domain)", &long[..120]);
    assert_eq!(owner.to_string(), shown);
    let finding = claims.findings()[0].to_string();
    assert!(finding.contains(&shown) && finding.len() < 500, "{finding}");
}

#[test]
fn a_link_is_not_read() {
    let mut tree = SnapshotHost::new();
    tree.insert_file("/sys/devices/system/cpu/online", "0-7\n");
    tree.insert_file("/home/user/web.xml", WEB);
    tree.insert_link("/etc/libvirt/qemu/web.xml", "/home/user/web.xml");
    let claims = claims_of(&tree);
    assert!(claims.all().is_empty());
    let finding = &claims.findings()[0].text;
    assert!(finding.contains("web.xml is a link to /home/user/web.xml"), "{finding}");
}

#[test]
fn a_huge_file_is_not_read() {
    let huge = "x".repeat(LARGEST_FILE + 1);
    let claims = claims_of(&host(8, &[("/etc/libvirt/qemu/web.xml", huge)]));
    assert!(claims.all().is_empty());
    assert!(claims.findings()[0].text.contains("is larger than 4 MiB"));
}

#[test]
fn an_instance_of_nova_has_cpus_of_its_pool() {
    let nova = "<metadata><nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'/></metadata>";
    let text = WEB.replace("<os>", &format!("{nova}<os>"));
    let config = "[compute]\ncpu_dedicated_set = 2-7\ncpu_shared_set = 0,1\n".to_owned();
    assert!(claims_with(text, &config).used_twice().is_empty());
    let foreign = claims_with(WEB.to_owned(), &config);
    let conflicts = foreign.used_twice();
    assert_eq!(conflicts.len(), 1);
    let finding = crate::conflicts::findings(&conflicts)[0].to_string();
    assert!(finding.contains("the CPUs 2-3 are used by web"), "{finding}");
    assert!(finding.contains("OpenStack Nova"), "{finding}");
}

fn claims_with(text: String, config: &str) -> Claims {
    let files = [
        ("/run/libvirt/qemu/web.xml", status(&text, 4242)),
        ("/etc/nova/nova.conf", config.to_owned()),
    ];
    claims_of(&host(8, &files))
}
