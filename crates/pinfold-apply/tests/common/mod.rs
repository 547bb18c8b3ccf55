//! Simulated hosts with a virtual machine, plans for them, and a journal in a temporary folder.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use pinfold_apply::{
    Applied, ApplyError, Journal, Journals, ManagedSetting, NewJournal, Observer, Rules, Target,
    UndoReport, apply, no_observer, undo,
};
use pinfold_host::files::StateDir;
use pinfold_host::{Host as _, HostMut as _, SimClock, paths};
use pinfold_model::{
    CpuSet, IsolationScope, Lifetime, Plan, Policy, PuId, Role, Setting, SettingManager, Speed,
    ThreadPlan, Tid, VnodeKind, VnodePlan,
};
use pinfold_sim::{CgroupVersion, SimBuilder, SimHost, SimTask};

pub const VM: u32 = 500;
pub const PLAN_TEXT: &str = r#"{"strategy":"test"}"#;

/// Number of times: the whole one if it was asked for.
pub fn times(usual: u32, whole: u32) -> u32 {
    match std::env::var("PINFOLD_TEST_SIZE").as_deref() {
        Ok("full") => whole,
        Ok(_) | Err(_) => usual,
    }
}

pub fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// A host, what is placed on it, and by which plan.
#[derive(Clone)]
pub struct Case {
    pub name: &'static str,
    pub host: SimHost,
    pub target: Target,
    pub plan: Plan,
}

impl Case {
    pub fn with(&self, isolation: IsolationScope) -> Case {
        let mut case = self.clone();
        case.plan.isolation = isolation;
        case
    }
}

pub const SCOPES: [IsolationScope; 3] =
    [IsolationScope::None, IsolationScope::Own, IsolationScope::Host];

/// Every host, each with every scope.
pub fn cases() -> Vec<Case> {
    let hosts = [
        v1(),
        v1_forgetful(),
        v1_machine_group(),
        v2(),
        v2_in_use(v2_builder().clears_populated()),
        v2_shared(),
        v2_no_room(),
        v2_in_root(),
        v2_cpuset_off(),
        v2_forgetful(),
        v1_libvirt(),
        v2_systemd(),
    ];
    hosts.iter().flat_map(|host| SCOPES.map(|scope| host.with(scope))).collect()
}

/// Pinfold itself, younger than everything that was there before it.
fn own_process() -> SimTask {
    SimTask::new(100, "pinfold").started(1_900)
}

/// The machine: main, one vCPU, an iothread, a thread without a role, all in one group.
fn with_vm(builder: SimBuilder, group: &str) -> SimBuilder {
    builder
        .task(SimTask::new(VM, "qemu-system-x86").in_group(group).child_of(400))
        .task(vm_thread(501, "CPU 0/KVM", group))
        .task(vm_thread(502, "IO disk", group))
        .task(vm_thread(503, "call_rcu", group).with_affinity(set("0")))
}

fn vm_thread(tid: u32, name: &str, group: &str) -> SimTask {
    SimTask::new(tid, name).thread_of(VM).in_group(group)
}

fn with_kernel_threads(builder: SimBuilder, pus: u32) -> SimBuilder {
    let movable = SimTask::new(10, "rcu_preempt").kernel_thread();
    (0..pus).fold(builder.task(movable), |builder, pu| {
        let bound = SimTask::new(20 + pu, &format!("ksoftirqd/{pu}"));
        builder.task(bound.unmovable(CpuSet::single(PuId(pu))))
    })
}

fn with_loads(builder: SimBuilder, group: &str) -> SimBuilder {
    builder
        .task(SimTask::new(600, "pinload").in_group(group).child_of(100))
        .task(SimTask::new(601, "pinload").in_group(group).thread_of(600))
        .task(
            SimTask::new(610, "pinload")
                .in_group(group)
                .child_of(100)
                .with_policy(Policy::Batch { nice: 5 }),
        )
}

fn target(host: &SimHost) -> Target {
    Target {
        pid: Tid(VM),
        threads: vec![
            (task_id(501, host), Role::Vcpu(0)),
            (task_id(VM, host), Role::Emulator),
            (task_id(502, host), Role::Iothread("disk".to_owned())),
        ],
        own: [600, 610].into_iter().filter_map(|tid| Some(host.task(Tid(tid))?.id())).collect(),
        kept: Vec::new(),
        started_on: None,
        known_threads: None,
        left: BTreeSet::new(),
        pins: Vec::new(),
    }
}

