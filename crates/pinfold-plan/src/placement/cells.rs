//! A machine whose NUMA cells are fixed before the plan: each cell is planned separately, then the
//! plans are merged.
//!
//! A domain file with `<cpu><numa>`, or a command line with `-numa`, gives the guest its own NUMA
//! nodes. Each of them is placed like a separate machine, on the host nodes of its memory, by any
//! strategy. Cells do not change the guest's sockets, of which there are no more than the host has
//! packages: a socket may hold several cells, and a cell of another size than the others may be a
//! part of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pinfold_model::text::pus_text;
use pinfold_model::{
    CellRequest, CpuSet, Finding, FreeCpus, GuestTopology, IsolationScope, MemoryPlan,
    MemoryRequest, NodeId, PackageId, PinRequest, Plan, Policy, PuId, Request, Role, SmtRequest,
    ThreadPlan, Topology, VcpuCount, VmRequest, VnodePlan, VnodeRequest, Work,
};

use crate::analysis::locality::check_memory;
use crate::analysis::placement as pin_analysis;
use crate::analysis::validate::starved_host;
use crate::cores::capacity::with_cpus;
use crate::cores::request_check::node_of;
use crate::error::PlanError;
use crate::guest::topology::{GuestSmt, matching, sockets};
use crate::placement::builder::{NOT_ISOLATED, available, not_isolated};
use crate::placement::pins;

/// The cells of a file as a request. Cells without vCPUs are omitted, and so are nodes that the
/// host lacks or that have no CPU. A cell without memory nodes of its own gets those of the whole
/// guest (`whole`) if that is a single node.
pub fn of_file(
    cells: impl Iterator<Item = CellRequest>,
    whole: &[NodeId],
    topology: &Topology,
) -> Vec<CellRequest> {
    let whole = with_cpus(whole, topology);
    let filled = cells.filter(|cell| !cell.vcpus.is_empty());
    let settled = filled.map(|cell| {
        let own = with_cpus(&cell.nodes, topology);
        let nodes = if own.is_empty() && whole.len() == 1 { whole.clone() } else { own };
        CellRequest { nodes, ..cell }
    });
    settled.collect()
}

/// True if a machine of the request has cells.
pub(crate) fn are_fixed(request: &Request) -> bool {
    request.vnodes.iter().any(|vnode| matches!(&vnode.work, Work::Vm(vm) if !vm.cells.is_empty()))
}

/// The cells of the single machine of a request, in groups, by their first vCPU.
pub(crate) struct Parts<'a> {
    topology: &'a Topology,
    request: &'a Request,
    vnode: &'a VnodeRequest,
    vm: &'a VmRequest,
    groups: Vec<Group>,
}

/// Neighbouring cells that are planned together because they have the same host nodes.
struct Group {
    vcpus: CpuSet,
    nodes: Vec<NodeId>,
    /// Total memory in bytes, if known for all cells.
    bytes: Option<u64>,
    /// Number of vCPUs of each cell.
    sizes: Vec<u32>,
}

impl Group {
    fn new(cell: &CellRequest, nodes: Vec<NodeId>) -> Self {
        let size = u32::try_from(cell.vcpus.len()).unwrap_or(u32::MAX);
        Self { vcpus: cell.vcpus.clone(), nodes, bytes: cell.bytes, sizes: vec![size] }
    }

    /// Groups the cells. The threads of a core are never in two cells, so cells that do not fill
    /// cores stay separate.
    fn all(cells: &[&CellRequest], nodes: Vec<Vec<NodeId>>, topology: &Topology) -> Vec<Self> {
        let width = topology.cores.iter().map(|core| core.pus.len()).max().unwrap_or(1).max(1);
        let mut groups: Vec<Self> = Vec::new();
        for (cell, nodes) in cells.iter().zip(nodes) {
            let next = Self::new(cell, nodes);
            match groups.last_mut() {
                Some(last)
                    if last.nodes == next.nodes
                        && last.vcpus.len().is_multiple_of(width)
                        && next.vcpus.len().is_multiple_of(width) =>
                {
                    last.vcpus.add(&next.vcpus);
                    last.bytes = last.bytes.zip(next.bytes).map(|(own, more)| own + more);
                    last.sizes.extend(next.sizes);
                }
                Some(_) | None => groups.push(next),
            }
        }
        groups
    }
}

