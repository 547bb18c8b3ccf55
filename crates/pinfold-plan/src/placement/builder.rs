//! A plan under construction: the common part of all strategies.
//!
//! A strategy determines the CPUs of each vCPU and of the emulator, with reasons. The builder adds
//! the iothreads, the host's CPUs, memory, interrupts and the findings that are independent of the
//! strategy.

use pinfold_model::text::pus_text;
use pinfold_model::{
    CpuSet, EmulatorRequest, Finding, FreeCpus, GuestTopology, IsolationScope, MAX_VCPUS,
    MemoryPlan, Plan, Request, Role, RoleClass, SmtRequest, Speed, ThreadPlan, Topology, VcpuCount,
    VnodeKind, VnodePlan, VnodeRequest, Work,
};

use crate::analysis::locality;
use crate::analysis::placement as pin_analysis;
use crate::cores::available::{AvailableCpus, FreeFrom};
use crate::cores::request_check;
use crate::cores::select::{Count, Pool};
use crate::error::PlanError;
use crate::guest::topology::{GuestSmt, flat, matching};
use crate::placement::pins::{self, ManualPins};
use crate::placement::rules::Rules;
use crate::placement::vnode_builder::{Reserve, VnodeBuilder};
use crate::text::{narrow, node_list, verb};

/// The reason why the host has all CPUs although the strategy would reserve some.
pub const NOT_ISOLATED: &str = "the isolation scope is none, so the host's tasks keep all CPUs";

/// Limits of a strategy's number of vCPUs.
pub(crate) struct Limits {
    /// The number for `auto`, over all vnodes.
    pub auto: usize,
    /// With several vnodes, the number of each for `auto` is a multiple of this.
    pub unit: usize,
    /// The maximum over all vnodes; `None` if several vCPUs may share a CPU.
    pub most: Option<usize>,
    /// The limiting reason.
    pub why: String,
}

impl Limits {
    /// The limits of a strategy that puts several vCPUs on a CPU when there are too few: only KVM's
    /// limit.
    pub fn wrapping(auto: usize) -> Self {
        let why = "no hypervisor on Linux runs a virtual machine with more".to_owned();
        Self { auto, unit: 1, most: None, why }
    }
}

/// A plan under construction.
pub(crate) struct PlanBuilder<'a> {
    pub available: &'a AvailableCpus<'a>,
    pub request: &'a Request,
    strategy: &'static str,
    rules: Rules,
    vnodes: Vec<Option<VnodePlan>>,
    findings: Vec<Finding>,
    later: Vec<DeferredFinding<'a>>,
    by_hand: ManualPins,
    unbalanced: Vec<UnbalancedThread>,
}

/// A helper role that leaves its isolated CPUs for CPUs that the kernel balances.
struct UnbalancedThread {
    /// The index of its vnode in the request.
    place: usize,
    role: Role,
    /// The isolated CPUs that it leaves.
    isolated: CpuSet,
}

/// A finding that is computed from the plan after the pins by hand.
type DeferredFinding<'a> = Box<dyn FnOnce(&PlacedPlan<'_>) -> Option<Finding> + 'a>;

/// Input of such a finding: the plan's data after all threads are placed, including pins by hand.
pub(crate) struct PlacedPlan<'p> {
    pub vnodes: &'p [VnodePlan],
    /// The strategy's exclusive CPUs, even if the isolation scope does not apply them.
    pub exclusive: &'p CpuSet,
}

impl PlacedPlan<'_> {
    /// The CPUs of all vCPUs and tasks.
    pub fn working_cpus(&self) -> CpuSet {
        self.pus(|role| role.runs_work())
    }

    /// The CPUs of all threads whose role matches.
    pub fn pus(&self, of: impl Fn(&Role) -> bool) -> CpuSet {
        let threads = self.vnodes.iter().flat_map(|vnode| &vnode.threads);
        let mut pus = CpuSet::new();
        threads.filter(|thread| of(&thread.role)).for_each(|thread| pus.add(&thread.pus));
        pus
    }
}

