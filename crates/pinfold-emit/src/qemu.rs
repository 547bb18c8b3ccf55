//! A POSIX sh script that starts QEMU under a plan, also without Pinfold.
//!
//! QEMU has no affinity option: the script starts it stopped (`-S`), waits for its vCPU threads,
//! pins them and resumes it. If `pinfold` is in the PATH, `pinfold apply` pins the threads; else
//! util-linux's `taskset` does, by the thread names that QEMU sets under `debug-threads=on` (`CPU
//! 0/KVM`, `IO disk`). `cont` is sent to a QMP monitor on a pair of FIFOs, because a shell can
//! write to one without a helper. A guest that cannot be pinned is never started.
//!
//! The plan's topology replaces the command's `-smp`, and `-daemonize` is removed (the script stays
//! the parent). Arguments are quoted and comments contain no control characters: no name, ID or
//! reason is ever executed.

mod cpu;
mod memory;

use self::cpu::Cpu;
use self::memory::Options;
use pinfold_model::command::quote;
use pinfold_model::tunables::{FormatAnswer, Scope};
use pinfold_model::{NotSingleVnode, Plan, Policy, Role, ThreadPlan, Topology, VnodePlan};
use pinfold_plan::schema;
use pinfold_qemu::{QemuCommand, QemuOption};

use super::common::replace_control_chars;
use super::format::{Format, Syntax};

const HEAD: &str = include_str!("qemu/head.sh");
pub(super) const FUNCTIONS: &str = include_str!("qemu/functions.sh");
const PREPARE: &str = include_str!("qemu/prepare.sh");
const RUN: &str = include_str!("qemu/run.sh");

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "qemu",
    summary: "A start script for QEMU",
    is_of_host: false,
    can_merge: false,
    syntax: Syntax::Script,
    write: qemu,
    // All are in the plan that the script passes to `pinfold apply`.
    together: None,
    tunable: |_, _| FormatAnswer::lines(APPLY, Vec::new()),
};

/// A start script for a QEMU command under `plan`.
///
/// With an empty command the script expects the whole command as its own arguments;
/// otherwise its arguments are added to the command.
///
/// # Errors
/// [`NotSingleVnode`] if the plan does not place exactly one vnode.
pub fn qemu(
    plan: &Plan,
    topology: &Topology,
    line: &QemuCommand,
) -> Result<String, NotSingleVnode> {
    let vnode = plan.single_vnode()?;
    let command = Command::from_line(line, vnode);
    let memory = memory::options(vnode, topology, &command);
    let mut script = HEAD.to_owned();
    header(&mut script, plan, vnode, &command);
    let cpu = cpu::cpu(vnode, topology, &command);
    memory.notes.iter().chain(&cpu.notes).for_each(|note| comment(&mut script, note));
    script.push('\n');
    settings(&mut script, plan, vnode, &command);
    script.push_str(FUNCTIONS);
    function(&mut script, "write_plan", "The plan, for `pinfold apply`.", &write_plan(plan));
    function(
        &mut script,
        "pin_by_taskset",
        "The same pins without Pinfold: all threads as the emulator, then those with a name.",
        &taskset_lines(vnode, command.vcpus),
    );
    script.push_str(PREPARE);
    script.push_str(&start(&command, &cpu, &memory));
    script.push_str(RUN);
    Ok(script)
}

/// The user's command, divided into options that stay and options that the plan replaces.
struct Command<'c> {
    line: &'c QemuCommand,
    /// The options that stay.
    kept: Vec<QemuOption>,
    /// Number of vCPUs at the start; the others of the plan are hot-plugged.
    vcpus: usize,
}

impl<'c> Command<'c> {
    fn from_line(line: &'c QemuCommand, vnode: &VnodePlan) -> Self {
        let planned = vnode.vcpus().count();
        let vcpus = match (count(line.vcpus()), count(line.max_vcpus())) {
            (Some(first), Some(all)) if all == planned => first,
            (_, _) => planned,
        };
        let kept = line.options.iter().filter(|option| !gives_way(option)).map(without_smp);
        Self { line, kept: kept.collect(), vcpus }
    }

