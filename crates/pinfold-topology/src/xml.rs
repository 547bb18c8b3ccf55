//! Looks at an hwloc XML before hwloc does, and scrubs one that leaves the machine. Pure.
//!
//! hwloc trusts its input: entities, bottomless nesting, sets that contradict each other
//! or a PU number of four billion reach code that was never meant for strangers' files.
//! A text that passes [`checked`] is a tree of objects whose sets nest, with at least one
//! PU, none twice, all below Pinfold's limit, and no DOCTYPE but hwloc's own.
//!
//! ```text
//! <!DOCTYPE topology SYSTEM "hwloc2.dtd">
//! <topology version="2.0">
//!   <object type="Machine" os_index="0" cpuset="0x00000003" …>
//! ```
//! Sets are 32-bit hexadecimal words, high first, empty where zero: `0x1,,0x0000000f`.

use pinfold_model::{CpuSet, MAX_PUS, PuId};
use roxmltree::{Document, Node, ParsingOptions};

/// The only two DOCTYPE lines that hwloc has ever written.
const DOCTYPES: [&str; 2] =
    ["<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">", "<!DOCTYPE topology SYSTEM \"hwloc.dtd\">"];

/// Far deeper than any machine: hwloc reads objects recursively.
const MAX_DEPTH: usize = 64;

/// Far larger than any machine's file: 8192 PUs take 20 MiB.
const MAX_BYTES: usize = 64 << 20;

/// `info` entries that a capture keeps; all others (host name, cgroup, DMI, serial
/// numbers, addresses, process names) are dropped, known or not.
const KEPT_INFOS: [&str; 17] = [
    "Architecture",
    "Backend",
    "CPUFamilyNumber",
    "CPUModel",
    "CPUModelNumber",
    "CPURevision",
    "CPUStepping",
    "CPUVendor",
    "CoreType",
    "DAXType",
    "FrequencyBaseMHz",
    "FrequencyMaxMHz",
    "Inclusive",
    "LinuxCapacity",
    "MemoryTier",
    "OSName",
    "hwlocVersion",
];

/// The text as hwloc may have it, without DOCTYPE and comments (hwloc's own parser knows
/// none); else what is wrong with it.
pub(crate) fn checked(text: &str) -> Result<String, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes are more than any machine needs", text.len()));
    }
    let text = without_doctype(text)?;
    let document = parse(&text)?;
    let root = document.root_element();
    if root.tag_name().name() != "topology" {
        return Err(format!(
            "the outermost element is <{}> instead of <topology>",
            root.tag_name().name()
        ));
    }
    let mut check = Check { document: &document, pus: CpuSet::new() };
    check.objects(root)?;
    if check.pus.is_empty() {
        return Err("it has no PU".to_owned());
    }
    let comments = document.descendants().filter(Node::is_comment).map(|node| node.range());
    Ok(without(&text, comments.collect()))
}

/// The text without anything that tells which machine of its kind this is.
pub(crate) fn scrubbed(text: &str) -> Result<String, String> {
    let text = without_doctype(text)?;
    let document = parse(&text)?;
    let mut drop: Vec<std::ops::Range<usize>> = document
        .descendants()
        .filter(|node| node.has_tag_name("info"))
        .filter(|node| !node.attribute("name").is_some_and(|name| KEPT_INFOS.contains(&name)))
        .map(|node| node.range())
        .collect();
    // `userdata` is what another program hung on the tree; a comment may say anything.
    drop.extend(
        document
            .descendants()
            .filter(|node| node.has_tag_name("userdata") || node.is_comment())
            .map(|node| node.range()),
    );
    Ok(without(&text, drop))
}

/// The text without these parts, and without the lines that this leaves empty.
fn without(text: &str, mut parts: Vec<std::ops::Range<usize>>) -> String {
    parts.sort_by_key(|range| range.start);
    let mut kept = String::with_capacity(text.len());
    let mut from = 0;
    for range in parts {
        kept.push_str(&text[from..range.start.max(from)]);
        from = range.end.max(from);
    }
    kept.push_str(&text[from..]);
    let lines: Vec<&str> = kept.lines().filter(|line| !line.trim().is_empty()).collect();
    lines.join("\n") + "\n"
}

