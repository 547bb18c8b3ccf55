//! `pinfold plan`: a placement with its reasons, and its output for other tools.

use pinfold_config::requests;
use pinfold_model::text::count_noun;
use pinfold_model::{
    Command, MachineSpec, Plan, Request, Severity, Topology, VcpuCount, VnodeRequest, Work,
};
use pinfold_plan::schema::StrategyList;
use pinfold_run::claims::{self, Claims};
use pinfold_run::vcpus::Vcpus;
use pinfold_run::{Exit, Failure, host, inputs, machine_request};
use pinfold_vm::{MachineCommand, hypervisors};
use serde_json::json;

use crate::cli::PlanArgs;
use crate::commands::{check, emit};
use crate::common;
use crate::{output, screen};

/// Prints the plan in the requested format.
pub fn plan(arguments: &PlanArgs, state: Option<&str>) -> Result<(), Failure> {
    if arguments.list {
        print_strategies(arguments.json);
        return Ok(());
    }
    if let Some(files) = &arguments.check {
        return check::check(arguments, files);
    }
    if !arguments.running.selectors().is_empty() {
        return Err(Failure::new(Exit::Input, "plan accepts a running machine only with --check")
            .with_hint(format!(
                "--check --libvirt NAME checks it; `{}` places it",
                Command::new("apply --libvirt NAME")
            )));
    }
    let host = host::live()?;
    let topology = inputs::topology(&host, arguments.input.as_deref())?;
    let file = arguments.into.as_deref().map(emit::DomainFile::read).transpose()?;
    let command = hypervisors::parse(&arguments.command);
    let spec = spec(arguments, &*command)?;
    let strategy = arguments.placement.strategy.as_deref();
    let claims = match &arguments.input {
        Some(_) if arguments.placement.ignore_claims => Claims::default(),
        // Of other machines, only a capture has claims.
        Some(input) => claims::of_input(&host, input),
        None => common::claims(&arguments.placement, &host, state)?,
    };
    let claims = claims.with_own_names();
    let text = arguments.request.as_deref().map(inputs::RequestFile::read).transpose()?;
    let own = arguments.input.is_none().then_some(&host);
    let tunables = common::tunables(&arguments.placement, own, &topology, true)?;
    let plan = inputs::plan_with_tunables(&claims, &tunables, &topology, |claims| match &text {
        Some(file) => file.plan(strategy, &topology, claims),
        None => {
            let request = request(arguments, file.as_ref(), &spec, &topology)?;
            if arguments.fill.is_some() {
                return inputs::fill(strategy, &topology, &request, claims);
            }
            match inputs::make_plan(strategy, &topology, &request, claims) {
                Err(failure) => {
                    let request = without_reserve(arguments, &spec, request, failure)?;
                    inputs::make_plan(strategy, &topology, &request, claims)
                }
                planned => planned,
            }
        }
    })?;
    if let Some(format) = arguments.emit {
        let target = emit::Target {
            file: file.as_ref(),
            vnode: arguments.vnode.as_deref(),
            command: &*command,
        };
        let text = emit::emit(format, &plan, &topology, &target)?;
        for finding in plan.findings.iter().filter(|found| found.severity > Severity::Note) {
            output::print_message(&finding.to_string());
        }
        output::document(&text);
        return Ok(());
    }
    show(arguments, &plan, &topology);
    Ok(())
}

/// Prints the strategies as text or JSON.
fn print_strategies(json: bool) {
    let list = if json { json!(StrategyList::new()).to_string() } else { list() };
    output::print_data(&list);
}

/// Prints the plan as JSON, with its reasons, or as an outline.
fn show(arguments: &PlanArgs, plan: &Plan, topology: &Topology) {
    let columns = usize::from(screen::width());
    if arguments.json {
        output::print_data(&pinfold_plan::schema::to_json(plan));
    } else if arguments.explain {
        output::print_data(&pinfold_plan::explain(plan, topology, columns));
    } else {
        output::print_data(&pinfold_plan::outline(plan, topology, columns));
        output::show("(--explain gives the reasons; --emit FORMAT writes it for other tools)");
    }
}

/// The machine of the command line, if there is one; options that its hypervisor would reject are
/// rejected here.
fn spec(arguments: &PlanArgs, command: &dyn MachineCommand) -> Result<MachineSpec, Failure> {
    command.check()?;
    let spec = command.spec();
    match spec.unread {
        Some(file) if spec.vcpus.is_none() && arguments.vcpus.is_none() => Err(Failure::new(
            Exit::Input,
            format!("the number of vCPUs may be in {file}, which Pinfold does not read"),
        )
        .with_hint("give it with --vcpus")),
        Some(_) | None => Ok(spec),
    }
}

