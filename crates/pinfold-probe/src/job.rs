//! One probe, ready to run: on the host under a [`Placement`], or in a guest.
//!
//! All kinds of jobs return figures: a benchmark returns one per CPU, a micro-benchmark a single
//! number. On the host, a job under a real-time policy is supervised by heartbeats, so that it does
//! not continue while this process is stopped. All other programs that a job starts are killed
//! together with this process.

use std::collections::BTreeMap;

use pinfold_host::process::{self, Spawn};
use pinfold_model::{Family, Figure, Metric, Series, Unit};

use crate::agent::{Agent, BEAT};
use crate::benchmarks::{
    Benchmark, BenchmarkError, Kind, Observation, OpenLoop, OpenLoopError, SchedPolicy,
};
use crate::cpu_speed::{MicroBenchmark, SpeedBenchmark as _};
use crate::figures::Instrument;
use crate::loads::Placement;
use crate::pinload::Pinload;

/// One probe with all its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// A benchmark: one series per CPU.
    Benchmark(Benchmark),
    /// A `pinload` command that prints figures itself.
    Instrument(Instrument),
    /// A micro-benchmark: operations per second.
    MicroBenchmark(MicroBenchmark),
}

impl Job {
    /// The `pinload` subcommand.
    pub fn probe(&self) -> &'static str {
        match self {
            Job::Benchmark(benchmark) => benchmark.probe(),
            Job::Instrument(instrument) => instrument.probe(),
            Job::MicroBenchmark(micro) => micro.probe(),
        }
    }

    /// The arguments of `pinload`, starting with the subcommand.
    pub fn argv(&self) -> Vec<String> {
        match self {
            Job::Benchmark(benchmark) => benchmark.argv(),
            Job::Instrument(instrument) => instrument.argv(),
            Job::MicroBenchmark(micro) => micro.argv(),
        }
    }

    /// Time after which the job is killed (ns).
    pub fn timeout_ns(&self) -> u64 {
        match self {
            Job::Benchmark(benchmark) => benchmark.timeout_ns(),
            Job::Instrument(instrument) => instrument.timeout_ns(),
            Job::MicroBenchmark(micro) => micro.timeout_ns(),
        }
    }

    /// Parses the output.
    ///
    /// # Errors
    /// [`BenchmarkError::Line`] or [`BenchmarkError::Output`].
    pub fn parse(&self, output: &str) -> Result<Vec<Figure>, BenchmarkError> {
        match self {
            Job::Benchmark(benchmark) => {
                let all = benchmark.observations(output)?;
                Ok(all.into_iter().map(|one| figure_of(benchmark, one)).collect())
            }
            Job::Instrument(instrument) => instrument.parse(output),
            Job::MicroBenchmark(micro) => {
                let outcome = micro.parse(output)?;
                Ok(vec![Figure {
                    probe: micro.probe().to_owned(),
                    labels: BTreeMap::new(),
                    unit: Unit::PerSecond,
                    family: Family::Capacity,
                    cpu: None,
                    duration_ns: outcome.elapsed_ns,
                    samples: vec![outcome.per_second()],
                    dropped: 0,
                    disturbed: 0,
                    flags: outcome.flags.clone(),
                }])
            }
        }
    }

    /// Runs the job on the host, in the cgroups and on the CPUs of `placement`.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    pub fn run_on_host(
        &self,
        pinload: &Pinload,
        placement: &Placement,
    ) -> Result<Vec<Figure>, BenchmarkError> {
        self.run_with_progress(pinload, placement, &mut |_| {})
    }

    /// As [`Job::run_on_host`], and reports each figure of an instrument as soon as it is printed.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    pub fn run_with_progress(
        &self,
        pinload: &Pinload,
        placement: &Placement,
        came: &mut dyn FnMut(&Figure),
    ) -> Result<Vec<Figure>, BenchmarkError> {
        let mut argv = self.argv();
        let is_supervised = self.is_real_time();
        if is_supervised {
            argv.push("--supervised".to_owned());
        }
        let mut spawn = Spawn::new(&pinload.path())
            .args(argv)
            .die_with_parent(true)
            .cgroup_files(placement.cgroup_files.clone());
        if let Some(mask) = &placement.affinity {
            spawn = spawn.affinity(mask.clone());
        }
        let output = if is_supervised {
            let beat_ns = u64::try_from(BEAT.as_nanos()).unwrap_or(u64::MAX);
            spawn.output_with_heartbeat(self.timeout_ns(), beat_ns)?
        } else {
            spawn.output_with_callback(self.timeout_ns(), &mut self.lines(came))?
        };
        if !output.status.success() {
            return Err(self.fail(process::describe(output.status), &output.stderr_text()));
        }
        self.parse(&output.stdout_text())
    }

    /// Reports the figures of complete lines; errors in a line are reported at the end.
    fn lines<'c>(&'c self, came: &'c mut dyn FnMut(&Figure)) -> impl FnMut(&[u8]) + 'c {
        let mut open = Vec::new();
        move |bytes| {
            open.extend_from_slice(bytes);
            let Some(end) = open.iter().rposition(|byte| *byte == b'\n') else { return };
            let rest = open.split_off(end + 1);
            let whole = std::mem::replace(&mut open, rest);
            for line in String::from_utf8_lossy(&whole).lines() {
                if let (Job::Instrument(_), Ok(figures)) = (self, self.parse(line)) {
                    figures.iter().for_each(&mut *came);
                }
            }
        }
    }

    /// Runs the job in a guest.
    ///
    /// # Errors
    /// [`BenchmarkError`].
    pub fn run_in_guest(&self, agent: &Agent) -> Result<Vec<Figure>, BenchmarkError> {
        let output = agent.run(&self.argv(), self.timeout_ns())?;
        if !output.success() {
            return Err(self.fail(output.exit.to_string(), &output.stderr_text()));
        }
        self.parse(&output.stdout_text())
    }

    fn is_real_time(&self) -> bool {
        match self {
            Job::Benchmark(benchmark) => matches!(benchmark.policy, SchedPolicy::Fifo(_)),
            Job::Instrument(instrument) => {
                instrument.arguments.iter().any(|word| word.starts_with("fifo:"))
            }
            Job::MicroBenchmark(_) => false,
        }
    }

    fn fail(&self, how: String, message: &str) -> BenchmarkError {
        // The message starts with the name of the program, which the error contains already.
        let message = message.trim().to_owned();
        BenchmarkError::Failed { probe: self.probe(), how, message }
    }
}

