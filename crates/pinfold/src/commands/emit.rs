//! `pinfold plan --emit`: prints the plan in the format of another tool.

use pinfold_host::files;
use pinfold_model::{NotSingle, Plan, QemuCommand, Topology, VnodePlan};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::emit;
use pinfold_run::{Exit, Failure, inputs};

use crate::cli::Emit;
use crate::commands::check;
use crate::output;

/// A libvirt domain file of the user.
pub struct DomainFile {
    path: String,
    text: String,
    /// The parsed contents.
    pub domain: Domain,
}

impl DomainFile {
    /// Reads the file.
    pub fn read(path: &str) -> Result<Self, Failure> {
        let text = files::read_text(path).map_err(|error| inputs::input_failure(&error))?;
        let domain = check::read_domain(path, &text)?;
        Ok(Self { path: path.to_owned(), text, domain })
    }
}

/// The target of the output.
pub struct Target<'a> {
    /// The domain file to merge into.
    pub file: Option<&'a DomainFile>,
    /// The name of a vnode, if only that one is wanted.
    pub vnode: Option<&'a str>,
    /// The QEMU command.
    pub command: &'a QemuCommand,
}

/// The plan as `format`: one text for each vnode, unless the format is for the host.
pub fn emit(
    format: Emit,
    (plan, topology): (&Plan, &Topology),
    target: &Target<'_>,
) -> Result<String, Failure> {
    if let (Some(file), false) = (target.file, format == Emit::Libvirt) {
        let message = format!("--into {} goes with --emit libvirt only", file.path);
        return Err(Failure::new(Exit::Input, message).with_hint("leave --into out"));
    }
    match (format, target.vnode) {
        (Emit::Cmdline | Emit::Tuned, Some(name)) => {
            let message = format!("--vnode {name:?}: the format is for the host as a whole");
            return Err(Failure::new(Exit::Input, message).with_hint("leave --vnode out"));
        }
        (Emit::Cmdline, None) => return Ok(emit::cmdline(plan, topology)),
        (Emit::Tuned, None) => return Ok(emit::tuned(plan, topology)),
        (_, _) => {}
    }
    let chosen = target.vnode.map(|name| named(plan, name)).transpose()?;
    if let Some(file) = target.file {
        return into(file, (plan, topology), chosen);
    }
    match (chosen, plan.vnodes.as_slice()) {
        (Some(vnode), _) => one(format, (&plan.alone(vnode), topology), target),
        (None, [_]) => one(format, (plan, topology), target),
        (None, vnodes) => {
            let mut text = several_in_one(format, vnodes.len());
            for vnode in vnodes {
                text.push_str(&mark(format, &vnode.name));
                text.push_str(&one(format, (&plan.alone(vnode), topology), target)?);
            }
            Ok(text)
        }
    }
}

/// The text of a plan for one vnode.
fn one(
    format: Emit,
    (plan, topology): (&Plan, &Topology),
    target: &Target<'_>,
) -> Result<String, Failure> {
    let only = || plan.single().map(|vnode| (plan, vnode)).map_err(not_single);
    Ok(match format {
        Emit::Libvirt => emit::libvirt(plan, topology).map_err(not_single)?,
        Emit::Qemu => emit::qemu(plan, topology, target.command).map_err(not_single)?,
        Emit::Virsh => emit::virsh(only()?),
        Emit::Systemd => emit::systemd(only()?),
        Emit::Proxmox => emit::proxmox(only()?, topology),
        Emit::Kubevirt => emit::kubevirt(only()?, topology),
        Emit::Nova => emit::nova(only()?, topology),
        Emit::Cmdline => emit::cmdline(plan, topology),
        Emit::Tuned => emit::tuned(plan, topology),
    })
}

fn named<'p>(plan: &'p Plan, name: &str) -> Result<&'p VnodePlan, Failure> {
    plan.vnodes.iter().find(|vnode| vnode.name == name).ok_or_else(|| {
        let names: Vec<&str> = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
        Failure::new(Exit::Input, format!("--vnode: the plan places no {name:?}"))
            .with_hint(format!("it places {}", names.join(", ")))
    })
}

