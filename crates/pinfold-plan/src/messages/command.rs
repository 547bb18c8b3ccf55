//! Commands for hints, with all options of the request, so that the user can run them unchanged.

use pinfold_model::{
    Command, Device, EmulatorRequest, FreeCpus, IsolationScope, MemoryRequest, PinRequest, Plan,
    Policy, PolicyRequest, Preference, Request, Role, RoleKind, SmtRequest, Source, ThreadPlan,
    Topology, VcpuCount, VmRequest, VnodeKind, VnodePlan, VnodeRequest, Work,
};

pub use pinfold_model::command::quote;

use crate::strategies::strategies;

/// A hint with the command that plans this request under this strategy, for the machine of this
/// topology. Properties that a domain file fixes have no options; for such a request the hint names
/// only the preference, to be added to the user's command.
pub fn hint(strategy: &str, topology: &Topology, request: &Request) -> String {
    if request.vnodes.iter().any(|vnode| match &vnode.work {
        Work::Vm(vm) => !vm.nodes.is_empty() || !vm.cells.is_empty(),
        Work::Processes { .. } => false,
    }) {
        return format!("add `--prefer {}`", request.prefer);
    }
    format!("`{}`", plan(strategy, topology, request))
}

/// `pinfold plan …` for this request under this strategy, on the machine of this topology.
pub fn plan(strategy: &str, topology: &Topology, request: &Request) -> String {
    add_topology_option(
        &add_request_options(&of_vnodes(strategy, &request.vnodes), request),
        topology,
    )
}

/// The command without the conditions.
fn of_vnodes(strategy: &str, vnodes: &[VnodeRequest]) -> String {
    let mut words = vec!["pinfold plan".to_owned()];
    if strategy != "auto" {
        say("--strategy", strategy.to_owned(), &mut words);
    }
    match vnodes {
        [vnode @ VnodeRequest { work: Work::Vm(vm), .. }] if plain(vnode, vm) => {
            if let VcpuCount::Exactly(count) = vm.vcpus {
                say("--vcpus", count.to_string(), &mut words);
            }
            if vnode.name != "vm" {
                say("--name", vnode.name.clone(), &mut words);
            }
            vm.iothreads.iter().for_each(|id| say("--iothread", id.clone(), &mut words));
            vnode
                .pins
                .iter()
                .for_each(|pin_request| say("--pin", pin_word(pin_request), &mut words));
        }
        vnodes => {
            for vnode in vnodes {
                let option = if matches!(vnode.work, Work::Vm(_)) { "--vm" } else { "--group" };
                say(option, vnode_words(vnode), &mut words);
            }
        }
    }
    words.join(" ")
}

fn say(option: &str, value: String, words: &mut Vec<String>) {
    words.push(format!("{option} {}", quote(&value)))
}

/// Adds the option that names the machine of this topology, unless it is this machine.
pub fn add_topology_option(command: &str, topology: &Topology) -> String {
    match &topology.source {
        Source::Live => command.to_owned(),
        Source::Captured(input) | Source::Synthetic(input) => {
            format!("{command} --input {}", quote(input))
        }
    }
}

/// Adds the options for the conditions of this request: CPUs to avoid or keep free, isolation and
/// preference.
pub fn add_request_options(command: &str, request: &Request) -> String {
    let Request { vnodes: _, avoid, isolation, free, interrupts, emulator, prefer, load: _ } =
        request;
    let mut words = vec![command.to_owned()];
    if !avoid.is_empty() {
        say("--avoid", avoid.to_string(), &mut words);
    }
    if *isolation != IsolationScope::None {
        say("--isolate", isolation.to_string(), &mut words);
    }
    match free {
        None => {}
        Some(FreeCpus::Pus(count)) => say("--free", count.to_string(), &mut words),
        Some(FreeCpus::Percent(percent)) => say("--free", format!("{percent}%"), &mut words),
        Some(FreeCpus::These(pus)) => say("--host-cpus", pus.to_string(), &mut words),
    }
    interrupts.iter().for_each(|device| say("--interrupts", device_word(device), &mut words));
    if *emulator != EmulatorRequest::Usual {
        say("--emulator", emulator.to_string(), &mut words);
    }
    if *prefer != Preference::Auto {
        say("--prefer", prefer.to_string(), &mut words);
    }
    words.join(" ")
}