fn task_id(tid: u32, host: &SimHost) -> pinfold_model::TaskId {
    host.task(Tid(tid)).unwrap().id()
}

/// The machine alone in the root group, on a host with more than the usual files.
pub fn alone(name: &'static str, builder: SimBuilder) -> Case {
    let builder = builder
        .task(SimTask::new(VM, "qemu-system-x86").child_of(400))
        .task(thread(501, "CPU 0/KVM"))
        .task(thread(502, "IO disk"));
    case(name, builder, "2,6", "0,4")
}

fn thread(tid: u32, name: &str) -> SimTask {
    SimTask::new(tid, name).thread_of(VM)
}

fn case(name: &'static str, builder: SimBuilder, vcpu: &str, rest: &str) -> Case {
    let host = builder.build();
    let target = target(&host);
    Case { name, host, target, plan: plan(vcpu, rest) }
}

pub fn plan(vcpu: &str, rest: &str) -> Plan {
    Plan {
        strategy: "test".to_owned(),
        fingerprint: "test".to_owned(),
        vnodes: vec![VnodePlan {
            name: "vm1".to_owned(),
            kind: VnodeKind::VirtualMachine,
            threads: vec![
                planned_thread(Role::Vcpu(0), vcpu, Some(Policy::Fifo { priority: 1 })),
                planned_thread(Role::Emulator, rest, None),
                planned_thread(Role::Iothread("disk".to_owned()), rest, None),
            ],
            guest: None,
            memory: None,
            speed: Speed::FULL,
        }],
        irqs: Vec::new(),
        tuning: pinfold_model::Tuning::default(),
        cpus: None,
        housekeeping: set(rest),
        exclusive: set(vcpu),
        isolation: IsolationScope::None,
        avoid_pus: CpuSet::new(),
        moved: Vec::new(),
        housekeeping_reason: "as the test says".to_owned(),
        findings: Vec::new(),
    }
}

fn planned_thread(role: Role, pus: &str, policy: Option<Policy>) -> ThreadPlan {
    ThreadPlan { role, pus: set(pus), policy, reason: "as the test says".to_owned() }
}

fn v1_builder() -> SimBuilder {
    let builder = SimHost::builder(CgroupVersion::V1, 2)
        .group("/docker", set("0-1"), mems())
        .group("/docker/a", set("0-1"), mems())
        .group("/docker/b", set("0"), mems())
        .group("/docker/c", set("1"), mems()) // keeps its parent from shrinking
        .group("/only1", set("1"), mems())
        .task(SimTask::new(1, "systemd").child_of(0).started(1))
        .task(own_process())
        .task(SimTask::new(300, "sshd").with_affinity(set("1")))
        .task(SimTask::new(310, "rsyslogd").with_policy(Policy::Other { nice: 3 }))
        .task(SimTask::new(311, "in:imuxsock").thread_of(310).with_affinity(set("0")))
        .task(SimTask::new(400, "bash").child_of(300))
        .task(SimTask::new(700, "nginx").in_group("/docker/a").with_affinity(set("1")))
        .task(SimTask::new(701, "nginx").in_group("/docker/a").child_of(700))
        .task(SimTask::new(702, "containerd").in_group("/docker"))
        .task(SimTask::new(703, "bound").in_group("/docker/c"))
        .task(SimTask::new(710, "bound").in_group("/only1"));
    with_kernel_threads(builder, 2)
}

fn mems() -> CpuSet {
    set("0")
}

/// Two CPUs, version 1: everything in the root, and two containers.
pub fn v1() -> Case {
    let builder = with_loads(with_vm(v1_builder(), "/"), "/");
    case("v1", builder, "1", "0")
}

/// The same with a kernel that overwrites masks when a cpuset changes.
pub fn v1_forgetful() -> Case {
    let builder = with_loads(with_vm(v1_builder().resets_affinity(), "/"), "/");
    let case = case("v1 before 6.2", builder, "1", "0");
    case.host.set_file(&paths::kernel_release(), "6.1.0-25-amd64\n");
    case
}

