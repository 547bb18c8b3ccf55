//! `pinfold tune` on a running machine: the request, and its result as text and JSON.
//!
//! The search is in [`pinfold_run::tune::live`].

use pinfold_host::LiveHost;
use pinfold_model::command::split_command;
use pinfold_model::text::count_noun;
use pinfold_model::{Command, escape};
use pinfold_report::format;
use pinfold_run::tune::live::{
    self, FigureCommand, FigureSource, LiveReport, Next, Options, Row, SearchHost,
};
use pinfold_run::{Exit, Failure, HelperProgram, inputs, time};
use pinfold_stats::{Direction, Verdict};
use pinfold_vm::VmSelector;
use serde_json::{Value, json};

use crate::cli::TuneArgs;
use crate::cli::tune::Better;
use crate::output::{self, Tone, print_data, show};
use crate::screen;

/// Searches and prints.
pub fn tune(
    arguments: &TuneArgs,
    host: &LiveHost,
    selector: VmSelector,
    state: Option<&str>,
) -> Result<(), Failure> {
    let topology = inputs::topology(host, None)?;
    let avoid = inputs::pus("--avoid", &arguments.avoid)?;
    inputs::require_known("--avoid", &avoid, &topology)?;
    let direction = Direction::new(arguments.better == Better::Higher);
    let figure = arguments.figure.clone();
    if let Some(command) = &figure {
        require_command(command)?;
    }
    let options = Options {
        selector,
        figure: figure.map(|command| FigureCommand { command, direction }),
        max_harm: share("--max-harm", &arguments.max_harm)?,
        budget_ns: time::parse_ns("--budget", arguments.budget.as_deref().unwrap_or("3m"))?,
        strategies: arguments.strategies.clone(),
        settings: arguments.tries.clone(),
        avoid,
        ignore_claims: arguments.ignore_claims,
        seed: arguments.seed,
    };
    let on = SearchHost { host, state, program: &HelperProgram::own()? };
    let report = live::search(&options, on)?;
    let next = report.winner.and_then(|at| report.rows[at].next.as_ref());
    let next = next.map(|next| command(&options.selector, next));
    if arguments.json {
        print_data(&to_json(&report, next.as_deref()).to_string());
    } else {
        print_report(&report, next.as_deref());
    }
    Ok(())
}

/// Refuses what cannot be started.
fn require_command(command: &str) -> Result<(), Failure> {
    let why = match split_command(command) {
        None => "a quote is not closed",
        Some(words) if words.is_empty() => "it has no program",
        Some(_) => return Ok(()),
    };
    Err(Failure::new(Exit::Input, format!("--figure: {command:?}: {why}"))
        .with_hint("such as --figure './latency.sh'"))
}

/// A percentage above zero, as a share.
fn share(option: &str, text: &str) -> Result<f64, Failure> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let number = number.filter(|number| (0.0..=100.0).contains(number) && *number > 0.0);
    number.map(|number| number / 100.0).ok_or_else(|| {
        Failure::new(Exit::Input, format!("{option} {text}: not a percentage"))
            .with_hint("give a percentage above 0, up to 100%, such as 25%")
    })
}

/// The command that makes a candidate of the search stay.
fn command(selector: &VmSelector, next: &Next) -> String {
    let words = match next {
        Next::Shell(commands) => return commands.join(" && "),
        Next::Apply(words) => words,
    };
    let apply = Command::new("apply");
    let apply = match selector {
        VmSelector::Socket(hypervisor, socket) => {
            apply.arg(hypervisor.display_strings().option).arg(socket)
        }
        VmSelector::Libvirt(name) => apply.arg("--libvirt").arg(name),
        VmSelector::Pid(pid) => apply.arg("--pid").arg(&pid.to_string()),
        VmSelector::Name(name) => apply.arg(name),
    };
    words.iter().fold(apply, |apply, word| apply.arg(word)).to_string()
}

fn print_report(report: &LiveReport, next: Option<&str>) {
    let tone = if report.winner.is_some() { Tone::Good } else { Tone::Mixed };
    output::answer(tone, &answer(report));
    show(&format!("\n{}", figure_text(report)));
    let mut table = screen::rows();
    let candidate = candidate_word(report);
    table.set_header([candidate, "figure", "ratio [95 %]", "p99 wait", "longest", "verdict"]);
    for row in &report.rows {
        table.add_row(cells(report, row));
    }
    print_data(&format!("{}\n", screen::draw_table(table, 1..5)));
    for row in report.rows.iter().filter(|row| !row.same.is_empty()) {
        show(&format!("{}: the same {} as {}", row.name, kind_of(row), row.same.join(", ")));
    }
    for row in report.rows.iter().filter(|row| row.dropped.is_some()) {
        show(&format!("{}: {}", row.name, row.dropped.as_deref().unwrap_or_default()));
    }
    let wash_out = &report.wash_out;
    show(&format!(
        "{} in {}, each with every {candidate} in random order (seed {}); a window observes {}",
        count_noun(report.blocks, "block"),
        time::wait(report.took_ns),
        report.seed,
        ns(report.window_ns)
    ));
    show(&format!(
        "wash-out after each change: median {}, longest {}; in {} of {} vCPUs still changed their CPU after that",
        ns(wash_out.median_ns),
        ns(wash_out.longest_ns),
        wash_out.unsettled,
        count_noun(wash_out.windows, "window")
    ));
    report.findings.iter().for_each(|finding| show(&finding.to_string()));
    show(&match (next, report.winner) {
        (Some(command), _) => format!("Next: {command}"),
        (None, Some(at)) => format!(
            "The machine is as it was before the search; `pinfold apply` cannot set {} and keep the \
             CPUs of all its threads",
            report.rows[at].name
        ),
        (None, None) => "The machine is as it was before the search".to_owned(),
    });
}