/// Separates wake-ups from the periods that were skipped while the thread was late; `None` if the
/// figure is not from the wake-up benchmark.
///
/// The samples must be those of one run, in their order.
pub fn open_loop(figure: &Figure) -> Option<Result<OpenLoop, OpenLoopError>> {
    let period_us = figure.labels.get("period-us")?.parse().ok()?;
    if figure.probe != "wakeup" {
        return None;
    }
    let series = Series {
        metric: Metric::Wakeup,
        // Only the samples of the series are used.
        cpu: figure.cpu.unwrap_or_default(),
        duration_ns: figure.duration_ns,
        observed_ns: figure.duration_ns,
        dropped: figure.dropped,
        samples: figure.samples.clone(),
        flags: Vec::new(),
    };
    Some(OpenLoop::new(&series, period_us))
}

/// The samples of a figure as cyclictest and similar tools report them: for wake-ups without the
/// skipped periods, for all other probes unchanged.
pub fn without_skipped(figure: &Figure) -> Vec<f64> {
    match open_loop(figure) {
        Some(Ok(views)) => views.woken,
        // If samples are missing, the skipped periods cannot be determined.
        Some(Err(_)) | None => figure.samples.clone(),
    }
}

/// A benchmark's series as a figure. The settings of the benchmark become labels. Windows in which
/// the thread lost its CPU are left out and counted, unless there are no others.
fn figure_of(
    benchmark: &Benchmark,
    Observation { mut series, disturbed, .. }: Observation,
) -> Figure {
    let is_hopeless = disturbed.len() == series.samples.len() && !disturbed.is_empty();
    let left_out = if is_hopeless { Vec::new() } else { disturbed };
    if is_hopeless {
        series.flags.push("every-window-disturbed".to_owned());
    }
    let mut rest = left_out.iter().peekable();
    let mut place = 0;
    series.samples.retain(|_| {
        let is_out = rest.next_if(|index| **index == place).is_some();
        place += 1;
        !is_out
    });
    let label = match &benchmark.kind {
        Kind::SpinGap { duty_percent, .. } => ("duty-percent", duty_percent.to_string()),
        Kind::Wakeup { period_us } => ("period-us", period_us.to_string()),
        Kind::Compute { window_ms } => ("window-ms", window_ms.to_string()),
        Kind::IoLatency { block, .. } => ("block-bytes", block.to_string()),
    };
    let family = match series.metric {
        Metric::ComputeRate => Family::Capacity,
        Metric::SpinGap | Metric::Wakeup | Metric::IoAhci | Metric::IoVirtio | Metric::RunDelay => {
            Family::Tail
        }
    };
    let is_pinned = !matches!(benchmark.kind, Kind::IoLatency { .. });
    Figure {
        probe: benchmark.probe().to_owned(),
        labels: BTreeMap::from([(label.0.to_owned(), label.1)]),
        unit: series.metric.unit(),
        family,
        cpu: is_pinned.then_some(series.cpu),
        duration_ns: series.observed_ns,
        samples: series.samples,
        dropped: series.dropped,
        disturbed: u64::try_from(left_out.len()).unwrap_or(u64::MAX),
        flags: series.flags,
    }
}

