//! Time series for playback: speed profiles, and recorded loads.
//!
//! ```csv
//! seconds,speed        ms,pu0,pu1
//! 0,40%                10,0.5,1
//! 1.5,2.1 GHz          20,0,0.125
//! ```

use std::collections::BTreeSet;

use pinfold_model::{LoadRow, MAX_PUS, PuId, RecordedLoad, SpeedChange, SpeedProfile};

use super::speeds;
use crate::ConfigError;
use crate::fault::Fault;
use crate::value::{Value, ValueKind, decimal};

/// Parses a speed profile: the header `seconds,speed`, then a row for each change, in ascending
/// order of time; speeds as in a platform file. Before the first row the vnode's own speed applies.
///
/// # Errors
/// [`ConfigError`] with the line and column of the fault.
pub fn profile(text: &str) -> Result<SpeedProfile, ConfigError> {
    changes(text)
        .map(|changes| SpeedProfile { changes })
        .map_err(|fault| ConfigError::in_file(text, fault))
}

/// Parses a recorded load: the header `ms,pu0,pu1,…` with the CPUs' OS indexes, then rows in
/// ascending order of time. A row contains the fraction, 0 to 1, of time in which each CPU was busy
/// since the previous row; the first row since 0.
///
/// # Errors
/// [`ConfigError`] with the line and column of the fault.
pub fn load(text: &str) -> Result<RecordedLoad, ConfigError> {
    parse_load(text).map_err(|fault| ConfigError::in_file(text, fault))
}

/// Formats a recorded load for [`load`].
pub fn to_csv(load: &RecordedLoad) -> String {
    let mut text = String::from("ms");
    for pu in &load.pus {
        text.push_str(&format!(",pu{pu}"));
    }
    for row in &load.rows {
        text.push_str(&format!("\n{}", row.at_ms));
        for millionths in &row.busy_millionths {
            let (whole, rest) = (millionths / 1_000_000, millionths % 1_000_000);
            let share = format!("{whole}.{rest:06}");
            text.push(',');
            text.push_str(share.trim_end_matches('0').trim_end_matches('.'));
        }
    }
    text.push('\n');
    text
}

fn changes(text: &str) -> Result<Vec<SpeedChange>, Fault> {
    let mut rows = rows(text);
    let head = rows.next();
    let names: Option<Vec<&str>> =
        head.as_ref().map(|row| row.fields.iter().map(|(_, name)| *name).collect());
    if names.as_deref() != Some(&["seconds", "speed"]) {
        return Err(no_head(head.as_ref(), "seconds,speed"));
    }
    let mut changes: Vec<SpeedChange> = Vec::new();
    for row in rows {
        let [(at, seconds), (place, speed)] = row.fields.as_slice() else {
            return Err(row.uneven(2));
        };
        let at_ns = decimal(seconds, 9).ok_or_else(|| {
            Fault::new(*at, format!("{seconds:?} is not a number of seconds"))
                .with_hint("for example: 1.5, with at most nine digits after the point")
        })?;
        later(changes.last().map(|last| last.at_ns), at_ns, *at, seconds)?;
        let value = Value { at: *place, what: ValueKind::Text((*speed).to_owned()) };
        let before = text.get(..*at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        changes.push(SpeedChange { at_ns, speed: speeds::speed_request(&value)?, line });
    }
    if changes.is_empty() {
        Err(Fault::new(text.len(), "the profile has no row".to_owned())
            .with_hint("write a row such as 0,40% below the header"))
    } else {
        Ok(changes)
    }
}

fn parse_load(text: &str) -> Result<RecordedLoad, Fault> {
    const HEAD: &str = "ms,pu0,pu1,…";
    let mut rows = rows(text);
    let head = rows.next();
    let names = match head.as_ref().map(|head| head.fields.as_slice()) {
        Some([(_, "ms"), names @ ..]) if !names.is_empty() => names,
        Some(_) | None => return Err(no_head(head.as_ref(), HEAD)),
    };
    let mut pus = Vec::with_capacity(names.len());
    let mut known = BTreeSet::new();
    for (at, name) in names {
        let pu = name.strip_prefix("pu").and_then(|pu| decimal(pu, 0));
        let pu = pu.and_then(|pu| u32::try_from(pu).ok()).map(PuId);
        let pu = pu.filter(|pu| pu.0 < MAX_PUS).ok_or_else(|| {
            Fault::new(*at, format!("{name:?} is not a CPU")).with_hint("for example: pu0")
        })?;
        if !known.insert(pu) {
            return Err(Fault::new(*at, format!("CPU {pu} has two columns")));
        }
        pus.push(pu);
    }
    let mut done: Vec<LoadRow> = Vec::new();
    for row in rows {
        let [(at, ms), shares @ ..] = row.fields.as_slice() else { return Err(row.uneven(2)) };
        if shares.len() != pus.len() {
            return Err(row.uneven(pus.len() + 1));
        }
        let at_ms = decimal(ms, 0).ok_or_else(|| {
            Fault::new(*at, format!("{ms:?} is not a whole number of milliseconds"))
        })?;
        later(Some(done.last().map_or(0, |last| last.at_ms)), at_ms, *at, ms)?;
        let busy_millionths =
            shares.iter().map(|(at, text)| share(*at, text)).collect::<Result<_, _>>()?;
        done.push(LoadRow { at_ms, busy_millionths });
    }
    if done.is_empty() {
        Err(Fault::new(text.len(), "the recorded load has no row".to_owned())
            .with_hint("`pinfold emulate record` writes one for each turn"))
    } else {
        Ok(RecordedLoad { pus, rows: done })
    }
}

fn share(at: usize, text: &str) -> Result<u32, Fault> {
    let millionths = decimal(text, 6).and_then(|share| u32::try_from(share).ok());
    millionths.filter(|millionths| *millionths <= 1_000_000).ok_or_else(|| {
        Fault::new(at, format!("{text:?} is not a share from 0 to 1"))
            .with_hint("for example: 0.25, with at most six digits after the point")
    })
}

fn later(before: Option<u64>, now: u64, at: usize, text: &str) -> Result<(), Fault> {
    match before {
        Some(before) if now <= before => Err(Fault::new(
            at,
            format!("the time {text} is not later than that of the row before"),
        )
        .with_hint(
            "write the rows in ascending order of time; the first load must be at a time above 0",
        )),
        Some(_) | None => Ok(()),
    }
}

fn no_head(found: Option<&Row<'_>>, wanted: &str) -> Fault {
    let at = found.map_or(0, |row| row.at);
    Fault::new(at, format!("the header {wanted} is missing"))
        .with_hint(format!("write {wanted} in the first line"))
}

/// A line that is not blank: its position, and its trimmed fields.
struct Row<'t> {
    at: usize,
    fields: Vec<(usize, &'t str)>,
}

impl Row<'_> {
    fn uneven(&self, wanted: usize) -> Fault {
        Fault::new(self.at, format!("the row has {} fields, not {wanted}", self.fields.len()))
            .with_hint("write one field for each column of the header")
    }
}

fn rows(text: &str) -> impl Iterator<Item = Row<'_>> {
    let lines = text.split_inclusive('\n').scan(0, |at, line| {
        let start = *at;
        *at += line.len();
        Some((start, line))
    });
    lines.filter(|(_, line)| !line.trim().is_empty()).map(|(at, line)| {
        let fields = line.split(',').scan(at, |at, field| {
            let start = *at + (field.len() - field.trim_start().len());
            *at += field.len() + 1;
            Some((start, field.trim()))
        });
        Row { at, fields: fields.collect() }
    })
}
