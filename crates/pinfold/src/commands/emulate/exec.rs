//! Processes in a vnode: `pinfold emulate exec`, `shell`, and `pinfold run --speed`.

use std::io::IsTerminal as _;
use std::process::ExitStatus;

use pinfold_host::process::{self, Child, Signaled, Spawn};
use pinfold_model::{Command, CpuSet, Platform};
use pinfold_plan::platforms;
use pinfold_run::{Exit, Failure, host, inputs, interrupt};

use super::ipc::{self, Ask, Enter};
use super::supervisor::{Endpoint, resolved, with_platform};
use crate::cli::RunArgs;
use crate::cli::emulate::{ExecArgs, ShellArgs};
use crate::output::say;

/// Executes a command in a vnode.
pub fn exec(arguments: &ExecArgs, state: Option<&str>) -> Result<(), Failure> {
    let state = host::state(state)?;
    let enter = ipc::require(&state, &Ask::Enter { vnode: arguments.vnode.clone() })?.enter()?;
    Err(Failure::from(spawn(&enter, &arguments.command)?.replace_self()))
}

/// Runs a shell in a vnode.
pub fn shell(arguments: &ShellArgs, state: Option<&str>) -> Result<(), Failure> {
    let shell = std::env::var("SHELL").map_err(|_| {
        Failure::new(Exit::Input, "the environment names no SHELL").with_hint(format!(
            "name a program: `{} -- bash`",
            Command::new("emulate exec").arg(&arguments.vnode)
        ))
    })?;
    let command = vec![shell];
    exec(&ExecArgs { vnode: arguments.vnode.clone(), command }, state)
}

fn spawn(enter: &Enter, command: &[String]) -> Result<Spawn, Failure> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| Failure::new(Exit::Input, "no command is given"))?;
    let pus = CpuSet::parse_list(&enter.pus)
        .map_err(|error| Failure::new(Exit::Host, format!("the supervisor's PUs: {error}")))?;
    Ok(Spawn::new(program).args(arguments).cgroup_files(enter.files.clone()).affinity(pus))
}

/// Exits with the status of a command.
pub fn as_it_ended(status: ExitStatus) -> Result<(), Failure> {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        // The exit status of the command, as with every program that runs another.
        (Some(code), _) => std::process::exit(code),
        (None, Some(signal)) => std::process::exit(128 + signal),
        (None, None) => Err(Failure::new(Exit::Host, "the command ended in an unknown way")),
    }
}

/// Runs one command on a number of cores at a speed: a platform with one vnode until the command
/// ends.
pub fn run_slow(arguments: &RunArgs, state: Option<&str>) -> Result<(), Failure> {
    let state = host::state(state)?;
    let host = host::live()?;
    let speed = arguments.speed.as_deref().unwrap_or("100%");
    // Several may run at the same time.
    let name = format!("run-{}", process::own_pid());
    let mut words = format!("name={name},cores={},speed={speed}", arguments.cores.unwrap_or(1));
    if let Some(method) = &arguments.method {
        words.push_str(&format!(",method={method}"));
    }
    if let Some(period) = &arguments.period {
        words.push_str(&format!(",period={period}"));
    }
    let vnode = inputs::asked("--speed", platforms::vnode_from_words(&words))?;
    let share_housekeeping = arguments.share_housekeeping;
    let plan = resolved(Platform { vnodes: vec![vnode], share_housekeeping }, &host)?;
    // The vnode exists as long as the command, so the signals are left to the command.
    interrupt::install_forward()?;
    let mut child: Option<Child> = None;
    let mut ended = None;
    let worked = with_platform(&host, (&state, Endpoint::Closed), &plan, &mut |platformed| {
        let running = match &mut child {
            Some(running) => running,
            None => {
                platformed.cautions.drain(..).for_each(|caution| say(&caution));
                let spawn = spawn(&platformed.enter(&name)?, &arguments.command)?;
                child.insert(spawn.start()?)
            }
        };
        hand_on(running)?;
        ended = running.try_wait()?;
        Ok(ended.is_none())
    });
    drop(child);
    worked?;
    ended.map_or_else(|| Err(Failure::new(Exit::Interrupted, "interrupted")), as_it_ended)
}

/// Forwards signals to the command. Ctrl-C of a terminal reaches it directly, and many programs
/// treat a second one as a forced exit.
pub fn hand_on(command: &mut Child) -> Result<(), Failure> {
    for signal in interrupt::forwarded() {
        let by_terminal = signal == Signaled::Interrupt && std::io::stdin().is_terminal();
        if !by_terminal {
            command.signal(signal)?;
        }
    }
    Ok(())
}
