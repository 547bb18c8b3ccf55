//! What all owners are read from: a host, its CPUs and its processes.

use std::cell::OnceCell;

use pinfold_host::{Host, HostError, paths, proc_cgroup, proc_stat, with_causes};
use pinfold_model::{CpuSet, Finding, Tid, escape};

use crate::claim::{Claim, Owner, Source};
use crate::claim_set::Claims;
use crate::processes::{self, Process};

/// Largest file that is read, in bytes. Those of owners have some kilobytes; the log of Open
/// vSwitch has some megabytes before it is compacted.
const LARGEST_FILE: usize = 32 << 20;

/// Number of faults of one file that are reported one by one.
const MOST_FAULTS: usize = 10;

/// Number of ancestors of a process that are looked at.
const MOST_ANCESTORS: usize = 32;

/// A host from which claims are read.
pub struct Context<'h> {
    /// The host.
    pub host: &'h dyn Host,
    /// Its online CPUs.
    pub online: CpuSet,
    /// All its CPUs; empty if they are not known.
    pub present: CpuSet,
    processes: OnceCell<Vec<Process>>,
}

impl<'h> Context<'h> {
    /// The context of a host.
    #[must_use]
    pub fn new(host: &'h dyn Host) -> Self {
        let online = read_list(paths::cpu_online(), host);
        let present = read_list(paths::cpu_present(), host)
            .union(&read_list(paths::cpu_possible(), host))
            .union(&online);
        Self { host, online, present, processes: OnceCell::new() }
    }

    /// The processes of the host that this process may see, without kernel threads.
    pub fn processes(&self) -> &[Process] {
        self.processes.get_or_init(|| processes::read(self.host))
    }

    /// True if one of these programs runs, or if no process is known, as in a capture of files.
    #[must_use]
    pub fn runs(&self, programs: &[&str]) -> bool {
        let processes = self.processes();
        processes.is_empty()
            || processes.iter().any(|process| programs.contains(&process.program.as_str()))
    }

    /// True if a process belongs to an owner that is known already: if it descends from the process
    /// of one, or is in a group that Pinfold made for one.
    #[must_use]
    pub fn belongs(&self, process: Tid, claims: &Claims) -> bool {
        let group = group_of(self.host, process);
        if group.is_some_and(|group| claims.has_group_of_pinfold(&group)) {
            return true;
        }
        let mut process = process;
        for _ in 0..MOST_ANCESTORS {
            if claims.has_process(process) {
                return true;
            }
            match proc_stat::read(self.host, process) {
                Ok(Some(stat)) if stat.ppid.0 > 1 => process = stat.ppid,
                Ok(_) | Err(_) => return false,
            }
        }
        false
    }

    /// The text of a file of an owner; `None` if there is none. A file that is not read is a
    /// finding: unreadable, too large, no text, or a link.
    pub fn text(&self, path: &str, claims: &mut Claims) -> Option<String> {
        self.text_at_most(path, LARGEST_FILE, claims)
    }

    /// [`Context::text`] of a file of at most so many bytes.
    pub fn text_at_most(&self, path: &str, most: usize, claims: &mut Claims) -> Option<String> {
        if let Ok(target) = self.host.link(path) {
            let target = escape::name(&target).into_owned();
            let text = format!("{path} is a link to {target}; not read");
            claims.report(Finding::warning("claims", text));
            return None;
        }
        match self.host.read_at_most(path, most) {
            Ok(Some(bytes)) => match String::from_utf8(bytes) {
                // Editors of other systems put a byte order mark before the text.
                Ok(text) => Some(text.strip_prefix('\u{feff}').map_or(text.clone(), str::to_owned)),
                Err(error) => {
                    let at = error.utf8_error().valid_up_to();
                    let text = format!("{path}: not UTF-8 from byte {at} on; not read");
                    claims.report(Finding::warning("claims", text));
                    None
                }
            },
            Ok(None) => {
                let text = format!(
                    "{path} is larger than {} MiB, the limit for such files; not read",
                    most >> 20
                );
                claims.report(Finding::warning("claims", text));
                None
            }
            Err(error) if error.is_gone() => None,
            Err(HostError::Unexpected { path, why }) => {
                claims.report(Finding::warning("claims", format!("{path} {why}; not read")));
                None
            }
            Err(error) => {
                claims.report(unread(&error));
                None
            }
        }
    }

