//! A real libvirt daemon of our own: a session daemon with sockets, state and configuration in a
//! temporary folder, and one TCG domain that never leaves its stopped state.
//!
//! As root the daemon runs as the user nobody, because root's is always the system's daemon.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::print_stderr, reason = "a test that cannot run says so")]

use pinfold_host::process::{Child, Spawn, Stdio, capture, find_program, is_root};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, user};
use pinfold_model::{Accelerator, CpuSet, Role};
use pinfold_vm::libvirt::{Libvirt, PinTarget};
use pinfold_vm::{VmError, discover};

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
        for program in ["libvirtd", "virsh", "qemu-system-x86_64"] {
            if find_program(program).is_none() {
                eprintln!("skipped: {program} is not installed");
                return None;
            }
        }
        if is_root() && find_program("setpriv").is_none() {
            eprintln!("skipped: setpriv is not installed, and root has no session daemon");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap().to_owned();
        user::make_dirs(&format!("{root}/libvirt")).unwrap();
        // Else a second daemon would be started for the domain's log.
        user::write_atomic(
            &format!("{root}/libvirt/qemu.conf"),
            b"stdio_handler = \"file\"\n",
        )
        .unwrap();
        user::write_atomic(&format!("{root}/domain.xml"), domain_xml().as_bytes()).unwrap();
        let mut words = vec!["libvirtd".to_owned()];
        if is_root() {
            let output = capture(
                "chown",
                ["-R", &format!("{NOBODY}:{NOBODY}"), &root],
                5 * SECOND,
            );
            assert!(output.unwrap().status.success());
            let user = format!("--reuid={NOBODY}");
            let group = format!("--regid={NOBODY}");
            words.splice(
                0..0,
                ["setpriv", &user, &group, "--clear-groups"].map(str::to_owned),
            );
        }
        let mut spawn = Spawn::new(&words[0])
            .args(&words[1..])
            .own_group()
            .stdin(Stdio::Null);
        for key in [
            "HOME",
            "XDG_RUNTIME_DIR",
            "XDG_CONFIG_HOME",
            "XDG_CACHE_HOME",
            "XDG_DATA_HOME",
        ] {
            spawn = spawn.env(key, &root);
        }
        let child = spawn
            .stdout(Stdio::Null)
            .stderr(Stdio::Null)
            .start()
            .unwrap();
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
        format!(
            "qemu:///session?socket={}/libvirt/libvirt-sock",
            self.folder.path().display()
        )
    }

    fn virsh(&self, words: &[&str]) -> Result<String, String> {
        let uri = format!("--connect={}", self.uri());
        let words = [&["--quiet", uri.as_str()], words].concat();
        let output = capture("virsh", words, 20 * SECOND).map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(output.stdout_text())
        } else {
            Err(output.stderr_text())
        }
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
    daemon
        .virsh(&[
            "define",
            &format!("{}/domain.xml", daemon.folder.path().display()),
        ])
        .unwrap();
    let host = LiveHost::new().unwrap();
    let libvirt = Libvirt::new(Some(&daemon.uri()), 20 * SECOND).unwrap();

    let error = libvirt.find(&host, NAME).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("domain {NAME:?} is not running (it is shut off)")
    );
    for name in ["nonesuch", "--help", "-c", "$(reboot)", "a\nb", ""] {
        let error = libvirt.find(&host, name).unwrap_err();
        assert!(
            matches!(error, VmError::NoDomain { .. }),
            "{name:?}: {error}"
        );
    }
    let nowhere = Libvirt::new(Some("qemu:///session?socket=/absent"), SECOND).unwrap();
    let error = nowhere.find(&host, NAME).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("failed to connect to the hypervisor"),
        "{error}"
    );

    daemon
        .virsh(&["start", &format!("--domain={NAME}"), "--paused"])
        .unwrap();
    let domain = libvirt.find(&host, NAME).unwrap();
    assert_eq!(domain.name, NAME);
    assert_eq!(libvirt.find(&host, &domain.uuid).unwrap(), domain);
    assert_eq!(libvirt.find(&host, "1").unwrap(), domain);

    let found = discover(&host, domain.pid, Some(&mut libvirt.monitor(&domain))).unwrap();
    assert_eq!(
        (found.accelerator, found.vcpus),
        (Some(Accelerator::TcgMulti), 2)
    );
    let iothread = Role::Iothread("iothread1".to_owned());
    let mask = |role: &Role| {
        let thread = found
            .threads
            .iter()
            .find(|thread| thread.role == *role)
            .unwrap();
        host.affinity(thread.task.tid).unwrap()
    };
    let before = mask(&Role::Vcpu(1));
    let one = CpuSet::single(before.first().unwrap());
    let wanted = [Role::Emulator, iothread.clone(), Role::Vcpu(1)].map(|role| (role, one.clone()));
    let changes = libvirt.pin_changes(&domain, &wanted).unwrap();
    assert_eq!(changes.len(), 3);
    for change in &changes {
        assert_eq!(change.before, None);
        libvirt.set_pin(&domain, change).unwrap();
    }
    for (role, _) in &wanted {
        assert_eq!(mask(role), one, "{role}");
    }
    assert_eq!(mask(&Role::Vcpu(0)), before);
    assert_eq!(libvirt.pin_changes(&domain, &wanted).unwrap(), []);
    assert_eq!(
        libvirt.pins(&domain).unwrap().of(PinTarget::Iothread(1)),
        Some(&one)
    );

    for change in &changes {
        libvirt.undo_pin(&domain, change).unwrap();
    }
    for (role, _) in &wanted {
        assert_eq!(mask(role), before, "{role}");
    }
    let absent = CpuSet::parse_list("4000").unwrap();
    let changes = libvirt
        .pin_changes(&domain, &[(Role::Vcpu(0), absent)])
        .unwrap();
    let error = libvirt.set_pin(&domain, &changes[0]).unwrap_err();
    assert!(error.to_string().contains("exceed the maxcpu"), "{error}");
}
