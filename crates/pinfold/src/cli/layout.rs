//! The layout of the help: groups of commands, examples, and options that only `--help-all` shows.

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory as _};

use super::Cli;

/// The commands by purpose, in the order of the help.
const GROUPS: [(&str, &[&str]); 6] = [
    ("See", &["topo", "doctor", "claims", "status", "top", "journal"]),
    ("Place", &["plan", "advise", "apply", "run", "quiet", "undo", "watch", "libvirt-hook"]),
    ("Measure", &["measure", "compare", "tune", "exits", "report"]),
    ("Emulate", &["emulate"]),
    ("Experiment", &["study"]),
    ("Other", &["help", "completions", "version"]),
];

/// Examples of commands, by the first words of each.
const EXAMPLES: [(&str, [&str; 2]); 31] = [
    ("topo", ["topo", "topo --capture > host.capture"]),
    ("doctor", ["doctor", "doctor --json"]),
    ("claims", ["claims", "claims --json --seconds 0"]),
    ("status", ["status", "status desktop"]),
    ("top", ["top", "top --once --json"]),
    ("journal", ["journal", "journal --json"]),
    (
        "advise",
        ["advise --vcpus 4 --memory 8192", "advise --vcpus 2 --memory 1024 --huge-pages 2MiB"],
    ),
    ("plan", ["plan --vcpus 8 --explain", "plan --check guest.xml --fix > new.xml"]),
    (
        "apply",
        [
            "apply desktop --strategy low-latency --isolate host",
            "apply --qmp /run/vm/qmp.sock --dry-run",
        ],
    ),
    (
        "run",
        [
            "run -s low-latency -- qemu-system-x86_64 -smp 4 disk.img",
            "run --cores 1 --speed 40% -- make test",
        ],
    ),
    (
        "quiet",
        [
            "quiet --cores 2 -- ./benchmark",
            "quiet --no-aslr --tunable max-khz=2000000 -- ./benchmark",
        ],
    ),
    ("undo", ["undo desktop", "undo --all"]),
    ("watch", ["watch --json", "watch desktop --drift report"]),
    (
        "libvirt-hook",
        ["libvirt-hook desktop started begin -", "libvirt-hook desktop stopped end -"],
    ),
    ("measure", ["measure spin-gap --cpus 2-3", "measure gaps --libvirt desktop --over 1ms"]),
    (
        "compare",
        ["compare before.json after.json", "compare --plan a.json --plan b.json -- wakeup"],
    ),
    (
        "tune",
        ["tune --libvirt desktop", "tune --goal throughput -- qemu-system-x86_64 -smp 4 disk.img"],
    ),
    ("exits", ["exits --libvirt desktop", "exits --micro-guest"]),
    ("report", ["report", "report --list"]),
    ("emulate", ["emulate methods", "emulate up platform.toml"]),
    ("emulate up", ["emulate up platform.toml --dry-run", "emulate up platform.toml"]),
    ("emulate attach", ["emulate attach slow --container web", "emulate attach slow --mininet h1"]),
    ("emulate exec", ["emulate exec slow -- make test", "emulate exec slow -- nproc"]),
    ("emulate set", ["emulate set slow --speed 50%", "emulate set slow --speed \"800 MHz\""]),
    ("emulate verify", ["emulate verify slow --quick", "emulate verify slow --json"]),
    ("study", ["study check studies/vm-latency.toml", "study run studies/vm-latency.toml --quick"]),
    (
        "study check",
        ["study check studies/vm-latency.toml", "study check studies/vm-latency.toml --quick"],
    ),
    (
        "study run",
        ["study run studies/vm-latency.toml --quick", "study run scaling.toml --engine slurm"],
    ),
    ("help", ["help plan", "help strategies"]),
    ("completions", ["completions bash > /etc/bash_completion.d/pinfold", "completions fish"]),
    ("version", ["version", "version --json"]),
];

/// Options that only `--help-all` shows, by command.
const RARE: [(&str, &[&str]); 6] = [
    (
        "plan",
        &[
            "ignore_claims",
            "name",
            "fill",
            "free",
            "host_pus",
            "emulator",
            "tunables",
            "profile",
            "iothreads",
            "interrupts",
            "request",
            "vnode",
            "qmp",
            "pid",
            "all",
        ],
    ),
    (
        "apply",
        &[
            "prefer",
            "ignore_claims",
            "free",
            "host_pus",
            "emulator",
            "pins",
            "tunables",
            "profile",
            "drift",
        ],
    ),
    (
        "run",
        &[
            "prefer",
            "ignore_claims",
            "free",
            "host_pus",
            "emulator",
            "pins",
            "tunables",
            "profile",
            "kind",
            "own",
            "period",
            "calibrate",
            "share_housekeeping",
            "kill_left",
            "start_timeout",
            "pin_timeout",
            "drift",
        ],
    ),
    (
        "tune",
        &[
            "better",
            "max_gap",
            "full",
            "avoid",
            "ignore_claims",
            "seed",
            "agent",
            "settle",
            "start_timeout",
            "resume",
            "path",
        ],
    ),
    (
        "measure",
        &[
            "policy",
            "period",
            "duty",
            "keep_awake",
            "file",
            "role",
            "quantities",
            "sites",
            "per_vcpu",
            "top",
            "look",
            "distributor",
            "seed",
        ],
    ),
    ("compare", &["policy", "seed"]),
];

/// The definition with examples, and all options in each help: for man pages.
pub fn with_examples() -> Command {
    laid_out(Cli::command(), "", &|_, option| option)
}

/// The definition of the command line with its layout.
pub fn command() -> Command {
    let root = laid_out(Cli::command(), "", &|path, option| {
        let rare = RARE.iter().find(|(name, _)| *name == path).map_or(&[][..], |(_, rare)| rare);
        let is_rare = rare.contains(&option.get_id().as_str());
        if is_rare { option.hide_short_help(true) } else { option }
    });
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}\n{{options}}{{after-help}}",
        groups(&root)
    );
    root.help_template(template)
}

fn laid_out(command: Command, path: &str, option: &dyn Fn(&str, Arg) -> Arg) -> Command {
    let command = command.mut_args(|one| option(path, one));
    let examples = EXAMPLES.iter().find(|(name, _)| *name == path);
    let command = match examples {
        Some((_, lines)) => command.after_help(examples_text(lines)),
        None => command,
    };
    command.mut_subcommands(|inner| {
        let path = format!("{path} {}", inner.get_name());
        laid_out(inner, path.trim_start(), option)
    })
}

fn examples_text(lines: &[&str]) -> StyledStr {
    let lines = lines.iter().map(|line| format!("\n  pinfold {line}"));
    StyledStr::from(format!("Examples:{}", lines.collect::<String>()))
}

/// The list of commands, by group.
fn groups(root: &Command) -> String {
    GROUPS
        .map(|(title, names)| {
            let known = names.iter().filter_map(|name| root.find_subcommand(name));
            format!(
                "{title}:\n{}",
                known
                    .map(|command| {
                        let about =
                            command.get_about().map(ToString::to_string).unwrap_or_default();
                        format!("  {:<14}{about}\n", command.get_name())
                    })
                    .collect::<String>()
            )
        })
        .concat()
}
