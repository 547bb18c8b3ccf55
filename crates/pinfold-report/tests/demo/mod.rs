//! Example data for the example page and the tests: plausible, made up, and labelled so.
//!
//! Everything is computed from a fixed seed; no number here was measured.

use pinfold_model::{Accelerator, Finding, LoadState, Metric, Origin, Role, RoleStats, Topology};
use pinfold_report::{
    BlockRow, BlockValues, Candidate, CandidateId, CandidateKind, Comparison, Conclusion, Curve,
    Distribution, ExportedPlan, FailedStart, Page, PinsAlone, Provenance, Ranking, RankingRow,
    ReachedStage, RequestSummary, RoleRow, RoleTable, Verdict,
};

use machine::{Shape, machine, plan};

#[path = "machine.rs"]
mod machine;

/// Blocks of the confirmation phase.
const BLOCKS: u32 = 8;

/// A small generator (xorshift): the same page on every machine.
struct Numbers(u64);

impl Numbers {
    /// Evenly spread in 0..1, never 0.
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f64 + 1.0) / f64::from(1 << 24)
    }

    /// Around `middle`, spread by about `spread` (a factor).
    fn around(&mut self, middle: f64, spread: f64) -> f64 {
        middle * spread.powf(self.unit() + self.unit() + self.unit() - 1.5)
    }
}

/// What a candidate is like: its longest gaps in the four load states (ns), its slowness.
struct CandidateProfile {
    name: &'static str,
    kind: CandidateKind,
    stage: ReachedStage,
    shape: Shape,
    gaps: [f64; 4],
    speed: f64,
}

const LIKENESSES: [CandidateProfile; 6] = [
    CandidateProfile {
        name: "none",
        kind: CandidateKind::Baseline,
        stage: ReachedStage::Confirmed,
        shape: Shape::Float,
        gaps: [2.6e6, 2.1e7, 3.0e6, 2.4e7],
        speed: 1.0,
    },
    CandidateProfile {
        name: "none again",
        kind: CandidateKind::Repeat,
        stage: ReachedStage::Confirmed,
        shape: Shape::Float,
        gaps: [2.5e6, 2.0e7, 3.1e6, 2.5e7],
        speed: 1.0,
    },
    CandidateProfile {
        name: "low-latency",
        kind: CandidateKind::Layout,
        stage: ReachedStage::Confirmed,
        shape: Shape::Apart,
        gaps: [4.0e5, 9.5e5, 5.0e5, 1.4e6],
        speed: 1.62,
    },
    CandidateProfile {
        name: "balanced",
        kind: CandidateKind::Layout,
        stage: ReachedStage::Confirmed,
        shape: Shape::Apart,
        gaps: [4.5e5, 2.1e6, 6.0e5, 3.2e6],
        speed: 1.55,
    },
    CandidateProfile {
        name: "compact",
        kind: CandidateKind::Layout,
        stage: ReachedStage::Confirmed,
        shape: Shape::Packed,
        gaps: [2.2e6, 3.2e7, 2.8e6, 3.9e7],
        speed: 0.97,
    },
    CandidateProfile {
        name: "max-performance",
        kind: CandidateKind::Layout,
        stage: ReachedStage::Screened,
        shape: Shape::Packed,
        gaps: [2.7e6, 2.6e7, 3.3e6, 3.0e7],
        speed: 1.02,
    },
];

/// Per-block values of a metric, baseline first.
fn block_values(numbers: &mut Numbers, metric: Metric, load: usize) -> Vec<Vec<f64>> {
    LIKENESSES
        .iter()
        .map(|like| {
            let blocks = if like.stage == ReachedStage::Screened { 3 } else { BLOCKS };
            let gap = like.gaps[load];
            (0..blocks)
                .map(|_| match metric {
                    Metric::SpinGap => numbers.around(gap, 1.9),
                    Metric::Wakeup => numbers.around(gap / 6.0 + 6e4, 1.4),
                    Metric::ComputeRate => {
                        let slow = if load == 1 || load == 3 { like.speed } else { 1.0 };
                        numbers.around(8.1e5 * slow, 1.03)
                    }
                    Metric::IoAhci => numbers.around(gap / 20.0 + 1.8e5, 1.3),
                    Metric::IoVirtio => numbers.around(gap / 25.0 + 1.1e5, 1.3),
                    Metric::RunDelay => numbers.around(gap / 2.0, 1.5),
                })
                .collect()
        })
        .collect()
}

fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
}

fn compare_values(
    metric: Metric,
    values: &[f64],
    baseline: &[f64],
    stage: ReachedStage,
) -> Comparison {
    let ratio = middle(values) / middle(baseline);
    let width = if metric == Metric::ComputeRate { 1.012 } else { 1.28 };
    let (low, high) = (ratio / width, ratio * width);
    let good = if metric.higher_is_better() { low > 1.0 } else { high < 1.0 };
    let bad = if metric.higher_is_better() { high < 1.0 } else { low > 1.0 };
    let (p, verdict) = match (stage, good, bad) {
        (ReachedStage::Dropped | ReachedStage::Screened | ReachedStage::Failed, ..) => {
            (None, Verdict::Unknown("3 starts, 8 needed".to_owned()))
        }
        (ReachedStage::Confirmed, true, _) => (Some(0.0234), Verdict::Better),
        (ReachedStage::Confirmed, _, true) => (Some(0.0234), Verdict::Worse),
        (ReachedStage::Confirmed, ..) if width < 1.02 => (Some(0.742), Verdict::Same),
        (ReachedStage::Confirmed, ..) => {
            (Some(0.531), Verdict::Unknown("the interval holds 1".to_owned()))
        }
    };
    Comparison { ratio, low, high, p_holm: p, verdict }
}

fn statistic(metric: Metric) -> &'static str {
    match metric {
        Metric::SpinGap => "longest gap of the block",
        Metric::Wakeup => "99th percentile of the block",
        Metric::RunDelay => "longest wait of the block",
        Metric::ComputeRate => "median rate of the block",
        Metric::IoAhci | Metric::IoVirtio => "99th percentile of the block’s reads",
    }
}

fn ranking(metric: Metric, load: LoadState, values: &[Vec<f64>]) -> Ranking {
    let mut rows: Vec<RankingRow> = values
        .iter()
        .enumerate()
        .map(|(index, of_candidate)| RankingRow {
            candidate: CandidateId(index),
            blocks: of_candidate.iter().fold(0, |count, _| count + 1),
            median: Some(middle(of_candidate)),
            worst: of_candidate
                .iter()
                .copied()
                .reduce(|a, b| if metric.higher_is_better() { a.min(b) } else { a.max(b) }),
            comparison: (index > 0)
                .then(|| compare_values(metric, of_candidate, &values[0], LIKENESSES[index].stage)),
        })
        .collect();
    rows.sort_by(|a, b| {
        let order = f64::total_cmp(&a.median.unwrap_or(0.0), &b.median.unwrap_or(0.0));
        if metric.higher_is_better() { order.reverse() } else { order }
    });
    Ranking { metric, load, statistic: statistic(metric).to_owned(), rows }
}

/// Gaps of one candidate: many short ones, a tail that reaches its longest.
fn gaps(numbers: &mut Numbers, longest: f64, count: u32) -> Vec<f64> {
    let slope = (longest / 2.5e3).ln() / f64::from(count).ln();
    (0..count)
        .map(|_| numbers.around(2.5e3, 1.25) * numbers.unit().powf(-slope))
        .map(|gap| gap.min(longest * 1.6))
        .collect()
}

/// What an arrival at a random moment of 48 s waits.
fn arrivals(candidate: CandidateId, gaps: &[f64]) -> Curve {
    const OBSERVED_US: u32 = 48_000_000;
    let longest = gaps.iter().copied().fold(0.0, f64::max);
    let points = (0..60).map(|step| {
        let wait = 1e3 * (longest / 1e3).powf(f64::from(step) / 60.0);
        let beyond: f64 = gaps.iter().map(|gap| (gap - wait).max(0.0)).sum();
        (wait, beyond / (f64::from(OBSERVED_US) * 1e3))
    });
    Curve::from_arrivals(candidate, points, Some(longest), u64::from(OBSERVED_US))
}

