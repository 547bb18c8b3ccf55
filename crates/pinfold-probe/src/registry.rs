//! Every probe that can be taken by itself: one row each.
//!
//! A row says what is measured, in what unit, how its samples are summed up, which instruments
//! of others it can be held against, and how settings become a [`Job`]. `pinfold measure --list`
//! prints the table. A new instrument of `pinload` is a row here: its figures need nothing else.

#[cfg(test)]
mod tests;

use pinfold_model::{CpuSet, Family, GAP_FLOOR_NS, Unit};

use crate::benchmarks::{Benchmark, Cpus, Disk, IoTarget, Kind, SchedPolicy, seconds};
use crate::cpu_speed::{Amount, MicroBenchmark, MicroKind};
use crate::figures::Instrument;
use crate::job::Job;
use crate::os::Switch;
use crate::reference_tools::ReferenceTool;

/// How the figures of a probe are best drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picture {
    /// A percentile plot: each period or request is a sample.
    Percentiles,
    /// Gaps and what arrivals at random moments meet of them: only what was long is a sample.
    Gaps,
    /// A bar for each figure.
    Bars,
    /// Each sample in the order in which it was taken.
    OverTime,
    /// A line for each value of one label over the numbers of another.
    Lines {
        /// The label whose numbers are the axis.
        x: &'static str,
        /// The label that each line has a value of.
        series: &'static str,
        /// Of the figures with this label.
        of: (&'static str, &'static str),
    },
}

/// What is asked of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For how long.
    pub duration_ns: u64,
    /// Where: on each of them if the probe has a thread per CPU, else anywhere on them.
    pub cpus: CpuSet,
    /// Under which policy.
    pub policy: SchedPolicy,
    /// Time between two wake-ups, or of spinning and sleeping; `None` for the probe's own.
    pub period_us: Option<u32>,
    /// Percent of its period for which the gap ruler spins; `None` for its own.
    pub duty_percent: Option<u8>,
    /// All CPUs are kept awake meanwhile (`cpu_dma_latency` 0).
    pub keep_awake: bool,
    /// What is read by the I/O probe.
    pub target: Option<IoTarget>,
    /// Words for the instrument itself.
    pub more: Vec<String>,
}

/// Why settings do not make a job, as a sentence without full stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{probe} {why}")]
pub struct Refusal {
    /// The probe.
    pub probe: &'static str,
    /// What is wrong.
    pub why: String,
}

/// One probe.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures, in one line.
    pub what: &'static str,
    /// Unit of its samples.
    pub unit: Unit,
    /// How they are summed up.
    pub family: Family,
    /// How they are drawn.
    pub picture: Picture,
    /// Instruments of others that measure the same.
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
    /// An instrument that prints figures: the subcommand, and which of the common options it has.
    Instrument(&'static str, &'static [Wants]),
}

/// A common option of an instrument, as it wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    /// `--seconds`; without it the instrument measures as long as it needs.
    Seconds,
    /// `--cpus` with all.
    Cpus,
    /// `--cpus` with the first and, if there is one, the second.
    TwoCpus,
    /// This option with the first.
    OneCpu(&'static str),
    /// `--policy`.
    Policy,
    /// The rings of the scaling plot, unless the user has words of his own.
    Rings,
}

const SECOND: u64 = 1_000_000_000;
/// An instrument has fewer figures, each of which takes its time.
const MOST_FIGURES: u64 = 100;
/// A sweep of all sizes on a crowded machine.
const LONG_NS: u64 = 600 * SECOND;

/// All probes, in the order of the list.
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
        make: Make::Instrument("bandwidth", &[Wants::OneCpu("--cpu")]),
    },
    Probe {
        name: "stream-variant",
        what: "copy, scale, add, triad: based on a variant of STREAM",
        unit: Unit::BytesPerSecond,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("stream-variant", &[Wants::OneCpu("--cpu")]),
    },
    Probe {
        name: "chase",
        what: "latency of one load by size of the memory, alone and loaded",
        unit: Unit::Nanoseconds,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("chase", &[Wants::OneCpu("--cpu")]),
    },
    Probe {
        name: "loop64",
        what: "the 64 MB loop of Kuehn and Baum, pass by pass",
        unit: Unit::Nanoseconds,
        family: Family::Tail,
        picture: Picture::OverTime,
        reference_tools: &[],
        make: Make::Instrument("loop64", &[Wants::Seconds, Wants::OneCpu("--cpu"), Wants::Policy]),
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
            &[Wants::Rings, Wants::Seconds, Wants::Cpus, Wants::Policy],
        ),
    },
    Probe {
        name: "ipc-bandwidth",
        what: "bytes per second through pipes, sockets, files, mappings",
        unit: Unit::BytesPerSecond,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("ipc-bandwidth", &[Wants::Seconds, Wants::TwoCpus]),
    },
    Probe {
        name: "os-latency",
        what: "system calls, signals, processes, page faults, files",
        unit: Unit::Nanoseconds,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("os-latency", &[Wants::Seconds, Wants::OneCpu("--cpus")]),
    },
    Probe {
        name: "intmix",
        what: "scores of lists, matrices, state machines, CRC; also per MHz",
        unit: Unit::PerSecond,
        family: Family::Capacity,
        picture: Picture::Bars,
        reference_tools: &[],
        make: Make::Instrument("intmix", &[Wants::Seconds, Wants::Cpus]),
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
    micro("micro-udp", "UDP datagrams that no process reads (Buchert 2011)", MicroKind::Udp),
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

/// The probe of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Probe> {
    PROBES.iter().find(|probe| probe.name == name)
}

