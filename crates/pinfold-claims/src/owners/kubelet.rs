//! Exclusive CPUs of containers, and the pool of the others, under the kubelet's static CPU policy.
//!
//! ```text
//! {"policyName":"static","defaultCpuSet":"0-1,6-7",
//!  "entries":{"235148fe-393f-47a8-a17d-bd55bc1a836b":{"app":"2-5"}},"checksum":1552716370}
//! ```
//! Without static policy no container has CPUs. Before Kubernetes 1.18 the keys of `entries` were
//! container IDs with the CPUs as their values. The file belongs to the kubelet alone, but its
//! format is that of `pkg/kubelet/cm/cpumanager/state/checkpoint.go`; the checksum is over Go's text
//! of the structure and is not checked.

use pinfold_model::{CpuSet, Tid, escape};
use serde_json::{Map, Value};

use crate::claim::{Claim, Exclusivity, Kind, Owner, OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::context::{Context, group_of};

/// A container with exclusive CPUs.
pub const CONTAINER: Kind =
    Kind { name: "kubelet", noun: "Kubernetes container", sort: OwnerCategory::Program };

/// The CPUs of all other containers.
pub const POOL: Kind = Kind { name: "kubelet-pool", noun: "", sort: OwnerCategory::Pool };

/// What is read.
pub const READS: &str = "cpu_manager_state of the kubelet, also in k0s and MicroK8s";

/// Programs that are or contain the kubelet.
const PROGRAMS: [&str; 5] = ["kubelet", "k3s", "k0s", "kubelite", "hyperkube"];

/// The kubelet's directory, that of k0s and that of MicroK8s.
const FILES: [&str; 3] = [
    "/var/lib/kubelet/cpu_manager_state",
    "/var/lib/k0s/kubelet/cpu_manager_state",
    "/var/snap/microk8s/common/var/lib/kubelet/cpu_manager_state",
];

const KEYS: [&str; 4] = ["policyName", "defaultCpuSet", "entries", "checksum"];

/// The state of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The policy: `none` or `static`.
    pub policy: String,
    /// CPUs of containers without exclusive CPUs.
    pub pool: CpuSet,
    /// Containers with exclusive CPUs.
    pub containers: Vec<Container>,
    /// Keys that this version of the format does not have.
    pub unknown: Vec<String>,
}

/// A container with exclusive CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// UID of its pod; `None` in the earlier format.
    pub pod: Option<String>,
    /// Its name, or its ID in the earlier format.
    pub name: String,
    /// Its CPUs.
    pub cpus: CpuSet,
}

/// Parses the file.
///
/// # Errors
/// A sentence with the key and the value.
pub fn parse(text: &str) -> Result<State, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(document) = value else {
        return Err("the file has no JSON object".to_owned());
    };
    let policy = string(&document, "policyName")?
        .ok_or("the key policyName is missing, as in a file of another version")?;
    let pool = cpus("defaultCpuSet", string(&document, "defaultCpuSet")?.unwrap_or_default())?;
    let mut containers = Vec::new();
    match document.get("entries") {
        None | Some(Value::Null) => {}
        Some(Value::Object(entries)) => {
            for (key, value) in entries {
                add_entry(key, value, &mut containers)?;
            }
        }
        Some(other) => return Err(of_other_version("entries", other)),
    }
    let unknown = document.keys().filter(|key| !KEYS.contains(&key.as_str())).cloned().collect();
    Ok(State { policy: policy.to_owned(), pool, containers, unknown })
}

fn add_entry(key: &str, value: &Value, containers: &mut Vec<Container>) -> Result<(), String> {
    match value {
        Value::String(list) => {
            let cpus = cpus(&format!("entries.{key}"), list)?;
            containers.push(Container { pod: None, name: key.to_owned(), cpus });
        }
        Value::Object(of_pod) => {
            for (name, value) in of_pod {
                let place = format!("entries.{key}.{name}");
                let Value::String(list) = value else {
                    return Err(of_other_version(&place, value));
                };
                let cpus = cpus(&place, list)?;
                containers.push(Container { pod: Some(key.to_owned()), name: name.clone(), cpus });
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return Err(of_other_version(&format!("entries.{key}"), value));
        }
    }
    Ok(())
}

fn string<'d>(document: &'d Map<String, Value>, key: &str) -> Result<Option<&'d str>, String> {
    match document.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(of_other_version(key, other)),
    }
}

