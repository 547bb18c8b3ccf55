//! The environment of a start: the CPUs unchanged, a plan, a virtual node of slow cores, or a
//! guest.

use pinfold_apply::{ApplyError, Refusal, Target};
use pinfold_emulate::Facts;
use pinfold_host::{Host as _, LiveHost, paths, proc_stat, process};
use pinfold_model::text::count_noun;
use pinfold_model::{
    CpuSet, EmulationPlan, EmulatorRequest, IrqPlan, Method, Plan, Platform, PlatformVnode, PuId,
    Request, Role, Speed, SpeedRequest, Topology, Variant, VnodeRequest,
};
use pinfold_plan::resolve_platform;
use pinfold_study::study::{
    AS_IS, Cell, FactorEffect, Level, NONE, SAME_PROGRAM, Study, TrialRequest,
};

use super::NAME;
use super::cell_context::{CellLevels, HostFacts};
use super::guests::{self, GuestSetup};
use super::interference::{Measured, memory_node};

/// Why a cell at full speed has no variant.
const NOTHING_SLOWED: &str = "only a method of slowing has variants, and this cell slows nothing";

/// The environment of a start.
pub enum TrialEnvironment {
    /// These CPUs, without changes.
    Plain(CpuSet),
    /// A plan, which is applied for each measured process and then undone; with the CPUs of the
    /// threads of the process, if the strategy pins them individually.
    Planned(Box<Plan>, Option<Vec<PuId>>),
    /// A virtual node, for all trials of the start.
    Slowed(Box<EmulationPlan>),
    /// A guest, for all trials of the start.
    Guest(Box<GuestSetup>),
}

impl TrialEnvironment {
    /// The measured CPUs.
    pub fn pus(&self) -> CpuSet {
        match self {
            TrialEnvironment::Plain(pus) => pus.clone(),
            TrialEnvironment::Planned(plan, _) => plan.pus(),
            TrialEnvironment::Guest(guest) => guest.plan.pus(),
            TrialEnvironment::Slowed(plan) => {
                let mut pus = CpuSet::new();
                plan.vnodes.iter().for_each(|vnode| pus.add(&vnode.cpus()));
                pus
            }
        }
    }

    /// The CPUs that neighbours leave free.
    pub fn measured_cpus(&self) -> Measured {
        let vcpus = match self {
            TrialEnvironment::Guest(guest) => Some(guest.vcpu_pus()),
            TrialEnvironment::Plain(_)
            | TrialEnvironment::Planned(..)
            | TrialEnvironment::Slowed(_) => None,
        };
        Measured { pus: self.pus(), vcpus }
    }

    /// The speed of the virtual node in a trial.
    pub fn speed(wanted: TrialRequest<'_>) -> Option<Speed> {
        speed_of(wanted.cell.level_with_effect(wanted.study, &FactorEffect::Speed)).ok()
    }

