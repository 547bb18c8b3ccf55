//! How an output format expresses a tunable, or that it cannot.

use crate::{CpuSet, Plan, Topology, VnodePlan};

/// A format's answer for one tunable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatAnswer {
    /// The format can express it.
    Words {
        /// The section or file of the lines; empty if a text has only one.
        place: &'static str,
        /// The lines to write.
        lines: Vec<String>,
        /// The difference from the tunable, if any.
        note: String,
    },
    /// It is written elsewhere in the text, with the threads concerned.
    Elsewhere,
    /// The format cannot express it, with the reason; the reason is empty for a setting of the
    /// host.
    Nothing(String),
}

impl FormatAnswer {
    /// Lines for a section or file.
    pub fn lines(place: &'static str, lines: Vec<String>) -> Self {
        Self::Words { place, lines, note: String::new() }
    }

    /// One line for a text with a single section.
    pub fn line(line: String) -> Self {
        Self::lines("", vec![line])
    }

    /// No equivalent, with a reason.
    #[must_use]
    pub fn nothing(why: &str) -> Self {
        Self::Nothing(why.to_owned())
    }

    /// No equivalent, because it is a setting of the host.
    pub fn host() -> Self {
        Self::Nothing(String::new())
    }

    /// Adds the difference from the tunable.
    #[must_use]
    pub fn with_difference(self, difference: impl Into<String>) -> Self {
        match self {
            Self::Words { place, lines, .. } => {
                Self::Words { place, lines, note: difference.into() }
            }
            Self::Elsewhere | Self::Nothing(_) => self,
        }
    }
}

/// Input of the answers.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The vnode of the text; `None` for a text about the host.
    pub vnode: Option<&'a VnodePlan>,
    /// The topology, if the format needs it.
    pub topology: Option<&'a Topology>,
}

impl<'a> Scope<'a> {
    /// Scope for the text of one vnode.
    pub fn of_vnode(plan: &'a Plan, vnode: &'a VnodePlan) -> Self {
        Self { plan, vnode: Some(vnode), topology: None }
    }

    /// Scope for a text about the host.
    pub fn of_host(plan: &'a Plan) -> Self {
        Self { plan, vnode: None, topology: None }
    }

    /// The CPUs of the frequency and wake-up tunables.
    pub fn pus(&self) -> CpuSet {
        self.vnode.map_or_else(|| self.plan.pus(), VnodePlan::pus)
    }

    /// Number of vCPUs.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        self.vnode.map_or(0, |vnode| vnode.vcpus().count())
    }

    /// True if each vCPU of the vnode has one CPU.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.vnode.is_some_and(VnodePlan::is_pinned)
    }
}
