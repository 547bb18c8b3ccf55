//! Applies a plan to a host and undoes it: steps, journal, undo, status, watch.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! ```text
//! plan + target ──► plan_steps ──► apply ──► status, watch
//!                                    │  ▲
//!                         journal ◄──┘  └── undo (also after a crash)
//! ```
//!
//! [`plan_steps`] reads the host and returns the changes to make: a dry run prints them, [`apply`]
//! makes them. Every step is in the [`Journal`], fsynced, before it is done; [`undo`] needs nothing
//! but the journal. A value that is already right gives no step, so planning again after an apply
//! gives none; that is how apply detects that it is done.
//!
//! This crate knows nothing of strategies, QMP or file formats other than the journal's. It
//! accesses the machine only through `pinfold-host`, and never changes it without a step.

mod actuators;
mod apply;
mod command_group;
mod cpusets;
mod error;
mod files;
mod host_state;
mod journal;
mod missing_cgroups;
pub mod order;
mod other_placements;
pub mod page_tables;
mod recorded_pins;
mod release;
mod resctrl_monitor;
mod reset;
mod rt_watchdog;
mod status;
mod steps;
mod tasks;
mod tunable_status;
mod undo;
mod undo_report;
mod watch;

pub use apply::{
    Applied, Difference, Event, NotReplaced, Observer, Point, Replacement, add_steps, apply,
    difference, leave_file, no_movable_irq, no_observer, replace, take_steps, undo_steps_from,
};
pub use command_group::CommandGroup;
pub use error::{ApplyError, Refusal};
pub use journal::{
    EarlierUndo, Entry, HISTORY, Header, JOURNALS, Journal, JournalError, Journals, LostPlacement,
    LostReason, Namespaces, NewJournal, NewPlan, Outcome, Record, Summary, active_journals,
    lost_placements, remove_void_marks, stale_marks,
};
pub use missing_cgroups::find_vanished;
pub use resctrl_monitor::{Counter, read_counters};
pub use reset::reset_masks;
pub use rt_watchdog::{DemotedThread, demote_real_time_threads, real_time_priority};
pub use status::{ForeignTask, RoleStatus, Status, status};
pub use steps::{Planned, group_name, online_steps, plan_steps, plan_steps_with_journals};
pub use tasks::{ManagedSetting, RecordedPin, Rules, Target};
pub use tunable_status::{TunableStatus, read_tunables};
pub use undo::{undo, undo_host_part, undo_observed};
pub use undo_report::UndoReport;
pub use watch::{
    Extent, MAX_REPAIRS, MachineChange, OnDrift, QuickCheck, Roles, WatchEvent, Watcher,
};