impl<'a> Parts<'a> {
    /// Assigns host nodes to each cell.
    ///
    /// # Errors
    /// [`PlanError::Cells`] if there are other machines, or the cells do not contain each vCPU
    /// exactly once in consecutive order.
    pub fn new(topology: &'a Topology, request: &'a Request) -> Result<Self, PlanError> {
        let [vnode] = request.vnodes.as_slice() else {
            let first = request.vnodes.first().ok_or(PlanError::NoVnodes)?;
            return Err(fail(first, "the request places other machines too"));
        };
        let Work::Vm(vm) = &vnode.work else {
            return Err(fail(vnode, "it is not a virtual machine"));
        };
        let mut cells: Vec<&CellRequest> = vm.cells.iter().collect();
        cells.sort_by_key(|cell| cell.vcpus.first());
        let mut next = 0_u32;
        for cell in &cells {
            let count = u32::try_from(cell.vcpus.len()).unwrap_or(u32::MAX);
            let last = next.saturating_add(count).checked_sub(1).map(PuId);
            let is_run = cell.vcpus.first() == Some(PuId(next)) && cell.vcpus.iter().last() == last;
            if cell.vcpus.is_empty() || !is_run {
                return Err(fail(vnode, "they must contain each vCPU once, in ascending order"));
            }
            next += count;
        }
        if vm.vcpus != VcpuCount::Exactly(next) {
            return Err(fail(vnode, "their vCPUs are not as many as the machine has"));
        }
        let nodes = settle_nodes(topology, request, vm, &cells);
        Ok(Self { topology, request, vnode, vm, groups: Group::all(&cells, nodes, topology) })
    }

    /// A separate plan for each group of cells, in order.
    ///
    /// # Errors
    /// As `make`.
    pub fn plans(
        &self,
        smt: SmtRequest,
        make: impl Fn(&Request) -> Result<Plan, PlanError>,
    ) -> Result<Vec<Plan>, PlanError> {
        let mut taken = CpuSet::new();
        let mut plans = Vec::new();
        for (place, group) in self.groups.iter().enumerate() {
            let vm = VmRequest {
                vcpus: VcpuCount::Exactly(group.sizes.iter().sum()),
                nodes: group.nodes.clone(),
                cells: Vec::new(),
                smt,
                ..self.vm.clone()
            };
            let memory = group.bytes.map(|bytes| MemoryRequest {
                bytes,
                page_bytes: self.vnode.memory.and_then(|memory| memory.page_bytes),
            });
            let vnode = VnodeRequest {
                work: Work::Vm(vm),
                memory,
                devices: self.devices_of(place),
                policies: Vec::new(),
                pins: self.pins_of(group, &taken),
                ..self.vnode.clone()
            };
            let avoid = self.request.avoid.union(&taken);
            let isolation = scope_of_part(self.request);
            let free = free_of_part(self.topology, self.request);
            let part =
                Request { vnodes: vec![vnode], avoid, isolation, free, ..self.request.clone() };
            let mut plan = make(&part)?;
            // The memory of a cell is bound to its node, also where a strategy only prefers one.
            for memory in plan.vnodes.iter_mut().filter_map(|vnode| vnode.memory.as_mut()) {
                memory.is_preferred = false;
            }
            check_memory(self.topology, &plan.vnodes)?;
            taken.add(&cores_of(self.topology, &plan));
            plans.push(plan);
        }
        Ok(plans)
    }

