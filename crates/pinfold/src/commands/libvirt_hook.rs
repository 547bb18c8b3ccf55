//! `pinfold libvirt-hook`: the program that libvirt calls when a domain starts and stops.

use pinfold_run::Failure;
use pinfold_run::libvirt_hook::{HookEvent, handle};

use crate::cli::LibvirtHookArgs;

/// Handles one event of the domain's life cycle, and never fails.
pub fn libvirt_hook(arguments: &LibvirtHookArgs, state: Option<&str>) -> Result<(), Failure> {
    let event = HookEvent {
        domain: &arguments.domain,
        operation: &arguments.operation,
        phase: &arguments.phase,
        plans: &arguments.plans,
        run_dir: &arguments.run_dir,
    };
    handle(&event, state);
    Ok(())
}
