//! What the tests of the running program share.

pub mod known;

use pinfold_host::process::{Child, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, proc_stat, schedstat};
use pinfold_model::{CpuSet, PuId, TaskId, Tid};
use pinfold_probe::pinload::Pinload;

pub const SECOND: u64 = 1_000_000_000;
pub const MS: u64 = 1_000_000;
/// Nothing here takes this long; a crowded machine may come near.
pub const PATIENCE: u64 = 60 * SECOND;

/// The program in a folder of its own.
pub struct Program {
    pub folder: tempfile::TempDir,
    pub pinload: Pinload,
}

/// True if every program is to be run in every way (`PINFOLD_TEST_SIZE=full`).
pub fn is_full_size() -> bool {
    std::env::var("PINFOLD_TEST_SIZE").is_ok_and(|size| size == "full")
}

pub fn program() -> Program {
    let folder = tempfile::tempdir().unwrap();
    let pinload = Pinload::install_in(folder.path().join("bin").to_str().unwrap()).unwrap();
    Program { folder, pinload }
}

impl Program {
    /// A file of this many bytes in the folder.
    pub fn file(&self, name: &str, bytes: usize) -> String {
        let path = self.folder.path().join(name).to_str().unwrap().to_owned();
        pinfold_host::files::write_atomic(&path, &vec![7; bytes]).unwrap();
        path
    }

    /// Starts it with pipes.
    pub fn start(&self, arguments: &str) -> Child {
        Spawn::new(&self.pinload.path())
            .args(arguments.split(' '))
            .stdin(Stdio::Pipe)
            .stdout(Stdio::Pipe)
            .stderr(Stdio::Pipe)
            .start()
            .unwrap()
    }
}

/// All C sources of `pinload`.
pub fn c_sources() -> Vec<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pinload/src");
    let (sources, others): (Vec<_>, Vec<_>) =
        list(root).into_iter().partition(|path| path.ends_with(".c"));
    let folders = others.iter().filter(|path| !path.ends_with(".h"));
    let inner = folders.flat_map(|folder| list(folder)).filter(|path| path.ends_with(".c"));
    sources.into_iter().chain(inner).collect()
}

fn list(folder: &str) -> Vec<String> {
    let names = pinfold_host::files::list(folder).unwrap();
    names.iter().map(|name| format!("{folder}/{name}")).collect()
}

/// A CPU on which this process may run.
pub fn a_pu() -> PuId {
    own_pus().first().unwrap()
}

pub fn own_pus() -> CpuSet {
    LiveHost::new().unwrap().affinity(pinfold_host::process::own_tid()).unwrap()
}

/// Asks every 20 ms until the answer is yes. False if that never happens.
pub fn eventually(mut answer: impl FnMut() -> bool) -> bool {
    let end = SystemClock.now_ns() + PATIENCE;
    while SystemClock.now_ns() < end {
        if answer() {
            return true;
        }
        SystemClock.sleep_ns(20 * MS);
    }
    false
}

/// Threads of a process, without its first one.
pub fn further_threads(host: &LiveHost, pid: Tid) -> Vec<Tid> {
    let names = host.list(&paths::task_dir(pid)).unwrap();
    names.iter().filter_map(|name| name.parse().ok().map(Tid)).filter(|tid| *tid != pid).collect()
}

/// The children of a process.
pub fn children(host: &LiveHost, parent: Tid) -> Vec<TaskId> {
    let names = host.list(&paths::proc_dir()).unwrap();
    let pids = names.iter().filter_map(|name| name.parse().ok().map(Tid));
    pids.filter_map(|pid| host.read_text(&paths::process_stat(pid)).ok())
        .map(|text| proc_stat::parse(&text).unwrap())
        .filter(|stat| stat.ppid == parent)
        .map(|stat| stat.task())
        .collect()
}

/// CPU time of the further threads; one that ends meanwhile has none.
pub fn work_ns(host: &LiveHost, pid: Tid) -> u64 {
    further_threads(host, pid)
        .into_iter()
        .filter_map(|tid| {
            let text = host.read_text(&paths::task_schedstat(pid, tid)).ok()?;
            Some(schedstat::parse(&text).unwrap().run_ns)
        })
        .sum()
}

/// Standard error of a child that has ended.
pub fn stderr_of(child: &mut Child) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stderr().unwrap(), &mut text).unwrap();
    text
}
