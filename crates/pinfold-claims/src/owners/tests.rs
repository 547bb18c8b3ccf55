//! Hosts of the tests of owners.

use pinfold_host::{Host, SnapshotHost};

use crate::Claims;

/// A host with this number of CPUs and these files.
pub fn host(cpus: u32, files: &[(&str, String)]) -> SnapshotHost {
    let mut tree = SnapshotHost::new();
    let last = cpus - 1;
    tree.insert_file("/sys/devices/system/cpu/online", format!("0-{last}\n"));
    files.iter().for_each(|(path, text)| tree.insert_file(path, text.clone()));
    tree
}

/// The claims of other owners than Pinfold.
pub fn claims_of(host: &dyn Host) -> Claims {
    let mut claims = Claims::default();
    claims.read_owners(host);
    claims
}

/// Each claim in a few words.
pub fn found(claims: &Claims) -> Vec<String> {
    let lines = claims.all().iter().map(|claim| {
        let state = if claim.active { "" } else { ", not running" };
        format!("{} {} {}{state}", claim.owner.name, claim.cpus, claim.exclusivity.word())
    });
    lines.collect()
}

/// The status of a thread.
pub fn status(name: &str, pid: u32, cpus: &str) -> String {
    format!("Name:\t{name}\nTgid:\t{pid}\nPPid:\t1\nUid:\t0\t0\t0\t0\nCpus_allowed_list:\t{cpus}\n")
}
