//! Parsers of the kernel's per-task files and of the mount table.
//!
//! Each module is named after the file that it parses. It takes the text; the caller reads the file
//! through [`crate::Host`]. Formats: <https://docs.kernel.org/filesystems/proc.html>, `proc(5)`.

pub mod cpu_groups;
pub mod maps;
pub mod memory_numa_stat;
pub mod mountinfo;
pub mod node_meminfo;
pub mod numa_maps;
pub mod osrelease;
pub mod proc_cgroup;
pub mod proc_stat;
pub mod proc_status;
pub mod schedstat;
pub mod uptime;

/// Error: a `/proc` text is not in the kernel's format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse {what}: {text:?}")]
pub struct ProcError {
    /// The file or field that is wrong.
    pub what: &'static str,
    /// The text, cut to 80 characters.
    pub text: String,
}

impl ProcError {
    fn new(what: &'static str, text: &str) -> Self {
        Self { what, text: text.trim_end().chars().take(80).collect() }
    }

    /// Converts to the error of a read of `path`.
    pub fn at(&self, path: &str) -> crate::HostError {
        crate::HostError::Unexpected { path: path.to_owned(), why: self.to_string() }
    }
}

#[cfg(test)]
mod tests;
