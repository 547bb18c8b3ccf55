//! What all output formats have in common: name, scope, and how several texts stand in one file.

use pinfold_model::tunables::{FormatAnswer, Scope, Setting};
use pinfold_model::{NotSingleVnode, Plan, Topology};
use pinfold_qemu::QemuCommand;

use super::tunable_answers::Answers;

/// An output format. Each is a constant of its file.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Name, as used on the command line.
    pub name: &'static str,
    /// Description, as a sentence without full stop.
    pub summary: &'static str,
    /// True if a text is about the host as a whole, not about one vnode.
    pub is_of_host: bool,
    /// True if the plan can be merged into a file of this format.
    pub can_merge: bool,
    pub(super) syntax: Syntax,
    /// What the host needs for all machines of a plan together, after their texts.
    pub(super) together: Option<fn(&Plan) -> String>,
    /// Writes the text.
    pub(super) write: fn(&Plan, &Topology, &QemuCommand) -> Result<String, NotSingleVnode>,
    /// How the format expresses a tunable whose row does not name it.
    pub(super) tunable: fn(&Setting, &Scope<'_>) -> FormatAnswer,
}

/// How comments and several texts are written in one file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Syntax {
    /// XML: no comment holds two hyphens, and none ends with one.
    Xml,
    /// YAML: each text is a document.
    Yaml,
    /// A shell script that takes one machine as its argument: several of them must not run in
    /// sequence, so the file exits at once.
    Script,
    /// Lines with comments that begin with `#`.
    Lines,
}

impl Format {
    /// The text of a plan. The QEMU command is the one that the script of `qemu` starts.
    ///
    /// # Errors
    /// [`NotSingleVnode`] if the text is about one vnode and the plan has several or none.
    pub fn text(
        &self,
        plan: &Plan,
        topology: &Topology,
        command: &QemuCommand,
    ) -> Result<String, NotSingleVnode> {
        (self.write)(plan, topology, command)
    }

    /// How the format expresses the tunables of a plan.
    pub(super) fn answers(&self, scope: Scope<'_>) -> Answers {
        Answers::new(scope, |setting, scope| self.answer(setting, scope))
    }

    /// How the format expresses one tunable.
    pub(super) fn answer(&self, setting: &Setting, scope: &Scope<'_>) -> FormatAnswer {
        let own = setting.tunable.said.iter().find(|(format, _)| *format == self.name);
        match own {
            Some((_, say)) => say.answer(setting, scope),
            None => (self.tunable)(setting, scope),
        }
    }

    /// The text after those of several vnodes: what the host needs for all of them together.
    pub fn text_for_all(&self, plan: &Plan) -> String {
        self.together.map_or_else(String::new, |write| write(plan))
    }

    /// The text before those of several vnodes.
    #[must_use]
    pub fn heading(&self, count: usize) -> String {
        let texts = format!("{count} texts, one for each vnode");
        let said = format!("{texts}; --vnode NAME prints one alone");
        match self.syntax {
            Syntax::Xml => {
                format!(
                    "<!-- Pinfold: {texts}; the option vnode NAME (with two dashes) prints one alone -->\n"
                )
            }
            Syntax::Script => {
                format!("#!/bin/sh\n# Pinfold: {said}\necho \"$0: {said}\" >&2\nexit 2\n")
            }
            Syntax::Yaml | Syntax::Lines => format!("# Pinfold: {said}\n"),
        }
    }

    /// The line before the text of one of several vnodes.
    pub fn mark(&self, vnode: &str) -> String {
        let name: String = vnode
            .chars()
            .map(|character: char| if character.is_control() { ' ' } else { character })
            .collect();
        match self.syntax {
            Syntax::Xml => format!("<!-- ==== {} ==== -->\n", name.replace('-', "\u{2010}")),
            Syntax::Yaml => format!("---\n# ==== {name} ====\n"),
            Syntax::Script | Syntax::Lines => format!("\n# ==== {name} ====\n"),
        }
    }
}

/// A table with tunables in rows and formats in columns. With several plans, `some` means that it
/// depends on the value or on the rest of the plan.
#[cfg(test)]
pub(crate) fn table(formats: &[Format], plans: &[Plan], topology: &Topology) -> String {
    use std::collections::BTreeMap;
    let mut rows: Vec<&'static str> = Vec::new();
    let mut cells: BTreeMap<(&str, &str), Vec<bool>> = BTreeMap::new();
    for plan in plans {
        for setting in pinfold_model::tunables::settings(plan) {
            let key = setting.tunable.key;
            if !rows.contains(&key) {
                rows.push(key);
            }
            for format in formats {
                let vnode = Some(&plan.vnodes[0]);
                let scope = Scope { plan, vnode, topology: Some(topology) };
                let own = !matches!(format.answer(&setting, &scope), FormatAnswer::Nothing(_));
                cells.entry((key, format.name)).or_default().push(own);
            }
        }
    }
    let names: Vec<&str> = formats.iter().map(|format| format.name).collect();
    let mut text = format!("| tunable | {} |\n", names.join(" | "));
    text.push_str(&format!("|---{}|\n", "|---".repeat(names.len())));
    for key in rows {
        let row: Vec<&str> = names
            .iter()
            .map(|name: &&str| match cells[&(key, *name)].as_slice() {
                all if all.iter().all(|own| *own) => "yes",
                all if all.contains(&true) => "some",
                _ => "no",
            })
            .collect();
        text.push_str(&format!("| `{key}` | {} |\n", row.join(" | ")));
    }
    text
}
