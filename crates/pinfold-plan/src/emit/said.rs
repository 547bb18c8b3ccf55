//! How a format expresses each tunable, or that it cannot.
//!
//! Each format has a `match` over [`Tunable`] without a wildcard, so a new tunable does not compile
//! before every format handles it. In the text each answer follows a comment that names the tunable
//! in the syntax of `--knob`.

use pinfold_model::{CpuSet, Plan, Topology, VnodePlan};

use super::common::safe;
use crate::tunables::{Tunable, tunables};

/// A format's answer for one tunable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FormatAnswer {
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
    pub fn nothing(why: &str) -> Self {
        Self::Nothing(why.to_owned())
    }

    /// No equivalent, because it is a setting of the host.
    pub fn host() -> Self {
        Self::Nothing(String::new())
    }

    /// Adds the difference from the tunable.
    pub fn but(self, difference: impl Into<String>) -> Self {
        match self {
            Self::Words { place, lines, .. } => {
                Self::Words { place, lines, note: difference.into() }
            }
            Self::Elsewhere | Self::Nothing(_) => self,
        }
    }
}

/// Input of the answers.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub plan: &'a Plan,
    /// The vnode of the text; `None` for a text about the host.
    pub vnode: Option<&'a VnodePlan>,
    /// The topology, if the format needs it.
    pub topology: Option<&'a Topology>,
}

impl<'a> Scope<'a> {
    /// Scope for the text of one vnode.
    pub fn of_vnode((plan, vnode): (&'a Plan, &'a VnodePlan)) -> Self {
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
    pub fn vcpus(&self) -> usize {
        self.vnode.map_or(0, |vnode| vnode.vcpus().count())
    }
}

/// The answers of one format for all tunables of a plan.
pub(super) struct Answers {
    /// Each tunable's text form with the answer.
    all: Vec<(String, FormatAnswer)>,
}

/// A line of a format's text.
pub(super) enum Line {
    Comment(String),
    Text(String),
}

impl Answers {
    /// Collects a format's answers for all tunables of the plan.
    pub fn of(scope: Scope<'_>, words: impl Fn(&Tunable<'_>, &Scope<'_>) -> FormatAnswer) -> Self {
        let answer = |tunable: Tunable<'_>| (safe(&tunable.to_string()), words(&tunable, &scope));
        Self { all: tunables(scope.plan).into_iter().map(answer).collect() }
    }

    /// The lines of one section, each group after a comment that names its tunable.
    pub fn lines(&self, wanted: &str) -> Vec<Line> {
        let mut found = Vec::new();
        for (name, said) in &self.all {
            let FormatAnswer::Words { place, lines, note } = said else { continue };
            if *place != wanted {
                continue;
            }
            let colon = if note.is_empty() { "" } else { ": " };
            found.push(Line::Comment(format!("{name}{colon}{note}")));
            found.extend(lines.iter().cloned().map(Line::Text));
        }
        found
    }

    /// The tunables with lines in one section.
    pub fn names(&self, wanted: &str) -> Vec<String> {
        let here = |said: &FormatAnswer| matches!(said, FormatAnswer::Words { place, .. } if *place == wanted);
        self.all.iter().filter(|(_, said)| here(said)).map(|(name, _)| name.clone()).collect()
    }

    /// The lines of one section as text; comments begin with `# `.
    pub fn text(&self, place: &str) -> String {
        let line = |line: Line| match line {
            Line::Comment(text) => format!("# {text}\n"),
            Line::Text(text) => format!("{text}\n"),
        };
        self.lines(place).into_iter().map(line).collect()
    }

    /// Tunables that the format cannot express, a sentence each; empty if there are none.
    pub fn missing(&self, format: &str) -> Vec<String> {
        let with = |given: bool| {
            self.all.iter().filter_map(move |(name, said)| match said {
                FormatAnswer::Nothing(why) if why.is_empty() != given => Some((name, why)),
                FormatAnswer::Nothing(_) | FormatAnswer::Words { .. } | FormatAnswer::Elsewhere => {
                    None
                }
            })
        };
        let mut lines: Vec<String> = with(true)
            .map(|(name, why)| format!("{format} cannot express {name}: {why}"))
            .collect();
        let host: Vec<&str> = with(false).map(|(name, _)| name.as_str()).collect();
        if !host.is_empty() {
            lines.push(format!("Host settings that {format} cannot express: {}", host.join(", ")));
            lines.push(ELSEWHERE.to_owned());
        }
        lines
    }

    /// The same as comments that begin with `# `.
    pub fn missing_text(&self, format: &str) -> String {
        self.missing(format).iter().map(|line| format!("# {line}\n")).collect()
    }
}

/// Which commands and formats set the host's tunables.
const ELSEWHERE: &str = "(`pinfold apply` sets them and `pinfold undo` resets them; \
                         the formats systemd and tuned write them for every boot)";

/// The files and sysctls of a plan's tunables, to compare them with those of `pinfold apply`.
#[cfg(test)]
pub(crate) fn paths(plan: &Plan) -> Vec<String> {
    use super::kernel_files::{Setting, setting};
    let path = |tunable: &Tunable<'_>| match setting(tunable, &plan.pus()) {
        Setting::Files(files) => files.into_iter().map(|(path, _)| path).collect(),
        Setting::Sysctl(name, _) => vec![format!("/proc/sys/{}", name.replace('.', "/"))],
        Setting::Neither => Vec::new(),
    };
    tunables(plan).iter().flat_map(path).collect()
}
