//! The script's method: QEMU starts and runs, and is pinned as soon as its monitor responds.

use pinfold_host::process::{Spawn, Stdio, capture, find_program};
use pinfold_host::{Clock as _, Host as _, SystemClock, files, paths};
use pinfold_model::{CpuSet, Tid};
use pinfold_vm::qemu::Qmp;

use super::{Bench, LOOK_NS, SECOND_NS, StartResult, has_begun, threads, vcpu_of};
use crate::arguments::Failure;

const START_NS: u64 = 30 * SECOND_NS;

impl Bench {
    pub(super) fn taskset(&self) -> Result<StartResult, Failure> {
        let program = find_program("taskset")
            .ok_or("taskset is not installed; apt-get install util-linux")?;
        let socket = self.scratch.file("rival.sock");
        let mut child = Spawn::new(&self.argv[0])
            .args(&self.argv[1..])
            .args(["-name", "debug-threads=on", "-qmp"])
            .args([format!("unix:{socket},server=on,wait=off")])
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .stderr(Stdio::Null)
            .die_with_parent(true)
            .own_group()
            .start()?;
        let until = SystemClock.now_ns() + START_NS;
        while !files::exists(&socket) && SystemClock.now_ns() < until {
            SystemClock.sleep_ns(LOOK_NS);
        }
        let mut qmp = Qmp::connect(&socket, START_NS, SystemClock)?;
        let found = threads::find(&self.host, &mut qmp)?;
        let (pid, vcpu) = (found.pid, vcpu_of(&found)?);
        let mut seen = StartResult::default();
        let known = SystemClock.now_ns();
        let first = self.times(pid, vcpu)?;
        for thread in &found.threads {
            let planned =
                self.plan.single_vnode()?.thread(&thread.role).map(|planned| &planned.pus);
            if thread.task.tid == vcpu {
                self.look(pid, vcpu, &mut seen)?;
                seen.ran_ns = self.times(pid, vcpu)?.run_ns as f64;
            }
            if let Some(pus) = planned {
                pin(&program, thread.task.tid, pus)?;
            }
        }
        seen.had_begun = has_begun(&mut qmp)?;
        self.watch(pid, vcpu, known + SECOND_NS, &mut seen)?;
        seen.delay_ns = self.times(pid, vcpu)?.delay_ns.saturating_sub(first.delay_ns) as f64;
        child.kill()?;
        if self.host.exists(&paths::process_stat(pid)) {
            return Err(format!("QEMU {pid} was not ended").into());
        }
        files::remove(&socket)?;
        Ok(seen)
    }
}

fn pin(program: &str, tid: Tid, pus: &CpuSet) -> Result<(), Failure> {
    let output = capture(program, ["-p", "-c", &pus.to_string(), &tid.to_string()], SECOND_NS)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("taskset: {}", output.stderr_text().trim()).into())
    }
}
