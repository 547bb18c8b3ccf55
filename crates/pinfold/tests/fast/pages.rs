//! The pages and help texts name only commands, options, files and headings that exist.

use std::collections::BTreeSet;

use crate::common::{ROOT, split_words};
use clap::{Command, error::ErrorKind};
use pinfold_claims::owners::OWNERS;
use pinfold_claims::owners::hypervisors::READS;
use pinfold_config::{domains, platforms};
use pinfold_host::files;
use pinfold_model::tunables::TUNABLES;
use pinfold_model::{Method, ROLES};
use pinfold_plan::domain_file::PlacementMetadata;
use pinfold_probe::gaps::Cause;
use pinfold_probe::profile;
use pinfold_vm::hypervisors;

#[path = "../../src/cli/mod.rs"]
#[expect(dead_code, reason = "only the definition is tested, not the parsed values")]
mod cli;

use cli::layout;

/// Pages outside `docs/`.
const PAGES: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "pinload/README.md",
];
/// Options of other programs that pages name by themselves: virsh, qm, sbatch, strace.
const FOREIGN: [&str; 4] = ["--live", "--args", "--exclusive", "--seccomp-bpf"];
/// Folders of the repository, as the first part of a path in a page.
const FOLDERS: [&str; 14] = [
    "reference_tools",
    "bench",
    "commands",
    "crates",
    "docs",
    "fixtures",
    "fuzz",
    "lab",
    "packaging",
    "pinload",
    "lint",
    "studies",
    "tests",
    "xtask",
];
/// Folders to which such a path may be relative.
const BASES: [&str; 6] = ["", "crates/", "crates/*/", "crates/*/src/", "pinload/src/", "docs/"];
/// What QEMU's and the kernel's own documents are called.
const DOCUMENTS: [&str; 2] = [".rst", "docs/system/"];

struct Page {
    name: String,
    text: String,
}

fn page(name: &str) -> Page {
    Page { name: name.to_owned(), text: files::read_text(&format!("{ROOT}/{name}")).unwrap() }
}

fn pages() -> Vec<Page> {
    let mut folders = vec!["docs".to_owned()];
    let mut found: Vec<Page> = PAGES.iter().map(|name| page(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in files::list(&format!("{ROOT}/{folder}")).unwrap() {
            let path = format!("{folder}/{entry}");
            if files::is_dir(&format!("{ROOT}/{path}")) {
                folders.push(path);
            } else if entry.ends_with(".md") {
                found.push(page(&path));
            }
        }
    }
    found
}

/// The lines of blocks, and the sentences between them.
fn divided(text: &str) -> (Vec<&str>, String) {
    let (mut blocks, mut prose, mut is_block) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if is_block {
            blocks.push(line);
        } else {
            prose.extend([line, "\n"]);
        }
    }
    (blocks, prose)
}

/// What stands between backticks.
fn spans(prose: &str) -> Vec<&str> {
    prose.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// A command line as a shell divides it, without its comment.
fn words(line: &str) -> Vec<String> {
    let line = line.split("  #").next().unwrap_or(line);
    let line = line.split(" > ").next().unwrap_or(line).trim_end_matches('\\');
    split_words(line)
}

/// Whether a command has this option; those of the program are of every command.
fn has(command: &Command, option: &str) -> bool {
    let (long, short) = match option.strip_prefix("--") {
        Some(long) => (long.split('=').next(), None),
        None => (None, option.chars().nth(1)),
    };
    matches!(option, "--help" | "--help-all" | "-h" | "--version")
        || command.get_arguments().any(|argument| {
            (long.is_some() && argument.get_long() == long)
                || (short.is_some() && argument.get_short() == short)
        })
}

/// What is wrong with the start of a command that a sentence names, such as `pinfold run --speed`.
fn wrong(root: &Command, words: &[String]) -> Option<String> {
    let mut command = root;
    for word in words.iter().take_while(|word| *word != "--") {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner;
        } else if word.starts_with('-') && word.len() > 1 {
            if !has(command, word) && !has(root, word) {
                return Some(format!("{} has no option {word}", command.get_name()));
            }
        } else if command.has_subcommands() && word.chars().all(|c| c.is_ascii_lowercase()) {
            return Some(format!("{} has no command {word}", command.get_name()));
        }
    }
    None
}