fn distributions(numbers: &mut Numbers) -> Vec<Distribution> {
    let curves = |numbers: &mut Numbers, load: usize| {
        LIKENESSES
            .iter()
            .enumerate()
            .filter(|(_, like)| like.stage == ReachedStage::Confirmed)
            .map(|(index, like)| {
                arrivals(CandidateId(index), &gaps(numbers, like.gaps[load], 20_000))
            })
            .collect()
    };
    LoadState::ALL
        .into_iter()
        .enumerate()
        .map(|(index, load)| Distribution {
            metric: Metric::SpinGap,
            load,
            curves: curves(numbers, index),
        })
        .collect()
}

fn role_tables() -> Vec<RoleTable> {
    LoadState::ALL
        .into_iter()
        .map(|load| {
            let busy = if load.host { 9 } else { 1 };
            let rows = (0..5).flat_map(|index| {
                let pinned = (2..4).contains(&index);
                let (delay, moved) =
                    if pinned { (40 * busy, 0) } else { (1_900 * busy, 410 * busy) };
                [
                    row(index, Role::Vcpu(0), 41_000 - delay, delay, moved),
                    row(index, Role::Emulator, 2_100, 300 * busy, moved / 3),
                    row(index, Role::Worker, 160, 40 * busy, moved / 9),
                ]
            });
            RoleTable { load, rows: rows.collect() }
        })
        .collect()
}

fn row(index: usize, role: Role, run: u64, delay: u64, moved: u64) -> RoleRow {
    RoleRow {
        candidate: CandidateId(index),
        observed_ns: Some(48_000_000_000),
        stats: RoleStats {
            threads: if role == Role::Worker { 3 } else { 1 },
            role,
            run_ns: run * 1_000_000,
            run_delay_ns: delay * 1_000_000,
            migrations: Some(moved),
            voluntary_switches: 1_204 + moved * 3,
            involuntary_switches: 310 + delay * 2,
            lost_threads: 0,
        },
    }
}

fn candidates(topology: &Topology, vcpus: u32) -> Vec<Candidate> {
    LIKENESSES
        .iter()
        .map(|like| Candidate {
            name: like.name.to_owned(),
            alike: Vec::new(),
            kind: like.kind,
            stage: like.stage,
            plan: plan(topology, like.name, like.shape, vcpus),
            keeps_limit: (like.stage == ReachedStage::Confirmed).then_some(like.gaps[3] < 2e6),
        })
        .collect()
}

fn emit_files() -> Vec<ExportedPlan> {
    let xml = "<vcpu placement='static'>1</vcpu>\n<cputune>\n  <vcpupin vcpu='0' cpuset='1'/>\n  \
               <emulatorpin cpuset='0'/>\n</cputune>\n<cpu>\n  <topology sockets='1' cores='1' threads='1'/>\n</cpu>\n";
    let script = "#!/bin/sh\n# Starts the VM stopped, pins every thread, continues.\nset -eu\n\
                  exec pinfold run --strategy low-latency --isolate own -- \\\n  qemu-system-x86_64 \
                  -accel tcg,thread=multi -smp 1,sockets=1,cores=1,threads=1 -m 256 \\\n  -kernel \
                  \"$KERNEL\" -initrd \"$INITRAMFS\" -nographic\n";
    vec![
        text("libvirt XML", "Goes into the domain by virsh edit.", xml),
        text("QEMU start script", "Starts QEMU stopped, pins it, lets it run.", script),
    ]
}

fn text(title: &str, usage: &str, text: &str) -> ExportedPlan {
    ExportedPlan { title: title.to_owned(), usage: usage.to_owned(), text: text.to_owned() }
}

fn new_request() -> RequestSummary {
    RequestSummary {
        command: "pinfold tune --goal latency --max-gap 2ms --budget 5m --demo".to_owned(),
        goal: "latency: the shortest worst spin-gap with host and guest loaded".to_owned(),
        max_gap_ns: Some(2e6),
        budget: Some("5 min".to_owned()),
        took: Some("4 min 38 s".to_owned()),
        guest: "demo guest, 1 vCPU, 256 MiB, one AHCI and one virtio disk in memory".to_owned(),
        loads: LoadState::ALL.to_vec(),
        screening_blocks: 3,
        confirmation_blocks: BLOCKS,
        more: vec![("Host’s load".to_owned(), "2 spinners, 1 memory, 1 I/O".to_owned())],
    }
}

