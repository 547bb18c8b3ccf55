//! The command that makes the suggested changes.

use pinfold_model::{Command, Request, Topology};
use pinfold_plan::command;
use pinfold_plan::layout::{Layout, SourceFormat};

use super::{LintReport, replan_command};

/// The command that makes the suggested changes, if there is one, with the options of this command.
pub fn next(
    topology: &Topology,
    conditions: &Request,
    layouts: &[Layout],
    found: &LintReport,
) -> Option<String> {
    // Layouts of one plan are planned again together.
    let plan = layouts.first().and_then(|layout| layout.plan.as_deref());
    let plan = plan.filter(|plan| layouts.iter().all(|it| it.plan.as_deref() == Some(*plan)));
    if let Some(again) =
        plan.and_then(|plan| replan_command::plan_again_command(plan, topology, conditions))
    {
        return Some(format!("`{again}` places it without them"));
    }
    if plan.is_some() && layouts.len() > 1 {
        return None;
    }
    let ([only], [strategy]) = (layouts, found.strategies.as_slice()) else {
        if layouts.iter().all(|layout| matches!(layout.language, SourceFormat::Running(_))) {
            let apply = Command::new("apply NAME --strategy STRATEGY --dry-run");
            return Some(format!(
                "place one after the other: `{apply}` avoids the CPUs of active placements; \
                 `pinfold plan --list` shows the strategies"
            ));
        }
        let mut files = layouts.iter().filter(|layout| layout.language == SourceFormat::Libvirt);
        let first = files.next().map_or("FILE", |layout| layout.source.as_str());
        let fix = format!("pinfold plan --check {} --fix", command::quote(first));
        return Some(format!(
            "check one file at a time with --fix, as `{} > NEW`; `pinfold plan --list` shows the \
             strategies that keep several machines apart",
            write_under(conditions, topology, &fix)
        ));
    };
    // A finding that no placement removes stays: the hint names a number of vCPUs for which there
    // is one.
    let stays = found.diagnostics.iter().any(|diagnostic| diagnostic.is_final);
    let command = match (&only.language, strategy) {
        (SourceFormat::Libvirt, _) if stays => return None,
        (SourceFormat::Libvirt, _) => {
            let fix = format!("pinfold plan --check {} --fix", command::quote(&only.source));
            return Some(format!(
                "`{} > NEW` writes a file without them",
                write_under(conditions, topology, &fix)
            ));
        }
        (SourceFormat::Plan, None) => return None,
        (SourceFormat::Plan, Some(strategy)) => {
            let vnodes = plan.map(command::requests_of_plan).unwrap_or_default();
            let request = Request { vnodes, ..conditions.clone() };
            format!("{} --json", command::plan(strategy, topology, &request))
        }
        (SourceFormat::Running(option), strategy) => {
            let strategy = strategy.unwrap_or("auto");
            let apply = Command::new(format!("apply {option} --strategy {strategy} --dry-run"));
            write_under(conditions, topology, &apply.to_string())
        }
    };
    let what = if stays { "places it with fewer of them" } else { "places it without them" };
    Some(format!("`{command}` {what}"))
}

fn write_under(conditions: &Request, topology: &Topology, words: &str) -> String {
    command::add_topology_option(&command::add_request_options(words, conditions), topology)
}
