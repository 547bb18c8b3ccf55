//! Handwritten alternatives: query QEMU, list the threads, set the masks.
//!
//! The monitor is queried one request at a time, as scripts do, through Pinfold's own connection,
//! so that parsing JSON costs the same on both sides.

use pinfold_host::files::{self, StateDir};
use pinfold_host::{Clock as _, Host as _, HostMut as _, SystemClock, paths, proc_stat, process};
use pinfold_model::{CpuSet, Role, Tid};
use pinfold_vm::Monitor as _;
use pinfold_vm::qemu::Qmp;

use super::{Bench, QMP_TIMEOUT_NS, TOOL_TIMEOUT_NS};
use crate::arguments::Failure;

/// Pins everything to the emulator's CPUs first, then each vCPU to its own.
const SCRIPT: &str = r#"set -e
taskset -a -p -c @REST@ "$2" >/dev/null
set -- "$1" @MASKS@
python3 - "$1" <<'ASK' | while read -r tid; do shift; taskset -p -c "$1" "$tid" >/dev/null; done
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
f = s.makefile("rw")
f.readline()
def ask(command):
    f.write(json.dumps({"execute": command}) + "\n")
    f.flush()
    while True:
        answer = json.loads(f.readline())
        if "return" in answer:
            return answer["return"]
ask("qmp_capabilities")
for cpu in sorted(ask("query-cpus-fast"), key=lambda cpu: cpu["cpu-index"]):
    print(cpu["thread-id"])
ASK
"#;

/// What the bare system calls record before they set a mask, appended to an existing file and
/// synced.
#[derive(Clone, Copy)]
pub(super) enum Note<'d> {
    Nothing,
    /// The old masks by thread id.
    Masks(&'d StateDir),
    /// The old masks with start times: with them an undo cannot affect another thread with the same
    /// id.
    MasksOfTasks(&'d StateDir),
}

impl Bench {
    /// `sched_getaffinity`, `sched_setaffinity`, `sched_getaffinity` for each thread.
    pub(super) fn bare(&self, note: Note<'_>) -> Result<f64, Failure> {
        let begin = SystemClock.now_ns();
        let mut qmp = Qmp::connect(&self.socket, QMP_TIMEOUT_NS, SystemClock)?;
        let masks = self.ask(&mut qmp)?;
        if let Note::Masks(file) | Note::MasksOfTasks(file) = note {
            let mut text = String::new();
            for (tid, _) in &masks {
                let mask = self.host.affinity(*tid)?;
                text.push_str(&format!("{tid} {mask}"));
                if let Note::MasksOfTasks(_) = note {
                    let stat = proc_stat::at(&self.host, &paths::task_stat(*tid, *tid))?;
                    let stat = stat.ok_or_else(|| format!("thread {tid} has ended"))?;
                    text.push_str(&format!(" {}", stat.start_time));
                }
                text.push('\n');
            }
            file.append("masks", text.as_bytes())?;
        }
        for (tid, mask) in &masks {
            if matches!(note, Note::Nothing) {
                self.host.affinity(*tid)?;
            }
            self.host.set_affinity(*tid, mask)?;
            if self.host.affinity(*tid)? != *mask {
                return Err(format!("thread {tid} did not take the mask {mask}").into());
            }
        }
        let end = SystemClock.now_ns();
        drop(qmp);
        self.check()?;
        self.reset()?;
        Ok(end.saturating_sub(begin) as f64)
    }

    /// `taskset -p -c LIST TID` for each thread.
    pub(super) fn taskset(&self) -> Result<f64, Failure> {
        let program = process::find_program("taskset")
            .ok_or("taskset is not installed; apt-get install util-linux")?;
        let begin = SystemClock.now_ns();
        let mut qmp = Qmp::connect(&self.socket, QMP_TIMEOUT_NS, SystemClock)?;
        for (tid, mask) in self.ask(&mut qmp)? {
            let words = ["-p", "-c", &mask.to_string(), &tid.to_string()];
            let output = process::capture(&program, words, TOOL_TIMEOUT_NS)?;
            if !output.status.success() {
                return Err(format!("taskset: {}", output.stderr_text().trim()).into());
            }
        }
        let end = SystemClock.now_ns();
        drop(qmp);
        self.check()?;
        self.reset()?;
        Ok(end.saturating_sub(begin) as f64)
    }

    /// A typical script from the web: it queries the threads and calls `taskset`.
    pub(super) fn shell_script(&self) -> Result<f64, Failure> {
        let begin = SystemClock.now_ns();
        let pid = self.vm.pid().to_string();
        let output = process::capture("sh", [&self.script, &self.socket, &pid], TOOL_TIMEOUT_NS)?;
        if !output.status.success() {
            return Err(format!("the script: {}", output.stderr_text().trim()).into());
        }
        let end = SystemClock.now_ns();
        self.check()?;
        self.reset()?;
        Ok(end.saturating_sub(begin) as f64)
    }

    /// Writes that script, with the plan's masks.
    pub(super) fn write_script(&self) -> Result<(), Failure> {
        let vnode = self.plan.single_vnode()?;
        let masks = vnode.vcpus().map(|vcpu| vcpu.pus.to_string()).collect::<Vec<_>>().join(" ");
        let rest = vnode.thread(&Role::Emulator).ok_or("the plan lacks the emulator")?;
        let text = SCRIPT.replace("@MASKS@", &masks).replace("@REST@", &rest.pus.to_string());
        Ok(files::write_atomic(&self.script, text.as_bytes())?)
    }

    /// Every thread of the guest.
    pub(super) fn threads(&self) -> Result<Vec<Tid>, Failure> {
        self.list_threads(self.vm.pid())
    }

    /// The threads of the guest except this one.
    fn list_threads(&self, tid: Tid) -> Result<Vec<Tid>, Failure> {
        let names = self.host.list(&paths::task_dir(tid))?;
        names.iter().map(|name| Ok(Tid(name.parse()?))).collect()
    }

    /// Every thread with its mask, from two queries and a list.
    fn ask(&self, qmp: &mut Qmp) -> Result<Vec<(Tid, CpuSet)>, Failure> {
        let cpus = qmp.cpus()?;
        let iothreads = qmp.iothreads()?;
        let first = cpus.first().ok_or("the guest has no vCPU")?.thread;
        let mut masks = Vec::new();
        for tid in self.list_threads(first)? {
            let vcpu = cpus.iter().find(|cpu| cpu.thread == tid).map(|cpu| Role::Vcpu(cpu.index));
            let iothread = iothreads.iter().find(|iothread| iothread.thread == tid);
            let iothread = iothread.map(|iothread| Role::Iothread(iothread.id.clone()));
            let role = vcpu.or(iothread).unwrap_or(Role::Emulator);
            let planned = self.plan.single_vnode()?.thread(&role).ok_or("the plan lacks a role")?;
            masks.push((tid, planned.pus.clone()));
        }
        Ok(masks)
    }
}
