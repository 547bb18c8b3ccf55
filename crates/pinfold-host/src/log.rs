//! Entries in the log of the host: systemd's journal, or a file where there is none.

use std::os::unix::net::UnixDatagram;

use crate::files::{self, StateDir};

/// The socket of the journal's native protocol,
/// <https://systemd.io/JOURNAL_NATIVE_PROTOCOL>.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Directory of the files on a host without the journal.
const FOLDER: &str = "/var/log/pinfold";
/// Size at which a file begins anew (bytes).
const MOST_BYTES: u64 = 1 << 20;

/// Writes an entry of one line under the name of a program. An entry that cannot be written is
/// lost: what is logged must not fail because of its log.
pub fn write(program: &str, message: &str) {
    let line: String =
        message.chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
    if !is_in_journal(program, &line) {
        append(FOLDER, program, &line);
    }
}

fn is_in_journal(program: &str, line: &str) -> bool {
    let entry = format!("PRIORITY=6\nSYSLOG_IDENTIFIER={program}\nMESSAGE={line}\n");
    UnixDatagram::unbound()
        .and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(entry.as_bytes(), JOURNAL)
        })
        .is_ok()
}

fn append(folder: &str, program: &str, line: &str) {
    let Ok(folder) = StateDir::open(folder) else { return };
    let (name, entry) = (format!("{program}.log"), format!("{line}\n"));
    let is_full = files::size(&folder.path_of(&name)).is_some_and(|size| size > MOST_BYTES);
    let written = if is_full {
        folder.replace(&name, entry.as_bytes())
    } else {
        // Another process may have created it.
        let created = folder.create_new(&name, entry.as_bytes());
        created.or_else(|_| folder.append_unsynced(&name, entry.as_bytes()))
    };
    // There is no other place to report it.
    match written {
        Ok(()) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = format!("{}/log", folder.path().display());
        append(&path, "numad", "first");
        append(&path, "numad", "second");
        let file = format!("{path}/numad.log");
        assert_eq!(files::read_text(&file).unwrap(), "first\nsecond\n");
        let long = "x".repeat(usize::try_from(MOST_BYTES).unwrap() + 1);
        append(&path, "numad", &long);
        append(&path, "numad", "new");
        assert_eq!(files::read_text(&file).unwrap(), "new\n");
    }
}