    /// The environment of a cell.
    ///
    /// # Errors
    /// Why this host does not support it.
    pub fn new(
        study: &Study,
        cell: &Cell,
        HostFacts { host, topology, facts }: HostFacts<'_>,
    ) -> Result<Self, String> {
        let tunables = tunables(study, cell);
        let first_siblings = without_siblings(&tunables, topology);
        let topology = first_siblings.as_ref().unwrap_or(topology);
        if let Some(reason) = lacking(host, &tunables, topology) {
            return Err(reason);
        }
        if let Some(guest_request) = cell.guest(study)? {
            let known = HostFacts { host, topology, facts };
            let guest =
                GuestSetup::new(CellLevels { study, cell }, guest_request, &tunables, known)?;
            return Ok(TrialEnvironment::Guest(Box::new(guest)));
        }
        let level = |acts: FactorEffect| cell.level_with_effect(study, &acts);
        refuse_guest_levels(study, cell)?;
        let cores = level(FactorEffect::Cores).map(|cores| count(cores, "cores")).transpose()?;
        if let Some(cores) = cores.filter(|cores| *cores as usize > topology.allowed.len()) {
            let there = topology.allowed.len();
            return Err(format!("it needs {}, this host has {there}", count_noun(cores, "core")));
        }
        let is_slow = level(FactorEffect::Speed).is_some() || level(FactorEffect::Method).is_some();
        let strategy = level(FactorEffect::Strategy).map(|level| level.text.as_str());
        if is_slow {
            if strategy.is_some() || !tunables.is_empty() {
                return Err("placements cannot be combined with slow cores, which have their own"
                    .to_owned());
            }
            return slow_placement(study, cell, cores.unwrap_or(1), topology, facts);
        }
        if variant(study, cell) != Variant::Corrected {
            return Err(NOTHING_SLOWED.to_owned());
        }
        let threads =
            level(FactorEffect::Threads).map(|level| count(level, "threads")).transpose()?;
        let vcpus = level(FactorEffect::Vcpus).map(|level| count(level, "vCPUs")).transpose()?;
        if strategy.is_none() && tunables.is_empty() {
            let inherited = topology.inherited_cpus();
            let from = match cores {
                Some(cores) if cores as usize > inherited.len() => &topology.allowed,
                Some(_) | None => &inherited,
            };
            let wanted = cores.map_or(from.len(), |cores| cores as usize);
            return Ok(TrialEnvironment::Plain(from.iter().take(wanted).collect()));
        }
        let size = cores.or(vcpus).or(threads).unwrap_or(1);
        let strategy = strategy.unwrap_or(NONE);
        let plan = plan_trial(strategy, &tunables, size, topology)?;
        let places = if cell
            .workload(study)
            .program
            .words()
            .iter()
            .any(|word: &String| word.contains("{places}"))
        {
            guests::places(&guests::plan(strategy, EmulatorRequest::Usual, size, topology)?)
                .map(first_cycle)
        } else {
            None
        };
        Ok(TrialEnvironment::Planned(Box::new(plan), places))
    }
}

/// Rejects levels that only a guest can have.
fn refuse_guest_levels(study: &Study, cell: &Cell) -> Result<(), String> {
    let level = |acts: FactorEffect| cell.level_with_effect(study, &acts);
    if level(FactorEffect::Emulator).is_some_and(|level| level.text != "usual") {
        return Err("native is not a guest and has no emulator".to_owned());
    }
    if level(FactorEffect::PageTableLevels).is_some_and(|level| level.text != AS_IS) {
        return Err("native is not a guest: its page tables are those of the host".to_owned());
    }
    let others = level(FactorEffect::Machines).is_some_and(|level| level.text != "1");
    let is_program =
        level(FactorEffect::OtherMachines).is_none_or(|level| level.text == SAME_PROGRAM);
    if others && !is_program {
        let why = "native is not a guest: other machines are copies of the program, not loads";
        return Err(why.to_owned());
    }
    Ok(())
}

/// The first cycle of a list that repeats its CPUs cyclically (with more threads than CPUs), else
/// the whole list.
fn first_cycle(places: Vec<PuId>) -> Vec<PuId> {
    let again = (1..places.len()).find(|at| places[..*at].contains(&places[*at]));
    let Some(turn) = again.map(|at| &places[..at]) else { return places };
    let goes_round = turn.iter().cycle().zip(&places).all(|(of_turn, place)| of_turn == place);
    if goes_round { turn.to_vec() } else { places }
}

/// The tunables that a cell sets, as `KEY=VALUE`.
fn tunables(study: &Study, cell: &Cell) -> Vec<String> {
    study
        .factors
        .iter()
        .filter_map(|factor| match &factor.effect {
            FactorEffect::Tunable(key) => {
                let level = cell.level(study, &factor.name)?;
                (level != AS_IS).then(|| format!("{key}={level}"))
            }
            FactorEffect::Variable
            | FactorEffect::Strategy
            | FactorEffect::Cores
            | FactorEffect::Threads
            | FactorEffect::Vcpus
            | FactorEffect::Speed
            | FactorEffect::Method
            | FactorEffect::Variant
            | FactorEffect::HostLoad
            | FactorEffect::GuestLoad
            | FactorEffect::Isa
            | FactorEffect::Accelerator
            | FactorEffect::MemoryNode
            | FactorEffect::Neighbour
            | FactorEffect::Neighbours
            | FactorEffect::NeighbourKind
            | FactorEffect::Emulator
            | FactorEffect::Machines
            | FactorEffect::OtherMachines
            | FactorEffect::PageTableLevels => None,
        })
        .collect()
}