/// What a row is.
fn kind_of(row: &Row) -> &'static str {
    if row.is_setting { "setting" } else { "placement" }
}

/// What all rows are.
fn candidate_word(report: &LiveReport) -> &'static str {
    let has_settings = report.rows.iter().any(|row| row.is_setting);
    if has_settings { "candidate" } else { "placement" }
}

/// The first line.
fn answer(report: &LiveReport) -> String {
    let name = escape::short_name(&report.machine);
    let winner = report.winner.map(|at| &report.rows[at]);
    if let Some((row, ratio)) = winner.and_then(|row| Some((row, row.ratio?))) {
        return format!(
            "{name}: {} is better than the present {}: {:.2} of its figure",
            row.name,
            kind_of(row),
            ratio.ratio
        );
    }
    let tried: Vec<&Row> = report.rows.iter().skip(2).collect();
    let candidate = candidate_word(report);
    if tried.iter().all(|row| row.dropped.is_some()) {
        return format!("{name}: not settled: each {candidate} was dropped");
    }
    let is_settled = tried.iter().all(|row| {
        row.dropped.is_some() || matches!(row.verdict, Some(Verdict::Same | Verdict::Worse))
    });
    if is_settled {
        let present = if candidate == "placement" { "placement" } else { "state" };
        format!("{name}: keep the present {present}: none of {} is better", tried.len())
    } else {
        format!("{name}: not settled: no {candidate} is shown to be better than the present one")
    }
}

fn figure_text(report: &LiveReport) -> String {
    match &report.source {
        FigureSource::LongestWait => {
            "figure: the longest wait of a vCPU for a CPU in a window, median over the windows"
                .to_owned()
        }
        FigureSource::WaitSum { why } => format!(
            "figure: the time for which the vCPUs waited for a CPU in each second, from schedstat; \
             single waits were not recorded: {why}"
        ),
        FigureSource::Command(command) => {
            let better = match report.direction {
                Direction::LowerIsBetter => "lower",
                Direction::HigherIsBetter => "higher",
            };
            format!("figure: what {} prints; {better} is better", escape::short_name(command))
        }
    }
}

fn cells(report: &LiveReport, row: &Row) -> Vec<String> {
    let figure = row.figure.map(|figure| match &report.source {
        FigureSource::LongestWait | FigureSource::WaitSum { .. } => format::duration(figure),
        FigureSource::Command(_) => format::significant(figure),
    });
    let ratio = row.ratio.map(|one| format!("{:.2} [{:.2}, {:.2}]", one.ratio, one.low, one.high));
    let verdict = match (&row.dropped, &row.verdict) {
        (Some(_), _) => "dropped".to_owned(),
        (None, Some(verdict)) => verdict.word().to_owned(),
        (None, None) => "–".to_owned(),
    };
    let cells = [figure, ratio, row.p99_ns.map(ns), row.longest_ns.map(ns)];
    let cells = cells.map(|cell| cell.unwrap_or_else(|| "–".to_owned()));
    [vec![row.name.clone()], cells.to_vec(), vec![verdict]].concat()
}

fn ns(ns: u64) -> String {
    format::duration(ns as f64)
}

fn to_json(report: &LiveReport, next: Option<&str>) -> Value {
    let (source, command, why) = match &report.source {
        FigureSource::LongestWait => ("longest-wait", None, None),
        FigureSource::WaitSum { why } => ("wait-sum", None, Some(why)),
        FigureSource::Command(command) => ("command", Some(command), None),
    };
    json!({
        "format": "pinfold-live-tune/1",
        "machine": report.machine,
        "answer": answer(report),
        "winner": report.winner.map(|at| &report.rows[at].name),
        "next": next,
        "figure": { "source": source, "command": command, "why": why,
            "higher_is_better": report.direction == Direction::HigherIsBetter },
        "blocks": report.blocks,
        "blocks_needed": report.needed,
        "window_ns": report.window_ns,
        "took_ns": report.took_ns,
        "seed": report.seed,
        "wash_out": {
            "median_ns": report.wash_out.median_ns,
            "longest_ns": report.wash_out.longest_ns,
            "unsettled": report.wash_out.unsettled,
            "windows": report.wash_out.windows,
        },
        "placements": report.rows.iter().map(row_json).collect::<Vec<_>>(),
        "findings": report.findings,
    })
}

fn row_json(row: &Row) -> Value {
    json!({
        "name": row.name,
        "setting": row.is_setting,
        "same": row.same,
        "windows": row.windows,
        "figure": row.figure,
        "ratio": row.ratio.map(|one| json!({ "ratio": one.ratio, "low": one.low, "high": one.high })),
        "p_holm": row.p_holm,
        "verdict": row.verdict.map(|verdict| verdict.word()),
        "dropped": row.dropped,
        "p99_ns": row.p99_ns,
        "longest_ns": row.longest_ns,
        "wait_share": row.share,
    })
}
