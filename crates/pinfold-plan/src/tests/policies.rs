//! Scheduling policies in request files and on the command line.

use pinfold_config::requests::{from_toml, parse_vm_spec, set_tunable};
use pinfold_model::{Policy, Request, Role, VcpuCount};
use pinfold_samples::machine::dual_x5540;

use crate::plan;

fn policies(text: &str) -> Result<Vec<(String, Option<Policy>)>, String> {
    let request = from_toml(text).map_err(|error| error.to_string())?;
    let plan = plan("balanced", &dual_x5540().build(), &request).map_err(|e| e.to_string())?;
    Ok(plan.threads().map(|(_, thread)| (thread.role.to_string(), thread.policy)).collect())
}

fn request(policies: &str) -> String {
    format!("[[vm]]\nname = \"a\"\nvcpus = 2\niothreads = [\"x\"]\npolicies = {policies}\n")
}

#[test]
fn a_role_or_a_kind_of_roles_gets_its_policy() {
    let text =
        request(r#"["vcpu=fifo:2", "vcpu(1)=rr:9", "emulator=other:-5", "iothread(x)=idle"]"#);
    let found = policies(&text).unwrap();
    assert_eq!(found[0], ("vcpu(0)".to_owned(), Some(Policy::Fifo { priority: 2 })));
    assert_eq!(found[1].1, Some(Policy::RoundRobin { priority: 9 }));
    assert!(found.contains(&("emulator".to_owned(), Some(Policy::Other { nice: -5 }))));
    assert!(found.contains(&("iothread(x)".to_owned(), Some(Policy::Idle))));
    let deadline = policies(&request(r#""vcpu=deadline:500/1000/2000""#)).unwrap()[0].1;
    let (runtime_ns, deadline_ns, period_ns) = (500_000, 1_000_000, 2_000_000);
    assert_eq!(deadline, Some(Policy::Deadline { runtime_ns, deadline_ns, period_ns }));
    let words = parse_vm_spec("name=a,policies=vcpu=batch:3+emulator=idle").unwrap();
    assert_eq!(words.policies.len(), 2);
}

#[test]
fn a_slice_is_for_threads_without_a_policy() {
    let found = policies(&request(r#"["vcpu(0)=fifo:1", "vcpu=slice:500"]"#)).unwrap();
    assert_eq!(found[0].1, Some(Policy::Fifo { priority: 1 }));
    assert_eq!(found[1].1, Some(Policy::Slice { nice: None, slice_ns: 500_000 }));
    let found = policies(&request(r#"["vcpu(0)=fifo:1", "vcpu=slice:500/-3"]"#)).unwrap();
    assert_eq!(found[0].1, Some(Policy::Slice { nice: Some(-3), slice_ns: 500_000 }));
    assert_eq!(found[0].1.unwrap().argument(), "slice:500/-3");
    // There are no vhost threads here.
    assert!(policies(&request(r#"["vhost=slice:500"]"#)).is_ok());
}

#[test]
fn what_cannot_be_is_named() {
    check(r#"["vcpu"]"#, "expected ROLE=POLICY, got \"vcpu\"");
    check(r#"["vcpu=fifo"]"#, "\"fifo\" is not a scheduling policy");
    check(r#"["vcpu=fifo:100"]"#, "\"fifo:100\" is not a scheduling policy");
    check(r#"["vcpu=other:20"]"#, "\"other:20\" is not a scheduling policy");
    check(r#"["vcpu=idle:1"]"#, "\"idle:1\" is not a scheduling policy");
    check(r#"["vcpu=deadline:2/1/1"]"#, "\"deadline:2/1/1\" is not a scheduling policy");
    check(r#"["vcpu=deadline:5/10/10"]"#, "is not a scheduling policy");
    check(r#"["vcpu=deadline:5000000/5000000/5000000"]"#, "is not a scheduling policy");
    check(r#"["vcpu=deadline:1/1/99999999999999999999"]"#, "is not a scheduling policy");
    check(r#"["vcpu=slice:99"]"#, "\"slice:99\" is not a scheduling policy");
    check(r#"["vcpu=slice:100001"]"#, "is not a scheduling policy");
    check(r#"["vcpu=slice:500/20"]"#, "is not a scheduling policy");
    // A default slice of kernels: it cannot be seen whether a thread asked for it.
    check(r#"["vcpu=slice:1400"]"#, "is not a scheduling policy");
    check(r#"["vpcu=slice:500"]"#, "there is no thread \"vpcu\"");
    check(
        r#"["vcpu(7)=idle"]"#,
        "there is no thread \"vcpu(7)\"; the threads are vcpu(0), vcpu(1)",
    );
    check(r#"["iothread=deadline:1000/2000/2000"]"#, "cannot use SCHED_DEADLINE");
}

fn check(policies: &str, part: &str) {
    let why = self::policies(&request(policies)).unwrap_err();
    assert!(why.contains(part), "{why}");
}

#[test]
fn a_real_time_vcpu_leaves_the_emulator_and_the_host_a_pu() {
    let topology = dual_x5540().build();
    let mut request = Request::vm("a", VcpuCount::Exactly(8));
    let mut plan = plan("compact", &topology, &request).unwrap();
    set_tunable(&mut plan, "policy:vcpu=rr:1").unwrap();
    assert_eq!(
        plan.vnodes[0].thread(&Role::Vcpu(7)).unwrap().policy,
        Some(Policy::RoundRobin { priority: 1 })
    );
    let hint = set_tunable(&mut plan, "policy:cpu=rr:1").unwrap_err().hint().unwrap();
    assert!(hint.contains("vcpu(N)"), "{hint}");
    let policy_request = pinfold_model::PolicyRequest {
        role: "vcpu".to_owned(),
        policy: Policy::Fifo { priority: 1 },
    };
    request.vnodes[0].policies.push(policy_request);
    request.vnodes[0].work =
        pinfold_model::Work::Vm(pinfold_model::VmRequest::from_vcpus(VcpuCount::Exactly(16)));
    let error = crate::plan("compact", &topology, &request).unwrap_err();
    assert!(error.to_string().contains("real-time"), "{error}");
    assert!(error.hint().unwrap().contains("balanced"));
}
