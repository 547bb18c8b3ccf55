//! One block on this machine: one start of the probe.

use pinfold_host::process;
use pinfold_model::Figure;
use pinfold_probe::benchmarks::{BenchmarkError, SchedPolicy};
use pinfold_probe::interference;
use pinfold_probe::job::Job;
use pinfold_probe::reference_tools::{self, ReferenceTool, ReferenceToolError};
use pinfold_probe::registry::{Probe, Refusal};
use pinfold_probe::settings::Settings;
use pinfold_study::measured::MeasuredBlock;

use super::file::Folder;
use super::place::HostPlace;
use super::{MeasurementContext, ProbeOptions};
use crate::message::say;
use crate::{Exit, Failure, time};

const LONGEST_S: f64 = 86_400.0;
/// Duration of the check whether reads can bypass the page cache.
const LOOK_NS: u64 = 20_000_000;

/// The program that reads for `io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// fio if it is installed.
    Best,
    /// Our own benchmark: the same on both sides of a comparison.
    Own,
}

/// How and where a probe is run.
pub struct Conditions<'a> {
    /// Its options.
    pub how: &'a ProbeOptions,
    /// Where it runs.
    pub place: HostPlace,
    /// What reads the file of a probe that reads one.
    pub reader: Reader,
}

/// A probe with its placement, ready for any number of blocks.
pub struct PreparedProbe<'b> {
    bench: &'b MeasurementContext,
    probe: &'b Probe,
    place: HostPlace,
    settings: Settings,
    job: Job,
    folder: Folder,
    by_fio: bool,
}

impl<'b> PreparedProbe<'b> {
    /// Prepares the probe.
    pub fn new(
        bench: &'b MeasurementContext,
        probe: &'b Probe,
        Conditions { how, place, reader }: Conditions<'_>,
    ) -> Result<Self, Failure> {
        let folder = Folder::new()?;
        let mut settings = settings(how, place.pus.clone(), place.policy)?;
        let mut by_fio =
            probe.reads_a_file() && reader == Reader::Best && ReferenceTool::Fio.program().is_ok();
        settings.target = if probe.reads_a_file() || how.file.is_some() {
            Some(folder.target(how.file.as_deref())?)
        } else {
            None
        };
        let job = probe.job(&settings).map_err(|refusal| refusal_failure(&refusal))?;
        if by_fio && is_buffered(bench, probe, &settings, &place)? {
            by_fio = false;
            say("note: this file system does not support direct reads (O_DIRECT), and fio drops \
                 the page cache only once: pinload reads instead and drops it before each read");
        }
        if by_fio && settings.policy != SchedPolicy::Other {
            return Err(Failure::new(Exit::Input, "io runs only under the policy other")
                .with_hint(
                    "fio reads the blocks, and Pinfold does not give it a real-time policy",
                ));
        }
        Ok(Self { bench, probe, place, settings, job, folder, by_fio })
    }

    /// The settings of the probe.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings, for a reference tool that needs others.
    pub fn change(&mut self, change: impl FnOnce(&Settings) -> Settings) -> Result<(), Failure> {
        self.settings = change(&self.settings);
        self.job = self.probe.job(&self.settings).map_err(|refusal| refusal_failure(&refusal))?;
        Ok(())
    }

    /// Measures one block.
    pub fn take(&self) -> Result<MeasuredBlock, Failure> {
        let before = interference::now(&self.bench.host, &self.place.pus)?;
        let figures = self.figures()?;
        let after = interference::now(&self.bench.host, &self.place.pus)?;
        Ok(MeasuredBlock { figures, surroundings: after.since(&before) })
    }

    fn figures(&self) -> Result<Vec<Figure>, Failure> {
        if self.by_fio {
            let scratch = self.folder.directory();
            return reference_tools::fio_figure(&self.settings, &self.place.placement, scratch)
                .map_err(|e| reference_tool_failure(&e));
        }
        let mut came = (self.bench.on_figures)(self.probe);
        let taken = self.job.run_with_progress(
            &self.bench.pinload,
            &self.place.placement,
            &mut |figure: &Figure| came(figure),
        );
        taken.map_err(|error| benchmark_failure(&error))
    }

