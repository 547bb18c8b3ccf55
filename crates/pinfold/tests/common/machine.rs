//! A QEMU of a test's own, in a sandbox of its own.

use std::collections::BTreeMap;
use std::ops::Deref;

use pinfold_host::process::{Child, Spawn, Stdio};
use pinfold_host::{Host as _, LiveHost, SystemClock, paths};
use pinfold_model::{CpuSet, Tid};
use pinfold_vm::qemu::Qmp;

use super::{MINUTE_NS, Sandbox, is_missing, until};

pub const QEMU: &str = "qemu-system-x86_64";
/// What the machines have in common: no display, no devices, and names for their threads.
const BASE: &str = "-display none -nodefaults -m 64M";

/// Starts a QEMU, or what is in its place, without a terminal; it ends with the test.
pub fn start_quietly(command: Spawn) -> Child {
    let command = command.stdin(Stdio::Null).stderr(Stdio::Null);
    command.own_group().die_with_parent(true).start().expect("it starts")
}

/// The threads of a process; none if it has ended.
pub fn list_threads(host: &LiveHost, pid: Tid) -> Vec<Tid> {
    let names = host.list(&paths::task_dir(pid)).unwrap_or_default();
    names.iter().filter_map(|tid| tid.parse().ok().map(Tid)).collect()
}

/// The masks of the threads of a process that do not end meanwhile.
pub fn list_masks(host: &LiveHost, pid: Tid) -> BTreeMap<Tid, CpuSet> {
    let tids = list_threads(host, pid).into_iter();
    tids.filter_map(|tid| Some((tid, host.affinity(tid).ok()?))).collect()
}

/// The first thread of a process whose name begins so.
pub fn find_thread(host: &LiveHost, pid: Tid, name: &str) -> Option<Tid> {
    list_threads(host, pid).into_iter().find(|tid| {
        host.read_text(&paths::process_comm(*tid)).unwrap_or_default().starts_with(name)
    })
}

/// A QEMU with a monitor at `qmp` in its sandbox.
pub struct Machine {
    pub sandbox: Sandbox,
    pub host: LiveHost,
    pub qemu: Child,
    /// No other machine on this host has it.
    pub name: String,
}

impl Deref for Machine {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.sandbox
    }
}

impl Machine {
    /// A stopped machine of TCG with these further options and its vCPUs; `None`, reported, if
    /// there is no QEMU.
    pub fn new(more: &str) -> Option<Self> {
        Self::new_in(Sandbox::new(), more)
    }

    /// The same in a sandbox that is there.
    pub fn new_in(sandbox: Sandbox, more: &str) -> Option<Self> {
        Self::start_in(sandbox, &format!("-S -M q35 -accel tcg,thread=multi {more}"))
    }

    /// A machine with these options in addition to [`BASE`].
    pub fn start_in(sandbox: Sandbox, options: &str) -> Option<Self> {
        Self::start_by(&[], sandbox, options)
    }

    /// The same as a part of another command line, which executes it.
    pub fn start_by(wrap: &[&str], sandbox: Sandbox, options: &str) -> Option<Self> {
        if is_missing(&[QEMU]) {
            return None;
        }
        let name = sandbox.root().rsplit(['/', '.']).next().unwrap_or_default().to_owned();
        let monitor = format!("unix:{},server=on,wait=off", sandbox.path("qmp"));
        let guest = format!("guest={name},debug-threads=on");
        let words = BASE.split(' ').chain(options.split_whitespace());
        let words = words.chain(["-name", &guest, "-qmp", &monitor]);
        let words: Vec<&str> = wrap.iter().copied().chain([QEMU]).chain(words).collect();
        let qemu = start_quietly(Spawn::new(words[0]).args(&words[1..]));
        let machine = Self { sandbox, host: LiveHost::new().expect("a host"), qemu, name };
        // It opens its monitor, and answers there when its vCPUs are made.
        assert!(until(|| machine.thread("CPU 0/").is_some()), "QEMU makes its vCPUs");
        machine.connect();
        Some(machine)
    }

    pub fn pid(&self) -> String {
        self.qemu.pid().to_string()
    }

    /// The path of its monitor.
    pub fn qmp(&self) -> String {
        self.path("qmp")
    }

    pub fn connect(&self) -> Qmp {
        assert!(until(|| pinfold_host::files::exists(&self.qmp())), "QEMU opens its monitor");
        Qmp::connect(&self.qmp(), MINUTE_NS, SystemClock).expect("a monitor")
    }

    pub fn thread(&self, name: &str) -> Option<Tid> {
        find_thread(&self.host, self.qemu.pid(), name)
    }

    pub fn masks(&self) -> BTreeMap<Tid, CpuSet> {
        list_masks(&self.host, self.qemu.pid())
    }

    /// Its masks that are not as in `before`.
    pub fn changed(&self, before: &BTreeMap<Tid, CpuSet>) -> BTreeMap<Tid, CpuSet> {
        changed(&self.host, self.qemu.pid(), before)
    }
}

/// The masks of a QEMU that are not as in `before`. It makes and ends worker threads as it likes: a
/// new one has to have a mask that a thread had before. The main thread is always among them.
pub fn changed(
    host: &LiveHost,
    qemu: Tid,
    before: &BTreeMap<Tid, CpuSet>,
) -> BTreeMap<Tid, CpuSet> {
    let mut now = list_masks(host, qemu);
    assert!(now.contains_key(&qemu), "{now:?}");
    now.retain(|tid, mask| match before.get(tid) {
        Some(known) => known != mask,
        None => !before.values().any(|known| known == mask),
    });
    now
}
