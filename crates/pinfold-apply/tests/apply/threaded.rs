//! A group that is divided into threaded ones goes, though processes live in them: what lies
//! beyond their domain takes whole processes only.

use crate::common::{Bench, v2};
use pinfold_apply::{no_observer, take_steps};
use pinfold_host::{Host as _, HostMut as _, paths};
use pinfold_model::{Change, Step, Undo};

const GROUP: &str = "/sys/fs/cgroup/pinfold-vnode-web";
/// `rsyslogd`, of two threads.
const PROCESS: u32 = 310;
const THREAD: u32 = 311;

fn steps() -> Vec<Step> {
    let mut steps =
        vec![make(GROUP), write(GROUP, paths::cgroup_subtree_control(GROUP), b"+cpuset")];
    for pu in ["2", "3"] {
        let core = format!("{GROUP}/pinfold-core-{pu}");
        steps.push(make(&core));
        steps.push(write(&core, paths::cgroup_type(&core), b"threaded"));
        steps.push(write(&core, paths::cpuset_cpus(&core), pu.as_bytes()));
    }
    steps
}

fn removed(path: &str) -> Undo {
    Undo::RemoveGroup { path: path.to_owned() }
}

fn make(path: &str) -> Step {
    Step {
        change: Change::MakeGroup { path: path.to_owned() },
        undo: removed(path),
        reason: reason(),
    }
}

fn write(group: &str, path: String, value: &[u8]) -> Step {
    Step {
        change: Change::WriteFile { path, value: value.to_vec() },
        undo: removed(group),
        reason: reason(),
    }
}

fn reason() -> String {
    "a test".to_owned()
}

#[test]
fn processes_leave_threaded_groups_as_a_whole() {
    let (bench, case) = (Bench::new(), v2());
    let mut journal = bench.begin(&case);
    let host = &case.host;
    take_steps(host, steps(), &mut journal, &mut no_observer()).unwrap();
    drop(journal);
    enter(paths::cgroup_procs(&format!("{GROUP}/pinfold-core-2")), PROCESS, host);
    enter(paths::cgroup_threads(&format!("{GROUP}/pinfold-core-3")), THREAD, host);

    let report = bench.undo(&case);
    assert!(report.is_complete(), "{:?}", report.failed);
    assert!(!host.exists(GROUP));
    for task in [PROCESS, THREAD] {
        let path = paths::process_cgroup(pinfold_model::Tid(task));
        assert_eq!(host.read_text(&path).unwrap(), "0::/init.scope\n", "{task}");
    }
}

fn enter(file: String, task: u32, host: &pinfold_sim::SimHost) {
    host.write(&file, task.to_string().as_bytes()).unwrap()
}
