//! Tests of the crate as a whole: strategies against their sources, properties over
//! random machines, and what is written for people and for other programs.

mod check;
mod explain;
mod golden;
mod libvirt;
mod machine;
mod odd_hosts;
mod properties;
mod qemu;
mod qemu_live;
mod refusals;
mod requests;
mod schema;
mod several;

use pinfold_model::{CpuSet, IsolationScope, Plan, Request, Role, VcpuCount, Work};

/// A request for so many vCPUs, everything else kept off their PUs.
fn ask(vcpus: VcpuCount) -> Request {
    Request { isolation: IsolationScope::Host, ..Request::vm("vm", vcpus) }
}

fn exactly(vcpus: u32) -> Request {
    ask(VcpuCount::Exactly(vcpus))
}

fn auto() -> Request {
    ask(VcpuCount::Auto)
}

fn iothreads(request: &mut Request) -> &mut Vec<String> {
    match &mut request.vnodes[0].work {
        Work::Vm(vm) => &mut vm.iothreads,
        Work::Processes { .. } => panic!("a process group has no iothreads"),
    }
}

fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// The vCPUs' PUs in order, `1,5,2` for pinned ones.
fn pins(plan: &Plan) -> String {
    let pus: Vec<String> = plan.vnodes[0].vcpus().map(|vcpu| vcpu.pus.to_string()).collect();
    pus.join(",")
}

fn emulator(plan: &Plan) -> String {
    plan.vnodes[0].thread(&Role::Emulator).unwrap().pus.to_string()
}

/// `1×3×2`.
fn shape(plan: &Plan) -> String {
    let guest = plan.vnodes[0].guest.as_ref().unwrap();
    format!("{}×{}×{}", guest.sockets, guest.cores, guest.threads)
}

/// True if a finding's subject and text hold both.
fn finds(plan: &Plan, subject: &str, text: &str) -> bool {
    plan.findings.iter().any(|found| found.subject == subject && found.text.contains(text))
}