fn parse(text: &str) -> Result<Document<'_>, String> {
    Document::parse_with_options(text, ParsingOptions { allow_dtd: false, ..Default::default() })
        .map_err(|error| error.to_string())
}

/// hwloc reads its file without the line just as well, and then no DTD is allowed at all.
fn without_doctype(text: &str) -> Result<String, String> {
    let Some(start) = text.find("<!DOCTYPE") else {
        return Ok(text.to_owned());
    };
    let known = DOCTYPES
        .iter()
        .find(|known| text[start..].starts_with(*known))
        .ok_or("its DOCTYPE is not hwloc's own; entities and external definitions are refused")?;
    Ok(format!("{}{}", &text[..start], &text[start + known.len()..]))
}

struct Check<'d> {
    document: &'d Document<'d>,
    pus: CpuSet,
}

impl Check<'_> {
    /// Walks all objects without recursion, each with the set of the object around it.
    fn objects(&mut self, root: Node<'_, '_>) -> Result<(), String> {
        let mut todo: Vec<(Node<'_, '_>, Option<CpuSet>, usize)> = vec![(root, None, 0)];
        while let Some((node, around, depth)) = todo.pop() {
            if depth > MAX_DEPTH {
                return Err(self.at(node, "objects are nested too deeply"));
            }
            let own = self.set_of(node, around.as_ref())?;
            if node.attribute("type") == Some("PU") {
                self.pu(node, own.as_ref())?;
            }
            let inner = own.or(around);
            todo.extend(
                node.children()
                    .filter(|child| child.has_tag_name("object"))
                    .map(|child| (child, inner.clone(), depth + 1)),
            );
        }
        Ok(())
    }

    fn set_of(
        &self,
        node: Node<'_, '_>,
        around: Option<&CpuSet>,
    ) -> Result<Option<CpuSet>, String> {
        let Some(text) = node.attribute("cpuset") else { return Ok(None) };
        let set = parse_set(text).map_err(|why| self.at(node, &why))?;
        match around {
            Some(around) if !set.is_subset(around) => {
                Err(self.at(node, "an object has PUs that the object around it has not"))
            }
            Some(_) | None => Ok(Some(set)),
        }
    }

    fn pu(&mut self, node: Node<'_, '_>, set: Option<&CpuSet>) -> Result<(), String> {
        let index = node
            .attribute("os_index")
            .and_then(|index| index.parse::<u32>().ok())
            .filter(|index| *index < MAX_PUS)
            .map(PuId)
            .ok_or_else(|| self.at(node, "a PU has no usable os_index"))?;
        // An offline PU may be described, with an empty set.
        if set.is_some_and(|set| !set.is_empty() && *set != CpuSet::single(index)) {
            return Err(self.at(node, "the cpuset of a PU is not its own index"));
        }
        if self.pus.contains(index) {
            return Err(self.at(node, "a PU comes twice"));
        }
        self.pus.insert(index);
        Ok(())
    }

    fn at(&self, node: Node<'_, '_>, why: &str) -> String {
        format!("line {}: {why}", self.document.text_pos_at(node.range().start).row)
    }
}

/// hwloc's set format; the infinite sets that it can also write are refused.
fn parse_set(text: &str) -> Result<CpuSet, String> {
    let fail = || format!("{text:?} is not a set of PUs");
    let words: Vec<&str> = text.split(',').collect();
    if words.len() > (MAX_PUS / 32) as usize {
        return Err(fail());
    }
    let mut set = CpuSet::new();
    for (position, word) in (0_u32..).zip(words.iter().rev()) {
        if word.is_empty() {
            continue;
        }
        let digits = word.strip_prefix("0x").ok_or_else(fail)?;
        let value = u32::from_str_radix(digits, 16).map_err(|_| fail())?;
        for bit in (0..32).filter(|bit| value & (1 << bit) != 0) {
            set.insert(PuId(position * 32 + bit));
        }
    }
    Ok(set)
}

#[cfg(test)]
mod tests;
