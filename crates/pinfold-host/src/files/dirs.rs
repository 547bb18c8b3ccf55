//! Pinfold's directories, according to the XDG base directory specification and, for root, the
//! Filesystem Hierarchy Standard.
//!
//! An environment variable that is empty or not an absolute path is ignored, as the XDG
//! specification requires.

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

/// Directory with marks of a user's active placements, independent of state directory and
/// environment: `/run/pinfold-placed` for root, else `/tmp/pinfold-placed-UID`.
#[must_use]
pub fn placed_dir(uid: u32) -> String {
    match uid {
        0 => "/run/pinfold-placed".to_owned(),
        uid => format!("/tmp/pinfold-placed-{uid}"),
    }
}

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