    /// The names of the files with an ending in a folder of an owner; none if there is no folder.
    pub fn names(&self, folder: &str, ending: &str, claims: &mut Claims) -> Vec<String> {
        match self.host.list(folder) {
            Ok(names) => names.into_iter().filter(|name| name.ends_with(ending)).collect(),
            Err(error) => {
                if !error.is_gone() {
                    claims.report(unread(&error));
                }
                Vec::new()
            }
        }
    }

    /// Adds a claim from a file or process. CPUs that the host does not have are a finding.
    pub fn add(&self, claims: &mut Claims, claim: Claim) {
        let cpus = self.existing_cpus(claims, &claim.owner, claim.cpus.clone(), &claim.source);
        claims.push(Claim { cpus, ..claim });
    }

    /// The CPUs of a claim that the host has; the others are a finding.
    pub fn existing_cpus(
        &self,
        claims: &mut Claims,
        owner: &Owner,
        cpus: CpuSet,
        source: &Source,
    ) -> CpuSet {
        let strange = cpus.difference(&self.present);
        if self.present.is_empty() || strange.is_empty() {
            return cpus;
        }
        let text = format!(
            "{source}: the value for {owner} names {} that this host does not have: {strange}",
            if strange.len() == 1 { "a CPU" } else { "CPUs" }
        );
        let hint = format!("the CPUs of this host are {}", self.present);
        claims.report(Finding::warning("claims", text).with_hint(hint));
        cpus.intersection(&self.present)
    }

    /// Adds the finding about a value that cannot be parsed.
    pub fn refuse(&self, claims: &mut Claims, source: &Source, why: impl std::fmt::Display) {
        let source = Source { value: None, ..source.clone() };
        claims.report(Finding::warning("claims", format!("{source}: {why}; not counted")));
    }

    /// Adds the findings about values of one file that cannot be parsed: the first ones, and the
    /// number of the others.
    pub fn refuse_all(&self, claims: &mut Claims, source: &Source, faults: &[String]) {
        for why in faults.iter().take(MOST_FAULTS) {
            self.refuse(claims, source, why);
        }
        let others = faults.len().saturating_sub(MOST_FAULTS);
        if others > 0 {
            let values = if others == 1 { "value" } else { "values" };
            self.refuse(claims, source, format!("{others} more {values} of this kind"));
        }
    }
}

fn read_list(path: String, host: &dyn Host) -> CpuSet {
    let text = host.read_text(&path).unwrap_or_default();
    CpuSet::parse_list(&text).unwrap_or_default()
}

/// The cgroup of a process for cpusets, as a path below the root of the hierarchy.
pub(crate) fn group_of(host: &dyn Host, process: Tid) -> Option<String> {
    group_in(host, &paths::process_cgroup(process))
}

/// The cgroup of this process, as [`group_of`].
pub(crate) fn own_group(host: &dyn Host) -> Option<String> {
    group_in(host, &paths::own_cgroup())
}

fn group_in(host: &dyn Host, file: &str) -> Option<String> {
    let text = host.read_text(file).ok()?;
    let memberships = proc_cgroup::parse(&text).ok()?;
    let path = proc_cgroup::v1_path(&memberships, "cpuset");
    path.or_else(|| proc_cgroup::v2_path(&memberships)).map(str::to_owned)
}

/// The finding about a file that cannot be read. Missing permission is usual without root.
fn unread(error: &HostError) -> Finding {
    let text = format!("not known: {}", with_causes(error));
    if error.is_permission() {
        Finding::note("claims", text).with_hint("root can read it")
    } else {
        Finding::warning("claims", text)
    }
}
