//! The kernel's statistics of a real process with a thread that works.

use crate::common::{SECOND, eventually, program};
use pinfold_host::LiveHost;
use pinfold_model::{Role, RoleStats, TaskId};
use pinfold_probe::loads::{HostLoads, LoadDuration, LoadKind, LoadSpec, Placement};
use pinfold_probe::roles::{Snapshot, snapshot};

fn stats_of(stats: &[RoleStats], role: &Role) -> RoleStats {
    stats.iter().find(|stats| stats.role == *role).unwrap().clone()
}

#[test]
fn a_working_thread_gains_run_time_and_its_end_is_counted() {
    let program = program();
    let host = LiveHost::new().unwrap();
    let spec =
        LoadSpec { kind: LoadKind::Cpu, threads: 1, life: LoadDuration::Limited(600 * SECOND) };
    let loads = HostLoads::start(&program.pinload.path(), &[spec], &Placement::default()).unwrap();
    let process = loads.processes()[0];
    let mut worker: Option<TaskId> = None;
    assert!(eventually(|| {
        worker = loads.tasks(&host).unwrap().into_iter().find(|task| *task != process);
        worker.is_some()
    }));
    let roles = [(worker.unwrap(), Role::Vcpu(0))];
    let look = || snapshot(&host, process.tid, &roles).unwrap();
    let first = look();
    assert_eq!(first.len(), 2);
    assert!(eventually(|| stats_of(&look().since(&first), &Role::Vcpu(0)).run_ns > 0));
    let stats = look().since(&first);
    assert_eq!(stats_of(&stats, &Role::Vcpu(0)).threads, 1);
    assert_eq!(stats_of(&stats, &Role::Emulator).threads, 1);
    loads.stop().unwrap();
    assert!(snapshot(&host, process.tid, &roles).unwrap_err().is_gone());
    let stats = Snapshot::default().since(&first);
    assert_eq!(stats.iter().map(|stats| stats.lost_threads).sum::<u32>(), 2);
}
