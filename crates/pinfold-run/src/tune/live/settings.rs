//! The settings that a search tries on the present placement of a running machine.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_apply::{ApplyError, Refusal, plan_steps};
use pinfold_claims::Claims;
use pinfold_host::{Host, HostError};
use pinfold_model::command::quote;
use pinfold_model::profile::{self, PROFILES, Profile};
use pinfold_model::tunables::{TUNABLES, Tunable, irq, settings};
use pinfold_model::{
    Change, CpuSet, Finding, PinRequest, Plan, Request, Role, STRATEGY_NAMES, Step, TaskId,
    Topology, closest,
};
use pinfold_plan::command;
use pinfold_study::tune::NONE;

use super::Next;
use super::placed::Placed;
use crate::profile::is_new_enough;
use crate::target::{Definition, Vm};
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, inputs, planning};

const OPTION: &str = "--try";

/// The candidates of `--try`, in their order; those that are left out are in the findings.
pub(super) fn candidates(
    asked: &[String],
    host: &dyn Host,
    vm: &Vm,
    topology: &Topology,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Placed>, Failure> {
    let present = Present::read(host, vm, topology)?;
    let mut candidates: Vec<Placed> = Vec::new();
    for words in expand_profiles(asked, host, findings)? {
        require_trial(&words)?;
        let mut plan = present.plan.clone();
        let option = format!("{OPTION} {words}");
        inputs::set_tunables(&option, &mut plan, std::slice::from_ref(&words), topology)?;
        findings.append(&mut plan.findings);
        plan.tuning.required = true;
        let (target, _) = vm.target(&plan, Definition::Untouched)?;
        let steps = match plan_steps(host, &plan, &target) {
            Ok(planned) => planned.steps,
            Err(ApplyError::Refused(refusal)) => {
                findings.push(report_refusal(words, &refusal));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if steps.is_empty() {
            findings.push(Finding::note(words, "is the present setting"));
        } else if let Some(known) =
            candidates.iter_mut().find(|known| known.plan.same_placement(&plan))
        {
            known.same.push(words);
        } else {
            let next = present.next(&words, &steps);
            let (is_setting, same) = (true, Vec::new());
            candidates.push(Placed { name: words, is_setting, plan, target, same, next });
        }
    }
    Ok(candidates)
}

/// True if a plan sets something that all machines of the host have.
pub(super) fn is_of_host(plan: &Plan) -> bool {
    let mut all = settings(plan).into_iter();
    all.any(|one| one.tunable.kernel.is_some() || one.tunable.key == irq::TUNABLE.key)
}

fn report_refusal(words: String, refusal: &Refusal) -> Finding {
    let why = if let Refusal::Lacks { finding } = refusal {
        finding.text.clone()
    } else {
        refusal.to_string()
    };
    let finding = Finding::note(words, format!("was not tried: {why}"));
    refusal.hint().into_iter().fold(finding, Finding::with_hint)
}

/// The settings, each once; a profile stands for its tunables.
fn expand_profiles(
    asked: &[String],
    host: &dyn Host,
    findings: &mut Vec<Finding>,
) -> Result<Vec<String>, Failure> {
    let mut all: Vec<String> = Vec::new();
    for text in asked.iter().map(|text| text.trim()) {
        if text.contains('=') {
            all.push(text.to_owned());
            continue;
        }
        for row in find_profile(text)?.rows {
            if Tunable::by_key(row.key()).is_some_and(|one| one.values.is_of_host()) {
                let text = "was not tried: without isolation the host keeps all CPUs";
                let hint = format!("name CPUs to try it, such as {OPTION} {}=0", row.key());
                findings.push(Finding::note(row.words, text).with_hint(hint));
            } else if is_new_enough(row, Some(host)) {
                all.push(row.words.to_owned());
            } else {
                findings.push(Finding::note(row.words, "was not tried: this kernel lacks it"));
            }
        }
    }
    let mut seen = BTreeSet::new();
    all.retain(|words| seen.insert(words.clone()));
    Ok(all)
}

/// The profile that stands in the place of a setting.
fn find_profile(text: &str) -> Result<&'static Profile, Failure> {
    match profile::by_name(text) {
        Some(profile) if !profile.rows.is_empty() => Ok(profile),
        Some(_) | None => Err(explain_text(text)),
    }
}

/// The failure of a text that is neither a setting nor a profile with tunables.
fn explain_text(text: &str) -> Failure {
    let key = text.split(':').next().unwrap_or(text);
    let (why, hint) = if let Some(tunable) = Tunable::by_key(key) {
        let values = tunable.values.syntax().replace('|', " | ");
        ("the value is missing", format!("write {}=VALUE; values are {values}", tunable.title()))
    } else if STRATEGY_NAMES.contains(&text) {
        let hint = format!("--strategies {text} tries its placement");
        ("this is a strategy, not a setting", hint)
    } else {
        let profiles = PROFILES.iter().filter(|profile| !profile.rows.is_empty());
        let profiles: Vec<&str> = profiles.map(|profile| profile.name).collect();
        let known = profiles.iter().copied().chain(TUNABLES.iter().map(|one| one.key));
        let meant = closest(text, known);
        let meant = meant.map_or_else(String::new, |one| format!("did you mean {one}? "));
        let profiles = profiles.join(", ");
        let hint = format!(
            "{meant}write KEY=VALUE (docs/tunables.md has the keys), or a profile: {profiles}"
        );
        ("there is no such tunable or profile", hint)
    };
    Failure::new(Exit::Input, format!("{OPTION} {text}: {why}")).with_hint(hint)
}

/// Refuses a setting that cannot be set for a few seconds and reverted.
fn require_trial(words: &str) -> Result<(), Failure> {
    let (key, text) = words.split_once('=').unwrap_or((words, ""));
    let Some(tunable) = Tunable::by_key(key.split(':').next().unwrap_or(key).trim()) else {
        return Ok(());
    };
    // A value that cannot be parsed has its failure when it is set.
    let value = tunable.values.parse(tunable.key, text.trim(), &CpuSet::new());
    let Some(why) = value.ok().and_then(|value| (tunable.trial_refusal)(&value)) else {
        return Ok(());
    };
    let text = format!("{OPTION} {words}: cannot be tried in windows of a few seconds: {why}");
    Err(Failure::new(Exit::Input, text).with_hint("leave it out"))
}

/// The present placement of a machine.
struct Present {
    /// It as a plan.
    plan: Plan,
    /// The pins with which `apply --strategy none` leaves it unchanged; `None` if no pins do.
    pins: Option<Vec<String>>,
}

impl Present {
    fn read(host: &dyn Host, vm: &Vm, topology: &Topology) -> Result<Self, Failure> {
        let moved = read_masks(host, vm)?;
        let mut masks: BTreeMap<Role, CpuSet> = BTreeMap::new();
        for (task, role) in vm.found.tasks() {
            if let Some(mask) = moved.get(&task) {
                masks.entry(role).or_insert_with(|| mask.clone());
            }
        }
        let floating = plan(vm, topology, Vec::new())?;
        let pins = pins(&masks, &floating);
        let words = pins.iter().map(command::pin_word).collect();
        let pinned = plan(vm, topology, pins).ok();
        let both = [Some((floating.clone(), Vec::new())), pinned.map(|plan| (plan, words))];
        for (plan, words) in both.into_iter().flatten() {
            if is_unchanged_by(host, vm, &plan)? {
                return Ok(Self { plan: keep_threads(plan, moved), pins: Some(words) });
            }
        }
        let mut plan = floating;
        for thread in plan.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads) {
            let mask = masks.get(&thread.role).or_else(|| masks.get(&Role::Emulator));
            thread.pus = mask.unwrap_or(&thread.pus).clone();
        }
        Ok(Self { plan: keep_threads(plan, moved), pins: None })
    }

    /// What sets these words to stay, and leaves the threads where they are.
    fn next(&self, words: &str, steps: &[Step]) -> Option<Next> {
        if let Some(pins) = &self.pins {
            let pins = pins.iter().flat_map(|pin| ["--pin", pin.as_str()]);
            let all = ["--strategy", NONE].into_iter().chain(pins).chain(["--tunable", words]);
            return Some(Next::Apply(all.map(str::to_owned).collect()));
        }
        let writes = steps.iter().map(|step| {
            let (path, value) = step.change.as_write_file()?;
            Some(format!("echo {} > {}", quote(&String::from_utf8_lossy(value)), quote(path)))
        });
        writes.collect::<Option<Vec<String>>>().map(Next::Shell)
    }
}

fn read_masks(host: &dyn Host, vm: &Vm) -> Result<BTreeMap<TaskId, CpuSet>, HostError> {
    let mut masks = BTreeMap::new();
    for (task, _) in vm.found.tasks() {
        match host.affinity(task.tid) {
            Ok(mask) => {
                masks.insert(task, mask);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(masks)
}

/// The plan of `apply --strategy none` with these pins.
fn plan(vm: &Vm, topology: &Topology, pins: Vec<PinRequest>) -> Result<Plan, Failure> {
    let vcpus = Vcpus::from_found(&vm.found);
    let mut vnode = vm.request(topology)?;
    vnode.pins = pins;
    let mut request = Request::from_vnodes(vec![vnode]);
    vcpus.map_pins_to_indexes(&mut request)?;
    let planned = planning::plan(&Claims::default(), Some(NONE), topology, &request);
    let mut plan =
        planned.map_err(|error| Failure::from_error(Exit::Input, &error, error.hint()))?;
    vcpus.renumber_vcpus(&mut plan);
    Ok(plan)
}

/// Pins of the roles of a plan, and of workers with other CPUs than the emulator, to the present
/// CPUs.
fn pins(masks: &BTreeMap<Role, CpuSet>, plan: &Plan) -> Vec<PinRequest> {
    let mut pins: Vec<PinRequest> = Vec::new();
    for (role, pus) in masks {
        let is_planned = plan.threads().any(|(_, thread)| thread.role == *role);
        let is_apart = *role == Role::Worker && masks.get(&Role::Emulator) != Some(pus);
        if is_planned || is_apart {
            pins.push(PinRequest { role: role.to_string(), pus: pus.clone() });
        }
    }
    let vcpus = masks.iter().filter(|(role, _)| role.is_vcpu()).map(|(_, pus)| pus);
    let vcpus: BTreeSet<&CpuSet> = vcpus.collect();
    if let [pus] = vcpus.into_iter().collect::<Vec<_>>().as_slice() {
        let kind = Role::Vcpu(0).kind().name;
        pins.retain(|pin| !pin.role.starts_with(kind));
        pins.insert(0, PinRequest { role: kind.to_owned(), pus: (*pus).clone() });
    }
    pins
}

/// True if apply of this plan leaves the masks and the memory of a machine as they are. What libvirt
/// has as their CPUs may change.
fn is_unchanged_by(host: &dyn Host, vm: &Vm, plan: &Plan) -> Result<bool, Failure> {
    let (target, _) = vm.target(plan, Definition::Untouched)?;
    match plan_steps(host, plan, &target) {
        Ok(planned) => Ok(planned.steps.iter().all(|step| {
            let Change::WriteSetting { value, tasks, .. } = &step.change else { return false };
            tasks
                .iter()
                .all(|task| host.affinity(task.tid).is_ok_and(|mask| mask.to_string() == *value))
        })),
        Err(ApplyError::Refused(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The plan with all threads where they are now, and without what is not of threads.
fn keep_threads(mut plan: Plan, masks: BTreeMap<TaskId, CpuSet>) -> Plan {
    plan.moved = masks.into_iter().collect();
    plan.findings.clear();
    plan.vnodes.iter_mut().for_each(|vnode| vnode.memory = None);
    plan
}

#[cfg(test)]
mod tests;
