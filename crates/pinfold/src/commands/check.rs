//! `pinfold plan --check`: finds errors in existing configurations, in files or of running
//! machines.
//!
//! Files are plans (`pinfold plan --json`) or libvirt domain files, distinguished by their first
//! character; a running machine is checked thread by thread. All of them are assumed to be on one
//! host, so that CPUs used twice are found.

use pinfold_host::{Host, files, numa_maps, paths};
use pinfold_model::text::counted;
use pinfold_model::{
    Command, CpuSet, IsolationScope, NodeId, Plan, Request, Role, Severity, Tid, Topology,
};
use pinfold_plan::domain_file::{Domain, DomainError, Place};
use pinfold_plan::lint::{
    self, Diagnostic, GuestShape, Language, Layout, LintReport, MemoryOf, Pages, Pin,
};
use pinfold_plan::{Fit, command};
use pinfold_run::{
    Exit, Failure, apply_session, host, inputs,
    target::{Teller, Vm},
};
use pinfold_vm::{GuestPlace, Monitor as _};
use serde_json::json;

use crate::cli::PlanArgs;
use crate::output::Tone;
use crate::{common, output, screen};

/// Prints the findings; fails with [`Exit::No`] if there is a warning or a problem.
pub fn check(arguments: &PlanArgs, files: &[String]) -> Result<(), Failure> {
    let host = host::live()?;
    if arguments.fix {
        return fix(arguments, files, &inputs::topology(&host, arguments.input.as_deref())?);
    }
    let mut layouts = Vec::new();
    let mut plans = Vec::new();
    for file in files {
        let (found, plan) = of_file(file)?;
        layouts.extend(found);
        plans.extend(plan.map(|plan| (file, plan)));
    }
    if let Some(vm) = &arguments.running {
        if arguments.input.is_some() {
            return Err(Failure::new(Exit::Input, "--input describes another machine")
                .with_hint("what runs is checked against this one: leave --input out"));
        }
        let mut vm = Vm::find(&host, &common::vm(vm)?)?;
        layouts.push(of_running(&host, &mut vm)?);
    }
    if layouts.is_empty() {
        return Err(Failure::new(Exit::Input, "--check was given nothing to check").with_hint(
            "name a plan or a domain file: --check FILE; or a machine that runs: --check --libvirt \
             NAME, --check --qmp SOCKET",
        ));
    }
    let topology = inputs::topology(&host, arguments.input.as_deref())?;
    let conditions = common::request(&arguments.placement, Vec::new(), &topology)?;
    let found = lint::lint_under(&layouts, &topology, &conditions);
    for (file, plan) in &plans {
        if let Fit::Other(differences) = pinfold_plan::fit(plan, &topology) {
            let why = apply_session::another_host(file, &differences).message;
            output::say(&format!("note: {why}; it is checked on this one"));
        }
    }
    match arguments.json {
        true => output::data(&to_json(&layouts, &found.flaws)),
        false => {
            output::answer(tone(&found.flaws), &lint::counts(&found.flaws));
            let columns = usize::from(screen::width());
            output::data(&lint::render(&layouts, &found.flaws, (&topology, columns)));
        }
    }
    let wrong = found.flaws.iter().filter(|flaw| flaw.severity >= Severity::Warning).count();
    if wrong == 0 {
        return Ok(());
    }
    let failure = Failure::new(Exit::No, summary(&layouts, wrong));
    Err(match next((&topology, &conditions), &layouts, &found) {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    })
}

/// Prints the domain file with the suggested changes.
fn fix(arguments: &PlanArgs, files: &[String], topology: &Topology) -> Result<(), Failure> {
    let [file] = files else {
        return Err(Failure::new(Exit::Input, "--fix takes one domain file")
            .with_hint("fix several files one after the other"));
    };
    let text = files::read_text(file).map_err(|error| inputs::input_failure(&error))?;
    let conditions = common::request(&arguments.placement, Vec::new(), topology)?;
    if !starts_with(&text, '<') {
        let failure = Failure::new(Exit::Input, format!("{file} is no domain file"));
        let plan = inputs::parse_plan(file, text.into_bytes())?;
        let isolated = plan.isolation != IsolationScope::None;
        let isolation = if isolated { IsolationScope::None } else { conditions.isolation };
        let others = Request { isolation, ..conditions };
        let command = command::on(&command::under(&command::again(&plan, None), &others), topology);
        return Err(failure
            .with_hint(format!("--fix changes domain files; make a plan again with `{command}`")));
    }
    let fixed = lint::fix(&text, file, topology, &conditions)
        .map_err(|error| domain_failure(file, &error))?;
    if let Some(worst) = fixed.left.first() {
        let rest = match fixed.left.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        let failure =
            Failure::new(Exit::No, format!("{file} cannot be fixed: {}{rest}", worst.what));
        return Err(match worst.instead.last() {
            Some(advice) => failure.with_hint(advice.clone()),
            None => failure,
        });
    }
    for flaw in &fixed.done {
        output::say(&format!("fixed: {}: {}", flaw.name, flaw.what));
    }
    for note in &fixed.notes {
        output::say(&format!("note: {note}"));
    }
    output::document(&fixed.text);
    Ok(())
}