#[cfg(test)]
mod tests {
    use pinfold_model::CpuSet;

    use super::*;
    use crate::benchmarks::Cpus;

    fn first_pu() -> CpuSet {
        let host = pinfold_host::LiveHost::new().unwrap();
        let mask = pinfold_host::Host::affinity(&host, pinfold_model::Tid(0)).unwrap();
        CpuSet::from_iter(mask.iter().next())
    }

    #[test]
    fn benchmarks_and_micro_benchmarks_give_figures() {
        let folder = tempfile::tempdir().unwrap();
        let pinload = Pinload::install_in(&folder.path().join("bin").to_string_lossy()).unwrap();
        let pus = first_pu();
        let placement = Placement { cgroup_files: Vec::new(), affinity: Some(pus.clone()) };
        let benchmark = Benchmark::wakeup(50_000_000).on(Cpus::These(pus));
        let figures = Job::Benchmark(benchmark).run_on_host(&pinload, &placement).unwrap();
        assert_eq!(figures.len(), 1);
        assert_eq!(figures[0].family, Family::Tail);
        assert_eq!(figures[0].labels["period-us"], "1000");
        assert!(!figures[0].samples.is_empty() && figures[0].cpu.is_some());
        let mut micro = MicroBenchmark::all_of_the_paper()[0];
        micro.amount = crate::cpu_speed::Amount::Time(20_000_000);
        let figures = Job::MicroBenchmark(micro).run_on_host(&pinload, &placement).unwrap();
        assert_eq!((figures[0].probe.as_str(), figures[0].samples.len()), ("micro-cpu", 1));
    }

    #[test]
    fn periods_that_passed_are_left_out_for_those_who_do_not_count_them() {
        let mut figure = figure_of(
            &Benchmark::wakeup(1),
            Observation {
                series: Series {
                    metric: Metric::Wakeup,
                    cpu: 0,
                    duration_ns: 1,
                    observed_ns: 1,
                    dropped: 0,
                    samples: vec![5_000.0, 2_500_000.0, 1_500_000.0, 500_000.0, 7_000.0],
                    flags: Vec::new(),
                },
                disturbed: Vec::new(),
                starts_ns: None,
            },
        );
        assert_eq!(without_skipped(&figure), [5_000.0, 2_500_000.0, 7_000.0]);
        figure.probe = "io-latency".to_owned();
        assert_eq!(without_skipped(&figure), figure.samples);
    }

