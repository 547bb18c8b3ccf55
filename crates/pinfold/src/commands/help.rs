//! `pinfold help` and `pinfold version`.

use clap::Command;
use pinfold_model::closest;
use pinfold_run::{Exit, Failure};
use serde_json::json;

use super::plan;
use crate::cli::{HelpArgs, VersionArgs, layout};
use crate::output;

const ISOLATION: &str = "\
Which other tasks may run on the CPUs of a machine, by `--isolate`:
  none  every task, as before: a pin keeps a thread on a CPU, but does not
        exclude other tasks
  own   tasks that Pinfold itself started are excluded, no others
  host  every movable task of the host is excluded by cpuset; per-CPU kernel
        threads stay, and `pinfold status` lists them

`--tunable partition=isolated` also ends the kernel's load balancing there (cgroup
v2). Kernel parameters also stop the timer tick, but need a reboot:
`pinfold plan --isolate host --emit cmdline` prints them.
All of it is reverted by `pinfold undo`. More: docs/how-to/isolate-cpus.md";

const FILES: &str = "\
What Pinfold writes, as root and as another user:
  journal, locks    /var/lib/pinfold       ~/.local/state/pinfold (--state-dir)
  downloads         /var/cache/pinfold     ~/.cache/pinfold
  marks, sockets    /run/pinfold*          $XDG_RUNTIME_DIR/pinfold*
  plans of domains  /etc/pinfold/domains   (read by the libvirt hook)
  domains to plan   /etc/pinfold/domains.toml   (read by the libvirt hook)
`tune` and `study` write their page and their store to the current directory.

What Pinfold reads:
  requests          docs/requests.md       pinfold plan --request FILE
  platforms         docs/platforms.md      pinfold emulate up FILE
  studies           docs/studies/study-file.md
  captures          pinfold topo --capture, for every --input
`pinfold help formats` lists what a plan is written as.";

/// A topic and its text.
type Topic = (&'static str, fn() -> String);

const TOPICS: [Topic; 4] = [
    ("strategies", plan::list),
    ("isolation", || ISOLATION.to_owned()),
    ("formats", formats),
    ("files", || FILES.to_owned()),
];

/// Prints a topic, or the help of a command.
pub fn help(arguments: &HelpArgs) -> Result<(), Failure> {
    let topic = match arguments.words.as_slice() {
        [word] => TOPICS.iter().find(|(name, _)| name == word),
        _ => None,
    };
    if let Some((_, text)) = topic {
        output::show(&text());
        return Ok(());
    }
    let mut command = layout::command().term_width(crate::environment::help_columns());
    command.build();
    for word in &arguments.words {
        let Some(inner) = command.find_subcommand(word) else {
            return Err(unknown(&command, word));
        };
        command = inner.clone();
    }
    output::show(&command.render_help().to_string());
    Ok(())
}

/// The failure for a word that is no topic and no command below `parent`.
fn unknown(parent: &Command, word: &str) -> Failure {
    let topics = TOPICS.map(|(name, _)| name);
    let commands = parent.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name);
    let known: Vec<&str> = commands.chain(topics).collect();
    let hint = closest(word, known.into_iter()).map_or_else(
        || {
            let topics = topics.join(", ");
            format!("`pinfold --help` lists the commands; the topics are {topics}")
        },
        |nearest| {
            let parents =
                parent.get_bin_name().unwrap_or("pinfold").replace("pinfold", "pinfold help");
            let parents = if topics.contains(&nearest) { "pinfold help" } else { parents.as_str() };
            format!("did you mean {nearest}? `{parents} {nearest}` describes it")
        },
    );
    let text = format!("there is no command or topic {}", output::name(word));
    Failure::new(Exit::Input, text).with_hint(hint)
}

/// The formats of `plan --emit`.
fn formats() -> String {
    let formats = &pinfold_emit::FORMATS;
    let width = 2 + formats.iter().map(|one| one.name.len()).max().unwrap_or_default();
    let lines = formats.iter().map(|one| format!("  {:<width$}{}\n", one.name, one.summary));
    format!("Formats of `pinfold plan --emit`:\n{}More: docs/emit.md", lines.collect::<String>())
}

/// Prints the version.
pub fn version(arguments: &VersionArgs) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    if arguments.json {
        output::print_data(
            &json!({
                "format": "pinfold-version/1",
                "version": version,
                "architecture": std::env::consts::ARCH,
                "license": env!("CARGO_PKG_LICENSE"),
            })
            .to_string(),
        )
    } else {
        output::print_data(&format!("pinfold {version}"))
    }
    Ok(())
}
