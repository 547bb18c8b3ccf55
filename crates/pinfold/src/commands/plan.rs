//! `pinfold plan`: a placement, its reasons, and its form for other tools.

use pinfold_model::VcpuCount;

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
    let vcpus = vcpu_count(&arguments.vcpus)?;
    let mut request = common::request(&arguments.placement, (&arguments.name, vcpus), &topology)?;
    request.vm.iothreads = arguments.iothreads.clone();
    let plan = common::make_plan(strategy, &topology, &request)?;
    output::data(&match (arguments.emit, arguments.json) {
        (Some(Emit::Libvirt), _) => pinfold_plan::emit::libvirt(&plan),
        (Some(Emit::Qemu), _) => pinfold_plan::emit::qemu(&plan, &arguments.command),
        (None, true) => pinfold_plan::schema::to_json(&plan),
        (None, false) if arguments.explain => pinfold_plan::explain(&plan, &topology),
        (None, false) => summary(&plan),
    });
    Ok(())
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
    for thread in &plan.vnode.threads {
        let policy = thread.policy.map_or_else(|| "unchanged".to_owned(), |p| p.to_string());
        table.add_row([thread.role.to_string(), thread.pus.to_string(), policy]);
    }
    table.add_row(["housekeeping".to_owned(), plan.housekeeping.to_string(), String::new()]);
    let mut text = table.to_string();
    if let Some(guest) = &plan.vnode.guest {
        text.push_str(&format!(
            "\nguest topology: {} socket(s) × {} core(s) × {} thread(s)",
            guest.sockets, guest.cores, guest.threads
        ));
    }
    for finding in &plan.findings {
        text.push_str(&format!("\n{finding}"));
    }
    text.push_str("\n(--explain says why; --emit libvirt|qemu writes it down)");
    text
}
