//! The hosts of `fixtures/hosts`.

use pinfold_host::{Host, LiveHost};
use pinfold_model::Topology;

/// Where they are.
pub const HOSTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts");

fn live() -> LiveHost {
    LiveHost::new().expect("the running machine")
}

/// All hosts by file name.
///
/// ```
/// let hosts = pinfold_samples::hosts();
/// assert!(hosts.iter().all(|(_, topology)| !topology.pus.is_empty()));
/// ```
pub fn hosts() -> Vec<(String, Topology)> {
    let real = std::path::Path::new(HOSTS).canonicalize().expect("fixtures/hosts");
    let names = live().list(&real.to_string_lossy()).expect("fixtures/hosts");
    names
        .into_iter()
        .filter(|name| {
            [".synthetic", ".capture", ".xml"].iter().any(|ending| name.ends_with(ending))
        })
        .map(read)
        .collect()
}

/// A host by its file name.
pub fn read(name: String) -> (String, Topology) {
    let topology = pinfold_topology::read_input(&live(), &format!("{HOSTS}/{name}"));
    let topology = topology.unwrap_or_else(|error| panic!("{name}: {error}"));
    (name, topology)
}

/// A host by hwloc's synthetic description.
pub fn from_description(description: &str) -> Topology {
    let topology = pinfold_topology::read_input(&live(), description);
    topology.unwrap_or_else(|error| panic!("{description}: {error}"))
}
