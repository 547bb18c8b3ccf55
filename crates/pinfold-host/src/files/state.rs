//! A directory that no other user can write to, for files that are trusted later.
//!
//! Root executes what the journal contains, so a journal that another user created would be a
//! privilege escalation. The directory is opened once and kept open; names are looked up in it
//! without following links, and every file must belong to this user only.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::user_file::{MAX_BYTES, too_large};
use super::{names_of, open_dir, replace_in, sync_directory, write_all};
use crate::HostError;
use crate::fd::read_at_most;

const FILE_MODE: Mode = Mode::from_raw_mode(0o600);

/// A private directory of this user.
#[derive(Debug)]
pub struct StateDir {
    path: String,
    directory: OwnedFd,
}

fn without_slash(path: &str) -> &str {
    if path == "/" { path } else { path.trim_end_matches('/') }
}

/// A lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

impl StateDir {
    /// Opens the directory; creates it and its parents (0700) if they do not exist.
    ///
    /// # Errors
    /// [`HostError::Untrusted`] if it is a link, belongs to another user or is writable for others;
    /// [`HostError::File`] if it cannot be created or opened, or its path has a control character.
    pub fn open(path: &str) -> Result<Self, HostError> {
        Self::open_as(path, Mode::from_raw_mode(0o700))
    }

    /// The same for a directory in which other users may check whether a name exists (0711).
    ///
    /// # Errors
    /// As [`StateDir::open`].
    pub fn open_visible(path: &str) -> Result<Self, HostError> {
        Self::open_as(path, Mode::from_raw_mode(0o711))
    }

    /// The same for a reader: `None` if the directory does not exist. Nothing is created.
    ///
    /// # Errors
    /// As [`StateDir::open`].
    pub fn open_existing(path: &str) -> Result<Option<Self>, HostError> {
        require_one_line(path)?;
        match Self::open_checked(without_slash(path)) {
            Ok(directory) => Ok(Some(directory)),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open_as(path: &str, mode: Mode) -> Result<Self, HostError> {
        require_one_line(path)?;
        let path = without_slash(path);
        if let Some((parent, _)) = path.rsplit_once('/')
            && !parent.is_empty()
        {
            super::make_dirs_as(parent, mode)?;
        }
        match rustix::fs::mkdir(path, mode) {
            Ok(()) => super::sync_parent(path)
                .map_err(|errno| HostError::file("make directory", path, errno))?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(HostError::file("make directory", path, errno)),
        }
        Self::open_checked(path)
    }

    fn open_checked(path: &str) -> Result<Self, HostError> {
        let directory = open_dir(path, OFlags::NOFOLLOW).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => fail_untrusted(path, "is a link or not a directory"),
            errno => HostError::file("open", path, errno),
        })?;
        let stat =
            rustix::fs::fstat(&directory).map_err(|errno| HostError::file("check", path, errno))?;
        check_ours(path, &stat)?;
        Ok(Self { path: path.to_owned(), directory })
    }

