//! Processes that serve the devices of one machine from outside: virtiofsd, swtpm, passt and other
//! vhost-user back ends.
//!
//! Such a process holds a socket whose path is on the machine's command line: an accepted
//! connection keeps the path of its listener
//! (<https://docs.kernel.org/filesystems/proc.html>, `/proc/net/unix`). Only programs are searched
//! that serve one machine each: a switch or a storage server of many machines (OVS, SPDK) is not
//! moved for one of them.

use std::collections::BTreeSet;

use pinfold_host::{Host, paths};
use pinfold_model::{Role, Tid};

use super::VmThread;
use super::process::{numbers, numbers_in, tasks};
use crate::VmError;

/// Programs that serve one machine each, by the begin of the name that the kernel shows (15 bytes).
const PROGRAMS: [&str; 8] = [
    "virtiofsd",
    "swtpm",
    "passt",
    "vhost-device-",
    "vhost-user-gpu",
    "vhost-user-inp",
    "vhost-user-blk",
    "vhost-user-scs",
];

/// What a command line contains if the machine may have a back end: vhost-user devices, an emulated
/// TPM, a network stream. Without it no other process is looked at.
const SIGNS: [&str; 5] = ["vhost-user", "emulator,", "\"emulator\"", "stream", "--fs"];

/// The threads of the back ends of a machine with this command line.
pub(super) fn back_ends(
    host: &dyn Host,
    pid: Tid,
    command_line: &[String],
) -> Result<Vec<VmThread>, VmError> {
    let mut found = Vec::new();
    if !command_line.iter().any(|word| SIGNS.iter().any(|sign| word.contains(sign))) {
        return Ok(found);
    }
    // Without the file, no process can be assigned to the machine.
    let Ok(sockets) = host.read_text(&paths::net_unix()) else { return Ok(found) };
    let inodes = inodes_of(&sockets, command_line);
    if inodes.is_empty() {
        return Ok(found);
    }
    for process in numbers_in(host, &paths::proc_dir())? {
        if process == pid
            || !is_candidate(host, process)
            || !has_open_socket(host, process, &inodes)
        {
            continue;
        }
        // A process that ends meanwhile is none.
        let Ok(threads) = numbers(host, process).and_then(|tids| tasks(host, process, &tids))
        else {
            continue;
        };
        found.extend(threads.into_iter().map(|task| task.with_role(pid, Role::Worker)));
    }
    Ok(found)
}

fn is_candidate(host: &dyn Host, process: Tid) -> bool {
    let name = host.read_text(&paths::process_comm(process));
    name.is_ok_and(|name| PROGRAMS.iter().any(|program| name.starts_with(program)))
}

/// True if a descriptor of the process is one of these sockets. A process whose descriptors are not
/// readable cannot be placed either.
fn has_open_socket(host: &dyn Host, process: Tid, inodes: &BTreeSet<&str>) -> bool {
    let names = host.list(&paths::process_file(process, "fd")).unwrap_or_default();
    names.iter().any(|name| {
        let link = host.link(&paths::process_file(process, &format!("fd/{name}")));
        link.is_ok_and(|link| {
            let inode = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            inode.is_some_and(|inode| inodes.contains(inode))
        })
    })
}

/// The sockets in `/proc/net/unix` whose path is on the command line: `Num RefCount Protocol Flags
/// Type St Inode Path`. A path may contain blanks.
fn inodes_of<'t>(sockets: &'t str, command_line: &[String]) -> BTreeSet<&'t str> {
    let mut inodes = BTreeSet::new();
    for line in sockets.lines() {
        let Some((fields, path)) = line.split_once(" /") else { continue };
        let Some(inode) = fields.split_ascii_whitespace().nth(6) else { continue };
        if command_line.iter().any(|word| names_path(word, path)) {
            inodes.insert(inode);
        }
    }
    inodes
}

/// True if a word contains `/` and this rest of a path as a whole value: `path=/run/fs.sock,…`,
/// `"path":"/run/fs.sock"`.
fn names_path(word: &str, rest: &str) -> bool {
    word.match_indices(rest).any(|(at, _)| {
        let before = word.get(..at).and_then(|text| text.strip_suffix('/'));
        let is_begin =
            before.is_some_and(|text| text.is_empty() || text.ends_with(['=', ':', '"']));
        let after = word.get(at + rest.len()..).unwrap_or_default();
        is_begin && (after.is_empty() || after.starts_with([',', '"']))
    })
}

#[cfg(test)]
mod tests {
    use super::{inodes_of, names_path};

    #[test]
    fn a_socket_is_found_by_its_whole_path() {
        let sockets = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 41 /run/a/fs.sock\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 42 /run/fs.sock\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 43\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 44 @/run/fs.sock\n";
        let words = ["socket,id=c,path=/run/fs.sock,reconnect=1".to_owned()];
        assert_eq!(inodes_of(sockets, &words).into_iter().collect::<Vec<_>>(), ["42"]);
        for word in ["path=/run/fs.socket", "path=/x/run/fs.sock", "path=run/fs.sock"] {
            assert!(!names_path(word, "run/fs.sock"), "{word}");
        }
        for word in [r#"{"path":"/run/fs.sock"}"#, "/run/fs.sock", "unix:/run/fs.sock,server=on"] {
            assert!(names_path(word, "run/fs.sock"), "{word}");
        }
    }
}
