//! The error type of this crate: the operation, its object, and the kernel's error.

use std::io;

use pinfold_model::{Setting, escape};

/// An error followed by its causes; a cause with which the text already ends is not repeated.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = next.source();
    }
    text
}

/// A host operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file operation failed.
    #[error("cannot {operation} {}{}", escape::name(path), value.as_ref().map(|v| format!(" (value {v:?})")).unwrap_or_default())]
    File {
        /// The operation: `read`, `write`, `list`, …
        operation: &'static str,
        /// The path.
        path: String,
        /// What was written, if anything.
        value: Option<String>,
        /// The kernel's error.
        source: io::Error,
    },
    /// A system call on a thread or process failed.
    #[error("{call} failed for thread {tid}")]
    Thread {
        /// Name of the system call.
        call: &'static str,
        /// The thread.
        tid: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// A child process could not be started or failed.
    #[error("{}", process_text(program, source))]
    Process {
        /// The program.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// A user file or directory is not safe to trust.
    #[error("{path}: {why}")]
    Untrusted {
        /// The path.
        path: String,
        /// The reason.
        why: String,
    },
    /// A kernel file has content that this kernel version should not produce.
    #[error("{path}: {why}")]
    Unexpected {
        /// The path.
        path: String,
        /// What is wrong with the content.
        why: String,
    },
    /// A user's text is not encoded in UTF-8.
    #[error("{path}: {why}")]
    Encoding {
        /// The path.
        path: String,
        /// The bytes that are not UTF-8, and their position.
        why: String,
        /// The probable encoding, in iconv's spelling.
        likely: &'static str,
    },
    /// Something exists, or may exist, but is not visible to this process: its file system is not
    /// mounted or is covered by another one, or `/proc` does not show all tasks.
    #[error("{path} is not visible here: {why}")]
    Hidden {
        /// The path.
        path: String,
        /// How this was detected.
        why: String,
    },
    /// The program that manages a setting did not report or change it.
    #[error("{setting}: {why}")]
    Kept {
        /// The setting.
        setting: Box<Setting>,
        /// The program's error message.
        why: String,
        /// True if the object does not exist (any more).
        gone: bool,
        /// A hint for the user.
        hint: Option<String>,
    },
}

/// A path quoted for the shell.
fn quote(path: &str) -> String {
    if path.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-+".contains(letter)) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', r"'\''"))
    }
}

impl HostError {
    /// No interface to the program that manages the setting was provided.
    pub(crate) fn no_setting_backend(setting: &Setting) -> Self {
        HostError::Kept {
            setting: Box::new(setting.clone()),
            why: format!("{} cannot be queried on this host", setting.keeper),
            gone: false,
            hint: None,
        }
    }

    /// A failed file operation.
    pub fn file(operation: &'static str, path: &str, source: impl Into<io::Error>) -> Self {
        HostError::File { operation, path: path.to_owned(), value: None, source: source.into() }
    }

    /// Adds the value that was written.
    #[must_use]
    pub fn with_value(mut self, written: &[u8]) -> Self {
        if let HostError::File { value, .. } = &mut self {
            *value = Some(String::from_utf8_lossy(written).trim_end().to_owned());
        }
        self
    }

