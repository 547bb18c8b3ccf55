//! One claim: the owner, its CPUs, how exclusively it has them, and where this is recorded.

use std::fmt;

use pinfold_model::{CpuSet, Tid, escape};

/// How exclusively an owner has CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exclusivity {
    /// Threads of others should not run there, not even those that have other CPUs too.
    Exclusive,
    /// One thread of the owner has each of them alone. Threads of others that may also run
    /// elsewhere do not contradict that.
    Dedicated,
    /// Others may use them too.
    Shared,
    /// No owner: the host's configuration keeps other work away from them, so that they are good
    /// for pinned threads.
    Preferred,
}

impl Exclusivity {
    /// Its word in messages and in JSON. A dedicated CPU is an exclusive one.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Exclusivity::Exclusive | Exclusivity::Dedicated => "exclusive",
            Exclusivity::Shared => "shared",
            Exclusivity::Preferred => "preferred",
        }
    }

    /// True if new plans avoid the CPUs.
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        matches!(self, Exclusivity::Exclusive | Exclusivity::Dedicated)
    }
}

/// What an owner of CPUs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnerCategory {
    /// A virtual machine or a process group with a placement.
    Machine,
    /// A program whose threads use the CPUs.
    Program,
    /// A set of CPUs from which a manager gives CPUs to its machines or containers.
    Pool,
    /// CPUs of a cgroup that the kernel gives to no task outside of it.
    Partition,
    /// The configuration of the host, which owns nothing.
    Configuration,
}

/// A kind of owners. Kinds are compared by name.
#[derive(Debug)]
pub struct Kind {
    /// Its name in JSON.
    pub name: &'static str,
    /// What an owner of this kind is called after its name; empty if the name is enough.
    pub noun: &'static str,
    /// What its owners are.
    pub sort: OwnerCategory,
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Kind {}

/// An owner of CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its kind.
    pub kind: &'static Kind,
    /// Its name: a domain, a unit, a program; empty for an emulated platform.
    pub name: String,
    /// Its process, if it is one.
    pub process: Option<Tid>,
    /// The ID of the journal of a placement or an emulated platform.
    pub journal: Option<String>,
    /// The kind of the pool from which its CPUs are taken.
    pub manager: Option<&'static Kind>,
}

impl Owner {
    /// An owner with a name only.
    pub fn new(kind: &'static Kind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into(), process: None, journal: None, manager: None }
    }

    /// The same owner with its process.
    #[must_use]
    pub fn of_process(self, process: Tid) -> Self {
        Self { process: Some(process), ..self }
    }

    /// The same owner with the ID of its journal.
    #[must_use]
    pub fn of_journal(self, id: impl Into<String>) -> Self {
        Self { journal: Some(id.into()), ..self }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = self.kind.noun;
        match (&self.journal, escape::short_name(&self.name).as_ref()) {
            (Some(id), "") => write!(f, "the {noun} {id}"),
            (Some(id), name) => write!(f, "{name} ({noun} {id})"),
            (None, name) if noun.is_empty() => f.write_str(name),
            (None, name) => match self.process {
                Some(pid) => write!(f, "{name} ({noun}, process {pid})"),
                None => write!(f, "{name} ({noun})"),
            },
        }
    }
}

/// Where a claim is recorded. Fields that do not apply are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub file: Option<String>,
    /// Its line, from 1.
    pub line: Option<u32>,
    /// The unit or cgroup, as a path below the root of the hierarchy.
    pub unit: Option<String>,
    /// The process or thread.
    pub process: Option<Tid>,
    /// The value as it is written there, such as `pmd-cpu-mask=0x6`.
    pub value: Option<String>,
}

impl Source {
    /// A file, with a line if it is known.
    pub fn file(path: impl Into<String>, line: Option<u32>) -> Self {
        Self { file: Some(path.into()), line, ..Self::default() }
    }

    /// A process or thread.
    #[must_use]
    pub fn process(process: Tid) -> Self {
        Self { process: Some(process), ..Self::default() }
    }

    /// A cgroup.
    pub fn unit(path: impl Into<String>) -> Self {
        Self { unit: Some(path.into()), ..Self::default() }
    }

    /// The same place with the value that is written there.
    #[must_use]
    pub fn with_value(self, value: impl Into<String>) -> Self {
        Self { value: Some(value.into()), ..self }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match (&self.file, self.line) {
            (Some(file), Some(line)) => parts.push(format!("{file}, line {line}")),
            (Some(file), None) => parts.push(file.clone()),
            (None, _) => {}
        }
        parts.extend(self.unit.as_ref().map(|unit| format!("cgroup {unit}")));
        parts.extend(self.process.map(|process| format!("process {process}")));
        parts.extend(self.value.as_ref().map(|value| escape::short_name(value).into_owned()));
        f.write_str(&parts.join(": "))
    }
}

/// A busy thread that no plan counts as an owner: a moment later it may be idle, and the same
/// command would plan something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundThread {
    /// Its process.
    pub process: Tid,
    /// Its name.
    pub name: String,
    /// Its only CPU.
    pub cpu: CpuSet,
}

/// CPUs that an owner claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The owner.
    pub owner: Owner,
    /// The CPUs.
    pub cpus: CpuSet,
    /// How they are claimed.
    pub exclusivity: Exclusivity,
    /// Those of the CPUs that are the only one of a thread, which can run nowhere else; of a cgroup,
    /// all its CPUs if machines keep each of them.
    pub bound: CpuSet,
    /// The number of its vCPUs that float over the CPUs.
    pub floating_vcpus: u32,
    /// How many of these vCPUs are busy, in thousandths: on average since the owner's process
    /// started; `None` if that is not known.
    pub busy_vcpus_milli: Option<u32>,
    /// False if the owner does not run: it uses the CPUs only after its start.
    pub active: bool,
    /// Where it is recorded.
    pub source: Source,
}

impl Claim {
    /// A claim of an owner that runs.
    #[must_use]
    pub fn new(owner: &Owner, cpus: CpuSet, exclusivity: Exclusivity, source: &Source) -> Self {
        let (owner, source) = (owner.clone(), source.clone());
        let (floating_vcpus, busy_vcpus_milli) = (0, None);
        let (bound, active) = (CpuSet::new(), true);
        Self { owner, cpus, exclusivity, bound, floating_vcpus, busy_vcpus_milli, active, source }
    }

    /// CPUs over which vCPUs of a running owner float.
    #[must_use]
    pub fn floating(owner: &Owner, cpus: CpuSet, floating_vcpus: u32, source: &Source) -> Self {
        Self { floating_vcpus, ..Self::new(owner, cpus, Exclusivity::Shared, source) }
    }
}