/// Version 1 with the machine in a group of its own, as libvirt makes it, and a neighbour.
pub fn v1_machine_group() -> Case {
    let builder = v1_builder()
        .group("/machine", set("0-1"), mems())
        .group("/machine/vm1", set("0-1"), mems())
        .group("/machine/vm2", set("0-1"), mems())
        .task(SimTask::new(720, "virtlogd").in_group("/machine"))
        .task(SimTask::new(721, "qemu-system-x86").in_group("/machine/vm2"));
    let builder = with_loads(with_vm(builder, "/machine/vm1"), "/");
    case("v1 machine group", builder, "1", "0")
}

pub const DOMAIN: &str = "01234567-89ab-cdef-0123-456789abcdef";

pub fn pin(key: &str, lifetime: Lifetime) -> Setting {
    let keeper = SettingManager::Libvirt { uri: "qemu:///system".to_owned() };
    Setting { keeper, object: DOMAIN.to_owned(), key: key.to_owned(), lifetime }
}

/// The machine is a domain of libvirt, which keeps a pin of the vCPU and the emulator; its
/// definition has none.
pub fn v1_libvirt() -> Case {
    let case = v1_machine_group();
    keep("vcpupin 0", 501, &case);
    keep("emulatorpin", VM, &case);
    let kept = |key: &str, role: Role, pus: &str| {
        let one = |lifetime, rules| ManagedSetting {
            setting: pin(key, lifetime),
            value: pus.to_owned(),
            rules,
            reason: "as the test says".to_owned(),
        };
        [one(Lifetime::Running, Rules::Masks(role)), one(Lifetime::Lasting, Rules::NextStart)]
    };
    let vcpu = kept("vcpupin 0", Role::Vcpu(0), "1");
    let kept = vcpu.into_iter().chain(kept("emulatorpin", Role::Emulator, "0")).collect();
    Case { name: "v1 libvirt", target: Target { kept, ..case.target }, ..case }
}

fn keep(key: &str, tid: u32, case: &Case) {
    case.host.add_libvirt_pin(pin(key, Lifetime::Running), Some("0-1"), &[Tid(tid)]);
    case.host.add_libvirt_pin(pin(key, Lifetime::Lasting), None, &[]);
}

/// A domain of libvirt on version 1 or 2, whose threads are in groups of their own: one for each vCPU
/// and iothread, and one for all others. libvirt writes a pin to the list of the group first.
pub fn with_pin_groups(case: Case, machine: &str) -> Case {
    let is_v2 = case.host.exists(&paths::cgroup_type(machine));
    if is_v2 && !case.host.exists(&paths::cpuset_cpus(machine)) {
        let parent = machine.rsplit_once('/').unwrap().0;
        case.host.write(&paths::cgroup_subtree_control(parent), b"+cpuset").unwrap();
    }
    let (cpus, mems) = if is_v2 {
        (paths::cpuset_cpus_effective(machine), paths::cpuset_mems(machine))
    } else {
        (paths::cpuset_cpus(machine), paths::cpuset_mems(machine))
    };
    let [list, mems] = [cpus, mems].map(|path| case.host.read_text(&path).unwrap());
    let groups = [("emulator", vec![500, 503]), ("vcpu0", vec![501]), ("iothread1", vec![502])];
    for (name, _) in &groups {
        let group = format!("{machine}/{name}");
        case.host.make_dir(&group).unwrap();
        if is_v2 {
            case.host.write(&paths::cgroup_type(&group), b"threaded").unwrap();
        }
    }
    if is_v2 {
        case.host.write(&paths::cgroup_subtree_control(machine), b"+cpuset").unwrap();
    }
    for (name, threads) in groups {
        let group = format!("{machine}/{name}");
        if !is_v2 {
            case.host.write(&paths::cpuset_mems(&group), mems.trim().as_bytes()).unwrap();
        }
        case.host.write(&paths::cpuset_cpus(&group), list.trim().as_bytes()).unwrap();
        for tid in threads {
            let file =
                if is_v2 { paths::cgroup_threads(&group) } else { paths::cgroup_tasks(&group) };
            case.host.write(&file, format!("{tid}").as_bytes()).unwrap();
        }
    }
    case
}

