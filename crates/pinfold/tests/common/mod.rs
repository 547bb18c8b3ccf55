//! A libvirt daemon of a test's own, as a plain process without systemd.
//!
//! A session daemon with sockets, state and configuration in a temporary folder. As root it
//! runs as the user nobody, because root's is always the system's daemon.

use pinfold_host::process::{Child, Output, Spawn, Stdio, capture, find_program, is_root};
use pinfold_host::{Clock as _, SystemClock, user};

pub const SECOND_NS: u64 = 1_000_000_000;
const NOBODY: &str = "65534";

/// The daemon; it ends when this is dropped, and with it `destroy`ed domains.
pub struct Daemon {
    folder: tempfile::TempDir,
    wrap: Vec<String>,
    child: Child,
}

impl Daemon {
    /// Starts it, or says why it cannot be. `wrap` is put before its command line.
    pub fn start(wrap: &[String]) -> Result<Self, String> {
        let needed = ["libvirtd", "virsh", "qemu-system-x86_64"];
        let for_root = if is_root() { &["setpriv", "chown"][..] } else { &[] };
        let mut programs = needed.iter().chain(for_root);
        if let Some(missing) = programs.find(|name| find_program(name).is_none()) {
            return Err(format!("{missing} is not installed"));
        }
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_string_lossy().into_owned();
        user::make_dirs(&format!("{root}/libvirt")).expect("a folder");
        // Else a second daemon would be started for the domain's log.
        let settings = b"stdio_handler = \"file\"\n";
        user::write_atomic(&format!("{root}/libvirt/qemu.conf"), settings).expect("written");
        if is_root() {
            let owner = format!("{NOBODY}:{NOBODY}");
            let output = capture("chown", ["-R", &owner, &root], 5 * SECOND_NS).expect("it runs");
            assert!(output.status.success(), "{}", output.stderr_text());
        }
        let child = launch(&root, wrap);
        let daemon = Self { folder, wrap: wrap.to_vec(), child };
        match daemon.is_up() {
            true => Ok(daemon),
            false => Err("libvirtd does not start as a session daemon here".to_owned()),
        }
    }

    fn is_up(&self) -> bool {
        (0..200).any(|_| {
            SystemClock.sleep_ns(SECOND_NS / 20);
            self.virsh(&["version"]).is_ok()
        })
    }

    /// Its folder.
    pub fn root(&self) -> String {
        self.folder.path().to_string_lossy().into_owned()
    }

    /// Ends the daemon, not its domains, and starts it again.
    pub fn restart(&mut self) {
        self.stop();
        self.child = launch(&self.root(), &self.wrap);
        assert!(self.is_up(), "it starts again");
    }

    /// Ends the daemon; its domains go on.
    pub fn stop(&mut self) {
        self.child.kill().expect("it ends");
    }

    /// URI of the connection.
    pub fn uri(&self) -> String {
        format!("qemu:///session?socket={}/libvirt/libvirt-sock", self.root())
    }

    /// Runs virsh.
    pub fn virsh(&self, words: &[&str]) -> Result<String, String> {
        let uri = format!("--connect={}", self.uri());
        let words = [&["--quiet", uri.as_str()], words].concat();
        let output = capture("virsh", words, 20 * SECOND_NS).map_err(|error| error.to_string())?;
        if output.status.success() { Ok(output.stdout_text()) } else { Err(output.stderr_text()) }
    }

    /// Defines a domain and starts it stopped; two vCPUs, one iothread, TCG.
    pub fn start_domain(&self, name: &str, inside: &str) {
        let emulator = find_program("qemu-system-x86_64").expect("it was found before");
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>32</memory><vcpu>2</vcpu>
             <iothreads>1</iothreads><iothreadids><iothread id='1'/></iothreadids>{inside}
             <os><type arch='x86_64' machine='q35'>hvm</type></os>
             <devices><emulator>{emulator}</emulator></devices></domain>"
        );
        let file = format!("{}/domain.xml", self.root());
        user::write_atomic(&file, xml.as_bytes()).expect("written");
        self.virsh(&["define", &file]).expect("it is defined");
        self.virsh(&["start", name, "--paused"]).expect("it starts");
    }

    /// Runs pinfold, with this libvirt as its default.
    pub fn pinfold(&self, arguments: &[&str]) -> Output {
        let state = format!("--state-dir={}/state", self.root());
        let uri = format!("LIBVIRT_DEFAULT_URI={}", self.uri());
        let words = [&[uri.as_str(), env!("CARGO_BIN_EXE_pinfold"), &state], arguments].concat();
        capture("env", words, 60 * SECOND_NS).expect("pinfold runs")
    }
}

fn launch(root: &str, wrap: &[String]) -> Child {
    let mut words = wrap.to_vec();
    if is_root() {
        words.extend(["setpriv", "--clear-groups"].map(str::to_owned));
        words.extend([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
    }
    words.push("libvirtd".to_owned());
    let mut spawn = Spawn::new(&words[0]).args(&words[1..]).own_group().stdin(Stdio::Null);
    for key in ["HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"] {
        spawn = spawn.env(key, root);
    }
    spawn.stdout(Stdio::Null).stderr(Stdio::Null).start().expect("it starts")
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(names) = self.virsh(&["list", "--name"]) {
            for name in names.lines().filter(|name| !name.is_empty()) {
                // A domain that ended just now is what is wanted.
                match self.virsh(&["destroy", name]) {
                    Ok(_) | Err(_) => {}
                }
            }
        }
        match self.child.kill() {
            Ok(_) | Err(_) => {}
        }
    }
}