fn tone(flaws: &[Diagnostic]) -> Tone {
    match flaws.iter().map(|flaw| flaw.severity).max() {
        Some(Severity::Problem) => Tone::Bad,
        Some(Severity::Warning) => Tone::Mixed,
        Some(Severity::Note) | None => Tone::Good,
    }
}

fn summary(layouts: &[Layout], wrong: usize) -> String {
    let mut of = layouts.iter().map(|layout| layout.source.as_str()).collect::<Vec<_>>();
    of.dedup();
    format!("{} worse than a note in {}", counted(wrong, "finding"), of.join(", "))
}

/// The command that makes the suggested changes, if there is one, with the options of this command.
fn next(
    (topology, conditions): (&Topology, &Request),
    layouts: &[Layout],
    found: &LintReport,
) -> Option<String> {
    let under = |words: &str| command::on(&command::under(words, conditions), topology);
    // Layouts of one plan are planned again together.
    let plan = layouts.first().and_then(|layout| layout.plan.as_deref());
    let plan = plan.filter(|plan| layouts.iter().all(|it| it.plan.as_deref() == Some(*plan)));
    if let Some(again) = plan.and_then(|plan| lint::again(plan, topology, conditions)) {
        return Some(format!("`{again}` places it without them"));
    }
    if plan.is_some() && layouts.len() > 1 {
        return None;
    }
    let ([only], [strategy]) = (layouts, found.strategies.as_slice()) else {
        let mut files = layouts.iter().filter(|layout| layout.language == Language::Libvirt);
        let first = files.next().map_or("FILE", |layout| layout.source.as_str());
        let fix = format!("pinfold plan --check {} --fix", command::quote(first));
        return Some(format!(
            "check one file at a time with --fix, as `{} > NEW`; `pinfold plan --list` shows the \
             strategies that keep several machines apart",
            under(&fix)
        ));
    };
    // A finding that no placement removes stays: the hint names a number of vCPUs for which there
    // is one.
    let stays = found.flaws.iter().any(|flaw| flaw.is_final);
    let command = match (&only.language, strategy) {
        (Language::Libvirt, _) if stays => return None,
        (Language::Libvirt, _) => {
            let fix = format!("pinfold plan --check {} --fix", command::quote(&only.source));
            return Some(format!("`{} > NEW` writes a file without them", under(&fix)));
        }
        (Language::Plan, None) => return None,
        (Language::Plan, Some(strategy)) => {
            let vnodes = plan.map(command::asked_of).unwrap_or_default();
            let request = Request { vnodes, ..conditions.clone() };
            format!("{} --json", command::plan(strategy, topology, &request))
        }
        (Language::Running(option), strategy) => {
            let strategy = strategy.unwrap_or("auto");
            let apply = Command::new(format!("apply {option} --strategy {strategy} --dry-run"));
            under(&apply.to_string())
        }
    };
    let what = if stays { "places it with fewer of them" } else { "places it without them" };
    Some(format!("`{command}` {what}"))
}

fn starts_with(text: &str, first: char) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with(first)
}

/// The layouts of a file, and the plan if it is one.
fn of_file(path: &str) -> Result<(Vec<Layout>, Option<Plan>), Failure> {
    let text = files::read_text(path).map_err(|error| inputs::input_failure(&error))?;
    if starts_with(&text, '{') {
        let plan = inputs::read_plan(path)?;
        return Ok((Layout::of_plan(&plan, path), Some(plan)));
    }
    if starts_with(&text, '<') {
        let layout = Layout::of_text(&text, path).map_err(|error| domain_failure(path, &error))?;
        return Ok((vec![layout], None));
    }
    Err(Failure::new(Exit::Input, format!("{path} is neither a plan nor a domain file")).with_hint(
        "a plan is JSON (`pinfold plan --json`), a domain file XML (`virsh dumpxml NAME`)",
    ))
}

/// Parses a domain file; `path` is for messages.
pub fn read_domain(path: &str, text: &str) -> Result<Domain, Failure> {
    Domain::read(text).map_err(|error| domain_failure(path, &error))
}

fn domain_failure(path: &str, error: &DomainError) -> Failure {
    let failure = Failure::from_error(Exit::Input, error, error.hint.map(str::to_owned));
    Failure { message: format!("{path}: {}", failure.message), ..failure }
}

