//! systemd units: a slice for the machine, a drop-in for its service, and the host kept off.
//!
//! `AllowedCPUs=` and `AllowedMemoryNodes=` write the cgroup's cpuset
//! (`systemd.resource-control(5)`); `CPUAffinity=` and `NUMAPolicy=` are what QEMU's threads begin
//! with (`systemd.exec(5)`). No unit has a word for single threads: the vCPUs' own pins need
//! `pinfold apply`, which the drop-in names. Each file begins with `# FILE:` and its path.

use pinfold_model::{Plan, Role, VnodePlan};

use crate::cells::node_list;

use super::held::{headline, plain_name, reserved};

/// The files, one after the other, each under a line `# FILE: PATH`.
#[must_use]
pub fn systemd((plan, vnode): (&Plan, &VnodePlan)) -> String {
    let name = plain_name(vnode);
    let pus = vnode.pus();
    let mut text = format!("# FILE: /etc/systemd/system/pinfold-{name}.slice\n");
    text.push_str(&format!("# {}\n", headline(plan)));
    text.push_str(&format!(
        "[Unit]\nDescription=PUs of the virtual machine {name}\n\n[Slice]\nAllowedCPUs={pus}\n"
    ));
    let nodes = vnode.memory.as_ref().map(|memory| node_list(&memory.nodes));
    if let Some(nodes) = &nodes {
        text.push_str(&format!("AllowedMemoryNodes={nodes}\n"));
    }
    text.push('\n');
    text.push_str(&format!(
        "# FILE: /etc/systemd/system/pinfold-{name}.service.d/50-pinfold.conf\n\
         # For the service pinfold-{name}.service; another service's name goes into this path.\n\
         [Service]\nSlice=pinfold-{name}.slice\n"
    ));
    if let Some(emulator) = vnode.thread(&Role::Emulator) {
        text.push_str(&format!(
            "# Every thread begins here, until its own pin is set.\nCPUAffinity=\nCPUAffinity={}\n",
            emulator.pus
        ));
    }
    if let Some(nodes) = &nodes {
        text.push_str(&format!("NUMAPolicy=bind\nNUMAMask={nodes}\n"));
    }
    text.push_str(
        "# systemd has no word for single threads. The vCPUs' pins, from a QEMU with\n\
         # -qmp unix:%t/pinfold.sock,server=on,wait=off and the plan (`--json`) in a file:\n\
         # ExecStartPost=pinfold apply --qmp %t/pinfold.sock --plan /etc/pinfold/plan.json\n\n",
    );
    if reserved(plan).is_empty() {
        text.push_str("# This plan shares its PUs with the host: no unit keeps other tasks off.\n");
        return text;
    }
    for unit in ["init.scope", "system.slice", "user.slice"] {
        text.push_str(&format!("# FILE: /etc/systemd/system/{unit}.d/50-pinfold.conf\n"));
        if unit == "init.scope" {
            text.push_str(
                "# The host's own tasks. Needs cgroup v2. A reset of AllowedCPUs= is only complete after a\n\
                 # reboot: try `systemctl set-property --runtime system.slice AllowedCPUs=…` first.\n",
            );
        }
        let section = if unit == "init.scope" { "Scope" } else { "Slice" };
        text.push_str(&format!("[{section}]\nAllowedCPUs={}\n\n", plan.housekeeping));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