    /// The pins by hand of a group, renumbered from vCPU 0. Those of helpers on CPUs that are
    /// `taken` by the groups before it are left out: [`Self::vnode`] adds them.
    fn pins_of(&self, group: &Group, taken: &CpuSet) -> Vec<PinRequest> {
        let all = self.groups.iter().map(|group| &group.vcpus).collect::<CpuSet>();
        self.vnode
            .pins
            .iter()
            .filter_map(|pin_request: &PinRequest| {
                let number =
                    pin_request.role.strip_prefix("vcpu(").and_then(|rest| rest.strip_suffix(')'));
                let Some(number) = number.and_then(|number| number.parse().ok()).map(PuId) else {
                    return pin_request.pus.is_disjoint(taken).then(|| pin_request.clone());
                };
                let first = group.vcpus.first().map_or(0, |first| first.0);
                match (group.vcpus.contains(number), all.contains(number)) {
                    (true, _) => Some(PinRequest {
                        role: format!("vcpu({})", number.0 - first),
                        ..pin_request.clone()
                    }),
                    (false, true) => None,
                    // Refused if the group has no such thread.
                    (false, false) => Some(pin_request.clone()),
                }
            })
            .collect()
    }

    /// A plan for each group, with guest siblings in all of them or in none, if possible.
    ///
    /// # Errors
    /// As `make`.
    pub fn plan_groups(
        &self,
        make: impl Fn(&Request) -> Result<Plan, PlanError>,
    ) -> Result<Vec<Plan>, PlanError> {
        let plans = self.plans(self.vm.smt, &make)?;
        if same_threads(&plans) {
            return Ok(plans);
        }
        let shown = self.plans(SmtRequest::Shown, &make);
        Ok(shown.ok().filter(|plans| same_threads(plans)).unwrap_or(plans))
    }

    /// The devices near which a group is placed: those on its nodes; the others belong to the first
    /// group.
    fn devices_of(&self, place: usize) -> Vec<pinfold_model::Device> {
        let home = |device: &pinfold_model::Device| {
            let node = node_of(self.topology, device).ok().flatten();
            self.groups
                .iter()
                .position(|group: &Group| node.is_some_and(|node| group.nodes.contains(&node)))
                .unwrap_or(0)
        };
        self.vnode.devices.iter().filter(|device| home(device) == place).cloned().collect()
    }

    /// Merges the plans of the groups into one plan for the machine.
    ///
    /// # Errors
    /// [`PlanError::NoVnodes`] without groups, [`PlanError::GuestSmt`] if the request wants siblings
    /// and the groups have different ones.
    pub fn merge_plans(&self, plans: &[Plan]) -> Result<Plan, PlanError> {
        let (vnodes, which) = (vec![self.vnode(plans)], "no NUMA cell of the guest needs");
        let guest = vnodes.iter().find_map(|vnode| vnode.guest.as_ref());
        if let (SmtRequest::Shown, Some(guest), [plan, ..]) = (self.vm.smt, guest, plans)
            && guest.threads < 2
        {
            return Err(PlanError::GuestSmt {
                strategy: plan.strategy.clone(),
                vnode: self.vnode.name.clone(),
                why: guest.reason.clone(),
                nearest: None,
            });
        }
        let mut merged = join(self.topology, self.request, plans, vnodes, which)?;
        // The reasons of `auto` are those of a part.
        if let ([_, _, ..], [plan, ..]) = (self.groups.as_slice(), plans) {
            let count = merged.findings.len();
            merged.findings.retain(|finding| finding.subject != "auto");
            if merged.findings.len() < count {
                merged.findings.insert(0, fits_each_cell(&plan.strategy));
            }
        }
        // A single part cannot know which topology fits them all.
        merged.findings.retain(|finding| finding.subject != "guest topology");
        let vcpus: Vec<&ThreadPlan> = merged.vnodes.iter().flat_map(VnodePlan::vcpus).collect();
        let pins: Vec<PuId> = vcpus.iter().filter_map(|thread| single(&thread.pus)).collect();
        if pins.len() == vcpus.len() {
            let smt = match self.vm.smt {
                SmtRequest::Hidden => GuestSmt::Hidden,
                SmtRequest::Shown | SmtRequest::Auto => GuestSmt::Mirror,
            };
            let available = available(self.topology, self.request)?;
            merged.findings.extend(matching(&available, &pins, smt).1);
        }
        Ok(merged)
    }

