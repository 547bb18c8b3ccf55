//! Plans that were saved while other CPUs were online, on a simulated host.

use pinfold_apply::{Journal, JournalError, Journals, NewJournal, no_observer};
use pinfold_host::files::StateDir;
use pinfold_host::{Clock as _, Host as _, SimClock, SystemClock, paths};
use pinfold_model::{CpuSet, Request, Role, Tid, Topology, VcpuCount};
use pinfold_sim::{CgroupVersion, SimHost, SimTask};

use super::*;

const VM: u32 = 500;

fn set(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

/// Eight CPUs that can be taken offline, and a machine with two vCPUs.
fn host(threads_per_core: u32) -> SimHost {
    let group = "/machine.slice/vm.scope";
    let thread = |tid, name| SimTask::new(tid, name).thread_of(VM).in_group(group);
    SimHost::builder(CgroupVersion::V2, 8)
        .smt(threads_per_core)
        .hotplug()
        .group("/machine.slice", CpuSet::new(), CpuSet::new())
        .task(SimTask::new(VM, "qemu-system-x86").in_group(group))
        .task(thread(501, "CPU 0/KVM"))
        .task(thread(502, "CPU 1/KVM"))
        .build()
}

fn topology(host: &SimHost) -> Topology {
    pinfold_topology::discover(host).unwrap()
}

/// A plan as in its file, made while all CPUs were online: vCPUs on 1 and 2, the emulator on their
/// siblings 5 and 6, the host on 0 and 4.
fn saved() -> Plan {
    let request = Request::vm("vm", VcpuCount::Exactly(2));
    let plan = pinfold_plan::plan("low-latency", &topology(&host(2)), &request).unwrap();
    assert_eq!(plan.pus(), set("1-2,5-6"));
    let read = schema::from_json(&schema::to_json(&plan)).unwrap();
    assert_eq!(read, plan);
    read
}

fn target(host: &SimHost) -> Target {
    let vcpus = [(task_id(501, host), Role::Vcpu(0)), (task_id(502, host), Role::Vcpu(1))];
    Target::new(Tid(VM), vcpus.into_iter().chain([(task_id(VM, host), Role::Emulator)]).collect())
}

fn task_id(tid: u32, host: &SimHost) -> pinfold_model::TaskId {
    host.task(Tid(tid)).unwrap().id()
}

/// Places the machine of a host, with a journal of its own.
fn placed(
    host: &SimHost,
    plan: &Plan,
    check: impl FnOnce(Result<Applied, PlacementError>, Journal<'_>),
) {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(&format!("{}/state", folder.path().display())).unwrap();
    let clock = SimClock::at(1_700_000_000_000_000_000);
    let journals = Journals::open(&state, &clock).unwrap();
    let (target, text) = (target(host), schema::to_json_line(plan));
    let new = NewJournal { vm_name: "vm", plan: &text, target: &target, supervised: false };
    let mut journal = journals.begin(host, &new).unwrap();
    let done = bring_online_and_place(
        host,
        Placement { plan, target: &target },
        &mut journal,
        &mut no_observer(),
    );
    check(done, journal);
}

fn online(host: &SimHost) -> String {
    host.read_text(&paths::cpu_online()).unwrap().trim().to_owned()
}

/// CPUs that a compute service took offline after the plan was saved are brought online for the
/// machine, and only those that it needs.
#[test]
fn a_saved_plan_brings_its_cpus_online_and_undo_takes_them_offline() {
    check("0,4", "0-2,4-6");
    check("0,3-4,7", "0-7");
    check("0-1,4-5", "0-2,4-6");
}

fn check(before: &str, during: &str) {
    let (host, plan) = (host(2), saved());
    host.set_online(&set(before));
    let offline = plan.pus().difference(&set(before));
    assert_eq!(pinfold_plan::fit(&plan, &topology(&host)), HostMatch::Offline(offline));
    let snapshot = host.snapshot();
    placed(&host, &plan, |done, mut journal| {
        let applied = done.unwrap_or_else(|_| panic!("{before} is not placed"));
        assert!(applied.steps[0].change.to_string().contains("/online"), "{applied:?}");
        assert_eq!(online(&host), during);
        for (tid, cpus) in [(501, "1"), (502, "2"), (VM, "5-6")] {
            assert_eq!(host.affinity(Tid(tid)).unwrap(), set(cpus), "{tid} from {before}");
        }
        let report = pinfold_apply::undo(&host, &mut journal);
        assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    });
    assert_eq!(online(&host), before);
    assert_eq!(host.snapshot(), snapshot);
}

/// CPUs that the plan does not use do not matter.
#[test]
fn a_saved_plan_is_for_its_host_whatever_else_is_online() {
    let (host, plan) = (host(2), saved());
    assert_eq!(pinfold_plan::fit(&plan, &topology(&host)), HostMatch::Same);
    host.set_online(&set("0-2,4-6"));
    assert_eq!(pinfold_plan::fit(&plan, &topology(&host)), HostMatch::OtherOnline);
    let old = Plan { cpus: None, ..plan };
    assert_eq!(pinfold_plan::fit(&old, &topology(&host)), HostMatch::Other(Vec::new()));
}

/// This is only detected when the CPUs are online: they are not siblings here.
#[test]
fn a_plan_of_another_host_goes_no_further_than_to_bring_cpus_online() {
    let (host, plan) = (host(1), saved());
    host.set_online(&set("0,4"));
    assert_eq!(pinfold_plan::fit(&plan, &topology(&host)), HostMatch::Offline(set("1-2,5-6")));
    let snapshot = host.snapshot();
    placed(&host, &plan, |done, _journal| {
        let Err(PlacementError::Elsewhere(failure)) = done else { panic!("it is placed") };
        assert_eq!(failure.exit, Exit::Input);
        let text = "the plan was created for another machine: the core of CPU 1 is 1 here, 1,5 in \
                    the plan; the core of CPU 2 is 2 here, 2,6 in the plan; ";
        assert!(failure.message.starts_with(text), "{}", failure.message);
        assert!(failure.hint.is_some_and(|hint| hint.contains("pinfold plan")));
    });
    assert_eq!(online(&host), "0,4");
    assert_eq!(host.snapshot(), snapshot);
    // If one of them is online already, nothing is changed.
    host.set_online(&set("0-1,4-5"));
    assert!(matches!(pinfold_plan::fit(&plan, &topology(&host)), HostMatch::Other(_)));
}

#[test]
fn a_cpu_that_does_not_come_online_ends_the_apply() {
    let (host, plan) = (host(2), saved());
    host.set_online(&set("0-1,4-6"));
    let snapshot = host.snapshot();
    host.fail_on(&format!("write {} ", paths::cpu_is_online(pinfold_model::PuId(2))), 16);
    placed(&host, &plan, |done, _journal| assert!(matches!(done, Err(PlacementError::Apply(_)))));
    host.clear_faults();
    assert_eq!(host.snapshot(), snapshot);
}

/// `pinfold watch` locks a placement while it restores a mask; who replaces or undoes the
/// placement at that moment waits.
#[test]
fn a_placement_that_is_locked_for_a_moment_is_waited_for() {
    let host = host(1);
    placed(&host, &saved(), |_, journal| {
        journal.record_complete().unwrap();
        let folder = journal.path();
        let (folder, name) = folder.rsplit_once('/').unwrap();
        let id = journal.record().header.id.clone();
        let state = StateDir::open_visible(folder).unwrap();
        drop(journal);
        let lock = state.lock(&name.replace(".jsonl", ".lock")).unwrap().expect("a free lock");
        let clock = SimClock::at(1_700_000_000_000_000_000);
        let parent = StateDir::open(folder.rsplit_once('/').unwrap().0).unwrap();
        let journals = Journals::open(&parent, &clock).unwrap();
        assert!(matches!(journals.reopen(&id), Err(JournalError::Busy { .. })));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                SystemClock.sleep_ns(300_000_000);
                drop(lock);
            });
            assert!(crate::undo::reopen(&journals, &id).unwrap().is_some());
        });
    });
}
