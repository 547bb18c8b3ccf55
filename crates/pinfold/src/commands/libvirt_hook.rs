//! `pinfold libvirt-hook`: the program that libvirt calls when a domain starts and stops.

use pinfold_run::libvirt_hook::handle;
use pinfold_run::{Failure, HookEvent};

use crate::cli::LibvirtHookArgs;

/// Handles one event of the domain's life cycle, and never fails.
pub fn libvirt_hook(arguments: &LibvirtHookArgs, state: Option<&str>) -> Result<(), Failure> {
    let event = HookEvent {
        domain: arguments.domain.clone(),
        operation: arguments.operation.clone(),
        phase: arguments.phase.clone(),
        plans: arguments.plans.clone(),
        domains: arguments.domains.clone(),
        run_dir: arguments.run_dir.clone(),
        is_late: arguments.late,
    };
    handle(&event, state);
    Ok(())
}