    /// Waits for a lock of the directory itself, which leaves no file. It ends when it is dropped.
    ///
    /// # Errors
    /// [`HostError::File`].
    pub(crate) fn lock_directory(&self) -> Result<Lock, HostError> {
        // A descriptor of its own: the lock ends with it.
        let file = open_dir(&self.path, OFlags::NOFOLLOW)
            .map_err(|errno| HostError::file("lock", &self.path, errno))?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))
            .map_err(|errno| HostError::file("lock", &self.path, errno))?;
        Ok(Lock { _file: file })
    }

    /// Its path as given.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path of a file in it.
    #[must_use]
    pub fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.path.trim_end_matches('/'))
    }

    /// Creates a file (0600) that must not exist yet, and syncs it to disk.
    ///
    /// # Errors
    /// [`HostError::File`]: `EEXIST` if it exists, `ENOSPC` on a full disk (the incomplete file is
    /// removed).
    pub fn create_new(&self, name: &str, content: &[u8]) -> Result<(), HostError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = self.open_file(name, flags, "create")?;
        write_all(&file, content)
            .and_then(|()| rustix::fs::fsync(&file))
            .and_then(|()| sync_directory(&self.directory))
            .map_err(|errno| {
                // A partial file would be taken for a complete one; the write error is reported.
                match self.remove(name) {
                    Ok(()) | Err(_) => self.fault("create", name, errno),
                }
            })
    }

    /// Appends to an existing file, and syncs it to disk before returning.
    ///
    /// # Errors
    /// [`HostError::File`]; the file then has its old length, unless the kernel refuses that too.
    pub fn append(&self, name: &str, content: &[u8]) -> Result<(), HostError> {
        self.append_then(name, content, |file| rustix::fs::fdatasync(file))
    }

    /// Appends to an existing file without syncing; it is written to disk by the kernel's writeback
    /// or by the next [`StateDir::append`].
    ///
    /// # Errors
    /// As [`StateDir::append`].
    pub fn append_unsynced(&self, name: &str, content: &[u8]) -> Result<(), HostError> {
        self.append_then(name, content, |_| Ok(()))
    }

    fn append_then(
        &self,
        name: &str,
        content: &[u8],
        sync: impl Fn(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<(), HostError> {
        let file = self.open_file(name, OFlags::WRONLY | OFlags::APPEND, "append to")?;
        let before = u64::try_from(self.check_file(&file, name)?.st_size).unwrap_or(0);
        write_all(&file, content).and_then(|()| sync(&file)).map_err(|errno| {
            match rustix::fs::ftruncate(&file, before) {
                Ok(()) | Err(_) => self.fail(name, errno),
            }
        })
    }

    fn fail(&self, name: &str, errno: Errno) -> HostError {
        self.fault("append to", name, errno)
    }

    /// Replaces the content of a file atomically.
    ///
    /// # Errors
    /// [`HostError::File`]; the old content is then unchanged.
    pub fn replace(&self, name: &str, content: &[u8]) -> Result<(), HostError> {
        self.replace_with_room(name, content, 0)
    }

    /// The same, and reserves so many bytes for what will be appended, until
    /// [`StateDir::release_room`] or a failed append. A file system that cannot reserve space
    /// reserves none.
    ///
    /// # Errors
    /// As [`StateDir::replace`].
    #[doc(alias = "fallocate")]
    pub fn replace_with_room(
        &self,
        name: &str,
        content: &[u8],
        room: u64,
    ) -> Result<(), HostError> {
        check_name(&self.path_of(name), name)?;
        replace_in(&self.directory, name, content, FILE_MODE, room)
            .map_err(|errno| self.fault("write", name, errno))
    }

    /// Gives space back that [`StateDir::replace_with_room`] reserved.
    ///
    /// # Errors
    /// [`HostError::File`].
    pub fn release_room(&self, name: &str) -> Result<(), HostError> {
        let file = self.open_file(name, OFlags::WRONLY, "write")?;
        let size = u64::try_from(self.check_file(&file, name)?.st_size).unwrap_or(0);
        rustix::fs::ftruncate(&file, size).map_err(|errno| self.fault("write", name, errno))
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// [`HostError::File`]; [`HostError::Untrusted`] if it is a link or belongs to another user;
    /// [`HostError::Unexpected`] if it is larger than any file of Pinfold.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, HostError> {
        self.read_at_most(name, MAX_BYTES)
    }

    /// Reads a whole file of at most so many bytes.
    ///
    /// # Errors
    /// As [`StateDir::read`].
    pub fn read_at_most(&self, name: &str, most: usize) -> Result<Vec<u8>, HostError> {
        let file = self.open_file(name, OFlags::RDONLY, "read")?;
        let size = usize::try_from(self.check_file(&file, name)?.st_size);
        let bytes = match size {
            Ok(size) if size <= most => read_at_most(&file, most),
            Ok(_) | Err(_) => Ok(None),
        };
        let bytes = bytes.map_err(|errno| self.fault("read", name, errno))?;
        bytes.ok_or_else(|| too_large(&self.path_of(name), most))
    }

    /// True if an entry with this name exists.
    pub fn contains(&self, name: &str) -> bool {
        rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// The names of its files, sorted, without temporary ones (`.NAME.PID.tmp`).
    ///
    /// # Errors
    /// [`HostError::File`] if the directory cannot be read.
    pub fn list(&self) -> Result<Vec<String>, HostError> {
        // A new descriptor, because duplicates share the position in a directory.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut names = rustix::fs::openat(&self.directory, ".", flags, Mode::empty())
            .and_then(names_of)
            .map_err(|errno| HostError::file("list", &self.path, errno))?;
        names.retain(|name| super::temporary::writer_of(name).is_none());
        Ok(names)
    }

    /// Time of the last addition, replacement or removal of a name, in nanoseconds since 1970
    /// (wrapping). Use it only to detect changes.
    ///
    /// # Errors
    /// [`HostError::File`] if the directory cannot be read.
    pub fn change_time_ns(&self) -> Result<u64, HostError> {
        let stat = rustix::fs::fstat(&self.directory)
            .map_err(|errno| HostError::file("check", &self.path, errno))?;
        let seconds = u64::try_from(stat.st_mtime).unwrap_or(0).wrapping_mul(1_000_000_000);
        Ok(seconds.wrapping_add(stat.st_mtime_nsec))
    }

    /// Removes a file.
    ///
    /// # Errors
    /// [`HostError::File`] if it does not exist or cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), HostError> {
        check_name(&self.path_of(name), name)?;
        rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())
            .and_then(|()| sync_directory(&self.directory))
            .map_err(|errno| self.fault("remove", name, errno))
    }

    /// Takes the lock with this name; `None` if another process (or value) holds it. The holder may
    /// remove the file. A lock on a removed file would allow two holders of the same name, so the
    /// new file is locked in that case.
    ///
    /// # Errors
    /// [`HostError`] if the file cannot be created or does not belong to this user only.
    pub fn lock(&self, name: &str) -> Result<Option<Lock>, HostError> {
        loop {
            let file = self.open_file(name, OFlags::RDWR | OFlags::CREATE, "lock")?;
            self.check_file(&file, name)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if self.is_the_file_of(name, &file)? => {
                    return Ok(Some(Lock { _file: file }));
                }
                // The previous holder removed the file between the two calls.
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(self.fault("lock", name, errno)),
            }
        }
    }

    /// True if the open file is the one with this name.
    pub(super) fn is_the_file_of(&self, name: &str, file: &OwnedFd) -> Result<bool, HostError> {
        let open = rustix::fs::fstat(file).map_err(|errno| self.fault("check", name, errno))?;
        match rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok((found.st_dev, found.st_ino) == (open.st_dev, open.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.fault("check", name, errno)),
        }
    }

    fn open_file(
        &self,
        name: &str,
        flags: OFlags,
        operation: &'static str,
    ) -> Result<OwnedFd, HostError> {
        check_name(&self.path_of(name), name)?;
        // NONBLOCK: opening a pipe must not block before it is refused.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        rustix::fs::openat(&self.directory, name, flags, FILE_MODE).map_err(|errno| match errno {
            Errno::LOOP => fail_untrusted(&self.path_of(name), "is a link"),
            errno => self.fault(operation, name, errno),
        })
    }

    fn check_file(&self, file: &OwnedFd, name: &str) -> Result<Stat, HostError> {
        let stat = rustix::fs::fstat(file).map_err(|errno| self.fault("check", name, errno))?;
        let path = self.path_of(name);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(fail_untrusted(&path, "is not a regular file"));
        }
        check_ours(&path, &stat)?;
        Ok(stat)
    }

    fn fault(&self, operation: &'static str, name: &str, errno: Errno) -> HostError {
        HostError::file(operation, &self.path_of(name), errno)
    }
}

