//! Reads open files.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// Reads to the end, regardless of the reported size.
pub(crate) fn read_to_end(descriptor: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::with_capacity(4096);
    read_into(descriptor, &mut bytes)?;
    Ok(bytes)
}

/// Reads to the end into a buffer and replaces its content.
pub(crate) fn read_into(descriptor: &OwnedFd, bytes: &mut Vec<u8>) -> Result<(), Errno> {
    bytes.resize(bytes.capacity().max(4096), 0);
    let mut used = 0;
    loop {
        if bytes.len() - used < 1024 {
            bytes.resize(bytes.len() * 2, 0);
        }
        match rustix::io::read(descriptor, &mut bytes[used..]) {
            Ok(0) => {
                bytes.truncate(used);
                return Ok(());
            }
            Ok(count) => used += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
