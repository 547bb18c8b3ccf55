//! Existing processes and groups that become vnodes: `group:/system.slice/web.service`, `pid:1234`.

use pinfold_model::{Attach, AttachKind, PlatformVnode};

use crate::fault::Fault;

/// Maximum PID (`PID_MAX_LIMIT`, `proc_sys_kernel(5)`).
const HIGHEST_PID: u32 = 1 << 22;
const HINT: &str = "write group:/system.slice/web.service, or pid:1234, or a name as \
                    container:web, unit:web.service, netns:h1, mininet:h1";

pub(super) fn read(text: &str, at: usize) -> Result<Attach, Fault> {
    if let Some(path) = text.strip_prefix("group:") {
        return match path.strip_prefix('/') {
            None => {
                attach_fault("the path of a group starts with /, at the mount of cgroup", at, text)
            }
            Some("") => attach_fault("the root group contains all tasks of the host", at, text),
            Some(below) if below.split('/').any(|part| matches!(part, "" | "." | "..")) => {
                attach_fault("a part of its path is empty, . or ..", at, text)
            }
            Some(_) if path.chars().any(char::is_control) => {
                attach_fault("it contains a control character", at, text)
            }
            Some(_) => Ok(Attach::Group(path.to_owned())),
        };
    }
    for kind in AttachKind::ALL {
        let name = text.strip_prefix(kind.word()).and_then(|rest| rest.strip_prefix(':'));
        match name {
            None => {}
            Some(name) if is_name(name) => {
                return Ok(Attach::Named { kind, name: name.to_owned() });
            }
            Some(_) => {
                return attach_fault("its name is empty, or contains a slash or a space", at, text);
            }
        }
    }
    match text.strip_prefix("pid:").map(str::parse) {
        Some(Ok(0 | 1)) => attach_fault("that is the whole host", at, text),
        Some(Ok(pid)) if pid < HIGHEST_PID => Ok(Attach::Process(pid)),
        Some(Ok(_)) => attach_fault("no process has such a high ID", at, text),
        Some(Err(_)) => attach_fault("the ID of a process is a number", at, text),
        None => attach_fault("it is neither a group nor a process", at, text),
    }
}

fn attach_fault(why: &str, at: usize, text: &str) -> Result<Attach, Fault> {
    Err(Fault::new(at, format!("attach: {text:?} cannot be a vnode: {why}")).with_hint(HINT))
}

fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && !name.contains(|c: char| c.is_control() || c.is_whitespace() || c == '/')
}

/// The text form in a platform file.
pub(super) fn text(attach: &Attach) -> String {
    match attach {
        Attach::Group(path) => format!("group:{path}"),
        Attach::Process(pid) => format!("pid:{pid}"),
        Attach::Named { kind, name } => format!("{}:{name}", kind.word()),
    }
}

/// True if a task could belong to both vnodes.
pub(super) fn overlap(one: &PlatformVnode, other: &PlatformVnode) -> bool {
    match (&one.attach, &other.attach) {
        (Some(Attach::Group(one)), Some(Attach::Group(other))) => {
            is_inside(one, other) || is_inside(other, one)
        }
        (Some(Attach::Process(one)), Some(Attach::Process(other))) => one == other,
        (Some(one @ Attach::Named { .. }), Some(other)) => one == other,
        (Some(_) | None, Some(_) | None) => false,
    }
}

fn is_inside(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
