//! `--drift` of the commands that monitor machines.

use pinfold_apply::OnDrift;

/// What a command that monitors machines does about drift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DriftAction {
    /// Report it, leave it, and plan around it
    #[default]
    Adopt,
    /// Report it and leave it; the plan stays as it is
    Report,
    /// Restore it, at most three times
    Restore,
}

impl From<DriftAction> for OnDrift {
    fn from(action: DriftAction) -> Self {
        match action {
            DriftAction::Adopt => OnDrift::Adopt,
            DriftAction::Report => OnDrift::Report,
            DriftAction::Restore => OnDrift::Restore,
        }
    }
}