/// The tree is systemd's, which keeps the lists of its units.
pub fn v2_systemd() -> Case {
    let case = v2();
    case.host.set_file(&format!("{}/marker", paths::systemd_booted()), "");
    for unit in ["init.scope", "system.slice", "user.slice", "machine.slice", "vm2.scope"] {
        let setting = Setting {
            keeper: SettingManager::Systemd,
            object: unit.to_owned(),
            key: "AllowedCPUs".to_owned(),
            lifetime: Lifetime::Running,
        };
        let below = if unit == "vm2.scope" { "machine.slice/vm2.scope" } else { unit };
        let file = paths::cpuset_cpus(&format!("/sys/fs/cgroup/{below}"));
        case.host.add_systemd_unit(setting, &file, None);
    }
    Case { name: "v2 systemd", ..case }
}

pub fn v2_builder() -> SimBuilder {
    let builder = SimHost::builder(CgroupVersion::V2, 8)
        .smt(2)
        .task(SimTask::new(1, "systemd").child_of(0).started(1).in_group("/init.scope"))
        .task(own_process().in_group("/user.slice/session-1.scope"))
        .task(SimTask::new(300, "sshd").in_group("/system.slice/ssh.service"))
        .task(SimTask::new(310, "rsyslogd").in_group("/system.slice/rsyslog.service"))
        .task(
            SimTask::new(311, "in:imuxsock")
                .thread_of(310)
                .in_group("/system.slice/rsyslog.service")
                .with_affinity(set("6")),
        )
        .task(SimTask::new(400, "bash").in_group("/user.slice/session-1.scope").child_of(300))
        .task(SimTask::new(720, "qemu-system-x86").in_group("/machine.slice/vm2.scope"));
    with_kernel_threads(builder, 8)
}

fn v2_enabled(builder: SimBuilder) -> SimBuilder {
    let none = CpuSet::new;
    builder
        .group("/init.scope", none(), none())
        .group("/system.slice", none(), none())
        .group("/user.slice", none(), none())
        .group("/machine.slice", none(), none())
}

/// Eight CPUs, version 2, the machine in a scope of its own.
pub fn v2() -> Case {
    let builder = with_vm(v2_enabled(v2_builder()), "/machine.slice/vm1.scope");
    let builder = with_loads(builder, "/user.slice/session-1.scope");
    case("v2", builder, "2,6", "0,4")
}

/// Somebody else uses the controller too: beside the machine, and below its neighbours.
pub fn v2_in_use(builder: SimBuilder) -> Case {
    let none = CpuSet::new;
    let builder = v2_enabled(builder)
        .group("/narrow.slice", set("0-3"), none())
        .group("/only6.slice", set("6"), none())
        .group("/system.slice/ssh.service", set("0-7"), none());
    let builder = with_vm(builder, "/machine.slice/vm1.scope");
    let builder = with_loads(builder, "/user.slice/session-1.scope");
    case("v2 in use", builder, "2,6", "0,4")
}

/// The loads' parent group has processes of its own, so that no group can be made beside them.
pub fn v2_no_room() -> Case {
    let builder = with_vm(v2_enabled(v2_builder()), "/machine.slice/vm1.scope");
    let builder = builder.task(SimTask::new(730, "user").in_group("/user.slice"));
    let builder = with_loads(builder, "/user.slice/session-1.scope");
    case("v2 no room", builder, "2,6", "0,4")
}

/// The machine was started from a shell and is in the shell's scope.
pub fn v2_shared() -> Case {
    let scope = "/user.slice/session-1.scope";
    let builder = with_loads(with_vm(v2_enabled(v2_builder()), scope), scope);
    case("v2 shared scope", builder, "2,6", "0,4")
}

/// Everything in the root, as in a small guest without systemd.
pub fn v2_in_root() -> Case {
    let builder = SimHost::builder(CgroupVersion::V2, 8)
        .task(own_process())
        .task(SimTask::new(300, "sshd").with_affinity(set("5-7")))
        .task(SimTask::new(400, "sh").child_of(300));
    let builder = with_loads(with_vm(with_kernel_threads(builder, 8), "/"), "/");
    case("v2 in root", builder, "2,6", "0,4")
}

