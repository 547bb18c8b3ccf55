//! `pinfold plan --check`: finds errors in existing configurations, in files or of running
//! machines.
//!
//! Files are plans (`pinfold plan --json`) or libvirt domain files, distinguished by their first
//! character; a running machine is checked thread by thread. All of them are assumed to be on one
//! host, so that CPUs used twice are found.

use pinfold_host::{LiveHost, files};
use pinfold_lint::{Diagnostic, Review};
use pinfold_model::text::count_noun;
use pinfold_model::{IsolationScope, Plan, Request, Severity, Topology};
use pinfold_plan::domain_file::{Domain, DomainError};
use pinfold_plan::layout::Layout;
use pinfold_plan::{HostMatch, command};
use pinfold_run::running_layout::of_running;
use pinfold_run::target::{Vm, no_machine_runs, report_unchecked};
use pinfold_run::{Exit, Failure, host, inputs, plans};
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
    let mut running = running(&host, arguments)?;
    for vm in &mut running {
        match of_running(&host, vm) {
            Ok(layout) => layouts.push(layout),
            Err(failure) if arguments.running.all => {
                report_unchecked(&host, vm.found.pid, &failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    if layouts.is_empty() && arguments.running.all {
        return Err(no_machine_runs(&host));
    }
    if layouts.is_empty() {
        return Err(Failure::new(Exit::Input, "--check: nothing to check").with_hint(
            "name a plan or a domain file: --check FILE; or running machines: --check --libvirt \
             NAME, --check --qmp SOCKET, --check --all",
        ));
    }
    let topology = inputs::topology(&host, arguments.input.as_deref())?;
    let conditions = common::request(&arguments.placement, Vec::new(), &topology)?;
    let found = pinfold_lint::lint_under(&layouts, &topology, &conditions);
    for (file, plan) in &plans {
        if let HostMatch::Other(differences) = pinfold_plan::fit(plan, &topology) {
            let why = plans::another_host(file, &differences).message;
            output::print_message(&format!("note: {why}; it is checked against this one"));
        }
    }
    if arguments.json {
        output::print_data(&format!("{:#}\n", json!(Review::new(&layouts, &found.diagnostics))))
    } else {
        output::answer(tone(&found.diagnostics), &pinfold_lint::counts(&found.diagnostics));
        let columns = usize::from(screen::width());
        output::print_data(&pinfold_lint::render(&layouts, &found.diagnostics, &topology, columns));
    }
    let wrong = found
        .diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.severity >= Severity::Warning)
        .count();
    if wrong == 0 {
        return Ok(());
    }
    let failure = Failure::new(Exit::No, summary(&layouts, wrong));
    Err(match pinfold_lint::next(&topology, &conditions, &layouts, &found) {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    })
}

/// The running machines to check.
fn running(host: &LiveHost, arguments: &PlanArgs) -> Result<Vec<Vm>, Failure> {
    let selectors = arguments.running.selectors();
    if arguments.input.is_some() && (arguments.running.all || !selectors.is_empty()) {
        return Err(Failure::new(Exit::Input, "--input describes another machine")
            .with_hint("running machines are checked against this one: omit --input"));
    }
    if arguments.running.all {
        return Vm::find_all(host);
    }
    selectors.iter().map(|selector| Vm::find(host, selector)).collect()
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
        let failure = Failure::new(Exit::Input, format!("{file} is not a domain file"));
        let plan = inputs::parse_plan(file, text.into_bytes())?;
        let isolated = plan.isolation != IsolationScope::None;
        let isolation = if isolated { IsolationScope::None } else { conditions.isolation };
        let others = Request { isolation, ..conditions };
        let command = command::add_topology_option(
            &command::add_request_options(&command::plan_command(&plan), &others),
            topology,
        );
        return Err(failure.with_hint(format!(
            "--fix changes domain files; create the plan again with `{command}`"
        )));
    }
    let fixed = pinfold_lint::fix(&text, file, topology, &conditions)
        .map_err(|error| domain_failure(file, &error))?;
    if let Some(worst) = fixed.left.first() {
        let rest = match fixed.left.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        let failure = Failure::new(Exit::No, format!("cannot fix {file}: {}{rest}", worst.what));
        return Err(match worst.instead.last() {
            Some(advice) => failure.with_hint(advice.clone()),
            None => failure,
        });
    }
    for diagnostic in &fixed.done {
        output::print_message(&format!("fixed: {}: {}", diagnostic.name, diagnostic.what));
    }
    for note in &fixed.notes {
        output::print_message(&format!("note: {note}"));
    }
    output::document(&fixed.text);
    Ok(())
}

fn tone(diagnostics: &[Diagnostic]) -> Tone {
    match diagnostics.iter().map(|diagnostic| diagnostic.severity).max() {
        Some(Severity::Problem) => Tone::Bad,
        Some(Severity::Warning) => Tone::Mixed,
        Some(Severity::Note) | None => Tone::Good,
    }
}

fn summary(layouts: &[Layout], wrong: usize) -> String {
    let mut of = layouts.iter().map(|layout| layout.source.as_str()).collect::<Vec<_>>();
    of.dedup();
    format!("{} worse than a note in {}", count_noun(wrong, "finding"), of.join(", "))
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
