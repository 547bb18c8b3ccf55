//! The one error of the door: what was done, to what, and the kernel's answer.

use std::io;

/// A host operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file operation failed.
    #[error("cannot {operation} {path}{}", value.as_ref().map(|v| format!(" (value {v:?})")).unwrap_or_default())]
    File {
        /// `read`, `write`, `list`, …
        operation: &'static str,
        /// The path.
        path: String,
        /// What was written, if anything.
        value: Option<String>,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A system call on a thread failed.
    #[error("{call} failed for thread {tid}")]
    Thread {
        /// Name of the call.
        call: &'static str,
        /// The thread.
        tid: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A child process could not be started or failed.
    #[error("cannot run {program}")]
    Process {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A user file or directory cannot be trusted.
    #[error("{path}: {why}")]
    Untrusted {
        /// The path.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The content of a kernel file is not what this kernel version should give.
    #[error("{path}: {why}")]
    Unexpected {
        /// The path.
        path: String,
        /// What was wrong with the content.
        why: String,
    },
}

impl HostError {
    /// A file operation that the kernel refused.
    pub(crate) fn file(operation: &'static str, path: &str, source: impl Into<io::Error>) -> Self {
        HostError::File { operation, path: path.to_owned(), value: None, source: source.into() }
    }

    /// The same error, with the value that was being written.
    #[must_use]
    pub(crate) fn with_value(mut self, written: &[u8]) -> Self {
        if let HostError::File { value, .. } = &mut self {
            *value = Some(String::from_utf8_lossy(written).trim_end().to_owned());
        }
        self
    }

    /// The same error, told of the path that was asked for instead of its parent.
    #[must_use]
    pub(crate) fn with_path(mut self, asked: &str) -> Self {
        if let HostError::File { path, .. } = &mut self {
            asked.clone_into(path);
        }
        self
    }

    /// The kernel's error number, if it gave one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            HostError::File { source, .. }
            | HostError::Thread { source, .. }
            | HostError::Process { source, .. } => source.raw_os_error(),
            HostError::Untrusted { .. } | HostError::Unexpected { .. } => None,
        }
    }

    /// True if the file, thread or group is not (or no longer) there.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::ESRCH | libc::ENODEV))
    }
}
