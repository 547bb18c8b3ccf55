//! Tests of the crate as a whole: strategies against their sources, properties on random machines,
//! and output for users and for other programs.

mod caches;
mod domain;
mod emit;
mod explain;
mod golden;
mod guest_cells;
mod into;
mod libvirt;
mod lint;
pub(crate) mod machine;
mod memory;
mod odd_hosts;
mod pins;
mod platforms;
mod policies;
mod properties;
mod qemu;
mod qemu_live;
mod refusals;
mod requests;
mod rest_of_file;
mod schema;
mod several;
mod tunables;
mod validate;

use pinfold_model::{CpuSet, IsolationScope, Plan, Request, Role, VcpuCount, Work};

/// A request for `vcpus` vCPUs, with all other tasks excluded from their CPUs.
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

/// The vCPUs' CPUs in order, `1,5,2` for pinned ones.
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

/// True if there is a finding with this subject whose text contains `text`.
fn finds(plan: &Plan, subject: &str, text: &str) -> bool {
    plan.findings.iter().any(|found| found.subject == subject && found.text.contains(text))
}

/// The plan and its only virtual machine.
fn one(plan: &Plan) -> (&Plan, &pinfold_model::VnodePlan) {
    (plan, plan.single().unwrap())
}

/// Compares with a file in `golden/`; `PINFOLD_BLESS=1` rewrites it.
#[track_caller]
fn golden(name: &str, found: &str) {
    let path = format!("{}/src/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("PINFOLD_BLESS").is_some() {
        pinfold_host::files::write_atomic(&path, found.as_bytes()).unwrap();
    }
    let expected = pinfold_host::files::read_text(&path).unwrap();
    assert_eq!(found, expected, "{name}: `cargo xtask golden` rewrites it");
}
