//! Checks an hwloc XML before hwloc parses it, and scrubs an XML for publication. Pure.
//!
//! hwloc trusts its input. Entities, unlimited nesting, a missing set or a CPU number of four
//! billion reach code that is not written for untrusted files, and some of them crash the process.
//! The requirements for a file are in `check`.
//!
//! ```text
//! <!DOCTYPE topology SYSTEM "hwloc2.dtd">
//! <topology version="2.0">
//!   <object type="Machine" os_index="0" cpuset="0x00000003" …>
//! ```

mod check;

use std::collections::BTreeSet;

use pinfold_model::NodeId;
use roxmltree::{Document, ParsingOptions};

/// The only two DOCTYPE lines that hwloc writes.
const DOCTYPES: [&str; 2] =
    ["<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">", "<!DOCTYPE topology SYSTEM \"hwloc.dtd\">"];

/// Maximum size, far more than any machine's file: 8192 CPUs take 20 MiB.
const MAX_BYTES: usize = 64 << 20;

/// Elements that are passed to hwloc.
const USED_ELEMENTS: [&str; 5] = ["topology", "object", "info", "page_type", "cpukind"];

/// `info` entries that a capture keeps. All others (host name, cgroup, DMI, serial numbers,
/// addresses, process names) are dropped, known or not.
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

/// The text to pass to hwloc, or what is wrong with it. Parts that Pinfold does not use are
/// removed: DOCTYPE, comments (which hwloc's own parser does not support), devices, distances.
pub(crate) fn check_text(text: &str) -> Result<String, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes are more than any machine needs", text.len()));
    }
    let text = without_doctype(text)?;
    let document = parse(&text)?;
    let version = version(&document)?;
    let text = remove_parts(&text, groups_around_memory(&document));
    let text = match version {
        Version::Two => text,
        Version::Three => with_identities(&text)?,
    };
    let document = parse(&text)?;
    check::check(&document).map_err(|why| match version {
        Version::Two => why,
        Version::Three => format!("{why} ({OF_VERSION_3})"),
    })?;
    let root = document.root_element();
    let unused = document.descendants().filter(|node| {
        node.is_comment()
            || (node.is_element() && !USED_ELEMENTS.contains(&node.tag_name().name()))
            || check::is_device(*node)
            // hwloc 3 stores properties of the whole machine here, which hwloc 2 does not read.
            || (node.has_tag_name("info") && node.parent_element() == Some(root))
    });
    let text = remove_parts(&text, unused.map(|node| node.range()).collect());
    Ok(match version {
        Version::Two => text,
        Version::Three => text.replacen(VERSION_3, VERSION_2, 1),
    })
}

/// Supported formats: for the data that Pinfold uses, hwloc 2 and 3 do not differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Two,
    Three,
}

const VERSION_2: &str = "version=\"2.0\"";
const VERSION_3: &str = "version=\"3.0\"";
const OF_VERSION_3: &str =
    "it is of hwloc 3: lstopo --export-xml-flags v2 FILE.xml writes the format of hwloc 2";

/// The format version of a topology file.
fn version(document: &Document<'_>) -> Result<Version, String> {
    let root = document.root_element();
    let name = root.tag_name().name();
    if name != "topology" {
        return Err(format!("the outermost element is <{name}> instead of <topology>"));
    }
    match root.attribute("version") {
        Some(version) if version.starts_with("2.") => Ok(Version::Two),
        Some("3.0") => Ok(Version::Three),
        Some(version) if version.starts_with("3.") => Err(OF_VERSION_3.to_owned()),
        Some(version) if !version.starts_with("1.") => Err(format!(
            "its format is version {version}, 2 and 3.0 are read (lstopo --export-xml-flags v2 \
             FILE.xml writes that of hwloc 2)"
        )),
        Some(_) | None => {
            Err("it is not of hwloc 2 (lstopo -i OLD.xml NEW.xml converts older ones)".to_owned())
        }
    }
}

/// The text with a `gp_index` for each object, which hwloc 3 may leave out.
fn with_identities(text: &str) -> Result<String, String> {
    /// How an object begins.
    const OPENING: &str = "<object";
    let document = parse(text)?;
    let objects = || document.descendants().filter(|node| node.has_tag_name("object"));
    let known = objects().filter_map(|node| node.attribute("gp_index")?.parse::<u64>().ok());
    // The check refuses one that is too large.
    let mut next = known.max().unwrap_or(0).saturating_add(1);
    let (mut whole, mut from) = (String::with_capacity(text.len()), 0);
    for node in objects().filter(|node| !node.has_attribute("gp_index")) {
        let end = node.range().start + OPENING.len();
        if text.get(node.range().start..end) != Some(OPENING) {
            continue;
        }
        whole.push_str(&text[from..end]);
        whole.push_str(&format!(" gp_index=\"{next}\""));
        (from, next) = (end, next.saturating_add(1));
    }
    whole.push_str(&text[from..]);
    Ok(whole)
}

/// The tags of groups without CPUs: hwloc may put such a group around a NUMA node that only has
/// memory. Without the tags the memory is attached to the group's parent.
fn groups_around_memory(document: &Document<'_>) -> Vec<std::ops::Range<usize>> {
    let mut tags = Vec::new();
    for group in document.descendants().filter(|node| {
        node.attribute("type") == Some("Group")
            && ["cpuset", "complete_cpuset"]
                .iter()
                .all(|name| node.attribute(*name).is_some_and(is_empty_set))
    }) {
        let whole = group.range();
        match (group.first_child(), group.last_child()) {
            (Some(first), Some(last)) => {
                tags.push(whole.start..first.range().start);
                tags.push(last.range().end..whole.end);
            }
            (_, _) => tags.push(whole),
        }
    }
    tags
}

/// The NUMA nodes without CPUs in a checked text.
pub(crate) fn nodes_without_pus(text: &str) -> BTreeSet<NodeId> {
    let Ok(document) = parse(text) else { return BTreeSet::new() };
    let nodes = document.descendants().filter(|node| node.attribute("type") == Some("NUMANode"));
    nodes
        .filter(|node| node.attribute("complete_cpuset").is_some_and(is_empty_set))
        .filter_map(|node| node.attribute("os_index")?.parse().ok().map(NodeId))
        .collect()
}

fn is_empty_set(text: &str) -> bool {
    check::parse_set(text).is_ok_and(|set| set.is_empty())
}

/// Removes everything that identifies an individual machine.
pub(crate) fn scrub(text: &str) -> Result<String, String> {
    let text = without_doctype(text)?;
    let document = parse(&text)?;
    let mut drop: Vec<std::ops::Range<usize>> = document
        .descendants()
        .filter(|node| node.has_tag_name("info"))
        .filter(|node| !node.attribute("name").is_some_and(|name| KEPT_INFOS.contains(&name)))
        .map(|node| node.range())
        .collect();
    // `userdata` was added by another program, a comment may contain anything, and devices have
    // serial numbers and addresses.
    drop.extend(
        document
            .descendants()
            .filter(|node| {
                node.has_tag_name("userdata") || node.is_comment() || check::is_device(*node)
            })
            .map(|node| node.range()),
    );
    Ok(remove_parts(&text, drop))
}

/// Removes these parts, and the lines that become empty.
fn remove_parts(text: &str, mut parts: Vec<std::ops::Range<usize>>) -> String {
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

/// Removes the DOCTYPE line. hwloc does not need it; without it, no DTD is allowed at all.
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

#[cfg(test)]
mod tests;