impl Probe {
    /// The job of these settings.
    ///
    /// # Errors
    /// [`Refusal`] if the probe has no such setting, or lacks one.
    pub fn job(&self, settings: &Settings) -> Result<Job, Refusal> {
        self.check(settings)?;
        let benchmark = |benchmark: Benchmark| {
            let cpus = Cpus::These(settings.cpus.clone());
            let benchmark = if settings.keep_awake { benchmark.kept_awake() } else { benchmark };
            Job::Benchmark(benchmark.on(cpus).under(settings.policy))
        };
        let duration_ns = settings.duration_ns;
        Ok(match self.make {
            Make::SpinGap => {
                let duty_percent = settings.duty_percent.unwrap_or(50);
                let period_us = settings.period_us.unwrap_or(10_000);
                let kind = Kind::SpinGap { duty_percent, period_us, floor_ns: GAP_FLOOR_NS };
                benchmark(Benchmark { kind, ..Benchmark::spin_gap(duration_ns) })
            }
            Make::Wakeup => {
                let kind = Kind::Wakeup { period_us: settings.period_us.unwrap_or(1_000) };
                let mut made = Benchmark { kind, ..Benchmark::wakeup(duration_ns) };
                made.max_samples = samples_of(duration_ns, settings.period_us.unwrap_or(1_000));
                benchmark(made)
            }
            Make::Compute => benchmark(Benchmark::compute(duration_ns)),
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
                // It measures each of its figures for that long, or for as long as it needs.
                let duration_ns = duration_ns.saturating_mul(MOST_FIGURES).max(LONG_NS);
                Job::Instrument(Instrument { command, arguments, duration_ns })
            }
        })
    }

    /// Settings that the probe does not have are refused rather than ignored.
    fn check(&self, settings: &Settings) -> Result<(), Refusal> {
        let is_latency = matches!(self.make, Make::SpinGap | Make::Wakeup);
        let takes_words = matches!(self.make, Make::Instrument(..));
        let has_policy = match self.make {
            Make::SpinGap | Make::Wakeup | Make::Compute | Make::Io => true,
            Make::MicroBenchmark(_) => false,
            Make::Instrument(_, wants) => wants.contains(&Wants::Policy),
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
            return Err(self.refuse("runs under the policy other only".to_owned()));
        }
        match settings.more.first() {
            Some(word) if !takes_words => {
                Err(self.refuse(format!("has no further options such as {word:?}")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// True if it measures several figures one after the other, each for its time or as long as
    /// it needs: how long it takes is not known before.
    #[must_use]
    pub fn has_several_figures(&self) -> bool {
        matches!(self.make, Make::Instrument(..))
    }

    /// The command of `pinload` that takes further options, if the probe is one of these.
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
    #[must_use]
    pub fn reads_a_file(&self) -> bool {
        matches!(self.make, Make::Io)
    }

    fn refuse(&self, why: String) -> Refusal {
        Refusal { probe: self.name, why }
    }
}

/// Room for one sample per period, and a tenth more.
fn samples_of(duration_ns: u64, period_us: u32) -> u32 {
    let periods = duration_ns / (u64::from(period_us.max(1)) * 1_000);
    u32::try_from(periods + periods / 10).unwrap_or(u32::MAX).clamp(1_000, 10_000_000)
}

impl Wants {
    fn words(self, settings: &Settings) -> Vec<String> {
        let list = |count: usize| settings.cpus.iter().take(count).collect::<CpuSet>().to_string();
        let policy = match settings.policy {
            SchedPolicy::Other => "other".to_owned(),
            SchedPolicy::Fifo(priority) => format!("fifo:{priority}"),
        };
        let (name, value) = match self {
            Wants::Seconds => ("--seconds", seconds(settings.duration_ns)),
            Wants::Cpus => ("--cpus", settings.cpus.to_string()),
            Wants::TwoCpus => ("--cpus", list(2)),
            Wants::OneCpu(name) => (name, list(1)),
            Wants::Policy => ("--policy", policy),
            Wants::Rings if settings.more.is_empty() => {
                return Switch::scaling(settings.duration_ns).rings();
            }
            Wants::Rings => return Vec::new(),
        };
        vec![name.to_owned(), value]
    }
}
