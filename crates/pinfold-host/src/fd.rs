//! Reads open files.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// Reads to the end, regardless of the reported size.
pub(crate) fn read_to_end(descriptor: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::with_capacity(4096);
    read_into(descriptor, &mut bytes)?;
    Ok(bytes)
}

/// Reads to the end; `None` if that is more than `most` bytes.
pub(crate) fn read_at_most(descriptor: &OwnedFd, most: usize) -> Result<Option<Vec<u8>>, Errno> {
    let mut bytes = Vec::new();
    let mut block = [0; 1 << 14];
    loop {
        let count = rustix::io::retry_on_intr(|| rustix::io::read(descriptor, &mut block))?;
        if count == 0 {
            return Ok(Some(bytes));
        }
        bytes.extend_from_slice(&block[..count]);
        if bytes.len() > most {
            return Ok(None);
        }
    }
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
