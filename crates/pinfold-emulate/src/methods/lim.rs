//! `lim`: stops and continues processes by signals. CPU-Lim of Wrekavoc, as described in Buchert
//! 2011 §II; implemented for comparison with the literature.
//!
//! Every 10 ms each process of the vnode is checked: if its CPU time divided by the time since its
//! creation exceeds the speed, it is stopped, else it is continued. Four defects are known and
//! kept, because they are part of the method:
//!
//! 1. *Polling overhead*: every check reads files of every process.
//! 2. *Visible signals*: the parent of a stopped process is notified, shells and debuggers react, a
//!    program can detect that it was continued, and a process that stops itself cannot be
//!    distinguished.
//! 3. *Accounting since creation favours sleepers*: a process that slept runs at full speed until
//!    its average since creation reaches the speed again.
//! 4. *Processes, not threads*: two threads on two cores use up the time of one, so that each of
//!    them has half the speed.
//!
//! A watchdog continues the stopped processes if the supervisor is killed or stopped.

use crate::node::Node;
use crate::vnode_cgroup::VnodeCgroup;
use std::collections::BTreeSet;

use pinfold_host::HostMut;
use pinfold_host::proc_stat::ProcStat;
use pinfold_host::process::Signaled;
use pinfold_host::uptime::{self, TICK_NS};
use pinfold_model::{Method, PuId, Speed, TaskId};

use super::MethodContext;
use crate::cleanup::processes;
use crate::emulation::{CoreAccount, Emulation};
use crate::helper_spawner::Watchdog;
use crate::units::in_us;
use crate::{Cleanup, HelperSpawner, SpeedError};

pub(super) struct Lim<'h> {
    vnode: String,
    host: &'h dyn HostMut,
    spawner: &'h dyn HelperSpawner,
    group: String,
    period_ns: u64,
    speed: Speed,
    sentinel: Option<Box<dyn Watchdog>>,
    stopped: BTreeSet<TaskId>,
    looks: u64,
}

/// What it starts and writes while its vnode is active.
pub(super) fn describe(node: &Node, cgroup: &VnodeCgroup) -> Vec<String> {
    vec![format!(
        "send SIGSTOP and SIGCONT to the processes in {}, checked every {}",
        cgroup.freezer.as_deref().unwrap_or_default(),
        in_us(node.period())
    )]
}

pub(super) fn start<'h>(context: &MethodContext<'h, '_>) -> Result<Lim<'h>, SpeedError> {
    let Some(group) = &context.cgroup.freezer else {
        return Err(context.unavailable("the vnode has no group"));
    };
    Ok(Lim {
        vnode: context.node.name.clone(),
        host: context.host,
        spawner: context.spawner,
        group: group.clone(),
        period_ns: context.node.period(),
        speed: Speed::FULL,
        sentinel: None,
        stopped: BTreeSet::new(),
        looks: 0,
    })
}

/// The paper's formula: CPU time divided by the time since creation. At full speed no process is
/// stopped: several threads have more CPU time than their process has age.
fn is_too_fast(cpu_ns: u64, age_ns: u64, speed: Speed) -> bool {
    if speed == Speed::FULL {
        return false;
    }
    u128::from(cpu_ns) * 1_000_000 > u128::from(age_ns) * u128::from(speed.millionths())
}

impl Lim<'_> {
    fn judge(&mut self, process: &ProcStat, now_ns: u64) -> Result<(), SpeedError> {
        let age_ns = now_ns.saturating_sub(process.start_time.saturating_mul(TICK_NS));
        let cpu_ns = process.cpu_ticks.saturating_mul(TICK_NS);
        let task = process.task();
        let is_stopped = self.stopped.contains(&task);
        let is_too_fast = is_too_fast(cpu_ns, age_ns, self.speed);
        // A process that another program (such as the watchdog) continued is stopped again.
        let signal = match (is_too_fast, is_stopped) {
            (true, _) if process.state != 'T' => Signaled::Stop,
            (false, true) => Signaled::Continue,
            (true, _) | (false, false) => return Ok(()),
        };
        match self.host.signal(task, signal) {
            Err(error) if error.is_gone() => {
                self.stopped.remove(&task);
                return Ok(());
            }
            answer => answer?,
        }
        if is_too_fast {
            self.stopped.insert(task);
        } else {
            self.stopped.remove(&task);
        }
        Ok(())
    }
}