/// The long options of a command and of those below it.
fn options(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(clap::Arg::get_long);
    let own = own.map(|long| format!("--{long}"));
    own.chain(command.get_subcommands().flat_map(options)).collect()
}

/// The words of a text that begin with `--` and a letter.
fn named_options(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
    words.filter(|word| word.strip_prefix("--").is_some_and(|name| !name.is_empty())).collect()
}

/// Whether a path of the repository exists, with one `*` at most for every name.
fn exists(path: &str) -> bool {
    match path.split_once("*/") {
        None => files::exists(&format!("{ROOT}/{}", path.trim_end_matches('/'))),
        Some((above, below)) => files::list(&format!("{ROOT}/{above}"))
            .unwrap()
            .iter()
            .any(|name| exists(&format!("{above}{name}/{below}"))),
    }
}

/// The name that a link gives to a heading.
fn link_target(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter(|c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .collect::<String>()
        .trim()
        .replace(' ', "-")
}

#[test]
fn each_command_of_a_block_is_one() {
    let mut count = 0;
    for page in pages() {
        let (blocks, _) = divided(&page.text);
        let mut lines = blocks.into_iter();
        while let Some(line) = lines.next() {
            if !line.starts_with("pinfold ") {
                continue;
            }
            let mut all = words(line);
            let mut last = line;
            while last.ends_with('\\') {
                last = lines.next().unwrap();
                all.extend(words(last));
            }
            let parsed = layout::command().try_get_matches_from(&all);
            let failed = parsed.err().filter(|error| !(error.kind() == ErrorKind::DisplayHelp));
            assert!(failed.is_none(), "{}: {line}\n{failed:?}", page.name);
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn each_command_and_option_of_a_sentence_is_one() {
    let root = layout::command();
    let mut known = options(&root);
    known.extend(FOREIGN.map(str::to_owned));
    for folder in ["pinload/src", "pinload/src/parallel"].map(|name| format!("{ROOT}/{name}")) {
        for name in files::list(&folder).unwrap().iter().filter(|name| name.ends_with(".c")) {
            let text = files::read_text(&format!("{folder}/{name}")).unwrap();
            known.extend(text.split('"').filter(|part| part.starts_with("--")).map(str::to_owned));
        }
    }
    known.insert("--help".to_owned());
    for page in pages() {
        for span in spans(&divided(&page.text).1) {
            if let Some(line) = span.strip_prefix("pinfold ") {
                let wrong = wrong(&root, &words(line));
                assert!(wrong.is_none(), "{}: {span}: {wrong:?}", page.name);
            } else if let Some(option) =
                named_options(span).first().filter(|_| span.starts_with("--"))
            {
                assert!(known.contains(*option), "{}: there is no option {span}", page.name);
            }
        }
    }
    assert!(wrong(&root, &words("plan --nonsense")).is_some());
    assert!(wrong(&root, &words("emulate nonsense")).is_some());
}

#[test]
fn each_file_and_heading_of_a_page_is_there() {
    for page in pages() {
        let here = page.name.rsplit_once('/').map_or("", |(folder, _)| folder);
        let (_, prose) = divided(&page.text);
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                page.name.clone()
            } else {
                format!("{here}/{path}").trim_start_matches('/').to_owned()
            };
            assert!(exists(&target), "{}: {link}", page.name);
            let headings = (!heading.is_empty()).then(|| self::page(&target).text);
            assert!(
                headings.is_none_or(|text| text
                    .lines()
                    .filter_map(|line| line.strip_prefix('#'))
                    .any(|line| link_target(line.trim_start_matches('#')) == heading)),
                "{}: {link}",
                page.name
            );
        }
        let paths = spans(&prose).into_iter().filter(|span| {
            let first = span.split_once('/').map(|(first, _)| first);
            let is_plain = !span.contains([' ', '*', '{', ':', '=']);
            is_plain
                && first
                    .is_some_and(|first| FOLDERS.contains(&first) || first.starts_with("pinfold-"))
                && !DOCUMENTS.iter().any(|part| span.contains(part))
        });
        for path in paths {
            let is_format = path.ends_with(|c: char| c.is_ascii_digit());
            let there = BASES.iter().any(|base| exists(&format!("{base}{path}")));
            assert!(is_format || there, "{}: there is no {path}", page.name);
        }
    }
}

/// Every text of the help of a command and of those below it.
fn help_texts(command: &Command) -> Vec<String> {
    let own = [command.get_about(), command.get_long_about(), command.get_after_help()];
    let arguments = command.get_arguments();
    let arguments = arguments.flat_map(|one| [one.get_help(), one.get_long_help()]);
    let own = own.into_iter().chain(arguments).flatten().map(ToString::to_string);
    own.chain(command.get_subcommands().flat_map(help_texts)).collect()
}

#[test]
fn help_texts_name_what_exists() {
    let root = layout::command();
    let mut known = options(&root);
    known.insert("--help".to_owned());
    let texts = help_texts(&root);
    assert!(texts.len() > 150, "{}", texts.len());
    for text in &texts {
        for option in named_options(text) {
            assert!(known.contains(option), "there is no {option}: {text}");
        }
        for span in spans(text).iter().filter_map(|span| span.strip_prefix("pinfold ")) {
            let wrong = wrong(&root, &words(span));
            assert!(wrong.is_none(), "{text}: {wrong:?}");
        }
        let files = text.split([' ', ';', ',', '(', ')']).filter(|word| word.ends_with(".md"));
        for file in files {
            assert!(exists(file), "there is no {file}: {text}");
        }
    }
}

/// The commands that people use, each with its path.
fn commands(command: &Command, path: &str) -> Vec<(String, Command)> {
    let mut found = Vec::new();
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        let path = format!("{path} {}", inner.get_name()).trim().to_owned();
        found.extend(commands(inner, &path));
        found.push((path, inner.clone()));
    }
    found
}

#[test]
fn each_help_is_short_and_its_examples_are_commands() {
    let mut root = layout::command().term_width(80);
    root.build();
    let top = root.render_help().to_string();
    for (path, command) in commands(&root, "") {
        let help = command.clone().render_help().to_string();
        assert!(help.lines().count() <= 60, "{path}: {} lines", help.lines().count());
        let all = command.clone().render_long_help().to_string();
        let shown = |text: &str| options(&command).iter().filter(|one| text.contains(*one)).count();
        assert!(shown(&all) >= shown(&help), "{path}");
        let examples = help.lines().filter_map(|line| line.trim().strip_prefix("pinfold "));
        let examples: Vec<&str> = examples.collect();
        for example in &examples {
            let line = words(&format!("pinfold {example}"));
            let parsed = layout::command().try_get_matches_from(&line);
            assert!(parsed.is_ok(), "{path}: {example}\n{}", parsed.unwrap_err());
        }
        if !path.contains(' ') {
            assert_eq!(examples.len(), 2, "{path}: two examples");
            assert!(top.contains(&format!("\n  {path}")), "{path} is in no group of the help");
        }
    }
}

/// The part of a page below a heading, or the page.
fn part_of(place: &str) -> String {
    let (name, heading) = place.split_once('#').unwrap_or((place, ""));
    let text = page(name).text;
    let mut lines = text.lines();
    if heading.is_empty() {
        return text;
    }
    let is_there = lines
        .by_ref()
        .any(|line| line.starts_with('#') && link_target(line.trim_start_matches('#')) == heading);
    assert!(is_there, "there is no heading {place}");
    lines.take_while(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

/// Asserts that a page, or the part below a heading, has these names between backticks.
#[track_caller]
fn assert_named<'n>(place: &str, names: impl IntoIterator<Item = &'n str>) {
    let text = part_of(place);
    let known: BTreeSet<&str> = spans(&text).iter().map(|span| span.trim_matches('"')).collect();
    let missing: Vec<&str> = names.into_iter().filter(|name| !known.contains(name)).collect();
    assert!(missing.is_empty(), "{place} does not have {missing:?} between backticks");
}

#[test]
fn the_pages_have_each_format_tunable_method_and_check() {
    let keys = TUNABLES.iter().map(|tunable| tunable.field).filter(|field| !field.is_empty());
    assert_named("docs/json.md#pinfold-plan1", keys);
    assert_named("docs/emit.md", pinfold_emit::FORMATS.iter().map(|format| format.name));
    assert_named("docs/emulation.md", Method::ALL.map(Method::name));
    assert_named("docs/platforms.md", Method::ALL.map(Method::name));
    let folder = "crates/pinfold-lint/src/text";
    let mut count = 0;
    for file in files::list(&format!("{ROOT}/{folder}")).unwrap() {
        let text = files::read_text(&format!("{ROOT}/{folder}/{file}")).unwrap();
        for call in text.split("FaultText::new(").skip(1) {
            let name = call.split(',').next().unwrap_or_default();
            let names: Vec<&str> = name.split('"').skip(1).step_by(2).collect();
            count += names.len();
            assert_named("docs/check.md", names);
        }
    }
    assert!(count > 50, "only {count} checks were found");
}

#[test]
fn the_pages_have_each_kind_of_owner_role_and_key() {
    let kinds = OWNERS.iter().flat_map(|row| row.kinds).map(|kind| kind.name);
    let kinds: Vec<&str> = kinds.collect();
    for place in ["docs/json.md#pinfold-claims1", "docs/how-to/kubernetes-ovs.md"] {
        assert_named(place, kinds.iter().copied());
    }
    for place in ["docs/requests.md#pins-by-hand", "docs/glossary.md", "docs/metrics.md"] {
        assert_named(place, ROLES.map(|role| role.name));
    }
    let owners = page("docs/how-to/kubernetes-ovs.md").text;
    for name in hypervisors::names_of_running().split(", ").flat_map(|part| part.split(" or ")) {
        assert!(owners.contains(name), "docs/how-to/kubernetes-ovs.md has no {name}");
        assert!(READS.contains(name), "READS of the owner hypervisors has no {name}");
    }
    let hook = "docs/how-to/libvirt-hook.md";
    assert_named(hook, domains::SETTINGS.iter().copied().chain(["name"]));
    assert_named(hook, PlacementMetadata::ATTRIBUTES);
    assert_named("docs/platforms.md", platforms::VNODE.iter().copied());
    assert_named(
        "docs/platforms.md",
        platforms::PLATFORM.iter().copied().filter(|key| *key != "vnode"),
    );
}

#[test]
fn the_pages_have_each_cause_and_kind_of_work() {
    for place in ["docs/gaps.md", "docs/metrics.md"] {
        assert_named(place, Cause::WORDS);
    }
    for place in ["docs/json.md#pinfold-profile1", "docs/how-to/another-machine.md"] {
        assert_named(place, profile::Kind::ALL.map(profile::Kind::name));
    }
}

#[test]
fn each_benchmark_of_pinload_has_a_line_and_a_short_run() {
    let main = files::read_text(&format!("{ROOT}/pinload/src/main.c")).unwrap();
    let rows = main.lines().filter_map(|line| line.trim().strip_prefix("{\"")?.split('"').next());
    let rows: Vec<&str> = rows.collect();
    assert!(rows.len() > 15, "{rows:?}");
    let readme = page("pinload/README.md").text;
    let runs = files::read_text(&format!("{ROOT}/fixtures/pinload-runs.txt")).unwrap();
    for row in rows {
        let has_line = readme.lines().any(|line| line.starts_with(&format!("pinload {row} ")));
        assert!(has_line, "pinload/README.md has no line of {row}");
        let mut commands = runs.lines().filter_map(|line| line.split(' ').nth(1));
        // It serves a host, and runs nothing by itself.
        let is_run = row == "agent" || commands.any(|command| command == row);
        assert!(is_run, "fixtures/pinload-runs.txt has no run of {row}");
    }
}
