//! The table of all probes that can be run alone.
//!
//! A row gives what the probe measures, the unit, how the samples are summarised, which reference
//! tools it can be compared with, and how settings become a [`Job`]. `pinfold measure --list`
//! prints the table. A new command of `pinload` needs a row here and no other code for its figures.

#[cfg(test)]
mod tests;

use pinfold_model::{CpuSet, Family, GAP_FLOOR_NS, Unit};

use crate::benchmarks::{Benchmark, Cpus, Disk, Kind, SchedPolicy, seconds};
use crate::cpu_speed::{Amount, MicroBenchmark, MicroKind};
use crate::figures::Instrument;
use crate::job::Job;
use crate::os::Switch;
use crate::reference_tools::ReferenceTool;
use crate::settings::Settings;

/// The chart that suits the figures of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picture {
    /// A percentile plot: each period or request is a sample.
    Percentiles,
    /// Scheduling stalls, and their effect on arrivals at random times. Only stalls above a
    /// threshold are samples.
    Gaps,
    /// One bar for each figure.
    Bars,
    /// The samples in the order in which they were taken.
    OverTime,
    /// One line for each value of the label `series`, over the numeric label `x`.
    Lines {
        /// The label whose numbers are on the x axis.
        x: &'static str,
        /// The label that has one value for each line.
        series: &'static str,
        /// Restricts the chart to the figures with this label and value.
        of: (&'static str, &'static str),
    },
}

/// Why settings do not make a job, as a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{probe} {why}")]
pub struct Refusal {
    /// Name of the probe.
    pub probe: &'static str,
    /// Why the settings are refused.
    pub why: String,
}

/// One row of the table of probes.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Name on the command line.
    pub name: &'static str,
    /// What the probe measures, in one line.
    pub what: &'static str,
    /// Unit of its samples.
    pub unit: Unit,
    /// How its samples are summarised.
    pub family: Family,
    /// How its figures are drawn.
    pub picture: Picture,
    /// Tools of other projects that measure the same.
    pub reference_tools: &'static [ReferenceTool],
    make: Make,
}

#[derive(Clone, Copy, Debug)]
enum Make {
    SpinGap,
    Wakeup,
    Compute,
    Io,
    MicroBenchmark(MicroKind),
    /// A `pinload` command that prints figures: its name, and the common options that it accepts.
    Instrument(&'static str, &'static [OptionForm]),
}

/// A common option of a `pinload` command, in the form that the command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionForm {
    /// `--seconds`; without it the command measures as long as it needs.
    Seconds,
    /// `--cpus` with all CPUs.
    Cpus,
    /// `--cpus` with the first CPU and, if there is one, the second.
    TwoCpus,
    /// This option with the first CPU.
    OneCpu(&'static str),
    /// `--policy`.
    Policy,
    /// The rings of the scaling plot, unless the user passes other arguments.
    Rings,
}

const SECOND: u64 = 1_000_000_000;
/// Upper bound on the number of figures of one command, each measured for its own duration.
const MOST_FIGURES: u64 = 100;
/// Duration of a sweep over all sizes on a heavily loaded machine.
const LONG_NS: u64 = 600 * SECOND;