    fn vnode(&self, plans: &[Plan]) -> VnodePlan {
        let parts: Vec<&VnodePlan> = plans.iter().filter_map(|plan| plan.vnodes.first()).collect();
        let mut vcpus: Vec<ThreadPlan> = Vec::new();
        let mut helpers: Vec<ThreadPlan> = Vec::new();
        for (group, part) in self.groups.iter().zip(&parts) {
            for (thread, index) in part.vcpus().zip(group.vcpus.iter()) {
                vcpus.push(ThreadPlan { role: Role::Vcpu(index.0), ..thread.clone() });
            }
            let others = part.threads.iter().filter(|it| !it.role.is_vcpu());
            for thread in others {
                match helpers.iter_mut().find(|known| known.role == thread.role) {
                    Some(known) => {
                        known.pus.add(&thread.pus);
                        known.policy = known.policy.filter(|_| known.policy == thread.policy);
                    }
                    None => helpers.push(thread.clone()),
                }
            }
        }
        let carried = vcpus.iter().filter(|thread| thread.pus.len() == 1);
        let carried = carried.map(|thread| &thread.pus).collect::<CpuSet>();
        for thread in &mut helpers {
            let parts = parts.iter().filter_map(|part| part.thread(&thread.role));
            let parts: Vec<&ThreadPlan> = parts.collect();
            let free = thread.pus.difference(&carried);
            if !free.is_empty() {
                thread.pus = free;
            }
            // The kernel does not balance threads over isolated CPUs. On the host's CPUs they have
            // no real-time policy of the strategy: that is for the siblings of vCPUs.
            let isolated = &self.topology.isolated;
            if thread.pus.intersection(isolated).len() > 1 {
                let hosts = self.topology.allowed.difference(&self.request.avoid);
                let choices = [thread.pus.clone(), hosts.difference(&carried), hosts];
                let balanced = choices.map(|pus| pus.difference(isolated));
                thread.pus = balanced.into_iter().find(|pus| !pus.is_empty()).unwrap_or_default();
                thread.policy = None;
            }
            thread.reason = common_reason(&parts, &thread.pus);
            pins::pin_helper(&self.vnode.pins, thread);
        }
        vcpus.extend(helpers);
        let nodes: BTreeMap<NodeId, ()> = parts
            .iter()
            .filter_map(|part| part.memory.as_ref())
            .flat_map(|memory| memory.nodes.iter().map(|node| (*node, ())))
            .collect();
        let memory = (!nodes.is_empty()).then(|| MemoryPlan {
            nodes: nodes.into_keys().collect(),
            bytes: self.vnode.memory.map(|memory| memory.bytes),
            page_bytes: self.vnode.memory.and_then(|memory| memory.page_bytes),
            is_preferred: false,
            reason: "each NUMA cell of the guest has its memory on the node of its vCPUs"
                .to_owned(),
        });
        let guest = self.shape(&parts);
        let name = self.vnode.name.clone();
        let (kind, speed) = (pinfold_model::VnodeKind::VirtualMachine, pinfold_model::Speed::FULL);
        VnodePlan { name, kind, threads: vcpus, guest, memory, speed }
    }
}

fn fail(vnode: &VnodeRequest, why: &str) -> PlanError {
    PlanError::Cells { vnode: vnode.name.clone(), why: why.to_owned() }
}

