//! `virsh` commands for an existing domain, running or not.
//!
//! `vcpupin`, `emulatorpin`, `iothreadpin` and `numatune` take `--live` (the running domain) and
//! `--config` (from the next start on), which are the script's arguments. The number of vCPUs, the
//! guest topology and the schedulers have no command; they need the domain file
//! (<https://www.libvirt.org/manpages/virsh.html>).

use pinfold_model::command::quote;
use pinfold_model::tunables::{FormatAnswer, Scope};
use pinfold_model::{NotSingleVnode, Plan, Role, VnodePlan};
use pinfold_plan::guest_numa::node_list;

use super::common::{self, headline, replace_control_chars};
use super::format::{Format, Syntax};
use super::libvirt::mode_of;
use pinfold_plan::text::mib;

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "virsh",
    summary: "A script of virsh commands for an existing domain",
    is_of_host: false,
    can_merge: false,
    syntax: Syntax::Lines,
    write: |plan, _, _| virsh(plan),
    together: None,
    tunable: |_, _| FormatAnswer::host(),
};

/// A shell script of `virsh` commands that pin the domain `vnode.name` as planned.
///
/// # Errors
/// [`NotSingleVnode`] if the plan does not place exactly one vnode.
pub fn virsh(plan: &Plan) -> Result<String, NotSingleVnode> {
    let vnode = plan.single_vnode()?;
    if let Some(text) = common::process_group_text(vnode, "virsh") {
        return Ok(text);
    }
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
    // The emulator leaves the vCPUs' CPUs before the vCPUs move there.
    if let Some(emulator) = vnode.thread(&Role::Emulator) {
        add_line(
            format!("virsh emulatorpin --domain \"$domain\" --cpulist {} \"$@\"", emulator.pus),
            &mut script,
        );
    }
    let mut number = 0_u32;
    for thread in &vnode.threads {
        let pus = &thread.pus;
        if let Some(id) = thread.role.iothread() {
            number += 1;
            let own = id.strip_prefix("iothread").and_then(|rest| rest.parse().ok());
            let iothread = own.unwrap_or(number);
            add_line(format!("# {}", replace_control_chars(&thread.role.to_string())), &mut script);
            add_line(
                format!(
                    "virsh iothreadpin --domain \"$domain\" --iothread {iothread} --cpulist {pus} \"$@\""
                ),
                &mut script,
            );
        } else if thread.role.is_device() {
            add_line(
                format!("# libvirt has no pin for {}: the plan wants {pus}", thread.role),
                &mut script,
            );
        }
    }
    for thread in vnode.vcpus() {
        let (index, pus) = (thread.role.short(), &thread.pus);
        add_line(
            format!("virsh vcpupin --domain \"$domain\" --vcpu {index} --cpulist {pus} \"$@\""),
            &mut script,
        );
    }
    let tunables = FORMAT.answers(Scope::of_vnode(plan, vnode));
    script.push_str(&tunables.text(""));
    missing(&mut script, vnode);
    script.push_str(&common::not_isolated(plan, "virsh cannot"));
    script.push_str(&tunables.missing_text("virsh"));
    Ok(script)
}

/// Comments on settings without a command, and on memory, whose command takes effect at the next
/// start only.
fn missing(script: &mut String, vnode: &VnodePlan) {
    if let Some(memory) = &vnode.memory {
        let nodes = node_list(&memory.nodes);
        add_line(
            "# Allocated memory does not move: this applies from the next start on".to_owned(),
            script,
        );
        add_line(
            format!(
                "virsh numatune --domain \"$domain\" --mode {} --nodeset {nodes} --config",
                mode_of(memory)
            ),
            script,
        );
    }
    add_line(
        "\n# Not possible with a command, only in the domain file (`--emit libvirt --into FILE`):"
            .to_owned(),
        script,
    );
    if let Some(guest) = &vnode.guest {
        let (sockets, cores, threads) = (guest.sockets, guest.cores, guest.threads);
        add_line(
            format!("# the guest's topology {sockets}×{cores}×{threads}, from the next start on"),
            script,
        );
    }
    if let Some(page) = vnode.memory.as_ref().and_then(|memory| memory.page_bytes) {
        add_line(
            format!("# the memory in huge pages of {}, from the next start on", mib(page)),
            script,
        );
    }
    for thread in &vnode.threads {
        if let Some(policy) = thread.policy {
            add_line(
                format!(
                    "# {} under the policy {policy}",
                    replace_control_chars(&thread.role.to_string())
                ),
                script,
            );
        }
    }
}

fn add_line(text: String, script: &mut String) {
    script.push_str(&text);
    script.push('\n');
}
