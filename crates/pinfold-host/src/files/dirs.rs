//! Pinfold's directories, according to the XDG base directory specification and, for root, the
//! Filesystem Hierarchy Standard.
//!
//! An environment variable that is empty or not an absolute path is ignored, as the XDG
//! specification requires.

use pinfold_model::Tid;

use super::state::{identity, is_dir_of};
use crate::{HostError, files, process};

/// Directory of the state (journal, store): `/var/lib/pinfold` for root, else
/// `$XDG_STATE_HOME/pinfold` or `~/.local/state/pinfold`. [`super::StateDir::open`] creates it.
///
/// # Errors
/// [`HostError::Untrusted`] if neither variable is set.
pub fn default_state_dir() -> Result<String, HostError> {
    choose("/var/lib/pinfold", "XDG_STATE_HOME", ".local/state", &User::current())
}

/// Directory of downloads and other data that can be created again: `/var/cache/pinfold` for root,
/// else `$XDG_CACHE_HOME/pinfold` or `~/.cache/pinfold`. Not created here.
///
/// # Errors
/// [`HostError::Untrusted`] if neither variable is set.
pub fn cache_dir() -> Result<String, HostError> {
    choose("/var/cache/pinfold", "XDG_CACHE_HOME", ".cache", &User::current())
}

/// Directory of sockets: `/run/pinfold` for root, else `$XDG_RUNTIME_DIR/pinfold`, else
/// `/tmp/pinfold-UID`; created with mode 0700 and checked like a [`super::StateDir`].
///
/// # Errors
/// [`HostError`] if it cannot be created or is not safe.
pub fn runtime_dir() -> Result<String, HostError> {
    let path = runtime_path(&User::current());
    files::StateDir::open(&path)?;
    Ok(path)
}

/// True if this is the path of [`runtime_dir`], which need not exist.
pub fn is_runtime_dir(path: &str) -> bool {
    runtime_path(&User::current()) == path
}

/// Directories with marks of a user's active placements, independent of state directory and
/// environment: `/run/pinfold-placed` for root, else
/// `/tmp/pinfold-placed-UID-RANDOM`. Those that do not belong to this user only are left out: every
/// user can make directories in `/tmp`.
///
/// # Errors
/// [`HostError::File`] if `/tmp` cannot be read.
pub fn placed_dirs(uid: u32) -> Result<Vec<String>, HostError> {
    if uid == 0 {
        let own = PLACED.to_owned();
        return Ok(Some(own).filter(|path| is_dir_of(path, uid)).into_iter().collect());
    }
    let prefix = format!("pinfold-placed-{uid}-");
    let names = files::list(SHARED)?.into_iter().filter(|name| name.starts_with(&prefix));
    let paths = names.map(|name| format!("{SHARED}/{name}"));
    Ok(paths.filter(|path| is_dir_of(path, uid)).collect())
}

/// Root's directory of marks as a process sees it, if this is another one than here: a mount
/// namespace may hide `/run`. Without `CAP_SYS_PTRACE` that of another user's process is not
/// visible.
pub fn placed_dir_seen_by(pid: Tid) -> Option<String> {
    let path = format!("{}{PLACED}", crate::paths::process_root(pid));
    (is_dir_of(&path, 0) && identity(&path) != identity(PLACED)).then_some(path)
}

/// Opens the calling user's directory of marks; creates it if there is none. Its name cannot be
/// known before, so that no other user can take it.
///
/// # Errors
/// As [`placed_dirs`] and [`super::StateDir::open_visible`].
pub fn own_placed_dir() -> Result<super::StateDir, HostError> {
    let uid = process::own_uid();
    if uid == 0 {
        return super::StateDir::open_visible(PLACED);
    }
    if let Some(path) = placed_dirs(uid)?.first() {
        return super::StateDir::open_visible(path);
    }
    let random = files::read_text("/proc/sys/kernel/random/uuid")?;
    super::StateDir::open_visible(&format!("{SHARED}/pinfold-placed-{uid}-{}", random.trim()))
}

const PLACED: &str = "/run/pinfold-placed";
const SHARED: &str = "/tmp";

/// The user whose directories are requested.
pub(super) struct User<'e> {
    pub(super) uid: u32,
    pub(super) env: &'e dyn Fn(&str) -> Option<String>,
}

impl User<'_> {
    pub(super) fn current() -> Self {
        Self { uid: process::own_uid(), env: &|key| std::env::var(key).ok() }
    }

    fn directory(&self, key: &str) -> Option<String> {
        (self.env)(key)
            .filter(|path| path.starts_with('/'))
            .map(|path| path.trim_end_matches('/').to_owned())
    }
}

pub(super) fn runtime_path(user: &User<'_>) -> String {
    if user.uid == 0 {
        return "/run/pinfold".to_owned();
    }
    match user.directory("XDG_RUNTIME_DIR") {
        Some(directory) => format!("{directory}/pinfold"),
        None => format!("/tmp/pinfold-{}", user.uid),
    }
}

pub(super) fn choose(
    root: &str,
    key: &str,
    below_home: &str,
    user: &User<'_>,
) -> Result<String, HostError> {
    if user.uid == 0 {
        return Ok(root.to_owned());
    }
    if let Some(directory) = user.directory(key) {
        return Ok(format!("{directory}/pinfold"));
    }
    let home = user.directory("HOME").ok_or_else(|| HostError::Untrusted {
        path: format!("${key}"),
        why: "is not set, and neither is $HOME".to_owned(),
    })?;
    Ok(format!("{home}/{below_home}/pinfold"))
}
