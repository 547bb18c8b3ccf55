//! The supervisor of a platform, which slows its vnodes.
//!
//! In the background, the program is started again in a new session, and its starter waits until
//! the vnodes are ready. All changes are steps in the journal, and are undone at its end; after a
//! crash by `pinfold undo`. Messages during its work are in `status`.

use std::io::BufRead as _;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};

use crate::claims::{self, Claims};
use crate::{Exit, Failure, apply_session, host, inputs, interrupt, planning};
use pinfold_apply::{Journal, NewJournal, Target};
use pinfold_config::platforms;
use pinfold_emulate::{Effort, Facts, Hierarchies, Node, ProfileRow, VnodeCgroup, VnodeController};
use pinfold_host::files::{self, StateDir};
use pinfold_host::process::{self, Child, Stdio};
use pinfold_host::{Clock as _, EventWatcher, HostMut as _, LiveHost, SystemClock};
use pinfold_model::text::count_noun;
use pinfold_model::{
    Attach, Change, Command, CpuSet, EmulatedVnode, EmulationPlan, Finding, Method, Platform, PuId,
    SpeedRequest, Step, TaskId, Topology,
};
use pinfold_plan::{PlatformError, resolve_platform, speed_on};
use pinfold_probe::pinload::Pinload;
use serde_json::Value;

use super::attach;
use super::attachments::{Attached, Joined};
use super::disk_limit;
use super::helpers::HelperProcesses;
use super::ipc::{self, Caller, Enter, Listener, SupervisorRequest, SupervisorResponse};
use super::profile_ratio;
use super::status::{self, Endpoint};
use super::stored_costs::StoredCosts;
use crate::helper_program::{Helper, Session};
use crate::message::say;
use crate::start_lock::StartLock;

/// Timeout for the child to calibrate and respond.
const READY_NS: u64 = 60_000_000_000;
/// Longest wait for another start: less than [`READY_NS`], so that the child gives the reason.
const TIMEOUT_NS: u64 = 30_000_000_000;
/// Timeout for the child to undo its platform.
const END_NS: u64 = 60_000_000_000;
const LOOK_NS: u64 = 20_000_000;
/// Maximum number of rounds to move processes that were forked in the meantime.
pub(super) const MOST_MOVES: usize = 8;

/// Ends a supervisor that is no longer needed, and waits until it has undone its platform. Fails if
/// its starter was interrupted.
fn end_child(mut child: Child) -> Result<(), Failure> {
    child.terminate()?;
    let ended = child.wait_for(&SystemClock, END_NS).map_err(Failure::from);
    match ended? {
        Some(_) => interrupt::check(),
        None => {
            let pid = child.detach().tid;
            let exit = if interrupt::is_requested() { Exit::Interrupted } else { Exit::Host };
            let text = format!(
                "the supervisor (process {pid}) received the request to stop but is still running"
            );
            let hint = format!("if it is suspended, continue it: kill -CONT {pid}");
            Err(Failure::new(exit, text).with_hint(hint))
        }
    }
}

/// A platform file, with the option of the command line.
#[derive(Clone, Copy, Debug)]
pub struct PlatformFile<'a> {
    /// Its path.
    pub path: &'a str,
    /// Real-time burners may run on the last CPU of the host's own tasks too.
    pub share_housekeeping: bool,
    /// The platform is planned as if the host had no other owners of CPUs.
    pub ignore_claims: bool,
    /// How thoroughly costs are measured before the vnodes start.
    pub effort: Effort,
}

impl PlatformFile<'_> {
    /// The claims around which it is planned.
    pub fn claims(&self, host: &LiveHost, state: &StateDir) -> Result<Claims, Failure> {
        if self.ignore_claims { Ok(Claims::default()) } else { claims::of_state(host, state) }
    }
}

