//! `pinfold watch`: monitors active placements and corrects drift, until it is stopped.

use pinfold_apply::WatchEvent;
use pinfold_host::{Clock as _, SystemClock};
use pinfold_run::measure::gap_bound;
use pinfold_run::metrics::{Counts, MetricsAddress};
use pinfold_run::watch::{self, Options};
use pinfold_run::{Failure, HelperProgram, Session, ended_placements, host, run_monitor, time};
use serde_json::json;

use crate::cli::WatchArgs;
use crate::output::{self, print_data, show};

/// Watches until it is stopped.
pub fn watch(arguments: &WatchArgs, state: Option<&str>) -> Result<(), Failure> {
    let metrics =
        MetricsAddress { socket: arguments.metrics.as_deref(), port: arguments.metrics_port };
    let gaps_over_ns =
        arguments.gaps.as_deref().map(|over| gap_bound("--gaps", over)).transpose()?;
    ended_placements::revert_ended(&host::live()?, state)?;
    let (state, program) = (host::state(state)?, HelperProgram::own()?);
    let session = Session { state: &state, program: &program };
    let options = Options {
        only: arguments.id.as_deref(),
        sockets: &arguments.sockets.0,
        metrics,
        gaps_over_ns,
        domains: arguments.domains.as_deref(),
        on_drift: arguments.drift.into(),
        ignores_claims: arguments.ignore_claims,
    };
    watch::watch(session, options, &|counts: &Counts, right_unix_s: u64, event: &WatchEvent| {
        report(counts, right_unix_s, event, arguments.json);
    })
}

/// Reports an event, as text or as a line of JSON. Drift happened between the last time without
/// drift and now.
fn report(counts: &Counts, right_unix_s: u64, event: &WatchEvent, as_json: bool) {
    let now = SystemClock.unix_seconds();
    let sentence = run_monitor::sentence(event);
    let drift = Drift::from_event(event);
    if !as_json {
        let more = match (event, &drift) {
            (WatchEvent::Ended, _) => "; what it changed on the host is reverted".to_owned(),
            (_, Some(_)) => format!("; after {}", time::date(right_unix_s)),
            (_, None) => String::new(),
        };
        let (id, vm) = (&counts.id, output::short_name(&counts.vm));
        let text = output::name(&sentence);
        return show(&format!("{} {id} ({vm}): {text}{more}", time::date(now)));
    }
    let (kind, thread) = match event {
        WatchEvent::Placed { task, role, .. } => ("placed", Some((task, role))),
        WatchEvent::Repaired { task, role, .. } => ("restored", Some((task, role))),
        WatchEvent::Contested { task, role, .. } => ("contested", Some((task, role))),
        WatchEvent::Yielded { task, role, .. } => ("yielded", Some((task, role))),
        WatchEvent::Replanned { .. } => ("replanned", None),
        WatchEvent::Groups { .. } => ("groups", None),
        WatchEvent::Finding(_) => ("finding", None),
        WatchEvent::Undone => ("undone", None),
        WatchEvent::Ended => ("ended", None),
    };
    let line = json!({
        "format": "pinfold-watch/1",
        "unix_s": now,
        "id": counts.id,
        "vm": counts.vm,
        "event": kind,
        "tid": thread.map(|(task, _)| task.tid.0),
        "role": thread.map(|(_, role)| role.to_string()),
        "what": drift.as_ref().and_then(|drift| drift.what),
        "found": drift.as_ref().map(|drift| drift.found),
        "who": drift.as_ref().map(|drift| drift.clue),
        "after_unix_s": drift.as_ref().map(|_| right_unix_s),
        "text": sentence,
    });
    print_data(&line.to_string());
}

/// A change by another program.
struct Drift<'e> {
    what: Option<&'e str>,
    found: &'e str,
    clue: &'e str,
}

impl<'e> Drift<'e> {
    fn from_event(event: &'e WatchEvent) -> Option<Self> {
        match event {
            WatchEvent::Repaired { found, clue, .. }
            | WatchEvent::Contested { found, clue, .. }
            | WatchEvent::Yielded { found, clue, .. } => Some(Self { what: None, found, clue }),
            WatchEvent::Groups { what, after, clue, .. } => {
                Some(Self { what: Some(what), found: after, clue })
            }
            WatchEvent::Placed { .. }
            | WatchEvent::Replanned { .. }
            | WatchEvent::Finding(_)
            | WatchEvent::Undone
            | WatchEvent::Ended => None,
        }
    }
}
