//! Roles and accelerators derived from the names of QEMU's threads, where no monitor reports them.
//!
//! Observed under `-name debug-threads=on` (QEMU 7.2): `CPU 0/KVM`, `CPU 0/TCG`, `ALL CPUs/TCG`
//! (thread=single), `IO io0`, `IO mon_iothread` (the monitor's own, not an `-object`), `worker`,
//! `call_rcu`, `SPICE Worker`, `vnc_worker`.

use pinfold_model::{Accelerator, Role};

/// Role of a thread by its name; [`Role::Emulator`] for names that have no other.
pub fn role_of(name: &str) -> Role {
    if name.starts_with(SHARED_LOOP) {
        return Role::Vcpu(0);
    }
    if let Some((index, _)) = name.strip_prefix("CPU ").and_then(|rest| rest.split_once('/')) {
        return index.parse().map_or(Role::Emulator, Role::Vcpu);
    }
    match name.strip_prefix("IO ") {
        Some("mon_iothread") => Role::Emulator,
        Some(id) => Role::Iothread(id.to_owned()),
        None if name == "worker" => Role::Worker,
        None => Role::Emulator,
    }
}

/// Name of the single thread that runs all vCPUs under TCG with thread=single.
const SHARED_LOOP: &str = "ALL CPUs/";

/// The accelerator that a vCPU's name shows.
pub fn accelerator_of(name: &str) -> Option<Accelerator> {
    if name.starts_with(SHARED_LOOP) {
        return Some(Accelerator::TcgSingle);
    }
    match name.split_once('/') {
        Some((cpu, "TCG")) if cpu.starts_with("CPU ") => Some(Accelerator::TcgMulti),
        Some((cpu, "KVM")) if cpu.starts_with("CPU ") => Some(Accelerator::Kvm),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_roles_by_name() {
        check("CPU 0/KVM", Role::Vcpu(0));
        check("CPU 31/TCG", Role::Vcpu(31));
        check("CPU x/TCG", Role::Emulator);
        check("ALL CPUs/TCG", Role::Vcpu(0));
        check("IO io0", Role::Iothread("io0".to_owned()));
        check("IO mon_iothread", Role::Emulator);
        check("worker", Role::Worker);
        for name in ["call_rcu", "SPICE Worker", "vnc_worker", "kvm-nx-lpage-re", "qemu-system-x86"]
        {
            check(name, Role::Emulator);
        }
    }

    fn check(name: &str, role: Role) {
        assert_eq!(role_of(name), role, "{name}")
    }

    #[test]
    fn finds_accelerators_by_name() {
        fn check(name: &str, expected: Option<Accelerator>) {
            assert_eq!(accelerator_of(name), expected, "{name}");
        }

        check("qemu-system-x86", None);
        check("CPU 0/KVM", Some(Accelerator::Kvm));
        check("CPU 1/TCG", Some(Accelerator::TcgMulti));
        check("IO io0", None);
        check("ALL CPUs/TCG", Some(Accelerator::TcgSingle));
        check("CPU 0/DUMMY", None);
        check("kvm-pit/7", None);
    }
}
