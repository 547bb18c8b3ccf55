//! A real libvirt daemon of our own, and one TCG domain that never leaves its stopped state.

use crate::daemon::Daemon;
use pinfold_host::process::find_program;
use pinfold_host::{Host as _, LiveHost, SettingBackend as _, files};
use pinfold_model::{Accelerator, CpuSet, Lifetime, Role, Setting, SettingManager};
use pinfold_vm::discover;
use pinfold_vm::libvirt::{Domain, Libvirt, LibvirtBackend, LibvirtError, PinTarget};

const SECOND: u64 = 1_000_000_000;
const NAME: &str = "-odd; name $(x)";

/// The iothread's number is given, because libvirt writes it out itself at the first
/// `iothreadpin --config` and keeps it.
fn domain_xml() -> String {
    format!(
        "<domain type='qemu'><name>{NAME}</name><memory unit='MiB'>32</memory><vcpu>2</vcpu>
         <iothreads>1</iothreads><iothreadids><iothread id='1'/></iothreadids><os><type arch='x86_64' machine='q35'>hvm</type></os>
         <devices><emulator>{}</emulator></devices></domain>",
        find_program("qemu-system-x86_64").unwrap()
    )
}

#[test]
fn finds_a_domain_and_moves_its_pins() {
    let Some(daemon) = Daemon::start(NAME) else {
        return;
    };
    let file = format!("{}/domain.xml", daemon.folder.path().display());
    files::write_atomic(&file, domain_xml().as_bytes()).unwrap();
    daemon.virsh(&["define", &file]).unwrap();
    let host = LiveHost::new().unwrap();
    let libvirt = Libvirt::new(Some(&daemon.uri()), 60 * SECOND).unwrap();
    refuses_what_does_not_run(&libvirt, &host);

    daemon.virsh(&["start", &format!("--domain={NAME}"), "--paused"]).unwrap();
    let domain = libvirt.find(&host, NAME).unwrap();
    assert_eq!(domain.name, NAME);
    assert_eq!(libvirt.find(&host, &domain.uuid).unwrap(), domain);
    assert_eq!(libvirt.find(&host, "1").unwrap(), domain);
    let found = discover(&host, domain.pid, Some(&mut libvirt.monitor(&domain))).unwrap();
    assert_eq!((found.accelerator, found.vcpus), (Some(Accelerator::TcgMulti), 2));

    moves_pins_there_and_back(&libvirt, &domain, &|role| {
        let thread = found.threads.iter().find(|thread| thread.role == *role).unwrap();
        host.affinity(thread.task.tid).unwrap()
    });
    changes_the_definition_and_back(&daemon, &libvirt, &domain);
    let keeper = LibvirtBackend::new(60 * SECOND);
    let pin = setting(&libvirt, &domain, "vcpupin 0", Lifetime::Running);
    let error = keeper.set(&pin, Some("900")).unwrap_err();
    assert!(error.to_string().contains("virsh vcpupin failed: "), "{error}");
    assert!(!error.is_gone(), "{error}");
    an_ended_domain_is_gone(&daemon, &libvirt, &domain);
}

fn refuses_what_does_not_run(libvirt: &Libvirt, host: &LiveHost) {
    let error = libvirt.find(host, NAME).unwrap_err();
    assert_eq!(error.to_string(), format!("domain {NAME:?} is not running (it is shut off)"));
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    for name in ["nonesuch", uuid, "--help", "-c", "$(reboot)", "a\nb", ""] {
        let error = libvirt.find(host, name).unwrap_err();
        let unknown = matches!(error.downcast_driver(), Some(LibvirtError::NoDomain { .. }));
        assert!(unknown, "{name:?}: {error}");
    }
    let nowhere = Libvirt::new(Some("qemu:///session?socket=/absent"), SECOND).unwrap();
    let error = nowhere.find(host, NAME).unwrap_err();
    assert!(error.to_string().contains("failed to connect to the hypervisor"), "{error}");
}

