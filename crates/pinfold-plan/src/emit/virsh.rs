//! `virsh` commands for a domain that exists, running or not.
//!
//! `vcpupin`, `emulatorpin`, `iothreadpin` and `numatune` take `--live` (what runs now) and
//! `--config` (from the next start on): the script's arguments. The number of vCPUs, the guest's
//! topology and the schedulers have no command: those need the domain file
//! (<https://www.libvirt.org/manpages/virsh.html>).

use pinfold_model::{Plan, Role, VnodePlan};

use super::held::headline;
use super::qemu::{quote, safe};
use crate::cells::node_list;

/// A shell script of `virsh` commands that pin the domain `vnode.name` as planned.
#[must_use]
pub fn virsh((plan, vnode): (&Plan, &VnodePlan)) -> String {
    let mut script = format!(
        "#!/bin/sh\n# {}\n\
         # sh THIS --live      what runs now, until it ends\n\
         # sh THIS --config    from the next start on\n\
         # sh THIS             both; needs a domain that runs\n\
         set -eu\n\
         [ $# -gt 0 ] || set -- --live --config\n\
         domain={}\n\n",
        headline(plan),
        quote(&vnode.name)
    );
    let mut line = |text: String| {
        script.push_str(&text);
        script.push('\n');
    };
    // The emulator leaves the vCPUs' PUs before they come.
    if let Some(emulator) = vnode.thread(&Role::Emulator) {
        line(format!("virsh emulatorpin --domain \"$domain\" --cpulist {} \"$@\"", emulator.pus));
    }
    let mut number = 0_u32;
    for thread in &vnode.threads {
        let pus = &thread.pus;
        match &thread.role {
            Role::Iothread(id) => {
                number += 1;
                let own = id.strip_prefix("iothread").and_then(|rest| rest.parse().ok());
                let iothread = own.unwrap_or(number);
                line(format!("# {}", safe(&thread.role.to_string())));
                line(format!(
                    "virsh iothreadpin --domain \"$domain\" --iothread {iothread} --cpulist {pus} \"$@\""
                ));
            }
            Role::Vhost(_) => {
                line(format!("# libvirt has no pin for {}: the plan wants {pus}", thread.role));
            }
            Role::Vcpu(_) | Role::Emulator | Role::Worker | Role::Task => {}
        }
    }
    for thread in vnode.vcpus() {
        let (index, pus) = (thread.role.short(), &thread.pus);
        line(format!("virsh vcpupin --domain \"$domain\" --vcpu {index} --cpulist {pus} \"$@\""));
    }
    missing(&mut script, vnode);
    script
}

/// What has no command, and memory, which has one for the next start only.
fn missing(script: &mut String, vnode: &VnodePlan) {
    let mut line = |text: String| {
        script.push_str(&text);
        script.push('\n');
    };
    if let Some(memory) = &vnode.memory {
        let nodes = node_list(&memory.nodes);
        line("# Memory that is there already does not move: from the next start on".to_owned());
        line(format!(
            "virsh numatune --domain \"$domain\" --mode strict --nodeset {nodes} --config"
        ));
    }
    line(
        "\n# Not to be had by a command, only in the domain file (`--emit libvirt --into FILE`):"
            .to_owned(),
    );
    if let Some(guest) = &vnode.guest {
        let (sockets, cores, threads) = (guest.sockets, guest.cores, guest.threads);
        line(format!("# the guest's topology {sockets}×{cores}×{threads}, from the next start on"));
    }
    for thread in &vnode.threads {
        if let Some(policy) = thread.policy {
            line(format!("# {} under the policy {policy}", safe(&thread.role.to_string())));
        }
    }
}
