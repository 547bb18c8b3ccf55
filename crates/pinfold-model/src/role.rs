//! Roles of threads: the enum, and a table with one row for each kind of role.
//!
//! A new role is a variant of [`Role`], its arm in [`Role::parts`], its row in [`ROLES`], and its
//! detection in the crate that finds the threads of virtual machines. Formats, readers and plans
//! take names and classes from the table.

use std::fmt;

/// The role of a thread in a vnode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Virtual CPU with this index.
    Vcpu(u32),
    /// The hypervisor's main loop, and every thread that has no other role.
    Emulator,
    /// An `-object iothread` with this ID.
    Iothread(String),
    /// A vhost worker, numbered in tid order.
    Vhost(u32),
    /// A thread of the hypervisor's worker pools.
    Worker,
    /// A thread of a process group.
    Task,
}

/// What the threads of a role do. Plans treat all roles of a class alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleClass {
    /// They execute the guest's instructions.
    Vcpu,
    /// They execute the user's own program.
    Task,
    /// The main loop of the hypervisor.
    Main,
    /// They serve devices.
    Device,
    /// Helpers that are created and ended at any time.
    Pool,
}

/// How a role is made from its argument.
#[derive(Clone, Copy, Debug)]
enum Make {
    /// There is one such role.
    Single(fn() -> Role),
    /// By number.
    Number(fn(u32) -> Role),
    /// By ID.
    Id(fn(String) -> Role),
}

/// A kind of roles.
#[derive(Clone, Copy, Debug)]
pub struct RoleKind {
    /// Name in text formats and on the command line: `vcpu`.
    pub name: &'static str,
    /// What its threads do.
    pub class: RoleClass,
    /// Words in a sentence: `vCPU`, `the emulator`.
    pub words: &'static str,
    /// True if the hypervisor reports the thread through its monitor. libvirt pins such a thread by
    /// itself, all others with the emulator.
    pub is_reported: bool,
    /// True if a vCPU that spins may wait for it.
    pub is_awaited: bool,
    /// Place in the order in which threads are placed: threads from which others inherit first.
    pub rank: u8,
    /// What precedes the argument in short forms: `io:`.
    short: &'static str,
    make: Make,
}

/// All kinds, in the order of [`Role`].
pub static ROLES: [&RoleKind; 6] = [&VCPU, &EMULATOR, &IOTHREAD, &VHOST, &WORKER, &TASK];

static VCPU: RoleKind = RoleKind {
    name: "vcpu",
    class: RoleClass::Vcpu,
    words: "vCPU",
    is_reported: true,
    is_awaited: false,
    rank: 2,
    short: "",
    make: Make::Number(Role::Vcpu),
};
static EMULATOR: RoleKind = RoleKind {
    name: "emulator",
    class: RoleClass::Main,
    words: "the emulator",
    is_reported: false,
    is_awaited: true,
    rank: 0,
    short: "emulator",
    make: Make::Single(|| Role::Emulator),
};
static IOTHREAD: RoleKind = RoleKind {
    name: "iothread",
    class: RoleClass::Device,
    words: "iothread",
    is_reported: true,
    is_awaited: true,
    rank: 1,
    short: "io:",
    make: Make::Id(Role::Iothread),
};
static VHOST: RoleKind = RoleKind {
    name: "vhost",
    class: RoleClass::Device,
    words: "vhost worker",
    is_reported: false,
    is_awaited: false,
    rank: 3,
    short: "vhost:",
    make: Make::Number(Role::Vhost),
};
static WORKER: RoleKind = RoleKind {
    name: "worker",
    class: RoleClass::Pool,
    words: "the worker threads",
    is_reported: false,
    is_awaited: false,
    rank: 3,
    short: "worker",
    make: Make::Single(|| Role::Worker),
};
static TASK: RoleKind = RoleKind {
    name: "task",
    class: RoleClass::Task,
    words: "the tasks",
    is_reported: false,
    is_awaited: false,
    rank: 3,
    short: "task",
    make: Make::Single(|| Role::Task),
};

impl RoleKind {
    /// The kind with this name, or of the role with this text: `vcpu`, `vcpu(1)`.
    pub fn of_text(text: &str) -> Option<&'static RoleKind> {
        let name = text.split_once('(').map_or(text, |(name, _)| name);
        ROLES.into_iter().find(|kind| kind.name == name)
    }

    /// How its roles are written: `vcpu(N)`, `iothread(ID)`, `emulator`.
    #[must_use]
    pub fn syntax(&self) -> String {
        let argument = match self.make {
            Make::Single(_) => "",
            Make::Number(_) => "(N)",
            Make::Id(_) => "(ID)",
        };
        format!("{}{argument}", self.name)
    }

    /// True if its roles are numbered.
    pub fn is_numbered(&self) -> bool {
        matches!(self.make, Make::Number(_))
    }

    /// True if its roles have IDs.
    #[must_use]
    pub fn has_ids(&self) -> bool {
        matches!(self.make, Make::Id(_))
    }

    /// True for vCPUs and tasks: the threads that do the user's work.
    pub fn runs_work(&self) -> bool {
        matches!(self.class, RoleClass::Vcpu | RoleClass::Task)
    }
}

/// What distinguishes roles of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleArgument<'r> {
    /// Nothing: there is one such role.
    None,
    /// A number.
    Number(u32),
    /// An ID.
    Id(&'r str),
}

