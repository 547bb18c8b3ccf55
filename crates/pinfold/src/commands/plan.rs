//! `pinfold plan`: a placement, its reasons, and its form for other tools.

use pinfold_model::{NotSingle, Request, Speed, Topology, VcpuCount, VmRequest, VnodeRequest};
use pinfold_plan::requests;

use crate::cli::{Emit, PlanArgs};
use crate::common;
use crate::failure::{Exit, Failure};
use crate::output;

/// Prints the plan in the form that was asked for.
pub fn plan(arguments: &PlanArgs) -> Result<(), Failure> {
    if arguments.list {
        output::data(&list());
        return Ok(());
    }
    let Some(strategy) = &arguments.placement.strategy else {
        return Err(common::no_strategy());
    };
    let host = common::host()?;
    let topology = common::topology(&host, arguments.input.as_deref())?;
    let request = request(arguments, &topology)?;
    let plan = common::make_plan(strategy, &topology, &request)?;
    output::data(&match (arguments.emit, arguments.json) {
        (Some(Emit::Libvirt), _) => pinfold_plan::emit::libvirt(&plan).map_err(several)?,
        (Some(Emit::Qemu), _) => {
            pinfold_plan::emit::qemu(&plan, &arguments.command).map_err(several)?
        }
        (None, true) => pinfold_plan::schema::to_json(&plan),
        (None, false) if arguments.explain => pinfold_plan::explain(&plan, &topology),
        (None, false) => summary(&plan),
    });
    Ok(())
}

/// What is asked, in a file or by options.
fn request(arguments: &PlanArgs, topology: &Topology) -> Result<Request, Failure> {
    if let Some(path) = &arguments.request {
        return common::read_request(path, topology);
    }
    let mut vnodes = Vec::new();
    for words in &arguments.vm {
        vnodes.push(common::asked("--vm", requests::vm_from_words(words))?);
    }
    for words in &arguments.group {
        vnodes.push(common::asked("--group", requests::group_from_words(words))?);
    }
    if vnodes.is_empty() {
        let vcpus = vcpu_count(&arguments.vcpus)?;
        let vm = VmRequest { iothreads: arguments.iothreads.clone(), ..VmRequest::of(vcpus) };
        vnodes.push(VnodeRequest::vm(&arguments.name, vm));
    }
    let mut request = common::request(&arguments.placement, vnodes, topology)?;
    for device in &arguments.interrupts {
        request.interrupts.push(common::asked("--interrupts", requests::device(device))?);
    }
    Ok(request)
}

fn several(error: NotSingle) -> Failure {
    Failure::from_error(Exit::Input, &error, None)
        .with_hint("emit a plan of one virtual machine at a time")
}

fn vcpu_count(text: &str) -> Result<VcpuCount, Failure> {
    if text == "auto" {
        return Ok(VcpuCount::Auto);
    }
    match text.parse() {
        Ok(number) if number > 0 => Ok(VcpuCount::Exactly(number)),
        Ok(_) | Err(_) => Err(Failure::new(
            Exit::Input,
            format!("--vcpus {text:?} is neither a number of vCPUs nor auto"),
        )),
    }
}

fn list() -> String {
    let mut table = output::table();
    table.set_header(["strategy", "what it does", "source"]);
    for strategy in pinfold_plan::strategies() {
        table.add_row([strategy.name, strategy.summary, strategy.source]);
    }
    table.to_string()
}

/// Role → PUs, without the reasons.
fn summary(plan: &pinfold_model::Plan) -> String {
    let mut table = output::table();
    table.set_header(["role", "PUs", "policy"]);
    for (vnode, thread) in plan.threads() {
        let policy = thread.policy.map_or_else(|| "unchanged".to_owned(), |p| p.to_string());
        let role = plan.role_name(vnode, &thread.role);
        table.add_row([role, thread.pus.to_string(), policy]);
    }
    for irq in &plan.irqs {
        table.add_row([
            format!("interrupts of {}", irq.device),
            irq.pus.to_string(),
            String::new(),
        ]);
    }
    table.add_row(["housekeeping".to_owned(), plan.housekeeping.to_string(), String::new()]);
    let mut text = table.to_string();
    for (vnode, guest) in plan.vnodes.iter().filter_map(|v| Some((v, v.guest.as_ref()?))) {
        let of = if plan.vnodes.len() > 1 { format!(" of {}", vnode.name) } else { String::new() };
        text.push_str(&format!(
            "\nguest topology{of}: {} socket(s) × {} core(s) × {} thread(s)",
            guest.sockets, guest.cores, guest.threads
        ));
    }
    for vnode in plan.vnodes.iter().filter(|vnode| vnode.speed != Speed::FULL) {
        text.push_str(&format!("\nspeed of {}: {}", vnode.name, vnode.speed));
    }
    for (vnode, memory) in plan.vnodes.iter().filter_map(|v| Some((v, v.memory.as_ref()?))) {
        let nodes: Vec<String> = memory.nodes.iter().map(ToString::to_string).collect();
        text.push_str(&format!("\nmemory of {}: node {}", vnode.name, nodes.join(", ")));
    }
    for finding in &plan.findings {
        text.push_str(&format!("\n{finding}"));
    }
    text.push_str("\n(--explain says why; --emit libvirt|qemu writes it down)");
    text
}