impl Emulation for Lim<'_> {
    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let Some((_, speed)) = speeds.first() else { return Ok(()) };
        if let Some((pu, other)) = speeds.iter().find(|(_, other)| other != speed) {
            return Err(SpeedError::OutOfReach {
                vnode: self.vnode.clone(),
                method: Method::Lim,
                speed: *speed,
                why: format!(
                    "it slows whole processes, so all cores need the same speed, but CPU \
                              {pu} has the speed {other}"
                ),
                hint: "give all cores the same speed, or use stall".to_owned(),
            });
        }
        if self.sentinel.is_none() {
            let group = self.group.clone();
            self.sentinel = Some(self.spawner.spawn_watchdog(Cleanup::Continue { group })?);
        }
        self.speed = *speed;
        Ok(())
    }

    fn tick(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.beat()?;
        }
        self.looks += 1;
        let uptime_ns = uptime::read_ticks(self.host)?.saturating_mul(TICK_NS);
        let found = processes(self.host, &self.group)?;
        self.stopped.retain(|task| found.iter().any(|process| process.task() == *task));
        for process in found {
            self.judge(&process, uptime_ns)?;
        }
        Ok(now_ns.saturating_add(self.period_ns))
    }

    /// Empty: the method works on processes, not on cores.
    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        Ok(Vec::new())
    }

    fn notes(&self) -> Vec<String> {
        vec![format!(
            "{} processes are stopped now, after {} checks",
            self.stopped.len(),
            self.looks
        )]
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        let mut failed = None;
        for task in std::mem::take(&mut self.stopped) {
            match self.host.signal(task, Signaled::Continue) {
                Err(error) if !error.is_gone() => failed = failed.or(Some(error)),
                Ok(()) | Err(_) => {}
            }
        }
        self.sentinel = None;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Drop for Lim<'_> {
    fn drop(&mut self) {
        match self.stop() {
            Ok(()) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use pinfold_host::RecordingHost;
    use pinfold_sim::{CgroupVersion, SimHost, SimTask};

    use super::*;

    /// Simulated rate of work under the formula, for a process with enough cores. `busy` says
    /// whether it is runnable in each interval of 10 ms, `threads` is its number of threads.
    /// Returns millionths of full speed while runnable, over the intervals `looks`.
    fn speed_of(busy: impl Fn(u64) -> bool, threads: u64, looks: std::ops::Range<u64>) -> u64 {
        let half = Speed::from_millionths(500_000).unwrap();
        let (mut cpu, mut ran, mut wanted) = (0, 0, 0);
        for look in 1..looks.end {
            let is_stopped = is_too_fast(cpu * TICK_NS, look * TICK_NS, half);
            if busy(look) && looks.contains(&look) {
                wanted += 1;
                ran += u64::from(!is_stopped);
            }
            cpu += if busy(look) && !is_stopped { threads } else { 0 };
        }
        ran * 1_000_000 / wanted
    }

    #[test]
    fn one_spinning_thread_has_the_speed() {
        assert!(speed_of(|_| true, 1, 0..2_000).abs_diff(500_000) < 2_000);
    }

    #[test]
    fn at_full_speed_threads_on_several_cores_are_not_stopped() {
        assert!(!is_too_fast(2_000, 1_000, Speed::FULL));
        assert!(is_too_fast(2_000, 1_000, Speed::from_millionths(999_999).unwrap()));
    }

    /// The third defect.
    #[test]
    fn who_slept_runs_at_full_speed() {
        assert_eq!(speed_of(|look| look > 1_000, 1, 1_000..2_000), 1_000_000);
    }

    /// The fourth defect.
    #[test]
    fn two_threads_have_half_the_speed_each() {
        assert!(speed_of(|_| true, 2, 0..2_000).abs_diff(250_000) < 2_000);
    }

    /// The first defect: the cost of a check grows with the number of processes.
    #[test]
    fn each_look_reads_files_of_every_process() {
        assert_eq!(accesses(100) - accesses(1), 99);
    }

    fn accesses(count: u32) -> usize {
        let host = SimHost::builder(CgroupVersion::V1, 1).speed_groups();
        let host = (500..500 + count).fold(host, |host, tid| host.task(work(tid))).build();
        let group = "/sys/fs/cgroup/freezer/vnode";
        host.make_dir(group).unwrap();
        for tid in 500..500 + count {
            host.write(&pinfold_host::paths::cgroup_procs(group), tid.to_string().as_bytes())
                .unwrap();
        }
        let recording = RecordingHost::new(&host);
        assert_eq!(processes(&recording, group).unwrap().len(), count as usize);
        recording.accesses().len()
    }

    fn work(tid: u32) -> SimTask {
        SimTask::new(tid, "work")
    }
}
