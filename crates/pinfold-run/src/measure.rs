//! Runs probes: on this machine, in a guest, next to a reference tool, and side by side.
//!
//! ```text
//! place (CPUs, plan, vnode, guest) ─► run, block by block ─► figures
//!                                          └── reference tool, other plan, native
//! ```
//!
//! The probes are in `pinfold-probe`, the statistics in `pinfold-study`; this module places the
//! probe.

mod compare;
mod cross_check;
mod file;
mod guest;
mod observe;
mod place;
mod run_block;
mod stopped;

use pinfold_host::{Clock as _, LiveHost, SystemClock, process};
use pinfold_model::{Accelerator, Figure, Origin, Topology, filter_boot_parameters};
use pinfold_probe::pinload::Pinload;
use pinfold_probe::registry::Probe;
use pinfold_study::measured::{MeasuredBlock, Measurement};

pub use self::compare::{ComparedSides, Request, against_native, files, plans};
pub use self::cross_check::{Against, CrossCheck, Reported, against};
pub use self::guest::Guest;
pub(crate) use self::observe::watch_failure;
pub use self::observe::{
    Instrument, ObservationResult, ObservationTarget, ObserveRequest, gap_bound, machine_names,
    observe, quantities,
};
pub use self::place::{HostPlace, PlaceRequest};
pub use self::run_block::PreparedProbe;
use self::run_block::{Conditions, Reader};

use crate::{Exit, Failure, HelperProgram, host, inputs, interrupt};

/// Timeout for `pinload` to describe itself.
const DESCRIBE_TIMEOUT_NS: u64 = 10_000_000_000;

/// What a measurement was made with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where the probe ran.
    pub place: String,
    /// The program, with its version.
    pub tool: String,
}

/// Where and how a probe runs, as on the command line.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// CPUs of this machine or of a guest; `None` for all that may be used.
    pub cpus: Option<String>,
    /// The CPUs of this NUMA node.
    pub node: Option<u32>,
    /// `other` or `fifo:N`; `None` for `other`, or as the plan has it.
    pub policy: Option<String>,
    /// Duration of each block.
    pub seconds: f64,
    /// Time between two wake-ups, or of spinning and sleeping, such as `500us`.
    pub period: Option<String>,
    /// Share of its period that the probe spins (percent).
    pub duty: Option<u8>,
    /// True to keep all CPUs awake meanwhile.
    pub keep_awake: bool,
    /// What `io` reads.
    pub file: Option<String>,
    /// Arguments for the benchmark itself.
    pub more: Vec<String>,
}

/// Called before each block of a probe; returns what is called with each figure of the block, and
/// dropped at its end.
pub type OnFigures = fn(&Probe) -> Box<dyn FnMut(&Figure)>;

/// The data for every measurement on this machine.
pub struct MeasurementContext {
    /// Access to this machine.
    pub host: LiveHost,
    /// Its topology.
    pub topology: Topology,
    /// The program that measures.
    pub pinload: Pinload,
    /// Version of that program.
    pub version: String,
    /// Seed of random orders.
    pub seed: u64,
    /// The program of the watchdogs.
    pub program: HelperProgram,
    command: Vec<String>,
    on_figures: OnFigures,
}

impl MeasurementContext {
    /// Prepares measurements; `command` is stored with their results.
    ///
    /// # Errors
    /// [`Failure`] if this machine cannot be read, or `pinload` does not run.
    pub fn new(
        seed: Option<u64>,
        command: Vec<String>,
        on_figures: OnFigures,
        program: HelperProgram,
    ) -> Result<Self, Failure> {
        let host = host::live()?;
        let topology = inputs::topology(&host, None)?;
        let pinload = Pinload::install()?;
        let reported = process::capture(&pinload.path(), ["--version"], DESCRIBE_TIMEOUT_NS)?;
        let clock = SystemClock;
        let seed = seed.unwrap_or_else(|| clock.now_ns() ^ clock.unix_seconds());
        let version = reported.stdout_text().trim().to_owned();
        Ok(Self { host, topology, pinload, version, seed, program, command, on_figures })
    }

