//! Without BPF: the kernel's sums per thread, before and after.

use std::collections::BTreeMap;

use pinfold_host::{Host, HostError, paths, schedstat};
use pinfold_model::{Role, Tid};

use super::{Level, RoleLatency, SchedLatency};
use crate::roles::read_migrations;
use crate::traced_threads::TracedThreads;

/// The sums of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    delay_ns: u64,
    slices: u64,
    migrations: Option<u64>,
}

/// The sums of all threads at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    by_thread: BTreeMap<Tid, (Role, Sum)>,
}

impl Sums {
    pub(super) fn read(host: &dyn Host, watched: &TracedThreads) -> Result<Self, HostError> {
        let others = watched.others(host)?.into_iter();
        let others = others.map(|(process, tid)| (tid, watched.role_of_others(process)));
        let listed = watched.threads.iter().map(|(task, role)| (task.tid, role.clone()));
        let mut by_thread = BTreeMap::new();
        for (tid, role) in listed.chain(others) {
            if let Some(sum) = read(host, tid)? {
                by_thread.insert(tid, (role, sum));
            }
        }
        Ok(Self { by_thread })
    }
}

/// The sums of a thread; `None` if it has ended.
fn read(host: &dyn Host, tid: Tid) -> Result<Option<Sum>, HostError> {
    let path = paths::task_schedstat(tid, tid);
    let times = match host.read_text(&path) {
        Ok(text) => schedstat::parse(&text).map_err(|error| error.at(&path))?,
        Err(error) if error.is_gone() && !host.exists(&paths::process_stat(tid)) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    match read_migrations(host, tid, tid) {
        Ok(migrations) => {
            Ok(Some(Sum { delay_ns: times.delay_ns, slices: times.slices, migrations }))
        }
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The difference since the first reading.
pub(super) fn since(
    host: &dyn Host,
    watched: &TracedThreads,
    before: &Sums,
    why: String,
    duration_ns: u64,
) -> Result<SchedLatency, HostError> {
    let now = Sums::read(host, watched)?;
    let mut roles: BTreeMap<Role, RoleLatency> = BTreeMap::new();
    let mut ended = 0_u32;
    for (role, _) in before.by_thread.values().chain(now.by_thread.values()) {
        roles.entry(role.clone()).or_insert_with(|| RoleLatency::nothing(role.clone()));
    }
    for (tid, (role, sum)) in &now.by_thread {
        let Some(of) = roles.get_mut(role) else { continue };
        let known = before.by_thread.get(tid).map(|(_, sum)| *sum);
        of.born = of.born.saturating_add(u32::from(known.is_none()));
        let known = known.unwrap_or(Sum { migrations: Some(0), ..Sum::default() });
        of.threads = of.threads.saturating_add(1);
        of.count += sum.slices.saturating_sub(known.slices);
        of.sum_ns += sum.delay_ns.saturating_sub(known.delay_ns);
        of.migrations = match (of.migrations, sum.migrations, known.migrations) {
            (Some(all), Some(now), Some(known)) => Some(all + now.saturating_sub(known)),
            (None, _, _) | (_, None, _) | (_, _, None) => None,
        };
    }
    for (tid, (role, _)) in &before.by_thread {
        if !now.by_thread.contains_key(tid) {
            ended = ended.saturating_add(1);
            let Some(of) = roles.get_mut(role) else { continue };
            of.threads = of.threads.saturating_add(1);
            of.ended = of.ended.saturating_add(1);
        }
    }
    let mut lost = vec![
        "distribution, longest wait, which task ran instead and which task woke it: only sums are \
         available"
            .to_owned(),
        "waits that have not ended, and threads that were created and ended meanwhile".to_owned(),
        "the count holds the times that a thread got a CPU, also without a wait".to_owned(),
    ];
    if watched.gone > 0 {
        lost.push(format!("{} threads had exited before the observation began", watched.gone));
    }
    if ended > 0 {
        lost.push(format!("{ended} threads that exited during the measurement"));
    }
    Ok(SchedLatency {
        level: Level::Schedstat { why },
        duration_ns,
        roles: roles.into_values().collect(),
        quotas: Vec::new(),
        lost,
    })
}
