//! `pinfold measure` and `pinfold compare`: one probe, and two of them side by side.
//!
//! ```text
//! place (CPUs, plan, vnode, guest) ─► run, block by block ─► figures ─► table, chart, file
//!                                          └── reference tool, other plan, native ─► ratio, verdict
//! ```
//!
//! The probes are in the probe crate, the statistics in the study crate; this module places the
//! probe and shows the result.

mod against;
mod compare;
mod cpus;
mod file;
mod guest;
mod observe;
mod run_block;
mod show;

use pinfold_host::{Clock as _, LiveHost, SystemClock, files, process};
use pinfold_model::{Accelerator, Origin, Topology, scrubbed_parameters};
use pinfold_probe::pinload::Pinload;
use pinfold_probe::registry::{self, PROBES, Probe};
use pinfold_run::{Exit, Failure, host, inputs, interrupt};
use pinfold_study::measured::{MeasuredBlock, Measurement, to_json};

use self::cpus::HostPlace;
use self::guest::Guest;
use self::run_block::Taking;
use crate::cli::measure::MeasureArgs;
use crate::output::{data, say};
use crate::screen;

pub use compare::compare;

/// Default number of blocks of a comparison.
const COMPARED_BLOCKS: u32 = 8;
/// Timeout for `pinload` to describe itself.
const TOLD_NS: u64 = 10_000_000_000;

/// The data for every measurement on this machine.
struct Bench {
    host: LiveHost,
    topology: Topology,
    pinload: Pinload,
    version: String,
    seed: u64,
}

/// Measures, or lists what can be measured.
pub fn measure(arguments: &MeasureArgs, state: Option<&str>) -> Result<(), Failure> {
    let Some(name) = arguments.probe.as_deref().filter(|_| !arguments.list) else {
        return list(arguments);
    };
    if let Some(instrument) = observe::Instrument::find(name) {
        return observe::measure(instrument, arguments);
    }
    let probe = find(name)?;
    let machine = &arguments.machine;
    let named = machine.qmp.is_some() || machine.libvirt.is_some() || machine.pid.is_some();
    let of_exits = arguments.exits.given().iter().any(|(is_given, _)| *is_given);
    let of_others = arguments.sites || !arguments.quantities.is_empty() || of_exits;
    if named || !arguments.processes.is_empty() || of_others {
        return Err(Failure::new(
            Exit::Input,
            format!("{name} does not look at threads of others"),
        )
        .with_hint("sched, counters, locks and exits do; --guest measures inside a guest"));
    }
    if arguments.how.more == ["--help"] {
        return options(probe);
    }
    let bench = Bench::new(arguments.seed)?;
    if let Some(reference_tool) = &arguments.against {
        return against::against(&bench, probe, (arguments, reference_tool), state);
    }
    let blocks = arguments.blocks.unwrap_or(1);
    let measurement = match &arguments.guest {
        Some(guest) => in_guest(&bench, probe, (arguments, guest), (blocks, state))?,
        None => on_host(&bench, probe, arguments, (blocks, state))?,
    };
    if let Some(path) = &arguments.save {
        let text = to_json(&measurement)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        files::write_atomic(path, text.as_bytes())?;
    }
    match arguments.json {
        true => data(&show::json(&measurement, probe)?),
        false => data(&screen::fitted(&show::text(&measurement, probe))),
    }
    show::warnings(&measurement).iter().for_each(|warning| say(warning));
    if let Some(path) = &arguments.save {
        say(&format!("saved to {path}; `pinfold compare` takes two of them"));
    }
    Ok(())
}

fn list(arguments: &MeasureArgs) -> Result<(), Failure> {
    match arguments.json {
        true => data(&show::list_json()),
        false => data(&show::list()),
    }
    Ok(())
}

