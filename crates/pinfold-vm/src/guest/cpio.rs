//! Writes an initramfs: a `newc` cpio archive, as the kernel unpacks it.
//!
//! Format: `Documentation/driver-api/early-userspace/buffer-format.rst`. Each member is
//! a header of 110 ASCII characters (`070701` and thirteen 8-digit hex numbers), the name
//! with its NUL, and the content, both padded to four bytes; `TRAILER!!!` ends it.

/// An archive under construction.
#[derive(Debug, Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    members: u32,
}

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;

impl Cpio {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory; parents come first.
    pub fn directory(&mut self, name: &str) {
        self.member(name, DIRECTORY, &[]);
    }

    /// Adds a plain file.
    pub fn file(&mut self, name: &str, content: &[u8]) {
        self.member(name, FILE, content);
    }

    /// Adds an executable file.
    pub fn program(&mut self, name: &str, content: &[u8]) {
        self.member(name, PROGRAM, content);
    }

    /// Ends the archive and returns its bytes.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.member("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn member(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.members += 1;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let size = content.len();
        let name_size = name.len() + 1;
        // inode, mode, uid, gid, links, mtime, size, device (2), rdevice (2), name size, check
        let header = format!(
            "070701{:08x}{mode:08x}{:08x}{:08x}{links:08x}{:08x}{size:08x}{:08x}{:08x}{:08x}{:08x}{name_size:08x}{:08x}",
            self.members, 0, 0, 0, 0, 0, 0, 0, 0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Cpio;

    #[test]
    fn members_are_aligned_and_closed() {
        let mut archive = Cpio::new();
        archive.directory("dev");
        archive.program("init", b"abcde");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(text.matches("070701").count(), 3);
        assert!(text.contains("init\0"));
        assert!(text.contains("TRAILER!!!\0"));
        // header 110 + "dev\0" = 114, padded to 116: the second header starts there
        assert_eq!(&bytes[116..122], b"070701");
    }
}