impl<'a> PlanBuilder<'a> {
    /// An empty plan of `strategy`.
    ///
    /// # Errors
    /// [`PlanError::EmulatorRequest`] if the request wants an emulator placement that only
    /// `balanced` supports.
    pub fn new(
        strategy: &'static str,
        rules: Rules,
        available: &'a AvailableCpus<'a>,
        request: &'a Request,
    ) -> Result<Self, PlanError> {
        if request.emulator != EmulatorRequest::Usual && !rules.takes_emulator_request {
            return Err(PlanError::EmulatorRequest {
                strategy: strategy.to_owned(),
                emulator_request: request.emulator.to_string(),
                why: "only balanced lets you choose the emulator's CPUs".to_owned(),
            });
        }
        let vnodes = request.vnodes.iter().map(|_| None).collect();
        let mut builder = Self {
            available,
            strategy,
            rules,
            request,
            vnodes,
            findings: Vec::new(),
            later: Vec::new(),
            by_hand: ManualPins::default(),
            unbalanced: Vec::new(),
        };
        if !available.already_unavailable.is_empty() {
            builder.finding(Finding::note(
                "avoid",
                format!(
                    "{} in the list of avoided CPUs {} not online on this host",
                    pus_text(&available.already_unavailable),
                    verb(&available.already_unavailable, "is", "are")
                ),
            ));
        }
        Ok(builder)
    }

