//! Chooses a CPU, or a core, for a vCPU that has none, and makes one free by the fewest moves.

use pinfold_model::{CoreKind, CpuSet, IsolationScope, L3Id, NodeId, PackageId, Pu, PuId};

use super::occupancy::{Occupancy, Place, Unit};
use crate::strategies::{StrategyKind, kind_of};

/// The CPU of a vCPU with those that it keeps: a CPU, or its core.
struct CpuChoice {
    cpu: PuId,
    kept: CpuSet,
}

/// What is free in each core.
struct Cores {
    /// The number of free CPUs, by core.
    free: Vec<u32>,
    /// The number of available CPUs, by core.
    all: Vec<u32>,
    /// The number of CPUs with a vCPU of the same machine, by core.
    own: Vec<u32>,
}

/// How good a CPU is for a vCPU; the smallest is the best.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// A core of another kind than those of the machine's other vCPUs.
    is_other_kind: bool,
    /// The core where the kernel boots.
    boots: bool,
    /// Breaks up a core that another vCPU needs whole.
    breaks_core: bool,
    /// 0 in an L3 of the machine, 1 on a node, 2 in a package, 3 elsewhere.
    distance: u8,
    /// 0 next to a vCPU of the same machine, 1 on a free core, 2 next to others.
    core_sharing_rank: u8,
    /// Threads of other machines may run there too.
    shortens_a_mask: bool,
    logical_index: u32,
}

