//! The running host: access to it, its state directory, the origin of its numbers.

use std::io::Read as _;
use std::sync::mpsc;

use pinfold_apply::Journals;
use pinfold_host::files::{self, StateDir};
use pinfold_host::{Clock, HostError, LiveHost, Systemd};
use pinfold_model::{Origin, Topology};
use pinfold_vm::libvirt::{Caller, LibvirtBackend};

use crate::{Exit, Failure};

/// Timeout for systemd and libvirt when a setting is made through them (ns).
const MANAGER_TIMEOUT_NS: u64 = 20_000_000_000;

/// The running machine.
pub fn live() -> Result<LiveHost, Failure> {
    live_within(MANAGER_TIMEOUT_NS)
}

/// As [`live`], with another timeout for systemd and libvirt (ns).
pub fn live_within(keeper_ns: u64) -> Result<LiveHost, Failure> {
    let host = LiveHost::new()?;
    Ok(host
        .with_setting_backend(Systemd::new(keeper_ns))
        .with_setting_backend(LibvirtBackend::new(keeper_ns)))
}

/// As [`live`], for a hook of libvirt, which never calls libvirt.
pub(crate) fn live_in_hook(caller: Caller) -> Result<LiveHost, Failure> {
    let libvirt = LibvirtBackend::new(MANAGER_TIMEOUT_NS).called_by(caller);
    let host = LiveHost::new()?.with_setting_backend(Systemd::new(MANAGER_TIMEOUT_NS));
    Ok(host.with_setting_backend(libvirt))
}

/// True for a process that a signal or a debugger has stopped.
pub fn is_stopped(pid: pinfold_model::Tid) -> bool {
    let stat = live().map(|host| pinfold_host::proc_stat::read(&host, pid));
    matches!(stat, Ok(Ok(Some(stat))) if matches!(stat.state, 'T' | 't'))
}

/// The directory of the journals and locks.
pub fn state(path: Option<&str>) -> Result<StateDir, Failure> {
    StateDir::open(&state_path(path)?).map_err(refuse_state)
}

/// The same for a command that only reads: `None` if it does not exist. It is not created.
pub fn existing_state(path: Option<&str>) -> Result<Option<StateDir>, Failure> {
    StateDir::open_existing(&state_path(path)?).map_err(refuse_state)
}

/// The failure of a state directory that cannot be used, always with a hint.
fn refuse_state(error: HostError) -> Failure {
    const OTHER: &str = "or name another directory with --state-dir";
    let untrusted = matches!(error, HostError::Untrusted { .. }).then(|| error.hint()).flatten();
    let failure = Failure::from(error);
    let hint = untrusted.or_else(|| failure.hint.clone());
    match hint {
        Some(hint) if hint.contains("--state-dir") => failure.with_hint(hint),
        Some(hint) => failure.with_hint(format!("{hint}; {OTHER}")),
        None => failure.with_hint("check the path, or name another directory with --state-dir"),
    }
}

/// The path of the state directory, which may not exist.
///
/// # Errors
/// [`Failure`] if the given path is empty, or none is given and the usual one is not known.
pub fn state_path(path: Option<&str>) -> Result<String, Failure> {
    Ok(match path {
        Some("") => {
            let what = "--state-dir or PINFOLD_STATE_DIR is empty";
            return Err(Failure::new(Exit::Input, what)
                .with_hint("name a directory, or `unset PINFOLD_STATE_DIR` to use the default"));
        }
        // The path is recorded for other processes, which have other working directories.
        Some(path) => std::path::absolute(path)
            .map_or_else(|_| path.to_owned(), |path| path.to_string_lossy().into_owned()),
        None => files::default_state_dir()?,
    })
}

/// Opens the journals of a state directory.
pub fn journals<'c>(state: &StateDir, clock: &'c dyn Clock) -> Result<Journals<'c>, Failure> {
    Ok(Journals::open(state, clock)?.with_marks())
}

/// The journals of a state directory that may not exist, for a command that only reads.
pub fn existing_journals<'c>(
    state: Option<&StateDir>,
    clock: &'c dyn Clock,
) -> Result<Option<Journals<'c>>, Failure> {
    let Some(state) = state else { return Ok(None) };
    Ok(Journals::open_existing(state, clock)?.map(Journals::with_marks))
}

/// Bytes on standard input, each a heartbeat of the parent; the channel closes at the end of the
/// input.
pub fn receive_heartbeats() -> mpsc::Receiver<u8> {
    let (received, beats) = mpsc::channel();
    std::thread::spawn(move || {
        let mut byte = [0];
        while let Ok(1) = std::io::stdin().read(&mut byte) {
            if received.send(byte[0]).is_err() {
                return;
            }
        }
    });
    beats
}

/// The origin of numbers of this host, without a guest.
pub fn origin(host: &LiveHost, topology: &Topology, seed: u64) -> Result<Origin, Failure> {
    Ok(pinfold_topology::origin(host, topology, seed)?)
}
