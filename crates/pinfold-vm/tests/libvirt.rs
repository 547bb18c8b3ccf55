//! A real libvirt daemon of our own, and one TCG domain that never leaves its stopped state.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::print_stderr, reason = "a test that cannot run says so")]

mod daemon;

use daemon::Daemon;
use pinfold_host::process::find_program;
use pinfold_host::{Host as _, LiveHost, user};
use pinfold_model::{Accelerator, CpuSet, Role};
use pinfold_vm::libvirt::{Domain, Libvirt, PinTarget};
use pinfold_vm::{LibvirtError, VmError, discover};

const SECOND: u64 = 1_000_000_000;
const NAME: &str = "-odd; name $(x)";

fn domain_xml() -> String {
    format!(
        "<domain type='qemu'><name>{NAME}</name><memory unit='MiB'>32</memory><vcpu>2</vcpu>
         <iothreads>1</iothreads><os><type arch='x86_64' machine='q35'>hvm</type></os>
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
    user::write_atomic(&file, domain_xml().as_bytes()).unwrap();
    daemon.virsh(&["define", &file]).unwrap();
    let host = LiveHost::new().unwrap();
    let libvirt = Libvirt::new(Some(&daemon.uri()), 20 * SECOND).unwrap();
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
    let absent = CpuSet::parse_list("900").unwrap();
    let changes = libvirt.pin_changes(&domain, &[(Role::Vcpu(0), absent)]).unwrap();
    let error = libvirt.set_pin(&domain, &changes[0]).unwrap_err();
    assert!(error.to_string().starts_with("virsh vcpupin failed: "), "{error}");
}

fn refuses_what_does_not_run(libvirt: &Libvirt, host: &LiveHost) {
    let error = libvirt.find(host, NAME).unwrap_err();
    assert_eq!(error.to_string(), format!("domain {NAME:?} is not running (it is shut off)"));
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    for name in ["nonesuch", uuid, "--help", "-c", "$(reboot)", "a\nb", ""] {
        let error = libvirt.find(host, name).unwrap_err();
        let unknown = matches!(error, VmError::Libvirt(LibvirtError::NoDomain { .. }));
        assert!(unknown, "{name:?}: {error}");
    }
    let nowhere = Libvirt::new(Some("qemu:///session?socket=/absent"), SECOND).unwrap();
    let error = nowhere.find(host, NAME).unwrap_err();
    assert!(error.to_string().contains("failed to connect to the hypervisor"), "{error}");
}

fn moves_pins_there_and_back(libvirt: &Libvirt, domain: &Domain, mask: &dyn Fn(&Role) -> CpuSet) {
    let before = mask(&Role::Vcpu(1));
    let one = CpuSet::single(before.first().unwrap());
    let iothread = Role::Iothread("iothread1".to_owned());
    let wanted = [Role::Emulator, iothread, Role::Vcpu(1)].map(|role| (role, one.clone()));
    let changes = libvirt.pin_changes(domain, &wanted).unwrap();
    assert_eq!(changes.len(), 3);
    for change in &changes {
        assert_eq!(change.before, None);
        libvirt.set_pin(domain, change).unwrap();
    }
    for (role, _) in &wanted {
        assert_eq!(mask(role), one, "{role}");
    }
    assert_eq!(mask(&Role::Vcpu(0)), before);
    assert_eq!(libvirt.pin_changes(domain, &wanted).unwrap(), []);
    assert_eq!(libvirt.pins(domain).unwrap().of(PinTarget::Iothread(1)), Some(&one));

    for change in &changes {
        libvirt.undo_pin(domain, change).unwrap();
    }
    for (role, _) in &wanted {
        assert_eq!(mask(role), before, "{role}");
    }
}