/// Starts a supervisor in the background, waits for its vnodes, and returns their status.
pub fn start_child(file: &PlatformFile<'_>, session: Session<'_>) -> Result<Value, Failure> {
    let Session { state, program } = session;
    let supervisor = Helper::Supervisor {
        state: &state.path_of(""),
        platform: file.path,
        share_housekeeping: file.share_housekeeping,
        ignore_claims: file.ignore_claims,
        calibrate: file.effort == Effort::Again,
    };
    let mut child = program
        .spawn(supervisor)
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .stderr(Stdio::Pipe)
        .own_group()
        .start()?;
    let pipe =
        child.stderr().ok_or_else(|| Failure::new(Exit::Host, "the child process has no pipe"))?;
    let said = listen(pipe)?;
    let end = SystemClock.now_ns().saturating_add(READY_NS);
    let mut last_words: Vec<String> = Vec::new();
    while SystemClock.now_ns() < end && !interrupt::is_requested() {
        // A supervisor that ends closes the connection; its last lines contain the reason.
        let own = Some(child.pid());
        if let Ok(Some(answer)) = ipc::ask_process(state, &SupervisorRequest::Status, own) {
            hand_over(said.try_iter(), &mut last_words);
            let status = answer.status()?;
            let _its_task = child.detach();
            return Ok(status);
        }
        if let Some(status) = child.try_wait()? {
            hand_over(said.iter(), &mut last_words);
            return Err(ended_early(status, &last_words));
        }
        SystemClock.sleep_ns(LOOK_NS);
        hand_over(said.try_iter(), &mut last_words);
    }
    end_child(child)?;
    Err(Failure::new(Exit::Host, "the vnodes did not start within a minute").with_hint(format!(
        "`{}` shows what it waits for",
        Command::new("emulate up --foreground").arg(file.path)
    )))
}

/// The failure of a supervisor that ended before its vnodes were up: its own, or how it ended.
fn ended_early(status: std::process::ExitStatus, last_words: &[String]) -> Failure {
    if !last_words.is_empty() {
        let exit = status.code().and_then(Exit::from_code).unwrap_or(Exit::Host);
        return Failure::new(exit, last_words.join("\n"));
    }
    let how = process::describe(status);
    Failure::new(Exit::Host, format!("the supervisor exited during its start: {how}"))
        .with_hint(format!("`{}` reverts what it applied", Command::new("undo --left")))
}

/// The output lines of a child, until its pipe closes or this process ends.
fn listen(pipe: std::process::ChildStderr) -> Result<Receiver<String>, Failure> {
    let (report, said) = mpsc::channel();
    let lines = std::io::BufReader::new(pipe).lines().map_while(Result::ok);
    std::thread::Builder::new()
        .name("listener".to_owned())
        .spawn(move || lines.map(|line| report.send(line)).all(|sent| sent.is_ok()))
        .map_err(|error| {
            Failure::new(Exit::Host, format!("cannot read from the child process: {error}"))
        })?;
    Ok(said)
}

/// Prints the messages of a child; from its failure on, lines are collected as the last message.
fn hand_over(lines: impl Iterator<Item = String>, last_words: &mut Vec<String>) {
    for line in lines {
        match line.strip_prefix("pinfold: ") {
            Some(why) => last_words.push(why.to_owned()),
            None if last_words.is_empty() => say(&line),
            None => last_words.push(line),
        }
    }
}

