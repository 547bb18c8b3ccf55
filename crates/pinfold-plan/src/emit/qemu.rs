//! A POSIX sh script that starts QEMU under a plan, and runs without Pinfold too.
//!
//! QEMU has no affinity option: the script starts it stopped (`-S`), waits for its
//! vCPU threads, pins them and lets it run. With `pinfold` in the PATH the pinning is
//! `pinfold apply`; without it, util-linux's `taskset` on the threads' names, which
//! QEMU gives under `debug-threads=on` (`CPU 0/KVM`, `IO disk`). `cont` goes through a
//! QMP monitor on a pair of FIFOs, because a shell can write to one without any helper.
//! A guest that cannot be pinned is never started.
//!
//! The command's own `-smp` gives way to the plan's shape, `-daemonize` goes (the
//! script stays the parent). Arguments are quoted, comments hold no control character:
//! nothing of a name, an id or a reason is ever code.

mod cpu;
mod memory;

use pinfold_model::{NotSingle, Plan, Policy, Role, ThreadPlan, Topology, VnodePlan};

use self::cpu::Cpu;
use self::memory::Options;
use crate::schema;

const HEAD: &str = include_str!("qemu/head.sh");
pub(super) const FUNCTIONS: &str = include_str!("qemu/functions.sh");
const PREPARE: &str = include_str!("qemu/prepare.sh");
const RUN: &str = include_str!("qemu/run.sh");

/// A start script for the QEMU command `argv` under `plan`.
///
/// With an empty `argv` the script expects the whole command as its own arguments;
/// otherwise its arguments are added to the command.
///
/// # Errors
/// [`NotSingle`] if the plan does not place exactly one vnode.
pub fn qemu(plan: &Plan, topology: &Topology, argv: &[String]) -> Result<String, NotSingle> {
    let vnode = plan.single()?;
    let command = Command::of(argv);
    let memory = memory::options(vnode, topology, &command);
    let mut script = HEAD.to_owned();
    header(&mut script, (plan, vnode), &command);
    let cpu = cpu::cpu(vnode, topology, &command);
    memory.notes.iter().chain(&cpu.notes).for_each(|note| comment(&mut script, note));
    script.push('\n');
    settings(&mut script, (plan, vnode), &command);
    script.push_str(FUNCTIONS);
    function(&mut script, "write_plan", "The plan, for `pinfold apply`.", &write_plan(plan));
    function(
        &mut script,
        "pin_by_taskset",
        "The same pins without Pinfold: all threads as the emulator, then those with a name.",
        &taskset_lines(vnode),
    );
    script.push_str(PREPARE);
    script.push_str(&start(&command, (&cpu, &memory)));
    script.push_str(RUN);
    Ok(script)
}

/// The user's command, taken apart.
struct Command {
    kept: Vec<String>,
    /// The values of its own `-smp`.
    smp: Vec<String>,
    /// The values of its own `-cpu`.
    cpu: Vec<String>,
    /// The values of its own `-m`.
    memory: Vec<String>,
    /// It says itself where memory is: `-numa`, a backend, `-mem-path`.
    places_memory: bool,
    daemonize: bool,
    /// It asked to stay stopped, or to wait for a migration.
    stays_stopped: bool,
}

impl Command {
    fn of(argv: &[String]) -> Self {
        let mut command = Self {
            kept: Vec::new(),
            smp: Vec::new(),
            cpu: Vec::new(),
            memory: Vec::new(),
            places_memory: false,
            daemonize: false,
            stays_stopped: false,
        };
        let mut arguments = argv.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "-smp" | "--smp" => command.smp.extend(arguments.next().cloned()),
                "-cpu" | "--cpu" => command.cpu.extend(arguments.next().cloned()),
                "-m" | "--m" => command.memory.extend(arguments.next().cloned()),
                "-daemonize" | "--daemonize" => command.daemonize = true,
                "-S" | "--S" | "-incoming" | "--incoming" => {
                    command.stays_stopped = true;
                    command.kept.push(argument.clone());
                }
                _ => command.kept.push(argument.clone()),
            }
        }
        let says = |word: &String| {
            matches!(word.trim_start_matches('-'), "numa" | "mem-path")
                || word.contains("memory-backend")
        };
        command.places_memory = command.kept.iter().any(says);
        command
    }
}

fn header(script: &mut String, (plan, vnode): (&Plan, &VnodePlan), command: &Command) {
    let vcpus = vnode.vcpus().count();
    comment(
        script,
        &format!(
            "{} for {}: {vcpus} vCPUs, {}",
            plan.strategy,
            vnode.name,
            pinfold_model::pins_of(plan)
        ),
    );
    for smp in &command.smp {
        comment(script, &format!("Your `-smp {smp}` gave way to the plan's guest topology."));
    }
    if command.daemonize {
        comment(script, "Your `-daemonize` was taken out: this script stays QEMU's parent.");
    }
    if command.stays_stopped {
        comment(script, "As you asked, QEMU is pinned and left stopped (-S or -incoming).");
    }
    if !plan.exclusive.is_empty() {
        comment(
            script,
            &format!(
                "Other tasks are kept off {} only if pinfold is installed (isolation scope {}).",
                plan.exclusive, plan.isolation
            ),
        );
    }
    script.push('\n');
}

fn settings(script: &mut String, (plan, vnode): (&Plan, &VnodePlan), command: &Command) {
    let vcpus = vnode.vcpus().count();
    let yes = |value: bool| if value { "yes" } else { "no" };
    script.push_str(&format!("vcpus={vcpus}\n"));
    script.push_str(&format!("isolates={}\n", yes(!plan.exclusive.is_empty())));
    script.push_str(&format!("stays_stopped={}\n", yes(command.stays_stopped)));
}