/// `pinfold apply` for a running libvirt domain, isolated from the host's tasks. The strategy is
/// repeated if `apply` would select another one without it.
pub fn apply_isolated(domain: &str, strategy: Option<&str>) -> String {
    let apply = Command::new("apply --libvirt").arg(domain);
    format!("{} --isolate host", with_strategy(&apply.to_string(), strategy))
}

/// A command with this strategy, unless it is the default `auto` or no strategy of that name
/// exists (`apply` accepts no other).
pub fn with_strategy(command: &str, strategy: Option<&str>) -> String {
    match strategy.filter(|name| *name != "auto" && strategies().iter().any(|it| it.name == *name))
    {
        Some(strategy) => format!("{command} --strategy {strategy}"),
        None => command.to_owned(),
    }
}

/// The command that plans the vnodes of a plan again on this machine, as far as the plan contains
/// the request.
pub fn plan_command(plan: &Plan) -> String {
    command_for(plan, &requests_of_plan(plan))
}

/// The same with this number of vCPUs for one of the machines.
pub fn plan_command_with_vcpus(plan: &Plan, machine: &str, vcpus: u32) -> String {
    let vnodes = plan.vnodes.iter();
    let vnodes = vnodes.map(|it| vnode_request(it, (it.name == machine).then_some(vcpus)));
    command_for(plan, &vnodes.collect::<Vec<_>>())
}

fn command_for(plan: &Plan, vnodes: &[VnodeRequest]) -> String {
    let isolate = match plan.isolation {
        IsolationScope::None => String::new(),
        scope @ (IsolationScope::Own | IsolationScope::Host) => format!(" --isolate {scope}"),
    };
    format!("{}{isolate} --json", of_vnodes(&plan.strategy, vnodes))
}

/// The command that plans the same with isolation under this strategy, in an output format.
pub fn isolation_command(plan: &Plan, topology: &Topology, strategy: &str, format: &str) -> String {
    let command =
        format!("{} --isolate host --emit {format}", of_vnodes(strategy, &requests_of_plan(plan)));
    add_topology_option(&command, topology)
}

/// The requests for the vnodes of a plan, as far as the plan contains them.
pub fn requests_of_plan(plan: &Plan) -> Vec<VnodeRequest> {
    plan.vnodes.iter().map(|vnode| vnode_request(vnode, None)).collect()
}

/// The request for one vnode of a plan.
fn vnode_request(vnode: &VnodePlan, vcpus: Option<u32>) -> VnodeRequest {
    let request = match vnode.kind {
        VnodeKind::VirtualMachine => {
            let count =
                vcpus.unwrap_or_else(|| vnode.vcpus().zip(1..).last().map_or(1, |(_, n)| n));
            let vhosts = vnode.threads.iter().filter(|one| matches!(one.role, Role::Vhost(_)));
            let vm = VmRequest {
                iothreads: vnode
                    .threads
                    .iter()
                    .filter_map(|one: &ThreadPlan| one.role.iothread().map(str::to_owned))
                    .collect(),
                vhosts: vhosts.zip(1..).last().map_or(0, |(_, n)| n),
                ..VmRequest::from_vcpus(VcpuCount::Exactly(count))
            };
            VnodeRequest::vm(&vnode.name, vm)
        }
        VnodeKind::ProcessGroup => {
            let cores = vnode.threads.iter().map(|thread| thread.pus.len()).max().unwrap_or(1);
            let cores = u32::try_from(cores).unwrap_or(u32::MAX);
            VnodeRequest::processes(&vnode.name, cores, vnode.speed)
        }
    };
    let memory = vnode.memory.as_ref().and_then(|memory| {
        memory.bytes.map(|bytes| MemoryRequest { bytes, page_bytes: memory.page_bytes })
    });
    VnodeRequest { memory, ..request }
}

