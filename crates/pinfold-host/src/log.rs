//! Entries in the log of the host: systemd's journal, or a file where there is none.

use std::os::unix::net::UnixDatagram;

use crate::files::{self, StateDir};

/// The socket of the journal's native protocol,
/// <https://systemd.io/JOURNAL_NATIVE_PROTOCOL>.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Directory of the files on a host without the journal; users have theirs in their state directory.
const FOLDER: &str = "/var/log/pinfold";
/// Size at which a file begins anew (bytes).
const MOST_BYTES: u64 = 1 << 20;

/// Writes an entry of one line under the name of a program; a file also has `date`, which the
/// journal adds by itself. An entry that cannot be written is lost: what is logged must not fail
/// because of its log.
pub fn write(program: &str, date: &str, message: &str) {
    let line: String =
        message.chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
    let dated = format!("{date} {line}");
    if is_sent(JOURNAL, program, &line) || is_appended(FOLDER, program, &dated) {
        return;
    }
    if let Ok(folder) = files::default_state_dir() {
        is_appended(&folder, program, &dated);
    }
}

fn is_sent(socket_path: &str, program: &str, line: &str) -> bool {
    let entry = format!("PRIORITY=6\nSYSLOG_IDENTIFIER={program}\nMESSAGE={line}\n");
    UnixDatagram::unbound()
        .and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(entry.as_bytes(), socket_path)
        })
        .is_ok()
}

fn is_appended(folder: &str, program: &str, line: &str) -> bool {
    let Ok(folder) = StateDir::open(folder) else { return false };
    let (name, entry) = (format!("{program}.log"), format!("{line}\n"));
    let is_full = files::size(&folder.path_of(&name)).is_some_and(|size| size > MOST_BYTES);
    let written = if is_full {
        folder.replace(&name, entry.as_bytes())
    } else {
        // Another process may have created it.
        let created = folder.create_new(&name, entry.as_bytes());
        created.or_else(|_| folder.append_unsynced(&name, entry.as_bytes()))
    };
    written.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = format!("{}/log", folder.path().display());
        assert!(is_appended(&path, "numad", "first") && is_appended(&path, "numad", "second"));
        let file = format!("{path}/numad.log");
        assert_eq!(files::read_text(&file).unwrap(), "first\nsecond\n");
        let long = "x".repeat(usize::try_from(MOST_BYTES).unwrap() + 1);
        assert!(is_appended(&path, "numad", &long));
        assert!(is_appended(&path, "numad", "new"));
        assert_eq!(files::read_text(&file).unwrap(), "new\n");
    }
    #[test]
    fn the_journal_gets_an_entry_with_the_name_of_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let path = format!("{}/socket", folder.path().display());
        assert!(!is_sent(&path, "numad", "no journal"));
        let journal = UnixDatagram::bind(&path).unwrap();
        assert!(is_sent(&path, "numad", "-w 2:200: node 0"));
        let mut entry = [0; 200];
        let size = journal.recv(&mut entry).unwrap();
        let expected = "PRIORITY=6\nSYSLOG_IDENTIFIER=numad\nMESSAGE=-w 2:200: node 0\n";
        assert_eq!(std::str::from_utf8(&entry[..size]).unwrap(), expected);
    }

    #[test]
    fn a_folder_of_others_is_not_written() {
        assert!(!is_appended("/dev/null/log", "numad", "lost"));
    }
}
