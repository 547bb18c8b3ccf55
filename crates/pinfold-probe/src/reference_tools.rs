//! Reference tools: the established tool for a measurement, run for comparison with ours.
//!
//! Each tool is run as a program and its output is parsed; none is linked. A tool reports
//! statistics and not samples: [`Reading`]s of a mean, a quantile, a maximum. Each file in this
//! module describes how the tool is called so that it measures the same as ours, and the
//! peculiarities of its output. All output is validated; malformed output is an error that shows
//! it.

mod cyclictest;
mod fio;
mod likwid;
mod oslat;
mod perf;
mod stress_ng;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pinfold_host::files::StateDir;
use pinfold_host::process::{self, Spawn};
use pinfold_host::{HostError, process::Output};
use pinfold_model::{CpuSet, Figure, Policy, PuId, Statistic};

use crate::benchmarks::{IoTarget, SchedPolicy};
use crate::loads::Placement;
use crate::os::Switch;
use crate::settings::Settings;

pub use fio::{figure as fio_figure, is_buffered};

/// A reference tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReferenceTool {
    /// Timer wake-ups (rt-tests).
    Cyclictest,
    /// OS noise seen by a spinning thread (rt-tests).
    Oslat,
    /// Memory bandwidth.
    LikwidBench,
    /// `perf bench`: pipes and messages.
    Perf,
    /// Timer wake-ups and context switches (stress-ng).
    StressNg,
    /// I/O latency of disks.
    Fio,
}

/// One statistic that a reference tool reported.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Labels of our figure that measures the same; labels that are not listed do not matter.
    pub labels: BTreeMap<String, String>,
    /// The statistic that was reported.
    pub statistic: Statistic,
    /// Its value, in the unit of the probe.
    pub value: f64,
}

/// Result of a reference tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The statistics that were reported.
    pub readings: Vec<Reading>,
    /// Number of samples, if the tool reports it.
    pub samples: Option<u64>,
}

/// Why a reference tool gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceToolError {
    /// The tool is not installed.
    #[error("{} is not installed", .0.name())]
    NotInstalled(ReferenceTool),
    /// The tool cannot measure with these settings.
    #[error("{} {why}", .reference_tool.name())]
    Cannot {
        /// The tool that cannot measure.
        reference_tool: ReferenceTool,
        /// What it does not support.
        why: String,
    },
    /// The tool ended with an error.
    #[error("{} failed ({how}): {message}", .reference_tool.name())]
    Failed {
        /// The tool that failed.
        reference_tool: ReferenceTool,
        /// Exit code or signal.
        how: String,
        /// Its error message, shortened.
        message: String,
    },
    /// The output does not have the known format.
    #[error("the output of {} {why}", .reference_tool.name())]
    Output {
        /// The tool whose output was parsed.
        reference_tool: ReferenceTool,
        /// What is wrong with the output.
        why: String,
    },
    /// The tool could not be run.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl ReferenceToolError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            ReferenceToolError::NotInstalled(reference_tool) => {
                Some(format!("apt-get install {}", reference_tool.package()))
            }
            ReferenceToolError::Output { reference_tool, .. } => Some(format!(
                "another version of {} may print another format; tested with: {}",
                reference_tool.name(),
                reference_tool.describe_tried()
            )),
            ReferenceToolError::Cannot { .. }
            | ReferenceToolError::Failed { .. }
            | ReferenceToolError::Host(_) => None,
        }
    }
}

/// How a reference tool is called.
struct Call {
    argv: Vec<String>,
    /// The file that it writes its result to; `None` for standard output.
    file: Option<&'static str>,
    /// CPU affinity of the process, if its arguments do not set it.
    mask: Option<CpuSet>,
    /// Scheduling policy of the process, if its arguments do not set it.
    policy: Option<Policy>,
    /// Labels of the figure that this call measures; empty if there is only one figure.
    labels: BTreeMap<String, String>,
}

impl Call {
    /// A call that measures the only figure, on the CPUs in its arguments.
    fn new(argv: Vec<String>, file: Option<&'static str>) -> Self {
        Self { argv, file, mask: None, policy: None, labels: BTreeMap::new() }
    }

    /// Sets the affinity.
    fn on(self, mask: CpuSet) -> Self {
        Self { mask: Some(mask), ..self }
    }

    /// Sets the scheduling policy of our probe.
    fn under(self, policy: SchedPolicy) -> Self {
        let policy = match policy {
            SchedPolicy::Other => None,
            SchedPolicy::Fifo(priority) => Some(Policy::Fifo { priority }),
        };
        Self { policy, ..self }
    }
}

impl ReferenceTool {
    /// All reference tools.
    pub const ALL: [ReferenceTool; 6] = [
        ReferenceTool::Cyclictest,
        ReferenceTool::Oslat,
        ReferenceTool::LikwidBench,
        ReferenceTool::Perf,
        ReferenceTool::StressNg,
        ReferenceTool::Fio,
    ];

