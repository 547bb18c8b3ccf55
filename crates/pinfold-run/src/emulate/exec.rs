//! Processes in a vnode.

use std::io::IsTerminal as _;
use std::process::ExitStatus;

use crate::claims::{self, Claims};
use crate::descendants::{Descendants, OnLeft};
use crate::{Exit, Failure, ended_placements, host, inputs, interrupt};
use pinfold_config::platforms;
use pinfold_emulate::{Effort, NodeStatus};
use pinfold_host::process::{self, Child, Signaled, Spawn};
use pinfold_host::{Host as _, SystemClock, files};
use pinfold_model::{CpuSet, DiskLimit, Platform, escape};

use super::disk_limit;
use super::ipc::Enter;
use super::status::Endpoint;
use super::supervisor::{Activation, plan_platform, with_platform};
use crate::helper_program::Session;
use crate::message::say;
use crate::start_lock::StartLock;

/// The environment variable with the name of the vnode in which a process runs.
pub const VNODE_VARIABLE: &str = "PINFOLD_VNODE";

/// The start of a command in a vnode.
pub fn spawn(enter: &Enter, command: &[String]) -> Result<Spawn, Failure> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| Failure::new(Exit::Input, "no command was given"))?;
    let pus = CpuSet::parse_list(&enter.pus)
        .map_err(|error| Failure::new(Exit::Host, format!("the supervisor's CPUs: {error}")))?;
    let spawn = Spawn::new(program)
        .args(arguments)
        .env(VNODE_VARIABLE, &enter.vnode)
        .cgroup_files(enter.files.clone());
    // A mask would stay when the vnode ends; one of a cpuset ends with it. A process keeps a mask
    // that it has from its caller, unless that is narrower than the vnode.
    let own = host::live()?.affinity(process::own_pid())?;
    let is_bound = !enter.needs_mask && pus.is_subset(&own);
    Ok(if is_bound { spawn } else { spawn.affinity(pus) })
}

/// Fails if there is no such program, before anything is prepared for it.
pub fn require_program(command: &[String]) -> Result<(), Failure> {
    let Some(program) = command.first() else {
        return Err(Failure::new(Exit::Input, "no command was given"));
    };
    if process::find_program(program).is_some() {
        return Ok(());
    }
    let name = escape::name(program);
    let text = if files::exists(program) && program.contains('/') {
        format!("{name} is not an executable file")
    } else if program.contains('/') {
        format!("there is no file {name}")
    } else {
        format!("there is no program {name} in PATH")
    };
    Err(Failure::new(Exit::NoProgram, text))
}

/// How [`run_slow`] works.
#[derive(Clone, Copy, Debug)]
pub struct SlowOptions {
    /// What happens to processes that the command leaves.
    pub on_left: OnLeft,
    /// The vnode is planned as if the host had no other owners of CPUs.
    pub ignore_claims: bool,
    /// How thoroughly costs are measured before the command starts.
    pub effort: Effort,
}

/// The limit of the options `--disk` and `--iops`, on the disk of the working directory.
pub fn parse_disk_limit(
    disk: Option<&str>,
    iops: Option<u32>,
) -> Result<Option<DiskLimit>, Failure> {
    let Some(option) = disk.map(|_| "--disk").or(iops.map(|_| "--iops")) else { return Ok(None) };
    let words = [disk.map(|disk| format!("disk={disk}")), iops.map(|iops| format!("iops={iops}"))];
    let words = words.into_iter().flatten().collect::<Vec<_>>().join(",");
    // Only the limit of this vnode is used.
    let spec = platforms::parse_vnode_spec(&format!("name=run,cores=1,{words}"));
    let mut vnode = inputs::name_option(option, spec)?;
    disk_limit::find_disk(&mut vnode, &host::live()?).map_err(|(_, failure)| {
        let message = failure.message.replacen("vnode run: ", "", 1);
        Failure { message: format!("{option}: {message}"), ..failure }
    })?;
    Ok(vnode.disk)
}

/// Runs a command in a platform with one vnode, until the command ends, and returns its status.
pub fn run_slow(
    session: Session<'_>,
    platform: Platform,
    command: &[String],
    options: SlowOptions,
) -> Result<ExitStatus, Failure> {
    require_program(command)?;
    let host = host::live()?;
    let before = host.affinity(process::own_pid())?;
    ended_placements::clear_up_in(&host, &host::journals(session.state, &SystemClock)?)?;
    let starting = StartLock::wait(session.state)?;
    let name = platform.vnodes.first().map(|vnode| vnode.name.clone()).unwrap_or_default();
    let claims = if options.ignore_claims {
        Claims::default()
    } else {
        claims::of_state(&host, session.state)?
    };
    let plan = plan_platform(platform, &host, &claims)?;
    plan.plan.findings.iter().for_each(|finding| say(&finding.to_string()));
    // The vnode exists as long as the command, so the signals are left to the command.
    interrupt::install_forward()?;
    process::become_subreaper()?;
    let mut child: Option<(Child, Descendants, CpuSet)> = None;
    let mut ended = None;
    let activation = Activation {
        plan: &plan,
        starting: Some(starting),
        session,
        door: Endpoint::Closed,
        wake_fd: None,
        effort: options.effort,
    };
    let worked = with_platform(&host, activation, &mut |platformed| {
        let (running, descendants, _) = match &mut child {
            Some(running) => running,
            None => {
                platformed.cautions.drain(..).for_each(|caution| say(&caution));
                let descendants = Descendants::of_next(&host)?;
                let running = spawn(&platformed.enter(&name)?, command)?.start()?;
                let cpus = host.affinity(running.pid())?;
                child.insert((running, descendants, cpus))
            }
        };
        forward_signals(running)?;
        ended = running.try_wait()?;
        descendants.reap(&host, running.pid())?;
        if ended.is_some() {
            platformed.nodes.status()?.iter().for_each(report_speeds);
        }
        Ok(ended.is_none())
    });
    if let Some((running, descendants, cpus)) = child {
        drop(running);
        descendants.settle(&host, options.on_left)?;
        descendants.widen(&host, &cpus, &before)?;
    }
    worked?;
    ended.ok_or_else(|| Failure::new(Exit::Interrupted, "interrupted"))
}

/// Reports the speed of each core on which the command ran in its last second.
fn report_speeds(node: &NodeStatus) {
    for core in &node.cores {
        let Some(achieved) = core.achieved_millionths else { continue };
        let wall = core
            .wall_millionths
            .map_or_else(String::new, |wall| format!(", {} by wall clock", percent(wall)));
        say(&format!(
            "CPU {}: {} requested, {} achieved per CPU time{wall} (last second, {})",
            core.pu,
            percent(core.asked.millionths()),
            percent(achieved),
            node.method
        ));
    }
}

fn percent(millionths: u32) -> String {
    format!("{:.2}%", f64::from(millionths) / 1e4)
}

/// Forwards signals to the command. Ctrl-C of a terminal reaches it directly, and many programs
/// treat a second one as a forced exit.
pub fn forward_signals(command: &mut Child) -> Result<(), Failure> {
    for signal in interrupt::take_forwarded() {
        let by_terminal = signal == Signaled::Interrupt && std::io::stdin().is_terminal();
        if !by_terminal {
            command.signal(signal)?;
        }
    }
    Ok(())
}