/// The platform of a file on this machine, around the claims of others.
pub fn plan_of(
    platform: &PlatformFile<'_>,
    host: &LiveHost,
    claims: &Claims,
) -> Result<EmulationPlan, Failure> {
    let PlatformFile { path, share_housekeeping, .. } = *platform;
    let text = files::read_text(path).map_err(|error| inputs::input_failure(&error))?;
    let mut platform = inputs::name_option(path, platforms::from_toml(&text))?;
    platform.share_housekeeping |= share_housekeeping;
    let at = |place: Option<(usize, usize)>, failure: Failure| {
        let place = place.map(|(line, column)| format!("line {line}, column {column}: "));
        let message = format!("{path}: {}{}", place.unwrap_or_default(), failure.message);
        Failure { message, ..failure }
    };
    let mut predicted = Vec::new();
    for vnode in &mut platform.vnodes {
        let Some(like) = &mut vnode.like else { continue };
        like.file = resolve_path(path, &like.file);
        like.own = like.own.as_ref().map(|own| resolve_path(path, own));
        let prediction = profile_ratio::speed_like(like, host)
            .map_err(|failure| at(platforms::place_of_key(&text, &vnode.name, "like"), failure))?;
        let lines = prediction.to_lines();
        predicted.extend(lines.into_iter().map(|line| Finding::note(&vnode.name, line)));
        vnode.speeds = vec![SpeedRequest::Share(prediction.speed)];
    }
    for vnode in &mut platform.vnodes {
        if let Some(Attach::Named { kind, name }) = &vnode.attach {
            let found = attach::find_one(host, *kind, name).map_err(|failure| {
                at(platforms::place_of_key(&text, &vnode.name, "attach"), failure)
            })?;
            vnode.attach = Some(found);
        }
        disk_limit::find_disk(vnode, host).map_err(|(key, failure)| {
            at(platforms::place_of_key(&text, &vnode.name, key), failure)
        })?;
        let Some(file) = &mut vnode.profile else { continue };
        *file = resolve_path(path, file);
        if let Err(error) = files::read(file) {
            let place = platforms::place_of_key(&text, &vnode.name, "profile");
            return Err(at(place, no_profile(path, &error)));
        }
    }
    let mut plan = resolve(platform, host, claims).map_err(|unresolved| {
        let place = match &unresolved {
            Unresolved::Host(_) => return unresolved.into_failure(),
            Unresolved::Method(vnode, _) => platforms::place_of_key(&text, vnode, "method"),
            Unresolved::Platform(error) => {
                error.field().and_then(|field| platforms::place_of(&text, &field))
            }
        };
        at(place, unresolved.into_failure())
    })?;
    plan.plan.findings.extend(predicted);
    Ok(plan)
}

/// The profile of a platform file that cannot be read.
fn no_profile(platform: &str, error: &pinfold_host::HostError) -> Failure {
    let failure = inputs::input_failure(error);
    let folder = Path::new(platform).parent().filter(|folder| !folder.as_os_str().is_empty());
    let hint = match folder {
        Some(folder) => format!("the file is expected in {}, next to {platform}", folder.display()),
        None => format!("the file is expected in the current directory, next to {platform}"),
    };
    let message = format!("profile: {}", failure.message);
    Failure { message, hint: failure.hint.or(Some(hint)), ..failure }
}

/// A file named in another file: its path is relative to the folder of that file.
fn resolve_path(path: &str, named: &str) -> String {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    folder.join(named).to_string_lossy().into_owned()
}

/// Why a platform cannot be on this machine.
enum Unresolved {
    /// The machine cannot be read.
    Host(Failure),
    /// The method of a vnode does not work here.
    Method(String, Failure),
    /// The planner refuses it.
    Platform(PlatformError),
}

impl Unresolved {
    fn into_failure(self) -> Failure {
        match self {
            Unresolved::Host(failure) | Unresolved::Method(_, failure) => failure,
            Unresolved::Platform(error) => Failure::from_error(Exit::Input, &error, error.hint()),
        }
    }
}

/// A platform on this machine: vnodes that name no method get the best that works here.
pub fn plan_platform(
    platform: Platform,
    host: &LiveHost,
    claims: &Claims,
) -> Result<EmulationPlan, Failure> {
    resolve(platform, host, claims).map_err(Unresolved::into_failure)
}