/// The request from the options; for one machine without further options, from its domain file or
/// its command line.
fn request(
    arguments: &PlanArgs,
    file: Option<&emit::DomainFile>,
    spec: &MachineSpec,
    topology: &Topology,
) -> Result<Request, Failure> {
    let mut vnodes = Vec::new();
    for words in &arguments.vm {
        vnodes.push(inputs::name_option("--vm", requests::parse_vm_spec(words))?);
    }
    if let Some(words) = &arguments.fill {
        let named = if has_name(words) { words.clone() } else { format!("name=vm,{words}") };
        vnodes.push(inputs::name_option("--fill", requests::parse_vm_spec(&named))?);
    }
    for words in &arguments.group {
        vnodes.push(inputs::name_option("--group", requests::parse_group_spec(words))?);
    }
    if vnodes.is_empty() {
        let described = match file {
            Some(file) => inputs::vnode_of_domain(&file.domain, topology),
            None => {
                let vcpus = spec.max_vcpus.map_or(VcpuCount::Auto, VcpuCount::Exactly);
                machine_request::vnode(spec, vcpus, topology)
            }
        };
        vnodes.push(asked_vnode(arguments, described)?);
    }
    let mut request = common::request(&arguments.placement, vnodes, topology)?;
    if let Some(file) = file.filter(|file| file.domain.has_reserve()) {
        Vcpus::from_domain(&file.domain).map_pins_to_indexes(&mut request)?;
    }
    for device in &arguments.interrupts {
        request.interrupts.push(inputs::name_option("--interrupts", requests::device(device))?);
    }
    Ok(request)
}

/// The request for the vCPUs at the start of a command line whose later ones have no room: they
/// float when they are added.
///
/// # Errors
/// The failure to plan all of them, if none is added later.
fn without_reserve(
    arguments: &PlanArgs,
    spec: &MachineSpec,
    mut request: Request,
    failure: Failure,
) -> Result<Request, Failure> {
    let (Some(first), Some(most)) = (spec.vcpus, spec.max_vcpus) else { return Err(failure) };
    let [VnodeRequest { work: Work::Vm(vm), .. }] = request.vnodes.as_mut_slice() else {
        return Err(failure);
    };
    if first >= most || arguments.vcpus.is_some() || !arguments.vm.is_empty() {
        return Err(failure);
    }
    inputs::set_vcpus(vm, VcpuCount::Exactly(first));
    output::print_message(&format!(
        "note: {} at the start are planned; the {} that can be added later (maxcpus={most}) do not \
         fit on this host and would not be pinned: {}",
        count_noun(first as usize, "vCPU"),
        most - first,
        failure.message
    ));
    Ok(request)
}

/// True if words such as `name=web,vcpus=4` have a name.
fn has_name(words: &str) -> bool {
    words.split([',', ' ']).any(|word| word.starts_with("name="))
}

/// The machine with the values of the options in place of those of its description.
fn asked_vnode(arguments: &PlanArgs, mut vnode: VnodeRequest) -> Result<VnodeRequest, Failure> {
    if let Some(name) = &arguments.name {
        vnode.name = inputs::name_option("--name", requests::vnode_name(name))?;
    }
    if let Work::Vm(vm) = &mut vnode.work {
        if let Some(text) = &arguments.vcpus {
            inputs::set_vcpus(vm, vcpu_count(text)?);
        }
        if !arguments.iothreads.is_empty() {
            vm.iothreads.clone_from(&arguments.iothreads);
        }
    }
    Ok(vnode)
}

fn vcpu_count(text: &str) -> Result<VcpuCount, Failure> {
    if text == "auto" {
        return Ok(VcpuCount::Auto);
    }
    match text.parse() {
        Ok(number) if number > 0 => Ok(VcpuCount::Exactly(number)),
        Ok(_) => {
            Err(Failure::new(Exit::Input, "--vcpus 0: a virtual machine has at least one vCPU")
                .with_hint("--vcpus auto lets the strategy choose"))
        }
        Err(_) => Err(Failure::new(
            Exit::Input,
            format!("--vcpus {text:?} is neither a number of vCPUs nor auto"),
        )),
    }
}

/// The strategies as a table.
pub fn list() -> String {
    let mut table = screen::rows();
    table.set_header(["strategy", "what it does", "source"]);
    for strategy in pinfold_plan::strategies() {
        table.add_row([strategy.name, strategy.summary, strategy.source]);
    }
    screen::draw_table(table, 0..0)
}
