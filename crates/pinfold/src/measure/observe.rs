//! `pinfold measure sched|counters|locks|exits`: observes a machine or a process group from
//! outside.
//!
//! Nothing runs in the workload: its threads are observed for some time. `docs/scheduling.md` and
//! `docs/exits.md` describe what each instrument measures, and what it loses without privileges.

mod gaps;
mod json;
mod planner;
mod text;

use pinfold_host::files;
use pinfold_model::command::Command;
use pinfold_model::escape;
use pinfold_model::text::count_noun;
use pinfold_probe::gaps::record;
use pinfold_run::measure::{
    Instrument, ObservationResult, ObserveRequest, Setup, gap_bound, observe, quantities,
};
use pinfold_run::{Exit, Failure, interrupt, top};
use pinfold_study::measured::{Measurement, to_json};
use serde_json::{Value, json};

use self::planner::HostPlanner;
use crate::cli::layout;
use crate::cli::measure::MeasureArgs;
use crate::commands::exits;
use crate::output::{print_data, print_message};
use crate::{common, screen};

/// Measures and prints.
pub fn measure(
    instrument: Instrument,
    arguments: &MeasureArgs,
    state: Option<&str>,
) -> Result<(), Failure> {
    if arguments.how.more == ["--help"] {
        print_data(&help(instrument));
        return Ok(());
    }
    refuse_others(instrument, arguments)?;
    let quantities = quantities(&arguments.quantities)?;
    if let Some(path) = &arguments.from {
        return show_record(path, arguments);
    }
    let bench = super::bench(arguments.seed)?;
    let seconds = arguments.how.seconds;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err(Failure::new(Exit::Input, format!("--seconds {seconds}: out of range"))
            .with_hint("give a number of seconds from 0.01 to 86400"));
    }
    let duration = std::time::Duration::from_secs_f64(seconds);
    let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let targets = arguments.observed.targets();
    if targets.is_empty() {
        return Err(common::no_machine());
    }
    let request = ObserveRequest {
        targets: &targets,
        quantities: &quantities,
        sites: arguments.sites,
        exits: &exits::observation_settings(&arguments.exits, duration_ns)?,
        per_vcpu: arguments.exits.per_vcpu,
        over_ns: gap_bound("--over", arguments.over.as_deref().unwrap_or("200us"))?,
        seconds,
        duration_ns,
        blocks: arguments.blocks.unwrap_or(1),
    };
    // A file that exists is refused before the observation.
    arguments.record.as_deref().map(top::refuse_existing_record).transpose()?;
    let planner = HostPlanner::new(state);
    let (name, seen, blocks) = observe(&bench, instrument, &request)?;
    let tool = format!("pinfold {}", env!("CARGO_PKG_VERSION"));
    let measurement =
        bench.measurement(instrument.name(), Setup { place: name, tool }, blocks, None)?;
    let saved = to_json(&measurement)
        .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
    if let Some(path) = &arguments.save {
        files::write_atomic(path, saved.as_bytes())?;
        print_message(&format!("saved to {path}; `pinfold compare` compares two such files"));
    }
    if let Some(path) = &arguments.record {
        save_record(path, &seen)?;
    }
    let results = Results { seen: &seen, planner: &planner };
    show(instrument, arguments, &measurement, &saved, &results)?;
    interrupt::check()?;
    seen.iter().try_for_each(ObservationResult::verdict)
}

/// What was observed, and what proposes commands.
struct Results<'a> {
    seen: &'a [ObservationResult],
    planner: &'a dyn gaps::Planner,
}

/// The options of an instrument.
fn help(instrument: Instrument) -> String {
    let (name, options) = (instrument.name(), own_options(instrument));
    let measure = layout::command().find_subcommand("measure").cloned().unwrap_or_default();
    let own = match options.len() {
        0 => "none of its own".to_owned(),
        count => format!("{} of its own:", count_noun(count, "option")),
    };
    let mut text = format!(
        "{name} takes no arguments after --. It has the options of `pinfold measure --help` that\n\
         choose threads and times, and {own}\n"
    );
    for option in measure.get_arguments() {
        let long = format!("--{}", option.get_long().unwrap_or_default());
        if options.contains(&long.as_str()) {
            let value = option.get_value_names().and_then(|names| names.first());
            let value = value.map_or_else(String::new, |name| format!(" {name}"));
            let help = option.get_help().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {long}{value}\n      {help}\n"));
        }
    }
    text
}

fn show(
    instrument: Instrument,
    arguments: &MeasureArgs,
    measurement: &Measurement,
    saved: &str,
    results: &Results<'_>,
) -> Result<(), Failure> {
    let (seen, planner) = (results.seen, results.planner);
    let (own, what) = (instrument.name(), instrument.what());
    if arguments.json {
        let saved: Value = serde_json::from_str(saved)
            .map_err(|error| Failure::new(Exit::Host, error.to_string()))?;
        let found: Vec<Value> = seen.iter().map(|one| to_value(one, planner)).collect();
        let all = json!({
            "format": "pinfold-observed/2", "what": what, "found": found, "measurement": saved,
        });
        print_data(&all.to_string());
        return Ok(());
    }
    let mut text = format!("{own}: {what}\n{}\n", measurement.place);
    for (index, one) in seen.iter().enumerate() {
        if seen.len() > 1 {
            text.push_str(&format!("\nblock {} of {}\n", index + 1, seen.len()));
        }
        text.push_str(&format!("\n{}", to_text(one, arguments, planner)));
    }
    print_data(&screen::fit_width(&text));
    Ok(())
}

