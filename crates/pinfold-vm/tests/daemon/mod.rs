//! A real libvirt daemon of our own: a session daemon with sockets, state and configuration in a
//! temporary folder.
//!
//! As root the daemon runs as the user nobody, because root's is always the system's daemon.

#![allow(dead_code, reason = "each test file uses its own part")]

use pinfold_host::process::{Child, Spawn, Stdio, capture, find_program, is_root};
use pinfold_host::{Clock as _, SystemClock, files};

const SECOND: u64 = 1_000_000_000;
const NOBODY: &str = "65534";
const QEMU: &str = "qemu-system-x86_64";
/// The only programs in the daemon's `PATH`, the second for its hooks. It runs each QEMU there when
/// it starts, which takes half a minute where there is one for each architecture.
const PROGRAMS: [&str; 2] = [QEMU, "dirname"];

/// The daemon, ended with its domain when dropped.
pub struct Daemon {
    /// The domain that it may run.
    name: &'static str,
    /// Its sockets, state and configuration; room for files of the test.
    pub folder: tempfile::TempDir,
    /// What stands before its command line.
    wrap: Vec<String>,
    pub child: Child,
}

impl Daemon {
    /// Starts it, or says why it cannot be.
    pub fn start(name: &'static str) -> Option<Self> {
        Self::start_by(name, &[])
    }

    /// The same by another program that runs it.
    pub fn start_by(name: &'static str, wrap: &[String]) -> Option<Self> {
        if let Some(missing) = missing_program() {
            eprintln!("skipped: {missing} is not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap().to_owned();
        files::make_dirs(&format!("{root}/libvirt")).unwrap();
        // Else a second daemon would be started for the domain's log.
        let settings = b"stdio_handler = \"file\"\n";
        files::write_atomic(&format!("{root}/libvirt/qemu.conf"), settings).unwrap();
        // Else it does not migrate to another daemon of this machine.
        let uuid = files::read_text("/proc/sys/kernel/random/uuid").unwrap();
        let settings = format!("host_uuid = \"{}\"\n", uuid.trim());
        files::write_atomic(&format!("{root}/libvirt/libvirtd.conf"), settings.as_bytes()).unwrap();
        files::make_dirs(&format!("{root}/bin")).unwrap();
        for name in PROGRAMS {
            let program = find_program(name).unwrap();
            std::os::unix::fs::symlink(program, format!("{root}/bin/{name}")).unwrap();
        }
        if is_root() {
            let owner = format!("{NOBODY}:{NOBODY}");
            let output = capture("chown", ["-R", &owner, &root], 60 * SECOND);
            assert!(output.unwrap().status.success());
        }
        let child = launch(&root, wrap);
        let daemon = Self { name, folder, wrap: wrap.to_vec(), child };
        if daemon.answers() {
            return Some(daemon);
        }
        eprintln!("skipped: libvirtd does not start as a session daemon on this machine");
        None
    }

    /// Ends the daemon; its domain goes on.
    pub fn stop(&mut self) {
        self.child.kill().unwrap();
    }

    /// Starts it again.
    pub fn restart(&mut self) {
        self.child = launch(self.folder.path().to_str().unwrap(), &self.wrap);
        assert!(self.answers(), "it starts again");
    }

    fn answers(&self) -> bool {
        (0..1200).any(|_| {
            SystemClock.sleep_ns(SECOND / 20);
            self.virsh(&["version"]).is_ok()
        })
    }

    /// What a client of its is given.
    pub fn uri(&self) -> String {
        format!("qemu:///session?socket={}/libvirt/libvirt-sock", self.folder.path().display())
    }

    /// Runs one command of the client.
    ///
    /// # Errors
    /// What it said.
    pub fn virsh(&self, words: &[&str]) -> Result<String, String> {
        let uri = format!("--connect={}", self.uri());
        let words = [&["--quiet", uri.as_str()], words].concat();
        let output = capture("virsh", words, 60 * SECOND).map_err(|error| error.to_string())?;
        if output.status.success() { Ok(output.stdout_text()) } else { Err(output.stderr_text()) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // No domain is left if the test got that far; an error then is what is wanted.
        match self.virsh(&["destroy", &format!("--domain={}", self.name)]) {
            Ok(_) | Err(_) => {}
        }
        self.child.kill().unwrap();
    }
}

/// What this test needs and the machine lacks. Root needs setpriv, having no session daemon.
fn missing_program() -> Option<&'static str> {
    let needed = ["libvirtd", "virsh", QEMU];
    let for_root = if is_root() { &["setpriv", "chown"][..] } else { &[] };
    needed.iter().chain(for_root).find(|name| find_program(name).is_none()).copied()
}

/// Starts the daemon; as root with the rights of nobody.
fn launch(root: &str, wrap: &[String]) -> Child {
    let mut words = wrap.to_vec();
    if is_root() {
        words.extend(["setpriv", "--clear-groups"].map(str::to_owned));
        words.extend([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
    }
    let daemon = find_program("libvirtd").unwrap();
    words.extend(["env".to_owned(), format!("PATH={root}/bin"), daemon]);
    let mut spawn = Spawn::new(&words[0]).args(&words[1..]).own_group().stdin(Stdio::Null);
    for key in ["HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"] {
        spawn = spawn.env(key, root);
    }
    spawn.stdout(Stdio::Null).stderr(Stdio::Null).start().unwrap()
}