fn check_name(path: &str, name: &str) -> Result<(), HostError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(fail_untrusted(path, "is not the name of a file in its directory"));
    }
    Ok(())
}

/// Checks that a file belongs to this user only, like the files of a [`StateDir`]. For files
/// outside of one whose content is executed.
///
/// # Errors
/// [`HostError::Untrusted`] if it is a link or not a regular file, belongs to another user or is
/// writable for others; [`HostError::File`].
pub fn require_own(path: &str) -> Result<(), HostError> {
    let stat = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| HostError::file("check", path, errno))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => check_ours(path, &stat),
        FileType::Symlink => Err(fail_untrusted(path, "is a link")),
        FileType::Directory
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Err(fail_untrusted(path, "is not a regular file")),
    }
}

fn check_ours(path: &str, stat: &Stat) -> Result<(), HostError> {
    match why_not_of(stat, crate::process::own_uid()) {
        Some(why) => Err(fail_untrusted(path, &why)),
        None => Ok(()),
    }
}

/// Why something does not belong to this user only.
fn why_not_of(stat: &Stat, uid: u32) -> Option<String> {
    if stat.st_uid != uid {
        return Some(format!("belongs to user {} instead of user {uid}", stat.st_uid));
    }
    let is_open = stat.st_mode & 0o022 != 0;
    is_open.then(|| format!("can be written by others (mode {:o})", stat.st_mode & 0o7777))
}

/// True for a directory that belongs to this user only; false for a link to one, and for one that
/// is not visible here.
pub(super) fn is_dir_of(path: &str, uid: u32) -> bool {
    is_of(path, uid).is_some_and(|stat| kind(&stat) == FileType::Directory)
}

/// True for a regular file with content that belongs to this user only; false for a link to one,
/// and for one that is not visible here.
pub fn is_filled_file_of(path: &str, uid: u32) -> bool {
    is_of(path, uid).is_some_and(|stat| kind(&stat) == FileType::RegularFile && stat.st_size > 0)
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn is_of(path: &str, uid: u32) -> Option<Stat> {
    let stat = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    why_not_of(&stat, uid).is_none().then_some(stat)
}

/// Device and inode of a file; `None` if it is not visible here.
#[must_use]
pub fn identity(path: &str) -> Option<(u64, u64)> {
    let stat = rustix::fs::stat(path).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Refuses a path that the lines of other files could not name.
fn require_one_line(path: &str) -> Result<(), HostError> {
    if path.contains(char::is_control) {
        let why = "the path has a control character; choose another directory";
        return Err(HostError::file(
            "open",
            path,
            io::Error::new(io::ErrorKind::InvalidInput, why),
        ));
    }
    Ok(())
}

fn fail_untrusted(path: &str, why: &str) -> HostError {
    HostError::Untrusted { path: path.to_owned(), why: why.to_owned() }
}