fn resolve(
    mut platform: Platform,
    host: &LiveHost,
    claims: &Claims,
) -> Result<EmulationPlan, Unresolved> {
    let topology: Topology = inputs::topology(host, None).map_err(Unresolved::Host)?;
    let facts = Facts::find(host).map_err(|error| Unresolved::Host(error.into()))?;
    for vnode in &mut platform.vnodes {
        let method = vnode.method.or_else(|| pinfold_emulate::best(&facts));
        let why = match method {
            Some(method) => {
                pinfold_emulate::refusal(method, &facts).map(|why| format!("{method}: {why}"))
            }
            None => Some("no method works here".to_owned()),
        };
        if let Some(why) = why {
            let hint = if process::is_root() {
                "`pinfold emulate methods` lists what each needs"
            } else {
                "run it as root; `pinfold emulate methods` lists what each needs"
            };
            let why = format!("vnode {}: {why}", vnode.name);
            let failure = Failure::new(Exit::Host, why).with_hint(hint);
            return Err(Unresolved::Method(vnode.name.clone(), failure));
        }
        vnode.method = method;
    }
    let names: Vec<String> = platform.vnodes.iter().map(|vnode| vnode.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut planned = planning::plan_around(claims, &topology, &names, |avoided: &CpuSet| {
        resolve_platform(&Platform { avoid: avoided.clone(), ..platform.clone() }, &topology)
    })
    .map_err(Unresolved::Platform)?;
    planning::report_in(claims, &mut planned.plan);
    Ok(planned)
}

/// Converts a planned vnode for the methods.
pub fn node(vnode: &EmulatedVnode, topology: &Topology) -> Result<Node, Failure> {
    let method = vnode.method.unwrap_or(Method::Stall);
    let profile_file = vnode.profile.clone().unwrap_or_default();
    let (profile, load) = match &vnode.profile {
        None => (Vec::new(), Vec::new()),
        Some(path) if method.replays_load() => (Vec::new(), load(path, vnode)?),
        Some(path) => (profile(path, vnode, topology)?, Vec::new()),
    };
    let node = Node {
        name: vnode.name.clone(),
        cores: vnode.pus.clone(),
        memory_node: vnode.memory_node,
        method,
        variant: vnode.variant,
        period_ns: vnode.period_ns,
        profile,
        profile_file,
        attach: vnode.attach.clone(),
        load,
        calibrate: vnode.calibrate,
        disk: vnode.disk.clone(),
    };
    pinfold_emulate::check_period(&node)?;
    Ok(node)
}

/// A recorded load for the cores of a vnode: the columns of the file in order, regardless of their
/// CPU numbers on the recorded machine.
fn load(path: &str, vnode: &EmulatedVnode) -> Result<pinfold_emulate::Load, Failure> {
    let bytes = files::read(path).map_err(|error| inputs::input_failure(&error))?;
    let text = String::from_utf8_lossy(&bytes);
    let recorded = inputs::name_option(path, platforms::load(&text))?;
    let cores = vnode.pus.len();
    if recorded.pus.len() < cores {
        let why = format!(
            "{path} was recorded on {}, but {} has {cores}",
            count_noun(recorded.pus.len(), "CPU"),
            vnode.name
        );
        return Err(Failure::new(Exit::Input, why)
            .with_hint("record as many cores as the vnode has, or change its number of cores"));
    }
    let mut from_ns = 0;
    let mut rows = Vec::with_capacity(recorded.rows.len());
    for row in &recorded.rows {
        rows.push((from_ns, row.busy_millionths.iter().copied().take(cores).collect()));
        from_ns = row.at_ms.saturating_mul(1_000_000);
    }
    Ok(rows)
}

fn profile(
    path: &str,
    vnode: &EmulatedVnode,
    topology: &Topology,
) -> Result<Vec<ProfileRow>, Failure> {
    let bytes = files::read(path).map_err(|error| inputs::input_failure(&error))?;
    let text = String::from_utf8_lossy(&bytes);
    let profile = inputs::name_option(path, platforms::profile(&text))?;
    let first = vnode.pus.first().map_or(PuId(0), |(pu, _)| *pu);
    profile
        .changes
        .iter()
        .map(|change| {
            let speed = speed_on(first, change.speed, topology).map_err(|error| {
                Failure::new(Exit::Input, format!("{path}: {error}")).with_hint(error.hint())
            })?;
            Ok(ProfileRow { at_ns: change.at_ns, speed, line: change.line })
        })
        .collect()
}

/// Is the supervisor of a platform, until a request or a signal ends it.
pub fn supervise(platform: &PlatformFile<'_>, session: Session<'_>) -> Result<(), Failure> {
    let host = host::live()?;
    let starting = StartLock::wait_at_most(session.state, TIMEOUT_NS)?.ok_or_else(|| {
        let text = "another pinfold process has been starting a placement for half a minute";
        Failure::new(Exit::Host, text)
            .with_hint("wait until its machine has started, or stop that process")
    })?;
    let plan = plan_of(platform, &host, &platform.claims(&host, session.state)?)?;
    ipc::remove_exit_reason(session.state)?;
    let activation = Activation {
        plan: &plan,
        starting: Some(starting),
        session,
        door: Endpoint::Open,
        wake_fd: None,
        effort: platform.effort,
    };
    let ended = with_platform(&host, activation, &mut |platformed: &mut ActivePlatform<'_>| {
        platformed.cautions.drain(..).for_each(|caution| say(&caution));
        Ok(true)
    });
    if let Err(failure) = &ended {
        // In the background the messages have no reader: `status` reports them.
        ipc::store_exit_reason(session.state, failure);
    }
    ended
}

