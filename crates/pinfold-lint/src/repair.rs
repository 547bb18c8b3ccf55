//! Changes of single elements of a domain file that need no other placement.

use std::collections::BTreeSet;

use pinfold_emit::Edits;
use pinfold_plan::domain_file::{DomainError, error_at, parse};
use roxmltree::{Document, Node};

/// One change of a domain file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    /// The element's parents below `<domain>`, each as its opening tag without the brackets:
    /// `hyperv mode='custom'`.
    pub path: &'static [&'static str],
    /// The new element; `None` removes the old one.
    pub line: Option<String>,
    /// Tag of the element.
    pub tag: &'static str,
    /// An attribute with its value, if needed to select one of several elements.
    pub key: Option<(&'static str, String)>,
}

impl Repair {
    /// Adds or replaces an element; several of one tag are distinguished by `name`, if present.
    pub fn set_element(
        path: &'static [&'static str],
        tag: &'static str,
        line: impl Into<String>,
    ) -> Self {
        Self { path, line: Some(line.into()), tag, key: None }
    }

    /// The same for the element of a tag that has this `name`.
    pub fn put_named(
        path: &'static [&'static str],
        tag: &'static str,
        name: &'static str,
        line: impl Into<String>,
    ) -> Self {
        Self::put_keyed(path, tag, "name", name, line)
    }

    /// The same for the element of a tag in which an attribute has this value.
    pub fn put_keyed(
        path: &'static [&'static str],
        tag: &'static str,
        attribute: &'static str,
        value: &str,
        line: impl Into<String>,
    ) -> Self {
        Self { path, line: Some(line.into()), tag, key: Some((attribute, value.to_owned())) }
    }

    /// Removes an element.
    pub fn remove(path: &'static [&'static str], tag: &'static str) -> Self {
        Self { path, line: None, tag, key: None }
    }

    fn is_meant(&self, node: &Node<'_, '_>) -> bool {
        node.has_tag_name(self.tag)
            && self.key.as_ref().is_none_or(|(name, value): &(&str, String)| {
                node.attribute(*name) == Some(value.as_str())
            })
    }
}

/// What to write into a domain file, for a person: where, then the elements.
pub(super) fn with_replacement(repairs: &[Repair], parents: &mut Parents<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut shown: Option<&[&str]> = None;
    for repair in repairs {
        let Some(line) = &repair.line else {
            lines.push(format!("remove <{}>", repair.tag));
            continue;
        };
        if shown != Some(repair.path) && !repair.path.is_empty() {
            lines.push(parents.describe_position(repair.path));
            shown = Some(repair.path);
        }
        lines.push(line.clone());
    }
    lines
}

/// The elements that advice writes into: those of the file, and those that earlier advice adds.
pub(super) struct Parents<'d> {
    file: Option<Document<'d>>,
    /// The tags of each that is added, outermost first.
    added: BTreeSet<Vec<String>>,
}

impl<'d> Parents<'d> {
    /// Those of a domain file; without one none is there.
    pub fn from_xml(xml: Option<&'d str>) -> Self {
        Self { file: xml.and_then(|xml| parse(xml).ok()), added: BTreeSet::new() }
    }

    /// Where to write, in words, for the opening tags of an element's parents, outermost first.
    pub fn describe_position(&mut self, path: &[&str]) -> String {
        let in_file = match &self.file {
            Some(document) => depth(document.root_element(), path),
            None => path.len(),
        };
        let there = (1..=path.len())
            .rev()
            .find(|end: &usize| self.added.contains(&prefix(path, *end)))
            .map_or(in_file, |end| end.max(in_file));
        self.added.extend((there + 1..=path.len()).map(|end| prefix(path, end)));
        describe(path, there)
    }
}

fn prefix(path: &[&str], end: usize) -> Vec<String> {
    path.iter().take(end).map(|opening| tag_of(opening).to_owned()).collect()
}

/// How many parents of a path are there.
fn depth(root: Node<'_, '_>, path: &[&str]) -> usize {
    let mut parent = root;
    path.iter()
        .take_while(|opening| {
            let found = parent.children().find(|child| child.has_tag_name(tag_of(opening)));
            found.map(|found| parent = found).is_some()
        })
        .count()
}

/// Where to write, if so many of the parents are there, outermost first.
fn describe(path: &[&str], there: usize) -> String {
    let (known, missing) = path.split_at(there.min(path.len()));
    match missing {
        [] => {
            let known = known.iter().map(|parent| format!("<{}>", tag_of(parent))).collect();
            format!("within {}:", join(known))
        }
        missing => {
            let missing = missing.iter().map(|parent| format!("<{parent}>")).collect();
            let below = known.last().map_or("domain", |parent| tag_of(parent));
            format!("in <{below}>, add {} with:", join(missing))
        }
    }
}

fn join(parents: Vec<String>) -> String {
    parents.join(" ")
}

fn tag_of(opening: &str) -> &str {
    opening.split(' ').next().unwrap_or(opening)
}

/// Applies all changes to the file.
///
/// # Errors
/// [`DomainError`] if the text is no domain file.
pub(super) fn apply<'r>(
    xml: &str,
    repairs: impl IntoIterator<Item = &'r Repair>,
) -> Result<String, DomainError> {
    let mut text = xml.to_owned();
    for repair in repairs {
        text = one(&text, repair)?;
    }
    Ok(text)
}

fn one(xml: &str, repair: &Repair) -> Result<String, DomainError> {
    let document = parse(xml)?;
    let mut edits = Edits::new(xml);
    let mut parent = document.root_element();
    for (depth, opening) in repair.path.iter().enumerate() {
        let tag = tag_of(opening);
        let Some(found) = parent.children().find(|child| child.has_tag_name(tag)) else {
            if let Some(line) = &repair.line {
                let lines = nest(&repair.path[depth..], line);
                let before = ["os", "vcpu", "memory", "name"];
                let neighbour = before
                    .iter()
                    .filter(|_| depth == 0)
                    .find_map(|name| parent.children().find(|child| child.has_tag_name(*name)));
                match neighbour {
                    Some(node) => edits.insert_after(node, &lines),
                    None => edits.insert_into(parent, &lines),
                }
            }
            return Ok(edits.apply());
        };
        parent = found;
    }
    let meant: Vec<Node<'_, '_>> =
        parent.children().filter(|child| repair.is_meant(child)).collect();
    match (&repair.line, meant.as_slice()) {
        (Some(line), _) => {
            edits.exchange(parent, |node| repair.is_meant(node), std::slice::from_ref(line))
        }
        (None, []) => {}
        (None, [only]) => edits.remove(*only),
        (None, [_, second, ..]) => {
            return Err(error_at(*second, format!("a second <{}>", repair.tag)));
        }
    }
    Ok(edits.apply())
}

/// The element with its missing parents, one line each.
fn nest(path: &[&str], line: &str) -> Vec<String> {
    let Some((opening, inner)) = path.split_first() else {
        return vec![line.to_owned()];
    };
    let tag = tag_of(opening);
    let mut lines = vec![format!("<{opening}>")];
    lines.extend(nest(inner, line).into_iter().map(|line| format!("  {line}")));
    lines.push(format!("</{tag}>"));
    lines
}