/// The text before those of several vnodes. Scripts that take one machine as their argument must
/// not run in sequence: such a file exits at once.
fn several_in_one(format: Emit, count: usize) -> String {
    let texts = format!("{count} texts, one for each vnode");
    let said = format!("{texts}; --vnode NAME prints one alone");
    match format {
        // No comment of XML holds two hyphens.
        Emit::Libvirt => {
            format!(
                "<!-- Pinfold: {texts}; the option vnode NAME (with two dashes) prints one alone -->\n"
            )
        }
        Emit::Qemu | Emit::Proxmox | Emit::Nova => {
            format!("#!/bin/sh\n# Pinfold: {said}\necho \"$0: {said}\" >&2\nexit 2\n")
        }
        Emit::Virsh | Emit::Systemd | Emit::Kubevirt | Emit::Cmdline | Emit::Tuned => {
            format!("# Pinfold: {said}\n")
        }
    }
}

/// The line before the text of a vnode.
fn mark(format: Emit, name: &str) -> String {
    let plain = |character: char| if character.is_control() { ' ' } else { character };
    let name: String = name.chars().map(plain).collect();
    match format {
        // Nor does one end with one.
        Emit::Libvirt => format!("<!-- ==== {} ==== -->\n", name.replace('-', "\u{2010}")),
        // Each is a separate document.
        Emit::Kubevirt => format!("---\n# ==== {name} ====\n"),
        Emit::Qemu
        | Emit::Virsh
        | Emit::Systemd
        | Emit::Proxmox
        | Emit::Nova
        | Emit::Cmdline
        | Emit::Tuned => format!("\n# ==== {name} ====\n"),
    }
}

fn into(
    file: &DomainFile,
    (plan, topology): (&Plan, &Topology),
    chosen: Option<&VnodePlan>,
) -> Result<String, Failure> {
    // With several machines: the one from the command line, or the one with the name in the file.
    let same = || plan.vnodes.iter().find(|vnode| vnode.name == file.domain.name);
    let vnode = match chosen.or_else(same) {
        Some(vnode) => vnode,
        None => plan.single().map_err(not_single)?,
    };
    let merged = emit::libvirt_into(&file.text, (plan, vnode), topology).map_err(|error| {
        let hint = error.hint.map(str::to_owned);
        let failure = Failure::from_error(Exit::Input, &error, hint);
        Failure { message: format!("{}: {}", file.path, failure.message), ..failure }
    })?;
    for note in &merged.notes {
        output::say(&format!("note: {note}"));
    }
    Ok(merged.text)
}

fn not_single(error: NotSingle) -> Failure {
    Failure::from_error(Exit::Input, &error, None)
        .with_hint("--vnode NAME picks one; --into picks the one with its file's name by itself")
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use pinfold_plan::{requests, tunables};

    use super::*;

    /// A new format must include the tunables too.
    #[test]
    fn every_format_of_the_command_line_names_the_tunables() {
        let text = "package:1 l3:1 core:4 pu:2";
        let host = pinfold_host::LiveHost::new().unwrap();
        let topology = pinfold_topology::read_input(&host, text).unwrap();
        let request = pinfold_model::Request::vm("vm", pinfold_model::VcpuCount::Exactly(2));
        let mut plan = pinfold_plan::plan("low-latency", &topology, &request).unwrap();
        for words in ["ksm=run", "share=MB:0=20", "cpu-weight=7", "irq:node:0=0", "smt=on"] {
            requests::knob(&mut plan, words).unwrap();
        }
        let command = QemuCommand::default();
        let target = Target { file: None, vnode: None, command: &command };
        for format in Emit::value_variants() {
            let text = emit(*format, (&plan, &topology), &target).unwrap_or_else(|failure| {
                panic!("{format:?}: {}", failure.message);
            });
            for tunable in tunables(&plan) {
                assert!(text.contains(&tunable.to_string()), "{format:?} lacks {tunable}:\n{text}");
            }
        }
    }
}