/// An active platform.
pub struct ActivePlatform<'h> {
    /// The controller of the vnodes.
    pub nodes: VnodeController<'h>,
    /// The cgroups of each vnode.
    pub cgroups: Vec<(String, VnodeCgroup)>,
    /// Warnings about the chosen methods.
    pub cautions: Vec<String>,
    plan: &'h EmulationPlan,
    topology: &'h Topology,
}

/// The machine for a platform.
#[derive(Clone, Copy)]
pub struct Machine<'m> {
    /// The host.
    pub host: &'m LiveHost,
    /// Its topology.
    pub topology: &'m Topology,
    /// What the methods of slowing can use.
    pub facts: &'m Facts,
}

/// A platform to activate.
pub struct Activation<'a> {
    /// The plan of its vnodes.
    pub plan: &'a EmulationPlan,
    /// The lock that is held since the claims of the plan were read, until the journal claims its
    /// CPUs.
    pub starting: Option<StartLock>,
    /// Where its journal and its socket are.
    pub session: Session<'a>,
    /// Whether clients can connect to the supervisor.
    pub door: Endpoint,
    /// The work is also called when this is readable.
    pub wake_fd: Option<BorrowedFd<'a>>,
    /// How thoroughly costs are measured, for [`with_platform`].
    pub effort: Effort,
}

type Work<'w> = dyn FnMut(&mut ActivePlatform<'_>) -> Result<bool, Failure> + 'w;

/// Activates a platform, runs while `work` returns true, and undoes the platform.
///
/// `work` is called after each turn of the methods; it must not block.
pub fn with_platform(
    host: &LiveHost,
    activation: Activation<'_>,
    work: &mut Work<'_>,
) -> Result<(), Failure> {
    let pinload = Pinload::install()?;
    let topology = inputs::topology(host, None)?;
    let kept = StoredCosts::from_host(host, activation.session.state, &topology)?;
    let programs = HelperProcesses::new(&pinload, activation.session.program, kept);
    let programs = programs.with_effort(activation.effort);
    let facts = Facts::find(host)?;
    let machine = Machine { host, topology: &topology, facts: &facts };
    with_programs(machine, activation, &programs, work)
}

/// As [`with_platform`], on a known machine, with an installed copy of `pinload`.
pub fn with_programs(
    machine: Machine<'_>,
    Activation { plan, starting, session: Session { state, .. }, door, wake_fd, effort: _ }: Activation<'_>,
    programs: &HelperProcesses<'_>,
    work: &mut Work<'_>,
) -> Result<(), Failure> {
    let host = machine.host;
    let clock = SystemClock;
    let journals = host::journals(state, &clock)?;
    let target = Target::new(process::own_pid(), Vec::new());
    let text = status::journal_json(plan, door);
    let new = NewJournal {
        vm_name: "a platform of vnodes",
        plan: &text,
        target: &target,
        supervised: true,
    };
    let mut journal = journals.begin(host, &new)?;
    let listener = match door {
        Endpoint::Open => Some(Listener::open(state)?),
        Endpoint::Closed => None,
    };
    let groups = make_groups(machine, plan, &mut journal);
    drop(starting);
    let ended = groups.and_then(|groups| {
        let slowing = Slowing { plan, programs, journal: &mut journal, listener, wake_fd };
        run_platform(machine, groups, slowing, work)
    });
    let undone = apply_session::undo(host, journal);
    let (caller, stopped) = ended?;
    let answered = stopped.and(undone).map(|report| {
        let (restored, right) = (report.restored, report.already_right);
        let reported =
            format!("{} restored, {right} already as before", count_noun(restored, "value"));
        // The client that requested the end receives the findings, else the reader of the
        // supervisor's output.
        let found = report.equivalent.iter().chain(&report.vanished).chain(&report.changed);
        found.fold(reported, |reported, finding| format!("{reported}\n{finding}"))
    });
    if let Some(caller) = caller {
        caller.answer(&match &answered {
            Ok(reported) => SupervisorResponse::Down(reported.clone()),
            Err(failure) => SupervisorResponse::from_failure(failure),
        });
    }
    answered.map(|_| ())
}

