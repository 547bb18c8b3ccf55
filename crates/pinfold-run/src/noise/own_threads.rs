//! Pinfold's own threads, which would disturb a command on its CPUs and on their idle siblings.

use pinfold_host::{HostMut, paths};
use pinfold_model::{CpuSet, Finding, Plan, Tid};

use crate::Failure;

/// Moves all threads of a process of Pinfold off the cores of a plan, or off its CPUs if it has no
/// other cores. What the process starts later inherits that. False if it has no other CPU.
///
/// # Errors
/// [`Failure`] if its threads cannot be listed.
pub(crate) fn leave_cores(host: &dyn HostMut, process: Tid, plan: &Plan) -> Result<bool, Failure> {
    let names = match host.list(&paths::task_dir(process)) {
        Ok(names) => names,
        Err(error) if error.is_gone() => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let mut is_off = true;
    for tid in names.iter().filter_map(|name| name.parse().ok().map(Tid)) {
        // It has ended.
        let Ok(mask) = host.affinity(tid) else { continue };
        is_off &= other_cpus(&mask, plan).is_some_and(|cpus| host.set_affinity(tid, &cpus).is_ok());
    }
    Ok(is_off)
}

/// The CPUs of a mask that disturb a plan least; `None` if it has only those of the plan.
fn other_cpus(mask: &CpuSet, plan: &Plan) -> Option<CpuSet> {
    let cpus = plan.pus();
    let cores = plan.cpus.iter().flat_map(|planned| &planned.cores);
    let cores = cores.fold(cpus.clone(), |all, core| all.union(core));
    [mask.difference(&cores), mask.difference(&cpus)].into_iter().find(|rest| !rest.is_empty())
}

/// Reports that [`leave_cores`] found no other CPU.
pub(crate) fn shares_cpus() -> Finding {
    let text = "Pinfold's own threads share the CPUs of the command: this process may use no other";
    Finding::note("quiet", text).with_hint("lower --cores, or start it with more CPUs")
}

#[cfg(test)]
mod tests {
    use pinfold_host::Host as _;
    use pinfold_model::{Request, Speed, VnodeRequest};
    use pinfold_sim::{CgroupVersion, SimHost, SimTask};

    use super::*;

    #[test]
    fn all_threads_leave_the_cores_of_the_plan_as_far_as_they_may() {
        check("0-7", "0,2-4,6-7", true);
        check("0-1", "0", true);
        // The idle sibling is better than the CPU itself.
        check("1,5", "5", true);
        check("1", "1", false);
    }

    /// On a host whose CPUs 1 and 5 are a core, with a plan for CPU 1.
    fn check(mask: &str, expected: &str, is_off: bool) {
        let set = |text: &str| CpuSet::parse_list(text).expect("a list");
        let host = SimHost::builder(CgroupVersion::V2, 8)
            .smt(2)
            .task(SimTask::new(500, "pinfold"))
            .task(SimTask::new(501, "observer").thread_of(500))
            .task(SimTask::new(600, "other"))
            .build();
        let topology = pinfold_topology::discover(&host).expect("a topology");
        let request = Request::from_vnodes(vec![VnodeRequest::processes("bench", 1, Speed::FULL)]);
        let plan = pinfold_plan::plan("vnodes", &topology, &request).expect("a plan");
        assert_eq!(plan.pus(), set("1"));
        for tid in [500, 501] {
            host.set_affinity(Tid(tid), &set(mask)).expect("a task");
        }
        assert_eq!(leave_cores(&host, Tid(500), &plan).expect("threads"), is_off, "{mask}");
        for (tid, cpus) in [(500, expected), (501, expected), (600, "0-7")] {
            assert_eq!(host.affinity(Tid(tid)).expect("a task"), set(cpus), "{tid} of {mask}");
        }
        assert!(leave_cores(&host, Tid(700), &plan).expect("none"), "it has ended");
    }
}
