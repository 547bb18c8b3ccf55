//! Processes in a vnode: `pinfold emulate exec`, `shell`, and `pinfold run --speed`.

use std::process::ExitStatus;

use pinfold_config::platforms;
use pinfold_emulate::Effort;
use pinfold_host::process;
use pinfold_model::{Command, CpuSet, Platform, PlatformVnode, ProfileReference};
use pinfold_run::emulate::exec::{self, SlowOptions, parse_disk_limit, spawn};
use pinfold_run::emulate::ipc::{self, SupervisorRequest};
use pinfold_run::emulate::profile_ratio;
use pinfold_run::{Exit, Failure, HelperProgram, OnLeft, Session, host, inputs};

use crate::cli::RunArgs;
use crate::cli::emulate::{ExecArgs, LikeArgs, ShellArgs};
use crate::output::print_message;

/// Executes a command in a vnode.
pub fn exec(arguments: &ExecArgs, state: Option<&str>) -> Result<(), Failure> {
    let state = host::state(state)?;
    let enter = ipc::require(&state, &SupervisorRequest::Join { vnode: arguments.vnode.clone() })?
        .enter()?;
    Err(Failure::from(spawn(&enter, &arguments.command)?.replace_self()))
}

/// Runs a shell in a vnode.
pub fn shell(arguments: &ShellArgs, state: Option<&str>) -> Result<(), Failure> {
    let shell = std::env::var("SHELL").map_err(|_| {
        Failure::new(Exit::Input, "the environment variable SHELL is not set").with_hint(format!(
            "name a program: `{} -- bash`",
            Command::new("emulate exec").arg(&arguments.vnode)
        ))
    })?;
    let command = vec![shell];
    exec(&ExecArgs { vnode: arguments.vnode.clone(), command }, state)
}

/// Exits with the status of a command.
pub fn exit_with_status(status: ExitStatus) -> Result<(), Failure> {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        // The exit status of the command, as with every program that runs another.
        (Some(code), _) => std::process::exit(code),
        (None, Some(signal)) => std::process::exit(128 + signal),
        (None, None) => Err(Failure::new(
            Exit::Host,
            "the command ended with neither an exit code nor a signal",
        )),
    }
}

/// The speed of the command line, or that of another machine with its prediction.
pub fn speed_of(speed: Option<&str>, like: &LikeArgs) -> Result<String, Failure> {
    let Some(file) = &like.like else { return Ok(speed.unwrap_or("100%").to_owned()) };
    let like =
        ProfileReference { file: file.clone(), kind: like.kind.clone(), own: like.own.clone() };
    let prediction = profile_ratio::speed_like(&like, &host::live()?)?;
    prediction.to_lines().iter().for_each(|line| print_message(line));
    Ok(prediction.speed.to_string())
}

/// Runs one command on a number of cores at a speed: a platform with one vnode until the command
/// ends.
pub fn run_slow(arguments: &RunArgs, on_left: OnLeft, state: Option<&str>) -> Result<(), Failure> {
    let state = host::state(state)?;
    let speed = speed_of(arguments.speed.as_deref(), &arguments.slow.like)?;
    // Several may run at the same time.
    let name = format!("run-{}", process::own_pid());
    let mut words = format!("name={name},cores={},speed={speed}", arguments.cores.unwrap_or(1));
    if let Some(method) = &arguments.slow.method {
        words.push_str(&format!(",method={method}"));
    }
    if let Some(period) = &arguments.slow.period {
        words.push_str(&format!(",period={period}"));
    }
    let vnode = inputs::name_option("--speed", platforms::parse_vnode_spec(&words))?;
    let disk = parse_disk_limit(arguments.slow.disk.as_deref(), arguments.slow.iops)?;
    let vnode = PlatformVnode { disk, ..vnode };
    let share_housekeeping = arguments.slow.share_housekeeping;
    let platform = Platform { vnodes: vec![vnode], share_housekeeping, avoid: CpuSet::new() };
    let program = HelperProgram::own()?;
    let session = Session { state: &state, program: &program };
    let options = SlowOptions {
        on_left,
        ignore_claims: arguments.placement.ignore_claims,
        effort: if arguments.slow.calibrate { Effort::Again } else { Effort::Brief },
    };
    exit_with_status(exec::run_slow(session, platform, &arguments.command, options)?)
}
