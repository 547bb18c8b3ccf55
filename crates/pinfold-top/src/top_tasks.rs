//! Which task runs on a CPU, found by the CPU time of all tasks.
//!
//! No file of the kernel has it. All tasks are listed only in an interval in which a thread waits;
//! the first time, tasks count that are runnable. This process is left out: it runs on some CPU
//! whenever it reads.

use std::collections::HashMap;

use pinfold_host::{Host, paths, proc_stat, process};
use pinfold_model::{Tid, escape};

/// Tasks that are read in one interval.
const MOST: usize = 8192;

/// CPU time of the tasks of the last interval in which they were listed.
#[derive(Debug, Default)]
pub struct TopTasks {
    ticks: HashMap<u32, u64>,
}

impl TopTasks {
    /// The task of each CPU that ran most since the last time, as `name (tid)`.
    pub fn read(&mut self, host: &dyn Host) -> HashMap<u32, Vec<(u32, String)>> {
        let mut found: HashMap<u32, Vec<(u64, u32, String)>> = HashMap::new();
        let mut ticks = HashMap::new();
        for (process, tid) in tasks(host) {
            let path = paths::task_stat(process, tid);
            // A task that ends meanwhile does not run any more.
            let Ok(Some(stat)) = proc_stat::at(host, &path) else { continue };
            let before = self.ticks.get(&tid.0).copied();
            let ran = before.map_or(0, |before| stat.cpu_ticks.saturating_sub(before));
            ticks.insert(tid.0, stat.cpu_ticks);
            if ran > 0 || stat.state == 'R' {
                let name = format!("{} ({tid})", escape::name(&stat.comm));
                found.entry(stat.processor).or_default().push((ran, tid.0, name));
            }
        }
        self.ticks = ticks;
        let sorted = found.into_iter().map(|(cpu, mut tasks)| {
            tasks.sort_by_key(|task| std::cmp::Reverse(task.0));
            (cpu, tasks.into_iter().map(|(_, tid, name)| (tid, name)).collect())
        });
        sorted.collect()
    }
}

/// All tasks but those of this process.
fn tasks(host: &dyn Host) -> Vec<(Tid, Tid)> {
    let names = host.list(&paths::proc_dir()).unwrap_or_default();
    let own = process::own_pid();
    let mut found = Vec::new();
    for pid in names.iter().filter_map(|name| name.parse().ok().map(Tid)) {
        if pid == own {
            continue;
        }
        let threads = host.list(&paths::task_dir(pid)).unwrap_or_default();
        found.extend(threads.iter().filter_map(|tid| Some((pid, Tid(tid.parse().ok()?)))));
        if found.len() >= MOST {
            break;
        }
    }
    found
}
