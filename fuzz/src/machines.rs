//! Output of other programs: a journal on the disk, QEMU, a guest's agent, a benchmark.

use std::collections::BTreeMap;
use std::io::{Cursor, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use pinfold_apply::Record;
use pinfold_exits::{Statistics, table_between};
use pinfold_host::{SnapshotHost, SystemClock, paths, process};
use pinfold_model::{Family, Figure, Unit};
use pinfold_probe::agent::Agent;
use pinfold_probe::benchmarks::{Benchmark, Cpus, Kind, SchedPolicy};
use pinfold_probe::reference_tools::ReferenceTool;
use pinfold_probe::symbols::Symbols;
use pinfold_study::study::{self, Study};
use pinfold_vm::qemu::{Qmp, QmpTransport};
use pinfold_vm::{Monitor, VmError};
use serde_json::Value;

use crate::text::text;

/// Long enough for bytes that are available already.
const TIMEOUT_NS: u64 = 1_000_000_000;

pub(crate) fn journal(bytes: &[u8]) {
    if let Ok(Some(record)) = Record::parse("journal", bytes) {
        assert_eq!(record.steps().count(), record.step_count());
        for (_, step) in record.steps() {
            drop((step.change.to_string(), record.masks().count()));
        }
    }
}

/// A socket that sends only these bytes, for all requests.
pub(crate) fn qmp(bytes: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<Value>(bytes) {
        if let Ok(looked) = Statistics::parse(&value) {
            drop(table_between(&looked, &looked, TIMEOUT_NS));
        }
        ask(&mut Parrot(value));
    }
    let Ok((ours, mut theirs)) = UnixStream::pair() else { return };
    // More than a socket buffer would block until it is read.
    let said = bytes.get(..64 << 10).unwrap_or(bytes);
    if theirs.write_all(said).and_then(|()| theirs.shutdown(Shutdown::Write)).is_err() {
        return;
    }
    if let Ok(mut qmp) = Qmp::from_stream(ours, "qmp.sock", TIMEOUT_NS, SystemClock) {
        ask(&mut qmp);
        drop(qmp.take_events());
    }
}

fn ask(monitor: &mut dyn Monitor) {
    drop(monitor.query_vm(&mut || {}));
    drop(monitor.status());
    drop(monitor.version());
    drop(monitor.kvm_enabled());
}

/// A monitor that returns the same response for every request.
struct Parrot(Value);

impl QmpTransport for Parrot {
    fn execute(&mut self, _: &str, _: Option<Value>) -> Result<Value, VmError> {
        Ok(self.0.clone())
    }
}

/// Output of `squeue`, `sbatch`, `scontrol` and `sinfo`, and their error messages.
pub(crate) fn slurm(bytes: &[u8]) {
    use pinfold_cluster::slurm::protocol as slurm;
    let text = text(bytes);
    for line in slurm::queue(&text).into_iter().flatten() {
        assert!(text.contains(&line.node));
    }
    drop((slurm::parse_job_id(&text), slurm::config(&text), slurm::job_field(&text, "ExitCode")));
    if let Ok(nodes) = slurm::node_lines(&text) {
        drop((slurm::choose(&nodes, None, None), slurm::choose(&nodes, Some("pf"), Some(&[]))));
    }
    assert!(!slurm::explain_error("sbatch", &text).0.is_empty());
    std::hint::black_box(slurm::not_taken(&text));
    drop((slurm::last_message(&text), slurm::nodes(&text), slurm::check_time_limit(&text)));
}

/// A result of a node, with its valid digest.
pub(crate) fn result(bytes: &[u8]) {
    use pinfold_cluster::{read_result, result_text, seal};
    let read = |text: &str| read_result(text, "k", "d", "0.1.0");
    let text = text(bytes);
    drop(read(&text));
    let line = text.lines().next().unwrap_or("");
    let Ok(answer) = read(&seal(line)) else { return };
    let written = result_text(&answer).unwrap_or_default();
    assert_eq!(read(&written).ok(), Some(answer));
}

/// The output of a workload, parsed by rules of each kind.
pub(crate) fn profile(bytes: &[u8]) {
    if let Ok(profile) = pinfold_probe::profile::parse(&text(bytes)) {
        let mut samples = profile.scores.iter().flat_map(|score| &score.per_second);
        assert!(samples.all(|sample| *sample > 0.0 && sample.is_finite()));
    }
}

pub(crate) fn workload(bytes: &[u8]) {
    static STUDY: OnceLock<Option<Study>> = OnceLock::new();
    let study = STUDY.get_or_init(|| study::from_toml(include_str!("workload.toml")).ok());
    let text = text(bytes);
    let output = study::Output { stdout: &text, stderr: &text };
    for workload in study.iter().flat_map(|study| &study.workloads) {
        if let Ok(figures) = study::extract(&workload.figures, output, TIMEOUT_NS) {
            let mut samples = figures.iter().flat_map(|figure| &figure.samples);
            assert!(samples.all(|sample| sample.is_finite()));
        }
    }
}

/// A running program, and the symbols at its addresses.
pub(crate) fn program(bytes: &[u8]) {
    const FILE: &str = "/program";
    const MAPS: &str = "400000-500000 r-xp 00000000 fe:00 1 /program\n\
        500000-600000 rw-p 00001000 fe:00 1 /program\n600000-700000 rw-p 00000000 00:00 0\n";
    let own = process::own_pid();
    let mut host = SnapshotHost::from_files([
        (paths::process_maps(own), MAPS.as_bytes()),
        (FILE.to_owned(), bytes),
    ]);
    host.insert_link(&paths::process_mount_namespace(own), "mnt:[1]");
    host.insert_link(&paths::process_root(own), "/");
    let Ok(mut symbols) = Symbols::read(&host, own) else { return };
    drop(symbols.table(&host, FILE));
    for address in [0x40_0000, 0x40_1234, 0x4f_ffff, 0x50_0010, 0x60_0000, u64::MAX] {
        drop(symbols.place(&host, address).map(|place| place.to_string()));
    }
}

pub(crate) fn agent(bytes: &[u8]) {
    let input = Cursor::new(bytes.to_vec());
    if let Ok(agent) = Agent::over(input, std::io::sink(), "guest", TIMEOUT_NS)
        && let Ok(channel) = agent.start(&["ruler"])
    {
        drop(agent.wait(channel, TIMEOUT_NS));
    }
}

pub(crate) fn benchmark(bytes: &[u8]) {
    let kind = Kind::SpinGap { duty_percent: 100, period_us: 1000, floor_ns: 100 };
    let benchmark = Benchmark {
        kind,
        duration_ns: 1_000_000,
        cpus: Cpus::All,
        policy: SchedPolicy::Other,
        max_samples: 100,
        dma_latency: false,
    };
    if let Ok(series) = benchmark.parse(&text(bytes)) {
        assert!(series.iter().all(|one| one.samples.iter().all(|sample| sample.is_finite())));
    }
}

/// The first byte selects the reference tool, the rest is its output.
pub(crate) fn reference_tool(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let text = text(rest);
    let reference_tool = ReferenceTool::ALL[usize::from(*first) % ReferenceTool::ALL.len()];
    for ours in [&[][..], std::slice::from_ref(&switch())] {
        let Ok(found) = reference_tool.parse(&text, ours) else { continue };
        assert!(!found.readings.is_empty(), "a number from nothing");
        assert!(
            found.readings.iter().all(|one| one.value.is_finite() && one.value >= 0.0),
            "{found:?}"
        );
    }
}

/// A figure of context switches, for which some reference tools print something else.
fn switch() -> Figure {
    Figure {
        probe: "context-switch".to_owned(),
        labels: BTreeMap::new(),
        unit: Unit::Nanoseconds,
        family: Family::Tail,
        cpu: None,
        duration_ns: 1,
        samples: Vec::new(),
        dropped: 0,
        disturbed: 0,
        flags: Vec::new(),
    }
}