/// Writes what `--from` reads.
fn save_record(path: &str, seen: &[ObservationResult]) -> Result<(), Failure> {
    if let [ObservationResult::Gaps(report)] = seen {
        let text =
            record::to_text(report).map_err(|error| Failure::new(Exit::Host, error.to_string()))?;
        top::create_record(path)?.append(text.as_bytes())?;
        let command = Command::new("measure gaps --from").arg(path);
        print_message(&format!("recorded in {path}; `{command}` shows it"));
        return Ok(());
    }
    Err(Failure::new(Exit::Input, "--record: only one block can be recorded")
        .with_hint("leave out --blocks"))
}

/// Shows a record.
fn show_record(path: &str, arguments: &MeasureArgs) -> Result<(), Failure> {
    let text = files::read_text(path)?;
    let mut report = record::parse(&text)
        .map_err(|error| Failure::new(Exit::Input, format!("{path}: {error}")))?;
    if let Some(over) = &arguments.over {
        let (over_ns, least_ns) = (gap_bound("--over", over)?, report.summary.over_ns);
        if over_ns < least_ns {
            let least = text::time(least_ns);
            return Err(Failure::new(
                Exit::Input,
                format!("--over: {path} has gaps from {least} on only"),
            )
            .with_hint("give a longer time, or observe again"));
        }
        report.raise_bound(over_ns);
    }
    // The record may be of another host.
    let planner = planner::Unasked;
    if arguments.json {
        let mut value = gaps::json(&report, &planner);
        value["format"] = json!(record::FORMAT);
        print_data(&value.to_string());
    } else {
        let subject = escape::name(&report.summary.subject);
        let what = Instrument::Gaps.what();
        let found = gaps::text(&report, &planner);
        print_data(&screen::fit_width(&format!("gaps: {what}\n{subject}\n\n{found}")));
    }
    Ok(())
}

fn to_text(
    seen: &ObservationResult,
    arguments: &MeasureArgs,
    planner: &dyn gaps::Planner,
) -> String {
    match seen {
        ObservationResult::Sched(found) => text::sched(found),
        ObservationResult::Counters(found) => text::counters(found),
        ObservationResult::Locks(found) => text::locks(found),
        ObservationResult::Exits(answer) => exits::text::table(answer, &arguments.exits),
        ObservationResult::Gaps(report) => gaps::text(report, planner),
    }
}

/// The results that are not in the figures.
fn to_value(seen: &ObservationResult, planner: &dyn gaps::Planner) -> Value {
    match seen {
        ObservationResult::Sched(found) => json::sched(found),
        ObservationResult::Counters(found) => json::counters(found),
        ObservationResult::Locks(found) => json::locks(found),
        ObservationResult::Exits(answer) => exits::text::json(answer),
        ObservationResult::Gaps(report) => gaps::json(report, planner),
    }
}

/// The options that only this instrument has.
fn own_options(instrument: Instrument) -> &'static [&'static str] {
    match instrument {
        Instrument::Sched => &[],
        Instrument::Counters => &["--quantities"],
        Instrument::Locks => &["--sites"],
        Instrument::Exits => &["--per-vcpu", "--top", "--look", "--distributor"],
        Instrument::Gaps => &["--over", "--record", "--from"],
    }
}

/// Rejects options of the probes that run in the workload, and of other instruments.
fn refuse_others(instrument: Instrument, arguments: &MeasureArgs) -> Result<(), Failure> {
    let how = &arguments.how;
    let of_exits = arguments.exits.given_options();
    let own = own_options(instrument);
    let given = [
        (how.cpus.is_some(), "--cpus"),
        (how.node.is_some(), "--node"),
        (how.policy.is_some(), "--policy"),
        (how.period.is_some(), "--period"),
        (how.duty.is_some(), "--duty"),
        (how.keep_awake, "--keep-awake"),
        (how.file.is_some(), "--file"),
        (!how.more.is_empty(), "INSTRUMENT-OPTIONS"),
        (arguments.plan.is_some(), "--plan"),
        (arguments.vnode.is_some(), "--vnode"),
        (arguments.guest.is_some(), "--guest"),
        (arguments.against.is_some(), "--against"),
        (arguments.sites, "--sites"),
        (!arguments.quantities.is_empty(), "--quantities"),
        (arguments.over.is_some(), "--over"),
        (arguments.record.is_some(), "--record"),
        (arguments.from.is_some(), "--from"),
    ];
    if arguments.from.is_some()
        && (!arguments.observed.targets().is_empty() || arguments.blocks.is_some())
    {
        return Err(Failure::new(Exit::Input, "--from shows a record, and observes nothing")
            .with_hint(
                "leave out --from to observe, or the options that name threads or --blocks",
            ));
    }
    let name = instrument.name();
    let observed = &arguments.observed;
    let others = [("--process", observed.processes.len()), ("--group", observed.groups.len())];
    if instrument == Instrument::Exits
        && let Some((option, _)) = others.iter().find(|(_, count)| *count > 0)
    {
        let text = format!("{option}: only virtual machines have exits");
        return Err(Failure::new(Exit::Input, text)
            .with_hint("name a machine with --qmp, --libvirt or --pid"));
    }
    let refused = |one: &&(bool, &str)| one.0 && !own.contains(&one.1);
    match given.iter().chain(&of_exits).find(refused) {
        None => Ok(()),
        Some((_, option)) => Err(Failure::new(
            Exit::Input,
            format!("{option} has no effect on {name}, which observes threads from outside"),
        )
        .with_hint(
            "name a machine with --qmp, --libvirt or --pid, or tasks with --process or --group",
        )),
    }
}
