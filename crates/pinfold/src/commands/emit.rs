//! `pinfold plan --emit`: prints the plan in the format of another tool.

use pinfold_emit::Format;
use pinfold_host::files;
use pinfold_model::{NotSingleVnode, Plan, Topology, VnodePlan};
use pinfold_plan::domain_file::Domain;
use pinfold_run::{Exit, Failure, inputs, plans};
use pinfold_vm::{MachineCommand, qemu};

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
    /// The command line of the machine.
    pub command: &'a dyn MachineCommand,
}

/// The plan as `format`: one text for each vnode, unless the format is for the host.
pub fn emit(
    format: &Format,
    plan: &Plan,
    topology: &Topology,
    target: &Target<'_>,
) -> Result<String, Failure> {
    if let (Some(file), false) = (target.file, format.can_merge) {
        let message = format!("--into {} needs --emit libvirt", file.path);
        return Err(Failure::new(Exit::Input, message).with_hint("omit --into"));
    }
    let command = qemu::command_of(target.command);
    let text = |plan: &Plan| format.text(plan, topology, &command).map_err(not_single);
    if format.is_of_host {
        return match target.vnode {
            None => text(plan),
            Some(name) => {
                let message = format!("--vnode {name:?}: this format describes the whole host");
                Err(Failure::new(Exit::Input, message).with_hint("omit --vnode"))
            }
        };
    }
    let chosen = target.vnode.map(|name| plans::find_vnode(plan, name)).transpose()?;
    if let Some(file) = target.file {
        return merge_into_domain(file, plan, topology, chosen);
    }
    match (chosen, plan.vnodes.as_slice()) {
        (Some(vnode), _) => text(&plan.extract_vnode(vnode)),
        (None, [_]) => text(plan),
        (None, vnodes) => {
            let mut all = format.heading(vnodes.len());
            for vnode in vnodes {
                all.push_str(&format.mark(&vnode.name));
                all.push_str(&text(&plan.extract_vnode(vnode))?);
            }
            all.push_str(&format.text_for_all(plan));
            Ok(all)
        }
    }
}

fn merge_into_domain(
    file: &DomainFile,
    plan: &Plan,
    topology: &Topology,
    chosen: Option<&VnodePlan>,
) -> Result<String, Failure> {
    // With several machines: the one from the command line, or the one with the name in the file.
    let vnode =
        match chosen.or_else(|| plan.vnodes.iter().find(|vnode| vnode.name == file.domain.name)) {
            Some(vnode) => vnode,
            None => plan.single_vnode().map_err(not_single)?,
        };
    let merged =
        pinfold_emit::merge_libvirt_domain(&file.text, plan, vnode, topology).map_err(|error| {
            let hint = error.hint.map(str::to_owned);
            let failure = Failure::from_error(Exit::Input, &error, hint);
            Failure { message: format!("{}: {}", file.path, failure.message), ..failure }
        })?;
    for note in &merged.notes {
        output::print_message(&format!("note: {note}"));
    }
    Ok(merged.text)
}

fn not_single(error: NotSingleVnode) -> Failure {
    Failure::from_error(Exit::Input, &error, None)
        .with_hint("select one with --vnode NAME; --into selects the one with the name in its file")
}

#[cfg(test)]
mod tests {
    use pinfold_config::requests;
    use pinfold_model::tunables::settings;

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
            requests::set_tunable(&mut plan, words).unwrap();
        }
        let command = pinfold_vm::hypervisors::parse(&[]);
        let target = Target { file: None, vnode: None, command: &*command };
        for format in &pinfold_emit::FORMATS {
            let text = emit(format, &plan, &topology, &target).unwrap_or_else(|failure| {
                panic!("{}: {}", format.name, failure.message);
            });
            for tunable in settings(&plan) {
                assert!(
                    text.contains(&tunable.to_string()),
                    "{} lacks {tunable}:\n{text}",
                    format.name
                );
            }
        }
    }
}
