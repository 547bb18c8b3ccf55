//! A request as the command line that asks the same: what a hint can name.

use pinfold_model::{
    Device, EmulatorWish, Free, IsolationScope, Policy, PolicyWish, Preference, Request, SmtWish,
    Source, Topology, VcpuCount, VmRequest, VnodeRequest, Work,
};

use crate::emit::quote;

/// `pinfold plan …` for this request under this strategy, on the machine of this topology; of a
/// request with pins by hand, or with what a domain file fixes, only what it says of preference.
pub(crate) fn plan(strategy: &str, topology: &Topology, request: &Request) -> String {
    let fixed = |vnode: &VnodeRequest| match &vnode.work {
        Work::Vm(vm) => !vm.nodes.is_empty() || !vm.cells.is_empty() || !vnode.pins.is_empty(),
        Work::Processes { .. } => !vnode.pins.is_empty(),
    };
    if request.vnodes.iter().any(fixed) {
        return format!("add `--prefer {}`", request.prefer);
    }
    let Request { vnodes, avoid, isolation, free, interrupts, emulator, prefer } = request;
    let mut words = vec!["pinfold plan".to_owned()];
    let mut say = |option: &str, value: String| words.push(format!("{option} {}", quote(&value)));
    if strategy != "auto" {
        say("--strategy", strategy.to_owned());
    }
    match vnodes.as_slice() {
        [VnodeRequest { work: Work::Vm(vm), .. }] if plain(&vnodes[0], vm) => {
            if let VcpuCount::Exactly(count) = vm.vcpus {
                say("--vcpus", count.to_string());
            }
            if vnodes[0].name != "vm" {
                say("--name", vnodes[0].name.clone());
            }
            vm.iothreads.iter().for_each(|id| say("--iothread", id.clone()));
        }
        _ => {
            for vnode in vnodes {
                let option = if matches!(vnode.work, Work::Vm(_)) { "--vm" } else { "--group" };
                say(option, vnode_words(vnode));
            }
        }
    }
    if !avoid.is_empty() {
        say("--avoid", avoid.to_string());
    }
    if *isolation != IsolationScope::None {
        say("--isolate", isolation.to_string());
    }
    match free {
        None => {}
        Some(Free::Pus(count)) => say("--free", count.to_string()),
        Some(Free::Percent(percent)) => say("--free", format!("{percent}%")),
        Some(Free::These(pus)) => say("--host-pus", pus.to_string()),
    }
    interrupts.iter().for_each(|device| say("--interrupts", device_word(device)));
    if *emulator != EmulatorWish::Usual {
        say("--emulator", emulator.to_string());
    }
    if *prefer != Preference::Auto {
        say("--prefer", prefer.to_string());
    }
    match &topology.source {
        Source::Live => {}
        Source::Captured(input) | Source::Synthetic(input) => say("--input", input.clone()),
    }
    words.join(" ")
}

/// True if `--vcpus`, `--name` and `--iothread` say all of it.
fn plain(vnode: &VnodeRequest, vm: &VmRequest) -> bool {
    let VnodeRequest { name: _, work: _, memory, devices, priority, policies, pins: _ } = vnode;
    let VmRequest { vcpus: _, iothreads: _, vhosts, smt, nodes: _, cells: _ } = vm;
    memory.is_none()
        && devices.is_empty()
        && *priority == 0
        && policies.is_empty()
        && *vhosts == 0
        && *smt == SmtWish::Auto
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
                SmtWish::Auto => {}
                SmtWish::Shown => words.push("smt=true".to_owned()),
                SmtWish::Hidden => words.push("smt=false".to_owned()),
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
    let joined = |list: Vec<String>| list.join("+");
    if !vnode.devices.is_empty() {
        words.push(format!("devices={}", joined(vnode.devices.iter().map(device_word).collect())));
    }
    if vnode.priority != 0 {
        words.push(format!("priority={}", vnode.priority));
    }
    if !vnode.policies.is_empty() {
        let policies = vnode.policies.iter().filter_map(policy_word).collect();
        words.push(format!("policies={}", joined(policies)));
    }
    words.join(",")
}

fn device_word(device: &Device) -> String {
    match device {
        Device::Pci(address) => address.clone(),
        Device::Node(node) => format!("node:{node}"),
    }
}

/// `vcpu=fifo:1`; none for a policy that cannot be asked for.
fn policy_word(wish: &PolicyWish) -> Option<String> {
    let policy = match wish.policy {
        Policy::Other { nice } => format!("other:{nice}"),
        Policy::Batch { nice } => format!("batch:{nice}"),
        Policy::Idle => "idle".to_owned(),
        Policy::Fifo { priority } => format!("fifo:{priority}"),
        Policy::RoundRobin { priority } => format!("rr:{priority}"),
        Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
            let [run, deadline, period] = [runtime_ns, deadline_ns, period_ns].map(|ns| ns / 1000);
            format!("deadline:{run}/{deadline}/{period}")
        }
        Policy::Unknown(_) => return None,
    };
    Some(format!("{}={policy}", wish.role))
}
