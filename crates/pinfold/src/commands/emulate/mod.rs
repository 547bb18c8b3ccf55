//! `pinfold emulate`: virtual nodes with slowed CPUs.

mod exec;
mod status;
mod verify;

use pinfold_config::platforms;
use pinfold_emulate::{Cleanup, Effort, Facts, METHODS};
use pinfold_host::{SystemClock, files};
use pinfold_model::text::count_noun;
use pinfold_model::{AttachKind, Command, LoadRow, RecordedLoad};
use pinfold_run::claims::{self, Claims};
use pinfold_run::emulate::attach::{self, Found};
use pinfold_run::emulate::ipc::{self, SupervisorRequest};
use pinfold_run::emulate::steps::{PlannedPlatform, steps_of};
use pinfold_run::emulate::supervisor::{PlatformFile, plan_of, start_child, supervise};
use pinfold_run::{
    Exit, Failure, HelperProgram, Session, emulate, ended_placements, host, inputs, interrupt,
};
use serde_json::json;

use crate::cli::SentinelArgs;
use crate::cli::emulate::{
    AttachArgs, EmulateArgs, EmulateCommand, MethodsArgs, RecordArgs, SetArgs, StatusArgs, UpArgs,
};
use crate::output::{self, print_data, print_message};
use crate::screen;

pub use exec::{exit_with_status, run_slow};

/// Runs a subcommand of `pinfold emulate`.
pub fn emulate(arguments: &EmulateArgs, state: Option<&str>) -> Result<(), Failure> {
    match &arguments.command {
        EmulateCommand::Methods(arguments) => methods(arguments),
        EmulateCommand::Up(arguments) => up(arguments, state),
        EmulateCommand::Attach(arguments) => attach(arguments, state),
        EmulateCommand::Exec(arguments) => exec::exec(arguments, state),
        EmulateCommand::Shell(arguments) => exec::shell(arguments, state),
        EmulateCommand::Set(arguments) => set(arguments, state),
        EmulateCommand::Status(arguments) => show(arguments, state),
        EmulateCommand::Verify(arguments) => verify::verify(arguments, state),
        EmulateCommand::Record(arguments) => record(arguments),
        EmulateCommand::Forget => forget(state),
        EmulateCommand::Down => down(state),
    }
}

/// Prints what each method does, requires and does not support, and whether this host can use it.
fn methods(arguments: &MethodsArgs) -> Result<(), Failure> {
    let host = host::live()?;
    let facts = Facts::find(&host)?;
    if arguments.json {
        let all: Vec<serde_json::Value> = METHODS
            .iter()
            .map(|info| {
                let (usual, bounds) = (info.usual_period_ns, info.method.periods_ns());
                let (shortest, longest) = (*bounds.start(), *bounds.end());
                json!({
                    "method": info.method.name(),
                    "summary": info.summary,
                    "source": info.source,
                    "needs": info.needs,
                    "limits": info.limits,
                    "period_us": { "usual": in_us(usual), "shortest": in_us(shortest), "longest": in_us(longest) },
                    "refused_here": pinfold_emulate::refusal(info.method, &facts),
                })
            })
            .collect();
        print_data(&json!({ "format": "pinfold-methods/1", "methods": all }).to_string());
        return Ok(());
    }
    for info in METHODS {
        let name = format!("{:<8}", info.method.name());
        let refusal = pinfold_emulate::refusal(info.method, &facts);
        let here = if refusal.is_none() { "works here" } else { "does not work here" };
        let what = format!("{here}: {} ({})", info.summary, info.source);
        print_data(&screen::label_text(&name, &what));
        if let Some(why) = refusal {
            print_data(&screen::label_text("          why     ", &why));
        }
        print_data(&screen::label_text("          needs   ", info.needs));
        print_data(&screen::label_text("          limits  ", info.limits));
    }
    if let Some(best) = pinfold_emulate::best(&facts) {
        print_message(&format!("a vnode without a method uses {best} here"));
    }
    Ok(())
}

