//! `pinfold study` on this host: a real study of trivial workloads, from file to page, and what is
//! refused.

use crate::common::{ROOT, Sandbox, assert_parts, skip};
use pinfold_host::files;

const STUDY: &str = r#"
name = "tiny"
title = "A trivial workload"
repetitions = 2
time-limit = "5s"
probes = ["steal", "busy", "l1d_misses"]
[baseline]
kind = "good"
[[factor]]
name = "kind"
levels = ["good", "silent", "nan", "hang", "fails"]
[[factor]]
name = "cores"
levels = [1, 100000]
[[workload]]
name = "shell"
command = ["sh", "-c", "case $0 in good) echo time: 12 on {pus}; echo 5 cycles >&2;; nan) echo time: NaN;; hang) sleep 60;; fails) echo broken >&2; exit 3;; esac", "{kind}"]
time-limit = "300ms"
lasts = "10ms"
[[workload.figure]]
name = "time"
unit = "ns"
regex = 'time: (\S+)'
[[workload.figure]]
name = "cycles"
from = "stderr"
regex = '([0-9]+) cycles'
[[workload]]
name = "true"
command = ["true"]
lasts = "10ms"
[[plot]]
name = "times"
figure = "time"
x = "kind"
[[plot]]
name = "wide"
figure = "time"
x = "kind"
where = "cores > 1"
[[table]]
name = "all"
figure = "t_full"
rows = ["kind"]
columns = "workload"
[[claim]]
source = "It takes 12"
see = "{value(time, kind = 'good')}"
agree = "value(time, kind = 'good') == 12 and value(cycles, kind = 'good') == 5"
"#;

/// Asserts the exit code of a command of `study`, and returns output and messages.
#[track_caller]
fn expect(sandbox: &Sandbox, code: i32, words: &[&str]) -> (String, String) {
    sandbox.expect(code, &[&["study"], words].concat())
}

fn study(sandbox: &Sandbox, words: &[&str]) -> (Option<i32>, String, String) {
    sandbox.answer(&[&["study"], words].concat())
}

/// The results as Markdown, with a chart next to them.
fn markdown_of(workspace: &Sandbox, store: &str) {
    let path = workspace.path("tiny.md");
    expect(workspace, 0, &["report", store, "--out", &path]);
    let text = files::read_text(&path).expect("the results");
    assert_parts(
        &text,
        &["| the source says |", "| It takes 12", "needs 100000 cores", "SHA-256 `"],
    );
    let (_, rest) = text.split_once("](").expect("a chart");
    let chart = workspace.path(rest.split_once(')').expect("its end").0);
    let drawing = files::read_text(&chart).expect("the chart");
    assert!(drawing.starts_with("<svg xmlns") && drawing.contains("class=\"grid\""), "{drawing}");
    // A later text of the study may say other things, but not measure others.
    let later = workspace.write("later.toml", STUDY.replace("A trivial workload", "Said anew"));
    expect(workspace, 0, &["report", store, "--study", &later, "--out", &path]);
    let text = files::read_text(&path).expect("the results");
    assert!(text.starts_with("# Said anew\n") && text.contains("of a later text"), "{text}");
    let other = STUDY.replace("command = [\"true\"]", "command = [\"false\"]");
    let other = workspace.write("other.toml", &other);
    let (_, said) = expect(workspace, 2, &["report", store, "--study", &other, "--out", &path]);
    assert!(said.contains("workload true is not what the run in the store measured"), "{said}");
}