/// All probes, in the order in which they are listed.
///
/// ```
/// use pinfold_probe::registry::PROBES;
///
/// assert!(PROBES.iter().any(|probe| probe.name == "wakeup"));
/// ```
pub static PROBES: &[Probe] = &[
    Probe {
        name: "spin-gap",
        what: "time taken from a thread that spins for a part of each period",
        unit: Unit::Nanoseconds,
        family: Family::Tail,
        picture: Picture::Gaps,
        reference_tools: &[ReferenceTool::Oslat],
        make: Make::SpinGap,
    },
    Probe {
        name: "wakeup",
        what: "lateness of timer wake-ups, missed periods counted",
        unit: Unit::Nanoseconds,
        family: Family::Tail,
        picture: Picture::Percentiles,
        reference_tools: &[ReferenceTool::Cyclictest, ReferenceTool::StressNg],
        make: Make::Wakeup,
    },
    Probe {
        name: "io",
        what: "duration of random reads of 4 KiB, by fio where it is there",
        unit: Unit::Nanoseconds,
        family: Family::Tail,
        picture: Picture::Percentiles,
        reference_tools: &[ReferenceTool::Fio],
        make: Make::Io,
    },
    Probe {
        name: "compute",
        what: "integer work per second, in windows of 5 ms",
        unit: Unit::PerSecond,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Compute,
    },
    Probe {
        name: "bandwidth",
        what: "bytes per second by block size and operation, 4 KiB to 1 GiB",
        unit: Unit::BytesPerSecond,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[ReferenceTool::LikwidBench],
        make: Make::Instrument("bandwidth", &[OptionForm::OneCpu("--cpu")]),
    },
    Probe {
        name: "stream-variant",
        what: "copy, scale, add, triad: based on a variant of STREAM",
        unit: Unit::BytesPerSecond,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("stream-variant", &[OptionForm::OneCpu("--cpu")]),
    },
    Probe {
        name: "chase",
        what: "latency of one load by size of the memory, alone and loaded",
        unit: Unit::Nanoseconds,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("chase", &[OptionForm::OneCpu("--cpu")]),
    },
    Probe {
        name: "loop64",
        what: "the 64 MB loop of Kuehn and Baum, pass by pass",
        unit: Unit::Nanoseconds,
        family: Family::Tail,
        picture: Picture::OverTime,
        reference_tools: &[],
        make: Make::Instrument(
            "loop64",
            &[OptionForm::Seconds, OptionForm::OneCpu("--cpu"), OptionForm::Policy],
        ),
    },
    Probe {
        name: "context-switch",
        what: "a token through rings of 2 to 96 processes of 0 and 4 KiB",
        unit: Unit::Nanoseconds,
        family: Family::Capacity,
        picture: Picture::Lines { x: "processes", series: "kib", of: ("part", "net") },
        reference_tools: &[ReferenceTool::Perf, ReferenceTool::StressNg],
        make: Make::Instrument(
            "switch",
            &[OptionForm::Rings, OptionForm::Seconds, OptionForm::Cpus, OptionForm::Policy],
        ),
    },
    Probe {
        name: "ipc-bandwidth",
        what: "bytes per second through pipes, sockets, files, mappings",
        unit: Unit::BytesPerSecond,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("ipc-bandwidth", &[OptionForm::Seconds, OptionForm::TwoCpus]),
    },
    Probe {
        name: "os-latency",
        what: "system calls, signals, processes, page faults, files",
        unit: Unit::Nanoseconds,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("os-latency", &[OptionForm::Seconds, OptionForm::OneCpu("--cpus")]),
    },
    Probe {
        name: "intmix",
        what: "scores of lists, matrices, state machines, CRC; also per MHz",
        unit: Unit::PerSecond,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("intmix", &[OptionForm::Seconds, OptionForm::Cpus]),
    },
    Probe {
        name: "parallel",
        what: "a parallel program: -- fft --threads 2 --size small",
        unit: Unit::Nanoseconds,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("parallel", &[]),
    },
    micro("micro-cpu", "integer work (Buchert 2011)", MicroKind::Cpu),
    micro(
        "micro-udp",
        "UDP datagrams to an address that no host has (Buchert 2011)",
        MicroKind::Udp,
    ),
    micro(
        "micro-sleep",
        "work, sleep, work (Buchert 2011)",
        MicroKind::Sleep { sleep_ns: SECOND / 10 },
    ),
    micro(
        "micro-memory",
        "a stream through 128 MiB (Buchert 2011)",
        MicroKind::Memory { mib: 128 },
    ),
    micro("micro-processes", "work in five processes (Buchert 2011)", MicroKind::Processes(5)),
    micro("micro-threads", "work in five threads (Buchert 2011)", MicroKind::Threads(5)),
];

const fn micro(name: &'static str, what: &'static str, kind: MicroKind) -> Probe {
    Probe {
        name,
        what,
        unit: Unit::PerSecond,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::MicroBenchmark(kind),
    }
}

/// The probe with this name.
pub fn find(name: &str) -> Option<&'static Probe> {
    PROBES.iter().find(|probe| probe.name == name)
}

impl Probe {
    /// The job for these settings.
    ///
    /// # Errors
    /// [`Refusal`] if the probe does not have one of the settings, or requires one that is missing.
    pub fn job(&self, settings: &Settings) -> Result<Job, Refusal> {
        self.check(settings)?;
        fn benchmark(benchmark: Benchmark, settings: &Settings) -> Job {
            let cpus = Cpus::These(settings.cpus.clone());
            let benchmark = if settings.keep_awake { benchmark.kept_awake() } else { benchmark };
            Job::Benchmark(benchmark.on(cpus).under(settings.policy))
        }
        let duration_ns = settings.duration_ns;
        Ok(match self.make {
            Make::SpinGap => {
                let duty_percent = settings.duty_percent.unwrap_or(50);
                let period_us = settings.period_us.unwrap_or(10_000);
                let kind = Kind::SpinGap { duty_percent, period_us, floor_ns: GAP_FLOOR_NS };
                benchmark(Benchmark { kind, ..Benchmark::spin_gap(duration_ns) }, settings)
            }
            Make::Wakeup => {
                let kind = Kind::Wakeup { period_us: settings.period_us.unwrap_or(1_000) };
                let mut made = Benchmark { kind, ..Benchmark::wakeup(duration_ns) };
                made.max_samples = samples_of(duration_ns, settings.period_us.unwrap_or(1_000));
                benchmark(made, settings)
            }
            Make::Compute => benchmark(Benchmark::compute(duration_ns), settings),
            Make::Io => {
                let target = settings.target.clone().ok_or_else(|| {
                    self.refuse("needs a file or a block device to read".to_owned())
                })?;
                let made = Benchmark::io_latency(Disk::Virtio, target, duration_ns);
                Job::Benchmark(made.under(settings.policy))
            }
            Make::MicroBenchmark(kind) => Job::MicroBenchmark(MicroBenchmark {
                kind,
                amount: Amount::Time(settings.duration_ns),
            }),
            Make::Instrument(command, wants) => {
                let mut arguments = settings.more.clone();
                wants.iter().for_each(|one| arguments.extend(one.words(settings)));
                // Each figure is measured for that duration, or for as long as it needs.
                let duration_ns = duration_ns.saturating_mul(MOST_FIGURES).max(LONG_NS);
                Job::Instrument(Instrument { command, arguments, duration_ns })
            }
        })
    }