    /// Name of the program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReferenceTool::Cyclictest => "cyclictest",
            ReferenceTool::Oslat => "oslat",
            ReferenceTool::LikwidBench => "likwid-bench",
            ReferenceTool::Perf => "perf",
            ReferenceTool::StressNg => "stress-ng",
            ReferenceTool::Fio => "fio",
        }
    }

    /// The reference tool with this name.
    pub fn from_name(name: &str) -> Option<ReferenceTool> {
        ReferenceTool::ALL.into_iter().find(|reference_tool| reference_tool.name() == name)
    }

    /// Its package in Debian.
    #[must_use]
    pub fn package(self) -> &'static str {
        match self {
            ReferenceTool::Cyclictest | ReferenceTool::Oslat => "rt-tests",
            ReferenceTool::LikwidBench => "likwid",
            ReferenceTool::Perf => "linux-perf",
            ReferenceTool::StressNg => "stress-ng",
            ReferenceTool::Fio => "fio",
        }
    }

    /// The version for which the parser was written.
    #[must_use]
    pub fn describe_tried(self) -> &'static str {
        match self {
            ReferenceTool::Cyclictest | ReferenceTool::Oslat => "rt-tests 2.40",
            ReferenceTool::LikwidBench => "likwid 5.2.2",
            ReferenceTool::Perf => "perf 6.1",
            ReferenceTool::StressNg => "stress-ng 0.15.06",
            ReferenceTool::Fio => "fio 3.33",
        }
    }

    /// A remark on the interpretation of the ratio, if there is one.
    #[must_use]
    pub fn remark(self) -> Option<&'static str> {
        match self {
            ReferenceTool::Cyclictest => Some(
                "cyclictest truncates its times to whole microseconds (half of one is added) and \
                 leaves out the periods that it missed, so ours are left out here too",
            ),
            ReferenceTool::Oslat => Some(
                "oslat spins all the time, so ours does too here; under fifo both then show the \
                 kernel's real-time throttling of 50 ms per second",
            ),
            ReferenceTool::LikwidBench => Some(
                "likwid-bench reports the mean of its run, ours is the median of windows; its calibration of the clock errs by up to 15 % on busy machines",
            ),
            ReferenceTool::Perf => Some(
                "perf bench reports the mean of its run, half a round trip of a token; ours is the mean of the hops",
            ),
            ReferenceTool::StressNg => Some("stress-ng's percentiles are read from its log"),
            ReferenceTool::Fio => {
                Some("fio's percentiles are those of its histogram, to 1 % of their value")
            }
        }
    }

    /// Path of the program, if it is installed.
    ///
    /// # Errors
    /// [`ReferenceToolError::NotInstalled`].
    pub fn program(self) -> Result<String, ReferenceToolError> {
        process::find_program(self.name()).ok_or(ReferenceToolError::NotInstalled(self))
    }

    /// The settings with which our probe measures what the tool measures.
    #[must_use]
    pub fn settings_for_ours(self, probe: &str, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        if probe == "context-switch" && settings.more.is_empty() {
            // The only ring that the tool has.
            settings.more = Switch::new(&[2], &[0], settings.duration_ns).rings();
        }
        if self == ReferenceTool::Oslat {
            // The benchmarks refuse 100 % under a real-time policy.
            let is_fifo = matches!(settings.policy, SchedPolicy::Fifo(_));
            settings.duty_percent = Some(if is_fifo { 99 } else { 100 });
        }
        settings
    }

    /// Rejects settings with which the tool would not measure what our probe measures.
    ///
    /// # Errors
    /// [`ReferenceToolError::Cannot`].
    pub fn check(self, settings: &Settings) -> Result<(), ReferenceToolError> {
        let cannot =
            |why: &str| ReferenceToolError::Cannot { reference_tool: self, why: why.to_owned() };
        if settings.keep_awake && self != ReferenceTool::Cyclictest {
            return Err(cannot("has no option to keep CPUs awake as Pinfold's probe does"));
        }
        let is_fifo = matches!(settings.policy, SchedPolicy::Fifo(_));
        if is_fifo && matches!(self, ReferenceTool::Fio | ReferenceTool::LikwidBench) {
            return Err(cannot("does not get a real-time policy: use --policy other"));
        }
        Ok(())
    }

    /// True if the tool spins during the whole measurement.
    #[must_use]
    pub fn is_busy(self, probe: &str) -> bool {
        match self {
            ReferenceTool::Oslat | ReferenceTool::LikwidBench | ReferenceTool::Perf => true,
            ReferenceTool::StressNg => probe == "context-switch",
            ReferenceTool::Cyclictest | ReferenceTool::Fio => false,
        }
    }

    /// Runs the tool in the cgroups and on the CPUs of `placement`; `ours` are the figures to
    /// compare with. Files are written to `scratch`.
    ///
    /// # Errors
    /// [`ReferenceToolError`].
    pub fn run(
        self,
        settings: &Settings,
        ours: &[Figure],
        placement: &Placement,
        scratch: &StateDir,
    ) -> Result<Found, ReferenceToolError> {
        let mut all = Found { readings: Vec::new(), samples: None };
        for call in self.calls(settings, ours, scratch)? {
            let text = self.text_of(&call, settings, placement, scratch)?;
            let found = self.parse(&text, ours)?;
            all.readings.extend(
                found
                    .readings
                    .into_iter()
                    .map(|one| Reading { labels: call.labels.clone(), ..one }),
            );
            all.samples = found.samples;
        }
        Ok(all)
    }

    fn calls(
        self,
        settings: &Settings,
        ours: &[Figure],
        scratch: &StateDir,
    ) -> Result<Vec<Call>, ReferenceToolError> {
        let cannot = |why: String| ReferenceToolError::Cannot { reference_tool: self, why };
        self.check(settings)?;
        match self {
            ReferenceTool::Cyclictest => Ok(vec![cyclictest::call(settings, scratch)]),
            ReferenceTool::Oslat => Ok(vec![oslat::call(settings, scratch)]),
            ReferenceTool::LikwidBench => likwid::calls(settings, ours).map_err(cannot),
            ReferenceTool::Perf => {
                perf::call(settings, ours).map(|call| vec![call]).map_err(cannot)
            }
            ReferenceTool::StressNg => {
                stress_ng::call(settings, ours).map(|call| vec![call]).map_err(cannot)
            }
            ReferenceTool::Fio => match &settings.target {
                Some(_) if fio::is_buffered(ours) => Err(cannot(fio::BUFFERED.to_owned())),
                Some(target) => Ok(vec![fio::call(settings, target, scratch)]),
                None => Err(cannot("needs a file or a block device to read".to_owned())),
            },
        }
    }

    fn text_of(
        self,
        call: &Call,
        settings: &Settings,
        placement: &Placement,
        scratch: &StateDir,
    ) -> Result<String, ReferenceToolError> {
        let file = call.file.map(|name| scratch.path_of(name));
        if let Some(name) = call.file
            && scratch.contains(name)
        {
            scratch.remove(name)?; // an old result must not be taken for a new one
        }
        let mut spawn = Spawn::new(&self.program()?)
            .args(&call.argv)
            .die_with_parent(true)
            .current_dir(scratch.path())
            .policy(call.policy)
            .cgroup_files(placement.cgroup_files.clone());
        if let Some(mask) = &call.mask {
            spawn = spawn.affinity(mask.clone());
        }
        let timeout_ns = settings.duration_ns.saturating_mul(4).saturating_add(60_000_000_000);
        let output = spawn.capture(timeout_ns)?;
        if !output.status.success() {
            return Err(self.fail(&output));
        }
        match file {
            Some(path) => Ok(pinfold_host::files::read_text(&path)?),
            // stress-ng writes its results to the log.
            None => Ok([output.stdout_text(), output.stderr_text()].concat()),
        }
    }

    fn fail(self, output: &Output) -> ReferenceToolError {
        let said = [output.stderr_text(), output.stdout_text()].concat();
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(3)..];
        ReferenceToolError::Failed {
            reference_tool: self,
            how: process::describe(output.status),
            message: last.join(" | "),
        }
    }

    /// Parses the output of the tool.
    ///
    /// # Errors
    /// [`ReferenceToolError::Output`].
    pub fn parse(self, text: &str, ours: &[Figure]) -> Result<Found, ReferenceToolError> {
        match self {
            ReferenceTool::Cyclictest => cyclictest::parse(text),
            ReferenceTool::Oslat => oslat::parse(text),
            ReferenceTool::LikwidBench => likwid::parse(text),
            ReferenceTool::Perf => perf::parse(text),
            ReferenceTool::StressNg => stress_ng::parse(text, ours),
            ReferenceTool::Fio => fio::parse(text),
        }
        .map_err(|why| ReferenceToolError::Output { reference_tool: self, why })
    }
}