pub(super) fn function(script: &mut String, name: &str, what: &str, body: &str) {
    // A function whose body holds nothing but comments is a syntax error.
    let is_empty = body.lines().all(|line| line.trim_start().starts_with('#'));
    let end = if is_empty { "    return 0\n" } else { "" };
    script.push_str(&format!("\n# {what}\n{name}() {{\n{body}{end}}}\n"));
}

/// JSON escapes line feeds in texts and opens every line with a blank, a brace or a
/// bracket, so no line of it ends the here-document.
fn write_plan(plan: &Plan) -> String {
    format!("cat <<'END_OF_PLAN'\n{}END_OF_PLAN\n", schema::to_json(plan))
}

/// The shell lines that pin each thread by its name.
pub(super) fn taskset_lines(vnode: &VnodePlan) -> String {
    let mut body = String::new();
    let emulator = vnode.thread(&Role::Emulator);
    if let Some(emulator) = emulator {
        reason(&mut body, emulator);
        body.push_str(&format!("    pin_all {} || return 1\n", emulator.pus));
    }
    for thread in &vnode.threads {
        let line = match &thread.role {
            Role::Vcpu(index) => format!("    pin_one 'CPU {index}/' {} || return 1\n", thread.pus),
            Role::Iothread(id) => iothread_line(thread, id, emulator),
            Role::Emulator => continue,
            Role::Vhost(_) | Role::Worker | Role::Task => {
                body.push_str(&format!("    # {} runs where the emulator does.\n", thread.role));
                continue;
            }
        };
        reason(&mut body, thread);
        body.push_str(&line);
    }
    for thread in &vnode.threads {
        body.push_str(&policy_line(thread));
    }
    if body.is_empty() { "    :\n".to_owned() } else { body }
}

/// The longest id of an iothread that QEMU puts into its name, which has 15 bytes: `IO ` and
/// 12 more. With a longer one the thread stays without a name.
const LONGEST_NAMED: usize = 12;

fn iothread_line(thread: &ThreadPlan, id: &str, emulator: Option<&ThreadPlan>) -> String {
    if id.len() <= LONGEST_NAMED {
        return format!("    pin_one {} {} || return 1\n", quote(&format!("IO {id}")), thread.pus);
    }
    match emulator.is_some_and(|emulator| emulator.pus == thread.pus) {
        true => {
            "    # Its id is too long for a thread's name; pin_all has put it there.\n".to_owned()
        }
        false => needs_pinfold(&format!("the iothread {id} has no name to be pinned by")),
    }
}

fn policy_line(thread: &ThreadPlan) -> String {
    let Some(policy) = thread.policy else {
        return String::new();
    };
    let options = match policy {
        Policy::Other { nice: 0 } => return String::new(),
        Policy::Fifo { priority } => format!("-f -p {priority}"),
        Policy::RoundRobin { priority } => format!("-r -p {priority}"),
        Policy::Batch { nice: 0 } => "-b -p 0".to_owned(),
        Policy::Idle => "-i -p 0".to_owned(),
        Policy::Other { .. }
        | Policy::Batch { .. }
        | Policy::Deadline { .. }
        | Policy::Unknown(_) => {
            return needs_pinfold(&format!("{} is to have the policy {policy}", thread.role));
        }
    };
    match &thread.role {
        Role::Vcpu(index) => format!("    schedule 'CPU {index}/' {options} || return 1\n"),
        Role::Iothread(id) if id.len() <= LONGEST_NAMED => {
            format!("    schedule {} {options} || return 1\n", quote(&format!("IO {id}")))
        }
        Role::Emulator => format!("    chrt {options} \"$qemu\" >/dev/null || return 1\n"),
        Role::Iothread(_) | Role::Vhost(_) | Role::Worker | Role::Task => {
            needs_pinfold(&format!("{} has no name to be scheduled by", thread.role))
        }
    }
}

/// What taskset and chrt cannot do is refused when the script runs without Pinfold.
fn needs_pinfold(why: &str) -> String {
    let message = quote(&safe(&format!("{why}, this needs pinfold")));
    format!("    echo \"$0:\" {message} >&2\n    return 1\n")
}

fn start(command: &Command, (cpu, memory): (&Cpu, &Options)) -> String {
    let mut lines =
        String::from("\n# The command. What follows its own options is what pinning needs.\n");
    lines.push_str("set --");
    for argument in &command.kept {
        // One option per line, its values beside it.
        let option = argument.starts_with('-');
        lines.push_str(if option { " \\\n    " } else { " " });
        lines.push_str(&quote(argument));
    }
    lines.push_str(" \"$@\"");
    for option in cpu.words.iter().chain(&memory.words) {
        let (name, value) = option;
        lines.push_str(&format!(" \\\n    {name} {}", quote(value)));
    }
    lines.push_str(
        " \\\n    -name debug-threads=on -S \\\n    -qmp \"unix:$dir/qmp.sock,server=on,wait=off\" \
         -qmp \"pipe:$dir/qmp\"\n",
    );
    lines
}

fn reason(body: &mut String, thread: &ThreadPlan) {
    body.push_str(&format!("    # {}: {}\n", safe(&thread.role.to_string()), safe(&thread.reason)));
}

fn comment(script: &mut String, text: &str) {
    script.push_str(&format!("# {}\n", safe(text)));
}

/// A text that stays on one line of a comment.
pub(super) fn safe(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// An argument as sh reads it back to the character; NUL is in no argument, so it is dropped.
pub(super) fn quote(argument: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=+:,./@%".contains(&byte);
    if !argument.is_empty() && argument.bytes().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\0', "").replace('\'', r"'\''"))
}