fn cpus(key: &str, list: &str) -> Result<CpuSet, String> {
    CpuSet::parse_list(list).map_err(|error| format!("{key}: {error}"))
}

fn of_other_version(key: &str, value: &Value) -> String {
    let short: String = value.to_string().chars().take(40).collect();
    format!("{key} is {short}, as in a file of another version")
}

/// True if a claim is that of a container, or of the pool, to which a cgroup of Kubernetes belongs.
pub(crate) fn contains(claim: &Claim, group: &str) -> bool {
    group.contains("kubepods") && (claim.owner.kind == &POOL || is_container(claim, group))
}

/// True if a claim is that of a container to which a cgroup belongs.
fn is_container(claim: &Claim, group: &str) -> bool {
    if claim.owner.kind != &CONTAINER {
        return false;
    }
    match claim.source.value.as_deref().and_then(|value| value.strip_prefix("pod ")) {
        // The systemd driver writes the hyphens of a UID as underscores.
        Some(pod) => group.contains(pod) || group.contains(&pod.replace('-', "_")),
        // The name is the ID of the container.
        None => group.contains(&claim.owner.name),
    }
}

/// True if a process is in a container whose CPUs are known. One in a container without CPUs of its
/// own, or of which the kubelet's state has nothing, is its own owner.
pub(crate) fn owns(context: &Context<'_>, process: Tid, claims: &Claims) -> bool {
    let group = group_of(context.host, process).filter(|group| group.contains("kubepods"));
    group.is_some_and(|group| claims.all().iter().any(|claim| is_container(claim, &group)))
}

/// The CPUs of all containers that are known.
pub(crate) fn known_cpus(claims: &Claims) -> CpuSet {
    let mut all = CpuSet::new();
    let own = claims.all().iter().filter(|claim| [&CONTAINER, &POOL].contains(&claim.owner.kind));
    own.for_each(|claim| all.add(&claim.cpus));
    all
}

/// Adds the claims of the kubelet's containers.
pub fn read(context: &Context<'_>, claims: &mut Claims) {
    for path in FILES {
        let Some(text) = context.text(path, claims) else { continue };
        let source = Source::file(path, None);
        let state = match parse(&text) {
            Ok(state) => state,
            Err(why) => {
                context.refuse(claims, &source, why);
                continue;
            }
        };
        if !state.unknown.is_empty() {
            let why = format!(
                "the keys {} are those of another version, so their CPUs are unknown",
                state.unknown.join(", ")
            );
            context.refuse(claims, &source, why);
        }
        match state.policy.as_str() {
            "static" => {}
            "none" => continue,
            other => {
                let why = format!(
                    "the policy {} is unknown (known: none, static), so its containers are taken \
                     as those of the static policy",
                    escape::name(other)
                );
                context.refuse(claims, &source, why);
            }
        }
        // The file stays when the kubelet is removed.
        let active = context.runs(&PROGRAMS);
        let names: Vec<String> =
            state.containers.iter().map(|container| container.name.clone()).collect();
        for Container { pod, name, cpus } in state.containers {
            // Two containers of one name are two owners.
            let is_alone = names.iter().filter(|other| **other == name).count() == 1;
            let shown = match &pod {
                Some(pod) if !is_alone => format!("{name} of pod {pod}"),
                _ => name,
            };
            let source = match &pod {
                Some(pod) => source.clone().with_value(format!("pod {pod}")),
                None => source.clone(),
            };
            let owner = Owner::new(&CONTAINER, shown);
            let claim = Claim::new(&owner, cpus, Exclusivity::Exclusive, &source);
            context.add(claims, Claim { active, ..claim });
        }
        let owner = Owner::new(&POOL, "the other Kubernetes containers");
        let source = source.with_value(format!("defaultCpuSet={}", state.pool));
        let claim = Claim::new(&owner, state.pool, Exclusivity::Shared, &source);
        context.add(claims, Claim { active, ..claim });
    }
}

#[cfg(test)]
mod tests;
