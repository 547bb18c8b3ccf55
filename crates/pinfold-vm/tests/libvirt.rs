//! A real libvirt daemon of our own: a session daemon with sockets, state and configuration in a
//! temporary folder, and one TCG domain that never leaves its stopped state.
//!
//! As root the daemon runs as the user nobody, because root's is always the system's daemon.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::print_stderr, reason = "a test that cannot run says so")]

use pinfold_host::process::{Child, Spawn, Stdio, capture, find_program, is_root};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, user};
use pinfold_model::{Accelerator, CpuSet, Role};
use pinfold_vm::libvirt::{Domain, Libvirt, PinTarget};
use pinfold_vm::{LibvirtError, VmError, discover};

const SECOND: u64 = 1_000_000_000;
const NAME: &str = "-odd; name $(x)";
const NOBODY: &str = "65534";

/// The daemon, ended with its domain when dropped.
struct Daemon {
    folder: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    /// Starts it, or says why it cannot be.
    fn start() -> Option<Self> {
        if let Some(missing) = missing_program() {
            eprintln!("skipped: {missing} is not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap().to_owned();
        user::make_dirs(&format!("{root}/libvirt")).unwrap();
        // Else a second daemon would be started for the domain's log.
        let settings = b"stdio_handler = \"file\"\n";
        user::write_atomic(&format!("{root}/libvirt/qemu.conf"), settings).unwrap();
        user::write_atomic(&format!("{root}/domain.xml"), domain_xml().as_bytes()).unwrap();
        let words = daemon_words(&root);
        let mut spawn = Spawn::new(&words[0]).args(&words[1..]).own_group().stdin(Stdio::Null);
        for key in ["HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"]
        {
            spawn = spawn.env(key, &root);
        }
        let child = spawn.stdout(Stdio::Null).stderr(Stdio::Null).start().unwrap();
        let daemon = Self { folder, child };
        for _ in 0..200 {
            if daemon.virsh(&["version"]).is_ok() {
                return Some(daemon);
            }
            SystemClock.sleep_ns(SECOND / 20);
        }
        eprintln!("skipped: libvirtd does not start as a session daemon on this machine");
        None
    }

    fn uri(&self) -> String {
        format!("qemu:///session?socket={}/libvirt/libvirt-sock", self.folder.path().display())
    }

    fn virsh(&self, words: &[&str]) -> Result<String, String> {
        let uri = format!("--connect={}", self.uri());
        let words = [&["--quiet", uri.as_str()], words].concat();
        let output = capture("virsh", words, 20 * SECOND).map_err(|error| error.to_string())?;
        if output.status.success() { Ok(output.stdout_text()) } else { Err(output.stderr_text()) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // No domain is left if the test got that far; an error then is what is wanted.
        match self.virsh(&["destroy", &format!("--domain={NAME}")]) {
            Ok(_) | Err(_) => {}
        }
        self.child.kill().unwrap();
    }
}

/// What this test needs and the machine lacks. Root needs setpriv, having no session daemon.
fn missing_program() -> Option<&'static str> {
    let needed = ["libvirtd", "virsh", "qemu-system-x86_64"];
    let for_root = if is_root() { &["setpriv", "chown"][..] } else { &[] };
    needed.iter().chain(for_root).find(|name| find_program(name).is_none()).copied()
}

/// The daemon's command line; as root also hands the folder over to nobody.
fn daemon_words(root: &str) -> Vec<String> {
    let mut words = Vec::new();
    if is_root() {
        let output = capture("chown", ["-R", &format!("{NOBODY}:{NOBODY}"), root], 5 * SECOND);
        assert!(output.unwrap().status.success());
        words.extend(["setpriv", "--clear-groups"].map(str::to_owned));
        words.extend([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
    }
    words.push("libvirtd".to_owned());
    words
}

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
    let Some(daemon) = Daemon::start() else {
        return;
    };
    daemon.virsh(&["define", &format!("{}/domain.xml", daemon.folder.path().display())]).unwrap();
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