impl Parts<'_> {
    /// The topology of all parts: sockets by the packages of the vCPUs, threads if all parts have
    /// them and no cell ends within a core.
    fn shape(&self, parts: &[&VnodePlan]) -> Option<GuestTopology> {
        let guests: Vec<&GuestTopology> =
            parts.iter().map(|part| part.guest.as_ref()).collect::<Option<_>>()?;
        let first = guests.first()?;
        let sizes: Vec<u32> = self.groups.iter().flat_map(|group| group.sizes.clone()).collect();
        let vcpus = parts.iter().flat_map(|part| part.vcpus());
        let packages: Option<Vec<PackageId>> =
            vcpus.map(|thread| package_of(self.topology, &thread.pus)).collect();
        let (sockets, why) = match packages {
            Some(packages) => sockets(self.topology, &packages),
            None => (1, "one socket, because a vCPU may run in several packages".to_owned()),
        };
        let vcpus: u32 = guests.iter().map(|guest| guest.vcpus()).sum();
        let socket = vcpus / u32::try_from(sockets).unwrap_or(1).max(1);
        let alike = guests.iter().all(|guest| guest.threads == first.threads);
        let has_threads = alike
            && socket.is_multiple_of(first.threads.max(1))
            && sizes.iter().all(|size| size.is_multiple_of(first.threads.max(1)));
        let threads = if has_threads { first.threads.max(1) } else { 1 };
        let siblings = match threads {
            1 if !alike => {
                "no SMT is shown, because the cores of the NUMA cells differ in their threads"
            }
            1 => "no SMT is shown",
            _ => "vCPUs on siblings are shown as threads of one core",
        };
        let reason = format!("{siblings}; {why}, with the guest's {} NUMA cells", sizes.len());
        Some(GuestTopology {
            sockets: vcpus / socket.max(1),
            cores: socket / threads,
            threads,
            reason,
        })
    }
}

/// The package of these CPUs, if all are in one.
fn package_of(topology: &Topology, pus: &CpuSet) -> Option<PackageId> {
    let package = topology.packages.iter().find(|package| pus.is_subset(&package.pus));
    package.filter(|_| !pus.is_empty()).map(|package| package.id)
}

/// Merges several plans for parts of a request into one with `vnodes`. `which` is a phrase for the
/// part that needs none of the host's CPUs.
///
/// # Errors
/// [`PlanError::NoVnodes`] without plans.
pub(crate) fn join(
    topology: &Topology,
    request: &Request,
    plans: &[Plan],
    vnodes: Vec<VnodePlan>,
    which: &str,
) -> Result<Plan, PlanError> {
    let (first, rest) = plans.split_first().ok_or(PlanError::NoVnodes)?;
    let mut merged = Plan { vnodes, ..first.clone() };
    for plan in rest {
        merged.housekeeping.add(&plan.housekeeping);
        merged.exclusive.add(&plan.exclusive);
        if merged.isolation == IsolationScope::None {
            merged.isolation = plan.isolation;
        }
        for finding in &plan.findings {
            if !merged.findings.contains(finding) {
                merged.findings.push(finding.clone());
            }
        }
    }
    // A single part does not know the vCPUs of the others.
    let mut together = pin_analysis::findings(&available(topology, request)?, &merged.vnodes);
    together.retain(pin_analysis::is_of_pins);
    merged.findings.retain(|finding| !pin_analysis::is_of_pins(finding));
    if request.isolation == IsolationScope::None {
        share(topology, request, &mut merged);
    }
    merged.findings.extend(together);
    merged.housekeeping = merged.housekeeping.difference(&merged.exclusive);
    if !merged.exclusive.is_empty() {
        merged.housekeeping_reason =
            format!("the host keeps {}, which {which}", merged.housekeeping);
    }
    if request.vnodes.iter().all(|vnode| vnode.pins.is_empty()) {
        leave_one_to_the_host(&mut merged);
    }
    let carried = merged.vnodes.iter().flat_map(VnodePlan::vcpus);
    let carried = carried.map(|thread| &thread.pus).collect::<CpuSet>();
    for irq in &mut merged.irqs {
        let quiet = irq.pus.intersection(&merged.housekeeping).difference(&carried);
        irq.pus = if quiet.is_empty() { merged.housekeeping.clone() } else { quiet };
    }
    Ok(merged)
}

