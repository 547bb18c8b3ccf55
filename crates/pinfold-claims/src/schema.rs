//! The JSON of claims, `pinfold-claims/1`; keys are described in `docs/json.md`.

use pinfold_model::{CpuSet, Finding, Severity, Tid};
use serde::{Deserialize, Serialize};

use crate::claim::{Claim, Exclusivity, Owner, Source};
use crate::claim_set::{Claims, CpuUsage};
use crate::conflicts;
use crate::owners;

/// Name and version of the format.
pub const FORMAT: &str = "pinfold-claims/1";

#[derive(Serialize, Deserialize)]
struct Document {
    format: String,
    cpus: CpusLine,
    claims: Vec<ClaimLine>,
    used_twice: Vec<ConflictLine>,
    findings: Vec<FindingLine>,
}

#[derive(Serialize, Deserialize)]
struct CpusLine {
    online: String,
    owned: String,
    shared: String,
    free: String,
    preferred: String,
    used_twice: String,
}

#[derive(Serialize, Deserialize)]
struct ClaimLine {
    owner: OwnerLine,
    cpus: String,
    exclusivity: String,
    floating_allowed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bound: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    floating_vcpus: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    busy_vcpus_milli: Option<u32>,
    active: bool,
    source: SourceLine,
}

#[derive(Serialize, Deserialize)]
struct OwnerLine {
    kind: String,
    name: String,
    pid: Option<u32>,
    placement: Option<String>,
    manager: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct SourceLine {
    file: Option<String>,
    line: Option<u32>,
    cgroup: Option<String>,
    pid: Option<u32>,
    value: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct ConflictLine {
    cpus: String,
    owners: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct FindingLine {
    severity: String,
    subject: String,
    text: String,
    hint: Option<String>,
}

/// The claims on these CPUs as JSON, in one line.
#[must_use]
pub fn to_json(claims: &Claims, online: &CpuSet) -> String {
    let conflicts = claims.used_twice();
    let users = conflicts::all_users(&conflicts);
    let twice = users.iter().map(|(cpus, _)| cpus).collect();
    let CpuUsage { owned, shared, free, preferred, twice } = claims.usage_with(online, twice);
    let cpus = CpusLine {
        online: online.to_string(),
        owned: owned.to_string(),
        shared: shared.to_string(),
        free: free.to_string(),
        preferred: preferred.to_string(),
        used_twice: twice.to_string(),
    };
    let document = Document {
        format: FORMAT.to_owned(),
        cpus,
        claims: claims.all().iter().map(claim_line).collect(),
        used_twice: users
            .iter()
            .map(|(cpus, owners)| ConflictLine {
                cpus: cpus.to_string(),
                owners: owners.iter().map(ToString::to_string).collect(),
            })
            .collect(),
        findings: claims.findings().iter().map(finding_line).collect(),
    };
    // Only texts, numbers and lists: no map with keys of another type, and the writer cannot fail.
    serde_json::to_string(&document)
        .unwrap_or_else(|error| unreachable!("claims are always expressible as JSON: {error}"))
}

fn claim_line(claim: &Claim) -> ClaimLine {
    let Claim { owner, cpus, exclusivity, bound, active, source, .. } = claim;
    let Claim { floating_vcpus, busy_vcpus_milli, .. } = claim;
    ClaimLine {
        bound: (!bound.is_empty()).then(|| bound.to_string()),
        floating_vcpus: *floating_vcpus,
        busy_vcpus_milli: *busy_vcpus_milli,
        owner: OwnerLine {
            kind: owner.kind.name.to_owned(),
            name: owner.name.clone(),
            pid: owner.process.map(|pid| pid.0),
            placement: owner.journal.clone(),
            manager: owner.manager.map(|kind| kind.name.to_owned()),
        },
        cpus: cpus.to_string(),
        exclusivity: exclusivity.word().to_owned(),
        floating_allowed: *exclusivity != Exclusivity::Exclusive,
        active: *active,
        source: SourceLine {
            file: source.file.clone(),
            line: source.line,
            cgroup: source.unit.clone(),
            pid: source.process.map(|pid| pid.0),
            value: source.value.clone(),
        },
    }
}

fn finding_line(finding: &Finding) -> FindingLine {
    FindingLine {
        severity: finding.severity.to_string(),
        subject: finding.subject.clone(),
        text: finding.text.clone(),
        hint: finding.hint.clone(),
    }
}

/// Parses the JSON.
///
/// # Errors
/// A sentence: no JSON, another format, an unknown kind of owner, or an invalid set of CPUs.
pub fn from_json(text: &str) -> Result<Claims, String> {
    let document: Document = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if document.format != FORMAT {
        return Err(format!("the format is {:?}, not {FORMAT}", document.format));
    }
    let mut claims = Claims::default();
    for line in document.claims {
        claims.push(claim(line)?);
    }
    for FindingLine { severity, subject, text, hint } in document.findings {
        let severity = match severity.as_str() {
            "note" => Severity::Note,
            "warning" => Severity::Warning,
            "problem" => Severity::Problem,
            other => return Err(format!("{other:?} is not a severity")),
        };
        claims.report(Finding { severity, subject, text, hint });
    }
    Ok(claims)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn claim(line: ClaimLine) -> Result<Claim, String> {
    let ClaimLine { owner, cpus, exclusivity, bound, .. } = line;
    let ClaimLine { floating_allowed, floating_vcpus, busy_vcpus_milli, .. } = line;
    let ClaimLine { active, source, .. } = line;
    let cpu_set = |text: &str| CpuSet::parse_list(text).map_err(|error| error.to_string());
    let kind =
        |name: &str| owners::kind(name).ok_or_else(|| format!("{name:?} is not a kind of owner"));
    let exclusivity = match (exclusivity.as_str(), floating_allowed) {
        ("exclusive", false) => Exclusivity::Exclusive,
        ("exclusive", true) => Exclusivity::Dedicated,
        ("shared", _) => Exclusivity::Shared,
        ("preferred", _) => Exclusivity::Preferred,
        (other, _) => return Err(format!("{other:?} is not a kind of claim")),
    };
    Ok(Claim {
        cpus: cpu_set(&cpus)?,
        exclusivity,
        bound: bound.as_deref().map_or(Ok(CpuSet::new()), cpu_set)?,
        floating_vcpus,
        busy_vcpus_milli,
        active,
        owner: Owner {
            kind: kind(&owner.kind)?,
            name: owner.name,
            process: owner.pid.map(Tid),
            journal: owner.placement,
            manager: owner.manager.as_deref().map(kind).transpose()?,
        },
        source: Source {
            file: source.file,
            line: source.line,
            unit: source.cgroup,
            process: source.pid.map(Tid),
            value: source.value,
        },
    })
}
