//! Recorded output of virsh 9.0.

use pinfold_host::SettingBackend as _;
use pinfold_model::{CpuSet, Lifetime, Role, Setting, SettingManager};
use serde_json::json;

use super::*;

const XML: &str = "<domain type='qemu' id='1'>
  <name>-odd name</name>
  <vcpu placement='static' cpuset='0-3,^2'>2</vcpu>
  <cputune>
    <shares>10</shares>
    <vcpupin vcpu='1' cpuset='1'/>
    <emulatorpin cpuset='0'/>
    <iothreadpin iothread='1' cpuset='0,3'/>
  </cputune>
  <devices><vcpupin vcpu='9' cpuset='9'/></devices>
</domain>";

fn set(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

#[test]
fn reads_pins() {
    fn check(pins: &Pins, target: PinTarget, expected: &str) {
        assert_eq!(pins.cpus_for(target), Some(&set(expected)), "{target}");
    }

    let pins = Pins::from_xml(XML).unwrap();
    check(&pins, PinTarget::Vcpu(0), "0,1,3");
    check(&pins, PinTarget::Vcpu(1), "1");
    check(&pins, PinTarget::Emulator, "0");
    check(&pins, PinTarget::Iothread(1), "0,3");
    assert_eq!(pins.own.len(), 3);
    assert_eq!(Pins::from_xml("<domain/>").unwrap(), Pins::default());
}

#[test]
fn refuses_odd_xml() {
    check("", "cannot parse the output of virsh dumpxml");
    check("<!DOCTYPE d [<!ENTITY a 'b'>]><domain>&a;</domain>", "DTD");
    check("<domain><cputune><vcpupin cpuset='1'/></cputune></domain>", "<vcpupin> has no vcpu");
    check("<domain><cputune><emulatorpin/></cputune></domain>", "<emulatorpin> has no cpuset");
    check("<domain><cputune><emulatorpin cpuset='x'/></cputune></domain>", "not a list of CPUs");
    check("<domain><vcpu cpuset='3-1'/></domain>", "runs backwards");
}

fn check(xml: &str, expected: &str) {
    let error = Pins::from_xml(xml).unwrap_err().to_string();
    assert!(error.contains(expected), "{xml}: {error}");
}

#[test]
fn reads_what_else_has_to_do_with_the_place() {
    assert!(Pins::from_xml(XML).unwrap().running);
    assert!(!Pins::from_xml("<domain/>").unwrap().running);
    assert_eq!(memory("<numatune><memory nodeset='0-1'/></numatune>"), mode("strict", "0-1"));
    let restrictive = "<numatune><memory mode='restrictive' nodeset='1'/></numatune>";
    assert_eq!(memory(restrictive), mode("restrictive", "1"));
    assert_eq!(memory("<numatune><memory placement='auto'/></numatune>"), None);
}

fn memory(tune: &str) -> Option<(String, CpuSet)> {
    Pins::from_xml(&format!("<domain>{tune}</domain>")).unwrap().memory
}

fn mode(mode: &str, nodes: &str) -> Option<(String, CpuSet)> {
    Some((mode.to_owned(), set(nodes)))
}

#[test]
fn takes_one_element_out() {
    fn check(tune: &str, key: &str, expected: Option<&str>) {
        fn domain(tune: &str) -> String {
            format!("<domain><!-- a --><name>x</name>{tune}<b/></domain>")
        }

        let found = pins::remove_pin(&domain(tune), key).unwrap();
        assert_eq!(found, expected.map(domain), "{tune} {key}");
    }

    let one = "<cputune><vcpupin vcpu='0' cpuset='1'/></cputune>";
    let two = "<cputune><shares>9</shares><vcpupin vcpu='0' cpuset='1'/><!-- c --></cputune>";
    check(one, "vcpupin 0", Some(""));
    check(two, "vcpupin 0", Some("<cputune><shares>9</shares><!-- c --></cputune>"));
    check(two, "vcpupin 1", None);
    check(two, "emulatorpin", None);
    check("", "vcpupin 0", None);
    check("<numatune><memory nodeset='0'/></numatune>", "numatune", Some(""));
    let cells = "<numatune><memory nodeset='0'/><memnode cellid='0' nodeset='0'/></numatune>";
    check(cells, "numatune", Some("<numatune><memnode cellid='0' nodeset='0'/></numatune>"));
}

#[test]
fn keys_name_pins() {
    for pin in [PinTarget::Vcpu(3), PinTarget::Emulator, PinTarget::Iothread(1)] {
        assert_eq!(PinTarget::from_key(&pin.key()), Some(pin));
    }
    for key in ["", "vcpupin", "vcpupin x", "emulatorpin 1", NUMATUNE] {
        assert_eq!(PinTarget::from_key(key), None, "{key}");
    }
}

#[test]
fn a_hook_gets_the_domain() {
    let uuid = "31a8baa6-60f9-41a2-b3e7-38b09e2b2539";
    let reported = HookDomain::from_xml(&xml("-a; b", uuid)).unwrap();
    assert_eq!((reported.name.as_str(), reported.uuid.as_str()), ("-a; b", uuid));
    assert_eq!(reported.pins.default, Some(set("1")));
    for (name, uuid) in [("", uuid), ("../a", uuid), ("a", ""), ("a", "x"), ("a\nb", uuid)] {
        HookDomain::from_xml(&xml(name, uuid)).unwrap_err();
    }
    let error = HookDomain::from_xml("").unwrap_err().to_string();
    assert!(error.starts_with("cannot parse the domain's XML on standard input: "), "{error}");
}

fn xml(name: &str, uuid: &str) -> String {
    format!("<domain><name>{name}</name><uuid>{uuid}</uuid><vcpu cpuset='1'>1</vcpu></domain>")
}

#[test]
fn names_roles_as_libvirt_does() {
    fn check(role: Role, expected: Option<PinTarget>) {
        assert_eq!(PinTarget::from_role(&role).ok(), expected, "{role}");
    }

    check(Role::Vcpu(3), Some(PinTarget::Vcpu(3)));
    check(Role::Emulator, Some(PinTarget::Emulator));
    check(Role::Iothread("iothread2".to_owned()), Some(PinTarget::Iothread(2)));
    check(Role::Iothread("disk".to_owned()), None);
    check(Role::Vhost(0), None);
    check(Role::Worker, None);
}

#[test]
fn reads_replies() {
    fn check(reply: &str, expected: &str) {
        let error = reply_of("nix", reply).unwrap_err().to_string();
        assert!(error.contains(expected), "{reply}: {error}");
    }

    let good = r#"{"return":[{"thread-id":13000}],"id":"libvirt-412"}"#;
    assert_eq!(reply_of("q", good).unwrap(), json!([{"thread-id": 13000}]));
    let refused = r#"{"id":"libvirt-415","error":{"class":"CommandNotFound","desc":"The command nix has not been found"}}"#;
    check(refused, "QEMU refused nix: The command nix has not been found");
    check("{}", "neither return nor error");
    check("nonsense", "cannot parse");
}

#[test]
fn knows_uuids() {
    assert!(is_uuid("31a8baa6-60f9-41a2-b3e7-38b09e2b2539"));
    for text in ["", "-", "31a8baa6", "--domain", "31a8baa6-60f9-41a2-b3e7-38b09e2b253x"] {
        assert!(!is_uuid(text), "{text}");
    }
}

/// A daemon that hangs: its socket accepts connections, and nothing answers. Only the first question
/// waits for its timeout; the others would wait for an hour.
#[test]
fn a_silent_daemon_costs_one_timeout() {
    const SECOND: u64 = 1_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let uri = format!("qemu:///session?socket={}", socket.display());
    let Ok(libvirt) = Libvirt::new(Some(&uri), SECOND) else {
        println!("skipped: virsh is not installed");
        return;
    };
    let error = libvirt.names().unwrap_err();
    assert!(matches!(error.downcast_driver(), Some(LibvirtError::Silent { .. })), "{error}");
    assert!(error.to_string().contains(&uri), "{error}");
    let patient = Libvirt { timeout_ns: 3600 * SECOND, ..libvirt };
    let error = patient.names().unwrap_err();
    assert!(matches!(error.downcast_driver(), Some(LibvirtError::Silent { .. })), "{error}");
    let setting = Setting {
        keeper: SettingManager::Libvirt { uri },
        object: "web".to_owned(),
        key: "vcpupin 0".to_owned(),
        lifetime: Lifetime::Running,
    };
    let error = LibvirtBackend::new(3600 * SECOND).get(&setting).unwrap_err();
    assert!(!error.is_gone() && error.to_string().contains("did not answer"), "{error}");
    assert!(error.hint().unwrap_or_default().contains("restart libvirtd"), "{error}");
}