/// A reading that is valid for every figure of the probe.
fn reading(statistic: Statistic, value: f64) -> Reading {
    Reading { labels: BTreeMap::new(), statistic, value }
}

/// Labels of the figure of `context-switch` that a token between two processes measures: every
/// single hop.
fn token() -> BTreeMap<String, String> {
    [("processes", "2"), ("kib", "0"), ("part", "hop")]
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .collect()
}

/// The single CPU on which these figures of a probe were measured; the tool is pinned to it too.
fn pu_of(ours: &[Figure], probe: &str) -> Result<CpuSet, String> {
    let of_probe = || ours.iter().filter(|figure| figure.probe == probe);
    let pus: CpuSet = of_probe().filter_map(|figure| figure.cpu).map(PuId).collect();
    if pus.len() == 1 && of_probe().all(|figure| figure.cpu.is_some()) {
        Ok(pus)
    } else {
        Err("is held on one CPU, and ours ran on several: omit --placement".to_owned())
    }
}

/// Rejects a value that a measurement cannot have.
fn check_sample_value(what: &str, value: f64) -> Result<f64, String> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(format!("reports {what} {value}"))
    }
}

/// Seconds in the form that these programs accept: a whole number, at least one.
fn whole_seconds(duration_ns: u64) -> String {
    duration_ns.div_ceil(1_000_000_000).max(1).to_string()
}

fn path_of(target: &IoTarget) -> &str {
    match target {
        IoTarget::Device(path) | IoTarget::File(path) => path,
    }
}