/// Why this host cannot set one of these tunables, determined by planning them for this process.
/// Tunables of a role that this process does not have are checked when a trial applies them.
fn lacking(host: &LiveHost, tunables: &[String], topology: &Topology) -> Option<String> {
    if tunables.is_empty() {
        return None;
    }
    let plan = plan_trial(NONE, tunables, 1, topology).ok()?;
    let stat = host.read_text(&paths::process_stat(process::own_pid())).ok()?;
    let task = proc_stat::parse(&stat).ok()?.task();
    let target = Target::new(task.tid, vec![(task, Role::Task)]);
    let finding = match pinfold_apply::plan_steps(host, &plan, &target) {
        Err(ApplyError::Refused(Refusal::Lacks { finding })) => *finding,
        Ok(_) if plan.irqs.iter().any(|irq| irq.device == IrqPlan::ALL) => {
            pinfold_apply::no_movable_irq(host).ok()??
        }
        Ok(_) | Err(_) => return None,
    };
    Some(match finding.hint {
        Some(hint) => format!("{}: {} ({hint})", finding.subject, finding.text),
        None => format!("{}: {}", finding.subject, finding.text),
    })
}

/// With the tunable `smt=off`, only the first CPU of each core is available for planning.
fn without_siblings(tunables: &[String], topology: &Topology) -> Option<Topology> {
    if !tunables.iter().any(|tunable| tunable == "smt=off") {
        return None;
    }
    let firsts = topology.cores.iter().filter_map(|core| core.pus.first()).collect();
    let allowed = topology.allowed.intersection(&firsts);
    Some(Topology { allowed, ..topology.clone() })
}

fn count(level: &Level, what: &str) -> Result<u32, String> {
    level.text.parse().map_err(|_| format!("{what}: {level} is not a whole number"))
}

fn plan_trial(
    strategy: &str,
    tunables: &[String],
    size: u32,
    topology: &Topology,
) -> Result<Plan, String> {
    let group = VnodeRequest::processes(NAME, size, Speed::FULL);
    let plan = pinfold_plan::plan(strategy, topology, &Request::from_vnodes(vec![group]))
        .map_err(|error| error.to_string())?;
    guests::with_tunables(plan, tunables, topology)
}

fn speed_of(level: Option<&Level>) -> Result<Speed, String> {
    let share = level.and_then(Level::number).unwrap_or(1.0);
    let millionths = (share * 1e6).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1,000,000")]
    let speed = Speed::from_millionths(millionths as u32);
    speed.ok_or_else(|| format!("{share} is not a speed"))
}

/// The variant of the method of a cell.
fn variant(study: &Study, cell: &Cell) -> Variant {
    let level = cell.level_with_effect(study, &FactorEffect::Variant);
    level.and_then(|level| Variant::from_name(&level.text)).unwrap_or_default()
}

