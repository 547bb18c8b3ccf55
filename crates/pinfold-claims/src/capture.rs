//! Claims in a captured machine.
//!
//! A capture may be published, and what claims are read from has names of machines, users' command
//! lines and settings of other programs. So a capture contains the claims themselves, in one entry,
//! with a number in place of each name.

use std::collections::BTreeMap;

use pinfold_host::{Host, SnapshotHost, paths};
use pinfold_model::{CpuSet, Finding, Severity};

use crate::claim::{OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::schema;

/// The text of the entry of a capture with these claims: without names, paths and process IDs.
#[must_use]
pub fn for_capture(claims: &Claims, online: &CpuSet) -> String {
    let mut named = claims.clone();
    let mut numbers: BTreeMap<(&str, String), usize> = BTreeMap::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for claim in &mut named.known {
        let owner = &mut claim.owner;
        let is_plain =
            owner.kind.sort == OwnerCategory::Configuration || owner.kind.noun.is_empty();
        let identity = format!("{} {:?} {:?}", owner.name, owner.process, owner.journal);
        let count = counts.entry(owner.kind.name).or_default();
        let number = *numbers.entry((owner.kind.name, identity)).or_insert_with(|| {
            *count += 1;
            *count
        });
        if !is_plain {
            owner.name = format!("{}{number}", owner.kind.name);
        }
        owner.process = None;
        owner.journal = owner.journal.as_ref().map(|_| number.to_string());
        let kept = claim.source.value.take().filter(|_| is_plain);
        claim.source = Source { value: kept, ..Source::default() };
    }
    named.unreadable.clear();
    let unknown = named.findings().iter().filter(|one| one.severity > Severity::Note).count();
    named.clear_findings();
    if unknown > 0 {
        let text = format!("{unknown} of the sources of claims could not be read for the capture");
        named.report(Finding::note("claims", text));
    }
    schema::to_json(&named, online) + "\n"
}

/// The claims of a captured or simulated machine: those of its entry, else what its files show.
#[must_use]
pub fn read_captured(host: &SnapshotHost) -> Claims {
    let path = paths::captured_claims();
    let mut claims = Claims::default();
    match host.read_text(&path) {
        Ok(text) => match schema::from_json(&text) {
            Ok(found) => return found,
            Err(why) => {
                claims.report(Finding::warning("claims", format!("{path}: {why}; not counted")));
            }
        },
        Err(_) => claims.read_owners(host),
    }
    claims
}
