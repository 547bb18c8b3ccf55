//! systemd units: a slice for the machine, a drop-in for its service, and isolation of the host's
//! tasks.
//!
//! `AllowedCPUs=` and `AllowedMemoryNodes=` write the cgroup's cpuset
//! (`systemd.resource-control(5)`); `CPUAffinity=` and `NUMAPolicy=` are the initial settings of
//! QEMU's threads (`systemd.exec(5)`). A unit cannot express single threads: the vCPUs' own pins
//! need `pinfold apply`, which the drop-in names. Each file begins with `# FILE:` and its path.

use pinfold_model::tunables::{FormatAnswer, Place, Scope, Setting};
use pinfold_model::{NotSingleVnode, Plan, Role, Speed, VnodeKind};

use super::common::{headline, plain_name, policy, reserved_cpus};
use super::format::{Format, Syntax};
use pinfold_plan::guest_numa::node_list;

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "systemd",
    summary: "A slice, a service drop-in, and the host's slices",
    is_of_host: false,
    can_merge: false,
    syntax: Syntax::Lines,
    write: |plan, _, _| systemd(plan),
    together: None,
    tunable: files,
};

/// The files, one after the other, each after a line `# FILE: PATH`.
///
/// # Errors
/// [`NotSingleVnode`] if the plan does not place exactly one vnode.
pub fn systemd(plan: &Plan) -> Result<String, NotSingleVnode> {
    let vnode = plan.single_vnode()?;
    let name = plain_name(vnode);
    let pus = vnode.pus();
    let mut text = format!("# FILE: /etc/systemd/system/pinfold-{name}.slice\n");
    text.push_str(&format!("# {}\n", headline(plan)));
    text.push_str(&format!("[Unit]\nDescription=CPUs of {name}\n\n[Slice]\nAllowedCPUs={pus}\n"));
    let nodes = vnode.memory.as_ref().map(|memory| (node_list(&memory.nodes), policy(memory)));
    if let Some((nodes, "bind")) = &nodes {
        text.push_str(&format!("AllowedMemoryNodes={nodes}\n"));
    }
    let tunables = FORMAT.answers(Scope::of_vnode(plan, vnode));
    text.push_str(&tunables.text(SLICE));
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
    if let Some((nodes, policy)) = &nodes {
        text.push_str(&format!("NUMAPolicy={policy}\nNUMAMask={nodes}\n"));
    }
    text.push_str(&tunables.text(SERVICE));
    if vnode.speed != Speed::FULL {
        text.push_str(&format!(
            "# systemd cannot express the speed {}: use `pinfold emulate`. CPUQuota= limits CPU \
             time, it does not slow the CPU.\n",
            vnode.speed
        ));
    }
    let machine = vnode.kind == VnodeKind::VirtualMachine;
    text.push_str(if !machine {
        ""
    } else {
        "# systemd has no directive for single threads. The vCPUs' pins, from a QEMU with\n# -qmp \
         unix:%t/pinfold.sock,server=on,wait=off and the plan (`--json`) in a file:\n# \
         ExecStartPost=pinfold apply --qmp %t/pinfold.sock --plan /etc/pinfold/plan.json\n"
    });
    text.push_str(&tunables.missing_text("systemd"));
    text.push('\n');
    for (place, path) in [(SYSCTL, "sysctl.d"), (TMPFILES, "tmpfiles.d")] {
        let lines = tunables.text(place);
        if !lines.is_empty() {
            text.push_str(&format!("# FILE: /etc/{path}/50-pinfold-{name}.conf\n{lines}\n"));
        }
    }
    host(&mut text, plan);
    Ok(text)
}

/// Excludes the host's own tasks from the vCPUs' CPUs.
fn host(text: &mut String, plan: &Plan) {
    if reserved_cpus(plan).is_empty() {
        text.push_str("# This plan shares its CPUs with the host: no unit excludes other tasks.\n");
        return;
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
}

/// The slice's own section.
const SLICE: &str = "slice";
/// The drop-in of the service.
const SERVICE: &str = "service";
/// A file of sysctl.d.
const SYSCTL: &str = "sysctl";
/// A file of tmpfiles.d.
const TMPFILES: &str = "tmpfiles";

/// The files that systemd writes at boot for a tunable of the host.
fn files(setting: &Setting, scope: &Scope<'_>) -> FormatAnswer {
    let Some(kernel) = setting.tunable.kernel else { return FormatAnswer::host() };
    let files = setting.tunable.files(&setting.value, &scope.pus()).into_iter();
    match kernel.place {
        Place::Sysctl(name) => FormatAnswer::lines(
            SYSCTL,
            files.map(|(_, value)| format!("{name} = {value}")).collect(),
        ),
        Place::Host(_) | Place::Cpu(_) | Place::Pool => FormatAnswer::lines(
            TMPFILES,
            files.map(|(path, value)| write_line(&path, &value)).collect(),
        ),
    }
}

/// A line of tmpfiles.d that writes to an existing file (`tmpfiles.d(5)`).
fn write_line(path: &str, value: &str) -> String {
    format!("w {path} - - - - {}", value.replace('%', "%%"))
}
