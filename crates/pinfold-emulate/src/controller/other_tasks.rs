//! Names the tasks of others that run on a core of a vnode.

use pinfold_host::{Host, paths, proc_stat, process};
use pinfold_model::{PuId, Tid, text::count_noun};

/// Maximum number of named tasks.
const NAMED: usize = 3;

/// The other tasks that run or wait on this CPU now, as a note; `None` if there are none. Tasks in
/// the groups of the vnode (with these `cgroup.procs` files) and Pinfold's helpers are its own.
pub(super) fn describe(host: &dyn Host, pu: PuId, entries: &[String]) -> Option<String> {
    let groups: Vec<&str> = entries
        .iter()
        .filter_map(|entry| entry.rsplit_once('/')?.0.rsplit_once('/'))
        .map(|(_, group)| group)
        .collect();
    let mut names = Vec::new();
    // A task that ends meanwhile is no other task.
    for pid in numbers(host, &paths::proc_dir()) {
        for tid in numbers(host, &paths::task_dir(Tid(pid))) {
            let Ok(text) = host.read_text(&paths::task_stat(Tid(pid), Tid(tid))) else {
                continue;
            };
            let Ok(stat) = proc_stat::parse(&text) else { continue };
            let is_here = stat.state == 'R' && stat.processor == pu.0;
            let is_own = stat.ppid == process::own_pid() || Tid(pid) == process::own_pid();
            if !is_here || is_own || is_inside(host, pid, &groups) {
                continue;
            }
            names.push(format!("{} ({tid})", stat.comm));
        }
    }
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {}", count_noun(more, "other task")),
    };
    names.truncate(NAMED);
    let named = names.join(", ");
    (!names.is_empty()).then(|| format!("CPU {pu}: other tasks run there: {named}{more}"))
}

fn numbers(host: &dyn Host, folder: &str) -> Vec<u32> {
    let names = host.list(folder).unwrap_or_default();
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

fn is_inside(host: &dyn Host, pid: u32, groups: &[&str]) -> bool {
    let text = host.read_text(&paths::process_cgroup(Tid(pid))).unwrap_or_default();
    let mut paths = text.lines().filter_map(|line| line.rsplit_once(':')).map(|(_, path)| path);
    paths.any(|path| path.split('/').any(|part| groups.contains(&part)))
}
