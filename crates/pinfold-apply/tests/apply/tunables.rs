//! Each tunable of the table on a simulated host: it has steps, takes effect, and is undone.

use crate::common::{Bench, Case, VM, assert_same, set};
use pinfold_apply::plan_steps;
use pinfold_host::{HostMut as _, paths};
use pinfold_model::tunables::{TUNABLES, Tunable, Value, required};
use pinfold_model::{CpuSet, IrqPlan, IsolationScope, PolicyRequest, Role, Severity, Tid};
use pinfold_sim::{SimTask, WriteRule};

const DEVICE: &str = "0000:05:00.0";

/// The machine alone in its group, on a host with all tunables, with a plan that sets none.
fn case() -> Case {
    let group = "/machine.slice/vm1.scope";
    let task = |tid: u32, name: &str| SimTask::new(tid, name).in_group(group);
    let host = crate::common::v2_builder()
        .smt(2)
        .clears_populated()
        .tunables()
        .resctrl(2, 4)
        .file(&format!("{}/31", paths::pci_msi_irqs(DEVICE)), "msix\n")
        .writable_file(&paths::irq_file(31, "smp_affinity_list"), WriteRule::List, "0-7\n")
        .group("/machine.slice", CpuSet::new(), CpuSet::new())
        .group(group, CpuSet::new(), CpuSet::new())
        .task(task(VM, "qemu-system-x86").child_of(400))
        .task(task(501, "CPU 0/KVM").thread_of(VM))
        .task(task(502, "IO disk").thread_of(VM))
        .build();
    for above in ["/sys/fs/cgroup", "/sys/fs/cgroup/machine.slice"] {
        host.write(&paths::cgroup_subtree_control(above), b"+cpu").unwrap();
    }
    // A task that may run on siblings alone would keep SMT on.
    for tid in [300, 311] {
        host.edit_task(Tid(tid), |task| task.asked = None);
    }
    let mut case = Case { name: "tunables", host, ..crate::common::v2() };
    case.target.own.clear();
    case.plan.isolation = IsolationScope::Host;
    case.plan.housekeeping = set("0-1,3-5,7");
    for thread in &mut case.plan.vnodes[0].threads {
        let is_vcpu = matches!(thread.role, Role::Vcpu(_));
        thread.pus = set(if is_vcpu { "2" } else { "0-1" });
        thread.policy = None;
    }
    case
}

/// Adds the tunable with its example to the plan.
fn ask(case: &mut Case, tunable: &'static Tunable) {
    let values = tunable.values;
    let value = values.parse(tunable.key, tunable.example, &CpuSet::new()).unwrap();
    match (value, tunable.of) {
        (Value::Cpus(pus), "DEVICE") => case.plan.irqs.push(IrqPlan {
            device: DEVICE.to_owned(),
            pus,
            reason: "as the test says".to_owned(),
        }),
        (Value::Policy(policy), "ROLE") => {
            let policy_request = PolicyRequest { role: "vcpu".to_owned(), policy };
            case.plan.set_policy(None, &policy_request).unwrap();
        }
        (value, _) => case.plan.tuning.set(tunable, value),
    }
}

#[test]
fn each_tunable_has_steps_takes_effect_and_is_undone() {
    let plain = case();
    let without = plan_steps(&plain.host, &plain.plan, &plain.target).unwrap().steps;
    for tunable in TUNABLES {
        let mut case = case();
        ask(&mut case, tunable);
        let (bench, before, key) = (Bench::new(), case.host.snapshot(), tunable.key);
        let planned = plan_steps(&case.host, &case.plan, &case.target).unwrap();
        let own: Vec<_> = planned.steps.iter().filter(|step| !without.contains(step)).collect();
        assert_eq!(
            own.is_empty(),
            key == required::TUNABLE.key,
            "{key}: {:?}",
            planned.findings.last()
        );
        let applied = bench.apply(&case).unwrap();
        let refused = applied.findings.iter().find(|one| one.severity > Severity::Note);
        assert_eq!(refused, None, "{key}");
        let again = plan_steps(&case.host, &case.plan, &case.target).unwrap();
        assert_eq!(again.steps, [], "{key} has its value");
        let report = bench.undo(&case);
        assert!(report.is_complete() && report.changed.is_empty(), "{key}: {report:?}");
        assert_same(&before, &case.host, key);
    }
}
