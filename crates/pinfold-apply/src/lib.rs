//! From a plan to the host and back: steps, journal, undo, status, watch.
//!
//! ```text
//! plan + target ──► plan_steps ──► apply ──► status, watch
//!                                    │  ▲
//!                         journal ◄──┘  └── undo (also after a crash)
//! ```
//!
//! [`plan_steps`] reads the host and says what would be changed: a dry run prints its answer,
//! [`apply`] takes it. Every step is in the [`Journal`], fsynced, before it is done; [`undo`]
//! needs nothing but the journal. What was right already gives no step, so planning
//! again after applying gives none; this is how apply knows that it is done.
//!
//! This crate knows nothing of strategies, QMP or file formats other than the journal's. It
//! reaches the machine only through `pinfold-host`, and never changes it without a step.

mod actuators;
mod apply;
mod cpusets;
mod error;
mod journal;
mod knobs;
mod layers;
mod missing_cgroups;
mod resctrl_monitor;
mod rt_watchdog;
mod status;
mod steps;
mod tasks;
mod undo;
mod watch;

pub use apply::{Applied, Event, Observer, Point, apply, take_steps, unobserved};
pub use error::{ApplyError, Refusal};
pub use journal::{
    Entry, Header, JOURNALS, Journal, JournalError, Journals, Namespaces, NewJournal, Outcome,
    Record, Summary, remove_void_marks, void_marks,
};
pub use knobs::{KnobStatus, knobs};
pub use layers::Earlier;
pub use missing_cgroups::vanished;
pub use resctrl_monitor::{Counter, monitored};
pub use rt_watchdog::{Demoted, real_time_priority, take_rights};
pub use status::{Intruder, RoleStatus, Status, status};
pub use steps::{Planned, group_name, online_steps, plan_steps};
pub use tasks::{Kept, Rules, Target};
pub use undo::{UndoReport, undo, undo_observed};
pub use watch::{Extent, Glance, MAX_REPAIRS, Roles, WatchEvent, Watcher};
