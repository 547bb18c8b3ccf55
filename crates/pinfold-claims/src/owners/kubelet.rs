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

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, Finding, Tid, escape};
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
    /// A sentence for each value that cannot be parsed; the others are in the fields above.
    pub faults: Vec<String>,
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

/// Parses the file. A value that cannot be parsed does not prevent the others.
///
/// # Errors
/// A sentence with the key and the value, if nothing of the file can be used.
pub fn parse(text: &str) -> Result<State, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(document) = value else {
        return Err("the file has no JSON object".to_owned());
    };
    let policy = string(&document, "policyName")?
        .ok_or("the key policyName is missing, as in a file of another version")?;
    let unknown = document.keys().filter(|key| !KEYS.contains(&key.as_str())).cloned().collect();
    let mut state = State { policy: policy.to_owned(), unknown, ..State::default() };
    match document.get("defaultCpuSet") {
        None | Some(Value::Null) => {}
        Some(value) => match cpus("defaultCpuSet", value) {
            Ok(pool) => state.pool = pool,
            Err(why) => state.faults.push(why),
        },
    }
    match document.get("entries") {
        None | Some(Value::Null) => {}
        Some(Value::Object(entries)) => {
            entries.iter().for_each(|(key, value)| state.add_entry(key, value));
        }
        Some(other) => state.faults.push(of_other_version("entries", other)),
    }
    Ok(state)
}

impl State {
    /// Adds the containers of a pod, or one of the earlier format.
    fn add_entry(&mut self, key: &str, value: &Value) {
        let Value::Object(of_pod) = value else {
            return self.add_container(&format!("entries.{key}"), None, key, value);
        };
        for (name, value) in of_pod {
            self.add_container(&format!("entries.{key}.{name}"), Some(key), name, value);
        }
    }

    fn add_container(&mut self, place: &str, pod: Option<&str>, name: &str, value: &Value) {
        match cpus(place, value) {
            Ok(cpus) => {
                let (pod, name) = (pod.map(str::to_owned), name.to_owned());
                self.containers.push(Container { pod, name, cpus });
            }
            Err(why) => self.faults.push(why),
        }
    }
}

fn string<'d>(document: &'d Map<String, Value>, key: &str) -> Result<Option<&'d str>, String> {
    match document.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(of_other_version(key, other)),
    }
}

fn cpus(key: &str, value: &Value) -> Result<CpuSet, String> {
    let Value::String(list) = value else { return Err(of_other_version(key, value)) };
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
        context.refuse_all(claims, &source, &state.faults);
        match state.policy.as_str() {
            "static" => {}
            "none" => continue,
            other => {
                let text = format!(
                    "{source}: the policy {} is unknown (known: none, static); its containers are \
                     counted as those of the static policy",
                    escape::name(other)
                );
                claims.report(Finding::warning("claims", text));
            }
        }
        add(context, &source, state, claims);
    }
}

/// Adds the claims of one file.
fn add(context: &Context<'_>, source: &Source, state: State, claims: &mut Claims) {
    // The file stays when the kubelet is removed.
    let active = context.runs(&PROGRAMS);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for container in &state.containers {
        *counts.entry(container.name.clone()).or_default() += 1;
    }
    for Container { pod, name, cpus } in state.containers {
        // Two containers of one name are two owners.
        let is_alone = counts.get(&name) == Some(&1);
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
    let source = source.clone().with_value(format!("defaultCpuSet={}", state.pool));
    let claim = Claim::new(&owner, state.pool, Exclusivity::Shared, &source);
    context.add(claims, Claim { active, ..claim });
}

#[cfg(test)]
mod tests;
