//! The rows of the tables on the screen and in the pipe.

use pinfold_model::escape;
use ratatui_core::layout::Constraint;

use crate::snapshot::{MachineSample, ThreadSample, VnodeSample};
use crate::units::{milliseconds, per_cent};

/// The columns.
pub const HEADER: [&str; 8] =
    ["machine", "waits most now", "run %", "ready %", "throt %", "worst", "moves", "exits/s"];

/// Their widths on the screen: 80 columns leave 14 and 26 to the first two.
pub(crate) const WIDTHS: [Constraint; 8] = [
    Constraint::Fill(6),
    Constraint::Fill(11),
    Constraint::Length(6),
    Constraint::Length(7),
    Constraint::Length(7),
    Constraint::Length(8),
    Constraint::Length(5),
    Constraint::Length(8),
];
/// The last column is shown from this width on.
pub(crate) const WIDE: u16 = 100;

/// The row of a machine.
#[must_use]
pub fn machine(machine: &MachineSample) -> [String; 8] {
    let drifted = if machine.placement.as_deref() == Some("drifted") { " (drifted)" } else { "" };
    let starving = if machine.is_starving() { "!" } else { "" };
    let worst = machine.worst().filter(|thread| thread.is_waiting());
    [
        format!("{starving}{}{drifted}", escape::name(&machine.name)),
        worst.map_or_else(
            || "-".to_owned(),
            |thread| format!("{} {}", thread.role, thread.to_words(": ")),
        ),
        per_cent(machine.run()),
        per_cent(machine.ready()),
        machine.throttled_share.map_or_else(|| "-".to_owned(), per_cent),
        milliseconds(machine.worst_ns()),
        machine.moves().to_string(),
        machine.exits_per_second.map_or_else(|| "-".to_owned(), |exits| format!("{exits:.0}")),
    ]
}

/// The row of a thread, below that of its machine.
pub(crate) fn thread(thread: &ThreadSample) -> [String; 8] {
    let starving = if thread.is_starving() { "!" } else { "" };
    [
        format!(" {starving}{} on {}", escape::name(&thread.role), thread.cpu),
        if thread.is_waiting() { thread.to_words(": ") } else { "-".to_owned() },
        per_cent(thread.run_share),
        per_cent(thread.ready_share),
        String::new(),
        milliseconds(thread.worst_ns),
        thread.moves.to_string(),
        String::new(),
    ]
}

/// The row of a CPU of a vnode.
pub(crate) fn vnode(vnode: &VnodeSample) -> [String; 8] {
    let achieved = vnode
        .achieved
        .map_or_else(|| "not measured".to_owned(), |share| format!("{} %", per_cent(share)));
    let mut row: [String; 8] = Default::default();
    row[0] = format!("vnode {} on {}", escape::name(&vnode.name), vnode.cpu);
    row[1] = format!("{} % asked, {achieved}", per_cent(vnode.requested));
    row
}
