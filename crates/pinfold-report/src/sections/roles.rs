//! What the host's kernel says of the VM's threads: run delay, migrations and switches per role.
//!
//! These are sums over all observations of a load state, divided by the time
//! observed where that makes candidates comparable.

use super::Name;
use crate::format;
use crate::page::{Page, RoleRow};

/// One load state.
pub(crate) struct Table {
    pub(crate) caption: String,
    pub(crate) open: bool,
    pub(crate) rows: Vec<Row>,
}

/// One role of one candidate.
pub(crate) struct Row {
    pub(crate) name: Name,
    /// True for the first row of a candidate.
    pub(crate) first: bool,
    pub(crate) role: String,
    pub(crate) threads: String,
    pub(crate) running: String,
    pub(crate) waiting: String,
    pub(crate) migrations: String,
    pub(crate) voluntary: String,
    pub(crate) involuntary: String,
    pub(crate) observed: String,
}

/// All tables; the deciding load state is open.
pub(crate) fn tables(page: &Page) -> Vec<Table> {
    page.roles
        .iter()
        .map(|table| {
            let mut before = None;
            let rows = table.rows.iter().map(|row| {
                let first = before.replace(row.candidate) != Some(row.candidate);
                finished(page, row, first)
            });
            Table {
                caption: table.load.to_string(),
                open: table.load == page.answer.load,
                rows: rows.collect(),
            }
        })
        .collect()
}

fn finished(page: &Page, row: &RoleRow, first: bool) -> Row {
    let stats = &row.stats;
    let seconds = row.observed_ns as f64 / 1e9;
    let per_second = |ns: u64| format::duration(ns as f64 / seconds);
    let lost = match stats.lost_threads {
        0 => String::new(),
        lost => format!(" (+{lost} ended)"),
    };
    let migrations = stats.migrations.map_or_else(|| format::MISSING.to_owned(), format::count);
    Row {
        name: Name::of(page, row.candidate),
        first,
        role: stats.role.to_string(),
        threads: format!("{}{lost}", stats.threads),
        running: per_second(stats.run_ns),
        waiting: per_second(stats.run_delay_ns),
        migrations,
        voluntary: format::count(stats.voluntary_switches),
        involuntary: format::count(stats.involuntary_switches),
        observed: format::duration(row.observed_ns as f64),
    }
}