impl Role {
    /// Its kind and its argument.
    pub fn parts(&self) -> (&'static RoleKind, RoleArgument<'_>) {
        match self {
            Role::Vcpu(index) => (&VCPU, RoleArgument::Number(*index)),
            Role::Emulator => (&EMULATOR, RoleArgument::None),
            Role::Iothread(id) => (&IOTHREAD, RoleArgument::Id(id)),
            Role::Vhost(number) => (&VHOST, RoleArgument::Number(*number)),
            Role::Worker => (&WORKER, RoleArgument::None),
            Role::Task => (&TASK, RoleArgument::None),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> &'static RoleKind {
        self.parts().0
    }

    /// The role of this kind with this argument; `None` if there is no such role.
    #[must_use]
    pub fn from_name(name: &str, argument: Option<&str>) -> Option<Self> {
        let kind = ROLES.into_iter().find(|kind| kind.name == name)?;
        match (kind.make, argument) {
            (Make::Single(make), None) => Some(make()),
            // A larger number is not one of a vCPU, and fits into no set.
            (Make::Number(make), Some(number)) => {
                number.parse().ok().filter(|number| *number < crate::MAX_PUS).map(make)
            }
            (Make::Id(make), Some(id)) => Some(make(id.to_owned())),
            (Make::Single(_), Some(_)) | (Make::Number(_) | Make::Id(_), None) => None,
        }
    }

    /// Parses the `Display` form: `vcpu(1)`, `emulator`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once('(') {
            Some((name, rest)) => Self::from_name(name, Some(rest.strip_suffix(')')?)),
            None => Self::from_name(text, None),
        }
    }

    /// True for the role's name (`vcpu(1)`) and for the name of its kind (`vcpu`).
    pub fn is_called(&self, name: &str) -> bool {
        let (kind, argument) = self.parts();
        argument != RoleArgument::None && kind.name == name || self.to_string() == name
    }

    /// Index of a vCPU.
    #[must_use]
    pub fn vcpu(&self) -> Option<u32> {
        if let Role::Vcpu(index) = self { Some(*index) } else { None }
    }

    /// ID of an iothread.
    pub fn iothread(&self) -> Option<&str> {
        if let Role::Iothread(id) = self { Some(id) } else { None }
    }

    /// True for a vCPU.
    pub fn is_vcpu(&self) -> bool {
        self.kind().class == RoleClass::Vcpu
    }

    /// True for a thread that serves devices.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.kind().class == RoleClass::Device
    }

    /// True for vCPUs and tasks: the threads that do the user's work.
    pub fn runs_work(&self) -> bool {
        self.kind().runs_work()
    }

    /// True for a role that belongs to one thread only.
    #[must_use]
    pub fn is_of_one_thread(&self) -> bool {
        self.parts().1 != RoleArgument::None
    }

    /// Short form for tables: `0`, `emulator`, `io:disk`.
    pub fn short(&self) -> String {
        let (kind, argument) = self.parts();
        format!("{}{argument}", kind.short)
    }

    /// Words for sentences: `vCPU 0`, `the emulator`, `iothread disk`.
    pub fn describe(&self) -> String {
        match self.parts() {
            (kind, RoleArgument::None) => kind.words.to_owned(),
            (kind, argument) => format!("{} {argument}", kind.words),
        }
    }
}

impl fmt::Display for RoleArgument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RoleArgument::None => Ok(()),
            RoleArgument::Number(number) => number.fmt(f),
            RoleArgument::Id(id) => f.write_str(id),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (kind, RoleArgument::None) => f.write_str(kind.name),
            (kind, argument) => write!(f, "{}({argument})", kind.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_texts() {
        check(Role::Vcpu(3), "vcpu(3)", "3", "vCPU 3");
        check(Role::Emulator, "emulator", "emulator", "the emulator");
        check(Role::Iothread("a(b)".to_owned()), "iothread(a(b))", "io:a(b)", "iothread a(b)");
        check(Role::Vhost(0), "vhost(0)", "vhost:0", "vhost worker 0");
        check(Role::Worker, "worker", "worker", "the worker threads");
        check(Role::Task, "task", "task", "the tasks");
    }

    #[test]
    fn every_role_has_a_row() {
        let each = std::iter::successors(Some(Role::Vcpu(0)), |role| match role {
            Role::Vcpu(_) => Some(Role::Emulator),
            Role::Emulator => Some(Role::Iothread("a".to_owned())),
            Role::Iothread(_) => Some(Role::Vhost(0)),
            Role::Vhost(_) => Some(Role::Worker),
            Role::Worker => Some(Role::Task),
            Role::Task => None,
        });
        let names: Vec<_> = each.map(|role| role.kind().name).collect();
        assert_eq!(names, ROLES.map(|kind| kind.name));
    }

    fn check(role: Role, text: &str, short: &str, words: &str) {
        assert_eq!((role.to_string().as_str(), role.short().as_str()), (text, short));
        assert_eq!(role.describe(), words);
        assert_eq!(Role::parse(text), Some(role.clone()));
        assert!(role.is_called(text) && role.is_called(role.kind().name), "{text}");
        assert_eq!(RoleKind::of_text(text).map(|kind| kind.name), Some(role.kind().name));
    }

    #[test]
    fn other_texts_are_no_roles() {
        for text in ["", "vcpu", "vcpu()", "vcpu(x)", "vcpu(1", "emulator(1)", "iothread", "cpu(1)"]
        {
            assert_eq!(Role::parse(text), None, "{text}");
        }
        assert!(!Role::Vcpu(1).is_called("vcpu(2)") && !Role::Vcpu(1).is_called("vhost"));
    }
}