/// True if `--vcpus`, `--name` and `--iothread` express the whole request.
fn plain(vnode: &VnodeRequest, vm: &VmRequest) -> bool {
    // Pins have a separate option.
    let VnodeRequest { name: _, work: _, memory, devices, priority, policies, pins: _ } = vnode;
    let VmRequest { vcpus: _, iothreads: _, vhosts, smt, nodes: _, cells: _ } = vm;
    memory.is_none()
        && devices.is_empty()
        && *priority == 0
        && policies.is_empty()
        && *vhosts == 0
        && *smt == SmtRequest::Auto
}

/// `name=web,vcpus=4,iothreads=disk+net`
fn vnode_words(vnode: &VnodeRequest) -> String {
    let mut words = vec![format!("name={}", vnode.name)];
    match &vnode.work {
        Work::Vm(vm) => {
            if let VcpuCount::Exactly(count) = vm.vcpus {
                words.push(format!("vcpus={count}"));
            }
            if !vm.iothreads.is_empty() {
                words.push(format!("iothreads={}", vm.iothreads.join("+")));
            }
            if vm.vhosts > 0 {
                words.push(format!("vhosts={}", vm.vhosts));
            }
            match vm.smt {
                SmtRequest::Auto => {}
                SmtRequest::Shown => words.push("smt=true".to_owned()),
                SmtRequest::Hidden => words.push("smt=false".to_owned()),
            }
        }
        Work::Processes { cores, speed } => {
            words.push(format!("cores={cores}"));
            words.push(format!("speed={speed}"));
        }
    }
    if let Some(memory) = vnode.memory {
        words.push(format!("memory={}", memory.bytes));
        words.extend(memory.page_bytes.map(|bytes| format!("huge-pages={bytes}")));
    }
    fn join_list(list: Vec<String>) -> String {
        list.join("+")
    }
    if !vnode.devices.is_empty() {
        words.push(format!(
            "devices={}",
            join_list(vnode.devices.iter().map(device_word).collect())
        ));
    }
    if vnode.priority != 0 {
        words.push(format!("priority={}", vnode.priority));
    }
    if !vnode.policies.is_empty() {
        let policies = vnode.policies.iter().filter_map(policy_word).collect();
        words.push(format!("policies={}", join_list(policies)));
    }
    if !vnode.pins.is_empty() {
        words.push(format!("pins={}", join_list(vnode.pins.iter().map(pin_word).collect())));
    }
    words.join(",")
}

/// `vcpu3=7`, `iothread:disk=9`
/// A pin by hand as `--pin` takes it: `vcpu3=7`, `iothread:disk=9`.
pub fn pin_word(pin_request: &PinRequest) -> String {
    let has_ids = RoleKind::of_text(&pin_request.role).is_some_and(RoleKind::has_ids);
    let role = match pin_request.role.split_once('(') {
        Some((kind, id)) if has_ids => format!("{kind}:{}", id.trim_end_matches(')')),
        Some((kind, number)) => format!("{kind}{}", number.trim_end_matches(')')),
        None => pin_request.role.clone(),
    };
    format!("{role}={}", pin_request.pus)
}

fn device_word(device: &Device) -> String {
    match device {
        Device::Pci(address) => address.clone(),
        Device::Node(node) => format!("node:{node}"),
    }
}

/// `vcpu=fifo:1`; `None` for a policy that has no request syntax.
fn policy_word(pin_request: &PolicyRequest) -> Option<String> {
    let is_known = !matches!(pin_request.policy, Policy::Unknown { .. });
    is_known.then(|| format!("{}={}", pin_request.role, pin_request.policy.argument()))
}