/// A running machine: the mask and policy of each thread, and the nodes of its memory, as reported
/// by the kernel.
fn of_running(host: &dyn Host, vm: &mut Vm) -> Result<Layout, Failure> {
    let pid = vm.found.pid;
    let mut pins: Vec<Pin> = Vec::new();
    for thread in &vm.found.threads {
        let (role, tid) = (&thread.role, thread.task.tid);
        // Workers are created and ended, and inherit the affinity of the emulator.
        let wanted = match role {
            Role::Vcpu(_) | Role::Iothread(_) | Role::Vhost(_) => true,
            Role::Emulator => tid == pid,
            Role::Worker | Role::Task => false,
        };
        if !wanted || pins.iter().any(|pin| pin.role == *role) {
            continue;
        }
        let mask = host.affinity(tid)?;
        let policy = host.policy(tid)?;
        let text = format!("thread {tid} ({}): {mask}, {policy}", thread.name);
        pins.push(Pin {
            role: role.clone(),
            pus: Some(mask),
            policy: Some(policy),
            place: Place::said(text),
        });
    }
    let guest = match vm.teller.monitor() {
        Some(monitor) => {
            let cpus = monitor.cpus()?;
            let places: Vec<(u32, GuestPlace)> =
                cpus.iter().map(|cpu| (cpu.index, cpu.place)).collect();
            Some(guest_shape(&places))
        }
        None => None,
    };
    let bound = vm.domain.as_ref().and_then(|domain| domain.memory_nodes());
    let memory = bound.map(|(mode, nodes)| MemoryOf {
        cell: None,
        interleaved: mode == "interleave",
        nodes: Some(nodes.iter().map(|node| NodeId(node.0)).collect()),
        place: Place::said(format!("libvirt: <numatune>: {mode} {nodes}")),
    });
    Ok(Layout {
        name: name_of(vm)?,
        source: vm.asked.clone(),
        language: Language::Running(vm.asked.clone()),
        text: None,
        vcpus: vm.found.vcpus,
        pins,
        strays: Vec::new(),
        guest,
        wrong_product: None,
        cells: Vec::new(),
        memory: memory.into_iter().collect(),
        bytes: None,
        pages: Some(pages_of(host, pid)?),
        housekeeping: None,
        exclusive: CpuSet::new(),
        defined_by: None,
        plan: None,
    })
}

/// The name of the machine in QEMU, if it has one; a plan with this name is then for this machine.
fn name_of(vm: &mut Vm) -> Result<String, Failure> {
    let Teller::Qmp(qmp) = &mut vm.teller else { return Ok(vm.name.clone()) };
    let reported = qmp.execute("query-name", None)?;
    Ok(reported.get("name").and_then(|name| name.as_str()).unwrap_or(&vm.name).to_owned())
}

/// The NUMA nodes of the memory of a process.
fn pages_of(host: &dyn Host, pid: Tid) -> Result<Pages, Failure> {
    let path = paths::process_numa_maps(pid);
    match host.read_text(&path) {
        Ok(text) => {
            let kib = numa_maps::parse(&text).map_err(|error| error.at(&path))?;
            Ok(Pages::Found { process: pid, kib: kib.into_iter().collect() })
        }
        Err(error) => Ok(Pages::Unseen(error.to_string())),
    }
}

/// The guest's cores from the positions of its vCPUs in QEMU.
fn guest_shape(places: &[(u32, GuestPlace)]) -> GuestShape {
    let mut cores: Vec<(GuestPlace, Vec<u32>)> = Vec::new();
    let mut sockets = Vec::new();
    for (index, place) in places {
        let core = GuestPlace { thread: None, node: None, ..*place };
        match cores.iter_mut().find(|(known, _)| *known == core && place.core.is_some()) {
            Some((_, members)) => members.push(*index),
            None => cores.push((core, vec![*index])),
        }
        if !sockets.contains(&place.socket) {
            sockets.push(place.socket);
        }
    }
    let threads = cores.iter().map(|(_, members)| members.len()).max().unwrap_or(1);
    let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    GuestShape {
        sockets: narrow(sockets.len()),
        threads: narrow(threads),
        place: Place::said(format!(
            "query-cpus-fast: {}, {}, {} on a core",
            counted(sockets.len(), "socket"),
            counted(cores.len(), "core"),
            counted(threads, "thread")
        )),
        cores: cores.into_iter().map(|(_, members)| members).collect(),
    }
}

fn to_json(layouts: &[Layout], flaws: &[Diagnostic]) -> String {
    let sources: Vec<&str> = layouts.iter().map(|layout| layout.source.as_str()).collect();
    let flaws: Vec<_> = flaws
        .iter()
        .map(|flaw| {
            let places: Vec<_> = flaw
                .places
                .iter()
                .map(|place| json!({"file": place.file, "line": place.line, "text": place.text}))
                .collect();
            json!({
                "severity": flaw.severity.to_string(),
                "name": flaw.name,
                "vm": flaw.vm,
                "what": flaw.what,
                "where": places,
                "cost": flaw.cost,
                "instead": flaw.instead,
            })
        })
        .collect();
    let value = json!({"format": "pinfold-review/1", "checked": sources, "findings": flaws});
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests;