    /// The indexes of the vnodes in the order in which they choose CPUs.
    pub fn choosing_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.request.vnodes.len()).collect();
        order.sort_by_key(|place| {
            std::cmp::Reverse(self.request.vnodes.get(*place).map(|vnode| vnode.priority))
        });
        order
    }

    /// The number of vCPUs (of a process group: cores) of each vnode, in the request's order.
    ///
    /// # Errors
    /// [`PlanError::TooFewPus`] if the strategy cannot give one to each vnode,
    /// [`PlanError::TooManyVcpus`] if it cannot give as many as requested.
    pub fn counts(&self, limits: Limits) -> Result<Vec<usize>, PlanError> {
        let strategy = self.strategy.to_owned();
        let limits = Limits { why: self.on_nodes(limits.why), ..limits };
        let of_one = MAX_VCPUS as usize;
        let asked = |vnode: &VnodeRequest| match &vnode.work {
            Work::Vm(vm) => match vm.vcpus {
                VcpuCount::Auto => None,
                VcpuCount::Exactly(count) => Some(count as usize),
            },
            Work::Processes { cores, .. } => Some(*cores as usize),
        };
        let asked: Vec<Option<usize>> = self.request.vnodes.iter().map(asked).collect();
        let most = limits.most.unwrap_or(of_one * asked.len());
        if most == 0 {
            let usable = self.available.usable.clone();
            return Err(PlanError::TooFewPus { strategy, usable, why: limits.why, nearest: None });
        }
        let given: usize = asked.iter().flatten().sum();
        let autos = asked.iter().filter(|count| count.is_none()).count();
        let largest = asked.iter().flatten().copied().max().unwrap_or(0);
        let (wanted, most) = match asked.len() {
            _ if largest > of_one => (largest, most.min(of_one)),
            1 => (given + autos, most.min(of_one)),
            _ => (given + autos, most),
        };
        if wanted > most {
            return Err(PlanError::TooManyVcpus {
                strategy,
                asked: narrow(wanted),
                most: narrow(most),
                what: request_check::units(self.request),
                why: limits.why,
                nearest: None,
                fit: None,
            });
        }
        let unit = if asked.len() == 1 { 1 } else { limits.unit.max(1) };
        let rounded: usize = asked.iter().flatten().map(|count| count.div_ceil(unit) * unit).sum();
        let share = limits.auto.saturating_sub(rounded) / unit / autos.max(1) * unit;
        let auto = share.clamp(1, most.min(of_one));
        Ok(asked.into_iter().map(|count| count.unwrap_or(auto)).collect())
    }

    /// Adds the nodes to a reason, if the request restricts the plan to some.
    fn on_nodes(&self, why: String) -> String {
        match self.request.vnodes.as_slice() {
            [only] if !request_check::nodes_to_stay_on(only).is_empty() => format!(
                "{why}; the request keeps it on node {}",
                node_list(request_check::nodes_to_stay_on(only))
            ),
            _ => why,
        }
    }

    /// The error if the cores run out before this vnode, although the numbers add up.
    pub fn no_room(&self, place: usize, asked: usize, left: usize, why: String) -> PlanError {
        PlanError::NoRoom {
            strategy: self.strategy.to_owned(),
            vnode: self.vnode(place).name.clone(),
            asked: narrow(asked),
            left: narrow(left),
            what: request_check::units(self.request),
            why: why.into(),
            nearest: None,
            fit: None,
        }
    }

    /// The request for the vnode at this index.
    ///
    /// # Panics
    /// If the request has no such vnode.
    pub fn vnode(&self, place: usize) -> &'a VnodeRequest {
        &self.request.vnodes[place]
    }

    /// Starts the vnode at this index of the request.
    pub fn open(&self, place: usize) -> VnodeBuilder<'a> {
        VnodeBuilder {
            asked: self.vnode(place),
            place,
            strategy: self.strategy,
            pins: Vec::new(),
            emulator: None,
            policies: [None, None],
            node: None,
            prefers_memory: false,
        }
    }

    /// Completes a vnode whose vCPUs are pinned to one CPU each; the guest topology follows from
    /// the pins.
    ///
    /// # Errors
    /// [`PlanError::Pin`] if a pin by hand is not possible, [`PlanError::GuestSmt`] if the request
    /// wants siblings that the pins do not have.
    pub fn finish_vnode(
        &mut self,
        mut vnode_builder: VnodeBuilder<'a>,
        smt: GuestSmt,
    ) -> Result<(), PlanError> {
        let by_hand =
            pins::vcpus(self.available, self.request, &mut vnode_builder, &mut self.by_hand)?;
        let guest = self.matching(&vnode_builder, if by_hand { GuestSmt::Mirror } else { smt });
        self.end(vnode_builder, guest)
    }

    /// Completes a vnode with a given guest topology, unless there are pins by hand.
    ///
    /// # Errors
    /// As [`PlanBuilder::finish_vnode`].
    pub fn finish_vnode_with(
        &mut self,
        mut vnode_builder: VnodeBuilder<'a>,
        guest: GuestTopology,
    ) -> Result<(), PlanError> {
        let by_hand =
            pins::vcpus(self.available, self.request, &mut vnode_builder, &mut self.by_hand)?;
        let guest = if by_hand { self.matching(&vnode_builder, GuestSmt::Mirror) } else { guest };
        self.end(vnode_builder, guest)
    }

    /// The guest topology that follows from the pins of a virtual machine.
    fn matching(&mut self, vnode_builder: &VnodeBuilder<'_>, smt: GuestSmt) -> GuestTopology {
        let pinned = vnode_builder.pinned_cpus();
        let Work::Vm(vm) = &vnode_builder.asked.work else { return flat(0, "") };
        if pinned.len() < vnode_builder.pins.len() {
            let why = "one socket without SMT, because a floating vCPU has no siblings";
            return flat(vnode_builder.pins.len(), why);
        }
        let smt = if vm.smt == SmtRequest::Hidden { GuestSmt::Hidden } else { smt };
        let (guest, findings) = matching(self.available, &pinned, smt);
        let several = self.request.vnodes.len() > 1;
        self.findings.extend(findings.into_iter().map(|mut finding| {
            if several {
                finding.text = format!("{}: {}", vnode_builder.asked.name, finding.text);
            }
            finding
        }));
        guest
    }

    fn end(
        &mut self,
        vnode_builder: VnodeBuilder<'a>,
        guest: GuestTopology,
    ) -> Result<(), PlanError> {
        let Work::Vm(vm) = &vnode_builder.asked.work else {
            self.add(vnode_builder, None);
            return Ok(());
        };
        if vm.smt == SmtRequest::Shown && guest.threads < 2 {
            return Err(PlanError::GuestSmt {
                strategy: self.strategy.to_owned(),
                vnode: vnode_builder.asked.name.clone(),
                why: guest.reason,
                nearest: None,
            });
        }
        self.add(vnode_builder, Some(guest));
        Ok(())
    }

    fn add(&mut self, vnode_builder: VnodeBuilder<'a>, guest: Option<GuestTopology>) {
        let (place, asked, node) = (vnode_builder.place, vnode_builder.asked, vnode_builder.node);
        let is_preferred = vnode_builder.prefers_memory;
        let (kind, speed) = match &asked.work {
            Work::Vm(_) => (VnodeKind::VirtualMachine, Speed::FULL),
            Work::Processes { speed, .. } => (VnodeKind::ProcessGroup, *speed),
        };
        let mut threads = vnode_builder.into_threads();
        for thread in &mut threads {
            if let Some(isolated) = self.adjust_for_isolation(thread) {
                let role = thread.role.clone();
                self.unbalanced.push(UnbalancedThread { place, role, isolated });
            }
        }
        pins::helpers(&asked.pins, &mut threads, &mut self.by_hand);
        // A strategy binds the memory to its node, but pins by hand may be elsewhere.
        let node = node.filter(|node| locality::all_on(self.available, &threads, *node));
        let memory = locality::memory(self.available, asked, &threads, node);
        let memory = memory.map(|memory| MemoryPlan { is_preferred, ..memory });
        let name = asked.name.clone();
        let plan = VnodePlan { name, kind, threads, guest, memory, speed };
        if let Some(entry) = self.vnodes.get_mut(place) {
            *entry = Some(plan);
        }
    }

    /// Adds the reason for a vCPU on an isolated CPU. Moves helper roles off several isolated CPUs:
    /// each role has several threads, and the kernel does not balance threads over isolated CPUs.
    /// Returns these CPUs if the role keeps none of its CPUs; [`Self::vnodes`] chooses others.
    fn adjust_for_isolation(&self, thread: &mut ThreadPlan) -> Option<CpuSet> {
        match thread.role.kind().class {
            RoleClass::Vcpu if !thread.pus.is_disjoint(&self.by_hand.vcpus) => {}
            RoleClass::Vcpu => {
                if thread.pus.is_subset(&self.available.topology.isolated) {
                    thread.reason.push_str(self.rules.isolated.reason());
                }
            }
            RoleClass::Main | RoleClass::Device | RoleClass::Pool => {
                let isolated = thread.pus.intersection(&self.available.topology.isolated);
                if isolated.len() < 2 {
                    return None;
                }
                let rest = thread.pus.difference(&isolated);
                if rest.is_empty() {
                    return Some(isolated);
                }
                restrict(thread, rest, &isolated);
            }
            RoleClass::Task => {}
        }
        None
    }

    /// Places the helper roles that keep none of their isolated CPUs: on CPUs without a vCPU, outside
    /// the exclusive ones if possible, else on all that the kernel balances.
    fn balance(&mut self, exclusive: &CpuSet) {
        let floating = self.available.floating();
        let threads = self.vnodes.iter().flatten().flat_map(|vnode| &vnode.threads);
        let carried = threads.filter(|thread| thread.role.runs_work());
        let carried = carried.map(|thread| &thread.pus).collect::<CpuSet>();
        for UnbalancedThread { place, role, isolated } in std::mem::take(&mut self.unbalanced) {
            let all =
                if floating.is_disjoint(&isolated) { &floating } else { &self.available.hostable };
            let without_vcpu = all.difference(&carried);
            let outside = [without_vcpu.difference(exclusive), without_vcpu];
            let pus = outside.into_iter().find(|pus| !pus.is_empty());
            let vnode = self.vnodes.get_mut(place).and_then(Option::as_mut);
            let mut threads = vnode.into_iter().flat_map(|vnode| &mut vnode.threads);
            if let Some(thread) = threads.find(|one| one.role == role && !one.is_manual()) {
                restrict(thread, pus.unwrap_or_else(|| all.clone()), &isolated);
            }
        }
    }

    /// Adds a finding.
    pub fn finding(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Adds a finding that depends on the final CPUs of threads, which pins by hand may change.
    pub fn defer_finding(&mut self, finding: impl FnOnce(&PlacedPlan<'_>) -> Option<Finding> + 'a) {
        self.later.push(Box::new(finding));
    }

    /// Completes the plan of a strategy that leaves all CPUs to the host too.
    ///
    /// # Errors
    /// As [`PlanBuilder::finish_isolated`].
    pub fn finish_shared(mut self) -> Result<Plan, PlanError> {
        if self.request.isolation != IsolationScope::None {
            self.finding(Finding::note(
                "isolation",
                format!(
                    "{} shares all CPUs with the host, so the isolation scope {} has no CPUs to \
                     protect",
                    self.strategy, self.request.isolation
                ),
            ));
        }
        let reason = format!(
            "{} isolates no CPU: the host's tasks may use the same CPUs as {}",
            self.strategy,
            request_check::placed_noun(self.request)
        );
        let vnodes = self.vnodes(&CpuSet::new());
        self.name_pins();
        self.finish(vnodes, Reserve { exclusive: CpuSet::new(), reason })
    }

    /// Completes the plan of a strategy that excludes other tasks from the vCPUs' CPUs, if the
    /// request allows it.
    ///
    /// # Errors
    /// [`PlanError::Memory`] if a vnode's memory is not on the nodes of its CPUs.
    pub fn finish_isolated(mut self, reserve: Reserve) -> Result<Plan, PlanError> {
        let vnodes = self.vnodes(&reserve.exclusive);
        let isolates = self.request.isolation != IsolationScope::None;
        let reserve = if self.by_hand.names.is_empty() {
            reserve
        } else {
            let by_hand = &self.by_hand;
            pins::reserve(self.available, self.request, by_hand, &vnodes, reserve)?
        };
        let ended = PlacedPlan { vnodes: &vnodes, exclusive: &reserve.exclusive };
        for finding in std::mem::take(&mut self.later) {
            self.findings.extend(finding(&ended));
        }
        let boot = self.boot_pu(&ended);
        self.findings.extend(boot);
        if isolates || reserve.exclusive.is_empty() {
            self.name_pins();
            return self.finish(vnodes, reserve);
        }
        self.finding(not_isolated(self.request, self.strategy, &reserve.exclusive));
        let reason = NOT_ISOLATED.to_owned();
        self.name_pins();
        self.finish(vnodes, Reserve { exclusive: CpuSet::new(), reason })
    }

    /// A finding if the boot CPU, with its kernel work, is used by a virtual machine.
    fn boot_pu(&self, ended: &PlacedPlan<'_>) -> Option<Finding> {
        let online = self.available.topology.online();
        let boot = online.first().filter(|pu| self.available.hostable.contains(*pu))?;
        (ended.working_cpus().contains(boot) && ended.exclusive.contains(boot)).then(|| {
            Finding::note(
                "boot CPU",
                format!(
                    "the kernel boots on CPU {boot} and binds some of its own work there, which this \
                     plan gives to a vCPU or task"
                ),
            )
        })
    }

    /// Adds the finding that lists the threads pinned by hand.
    fn name_pins(&mut self) {
        if self.by_hand.names.is_empty() {
            return;
        }
        let text = format!(
            "{} by hand; {} placed the other threads",
            self.by_hand.names.join(", "),
            self.strategy
        );
        self.finding(Finding::note("pins", text));
    }

    /// The placed vnodes, around the CPUs that the strategy reserves.
    fn vnodes(&mut self, exclusive: &CpuSet) -> Vec<VnodePlan> {
        self.balance(exclusive);
        std::mem::take(&mut self.vnodes).into_iter().flatten().collect()
    }

    fn finish(mut self, vnodes: Vec<VnodePlan>, reserve: Reserve) -> Result<Plan, PlanError> {
        locality::check_nodes(self.available, self.request, &vnodes)?;
        locality::check_memory(self.available.topology, &vnodes)?;
        locality::check_huge_pages(self.available.topology, &vnodes)?;
        self.findings.extend(locality::short_of_free_memory(self.available.topology, &vnodes));
        let common = pin_analysis::findings(self.available, &vnodes);
        self.findings.extend(common);
        let short = pin_analysis::find_cpu_shortage(self.available, self.request, &vnodes);
        self.findings.extend(short);
        let far = locality::far_devices(self.available, self.request, &vnodes)?;
        self.findings.extend(far);
        let housekeeping = self.available.hostable.difference(&reserve.exclusive);
        let (irqs, findings) =
            locality::interrupts(self.available, self.request, &vnodes, &housekeeping)?;
        self.findings.extend(findings);
        let isolation = if reserve.exclusive.is_empty() {
            IsolationScope::None
        } else {
            self.request.isolation
        };
        Ok(Plan {
            strategy: self.strategy.to_owned(),
            fingerprint: self.available.topology.fingerprint.clone(),
            vnodes,
            housekeeping,
            exclusive: reserve.exclusive,
            isolation,
            avoid_pus: CpuSet::new(),
            moved: Vec::new(),
            housekeeping_reason: reserve.reason,
            irqs,
            tuning: pinfold_model::Tuning::default(),
            cpus: None,
            findings: self.findings,
        })
    }
}

/// Restricts a helper role to CPUs that the kernel balances.
fn restrict(thread: &mut ThreadPlan, balanced: CpuSet, isolated: &CpuSet) {
    thread.reason.push_str(&format!(
        "; restricted to {}: the kernel does not balance threads over isolated CPUs ({isolated})",
        pus_text(&balanced)
    ));
    thread.pus = balanced;
}

/// The finding about CPUs that the strategy would isolate if the request allowed it.
pub(crate) fn not_isolated(request: &Request, strategy: &str, pus: &CpuSet) -> Finding {
    Finding::note(
        "isolation",
        format!(
            "the isolation scope is none: other tasks may still run on {}, which {strategy} would \
             keep for {}",
            pus_text(pus),
            request_check::placed_noun(request)
        ),
    )
    .with_hint("use `--isolate own` or `--isolate host`")
}

/// The available CPUs for a checked request.
///
/// # Errors
/// As [`request_check::check`] and [`AvailableCpus::new`].
pub(crate) fn available<'a>(
    topology: &'a Topology,
    request: &Request,
) -> Result<AvailableCpus<'a>, PlanError> {
    request_check::check(topology, request)?;
    AvailableCpus::new(topology, request)
}

/// The available CPUs for a request whose vCPUs are counted by `count`. If the request gives only
/// the number of free CPUs, they come from the weakest part of the machine. If the largest vnode
/// then fits in no single part, but does with free CPUs from the boot part, they come from the boot
/// part.
///
/// # Errors
/// As [`available`].
pub(crate) fn select_available_cpus<'a>(
    topology: &'a Topology,
    request: &Request,
    count: Count,
) -> Result<AvailableCpus<'a>, PlanError> {
    let usual = available(topology, request)?;
    if !matches!(request.free, Some(FreeCpus::Pus(_) | FreeCpus::Percent(_))) {
        return Ok(usual);
    }
    let largest = request_check::largest(request);
    let fits = |available: &AvailableCpus<'_>| {
        Pool::new(&available.without(&available.host()), count, None).fits_a_part(largest)
    };
    let boot = AvailableCpus::with_free(topology, request, FreeFrom::Boot);
    Ok(boot.ok().filter(|boot| !fits(&usual) && fits(boot)).unwrap_or(usual))
}