/// The controller is not switched on anywhere.
pub fn v2_cpuset_off() -> Case {
    let builder = with_vm(v2_builder(), "/machine.slice/vm1.scope");
    let builder = with_loads(builder, "/user.slice/session-1.scope");
    case("v2 cpuset off", builder, "2,6", "0,4")
}

/// The controller off, and a kernel that overwrites masks when it is switched on.
pub fn v2_forgetful() -> Case {
    let builder = with_vm(v2_builder().resets_affinity(), "/machine.slice/vm1.scope");
    let builder = with_loads(builder, "/user.slice/session-1.scope");
    let case = case("v2 before 6.2", builder, "2,6", "0,4");
    case.host.set_file(&paths::kernel_release(), "6.1.0-25-amd64\n");
    case
}

/// A state directory that goes away with the test.
pub struct Bench {
    pub folder: tempfile::TempDir,
    pub clock: SimClock,
}

impl Bench {
    pub fn new() -> Self {
        // A journal is synced with each step; where memory is at hand the disk is spared.
        let folder =
            tempfile::tempdir_in(paths::shared_memory()).or_else(|_| tempfile::tempdir()).unwrap();
        Self { folder, clock: SimClock::at(1_700_000_000_000_000_000) }
    }

    pub fn journals(&self) -> Journals<'_> {
        let path = format!("{}/state", self.folder.path().display());
        Journals::open(&StateDir::open(&path).unwrap(), &self.clock).unwrap()
    }

    pub fn begin(&self, case: &Case) -> Journal<'_> {
        let new =
            NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &case.target, supervised: false };
        self.journals().begin(&case.host, &new).unwrap()
    }

    pub fn apply(&self, case: &Case) -> Result<Applied, ApplyError> {
        self.apply_watched(case, &mut no_observer())
    }

    pub fn apply_watched(
        &self,
        case: &Case,
        observer: &mut Observer<'_>,
    ) -> Result<Applied, ApplyError> {
        apply(&case.host, &case.plan, &case.target, &mut self.begin(case), observer)
    }

    pub fn reopen(&self, case: &Case) -> Journal<'_> {
        let latest = latest(&self.journals(), &id(case)).expect("a journal");
        self.journals().reopen(&latest).unwrap().expect("a journal with a header")
    }

    /// True if there is a journal; one that was killed before its first step has none.
    pub fn has_journal(&self, case: &Case) -> bool {
        latest(&self.journals(), &id(case)).is_some()
    }

    pub fn undo(&self, case: &Case) -> UndoReport {
        if self.has_journal(case) {
            undo(&case.host, &mut self.reopen(case))
        } else {
            UndoReport::default()
        }
    }
}

/// The ID of the latest journal of a machine, whose first one has the given ID.
pub fn latest(journals: &Journals<'_>, first: &str) -> Option<String> {
    let ids = journals.list().unwrap().into_iter().map(|summary| summary.id);
    let later = format!("{first}-");
    ids.filter(|id| id == first || id.starts_with(&later)).max_by_key(|id| (id.len(), id.clone()))
}

/// The ID of the first journal.
pub fn id(case: &Case) -> String {
    let task = case.target.threads.iter().find(|(task, _)| task.tid.0 == VM).unwrap().0;
    format!("{}-{}", task.tid, task.start_time)
}

/// Breaks off at one point of one step.
pub fn break_at(
    index: usize,
    point: pinfold_apply::Point,
) -> impl FnMut(&pinfold_apply::Event<'_>) -> ControlFlow<()> {
    move |event| {
        if event.index == index && event.point == point {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// What the two snapshots differ in, for the message.
pub fn difference(before: &str, after: &str) -> String {
    lines(before, after, '-') + &lines(after, before, '+')
}

fn lines(a: &str, b: &str, sign: char) -> String {
    let b: Vec<String> = b.lines().map(str::to_owned).collect();
    a.lines()
        .filter(|line| !b.contains(&(*line).to_owned()))
        .map(|line| format!("{sign} {line}\n"))
        .collect::<String>()
}

#[track_caller]
pub fn assert_same(before: &str, host: &SimHost, what: &str) {
    let after = host.snapshot();
    assert!(before == after, "{what}: the host differs:\n{}", difference(before, &after));
}
