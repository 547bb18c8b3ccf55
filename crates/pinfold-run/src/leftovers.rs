//! Files and sockets left by killed processes, and marks of placements whose journal is missing or
//! has ended: `status` lists them, `undo` removes them.

use std::io::ErrorKind;

use pinfold_host::files::{self, StateDir, TemporaryKind};
use pinfold_host::{Clock as _, ControlSocket, LiveHost, SystemClock};

use pinfold_model::escape;

use crate::message::say;
use crate::{Failure, booting, emulate, gate, jobs};

/// A supervisor refuses connections between the two calls that open its socket (`bind` and
/// `listen`).
const PAUSE_NS: u64 = 50_000_000;

/// The paths of all leftovers.
///
/// Without a state directory only those outside of it.
pub fn find(host: &LiveHost, state: Option<&StateDir>) -> Result<Vec<String>, Failure> {
    let mut found = in_state(host, state)?;
    found.extend(pinfold_apply::stale_marks(host)?);
    Ok(found)
}

fn in_state(host: &LiveHost, state: Option<&StateDir>) -> Result<Vec<String>, Failure> {
    match state {
        Some(state) => files(host, state),
        None => Ok(files::orphans(host)?),
    }
}

/// The paths of temporary files and folders, and of sockets, whose process has ended.
fn files(host: &LiveHost, state: &StateDir) -> Result<Vec<String>, Failure> {
    let mut found = files::orphans(host)?;
    let programs = TemporaryKind::Program.orphans(host, &state.path_of("bin"));
    found.extend(programs?);
    for folder in [state.path(), &state.path_of(pinfold_apply::JOURNALS)] {
        found.extend(files::temporaries(host, folder)?);
    }
    let names = state.list()?;
    found.extend(
        names
            .iter()
            .filter(|name| jobs::is_left(host, name) || booting::is_left(host, name))
            .map(|name| state.path_of(name)),
    );
    let gates = names.into_iter().filter(|name| gate::is_socket(name));
    let sockets = gates.map(|name| state.path_of(&name)).chain([emulate::ipc::socket(state)]);
    let mut dead: Vec<String> = sockets.filter(|socket| is_dead(socket)).collect();
    if !dead.is_empty() {
        SystemClock.sleep_ns(PAUSE_NS);
        dead.retain(|socket| is_dead(socket));
    }
    found.extend(dead);
    Ok(found)
}

/// Removes and lists them.
pub fn remove(host: &LiveHost, state: Option<&StateDir>) -> Result<(), Failure> {
    let removed = |path: &String| {
        say(&format!("removed {}, left behind by a process that has exited", escape::name(path)));
    };
    // While holding their locks: another Pinfold process may be placing the same process.
    let marks = pinfold_apply::remove_void_marks(host)?;
    marks.iter().for_each(removed);
    for path in &in_state(host, state)? {
        files::remove_orphan(path)?;
        removed(path);
    }
    Ok(())
}

/// True for a socket without a listening process.
fn is_dead(socket: &str) -> bool {
    match ControlSocket::connect(socket) {
        Ok(_) => false,
        Err(error) => error
            .errno()
            .map(std::io::Error::from_raw_os_error)
            .is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused),
    }
}
