//! `pinfold plan --emit`: the plan in the language of another tool.

use pinfold_host::user;
use pinfold_model::{NotSingle, Plan, Topology};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::emit;

use crate::cli::Emit;
use crate::commands::check;
use crate::failure::{Exit, Failure};
use crate::output;

/// A libvirt domain file of the user's.
pub struct DomainFile {
    path: String,
    text: String,
    /// What it says.
    pub domain: Domain,
}

impl DomainFile {
    /// Reads it.
    pub fn read(path: &str) -> Result<Self, Failure> {
        let text = user::read_text(path)
            .map_err(|error| Failure::from_error(Exit::Input, &error, None))?;
        let domain = check::read_domain(path, &text)?;
        Ok(Self { path: path.to_owned(), text, domain })
    }
}

/// What the text is for.
pub struct Target<'a> {
    /// The domain file to merge into.
    pub file: Option<&'a DomainFile>,
    /// The QEMU command line.
    pub command: &'a [String],
}

/// The plan as `format`.
pub fn emit(
    format: Emit,
    (plan, topology): (&Plan, &Topology),
    target: &Target<'_>,
) -> Result<String, Failure> {
    if let (Some(file), false) = (target.file, format == Emit::Libvirt) {
        let message = format!("--into {} goes with --emit libvirt only", file.path);
        return Err(Failure::new(Exit::Input, message).with_hint("leave --into out"));
    }
    let one = || plan.single().map(|vnode| (plan, vnode)).map_err(several);
    Ok(match format {
        Emit::Libvirt => match target.file {
            Some(file) => into(file, (plan, topology))?,
            None => emit::libvirt(plan, topology).map_err(several)?,
        },
        Emit::Qemu => emit::qemu(plan, topology, target.command).map_err(several)?,
        Emit::Virsh => emit::virsh(one()?),
        Emit::Cmdline => emit::cmdline(plan),
        Emit::Systemd => emit::systemd(one()?),
        Emit::Tuned => emit::tuned(plan),
        Emit::Proxmox => emit::proxmox(one()?),
        Emit::Kubevirt => emit::kubevirt(one()?),
        Emit::Nova => emit::nova(one()?),
    })
}

fn into(file: &DomainFile, (plan, topology): (&Plan, &Topology)) -> Result<String, Failure> {
    // Of several machines the one that bears the file's name.
    let named = plan.vnodes.iter().find(|vnode| vnode.name == file.domain.name);
    let vnode = match named {
        Some(vnode) => vnode,
        None => plan.single().map_err(several)?,
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

fn several(error: NotSingle) -> Failure {
    Failure::from_error(Exit::Input, &error, None).with_hint(
        "emit a plan of one virtual machine at a time; --into picks the one with its file's name, \
             cmdline and tuned take all",
    )
}