#[test]
fn from_file_to_page() {
    let workspace = Sandbox::new();
    let file = workspace.write("tiny.toml", STUDY);
    let store = workspace.path("tiny.sqlite");
    let (reported, said) = expect(&workspace, 0, &["check", &file]);
    assert!(
        reported.contains("10 run, 10 skipped") && said.contains("needs 100000 cores"),
        "{said}"
    );
    let empty = said.lines().find_map(|line| line.split_once("empty: l1d_misses: "));
    let empty = empty.map(|(_, why)| why.to_owned());
    let (reported, said) = expect(&workspace, 1, &["run", &file, "--store", &store]);
    assert!(said.contains("8 of 24 trials failed"), "{said}");
    // Twelve trials per block, of which four of the shell's fail.
    assert!(reported.contains("24 of 24 trials done, 8 failed, 10 cells skipped"), "{reported}");
    for why in [
        "it printed nothing to stdout",
        "the figure time is NaN",
        "did not finish within 0.3 s",
        "exit code 3: broken",
    ] {
        assert!(
            reported.replace('\n', " ").contains(why) || said.contains(why),
            "{why}: {reported}{said}"
        );
    }
    let (_, said) = expect(&workspace, 2, &["resume", &store]);
    assert!(said.contains("no unfinished run of a study"), "{said}");
    let page = workspace.path("tiny.html");
    expect(&workspace, 0, &["report", &store, "--out", &page]);
    let html = files::read_text(&page).expect("the page is there");
    assert_parts(
        &html,
        &["A trivial workload", "It takes 12", "needs 100000 cores", "exit code 3"],
    );
    assert_parts(&html, &["not settled: 2 blocks, a verdict needs at least 6"]);
    assert!(html.contains("<dt>it needs 100000 cores"), "{html}");
    // What the check found to be empty is what the trials did not get.
    assert_eq!(html.contains("l1d_misses could not be measured"), empty.is_some(), "{empty:?}");
    assert!(empty.is_none_or(|why| html.contains(&why)), "{html}");
    let trials = workspace.read("tiny-tables/trials.csv");
    assert_eq!(trials.lines().count(), 25);
    let has_parquet = files::exists(&workspace.path("tiny-tables/samples.parquet"));
    assert_eq!(has_parquet, cfg!(feature = "parquet"));
    markdown_of(&workspace, &store);
    let (reported, _) = expect(&workspace, 0, &["diff", &store, &store, "--json"]);
    let same: serde_json::Value = serde_json::from_str(&reported).expect("JSON");
    assert!(same["both"].as_array().is_some_and(|rows| rows.len() > 4), "{reported}");
    let other = workspace.write("other.toml", STUDY.replace("name = \"tiny\"", "name = \"other\""));
    let (_, said) = expect(&workspace, 2, &["run", &other, "--store", &store]);
    assert!(said.contains("holds the study \"tiny\", not \"other\""), "{said}");
}

const BESIDE: &str = r#"
name = "beside"
repetitions = 1
[[factor]]
name = "cores"
levels = [1]
[[factor]]
name = "neighbour"
levels = ["none", "same-node"]
[[factor]]
name = "memory_node"
levels = ["any", "near"]
[[workload]]
name = "look"
# Loads that this one's parent has started too, and pages of memory that are bound to a node.
command = ["sh", "-c", '''
for status in $(grep -ls "PPid:.$PPID\$" /proc/[0-9]*/status); do
  tr '\0' ' ' < "$(dirname "$status")/cmdline"; echo
done | grep -c 'load [m]emory'
echo bound $(grep -c bind: /proc/self/numa_maps)''']
lasts = "100ms"
[[workload.figure]]
name = "loads"
regex = '^(\d+)'
[[workload.figure]]
name = "bound"
regex = 'bound (\d+)'
[[table]]
name = "loads"
figure = "loads"
rows = ["neighbour", "memory_node"]
[[table]]
name = "bound"
figure = "bound"
rows = ["neighbour", "memory_node"]
"#;

#[test]
fn neighbours_run_and_memory_is_bound() {
    let workspace = Sandbox::new();
    let file = workspace.write("beside.toml", BESIDE);
    let (reported, said) = expect(&workspace, 0, &["check", &file]);
    if !reported.contains(" 4 run,") {
        return skip(said);
    }
    let store = workspace.path("beside.sqlite");
    expect(&workspace, 0, &["run", &file, "--store", &store]);
    expect(&workspace, 0, &["export", &store, "--out", &workspace.path("tables")]);
    let values = |table: &str| -> Vec<(String, bool)> {
        let text =
            files::read_text(&workspace.path(&format!("tables/{table}.csv"))).expect("a table");
        text.lines()
            .skip(1)
            .map(|line| {
                let fields: Vec<&str> = line.split(',').collect();
                (format!("{} {}", fields[0], fields[1]), fields[2] != "0")
            })
            .collect()
    };
    let all = ["none any", "none near", "same-node any", "same-node near"].map(str::to_owned);
    let expected = |is: fn(&str) -> bool| -> Vec<(String, bool)> {
        all.iter().map(|name| (name.clone(), is(name))).collect()
    };
    assert_eq!(values("loads"), expected(|name| name.starts_with("same-node")));
    if !files::exists("/proc/self/numa_maps") {
        return skip("this kernel has no NUMA, nothing can be bound");
    }
    assert_eq!(values("bound"), expected(|name| name.ends_with("near")));
}

