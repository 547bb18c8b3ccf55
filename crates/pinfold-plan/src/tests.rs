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
mod schema;

use pinfold_model::{CpuSet, IsolationScope, Plan, Request, Role, VcpuCount};

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

fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// The vCPUs' PUs in order, `1,5,2` for pinned ones.
fn pins(plan: &Plan) -> String {
    let pus: Vec<String> = plan.vnode.vcpus().map(|vcpu| vcpu.pus.to_string()).collect();
    pus.join(",")
}

fn emulator(plan: &Plan) -> String {
    plan.vnode.thread(&Role::Emulator).unwrap().pus.to_string()
}

/// `1×3×2`.
fn shape(plan: &Plan) -> String {
    let guest = plan.vnode.guest.as_ref().unwrap();
    format!("{}×{}×{}", guest.sockets, guest.cores, guest.threads)
}

/// True if a finding's subject and text hold both.
fn finds(plan: &Plan, subject: &str, text: &str) -> bool {
    plan.findings.iter().any(|found| found.subject == subject && found.text.contains(text))
}