/// Gives the CPUs that the parts would isolate to the host's tasks too.
fn share(topology: &Topology, request: &Request, merged: &mut Plan) {
    let exclusive = std::mem::take(&mut merged.exclusive);
    merged.isolation = IsolationScope::None;
    merged.findings.retain(|finding| finding.subject != "isolation");
    if !exclusive.is_empty() {
        merged.findings.push(not_isolated(request, &merged.strategy, &exclusive));
        merged.housekeeping.add(&exclusive.difference(&topology.isolated));
        merged.housekeeping_reason = NOT_ISOLATED.to_owned();
    }
}

/// The CPUs that each part keeps free: a percentage is of the whole host, not of what is left of
/// it.
pub(crate) fn free_of_part(topology: &Topology, request: &Request) -> Option<FreeCpus> {
    let allowed = topology.allowed.intersection(&topology.online()).difference(&request.avoid);
    match request.free {
        Some(FreeCpus::Percent(percent)) => {
            let count = (allowed.len() * percent as usize).div_ceil(100);
            Some(FreeCpus::Pus(u32::try_from(count).unwrap_or(u32::MAX)))
        }
        _ => request.free.clone(),
    }
}

/// Takes the first of the host's CPUs from the real-time helpers, if these may run on all of them:
/// a single part does not know that the others leave none.
fn leave_one_to_the_host(merged: &mut Plan) {
    if starved_host(merged).is_none() {
        return;
    }
    let Some(first) = merged.housekeeping.first() else { return };
    let helpers = merged.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads);
    for thread in helpers.filter(|thread| {
        thread.pus.contains(first) && thread.policy.is_some_and(Policy::is_real_time)
    }) {
        thread.pus.remove(first);
        if thread.pus.is_empty() {
            thread.pus = CpuSet::single(first);
            thread.policy = None;
        }
    }
    merged.findings.push(Finding::note(
        "emulator",
        format!(
            "real-time threads do not run on CPU {first}, which stays reserved for the host, so \
             that they cannot lock it out"
        ),
    ));
}

/// The isolation scope of a part: with scope `none`, the finding about isolation is made for all
/// parts together.
pub(crate) fn scope_of_part(request: &Request) -> IsolationScope {
    match request.isolation {
        IsolationScope::None => IsolationScope::Own,
        scope @ (IsolationScope::Own | IsolationScope::Host) => scope,
    }
}

/// The finding that `auto` picked a strategy for a guest with NUMA cells.
pub(crate) fn fits_each_cell(strategy: &str) -> Finding {
    Finding::note("auto", format!("auto chose {strategy}: it fits each NUMA cell of the guest"))
}

/// The whole cores of a part's pinned vCPUs, which no other part may use.
pub(crate) fn cores_of(topology: &Topology, plan: &Plan) -> CpuSet {
    let pins = plan.vnodes.iter().flat_map(VnodePlan::vcpus);
    let pinned: CpuSet =
        pins.filter(|thread| thread.pus.len() == 1).filter_map(|t| t.pus.first()).collect();
    let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(&pinned));
    cores.map(|core| &core.pus).collect::<CpuSet>()
}

/// The reason for a thread of all cells that is on `pus`. The reasons of the parts name the CPUs of
/// each part; if they differ only in these, one of them is used.
fn common_reason(parts: &[&ThreadPlan], pus: &CpuSet) -> String {
    let mut reasons: Vec<String> = parts
        .iter()
        .map(|part: &&ThreadPlan| part.reason.replace(&pus_text(&part.pus), &pus_text(pus)))
        .collect();
    reasons.dedup();
    if let [one] = reasons.as_slice() {
        return one.clone();
    }
    let mut own: Vec<&str> = parts.iter().map(|part| part.reason.as_str()).collect();
    own.dedup();
    one_sentence(&own).unwrap_or_else(|| own.join("; "))
}