/// A vnode, or its CPUs at full speed if nothing slows them.
fn slow_placement(
    study: &Study,
    cell: &Cell,
    cores: u32,
    topology: &Topology,
    facts: &Facts,
) -> Result<TrialEnvironment, String> {
    let speed = speed_of(cell.level_with_effect(study, &FactorEffect::Speed))?;
    let variant = variant(study, cell);
    let named =
        cell.level_with_effect(study, &FactorEffect::Method).filter(|method| method.text != NONE);
    let method = named.and_then(|method| Method::from_name(&method.text));
    let vnode = |method, speed, memory_node| PlatformVnode {
        like: None,
        name: NAME.to_owned(),
        cores,
        speeds: vec![SpeedRequest::Share(speed)],
        memory_node,
        method,
        variant,
        period_ns: None,
        calibrate: false,
        attach: None,
        profile: None,
        disk: None,
    };
    if method.is_none() && speed == Speed::FULL {
        if variant != Variant::Corrected {
            return Err(NOTHING_SLOWED.to_owned());
        }
        // The same CPUs as the slow cells, so that the cells are comparable.
        let plan = resolve_vnode(vnode(Some(Method::Quota), speed, None), study, topology)?;
        return Ok(TrialEnvironment::Plain(TrialEnvironment::Slowed(Box::new(plan)).pus()));
    }
    if method.is_none()
        && named.is_none()
        && study.factors.iter().any(|f| f.effect == FactorEffect::Method)
    {
        return Err("none does not slow anything: only speed 1 is possible".to_owned());
    }
    let method = match method.or_else(|| pinfold_emulate::best(facts)) {
        Some(method) => method,
        None => return Err("no method of slowing works here".to_owned()),
    };
    if method.replays_load() {
        return Err("inject replays a recorded load, and a study has none".to_owned());
    }
    if !method.variants().contains(&variant) {
        return Err(format!("{method} has no variant {}", variant.name()));
    }
    if let Some(why) = pinfold_emulate::refusal(method, facts) {
        return Err(format!("{method}: {why}"));
    }
    let pus = TrialEnvironment::Slowed(Box::new(resolve_vnode(
        vnode(Some(method), speed, None),
        study,
        topology,
    )?))
    .pus();
    let node =
        memory_node(cell.level_with_effect(study, &FactorEffect::MemoryNode), &pus, topology)?;
    Ok(TrialEnvironment::Slowed(Box::new(resolve_vnode(
        vnode(Some(method), speed, node),
        study,
        topology,
    )?)))
}

fn resolve_vnode(
    vnode: PlatformVnode,
    study: &Study,
    topology: &Topology,
) -> Result<EmulationPlan, String> {
    let share_housekeeping = study.share_housekeeping;
    resolve_platform(
        &Platform { vnodes: vec![vnode], share_housekeeping, avoid: CpuSet::new() },
        topology,
    )
    .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: &str = r#"
name = "slow"
[[factor]]
name = "method"
levels = ["none", "stall", "hogs", "fracas"]
[[factor]]
name = "variant"
levels = ["corrected", "as-published"]
[[factor]]
name = "speed"
levels = [1, 0.5]
[[workload]]
name = "true"
command = ["true"]
lasts = "10ms"
"#;

    #[test]
    fn slow_cores_have_the_variant_of_their_cell() {
        let study = pinfold_study::study::from_toml(SLOW).unwrap();
        let host = crate::host::live().unwrap();
        let topology = crate::inputs::topology(&host, Some("package:1 core:4 pu:1")).unwrap();
        let facts = Facts { is_root: true, ..Facts::default() };
        let check = |levels: [usize; 3], expected: Result<Variant, &str>| {
            let cell = Cell { workload: 0, levels: levels.into(), baseline: None, skipped: None };
            let found = slow_placement(&study, &cell, 1, &topology, &facts);
            let found = found.map(|setup| match setup {
                TrialEnvironment::Slowed(plan) => plan.vnodes[0].variant,
                TrialEnvironment::Plain(_)
                | TrialEnvironment::Planned(..)
                | TrialEnvironment::Guest(_) => Variant::default(),
            });
            assert_eq!(found, expected.map_err(str::to_owned), "{levels:?}");
        };
        check([2, 0, 1], Ok(Variant::Corrected));
        check([2, 1, 1], Ok(Variant::AsPublished));
        check([0, 0, 0], Ok(Variant::Corrected));
        check([0, 1, 0], Err(NOTHING_SLOWED));
        check([1, 1, 1], Err("stall has no variant as-published"));
    }

    #[test]
    fn places_that_go_round_are_named_once() {
        check(&[0, 2, 1], &[0, 2, 1]);
        check(&[0, 2, 1, 0, 2], &[0, 2, 1]);
        check(&[0, 0, 0], &[0]);
        check(&[0, 1, 1, 0], &[0, 1, 1, 0]);
        check(&[], &[]);
    }

    fn check(places: &[u32], expected: &[u32]) {
        let found = first_cycle(places.iter().copied().map(PuId).collect());
        assert_eq!(found, expected.iter().copied().map(PuId).collect::<Vec<_>>());
    }
}