/// The client that requested the end, if any, and whether all methods ended without an error.
type EndOfPlatform = (Option<Caller>, Result<(), Failure>);

/// The supervisor itself stays on the host's CPUs: its heartbeats would disturb the vnodes. Kernels
/// before 6.2 reset the affinity when a step enables cpuset, so it is set after the steps.
fn leave_vnode_cpus(host: &LiveHost, plan: &EmulationPlan) -> Result<(), Failure> {
    let mut free = plan.plan.housekeeping.clone();
    for vnode in &plan.vnodes {
        free = free.difference(&vnode.cpus());
    }
    let pus = if free.is_empty() { &plan.plan.housekeeping } else { &free };
    host.set_affinity(process::own_tid(), pus).map_err(Failure::from)
}

/// The cgroups of a platform, before its vnodes are slowed.
struct Groups {
    nodes: Vec<(Node, VnodeCgroup)>,
    cautions: Vec<String>,
}

/// Makes the cgroups, with the first entries of the journal.
fn make_groups(
    Machine { host, topology, facts }: Machine<'_>,
    plan: &EmulationPlan,
    journal: &mut Journal<'_>,
) -> Result<Groups, Failure> {
    let (mut nodes, mut cautions) = (Vec::new(), Vec::new());
    for vnode in &plan.vnodes {
        let node = node(vnode, topology)?;
        let (cgroup, steps) = VnodeCgroup::plan(host, &facts.hierarchies, &node)?;
        cautions.extend(pinfold_emulate::cautions(host, &facts.hierarchies, &node, &cgroup));
        let mut take = |steps: Vec<Step>| {
            journal.bind(host, &moved_tasks(&steps))?;
            pinfold_apply::take_steps(host, steps, journal, &mut pinfold_apply::no_observer())
                .map_err(Failure::from)
        };
        take(steps)?;
        // Processes forked by a process inside the vnode are created inside.
        for moves in 1.. {
            let missed = cgroup.count_missed(host, &facts.hierarchies, &node)?;
            if missed.is_empty() {
                break;
            }
            if moves == MOST_MOVES {
                let what = format!(
                    "vnode {}: its process forks faster than its children can be moved",
                    node.name
                );
                return Err(Failure::new(Exit::Host, what).with_hint(
                    "stop it with SIGSTOP, and continue it with SIGCONT when the platform is up",
                ));
            }
            take(missed)?;
        }
        nodes.push((node, cgroup));
    }
    Ok(Groups { nodes, cautions })
}

/// What slowing the vnodes of a platform needs.
struct Slowing<'a, 'c> {
    plan: &'a EmulationPlan,
    programs: &'a HelperProcesses<'a>,
    journal: &'a mut Journal<'c>,
    listener: Option<Listener>,
    wake_fd: Option<BorrowedFd<'a>>,
}

fn run_platform(
    Machine { host, topology, facts }: Machine<'_>,
    Groups { nodes, cautions }: Groups,
    Slowing { plan, programs, journal, listener, wake_fd }: Slowing<'_, '_>,
    work: &mut Work<'_>,
) -> Result<EndOfPlatform, Failure> {
    let cgroups = nodes.iter().map(|(node, cgroup)| (node.name.clone(), cgroup.clone())).collect();
    leave_vnode_cpus(host, plan)?;
    // With late heartbeats the vnodes, and the calibration at their start, would run at full speed.
    if let Err(error) = process::raise_priority() {
        say(&format!("the vnodes may miss their speeds when the machine is busy: {error}"));
    }
    let joined = Joined::from_nodes(host, &nodes)?;
    let nodes = VnodeController::start(host, &SystemClock, programs, nodes)?;
    let mut platformed = ActivePlatform { nodes, cgroups, cautions, plan, topology };
    let hierarchies = &facts.hierarchies;
    let mut door = PlatformServer { host, journal, hierarchies, joined, listener, wake_fd };
    let worked = until_done(&mut platformed, &mut door, work);
    let stopped = platformed.nodes.stop().map_err(Failure::from);
    Ok((worked?, stopped))
}