#[test]
fn what_is_wrong_is_reported_with_its_place() {
    let workspace = Sandbox::new();
    let file = workspace.write("bad.toml", STUDY.replace("repetitions", "repetition"));
    let (_, said) = expect(&workspace, 2, &["check", &file]);
    assert!(
        said.contains("bad.toml: line 4, column 1: the study has no key \"repetition\""),
        "{said}"
    );
    let file = workspace
        .write("cut.toml", STUDY.replace("probes", "constraints = ['cores > 5e9']\nprobes"));
    let (_, _, said) = study(&workspace, &["check", &file]);
    assert!(said.contains("line 6, column 16: the constraints exclude all 20"), "{said}");
    let (_, said) = expect(&workspace, 2, &["status", &workspace.path("none.sqlite")]);
    assert!(said.contains("there is no store at"), "{said}");
}

#[test]
fn the_studies_that_ship_and_the_one_of_the_page_are_read() {
    let workspace = Sandbox::new();
    let page = files::read_text(&format!("{ROOT}/docs/studies/study-file.md")).expect("the page");
    let (_, rest) = page.split_once("```toml\n").expect("a block");
    let mut files = vec![workspace.write("page.toml", rest.split_once("```").expect("its end").0)];
    let folder = format!("{ROOT}/studies");
    files.extend(
        files::list(&folder).expect("a folder").iter().map(|name| format!("{folder}/{name}")),
    );
    for file in &files {
        // One without a publication has no form of its source.
        let mut presets =
            if file.starts_with(&folder) { &["evening", "long", "source"][..] } else { &[] };
        if file.ends_with("pinning-pays.toml") {
            presets = &["evening", "long"];
        }
        let forms = presets.iter().map(|preset| vec!["--preset", preset]);
        for form in [Vec::new(), vec!["--quick"]].into_iter().chain(forms) {
            let words = [&["check", file.as_str()][..], &form].concat();
            let (code, reported, said) = study(&workspace, &words);
            let kvm = ["there is no /dev/kvm", "/dev/kvm opens, but"];
            if code == Some(2) && kvm.iter().any(|why| said.contains(why)) {
                skip(format!("{file} has nothing to run without KVM"));
                continue;
            }
            assert_eq!(code, Some(0), "{file}: {said}");
            assert!(reported.contains("trials"), "{reported}");
        }
    }
}

/// No test machine divides its caches; one that does is not asked.
#[test]
fn a_tunable_that_the_host_lacks_skips_its_cells_with_the_reason() {
    if files::exists("/sys/fs/resctrl/schemata") {
        return skip("this host has resctrl");
    }
    let workspace = Sandbox::new();
    let text = r#"
name = "ways"
title = "Cache ways"
repetitions = 1
time-limit = "5s"
[baseline]
ways = "as-is"
[[factor]]
name = "ways"
levels = ["as-is", "L3:0=f"]
tunable = "share"
[[workload]]
name = "true"
command = ["true"]
lasts = "10ms"
"#;
    let file = workspace.write("ways.toml", text);
    let (reported, said) = expect(&workspace, 0, &["check", &file]);
    let reported = reported.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(reported.contains("1 run, 1 skipped"), "{reported}");
    assert!(
        said.contains("resctrl: it is not mounted") || reported.contains("resctrl"),
        "{reported}{said}"
    );
}

const SLOW: &str = r#"
name = "slow"
repetitions = 1
share-housekeeping = true
constraints = ["variant == 'as-published' -> method == 'fracas'"]
[[factor]]
name = "method"
levels = ["lim", "fracas"]
[[factor]]
name = "variant"
levels = ["corrected", "as-published"]
[[factor]]
name = "speed"
levels = [0.5]
[[workload]]
name = "true"
command = ["true"]
lasts = "10ms"
"#;

#[test]
fn slow_cores_run_as_published_and_their_warnings_are_kept() {
    let workspace = Sandbox::new();
    let file = workspace.write("slow.toml", SLOW);
    let store = workspace.path("slow.sqlite");
    let (_, reported, said) = study(&workspace, &["check", &file]);
    if !reported.contains("3 run, 0 skipped") {
        return skip(said);
    }
    let (reported, _) = expect(&workspace, 0, &["run", &file, "--store", &store]);
    assert!(reported.contains("4 of 4 trials done, 0 failed"), "{reported}");
    let (_, reported, said) = study(&workspace, &["status", &store, "--json"]);
    let status: serde_json::Value = serde_json::from_str(&reported).expect("JSON");
    let findings = status["findings"].as_object().expect(&said);
    // The trial of lim, and its twin.
    assert!(
        findings.iter().any(|(text, trials)| {
            text.contains("lim checks each process") && trials.as_u64() == Some(2)
        }),
        "{reported}"
    );
    let page = workspace.path("slow.html");
    expect(&workspace, 0, &["report", &store, "--out", &page]);
    let html = files::read_text(&page).expect("the page is there");
    assert!(html.contains("in 2 trials: warning: slow cores"), "{html}");
}