/// Prints the options that a probe accepts after `--`, as its instrument describes them.
fn options(probe: &Probe) -> Result<(), Failure> {
    let Some(command) = probe.command_with_options() else {
        return Err(Failure::new(Exit::Input, format!("{} has no further options", probe.name))
            .with_hint("`pinfold measure --help` lists those of all probes"));
    };
    let pinload = Pinload::install()?;
    let help = process::capture(&pinload.path(), [command, "--help"], TOLD_NS)?;
    data(help.stdout_text().trim_end());
    Ok(())
}

/// The probe with this name, or a failure with the most similar name.
fn find(name: &str) -> Result<&'static Probe, Failure> {
    registry::find(name).ok_or_else(|| {
        let outside = observe::Instrument::ALL.iter().map(|one| one.name());
        let known = PROBES.iter().map(|probe| probe.name).chain(outside);
        let hint = match pinfold_plan::nearest(name, known) {
            Some(nearest) => format!("did you mean {nearest}? "),
            None => String::new(),
        };
        Failure::new(Exit::Input, format!("there is no probe {name:?}"))
            .with_hint(format!("{hint}`pinfold measure --list` shows all probes"))
    })
}

fn on_host(
    bench: &Bench,
    probe: &Probe,
    arguments: &MeasureArgs,
    (blocks, state): (u32, Option<&str>),
) -> Result<Measurement, Failure> {
    let place = HostPlace::find(bench, arguments, state)?;
    let taking = Taking::on_host(bench, probe, (&arguments.how, place))?;
    say(&announcement(probe, blocks, taking.seconds()));
    let blocks = (0..blocks).map(|_| taking.take()).collect::<Result<Vec<_>, Failure>>()?;
    bench.measurement(probe.name, (taking.place(), taking.tool()?), blocks, None)
}

fn in_guest(
    bench: &Bench,
    probe: &Probe,
    (arguments, wanted): (&MeasureArgs, &str),
    (blocks, state): (u32, Option<&str>),
) -> Result<Measurement, Failure> {
    interrupt::install()?;
    let guest = Guest::open(bench, wanted, state)?;
    say(&announcement(probe, blocks, arguments.how.seconds));
    let mut taken = Vec::new();
    for _ in 0..blocks {
        if interrupt::requested() {
            return Err(Failure::new(Exit::Interrupted, "interrupted"));
        }
        taken.push(guest.take(probe, &arguments.how, None)?);
    }
    bench.measurement(probe.name, (guest.place(&arguments.how), guest.tool()), taken, Some(&guest))
}

fn announcement(probe: &Probe, blocks: u32, seconds: f64) -> String {
    let times = if blocks == 1 { String::new() } else { format!("{blocks} blocks of ") };
    match probe.has_several_figures() {
        true => format!("measuring {}: {times}one figure after the other …", probe.name),
        false => format!("measuring {}: {times}about {seconds} s …", probe.name),
    }
}

impl Bench {
    fn new(seed: Option<u64>) -> Result<Self, Failure> {
        let host = host::live()?;
        let topology = inputs::topology(&host, None)?;
        let pinload = Pinload::install()?;
        let reported = process::capture(&pinload.path(), ["--version"], TOLD_NS)?;
        let clock = SystemClock;
        let seed = seed.unwrap_or_else(|| clock.now_ns() ^ clock.unix_seconds());
        Ok(Self {
            host,
            topology,
            pinload,
            version: reported.stdout_text().trim().to_owned(),
            seed,
        })
    }

    fn measurement(
        &self,
        probe: &str,
        (place, tool): (String, String),
        blocks: Vec<MeasuredBlock>,
        guest: Option<&Guest<'_>>,
    ) -> Result<Measurement, Failure> {
        let mut command: Vec<String> = std::env::args().collect();
        if let Some(program) = command.first_mut() {
            *program = "pinfold".to_owned();
        }
        Ok(Measurement {
            probe: probe.to_owned(),
            command,
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
            cmdline: scrubbed_parameters(&native.cmdline),
            qemu: guest.and_then(Guest::qemu),
            accelerator: guest.map_or(Accelerator::Native, Guest::accelerator),
            guest_kernel: guest.and_then(Guest::kernel),
            ..native
        })
    }
}
