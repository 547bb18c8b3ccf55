//! Vnodes for tests; takes and undoes their steps.

use pinfold_emulate::Node;
use pinfold_host::{HostMut, paths};
use pinfold_model::{Change, Method, PuId, Speed, Step, Undo};

pub fn speed(millionths: u32) -> Speed {
    Speed::from_millionths(millionths).expect("a share")
}

/// A vnode with these cores and speeds in percent.
pub fn node(method: Method, cores: &[(u32, u32)]) -> Node {
    Node::new(
        "web",
        method,
        cores
            .iter()
            .map(|(pu, percent): &(u32, u32)| (PuId(*pu), speed(percent * 10_000)))
            .collect(),
    )
}

/// Does what a journal's steps say.
pub fn take(host: &dyn HostMut, steps: &[Step]) {
    for step in steps {
        match &step.change {
            Change::MakeGroup { path } => host.make_dir(path).expect("a new group"),
            Change::WriteFile { path, value } => host.write(path, value).expect("a value"),
            Change::MoveTasks { group, file, tasks } => {
                for task in tasks {
                    let path = paths::cgroup_file(group, file);
                    host.write(&path, task.tid.to_string().as_bytes()).expect("a move");
                }
            }
            Change::SetAffinity { task, mask } => {
                host.set_affinity(task.tid, mask).expect("a mask");
            }
            Change::SignalProcesses { .. } => {}
            Change::SetPolicy { .. } | Change::WriteSetting { .. } | Change::MovePages { .. } => {
                panic!("{}: not a step of emulation", step.change)
            }
        }
    }
}

/// Takes them back, last first. Groups must be empty by then.
pub fn undo(host: &dyn HostMut, steps: &[Step]) {
    for step in steps.iter().rev() {
        match &step.undo {
            Undo::WriteFile { path, original } if path.ends_with("subtree_control") => {
                let held = String::from_utf8_lossy(original).into_owned();
                for name in host.read_text(path).expect("controllers").split_ascii_whitespace() {
                    if !held.split_ascii_whitespace().any(|one| one == name) {
                        host.write(path, format!("-{name}").as_bytes()).expect("no more of it");
                    }
                }
            }
            Undo::WriteFile { path, original } => host.write(path, original).expect("the original"),
            Undo::RemoveGroup { path } if host.exists(path) => {
                host.remove_dir(path).expect("an empty group");
            }
            Undo::RemoveGroup { .. } => {}
            Undo::MoveTasks { mount, file, tasks } => {
                for state in tasks {
                    let path = paths::cgroup_file(&format!("{mount}{}", state.group), file);
                    host.write(&path, state.task.tid.to_string().as_bytes()).expect("a way back");
                }
            }
            Undo::SetAffinity { task, original } => {
                host.set_affinity(task.tid, original).expect("a mask");
            }
            Undo::ContinueProcesses { .. } => {}
            Undo::SetPolicy { .. } | Undo::WriteSetting { .. } | Undo::LeavePages { .. } => {
                panic!("not an undo of emulation")
            }
        }
    }
}