    /// Replaces the path, where the operation used the parent directory.
    #[must_use]
    pub(crate) fn with_path(mut self, asked: &str) -> Self {
        if let HostError::File { path, .. } = &mut self {
            asked.clone_into(path);
        }
        self
    }

    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        let errno = self.errno();
        let hint = match self {
            HostError::Untrusted { path, .. } => {
                return Some(format!(
                    "check it, then remove it, or make it writable only by you: chown and chmod \
                     go-w {path}"
                ));
            }
            HostError::Kept { hint, .. } => return hint.clone(),
            HostError::Encoding { path, likely, .. } => {
                let path = quote(path);
                return Some(format!("convert it: `iconv -f {likely} -t UTF-8 {path} > NEW`"));
            }
            HostError::Hidden { .. } => {
                "run it where /proc, /sys and the cgroups of the host are mounted, outside containers"
            }
            HostError::Unexpected { .. } => "report it with the output of `uname -r` and the file",
            HostError::Process { program, .. } if errno == Some(libc::ENOENT) => {
                return Some(format!("install {program}, or give its full path"));
            }
            HostError::Process { .. } if errno == Some(libc::ETIMEDOUT) => {
                "it took too long and was terminated: run it by hand to see what it waits for"
            }
            HostError::Thread { .. } if matches!(errno, Some(libc::EPERM | libc::EACCES)) => {
                "run it as root, or with the capability CAP_SYS_NICE"
            }
            HostError::File { operation: "open", .. } if errno == Some(libc::ENOSYS) => {
                "Linux 5.6 or newer is needed (openat2)"
            }
            HostError::File { path, .. } if path.contains("/cgroup/") => cgroup_hint(errno)?,
            HostError::File { .. } => file_hint(errno)?,
            HostError::Process { .. } | HostError::Thread { .. } => return None,
        };
        Some(hint.to_owned())
    }

    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            HostError::File { source, .. }
            | HostError::Thread { source, .. }
            | HostError::Process { source, .. } => source.raw_os_error(),
            HostError::Untrusted { .. }
            | HostError::Unexpected { .. }
            | HostError::Encoding { .. }
            | HostError::Hidden { .. }
            | HostError::Kept { .. } => None,
        }
    }

    /// True if this process lacks the permission.
    pub fn is_permission(&self) -> bool {
        matches!(self.errno(), Some(libc::EACCES | libc::EPERM))
    }

    /// True if the file, thread or group does not exist (any more).
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            HostError::Kept { gone, .. } => *gone,
            HostError::File { .. }
            | HostError::Thread { .. }
            | HostError::Process { .. }
            | HostError::Untrusted { .. }
            | HostError::Hidden { .. }
            | HostError::Encoding { .. }
            | HostError::Unexpected { .. } => {
                matches!(self.errno(), Some(libc::ENOENT | libc::ESRCH | libc::ENODEV))
            }
        }
    }
}

fn cgroup_hint(errno: Option<i32>) -> Option<&'static str> {
    match errno {
        Some(libc::EPERM | libc::EROFS) => Some("run it as root, outside a container"),
        Some(libc::EACCES) => {
            Some("run it as root; in cgroup v1 the group's CPUs must lie inside its parent's")
        }
        Some(libc::ENOSPC) => Some(
            "a group needs CPUs and memory nodes as long as it has tasks: before Linux 7.0 they \
             cannot be removed even if it would inherit those of its parent",
        ),
        Some(libc::EBUSY) => {
            Some("the group still contains tasks or groups, or delegates its controllers")
        }
        _ => None,
    }
}

fn file_hint(errno: Option<i32>) -> Option<&'static str> {
    match errno {
        Some(libc::EACCES | libc::EPERM) => Some("run it as root, or as the owner of the file"),
        Some(libc::ENOSPC | libc::EDQUOT) => Some("free some space on that disk and run it again"),
        Some(libc::EROFS) => Some("that file system is read-only: choose another path"),
        _ => None,
    }
}

/// A program that runs too long did start.
fn process_text(program: &str, source: &io::Error) -> String {
    if source.raw_os_error() == Some(libc::ETIMEDOUT) {
        format!("{program} did not end in time")
    } else {
        format!("cannot run {program}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_imitate_a_line() {
        let source = io::Error::from_raw_os_error(libc::ENOENT);
        let error = HostError::file("read", "/run/a\nwarning: b", source);
        assert_eq!(error.to_string(), "cannot read /run/a\\u000awarning: b");
    }

    #[test]
    fn hints_say_what_to_do() {
        let os = io::Error::from_raw_os_error;
        let process = |errno| HostError::Process { program: "qemu".to_owned(), source: os(errno) };
        let file = |path, errno| HostError::file("write", path, os(errno));
        check(process(libc::ENOENT), "install qemu");
        check(process(libc::ETIMEDOUT), "too long");
        check(file("/home/x/report.html", libc::ENOSPC), "disk");
        check(file("/sys/fs/cgroup/a/tasks", libc::ENOSPC), "memory nodes");
        check(file("/sys/fs/cgroup/a/cpuset.cpus", libc::EACCES), "parent");
        check(HostError::file("open", "/", os(libc::ENOSYS)), "5.6");
        let thread = |errno| HostError::Thread { call: "sched_setattr", tid: 1, source: os(errno) };
        check(thread(libc::EPERM), "CAP_SYS_NICE");
        let path = "/var/lib/pinfold".to_owned();
        check(HostError::Untrusted { path, why: "is a link".to_owned() }, "chown");
        assert_eq!(thread(libc::ESRCH).hint(), None);
        assert_eq!(file("/proc/1/x", libc::ENOENT).hint(), None);
    }

    fn check(error: HostError, part: &str) {
        assert!(error.hint().is_some_and(|hint| hint.contains(part)), "{error}");
    }
}