fn in_us(ns: u64) -> u64 {
    ns / 1000
}

/// Starts a platform.
pub fn up(arguments: &UpArgs, state: Option<&str>) -> Result<(), Failure> {
    let file = PlatformFile {
        path: &arguments.platform,
        share_housekeeping: arguments.share_housekeeping,
        ignore_claims: arguments.ignore_claims,
        effort: if arguments.calibrate { Effort::Again } else { Effort::Brief },
    };
    if arguments.dry_run {
        return print_steps(&file, state);
    }
    ended_placements::revert_ended(&host::live()?, state)?;
    let state = host::state(state)?;
    if ipc::ask(&state, &SupervisorRequest::Status)?.is_some() {
        return Err(Failure::new(Exit::Input, "a platform is already up").with_hint(format!(
            "end it with `{}`; one file can define all vnodes",
            Command::new("emulate down")
        )));
    }
    ipc::require_none_left(&state)?;
    interrupt::install()?;
    let program = HelperProgram::own()?;
    let session = Session { state: &state, program: &program };
    if arguments.foreground {
        return supervise(&file, session);
    }
    // Everything that can be rejected is rejected here, where the user sees it. The supervisor
    // reads the claims again, under the lock.
    let host = host::live()?;
    let plan = plan_of(&file, &host, &file.claims(&host, &state)?)?;
    plan.plan.findings.iter().for_each(|finding| print_message(&finding.to_string()));
    interrupt::check()?;
    output::show(&status::to_text(&start_child(&file, session)?));
    Ok(())
}

/// Prints the steps, and what the methods start and write while the vnodes are active.
fn print_steps(file: &PlatformFile<'_>, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let claims =
        if file.ignore_claims { Claims::default() } else { claims::of_existing(&host, state)? };
    let plan = plan_of(file, &host, &claims)?;
    plan.plan.findings.iter().for_each(|finding| print_message(&finding.to_string()));
    let PlannedPlatform { steps, at_work, cautions } = steps_of(&host, &plan)?;
    for step in &steps {
        output::show(&format!("{}   ({})", step.change, step.reason));
    }
    for (vnode, line) in &at_work {
        output::show(&format!("{line}   (as long as vnode {vnode} is up)"));
    }
    cautions.iter().for_each(|caution| print_message(caution));
    print_message(&format!("{}; nothing was changed", count_noun(steps.len(), "step")));
    Ok(())
}

/// Adds running processes to a vnode.
fn attach(arguments: &AttachArgs, state: Option<&str>) -> Result<(), Failure> {
    let state = host::state(state)?;
    // Nothing is looked up without a platform.
    ipc::require(&state, &SupervisorRequest::Status)?;
    let host = host::live()?;
    let named = [
        (AttachKind::Container, &arguments.container),
        (AttachKind::Unit, &arguments.unit),
        (AttachKind::Netns, &arguments.netns),
        (AttachKind::Mininet, &arguments.mininet),
    ];
    let named = named.into_iter().find_map(|(kind, name)| Some((kind, name.as_ref()?)));
    let found = match (named, arguments.pid, &arguments.group) {
        (Some((kind, name)), ..) => attach::find(&host, kind, name)?,
        (None, Some(pid), _) => attach::process(&host, pid)?,
        (None, None, Some(path)) => attach::group(&host, path),
        (None, None, None) => {
            return Err(Failure::new(
                Exit::Input,
                "nothing to attach: give --pid, --group or --container",
            ));
        }
    };
    let Found { what, members, notes } = found;
    notes.iter().for_each(|note| print_message(note));
    let count = members.len();
    let (vnode, netns) = (arguments.vnode.clone(), arguments.netns.clone());
    let ask = SupervisorRequest::Attach { vnode, what: what.clone(), members, netns };
    ipc::require(&state, &ask)?.expect_empty()?;
    let parts = if count == 1 { String::new() } else { format!(" ({count} groups or processes)") };
    print_message(&format!(
        "{what}{parts} is part of vnode {} until `{}`",
        arguments.vnode,
        Command::new("emulate down")
    ));
    Ok(())
}

