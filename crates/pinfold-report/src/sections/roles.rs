//! Kernel statistics of the VM's threads: run delay, migrations and switches per role.
//!
//! Times are shares of the time that the counters cover, as the mean over a role's threads: no
//! thread can run and wait for more than all of it.

use super::Name;
use crate::format;
use crate::page::{Page, RoleRow};

/// The table of one load state.
pub(crate) struct Table {
    pub(crate) caption: String,
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

/// All tables.
pub(crate) fn tables(page: &Page) -> Vec<Table> {
    page.roles
        .iter()
        .map(|table| {
            let mut before = None;
            let rows = table.rows.iter().map(|row| {
                let first = before.replace(row.candidate) != Some(row.candidate);
                row_of(page, row, first)
            });
            Table { caption: table.load.to_string(), rows: rows.collect() }
        })
        .collect()
}

fn row_of(page: &Page, row: &RoleRow, first: bool) -> Row {
    let stats = &row.stats;
    let time_ns = row.observed_ns.map(|time| time as f64 * f64::from(stats.threads));
    let lost = match stats.lost_threads {
        0 => String::new(),
        lost => format!(" (+{lost} ended)"),
    };
    let migrations = stats.migrations.map_or_else(|| format::MISSING.to_owned(), format::count);
    Row {
        name: Name::new(page, row.candidate),
        first,
        role: stats.role.to_string(),
        threads: format!("{}{lost}", stats.threads),
        running: share(time_ns, stats.run_ns),
        waiting: share(time_ns, stats.run_delay_ns),
        migrations,
        voluntary: format::count(stats.voluntary_switches),
        involuntary: format::count(stats.involuntary_switches),
        observed: row.observed_ns.map_or_else(not_recorded, |time| format::duration(time as f64)),
    }
}

fn share(time_ns: Option<f64>, ns: u64) -> String {
    time_ns.map_or_else(not_recorded, |time| format::percent(ns as f64 / time))
}

/// Stores of older versions lack the time that the counters cover.
fn not_recorded() -> String {
    "not recorded".to_owned()
}