    /// A measurement with these blocks.
    ///
    /// # Errors
    /// [`Failure`] if the origin cannot be read.
    pub fn measurement(
        &self,
        probe: &str,
        Setup { place, tool }: Setup,
        blocks: Vec<MeasuredBlock>,
        guest: Option<&Guest<'_>>,
    ) -> Result<Measurement, Failure> {
        Ok(Measurement {
            probe: probe.to_owned(),
            command: self.command.clone(),
            place,
            tool,
            origin: self.origin(guest)?,
            unix_seconds: SystemClock.unix_seconds(),
            blocks,
        })
    }

    fn origin(&self, guest: Option<&Guest<'_>>) -> Result<Origin, Failure> {
        let native = host::origin(&self.host, &self.topology, self.seed)?;
        Ok(Origin {
            // A saved measurement may be passed to other people, so it has no secrets.
            cmdline: filter_boot_parameters(&native.cmdline),
            qemu: guest.and_then(Guest::qemu),
            accelerator: guest.map_or(Accelerator::Native, Guest::accelerator),
            guest_kernel: guest.and_then(Guest::kernel),
            ..native
        })
    }
}

/// The options that a probe accepts, as its benchmark describes them.
///
/// ```
/// let mut probes = pinfold_probe::registry::PROBES.iter();
/// let probe = probes.find(|probe| probe.command_with_options().is_some()).expect("a probe");
/// assert!(pinfold_run::measure::options(probe)?.contains(probe.name));
/// # Ok::<(), pinfold_run::Failure>(())
/// ```
///
/// # Errors
/// [`Failure`] if it has none.
pub fn options(probe: &Probe) -> Result<String, Failure> {
    let Some(command) = probe.command_with_options() else {
        return Err(Failure::new(Exit::Input, format!("{} has no options of its own", probe.name))
            .with_hint("`pinfold measure --help-all` lists the options that all probes share"));
    };
    let pinload = Pinload::install()?;
    let help = process::capture(&pinload.path(), [command, "--help"], DESCRIBE_TIMEOUT_NS)?;
    Ok(help.stdout_text().trim_end().to_owned())
}

/// Measures on this machine.
///
/// # Errors
/// [`Failure`] if the probe cannot run there.
pub fn on_host(
    bench: &MeasurementContext,
    probe: &Probe,
    request: &PlaceRequest<'_>,
    blocks: u32,
) -> Result<Measurement, Failure> {
    let place = HostPlace::find(bench, request)?;
    let taking = PreparedProbe::new(
        bench,
        probe,
        Conditions { how: request.how, place, reader: Reader::Best },
    )?;
    crate::message::say(&announcement(probe, blocks, taking.seconds()));
    let blocks = (0..blocks).map(|_| taking.take()).collect::<Result<Vec<_>, Failure>>()?;
    let setup = Setup { place: taking.place(), tool: taking.tool()? };
    bench.measurement(probe.name, setup, blocks, None)
}

/// A measurement in a guest.
#[derive(Clone, Copy)]
pub struct GuestRequest<'a> {
    /// `demo`, or the socket of a guest that runs the agent.
    pub guest: &'a str,
    /// The options of the probe.
    pub how: &'a ProbeOptions,
    /// The state directory, if it is not the usual one.
    pub state: Option<&'a str>,
}

/// Measures in a guest: `demo`, or the socket of one that runs the agent.
///
/// # Errors
/// [`Failure`] if the guest cannot be started or reached, or the user interrupted.
pub fn in_guest(
    bench: &MeasurementContext,
    probe: &Probe,
    request: GuestRequest<'_>,
    blocks: u32,
) -> Result<Measurement, Failure> {
    let GuestRequest { guest, how, state } = request;
    interrupt::install()?;
    let guest = Guest::open(bench, guest, state)?;
    crate::message::say(&announcement(probe, blocks, how.seconds));
    let mut taken = Vec::new();
    for _ in 0..blocks {
        interrupt::check()?;
        taken.push(guest.take(probe, how, None)?);
    }
    let setup = Setup { place: guest.place(how), tool: guest.tool() };
    bench.measurement(probe.name, setup, taken, Some(&guest))
}

fn announcement(probe: &Probe, blocks: u32, seconds: f64) -> String {
    let times = if blocks == 1 { String::new() } else { format!("{blocks} blocks of ") };
    if probe.has_several_figures() {
        format!("measuring {}: {times}one figure after the other …", probe.name)
    } else {
        format!("measuring {}: {times}about {seconds} s …", probe.name)
    }
}
