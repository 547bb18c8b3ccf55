//! A candidate of a search: what is applied in its windows.

use pinfold_apply::Target;
use pinfold_model::Plan;

use super::Next;

/// A candidate, with the threads of the machine.
pub(super) struct Placed {
    /// Its strategy, or the setting.
    pub name: String,
    /// True for a setting on the present placement.
    pub is_setting: bool,
    pub plan: Plan,
    pub target: Target,
    /// Other candidates that give the same.
    pub same: Vec<String>,
    /// What makes it stay; `None` if no command does.
    pub next: Option<Next>,
}