fn provenance() -> Provenance {
    Provenance {
        origin: Origin {
            fingerprint: "5f1c0ffee0example".to_owned(),
            kernel: "6.12.0-example-amd64".to_owned(),
            cmdline: "root=/dev/vda1 ro quiet".to_owned(),
            cpu_model: "Example CPU @ 2.60 GHz".to_owned(),
            hypervisor: Some("KVM".to_owned()),
            qemu: Some("QEMU emulator version 7.2.0".to_owned()),
            accelerator: Accelerator::TcgMulti,
            guest_kernel: Some(
                "6.12.0-example-cloud-amd64, SHA-256 \
                 0000000000000000000000000000000000000000000000000000000000000000"
                    .to_owned(),
            ),
            pinfold: "0.1.0".to_owned(),
            seed: 20_261_104,
        },
        store: "~/.local/state/pinfold/store.sqlite".to_owned(),
        run: "example".to_owned(),
        repeat: "pinfold tune --goal latency --max-gap 2ms --seed 20261104 --demo".to_owned(),
        date: "4 November 2026, 10:15 UTC".to_owned(),
    }
}

/// Rankings of all metrics, and the blocks of the spin-gaps.
fn measure(numbers: &mut Numbers) -> (Vec<Ranking>, Vec<BlockValues>) {
    let (mut rankings, mut blocks) = (Vec::new(), Vec::new());
    // A run with an agent in the guest has no run delay: that is for guests without one.
    for metric in Metric::ALL.into_iter().filter(|metric| *metric != Metric::RunDelay) {
        for (index, load) in LoadState::ALL.into_iter().enumerate() {
            let values = block_values(numbers, metric, index);
            rankings.push(ranking(metric, load, &values));
            if metric == Metric::SpinGap {
                let rows = values
                    .into_iter()
                    .enumerate()
                    .map(|(index, values)| BlockRow { candidate: CandidateId(index), values });
                let statistic = statistic(metric).to_owned();
                blocks.push(BlockValues { metric, load, statistic, rows: rows.collect() });
            }
        }
    }
    (rankings, blocks)
}

/// A whole page for a machine of this shape and a guest of `vcpus` vCPUs.
pub fn page(shape: [u32; 5], vcpus: u32) -> Page {
    let numbers = &mut Numbers(0x9e37_79b9_7f4a_7c15);
    let topology = machine(shape);
    let (rankings, blocks) = measure(numbers);
    Page {
        vm: "demo guest".to_owned(),
        banner: Some("EXAMPLE DATA: made up, nothing here was measured".to_owned()),
        answer: Conclusion {
            winner: Some(CandidateId(2)),
            metric: Metric::SpinGap,
            load: LoadState::BOTH,
            pins_alone: Some(PinsAlone {
                candidate: CandidateId(4),
                ratio: 0.87,
                interval: Some((0.69, 1.1)),
                blocks: BLOCKS,
            }),
        },
        asked: new_request(),
        candidates: candidates(&topology, vcpus),
        distributions: distributions(numbers),
        blocks,
        rankings,
        roles: role_tables(),
        emitted: emit_files(),
        failed_starts: vec![FailedStart {
            candidate: CandidateId(4),
            block: 5,
            why: "QEMU ended with status 1: could not open disk image".to_owned(),
            recovered: false,
        }],
        findings: vec![
            Finding::warning(
                "irqbalance",
                "irqbalance runs and moves interrupts while VMs are measured",
            )
            .with_hint("stop it for the run: systemctl stop irqbalance"),
            Finding::problem("kvm", "/dev/kvm cannot be opened, so the guest runs under TCG")
                .with_hint("enable nested virtualisation in the hypervisor of this machine"),
        ],
        provenance: provenance(),
        topology,
    }
}
