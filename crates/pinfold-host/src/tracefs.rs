//! tracefs: the tracepoints of the kernel and the offsets of their fields.
//!
//! It is read where it is mounted. If it is not mounted, a detached mount is created, which is
//! invisible to other processes and ends with its descriptor. A format file looks like this, with
//! tabs:
//!
//! ```text
//! name: sched_wakeup
//! ID: 374
//! format:
//!         field:unsigned short common_type;       offset:0;       size:2; signed:0;
//!
//!         field:char comm[16];    offset:8;       size:16;        signed:0;
//!         field:pid_t pid;        offset:24;      size:4; signed:1;
//! ```
//!
//! <https://docs.kernel.org/trace/events.html#event-formats>

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::fd::read_to_end;
use crate::{HostError, paths};

/// tracefs of the running kernel.
#[derive(Debug)]
pub struct Tracefs {
    root: OwnedFd,
    place: String,
}

impl Tracefs {
    /// Opens it, whether mounted or not.
    ///
    /// # Errors
    /// [`HostError::File`]: `EPERM` without `CAP_SYS_ADMIN` if it is not mounted, `ENODEV` if the
    /// kernel does not support it, `EACCES` if it is not readable.
    pub fn open() -> Result<Self, HostError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for place in [paths::tracing_dir(), paths::debug_tracing_dir()] {
            // An unused mount point is a directory too.
            let is_there = rustix::fs::open(format!("{place}/events"), flags, Mode::empty());
            match is_there {
                Ok(_) => {
                    let root = rustix::fs::open(place.as_str(), flags, Mode::empty())
                        .map_err(|errno| HostError::file("open", &place, errno))?;
                    return Ok(Self { root, place });
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(HostError::file("open", &place, errno)),
            }
        }
        let place = paths::tracing_dir();
        let root = mount_detached().map_err(|errno| HostError::file("mount", &place, errno))?;
        Ok(Self { root, place })
    }

    /// The format of an event such as `sched/sched_switch`.
    ///
    /// # Errors
    /// [`HostError::File`]: `ENOENT` if the kernel does not have the event;
    /// [`HostError::Unexpected`] if its format cannot be parsed.
    pub fn format(&self, event: &str) -> Result<Format, HostError> {
        let path = paths::event_format(&self.place, event);
        let file = rustix::fs::openat(
            &self.root,
            paths::event_format(".", event),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let bytes = file
            .and_then(|file| read_to_end(&file))
            .map_err(|errno| HostError::file("read", &path, errno))?;
        let text = String::from_utf8_lossy(&bytes);
        Format::parse(&text).map_err(|why| HostError::Unexpected { path, why })
    }
}

/// Creates a detached mount of tracefs.
fn mount_detached() -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A field in the record of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// The kernel's description of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Name of the event.
    pub name: String,
    /// ID of the event.
    pub id: u64,
    /// The fields of its records, in order.
    pub fields: Vec<Field>,
    /// Print format of a record, which contains names of numeric values.
    pub print: String,
}

impl Format {
    /// Parses the text of a `format` file.
    ///
    /// # Errors
    /// A description of what is missing or not a number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let name = text_after(text, "name:").ok_or("has no name")?;
        let id = text_after(text, "ID:").ok_or("has no ID")?;
        let id = id.parse().map_err(|_| format!("its ID is not a number: {id:?}"))?;
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix("field:"));
        let fields = lines.map(field).collect::<Result<_, _>>()?;
        let print = text_after(text, "print fmt:").unwrap_or_default().to_owned();
        Ok(Self { name: name.to_owned(), id, fields, print })
    }

    /// Offset of the field with this name, which must have this size.
    ///
    /// # Errors
    /// [`HostError::Unexpected`] if the event has no such field on this kernel.
    pub fn offset(&self, name: &str, size: u32) -> Result<u32, HostError> {
        let found = self.fields.iter().find(|field| field.name == name);
        match found {
            None => Err(self.fail(format!("has no field {name}"))),
            Some(field) if field.size != size => {
                Err(self.fail(format!("its field {name} has {} bytes, not {size}", field.size)))
            }
            Some(field) => Ok(field.offset),
        }
    }

    fn fail(&self, why: String) -> HostError {
        HostError::Unexpected { path: format!("the event {}", self.name), why }
    }
}

fn text_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// `char comm[16];` tab `offset:8;` tab `size:16;` tab `signed:0;`
fn field(text: &str) -> Result<Field, String> {
    let mut parts = text.split(';').map(str::trim);
    let declared = parts.next().ok_or_else(|| format!("cannot parse a field: {text:?}"))?;
    let name = declared.split('[').next().unwrap_or(declared).trim_end();
    let name = name
        .rsplit([' ', '*'])
        .next()
        .filter(|name| !name.is_empty())
        .ok_or_else(|| format!("cannot parse a field: {text:?}"))?;
    let (mut offset, mut size) = (None, None);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", number)) => offset = number.parse().ok(),
            Some(("size", number)) => size = number.parse().ok(),
            Some(_) | None => {}
        }
    }
    Ok(Field {
        name: name.to_owned(),
        offset: offset.ok_or_else(|| format!("cannot parse a field: {text:?}"))?,
        size: size.ok_or_else(|| format!("cannot parse a field: {text:?}"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: &str = "name: sched_switch\nID: 372\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
        \tfield:__data_loc char[] comm;\toffset:40;\tsize:4;\tsigned:0;\n\
        \tfield:u32 * uaddr;\toffset:48;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"prev_comm=%s field:no\", REC->prev_comm\n";

    #[test]
    fn fields_of_a_format() {
        let format = Format::parse(SWITCH).unwrap();
        assert_eq!((format.name.as_str(), format.id), ("sched_switch", 372));
        let names: Vec<&str> = format.fields.iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names[..3], ["common_type", "prev_comm", "prev_state"]);
        assert_eq!(names[4], "uaddr");
        assert!(format.print.ends_with("REC->prev_comm"), "{format:?}");
        assert_eq!(format.offset("prev_state", 8).unwrap(), 32);
        assert_eq!(format.offset("uaddr", 8).unwrap(), 48);
        let error = format.offset("prev_state", 4).unwrap_err().to_string();
        assert!(error.contains("has 8 bytes, not 4"), "{error}");
        let error = format.offset("next_pid", 4).unwrap_err().to_string();
        assert_eq!(error, "the event sched_switch: has no field next_pid");
    }

    #[test]
    fn formats_that_are_none() {
        check("", "has no name");
        check("name: x\nID: y\n", "not a number: \"y\"");
        check("name: x\n", "has no ID");
        check("name: x\nID: 1\nformat:\n\tfield:int a;\toffset:;\tsize:4;\n", "int a");
        check("name: x\nID: 1\nformat:\n\tfield:;\toffset:0;\tsize:4;\n", "cannot parse");
    }

    fn check(text: &str, why: &str) {
        assert!(Format::parse(text).unwrap_err().contains(why), "{text:?}");
    }
}
