//! Pinfold's control sockets, with a check of the peer.
//!
//! A Unix socket lies in a directory that only this user can write to, and the kernel reports the
//! user of each peer (`SO_PEERCRED`, <https://man7.org/linux/man-pages/man7/unix.7.html>). Only the
//! same user and root are accepted, so that a wrong mode of a parent directory does not give
//! access.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use pinfold_model::Tid;
use rustix::fs::{AtFlags, CWD, FileType};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::files::{self, StateDir};
use crate::{HostError, process};

/// A listening Unix socket; its file is removed when this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: String,
}

impl ControlSocket {
    /// Listens at the path, in non-blocking mode. A socket without a listener is replaced; the
    /// directory is created (0700) if it does not exist.
    ///
    /// # Errors
    /// [`HostError::Untrusted`] if the directory is not private to this user, or if the path is a
    /// file or a socket that is in use; [`HostError::File`].
    pub fn at(path: &str) -> Result<Self, HostError> {
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
        let parent = StateDir::open(if parent.is_empty() { "/" } else { parent })?;
        // Two starters at a socket without a listener: the second sees the socket of the first.
        let _lock = parent.lock_directory()?;
        if let Ok(stat) = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
                return Err(fail_untrusted(path, "already exists and is not a socket"));
            }
            if UnixStream::connect(path).is_ok() {
                return Err(fail_untrusted(path, "another process listens there"));
            }
            parent.remove(name)?;
        }
        let listener = UnixListener::bind(path).map_err(|source| fail(path, source))?;
        listener.set_nonblocking(true).map_err(|source| fail(path, source))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Connects to the socket at a path, in non-blocking mode. Returns the stream and the process
    /// that listens there.
    ///
    /// # Errors
    /// [`HostError::File`]: `ENOENT` or `ECONNREFUSED` if no process listens, `EAGAIN` if its queue
    /// of pending connections is full.
    pub fn connect(path: &str) -> Result<(UnixStream, Tid), HostError> {
        let fail = |errno| HostError::file("connect to", path, errno);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(fail)?;
        let address = SocketAddrUnix::new(path).map_err(fail)?;
        rustix::net::connect(&socket, &address).map_err(fail)?;
        let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(fail)?;
        let stream = UnixStream::from(socket);
        stream
            .set_nonblocking(false)
            .map_err(|source| HostError::file("connect to", path, source))?;
        Ok((stream, Tid(peer.pid.as_raw_nonzero().get().unsigned_abs())))
    }

    /// The process at the other end of a connection.
    ///
    /// # Errors
    /// [`HostError::File`] if the kernel does not know it.
    pub fn peer_of(stream: &UnixStream) -> Result<Tid, HostError> {
        let peer = rustix::net::sockopt::socket_peercred(stream)
            .map_err(|errno| HostError::file("read the peer of", "a socket", errno))?;
        Ok(Tid(peer.pid.as_raw_nonzero().get().unsigned_abs()))
    }

    /// Accepts the next connection of a permitted user, without blocking; `None` if there is none.
    pub fn accept(&self) -> Option<UnixStream> {
        let (stream, _) = self.listener.accept().ok()?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        is_permitted(peer.uid.as_raw(), process::own_uid()).then_some(stream)
    }
}

fn fail_untrusted(path: &str, why: &str) -> HostError {
    HostError::Untrusted { path: path.to_owned(), why: why.to_owned() }
}

fn fail(path: &str, source: std::io::Error) -> HostError {
    HostError::File { operation: "listen at", path: path.to_owned(), value: None, source }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Whether a user may connect to a Pinfold process of the user `own`.
fn is_permitted(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A file that remains is replaced by the next process that listens.
        match files::remove(&self.path) {
            Ok(()) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own/metrics.sock").to_string_lossy().into_owned();
        (folder, path)
    }

    #[test]
    fn only_the_same_user_and_root_come_in() {
        check(1000, 1000, true);
        check(0, 1000, true);
        check(1000, 0, false);
        check(1001, 1000, false);
    }

    fn check(peer: u32, own: u32, expected: bool) {
        assert_eq!(is_permitted(peer, own), expected, "{peer} {own}")
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let (_folder, path) = place();
        let socket = ControlSocket::at(&path).unwrap();
        assert!(socket.accept().is_none());
        let busy = ControlSocket::at(&path).unwrap_err().to_string();
        assert!(busy.contains("another process listens"), "{busy}");
        // That attempt has connected too.
        assert!(socket.accept().is_some());
        let guest = UnixStream::connect(&path).unwrap();
        assert!(socket.accept().is_some());
        drop((guest, socket));
        assert!(!files::exists(&path), "its name is gone");
        drop(UnixListener::bind(&path).unwrap());
        assert!(files::exists(&path), "as after a kill");
        drop(ControlSocket::at(&path).unwrap());
    }

    #[test]
    fn files_links_and_open_directories_are_refused() {
        let (folder, path) = place();
        StateDir::open(&folder.path().join("own").to_string_lossy()).unwrap();
        files::write_atomic(&path, b"keep me").unwrap();
        let refused = ControlSocket::at(&path).unwrap_err().to_string();
        assert!(refused.contains("not a socket"), "{refused}");
        assert_eq!(files::read(&path).unwrap(), b"keep me");
        files::remove(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        assert!(ControlSocket::at(&path).is_err());
        let shared = folder.path().join("shared").to_string_lossy().into_owned();
        rustix::fs::mkdir(&shared, rustix::fs::Mode::from_raw_mode(0o777)).unwrap();
        rustix::fs::chmod(&shared, rustix::fs::Mode::from_raw_mode(0o777)).unwrap();
        let refused = ControlSocket::at(&format!("{shared}/x")).unwrap_err().to_string();
        assert!(refused.contains("written by others"), "{refused}");
    }
}
