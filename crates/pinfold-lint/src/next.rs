//! The command that makes the suggested changes.

use pinfold_model::{Command, Request, Topology};
use pinfold_plan::command;
use pinfold_plan::layout::{Language, Layout};

use super::{LintReport, again};

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
    if let Some(again) = plan.and_then(|plan| again::plan_again_command(plan, topology, conditions))
    {
        return Some(format!("`{again}` places it without them"));
    }
    if plan.is_some() && layouts.len() > 1 {
        return None;
    }
    let ([only], [strategy]) = (layouts, found.strategies.as_slice()) else {
        if layouts.iter().all(|layout| matches!(layout.language, Language::Running(_))) {
            let apply = Command::new("apply NAME --strategy STRATEGY --dry-run");
            return Some(format!(
                "place one after the other: `{apply}` avoids the CPUs of active placements; \
                 `pinfold plan --list` shows the strategies"
            ));
        }
        let mut files = layouts.iter().filter(|layout| layout.language == Language::Libvirt);
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
        (Language::Libvirt, _) if stays => return None,
        (Language::Libvirt, _) => {
            let fix = format!("pinfold plan --check {} --fix", command::quote(&only.source));
            return Some(format!(
                "`{} > NEW` writes a file without them",
                write_under(conditions, topology, &fix)
            ));
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
            write_under(conditions, topology, &apply.to_string())
        }
    };
    let what = if stays { "places it with fewer of them" } else { "places it without them" };
    Some(format!("`{command}` {what}"))
}

fn write_under(conditions: &Request, topology: &Topology, words: &str) -> String {
    command::on(&command::under(words, conditions), topology)
}
