//! `pinfold measure sched|counters|locks|exits`: observes a machine or a process group from
//! outside.
//!
//! Nothing runs in the workload: its threads are observed for some time. `docs/scheduling.md` and
//! `docs/exits.md` describe what each instrument measures, and what it loses without privileges.

mod gaps;
mod json;
mod text;

use pinfold_host::files;
use pinfold_model::command::Command;
use pinfold_model::escape;
use pinfold_probe::gaps::record;
use pinfold_run::measure::{
    Instrument, ObservationResult, ObserveRequest, Setup, gap_bound, observe, quantities,
};
use pinfold_run::{Exit, Failure};
use pinfold_study::measured::{Measurement, to_json};
use serde_json::{Value, json};

use crate::cli::measure::MeasureArgs;
use crate::commands::exits;
use crate::output::{print_data, print_message};
use crate::{common, screen};

/// Measures and prints.
pub fn measure(instrument: Instrument, arguments: &MeasureArgs) -> Result<(), Failure> {
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
    show(instrument, arguments, &measurement, &saved, &seen)?;
    seen.iter().try_for_each(ObservationResult::verdict)
}

fn show(
    instrument: Instrument,
    arguments: &MeasureArgs,
    measurement: &Measurement,
    saved: &str,
    seen: &[ObservationResult],
) -> Result<(), Failure> {
    let (own, what) = (instrument.name(), instrument.what());
    if arguments.json {
        let saved: Value = serde_json::from_str(saved)
            .map_err(|error| Failure::new(Exit::Host, error.to_string()))?;
        let found: Vec<Value> = seen.iter().map(to_value).collect();
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
        text.push_str(&format!("\n{}", to_text(one, arguments)));
    }
    print_data(&screen::fit_width(&text));
    Ok(())
}

/// Writes what `--from` reads.
fn save_record(path: &str, seen: &[ObservationResult]) -> Result<(), Failure> {
    if let [ObservationResult::Gaps(report)] = seen {
        let text =
            record::to_text(report).map_err(|error| Failure::new(Exit::Host, error.to_string()))?;
        files::write_atomic(path, text.as_bytes())?;
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
    let report = record::parse(&text)
        .map_err(|error| Failure::new(Exit::Input, format!("{path}: {error}")))?;
    if arguments.json {
        let mut value = gaps::json(&report);
        value["format"] = json!(record::FORMAT);
        print_data(&value.to_string());
    } else {
        let subject = escape::escape_text(&report.summary.subject);
        let what = Instrument::Gaps.what();
        let found = gaps::text(&report);
        print_data(&screen::fit_width(&format!("gaps: {what}\n{subject}\n\n{found}")));
    }
    Ok(())
}

fn to_text(seen: &ObservationResult, arguments: &MeasureArgs) -> String {
    match seen {
        ObservationResult::Sched(found) => text::sched(found),
        ObservationResult::Counters(found) => text::counters(found),
        ObservationResult::Locks(found) => text::locks(found),
        ObservationResult::Exits(answer) => exits::text::table(answer, &arguments.exits),
        ObservationResult::Gaps(report) => gaps::text(report),
    }
}

/// The results that are not in the figures.
fn to_value(seen: &ObservationResult) -> Value {
    match seen {
        ObservationResult::Sched(found) => json::sched(found),
        ObservationResult::Counters(found) => json::counters(found),
        ObservationResult::Locks(found) => json::locks(found),
        ObservationResult::Exits(answer) => exits::text::json(answer),
        ObservationResult::Gaps(report) => gaps::json(report),
    }
}

/// Rejects options of the probes that run in the workload, and of other instruments.
fn refuse_others(instrument: Instrument, arguments: &MeasureArgs) -> Result<(), Failure> {
    let how = &arguments.how;
    let of_exits = arguments.exits.given_options();
    let own: Vec<&str> = match instrument {
        Instrument::Sched => Vec::new(),
        Instrument::Counters => vec!["--quantities"],
        Instrument::Locks => vec!["--sites"],
        Instrument::Exits => of_exits.map(|(_, option)| option).to_vec(),
        Instrument::Gaps => vec!["--over", "--record", "--from"],
    };
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