/// The processes that steps move into a vnode.
pub(super) fn moved_tasks(steps: &[Step]) -> Vec<TaskId> {
    let tasks = steps.iter().filter_map(|step| match &step.change {
        Change::MoveTasks { tasks, .. } => Some(tasks.iter().copied()),
        Change::SetAffinity { .. }
        | Change::WriteFile { .. }
        | Change::MakeGroup { .. }
        | Change::SetPolicy { .. }
        | Change::WriteSetting { .. }
        | Change::MovePages { .. }
        | Change::SignalProcesses { .. } => None,
    });
    tasks.flatten().collect()
}

/// Where clients arrive, and the journal of what they need.
pub(super) struct PlatformServer<'a, 'c> {
    pub(super) host: &'a LiveHost,
    pub(super) journal: &'a mut Journal<'c>,
    pub(super) hierarchies: &'a Hierarchies,
    pub(super) joined: Joined,
    listener: Option<Listener>,
    wake_fd: Option<BorrowedFd<'a>>,
}

impl PlatformServer<'_, '_> {
    /// Restricts a client to the vnode that it joins. Without a cpuset that takes a mask, which the
    /// journal records: it would stay when the vnode ends.
    fn confine_client(
        &mut self,
        platformed: &ActivePlatform<'_>,
        caller: &Caller,
        vnode: &str,
    ) -> Result<Enter, Failure> {
        let enter = platformed.enter(vnode)?;
        let cgroup = platformed.cgroup(vnode)?;
        let pus = platformed.vnode(vnode)?.cpus();
        let steps = cgroup.restrict(self.host, caller.process()?, vnode, &pus)?;
        if steps.is_empty() {
            return Ok(enter);
        }
        pinfold_apply::add_steps(self.host, steps, self.journal)?;
        Ok(Enter { needs_mask: false, ..enter })
    }
}

/// The client that requested the end, if any.
fn until_done(
    platformed: &mut ActivePlatform<'_>,
    door: &mut PlatformServer<'_, '_>,
    work: &mut Work<'_>,
) -> Result<Option<Caller>, Failure> {
    let mut watcher = EventWatcher::new();
    let mut is_asked = true;
    loop {
        let now = SystemClock.now_ns();
        let next = platformed.nodes.turn(now)?;
        door.look(now)?;
        // Before any client learns that the vnodes are ready.
        if interrupt::is_requested() || !work(platformed)? {
            return Ok(None);
        }
        let listener_due =
            door.listener.as_mut().filter(|listener| is_asked || listener.is_waiting());
        let received = listener_due.map(|listener| listener.hear(now)).unwrap_or_default();
        for (caller, question) in received {
            match question {
                Ok(SupervisorRequest::Down) => return Ok(Some(caller)),
                Ok(SupervisorRequest::Join { vnode }) => {
                    match door.confine_client(platformed, &caller, &vnode) {
                        Ok(enter) => caller.answer(&SupervisorResponse::Enter(enter)),
                        Err(failure) => caller.answer(&SupervisorResponse::from_failure(&failure)),
                    }
                }
                Ok(SupervisorRequest::Attach { vnode, what, members, netns }) => {
                    let found =
                        Attached { what: &what, members: &members, netns: netns.as_deref() };
                    match door.attach(platformed, &vnode, found) {
                        Ok(()) => caller.answer(&SupervisorResponse::Done),
                        Err(failure) => caller.answer(&SupervisorResponse::from_failure(&failure)),
                    }
                }
                Ok(SupervisorRequest::Status) => match platformed.nodes.status() {
                    Ok(nodes) => {
                        let mut status = status::to_json(&nodes, platformed.plan);
                        door.joined.report(&mut status);
                        caller.answer(&SupervisorResponse::Status(status));
                    }
                    Err(error) => caller.answer(&SupervisorResponse::from_failure(&error.into())),
                },
                Ok(question) => match platformed.answer(&question) {
                    Ok(answer) => caller.answer(&answer),
                    Err(failure) => caller.answer(&SupervisorResponse::from_failure(&failure)),
                },
                Err(failure) => caller.answer(&SupervisorResponse::from_failure(&failure)),
            }
        }
        let mut sources = door.listener.as_ref().map(Listener::sources).unwrap_or_default();
        sources.extend(interrupt::signal_fd());
        sources.extend(door.wake_fd);
        let ns = next.saturating_sub(SystemClock.now_ns());
        let woken = watcher.wait(ns, &sources)?;
        is_asked = woken.others;
        if is_asked {
            interrupt::drain_signal_pipe();
        }
    }
}