    /// Values of all options of this name.
    fn values(&self, name: &'c str) -> Vec<&'c str> {
        self.line.all(name).filter_map(QemuOption::value).collect()
    }

    /// True if the command itself places memory.
    fn places_memory(&self) -> bool {
        ["numa", "mem-path"].iter().any(|name| self.line.has(name))
            || self.line.all("object").any(|object| {
                object.key("qom-type").is_some_and(|kind| kind.starts_with("memory-backend"))
            })
    }

    /// True if the command starts the guest stopped, or waits for a migration.
    fn stays_stopped(&self) -> bool {
        self.line.has("S") || self.line.has("incoming")
    }
}

fn gives_way(option: &&QemuOption) -> bool {
    matches!(option.name.as_str(), "smp" | "cpu" | "m" | "daemonize")
}

fn count(number: Option<u32>) -> Option<usize> {
    number.and_then(|number| usize::try_from(number).ok())
}

/// An option without the `smp.…` keys of `-machine`.
fn without_smp(option: &QemuOption) -> QemuOption {
    let mut option = option.clone();
    let is_machine = matches!(option.name.as_str(), "machine" | "M");
    if let Some(value) =
        option.words.get_mut(1).filter(|value| is_machine && value.contains("smp."))
    {
        // A comma within a value is doubled; values of these keys contain none.
        let parts = value.split(',').filter(|part| !part.starts_with("smp."));
        *value = parts.collect::<Vec<_>>().join(",");
    }
    option
}

fn header(script: &mut String, plan: &Plan, vnode: &VnodePlan, command: &Command<'_>) {
    let vcpus = vnode.vcpus().count();
    comment(
        script,
        &format!(
            "{} for {}: {vcpus} vCPUs, {}",
            plan.strategy,
            vnode.name,
            pinfold_model::describe_pins(plan)
        ),
    );
    for smp in command.values("smp") {
        comment(script, &format!("The plan's guest topology replaces your `-smp {smp}`."));
    }
    if command.line.has("daemonize") {
        comment(script, "Your `-daemonize` was removed: this script stays QEMU's parent.");
    }
    if command.stays_stopped() {
        comment(script, "As you asked, QEMU is pinned and left stopped (-S or -incoming).");
    }
    if !plan.exclusive.is_empty() {
        comment(
            script,
            &format!(
                "Other tasks are excluded from {} only if pinfold is installed (isolation scope {}).",
                plan.exclusive, plan.isolation
            ),
        );
    }
    let tunables = list_apply_only_tunables(plan, vnode);
    if !tunables.is_empty() {
        let names = tunables.join(", ");
        comment(script, &format!("Tunables, set only if pinfold is installed: {names}"));
    }
    script.push('\n');
}

fn settings(script: &mut String, plan: &Plan, vnode: &VnodePlan, command: &Command<'_>) {
    script.push_str(&format!("vcpus={}\n", command.vcpus));
    script.push_str(&format!("isolates={}\n", yes(!plan.exclusive.is_empty())));
    script.push_str(&format!("stays_stopped={}\n", yes(command.stays_stopped())));
    script.push_str(&format!(
        "tunables={}\n",
        quote(&list_apply_only_tunables(plan, vnode).join(", "))
    ));
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// The tunables that only `pinfold apply` sets, not taskset and chrt.
fn list_apply_only_tunables(plan: &Plan, vnode: &VnodePlan) -> Vec<String> {
    FORMAT.answers(Scope::of_vnode(plan, vnode)).names(APPLY)
}

const APPLY: &str = "apply";

pub(super) fn function(script: &mut String, name: &str, what: &str, body: &str) {
    // A function whose body contains only comments is a syntax error.
    let is_empty = body.lines().all(|line| line.trim_start().starts_with('#'));
    let end = if is_empty { "    return 0\n" } else { "" };
    script.push_str(&format!("\n# {what}\n{name}() {{\n{body}{end}}}\n"));
}

/// JSON escapes line feeds in texts and starts every line with a blank, a brace or a bracket, so no
/// line of it ends the here-document.
fn write_plan(plan: &Plan) -> String {
    format!("cat <<'END_OF_PLAN'\n{}END_OF_PLAN\n", schema::to_json(plan))
}

/// The shell lines that pin each thread by its name; vCPUs from `vcpus` on are hot-plugged.
pub(super) fn taskset_lines(vnode: &VnodePlan, vcpus: usize) -> String {
    let mut body = String::new();
    let emulator = vnode.thread(&Role::Emulator);
    if let Some(emulator) = emulator {
        reason(&mut body, emulator);
        body.push_str(&format!("    pin_all {} || return 1\n", emulator.pus));
    }
    let (later, now): (Vec<_>, Vec<_>) = vnode
        .threads
        .iter()
        .partition(|thread| matches!(&thread.role, Role::Vcpu(index) if *index as usize >= vcpus));
    for thread in &later {
        let pus = &thread.pus;
        body.push_str(&format!("    # {} is for {pus} when it is plugged in.\n", thread.role));
    }
    for thread in &now {
        let line = match (thread.role.vcpu(), thread.role.iothread()) {
            (Some(index), _) => format!("    pin_one 'CPU {index}/' {} || return 1\n", thread.pus),
            (None, Some(id)) => iothread_line(thread, id, emulator),
            (None, None) if thread.role == Role::Emulator => continue,
            (None, None) => {
                body.push_str(&format!("    # {} runs where the emulator does.\n", thread.role));
                continue;
            }
        };
        reason(&mut body, thread);
        body.push_str(&line);
    }
    for thread in &now {
        body.push_str(&policy_line(thread));
    }
    if body.is_empty() { "    :\n".to_owned() } else { body }
}

/// Maximum length of an iothread ID that QEMU uses in the thread name, which has 15 bytes: `IO `
/// and 12 more. With a longer ID the thread has no name.
const LONGEST_NAMED: usize = 12;

fn iothread_line(thread: &ThreadPlan, id: &str, emulator: Option<&ThreadPlan>) -> String {
    if id.len() <= LONGEST_NAMED {
        return format!("    pin_one {} {} || return 1\n", quote(&format!("IO {id}")), thread.pus);
    }
    if emulator.is_some_and(|emulator| emulator.pus == thread.pus) {
        "    # Its id is too long for a thread's name; pin_all has put it there.\n".to_owned()
    } else {
        needs_pinfold(&format!("the iothread {id} has no name to be pinned by"))
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
        | Policy::Slice { .. }
        | Policy::Unknown { .. } => {
            return needs_pinfold(&format!("{} needs the policy {policy}", thread.role));
        }
    };
    match (thread.role.vcpu(), thread.role.iothread()) {
        (Some(index), _) => format!("    schedule 'CPU {index}/' {options} || return 1\n"),
        (None, Some(id)) if id.len() <= LONGEST_NAMED => {
            format!("    schedule {} {options} || return 1\n", quote(&format!("IO {id}")))
        }
        (None, None) if thread.role == Role::Emulator => {
            format!("    chrt {options} \"$qemu\" >/dev/null || return 1\n")
        }
        (None, _) => needs_pinfold(&format!("{} has no name to be scheduled by", thread.role)),
    }
}

/// Without Pinfold, the script fails if the plan needs more than taskset and chrt.
fn needs_pinfold(why: &str) -> String {
    let message = quote(&replace_control_chars(&format!("{why}: install pinfold")));
    format!("    echo \"$0:\" {message} >&2\n    return 1\n")
}

fn start(command: &Command<'_>, cpu: &Cpu, memory: &Options) -> String {
    let mut lines =
        String::from("\n# The command. What follows its own options is what pinning needs.\n");
    lines.push_str("set --");
    let program = Some(&command.line.program).filter(|program| !program.is_empty());
    for word in command.line.wrapper.iter().chain(program) {
        lines.push_str(&format!(" {}", quote(word)));
    }
    // One option per line, followed by its value.
    for option in &command.kept {
        let words: Vec<String> = option.words.iter().map(|word| quote(word)).collect();
        lines.push_str(&format!(" \\\n    {}", words.join(" ")));
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
    body.push_str(&format!(
        "    # {}: {}\n",
        replace_control_chars(&thread.role.to_string()),
        replace_control_chars(&thread.reason)
    ));
}

fn comment(script: &mut String, text: &str) {
    script.push_str(&format!("# {}\n", replace_control_chars(text)));
}
