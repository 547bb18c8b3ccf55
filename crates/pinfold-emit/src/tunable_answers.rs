//! The answers of a format for the tunables of a plan, as lines and comments.
//!
//! In the text each answer follows a comment that names the tunable in the syntax of `--tunable`.

use pinfold_model::tunables::{self, FormatAnswer, Scope, Setting};

use super::common::replace_control_chars;

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
    /// The answers of a format for all tunables of the plan.
    pub fn new(scope: Scope<'_>, said: impl Fn(&Setting, &Scope<'_>) -> FormatAnswer) -> Self {
        Self {
            all: tunables::settings(scope.plan)
                .into_iter()
                .map(|it: Setting| (replace_control_chars(&it.to_string()), said(&it, &scope)))
                .collect(),
        }
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
        self.all
            .iter()
            .filter(|(_, said)| is_here(wanted, said))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The lines of one section as text; comments begin with `# `.
    pub fn text(&self, place: &str) -> String {
        self.lines(place)
            .into_iter()
            .map(|line| match line {
                Line::Comment(text) => format!("# {text}\n"),
                Line::Text(text) => format!("{text}\n"),
            })
            .collect()
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

fn is_here(wanted: &str, said: &FormatAnswer) -> bool {
    matches!(said, FormatAnswer::Words { place, .. } if *place == wanted)
}

/// Which commands and formats set the host's tunables.
const ELSEWHERE: &str = "(`pinfold apply` sets them and `pinfold undo` resets them; \
                         the formats systemd and tuned write them for every boot)";