impl ActivePlatform<'_> {
    fn answer(&mut self, question: &SupervisorRequest) -> Result<SupervisorResponse, Failure> {
        match question {
            SupervisorRequest::Set { vnode, speed, pu } => {
                self.set(vnode, speed, pu.map(PuId))?;
                Ok(SupervisorResponse::Done)
            }
            SupervisorRequest::Enter { vnode } | SupervisorRequest::Join { vnode } => {
                Ok(SupervisorResponse::Enter(self.enter(vnode)?))
            }
            // These are answered where they are done.
            SupervisorRequest::Status
            | SupervisorRequest::Attach { .. }
            | SupervisorRequest::Down => Ok(SupervisorResponse::Done),
        }
    }

    /// The vnode as its method has it.
    pub(super) fn node(&self, name: &str) -> Result<Node, Failure> {
        node(self.vnode(name)?, self.topology)
    }

    pub(super) fn cgroup(&self, name: &str) -> Result<&VnodeCgroup, Failure> {
        let cgroup = self.cgroups.iter().find(|(at, _)| at == name);
        let cgroup = cgroup.map(|(_, cgroup)| cgroup);
        cgroup.ok_or_else(|| Failure::new(Exit::Host, format!("the groups of {name} are unknown")))
    }

    fn vnode(&self, name: &str) -> Result<&EmulatedVnode, Failure> {
        let known = || self.plan.vnodes.iter().map(|one| one.name.as_str()).collect::<Vec<_>>();
        self.plan.vnodes.iter().find(|one| one.name == name).ok_or_else(|| {
            Failure::new(Exit::Input, format!("there is no vnode {name:?}"))
                .with_hint(format!("the vnodes are {}", known().join(", ")))
        })
    }

    fn set(&mut self, name: &str, speed: &str, only: Option<PuId>) -> Result<(), Failure> {
        let speed_request = inputs::name_option("--speed", platforms::speed(speed))?;
        let vnode = self.vnode(name)?;
        // As in the platform file.
        if vnode.method.is_some_and(Method::replays_load) {
            let why =
                "not possible with inject: the recorded load determines what is left of each core";
            return Err(Failure::new(Exit::Input, format!("{name}: speed: {why}"))
                .with_hint("choose another method in the platform file"));
        }
        if let Some(pu) = only
            && !vnode.cpus().contains(pu)
        {
            return Err(Failure::new(Exit::Input, format!("{name} has no CPU {pu}"))
                .with_hint(format!("its CPUs are {}", vnode.cpus())));
        }
        let first = only.or_else(|| vnode.cpus().first()).unwrap_or(PuId(0));
        let speed = speed_on(first, speed_request, self.topology).map_err(|error| {
            Failure::new(Exit::Input, error.to_string()).with_hint(error.hint())
        })?;
        self.nodes.set(name, speed, only).map_err(Failure::from)
    }

    /// Where a process of a vnode starts.
    pub fn enter(&self, name: &str) -> Result<Enter, Failure> {
        let vnode = self.vnode(name)?;
        let cgroup = self.cgroup(name)?;
        Ok(Enter {
            vnode: name.to_owned(),
            files: cgroup.entries(),
            pus: vnode.cpus().to_string(),
            needs_mask: cgroup.cpuset.is_none(),
            memory_node: vnode.memory_node.map(|node| node.0),
        })
    }
}