    /// Rejects settings that the probe does not have, instead of ignoring them.
    fn check(&self, settings: &Settings) -> Result<(), Refusal> {
        let is_latency = matches!(self.make, Make::SpinGap | Make::Wakeup);
        let takes_words = matches!(self.make, Make::Instrument(..));
        let has_policy = match self.make {
            Make::SpinGap | Make::Wakeup | Make::Compute | Make::Io => true,
            Make::MicroBenchmark(_) => false,
            Make::Instrument(_, wants) => wants.contains(&OptionForm::Policy),
        };
        if settings.period_us.is_some() && !is_latency {
            return Err(self.refuse("has no period".to_owned()));
        }
        if settings.duty_percent.is_some() && !matches!(self.make, Make::SpinGap) {
            return Err(self.refuse("has no duty cycle: only spin-gap spins and sleeps".to_owned()));
        }
        if settings.keep_awake && !is_latency {
            return Err(self.refuse("does not keep CPUs awake".to_owned()));
        }
        if settings.target.is_some() && !matches!(self.make, Make::Io) {
            return Err(self.refuse("reads no file".to_owned()));
        }
        if settings.policy != SchedPolicy::Other && !has_policy {
            return Err(self.refuse("runs only under the policy other".to_owned()));
        }
        match settings.more.first() {
            Some(word) if !takes_words => {
                Err(self.refuse(format!("has no further options such as {word:?}")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// True if the probe measures several figures in sequence, each for its own duration. The total
    /// duration is then not known in advance.
    pub fn has_several_figures(&self) -> bool {
        matches!(self.make, Make::Instrument(..))
    }

    /// The `pinload` command of the probe, if it accepts further arguments.
    #[must_use]
    pub fn command_with_options(&self) -> Option<&'static str> {
        match self.make {
            Make::Instrument(command, _) => Some(command),
            Make::SpinGap | Make::Wakeup | Make::Compute | Make::Io | Make::MicroBenchmark(_) => {
                None
            }
        }
    }

    /// True if the probe reads a file or a device.
    pub fn reads_a_file(&self) -> bool {
        matches!(self.make, Make::Io)
    }

    fn refuse(&self, why: String) -> Refusal {
        Refusal { probe: self.name, why }
    }
}

/// Capacity for one sample per period, plus 10 %.
fn samples_of(duration_ns: u64, period_us: u32) -> u32 {
    let periods = duration_ns / (u64::from(period_us.max(1)) * 1_000);
    u32::try_from(periods + periods / 10).unwrap_or(u32::MAX).clamp(1_000, 10_000_000)
}

impl OptionForm {
    fn words(self, settings: &Settings) -> Vec<String> {
        fn list(count: usize, settings: &Settings) -> String {
            settings.cpus.iter().take(count).collect::<CpuSet>().to_string()
        }
        let policy = match settings.policy {
            SchedPolicy::Other => "other".to_owned(),
            SchedPolicy::Fifo(priority) => format!("fifo:{priority}"),
        };
        let (name, value) = match self {
            OptionForm::Seconds => ("--seconds", seconds(settings.duration_ns)),
            OptionForm::Cpus => ("--cpus", settings.cpus.to_string()),
            OptionForm::TwoCpus => ("--cpus", list(2, settings)),
            OptionForm::OneCpu(name) => (name, list(1, settings)),
            OptionForm::Policy => ("--policy", policy),
            OptionForm::Rings if settings.more.is_empty() => {
                return Switch::scaling(settings.duration_ns).rings();
            }
            OptionForm::Rings => return Vec::new(),
        };
        vec![name.to_owned(), value]
    }
}
