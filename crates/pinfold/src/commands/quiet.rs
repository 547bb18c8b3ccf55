//! `pinfold quiet`: runs benchmarks on cores of their own, as `run --cores` does, and reports what
//! disturbed them.

use pinfold_host::process;
use pinfold_model::command::split_command;
use pinfold_model::{Finding, IsolationScope, Plan, Request, Speed, Topology, VnodeRequest};
use pinfold_run::claims::{self, Claims};
use pinfold_run::emulate::exec;
use pinfold_run::gate::RunOptions;
use pinfold_run::jobs::{self, Job};
use pinfold_run::noise::{Detail, Noise};
use pinfold_run::start_lock::StartLock;
use pinfold_run::{
    Exit, Failure, HelperProgram, OnLeft, Session, ended_placements, gate, host, inputs, profile,
};

use super::emulate::exit_with_status;
use super::group::GROUPS;
use crate::cli::{Isolate, QuietArgs};
use crate::output::{self, print_message};
use crate::screen;

/// Runs the commands until they end, and exits with the status of the first that failed.
pub fn quiet(arguments: &QuietArgs, state: Option<&str>) -> Result<(), Failure> {
    let jobs = jobs(arguments)?;
    jobs.iter().try_for_each(|job| exec::require_program(&job.command))?;
    let host = host::live()?;
    let topology = inputs::topology(&host, None)?;
    if arguments.dry_run {
        let plan = plan(arguments, &jobs, &topology, state)?;
        output::print_data(&pinfold_plan::explain(&plan, &topology, usize::from(screen::width())));
        return Ok(());
    }
    ended_placements::revert_ended(&host, state)?;
    let folder = host::state(state)?;
    let starting = StartLock::wait(&folder)?;
    let plan = plan(arguments, &jobs, &topology, state)?;
    let program = HelperProgram::own()?;
    let session = Session { state: &folder, program: &program };
    let (status, noise) = match jobs.as_slice() {
        [only] => {
            let options = RunOptions { on_left: OnLeft::Release, detail: Detail::Gaps };
            let ended = gate::run(session, &plan, &only.command, options, starting)?;
            (ended.status, vec![(String::new(), ended.noise?)])
        }
        several => {
            drop(starting);
            let ended = jobs::run(session, &plan, several)?;
            (ended.status, ended.noise)
        }
    };
    report(&noise);
    exit_with_status(status)
}

/// Prints a line for each command, with its name if there are several.
fn report(noise: &[(String, Noise)]) {
    for (name, noise) in noise {
        print_message(&format!("quiet: {}{noise}", prefix(name)));
    }
    // It is the same for all.
    if let Some(why) = noise.iter().find_map(|(_, noise)| noise.why_no_gaps()) {
        print_message(&Finding::note("quiet", why).to_string());
    }
    for (name, why) in noise.iter().filter_map(|(name, noise)| Some((name, noise.why_not_quiet()?)))
    {
        let text = format!("{}the CPUs were not quiet: {why}", prefix(name));
        let finding = Finding::warning("quiet", text);
        print_message(
            &finding.with_hint("docs/how-to/benchmark-machine.md lists remedies").to_string(),
        );
    }
}

fn prefix(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("{name}: ") }
}

/// The commands with their names.
fn jobs(arguments: &QuietArgs) -> Result<Vec<Job>, Failure> {
    let mut jobs = Vec::new();
    for text in &arguments.jobs {
        let (name, command) = text.split_once(':').ok_or_else(|| {
            Failure::new(Exit::Input, format!("--job: expected NAME: COMMAND, got {text:?}"))
                .with_hint("such as --job 'server: ./server --port 80'")
        })?;
        let name = inputs::name_option("--job", pinfold_config::requests::vnode_name(name.trim()))?;
        if jobs.iter().any(|job: &Job| job.name == name) {
            return Err(Failure::new(Exit::Input, format!("--job: {name} is given twice"))
                .with_hint("give each job its own name"));
        }
        let command = split_command(command).ok_or_else(|| {
            Failure::new(Exit::Input, format!("--job: a quote is not closed in {text:?}"))
        })?;
        jobs.push(Job { name, command });
    }
    if jobs.is_empty() {
        let command = arguments.command.clone();
        jobs.push(Job { name: gate::name_of(&command), command });
    }
    if arguments.no_aslr {
        for job in &mut jobs {
            exec::require_program(&job.command)?;
            job.command.splice(0..0, ["setarch".to_owned(), "-R".to_owned()]);
        }
    }
    Ok(jobs)
}

/// The plan for all commands. Without root only their own threads are pinned.
fn plan(
    arguments: &QuietArgs,
    jobs: &[Job],
    topology: &Topology,
    state: Option<&str>,
) -> Result<Plan, Failure> {
    let host = host::live()?;
    let isolation = if process::is_root() {
        IsolationScope::from(arguments.isolate)
    } else {
        IsolationScope::None
    };
    let mut tunables = arguments.tunables.clone();
    let note = if process::is_root() {
        let scope = profile::Scope {
            host: Some(&host),
            online: &topology.online(),
            isolates: arguments.isolate == Isolate::Host,
            has_vcpus: false,
        };
        let (all, note) =
            profile::merge_tunables(profile::find_profile(&arguments.profile)?, &tunables, scope);
        tunables = all;
        note
    } else {
        let text =
            "without root the command is pinned, but no other task is excluded from its CPUs";
        Some(Finding::note("quiet", text).with_hint("run it as root"))
    };
    let claims =
        if arguments.ignore_claims { Claims::default() } else { claims::for_plan(&host, state)? };
    let vnodes = jobs.iter();
    let vnodes = vnodes.map(|job| VnodeRequest::processes(&job.name, arguments.cores, Speed::FULL));
    let mut request = Request::from_vnodes(vnodes.collect());
    request.isolation = isolation;
    request.avoid = inputs::pus("--avoid", &arguments.avoid)?;
    inputs::require_known("--avoid", &request.avoid, topology)?;
    let mut plan = inputs::plan_with_tunables(&claims, &tunables, topology, |claims| {
        inputs::make_plan(Some(GROUPS), topology, &request, claims)
    })?;
    plan.findings.extend(note);
    Ok(plan)
}