fn setting(libvirt: &Libvirt, domain: &Domain, key: &str, lifetime: Lifetime) -> Setting {
    libvirt.setting(domain, key, lifetime).unwrap()
}

fn moves_pins_there_and_back(libvirt: &Libvirt, domain: &Domain, mask: &dyn Fn(&Role) -> CpuSet) {
    let keeper = LibvirtBackend::new(60 * SECOND);
    let before = mask(&Role::Vcpu(1));
    let one = CpuSet::single(before.first().unwrap());
    let iothread = Role::Iothread("iothread1".to_owned());
    for role in [Role::Emulator, iothread, Role::Vcpu(1)] {
        let key = PinTarget::from_role(&role).unwrap().key();
        let setting = setting(libvirt, domain, &key, Lifetime::Running);
        assert_eq!(keeper.get(&setting).unwrap(), None, "{role}");
        keeper.set(&setting, Some(&one.to_string())).unwrap();
        assert_eq!(keeper.get(&setting).unwrap(), Some(one.to_string()), "{role}");
        assert_eq!(mask(&role), one, "{role}");
        assert_eq!(mask(&Role::Vcpu(0)), before);
        keeper.set(&setting, None).unwrap();
        assert_eq!(mask(&role), before, "{role}");
    }
}

/// A definition is as it was, byte for byte, after a pin was put in and taken out.
fn changes_the_definition_and_back(daemon: &Daemon, libvirt: &Libvirt, domain: &Domain) {
    let keeper = LibvirtBackend::new(60 * SECOND);
    fn xml(daemon: &Daemon, domain: &Domain) -> String {
        daemon.virsh(&["dumpxml", &domain.uuid, "--inactive"]).unwrap()
    }
    let before = xml(daemon, domain);
    let keys = ["vcpupin 0", "vcpupin 1", "emulatorpin", "iothreadpin 1", "numatune"];
    let settings = keys.map(|key| setting(libvirt, domain, key, Lifetime::Lasting));
    for setting in &settings {
        let value = if setting.key == "numatune" { "strict 0" } else { "0" };
        keeper.set(setting, Some(value)).unwrap();
        assert_eq!(keeper.get(setting).unwrap().as_deref(), Some(value), "{setting}");
    }
    assert!(xml(daemon, domain).contains("<emulatorpin cpuset='0'/>"), "{}", xml(daemon, domain));
    for setting in &settings {
        keeper.set(setting, None).unwrap();
        assert_eq!(keeper.get(setting).unwrap(), None, "{setting}");
        // Once more is no error: an undo may be repeated.
        keeper.set(setting, None).unwrap();
    }
    assert_eq!(xml(daemon, domain), before);
}

fn an_ended_domain_is_gone(daemon: &Daemon, libvirt: &Libvirt, domain: &Domain) {
    let keeper = LibvirtBackend::new(60 * SECOND);
    let running = setting(libvirt, domain, "vcpupin 0", Lifetime::Running);
    let lasting = setting(libvirt, domain, "vcpupin 0", Lifetime::Lasting);
    daemon.virsh(&["destroy", &domain.uuid]).unwrap();
    assert!(keeper.get(&running).unwrap_err().is_gone());
    assert!(keeper.set(&running, Some("0")).unwrap_err().is_gone());
    assert_eq!(keeper.get(&lasting).unwrap(), None);
    daemon.virsh(&["undefine", &domain.uuid]).unwrap();
    assert!(keeper.get(&lasting).unwrap_err().is_gone());
    // A daemon that does not answer says nothing about its domains.
    let error = keeper
        .get(&Setting {
            keeper: SettingManager::Libvirt { uri: "qemu:///session?socket=/absent".to_owned() },
            ..running.clone()
        })
        .unwrap_err();
    assert!(!error.is_gone(), "{error}");
    assert!(error.hint().unwrap().contains("start libvirtd"), "{error}");
}
