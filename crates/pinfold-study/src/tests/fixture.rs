//! Values used by several tests.

use pinfold_model::{Accelerator, LoadState, Metric, Origin, Role, RoleStats, Series};

use crate::store::{CandidateRecord, CandidateRole, CellResult};

pub fn origin() -> Origin {
    Origin {
        fingerprint: "c0ffee".to_owned(),
        kernel: "6.12.1".to_owned(),
        cmdline: "quiet".to_owned(),
        cpu_model: "Test CPU".to_owned(),
        hypervisor: None,
        qemu: Some("9.2.0".to_owned()),
        accelerator: Accelerator::Kvm,
        guest_kernel: None,
        pinfold: "0.1.0".to_owned(),
        seed: 1,
    }
}

pub fn series(metric: Metric, cpu: u32, samples: Vec<f64>) -> Series {
    Series {
        metric,
        cpu,
        duration_ns: 2_000_000_000,
        observed_ns: 1_000_000_000,
        dropped: 0,
        samples,
        flags: Vec::new(),
    }
}

pub fn role_stats(role: Role) -> RoleStats {
    RoleStats {
        role,
        threads: 1,
        run_ns: 900,
        run_delay_ns: 70,
        migrations: Some(3),
        voluntary_switches: 5,
        involuntary_switches: 2,
        lost_threads: 0,
    }
}

pub fn cell(load: LoadState, samples: Vec<f64>) -> CellResult {
    CellResult {
        load,
        series: vec![series(Metric::SpinGap, 0, samples)],
        roles: vec![role_stats(Role::Vcpu(0))],
        roles_ns: Some(1_000),
    }
}

pub fn candidates(names: &[&str]) -> Vec<CandidateRecord> {
    names
        .iter()
        .enumerate()
        .map(|(index, name)| CandidateRecord {
            name: (*name).to_owned(),
            plan_json: format!("{{\"strategy\":\"{name}\"}}"),
            role: if index == 0 { CandidateRole::Baseline } else { CandidateRole::Candidate },
            same_as: None,
        })
        .collect()
}