    #[test]
    fn windows_in_which_the_cpu_was_lost_are_left_out_and_counted() {
        fn line(disturbed: &str) -> String {
            format!(
                r#"{{"probe":"compute","cpu":1,"duration_ns":9,"observed_ns":8,"unit":"per-second","dropped":0,"disturbed":[{disturbed}],"flags":["stolen-windows 1"],"samples":[7.0,8.0,9.0]}}"#
            )
        }

        let job =
            Job::Benchmark(Benchmark::compute(1).on(Cpus::These(CpuSet::parse_list("1").unwrap())));
        let figure = |disturbed: &str| job.parse(&line(disturbed)).map(|mut all| all.remove(0));
        let some = figure("0,2").unwrap();
        assert_eq!((some.samples.as_slice(), some.disturbed), ([8.0].as_slice(), 2));
        assert_eq!(figure("").unwrap().disturbed, 0);
        let all = figure("0,1,2").unwrap();
        assert_eq!((all.samples.len(), all.disturbed), (3, 0), "there is no other to keep");
        assert_eq!(all.flags, ["stolen-windows 1", "every-window-disturbed"]);
        for wrong in ["3", "1,1", "2,0"] {
            let reported = figure(wrong).unwrap_err().to_string();
            assert!(reported.contains("other than its 3 windows"), "{reported}");
        }
    }

    #[test]
    fn a_refusal_of_pinload_is_reported_in_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let pinload = Pinload::install_in(&folder.path().join("bin").to_string_lossy()).unwrap();
        let benchmark = Benchmark::spin_gap(1); // shorter than the run takes
        let error =
            Job::Benchmark(benchmark).run_on_host(&pinload, &Placement::default()).unwrap_err();
        assert!(error.to_string().contains("--seconds"), "{error}");
    }

    #[test]
    fn figures_are_reported_as_whole_lines_come() {
        let arguments = Vec::new();
        let job = Job::Instrument(Instrument { command: "chase", arguments, duration_ns: 1 });
        let mut seen = Vec::new();
        let mut came = |figure: &Figure| seen.push(figure.labels["bytes"].clone());
        let mut received = job.lines(&mut came);
        let text = format!("{}\n{}\nno figure\n{}", line(1), line(2), line(3));
        for part in text.as_bytes().chunks(50) {
            received(part);
        }
        drop(received);
        assert_eq!(seen, ["1", "2"], "the last line is not whole");
    }

    fn line(bytes: u32) -> String {
        format!(
            r#"{{"probe":"chase","unit":"ns","family":"capacity","cpu":null,"duration_ns":9,"dropped":0,"disturbed":0,"labels":{{"bytes":"{bytes}"}},"flags":[],"samples":[1.5]}}"#
        )
    }

    #[test]
    fn a_real_time_benchmark_hears_from_us() {
        let folder = tempfile::tempdir().unwrap();
        let pinload = Pinload::install_in(&folder.path().join("bin").to_string_lossy()).unwrap();
        let benchmark = Benchmark::wakeup(2_000_000_000)
            .on(Cpus::These(first_pu()))
            .under(SchedPolicy::Fifo(1));
        let job = Job::Benchmark(benchmark);
        assert!(job.is_real_time());
        // Longer than the time after which it ends without a heartbeat.
        let figures = job.run_on_host(&pinload, &Placement::default()).unwrap();
        assert!(figures[0].duration_ns >= 1_900_000_000);
    }

    #[test]
    fn a_guest_that_dies_while_it_is_measured_is_reported() {
        // An agent that sends HELLO and nothing more.
        let hello = r#"{"protocol":1,"pinload":"0.1.0","kernel":"6.12","machine":"x86_64","init":true,"cpus_online":"0","module_failures":[]}"#;
        let mut bytes = u32::try_from(hello.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend([0, 0, 0, 0, 65]);
        bytes.extend(hello.as_bytes());
        let (input, mut guest) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut guest, &bytes).unwrap();
        let agent = Agent::over(input, std::io::sink(), "the guest", 5_000_000_000).unwrap();
        let dying = std::thread::spawn(move || drop(guest));
        let error =
            Job::Benchmark(Benchmark::wakeup(1_000_000_000)).run_in_guest(&agent).unwrap_err();
        dying.join().unwrap();
        assert!(matches!(error, BenchmarkError::Agent(_)), "{error:?}");
        assert!(error.to_string().contains("the guest"), "{error}");
    }
}