impl Occupancy<'_> {
    /// Gives each of these vCPUs a CPU of its own, while there are some. They share those of their
    /// emulators otherwise.
    pub fn assign_cpus(&mut self, mut waiting: Vec<Place>) {
        // A core less is two CPUs less for others, so those that need a core choose last.
        waiting.sort_by_key(|place| self.unit(*place));
        let cores = waiting.iter().filter(|place| self.unit(**place) == Unit::Core).count();
        for place in waiting {
            if !self.assign_cpu(place, &CpuSet::new(), cores > 0) && self.unit(place) == Unit::Core
            {
                self.make_room(place);
            }
        }
    }

    /// Gives a vCPU the best free CPU or core outside `avoided`; false if there is none.
    fn assign_cpu(&mut self, place: Place, avoided: &CpuSet, keeps_cores: bool) -> bool {
        let Some(seat) = self.choose(place, avoided, keeps_cores) else { return false };
        let (name, cpu) = (self.vnode(place).name.clone(), seat.cpu);
        let reason = format!("CPU {cpu} is the free CPU nearest to those of {name}");
        self.set_thread(place, CpuSet::single(cpu), reason);
        self.keep(place, &seat.kept);
        self.move_helpers(place, &seat);
        true
    }

    fn choose(&self, place: Place, avoided: &CpuSet, keeps_cores: bool) -> Option<CpuChoice> {
        let unit = self.unit(place);
        let free = self.free().difference(avoided).difference(&self.homes(unit));
        let siblings = self.vnode(place).vcpus().filter(|thread| thread.pus.is_single());
        let own = siblings.map(|thread| &thread.pus).collect::<CpuSet>();
        let own = own.intersection(&self.kept);
        let helpers = self.helpers_of_others(place.plan);
        let cores = self.cores_of(&free, &own);
        let near = Nearness::new(self, &own);
        let boot = self.available.first().and_then(|pu| self.index.pu(pu)).map(|pu| pu.core);
        let ranked = self.index.pus(&free).filter_map(|pu| {
            let core = pu.core.index();
            let is_whole = cores.free.get(core) == cores.all.get(core);
            if unit == Unit::Core && !is_whole {
                return None;
            }
            let has_own = cores.own.get(core).is_some_and(|own| *own > 0);
            let rank = Rank {
                is_other_kind: near.kind.is_some_and(|kind| kind != pu.kind),
                boots: Some(pu.core) == boot,
                breaks_core: keeps_cores && unit == Unit::Cpu && is_whole,
                distance: near.distance(pu),
                core_sharing_rank: if has_own { 0 } else { 1 + u8::from(!is_whole) },
                shortens_a_mask: helpers.contains(pu.os),
                logical_index: pu.logical.0,
            };
            Some((rank, pu))
        });
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by(|one, other| one.0.cmp(&other.0));
        let isolates = self.plans[place.plan].isolation != IsolationScope::None;
        let host = self.housekeeping();
        ranked.into_iter().find_map(|(_, pu)| {
            let core = self.topology.cores.get(pu.core.index()).map(|core| &core.pus);
            let kept = match (unit, core) {
                (Unit::Core, Some(core)) => core.intersection(&self.available),
                (Unit::Core | Unit::Cpu | Unit::Nothing, _) => CpuSet::single(pu.os),
            };
            let leaves_a_cpu = !isolates || !host.is_subset(&kept);
            leaves_a_cpu.then_some(CpuChoice { cpu: pu.os, kept })
        })
    }

    /// The CPUs of the threads of other plans that are no vCPUs.
    fn helpers_of_others(&self, own: usize) -> CpuSet {
        let mut helpers = CpuSet::new();
        let others = self.plans.iter().enumerate().filter(|(position, _)| *position != own);
        for (_, thread) in others.flat_map(|(_, plan)| plan.threads()) {
            if !thread.role.runs_work() {
                helpers.add(&thread.pus);
            }
        }
        helpers
    }

    fn cores_of(&self, free: &CpuSet, own: &CpuSet) -> Cores {
        let none = vec![0; self.topology.cores.len()];
        let mut cores = Cores { free: none.clone(), all: none.clone(), own: none };
        for (set, counts) in
            [(free, &mut cores.free), (&self.available, &mut cores.all), (own, &mut cores.own)]
        {
            for pu in self.index.pus(set) {
                if let Some(count) = counts.get_mut(pu.core.index()) {
                    *count += 1;
                }
            }
        }
        cores
    }

    /// The machine's helpers leave the new CPU of a vCPU. Those on the siblings of the vCPUs use
    /// the new sibling too.
    fn move_helpers(&mut self, place: Place, seat: &CpuChoice) {
        let plan = &self.plans[place.plan];
        if kind_of(&plan.strategy) == Some(StrategyKind::SharedEmulator) {
            return;
        }
        let pin = CpuSet::single(seat.cpu);
        let siblings = seat.kept.difference(&pin);
        let exclusive = plan.exclusive.clone();
        let helpers = self.vnode(place).threads.iter().enumerate();
        let helpers = helpers.filter(|(_, thread)| !thread.role.runs_work());
        let helpers: Vec<usize> = helpers.map(|(thread, _)| thread).collect();
        for thread in helpers {
            let helper = Place { thread, ..place };
            let pus = &self.thread(helper).pus;
            let rest = pus.difference(&pin);
            let is_beside = pus.is_subset(&exclusive);
            let rest = if is_beside { rest.union(&siblings) } else { rest };
            if !rest.is_empty() && rest != *pus {
                self.set_pus(helper, rest);
            }
        }
    }

    /// Makes a core free for a vCPU by moving the fewest vCPUs of others to other free CPUs, and
    /// takes it.
    fn make_room(&mut self, place: Place) {
        let pinned = self.threads(|_, _, thread| thread.role.is_vcpu() && thread.pus.is_single());
        let free = self.free();
        let none = CpuSet::new();
        let mut occupants: Vec<Vec<Place>> = vec![Vec::new(); self.topology.cores.len()];
        for one in pinned {
            let core = self.thread(one).pus.first().and_then(|cpu| self.index.pu(cpu));
            if let Some(list) = core.and_then(|pu| occupants.get_mut(pu.core.index())) {
                list.push(one);
            }
        }
        let mut candidates: Vec<(usize, usize)> = Vec::new();
        for (core, inside) in occupants.iter().enumerate() {
            let all = self.topology.cores[core].pus.intersection(&self.available);
            let vcpus = inside.iter().map(|one| &self.thread(*one).pus).collect::<CpuSet>();
            // All that is kept there is kept by vCPUs that need no core.
            let can_move = all.intersection(&self.kept) == vcpus
                && vcpus.len() == inside.len()
                && inside.iter().all(|one| self.unit(*one) == Unit::Cpu);
            if can_move && !inside.is_empty() && free.difference(&all).len() >= inside.len() {
                candidates.push((inside.len(), core));
            }
        }
        candidates.sort_unstable();
        for (_, core) in candidates {
            let before = self.mark();
            let all = self.topology.cores[core].pus.clone();
            let mut inside = occupants[core].iter();
            let moved = inside.all(|one| {
                self.vacate(*one);
                self.assign_cpu(*one, &all, false)
            });
            if moved && self.assign_cpu(place, &none, false) {
                return;
            }
            self.restore(&before);
        }
    }
}

/// The places of a machine's vCPUs, to which others are compared.
struct Nearness {
    l3: Vec<Option<L3Id>>,
    nodes: Vec<Option<NodeId>>,
    packages: Vec<PackageId>,
    kind: Option<CoreKind>,
}

impl Nearness {
    fn new(state: &Occupancy<'_>, own: &CpuSet) -> Self {
        let mut near = Self { l3: Vec::new(), nodes: Vec::new(), packages: Vec::new(), kind: None };
        for pu in state.index.pus(own) {
            near.l3.push(pu.l3);
            near.nodes.push(pu.node);
            near.packages.push(pu.package);
            near.kind = Some(pu.kind);
        }
        near.l3.dedup();
        near.nodes.dedup();
        near.packages.dedup();
        near
    }

    fn distance(&self, pu: &Pu) -> u8 {
        if pu.l3.is_some() && self.l3.contains(&pu.l3) {
            0
        } else if pu.node.is_some() && self.nodes.contains(&pu.node) {
            1
        } else if self.packages.contains(&pu.package) {
            2
        } else {
            3
        }
    }
}
