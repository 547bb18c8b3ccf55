//! A private libvirt daemon with one domain, pinned by `virsh vcpupin`.
//!
//! As root, the daemon runs as the user nobody, because root's daemon is always the system's; its
//! sockets, state and configuration are in a temporary folder.

use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, files};
use pinfold_model::{CpuSet, Role, TaskId, Tid};
use pinfold_vm::threads;

use super::TOOL_TIMEOUT_NS;
use crate::arguments::Failure;
use crate::scratch::Scratch;

const NAME: &str = "pinfold-bench";
/// The only program in the daemon's `PATH`: it runs each QEMU there when it starts, which takes half
/// a minute where there is one for each architecture.
const QEMU: &str = "qemu-system-x86_64";
const NOBODY_UID: &str = "65534";
const SECOND_NS: u64 = 1_000_000_000;

/// The domain, paused; it ends when this value is dropped.
pub(super) struct Domain {
    host: LiveHost,
    folder: Scratch,
    daemon: Child,
    vcpus: Vec<(TaskId, CpuSet)>,
    all: CpuSet,
}

impl Domain {
    /// Starts both; each vCPU will get its mask. `all` is the mask in between.
    pub(super) fn start(masks: &[CpuSet], all: &CpuSet) -> Result<Self, Failure> {
        let needed = ["libvirtd", "virsh", "setpriv", QEMU];
        if let Some(missing) = needed.iter().find(|name| process::find_program(name).is_none()) {
            return Err(format!("{missing} is not installed").into());
        }
        let folder = Scratch::for_others()?;
        files::make_dirs(&folder.file("libvirt"))?;
        // Otherwise a second daemon would be started for the domain's log.
        files::write_atomic(&folder.file("libvirt/qemu.conf"), b"stdio_handler = \"file\"\n")?;
        files::make_dirs(&folder.file("bin"))?;
        std::os::unix::fs::symlink(qemu()?, folder.file(&format!("bin/{QEMU}")))?;
        files::write_atomic(&folder.file("domain.xml"), xml(masks.len())?.as_bytes())?;
        if process::is_root() {
            run("chown", &["-R", &format!("{NOBODY_UID}:{NOBODY_UID}"), folder.path()])?;
        }
        let daemon = launch(folder.path())?;
        let host = LiveHost::new()?;
        let mut domain = Self { host, folder, daemon, vcpus: Vec::new(), all: all.clone() };
        let answers = (0..200).any(|_| {
            SystemClock.sleep_ns(SECOND_NS / 20);
            domain.virsh("version").is_ok()
        });
        if !answers {
            return Err("libvirtd does not start as a session daemon here".into());
        }
        domain.virsh(&format!("create {} --paused", domain.folder.file("domain.xml")))?;
        let pid = files::read_text(&domain.folder.file(&format!("libvirt/qemu/run/{NAME}.pid")))?;
        let found = threads::discover(&domain.host, Tid(pid.trim().parse()?), None)?;
        for (index, mask) in (0..).zip(masks) {
            let thread = found.threads.iter().find(|thread| thread.role == Role::Vcpu(index));
            let thread = thread.ok_or_else(|| format!("the domain has no vCPU {index}"))?;
            domain.vcpus.push((thread.task, mask.clone()));
        }
        Ok(domain)
    }

    /// Pins all vCPUs with one `virsh`, which is faster than one for each.
    pub(super) fn pin(&self) -> Result<f64, Failure> {
        let commands: Vec<String> = self
            .vcpus
            .iter()
            .enumerate()
            .map(|(index, (_, mask))| format!("vcpupin {NAME} {index} {mask} --live"))
            .collect();
        let begin = SystemClock.now_ns();
        self.virsh(&commands.join("; "))?;
        let end = SystemClock.now_ns();
        for (task, mask) in &self.vcpus {
            let found = self.host.affinity(task.tid)?;
            if found != *mask {
                return Err(format!("virsh left {task} on {found} instead of {mask}").into());
            }
            self.host.set_affinity(task.tid, &self.all)?;
        }
        Ok(end.saturating_sub(begin) as f64)
    }

    fn virsh(&self, commands: &str) -> Result<(), Failure> {
        let socket = self.folder.file("libvirt/libvirt-sock");
        let uri = format!("--connect=qemu:///session?socket={socket}");
        run("virsh", &["--quiet", &uri, commands])
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // A domain that did not start cannot be destroyed; the daemon is a child process that is
        // killed in any case.
        match self.virsh(&format!("destroy {NAME}")) {
            Ok(()) | Err(_) => {}
        }
        match self.daemon.kill() {
            Ok(_) | Err(_) => {}
        }
    }
}

fn run(program: &str, words: &[&str]) -> Result<(), Failure> {
    let output = process::capture(program, words, TOOL_TIMEOUT_NS)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{program}: {}", output.stderr_text().trim()).into())
    }
}

fn qemu() -> Result<String, Failure> {
    Ok(process::find_program(QEMU).ok_or("qemu-system-x86_64 is not installed")?)
}

fn xml(vcpus: usize) -> Result<String, Failure> {
    let emulator = qemu()?;
    Ok(format!(
        "<domain type='qemu'><name>{NAME}</name><memory unit='MiB'>64</memory><vcpu>{vcpus}</vcpu>
         <os><type arch='x86_64' machine='q35'>hvm</type></os>
         <devices><emulator>{emulator}</emulator></devices></domain>"
    ))
}

fn launch(root: &str) -> Result<Child, Failure> {
    let mut words: Vec<String> = Vec::new();
    if process::is_root() {
        words.extend(["setpriv", "--clear-groups"].map(str::to_owned));
        words.extend([format!("--reuid={NOBODY_UID}"), format!("--regid={NOBODY_UID}")]);
    }
    let daemon = process::find_program("libvirtd").ok_or("libvirtd is not installed")?;
    words.extend(["env".to_owned(), format!("PATH={root}/bin"), daemon]);
    let mut spawn = Spawn::new(&words[0]).args(&words[1..]).own_group().stdin(Stdio::Null);
    for key in ["HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"] {
        spawn = spawn.env(key, root);
    }
    Ok(spawn.stdout(Stdio::Null).stderr(Stdio::Null).die_with_parent(true).start()?)
}
