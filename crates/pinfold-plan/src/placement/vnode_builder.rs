//! A vnode under construction: the CPUs of its threads.

use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, Policy, PuId, Role, ThreadPlan, VnodeRequest, Work};

/// CPUs that are reserved for the vnodes.
pub(crate) struct Reserve {
    /// CPUs from which other tasks are excluded.
    pub exclusive: CpuSet,
    /// The reason for the host's CPUs.
    pub reason: String,
}

/// A vnode under construction.
pub(crate) struct VnodeBuilder<'a> {
    /// The request for this vnode.
    pub asked: &'a VnodeRequest,
    pub place: usize,
    pub strategy: &'static str,
    /// CPUs of each vCPU (of a process group: of each core), with the reason.
    pub pins: Vec<(CpuSet, String)>,
    /// CPUs of the emulator, with the reason.
    pub emulator: Option<(CpuSet, String)>,
    /// Policy of the vCPUs; policy of the emulator and all threads that follow it.
    pub policies: [Option<Policy>; 2],
    /// The node to which its memory is bound even if the request gives no size.
    pub node: Option<pinfold_model::NodeId>,
    /// True if its memory is preferred on the nodes of its CPUs, not bound to them.
    pub prefers_memory: bool,
}

impl VnodeBuilder<'_> {
    /// The counted unit for messages.
    pub fn unit(&self) -> &'static str {
        match self.asked.work {
            Work::Vm(_) => "vCPU",
            Work::Processes { .. } => "task",
        }
    }

    /// Places the next vCPU.
    pub fn vcpu(&mut self, pus: CpuSet, reason: impl Into<String>) {
        self.pins.push((pus, reason.into()));
    }

    /// Places the emulator with the iothreads and vhost workers. Ignored for a process group.
    pub fn emulator(&mut self, pus: &CpuSet, reason: impl FnOnce() -> String) {
        if matches!(self.asked.work, Work::Vm(_)) {
            self.emulator = Some((pus.clone(), reason()));
        }
    }

    /// The CPUs of the vCPUs that are pinned to one CPU each.
    pub fn pinned_cpus(&self) -> Vec<PuId> {
        self.pins
            .iter()
            .filter_map(|(pus, _)| if pus.len() == 1 { pus.first() } else { None })
            .collect()
    }

    /// The threads, in the order of a plan.
    pub fn into_threads(self) -> Vec<ThreadPlan> {
        let [of_vcpus, of_emulator] = self.policies;
        let vm = match &self.asked.work {
            Work::Vm(vm) => vm,
            Work::Processes { .. } => {
                let mut all = CpuSet::new();
                self.pins.iter().for_each(|(pus, _)| all.add(pus));
                let first = self.pins.into_iter().map(|(_, reason)| reason).next();
                let reason = match all.len() {
                    1 => first.unwrap_or_default(),
                    _ => format!(
                        "its tasks share {}; the first of these CPUs: {}",
                        pus_text(&all),
                        first.unwrap_or_default()
                    ),
                };
                return vec![thread_plan(Role::Task, all, of_vcpus, reason)];
            }
        };
        let helpers = vm.device_roles().count();
        let mut threads = Vec::with_capacity(self.pins.len() + helpers + 1);
        let mut carried = CpuSet::new();
        for (index, (pus, reason)) in (0_u32..).zip(self.pins) {
            if helpers > 0 {
                carried.add(&pus);
            }
            threads.push(thread_plan(Role::Vcpu(index), pus, of_vcpus, reason));
        }
        let Some((pus, reason)) = self.emulator else { return threads };
        let apart = carried.is_disjoint(&pus);
        threads.push(thread_plan(Role::Emulator, pus.clone(), of_emulator, reason));
        for role in vm.device_roles() {
            let reason = helper_reason(&role, &pus, self.strategy, apart);
            threads.push(thread_plan(role, pus.clone(), of_emulator, reason));
        }
        threads
    }
}

fn thread_plan(role: Role, pus: CpuSet, policy: Option<Policy>, reason: String) -> ThreadPlan {
    ThreadPlan { role, pus, policy, reason }
}

fn helper_reason(role: &Role, pus: &CpuSet, strategy: &str, apart: bool) -> String {
    let who = role.describe();
    if apart {
        format!(
            "{who} runs on the emulator's CPUs, {}, so that its I/O does not use a vCPU's CPU",
            pus_text(pus)
        )
    } else {
        format!(
            "{who} runs on the emulator's CPUs: {strategy} reserves no CPU for I/O, so it competes \
             with the vCPUs"
        )
    }
}
