//! Roles and accelerators derived from the names of threads and programs, as a fallback.
//!
//! Observed under `-name debug-threads=on` (QEMU 7.2): `CPU 0/KVM`, `CPU 0/TCG`, `ALL CPUs/TCG`
//! (thread=single), `IO io0`, `IO mon_iothread` (the monitor's own, not an `-object`), `worker`,
//! `call_rcu`, `SPICE Worker`, `vnc_worker`, `vhost-PID`, `kvm-nx-lpage-re` and, from the kernel,
//! `iou-wrk-TID`, `iou-sqp-TID`.

use pinfold_model::{Accelerator, Role};

/// Role of a thread that the monitor does not report. A name of a vCPU or an iothread is ignored,
/// because the monitor would have reported the thread.
pub(super) fn role_of_rest(name: &str) -> Role {
    match role_by_name(name) {
        role @ (Role::Vhost(_) | Role::Worker) => role,
        Role::Vcpu(_) | Role::Iothread(_) | Role::Emulator | Role::Task => Role::Emulator,
    }
}

/// Role of a thread by its name alone; vhost workers are numbered later.
pub(super) fn role_by_name(name: &str) -> Role {
    if is_shared_loop(name) {
        return Role::Vcpu(0);
    }
    if let Some((index, _)) = name.strip_prefix("CPU ").and_then(|rest| rest.split_once('/')) {
        return index.parse().map_or(Role::Emulator, Role::Vcpu);
    }
    match name.strip_prefix("IO ") {
        Some("mon_iothread") => return Role::Emulator,
        Some(id) => return Role::Iothread(id.to_owned()),
        None => {}
    }
    let is_worker =
        name == "worker" || name.starts_with("iou-wrk-") || name.starts_with("iou-sqp-");
    if is_worker {
        Role::Worker
    } else if numbered(name, "vhost-").is_some() {
        Role::Vhost(0)
    } else {
        Role::Emulator
    }
}

/// True for the single thread that runs all vCPUs under TCG with thread=single.
pub(super) fn is_shared_loop(name: &str) -> bool {
    name.starts_with("ALL CPUs/")
}

/// The accelerator that the vCPUs' names show.
pub(super) fn accelerator<'a>(names: impl Iterator<Item = &'a str>) -> Option<Accelerator> {
    let mut found = None;
    for name in names {
        match name.split_once('/') {
            Some(("ALL CPUs", "TCG")) => return Some(Accelerator::TcgSingle),
            Some((cpu, "TCG")) if cpu.starts_with("CPU ") => found = Some(Accelerator::TcgMulti),
            Some((cpu, "KVM")) if cpu.starts_with("CPU ") => found = Some(Accelerator::Kvm),
            _ => {}
        }
    }
    found
}

/// The number after a prefix: in `vhost-PID` and `kvm-pit/PID` that of the owner.
pub(super) fn numbered(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// True if a program's file name is that of QEMU's system emulator: `qemu-system-ARCH`, also
/// wrapped (`.qemu-system-x86_64-wrapped`), RHEL's `qemu-kvm`, Debian's and Proxmox's `kvm`.
pub(crate) fn is_qemu(program: &str) -> bool {
    program.contains("qemu-system-") || program == "qemu-kvm" || program == "kvm"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_roles_by_name() {
        let check = |name: &str, alone: Role, rest: Role| {
            assert_eq!(role_by_name(name), alone, "{name}");
            assert_eq!(role_of_rest(name), rest, "{name} beside a monitor");
        };
        check("CPU 0/KVM", Role::Vcpu(0), Role::Emulator);
        check("CPU 31/TCG", Role::Vcpu(31), Role::Emulator);
        check("CPU x/TCG", Role::Emulator, Role::Emulator);
        check("ALL CPUs/TCG", Role::Vcpu(0), Role::Emulator);
        check("IO io0", Role::Iothread("io0".to_owned()), Role::Emulator);
        check("IO mon_iothread", Role::Emulator, Role::Emulator);
        check("worker", Role::Worker, Role::Worker);
        check("iou-wrk-123", Role::Worker, Role::Worker);
        check("vhost-123", Role::Vhost(0), Role::Vhost(0));
        check("vhost-net", Role::Emulator, Role::Emulator);
        for name in ["call_rcu", "SPICE Worker", "vnc_worker", "kvm-nx-lpage-re", "qemu-system-x86"]
        {
            check(name, Role::Emulator, Role::Emulator);
        }
    }

    #[test]
    fn finds_accelerators_and_programs() {
        let check = |names: &[&str], expected: Option<Accelerator>| {
            assert_eq!(accelerator(names.iter().copied()), expected, "{names:?}");
        };
        check(&["qemu-system-x86", "CPU 0/KVM"], Some(Accelerator::Kvm));
        check(&["CPU 0/TCG", "CPU 1/TCG"], Some(Accelerator::TcgMulti));
        check(&["IO io0", "ALL CPUs/TCG"], Some(Accelerator::TcgSingle));
        check(&["CPU 0/DUMMY", "kvm-pit/7"], None);
        for name in ["qemu-system-x86_64", ".qemu-system-aarch64-wrapped", "qemu-kvm", "kvm"] {
            assert!(is_qemu(name), "{name}");
        }
        for name in ["bash", "qemu-img", "kvmtool", ""] {
            assert!(!is_qemu(name), "{name}");
        }
    }
}