/// One sentence of several that differ in a few words only, which it lists; `None` if they differ
/// in more.
fn one_sentence(sentences: &[&str]) -> Option<String> {
    let all: Vec<Vec<&str>> =
        sentences.iter().map(|sentence| sentence.split(' ').collect()).collect();
    let (first, others) = all.split_first()?;
    let shortest = all.iter().map(Vec::len).min()?;
    let alike = (0..=shortest)
        .rev()
        .find(|count: &usize| others.iter().all(|other| other[..*count] == first[..*count]))?;
    // CPUs are named whole: `the CPUs 0,8 and the CPUs 1,9`.
    let noun: &[&str] = &["the", "CPUs", "CPU"];
    let before =
        alike - first[..alike].iter().rev().take_while(|word| noun.contains(*word)).count();
    let after = (0..=shortest - before).rev().find(|count: &usize| {
        others.iter().all(|other| end(other, *count) == end(first, *count))
    })?;
    let differ: Vec<String> =
        all.iter().map(|words| words[before..words.len() - after].join(" ")).collect();
    let is_alike = differ.iter().all(|words| !words.is_empty()) && 2 * (before + after) > shortest;
    is_alike.then(|| {
        let parts = [first[..before].join(" "), differ.join(" and "), end(first, after)];
        parts.join(" ").trim().to_owned()
    })
}

fn end(words: &[&str], count: usize) -> String {
    words[words.len() - count..].join(" ")
}

/// The only CPU of a set.
fn single(pus: &CpuSet) -> Option<PuId> {
    if pus.len() == 1 { pus.first() } else { None }
}

/// True if the guests of all parts have the same number of threads per core.
fn same_threads(plans: &[Plan]) -> bool {
    let vnodes = plans.iter().flat_map(|plan| &plan.vnodes);
    let mut threads = vnodes.map(|vnode| vnode.guest.as_ref().map(|guest| guest.threads));
    let first = threads.next();
    threads.all(|other| Some(other) == first)
}

/// The host nodes of each cell: those of its memory, else the node with the fewest cells and the
/// most CPUs.
fn settle_nodes(
    topology: &Topology,
    request: &Request,
    vm: &VmRequest,
    cells: &[&CellRequest],
) -> Vec<Vec<NodeId>> {
    let memory_is_known = topology.nodes.iter().any(|node| node.memory_bytes > 0);
    fn room(pus: &CpuSet, request: &Request) -> usize {
        pus.difference(&request.avoid).len()
    }
    let candidates: Vec<_> = topology
        .nodes
        .iter()
        .filter(|node| room(&node.pus, request) > 0 && (!memory_is_known || node.memory_bytes > 0))
        .filter(|node| vm.nodes.is_empty() || vm.nodes.contains(&node.id))
        .collect();
    let mut load: BTreeMap<NodeId, usize> = BTreeMap::new();
    for node in cells.iter().flat_map(|cell| &cell.nodes) {
        *load.entry(*node).or_default() += 1;
    }
    let mut settled = Vec::new();
    for cell in cells {
        if !cell.nodes.is_empty() {
            settled.push(cell.nodes.clone());
            continue;
        }
        let best = candidates.iter().min_by_key(|node| {
            let fits = room(&node.pus, request) >= cell.vcpus.len();
            (
                load.get(&node.id).copied().unwrap_or(0),
                !fits,
                Reverse(room(&node.pus, request)),
                node.id,
            )
        });
        if let Some(node) = best {
            *load.entry(node.id).or_default() += 1;
        }
        settled.push(best.map_or_else(|| vm.nodes.clone(), |node| vec![node.id]));
    }
    settled
}
