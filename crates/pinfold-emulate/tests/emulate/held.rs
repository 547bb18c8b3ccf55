//! Whoever becomes a vnode runs on its CPUs, and what is switched there has an undo.

use crate::common::{node, take, undo};
use pinfold_emulate::{Hierarchies, Node, SpeedError, VnodeCgroup};
use pinfold_host::{Host as _, HostMut as _, paths};
use pinfold_model::{Attach, Change, CpuSet, Method, NodeId, Step, Tid, Undo};
use pinfold_sim::{CgroupVersion, SimHost, SimTask};

const GROUP: &str = "/sys/fs/cgroup/web.slice";

/// A group of two processes that may run anywhere, and its vnode on CPU 1.
fn stage(method: Method) -> (SimHost, Node) {
    let host = SimHost::builder(CgroupVersion::V2, 4)
        .speed_groups()
        .group("/web.slice", CpuSet::new(), CpuSet::new())
        .task(SimTask::new(500, "work").in_group("/web.slice"))
        .task(SimTask::new(510, "work").child_of(500).in_group("/web.slice"))
        .build();
    let attach = Some(Attach::Group("/web.slice".to_owned()));
    (host, Node { attach, ..node(method, &[(1, 50)]) })
}

fn steps(host: &SimHost, hierarchies: &Hierarchies, node: &Node) -> Vec<Step> {
    VnodeCgroup::plan(host, hierarchies, node).expect("a plan").1
}

fn one() -> CpuSet {
    CpuSet::parse_list("1").expect("a list")
}

#[test]
fn a_group_of_another_program_gets_the_vnodes_lists() {
    let (host, node) = stage(Method::Stall);
    let node = Node { memory_node: Some(NodeId(0)), ..node };
    let hierarchies = Hierarchies::find(&host).unwrap();
    assert_eq!(host.affinity(Tid(510)).unwrap(), CpuSet::first_n(4));
    let steps = steps(&host, &hierarchies, &node);
    take(&host, &steps);
    for tid in [500, 510] {
        assert_eq!(host.affinity(Tid(tid)).unwrap(), one());
    }
    assert_eq!(host.read_text(&paths::cpuset_mems(GROUP)).unwrap(), "0\n");
    assert!(steps.iter().all(|step| matches!(step.undo, Undo::WriteFile { .. })), "{steps:?}");
}

/// As `docker update --cpuset-cpus`, and as systemd at `daemon-reload`.
#[test]
fn cpus_that_a_runtime_sets_meanwhile_are_noticed() {
    let (host, node) = stage(Method::Stall);
    let hierarchies = Hierarchies::find(&host).unwrap();
    let (cgroup, steps) = VnodeCgroup::plan(&host, &hierarchies, &node).expect("a plan");
    take(&host, &steps);
    assert_eq!(cgroup.changed_cpus(&host, &hierarchies, &one()).unwrap(), None);
    for (set, expected) in [("0-1", Some("0-1")), ("1", None)] {
        host.write(&paths::cpuset_cpus(GROUP), set.as_bytes()).unwrap();
        let changed = cgroup.changed_cpus(&host, &hierarchies, &one()).unwrap();
        assert_eq!(changed.as_deref(), expected, "{set:?}");
    }
    let parent = paths::cgroup_subtree_control("/sys/fs/cgroup");
    host.write(&parent, b"-cpuset").unwrap();
    let changed = cgroup.changed_cpus(&host, &hierarchies, &one()).unwrap();
    assert_eq!(changed.as_deref(), Some(""), "the file is gone");
}

#[test]
fn without_cpuset_masks_hold_who_becomes_a_vnode() {
    let (host, of_group) = stage(Method::Hogs);
    let of_process = Node { attach: Some(Attach::Process(500)), ..of_group.clone() };
    let before = host.snapshot();
    // No hierarchy at all.
    let (_, taken) = VnodeCgroup::plan(&host, &Hierarchies::default(), &of_process).unwrap();
    assert_eq!(taken.len(), 2);
    take(&host, &taken);
    for tid in [500, 510] {
        assert_eq!(host.affinity(Tid(tid)).unwrap(), one());
    }
    undo(&host, &taken);
    assert_eq!(host.snapshot(), before);
    let bound = Node { memory_node: Some(NodeId(0)), ..of_process };
    let error = VnodeCgroup::plan(&host, &Hierarchies::default(), &bound).unwrap_err();
    assert!(matches!(error, SpeedError::Unbound { .. }), "{error}");
    assert!(error.hint().unwrap().contains("remove memory-node"));
}

#[test]
fn what_is_switched_has_an_undo_with_the_original() {
    let (host, gov) = stage(Method::Gov);
    let hierarchies = Hierarchies::find(&host).unwrap();
    let freeze = paths::cgroup_freeze(GROUP);
    let last = steps(&host, &hierarchies, &gov).pop().unwrap();
    let original = b"0\n".to_vec();
    assert_eq!(last.undo, Undo::WriteFile { path: freeze.clone(), original });
    host.write(&freeze, b"1").unwrap();
    let error = VnodeCgroup::plan(&host, &hierarchies, &gov).unwrap_err();
    assert!(error.to_string().contains("is frozen by another program"), "{error}");
    host.edit_task(Tid(510), |task| task.state = 'T');
    let lim = Node { method: Method::Lim, ..gov };
    let last = steps(&host, &hierarchies, &lim).pop().unwrap();
    assert_eq!(last.change, Change::SignalProcesses { group: GROUP.to_owned() });
    let stopped = vec![host.task(Tid(510)).unwrap().id()];
    assert_eq!(last.undo, Undo::ContinueProcesses { group: GROUP.to_owned(), stopped });
}

#[test]
fn a_frequency_that_a_person_set_goes_back() {
    let host = SimHost::builder(CgroupVersion::V2, 2)
        .cpufreq(&[CpuSet::first_n(2)], &[1_200_000, 2_400_000])
        .build();
    host.write(&path("scaling_governor"), b"userspace").unwrap();
    host.write(&path("scaling_setspeed"), b"1200000").unwrap();
    let hierarchies = Hierarchies::find(&host).unwrap();
    for method in [Method::Gov, Method::Freq] {
        let steps = steps(&host, &hierarchies, &node(method, &[(1, 50)]));
        take(&host, &steps);
        assert_eq!(host.read_text(&path("scaling_setspeed")).unwrap(), "2400000\n");
        undo(&host, &steps);
        assert_eq!(host.read_text(&path("scaling_setspeed")).unwrap(), "1200000\n");
    }
}

fn path(name: &str) -> String {
    paths::cpufreq_policy_file("policy0", name)
}
