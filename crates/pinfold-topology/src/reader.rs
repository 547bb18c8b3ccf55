//! Reads optional files of the host, and records those that cannot be read.

use std::collections::BTreeSet;

use pinfold_host::{Host, HostError, paths};
use pinfold_model::{CpuSet, Finding, NodeId};

/// Reads optional files and records those that failed.
pub(crate) struct Reader<'h> {
    pub host: &'h dyn Host,
    pub findings: Vec<Finding>,
}

impl Reader<'_> {
    /// The trimmed text of a file; `None` if it does not exist, or was recorded as unreadable.
    pub(crate) fn text(&mut self, path: &str) -> Option<String> {
        match self.host.read_text(path) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) => {
                self.record_failure(path, &error);
                None
            }
        }
    }

    /// A file with a CPU list. Old kernels write `(null)` for an empty set.
    pub(crate) fn list(&mut self, path: &str) -> Option<CpuSet> {
        let text = self.text(path)?;
        if text == "(null)" {
            return Some(CpuSet::new());
        }
        match CpuSet::parse_list(&text) {
            Ok(set) => Some(set),
            Err(error) => {
                self.findings.push(Finding::warning(path, error.to_string()));
                None
            }
        }
    }

    pub(crate) fn nodes(&mut self, state: &str) -> Option<BTreeSet<NodeId>> {
        // Every machine has such a node, so an empty file has no meaning.
        let list = self.list(&paths::node_state(state)).filter(|list| !list.is_empty())?;
        Some(list.iter().map(|number| NodeId(number.0)).collect())
    }

    /// Records a failure, unless the file does not exist.
    pub(crate) fn record_failure(&mut self, path: &str, error: &HostError) {
        if !error.is_gone() {
            self.findings.push(Finding::warning(path, describe_error(error)));
        }
    }
}

/// An error with the kernel's error message, for a sentence.
pub(crate) fn describe_error(error: &HostError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// True if `/proc/cpuinfo` lists this flag of the first CPU.
///
/// # Errors
/// It cannot be read.
pub fn cpu_has_flag(host: &dyn Host, flag: &str) -> Result<bool, HostError> {
    let text = host.read_text(&paths::cpuinfo())?;
    let flags = cpuinfo_field(&text, "flags");
    Ok(flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|one| one == flag)))
}

/// The first value of a key in `/proc/cpuinfo`.
pub(crate) fn cpuinfo_field<'t>(cpuinfo: &'t str, key: &str) -> Option<&'t str> {
    cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}