    /// Runs a reference tool with the same placement.
    pub fn reference_tool(
        &self,
        reference_tool: ReferenceTool,
        ours: &[Figure],
    ) -> Result<reference_tools::Found, Failure> {
        reference_tool
            .run(&self.settings, ours, &self.place.placement, self.folder.directory())
            .map_err(|error| reference_tool_failure(&error))
    }

    /// Description of the placement.
    pub fn place(&self) -> String {
        self.place.text.clone()
    }

    /// The tool that measures.
    pub fn tool(&self) -> Result<String, Failure> {
        if !self.by_fio {
            return Ok(self.bench.version.clone());
        }
        let reported = process::capture("fio", ["--version"], 10_000_000_000)?;
        Ok(reported.stdout_text().trim().to_owned())
    }

    /// Duration of a block (seconds).
    pub fn seconds(&self) -> f64 {
        self.settings.duration_ns as f64 / 1e9
    }
}

/// True if reads of this target cannot bypass the page cache: a short run of our own benchmark
/// tries it.
fn is_buffered(
    bench: &MeasurementContext,
    probe: &Probe,
    settings: &Settings,
    place: &HostPlace,
) -> Result<bool, Failure> {
    let short = Settings { duration_ns: LOOK_NS, policy: SchedPolicy::Other, ..settings.clone() };
    let job = probe.job(&short).map_err(|refusal| refusal_failure(&refusal))?;
    let figures = job.run_on_host(&bench.pinload, &place.placement);
    Ok(reference_tools::is_buffered(&figures.map_err(|error| benchmark_failure(&error))?))
}

/// The settings from the command line.
pub fn settings(
    how: &ProbeOptions,
    cpus: pinfold_model::CpuSet,
    policy: SchedPolicy,
) -> Result<Settings, Failure> {
    if !(how.seconds >= 0.01 && how.seconds <= LONGEST_S) {
        return Err(Failure::new(Exit::Input, format!("--seconds {}: out of range", how.seconds))
            .with_hint("give a number of seconds from 0.01 to 86400"));
    }
    let duration = std::time::Duration::from_secs_f64(how.seconds);
    let period_us = match &how.period {
        Some(text) => {
            let us = time::parse_ns("--period", text)? / 1_000;
            let us = u32::try_from(us).ok().filter(|us| *us > 0).ok_or_else(|| {
                Failure::new(Exit::Input, format!("--period {text:?}: out of range"))
                    .with_hint("give 50us to 1s for wakeup, 1ms to 10ms for spin-gap")
            })?;
            Some(us)
        }
        None => None,
    };
    Ok(Settings {
        duration_ns: u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
        cpus,
        policy,
        period_us,
        duty_percent: how.duty,
        keep_awake: how.keep_awake,
        target: None,
        more: how.more.clone(),
    })
}

/// The failure for a setting that the probe does not have.
pub fn refusal_failure(refusal: &Refusal) -> Failure {
    Failure::from_error(Exit::Input, refusal, None)
        .with_hint("`pinfold measure --list` shows what each probe measures")
}

/// The failure for a benchmark without a result: invalid arguments, the host, or a guest that is
/// gone.
pub fn benchmark_failure(error: &BenchmarkError) -> Failure {
    let exit = match error {
        BenchmarkError::Agent(_) => Exit::Vm,
        BenchmarkError::Failed { how, .. } if how == "exit code 2" => Exit::Input,
        BenchmarkError::Failed { .. }
        | BenchmarkError::Host(_)
        | BenchmarkError::Line { .. }
        | BenchmarkError::Output { .. } => Exit::Host,
    };
    Failure::from_error(exit, error, error.hint())
}

/// The failure for a reference tool without a result.
pub fn reference_tool_failure(error: &ReferenceToolError) -> Failure {
    let exit = match error {
        ReferenceToolError::Cannot { .. } => Exit::Input,
        ReferenceToolError::NotInstalled(_)
        | ReferenceToolError::Failed { .. }
        | ReferenceToolError::Output { .. }
        | ReferenceToolError::Host(_) => Exit::Host,
    };
    Failure::from_error(exit, error, error.hint())
}