fn set(arguments: &SetArgs, state: Option<&str>) -> Result<(), Failure> {
    let state = host::state(state)?;
    let ask = SupervisorRequest::Set {
        vnode: arguments.vnode.clone(),
        speed: exec::speed_of(arguments.speed.as_deref(), &arguments.like)?,
        pu: arguments.pu,
    };
    ipc::require(&state, &ask)?.expect_empty()
}

fn show(arguments: &StatusArgs, state: Option<&str>) -> Result<(), Failure> {
    let state = host::state(state)?;
    let found = ipc::require(&state, &SupervisorRequest::Status).and_then(|answer| answer.status());
    let status = match found {
        Ok(status) => status,
        Err(failure) => {
            if arguments.json {
                print_data(&emulate::status::none(&failure.message).to_string());
            }
            return Err(failure);
        }
    };
    if arguments.json {
        print_data(&status.to_string())
    } else {
        output::show(&status::to_text(&status))
    }
    Ok(())
}

/// Records the load of this machine, to be replayed by the method `inject`.
fn record(arguments: &RecordArgs) -> Result<(), Failure> {
    let host = host::live()?;
    let topology = inputs::topology(&host, None)?;
    let pus = match &arguments.pus {
        None => topology.online(),
        Some(text) => {
            let pus = inputs::pus("--pus", text)?;
            inputs::require_known("--pus", &pus, &topology)?;
            pus
        }
    };
    let interval_ns = u64::from(arguments.interval_ms) * 1_000_000;
    let load =
        pinfold_emulate::record(&host, &SystemClock, &pus, interval_ns, ns(arguments.seconds))?;
    // A row of a file is about the time before it, a row of the method about the time after it.
    let ends = load.iter().skip(1).map(|(at, _)| *at).chain([ns(arguments.seconds)]);
    let rows = load
        .iter()
        .zip(ends)
        .map(|((_, busy), end)| LoadRow { at_ms: end / 1_000_000, busy_millionths: busy.clone() });
    let recorded = RecordedLoad { pus: pus.iter().collect(), rows: rows.collect() };
    let text = platforms::to_csv(&recorded);
    match &arguments.out {
        None => output::document(&text),
        Some(path) => files::write_atomic(path, text.as_bytes())
            .map_err(|error| Failure::from_error(Exit::Input, &error, None))?,
    }
    Ok(())
}

fn ns(seconds: u32) -> u64 {
    u64::from(seconds).saturating_mul(1_000_000_000)
}

fn forget(state: Option<&str>) -> Result<(), Failure> {
    print_message(if emulate::stored_costs::forget(&host::state(state)?)? {
        "removed the measured costs; the next start measures them again"
    } else {
        "there are no stored measured costs"
    });
    Ok(())
}

fn down(state: Option<&str>) -> Result<(), Failure> {
    let state = host::state(state)?;
    let reported = ipc::require(&state, &SupervisorRequest::Down)?.down()?;
    print_message(&format!("the platform is down: {reported}"));
    Ok(())
}

/// `pinfold sentinel`: releases what a supervisor froze or stopped, when the heartbeats stop.
pub fn sentinel(arguments: &SentinelArgs) -> Result<(), Failure> {
    let what = match (&arguments.group, arguments.write.as_slice()) {
        (Some(group), []) => Cleanup::Continue { group: group.clone() },
        (None, files) => {
            let files: Option<Vec<_>> = files
                .iter()
                .map(|word| {
                    let (path, value) = word.rsplit_once('=')?;
                    Some((path.to_owned(), value.to_owned()))
                })
                .collect();
            Cleanup::Thaw {
                files: files
                    .ok_or_else(|| Failure::new(Exit::Input, "--write takes PATH=VALUE"))?,
            }
        }
        (Some(_), _) => return Err(Failure::new(Exit::Input, "give --write or --continue")),
    };
    emulate::helpers::sentinel(&what)
}
