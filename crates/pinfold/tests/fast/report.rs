//! `report` on recorded stores: every number of the page is possible and agrees with the others,
//! the page fits eight sheets of paper, and what it offers to run runs.

use crate::common::{Checked as _, MINUTE_NS, ROOT, Sandbox, assert_parts, pinfold, run, skip};
use pinfold_host::process::{Spawn, Stdio, capture, find_program};
use pinfold_host::{Clock as _, SystemClock, files};
use roxmltree::{Document, Node, ParsingOptions};

/// `fixtures/stores`: recorded runs of the demo, by the version of the store.
const STORES: [&str; 2] = ["demo-version-3.sqlite", "demo-version-4.sqlite"];
/// A recorded run of a study with all kinds of plots and tables.
const STUDY: &str = "study-version-4.sqlite";

struct Made {
    sandbox: Sandbox,
    html: String,
}

impl Made {
    fn path(&self, name: &str) -> String {
        self.sandbox.path(name)
    }

    fn document(&self) -> Document<'_> {
        let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
        Document::parse_with_options(&self.html, options).expect("the page is well-formed")
    }
}

/// The page of a recorded store; a copy is opened, because opening adds what it lacks.
fn page(store: &str) -> Made {
    changed_page(store, "")
}

/// The page of the recorded study after a change of what was recorded.
fn study_page(change: &str) -> Made {
    let mut made = copied(STUDY, change);
    let (store, page) = (made.path("store"), made.path("page"));
    pinfold(["study", "report", &store, "--out", &page]).expect_success();
    made.html = made.sandbox.read("page");
    made
}

/// The same after a change of what was recorded.
fn changed_page(store: &str, change: &str) -> Made {
    let mut made = copied(store, change);
    pinfold(["report", "--store", &made.path("store"), "--out", &made.path("page")])
        .expect_success();
    made.html = made.sandbox.read("page");
    made
}

fn copied(store: &str, change: &str) -> Made {
    let made = Made { sandbox: Sandbox::new(), html: String::new() };
    let source = format!("{ROOT}/fixtures/stores/{store}");
    let bytes = files::read(&source).expect("the recorded store");
    made.sandbox.write("store", bytes);
    let copy = rusqlite::Connection::open(made.path("store")).expect("the store");
    copy.execute_batch(change).expect("it is changed");
    made
}

fn text(node: Node<'_, '_>) -> String {
    let parts = node.descendants().filter(Node::is_text).filter_map(|it| it.text());
    parts.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The cell of a row by its label; empty if the row has none.
fn cell(row: Node<'_, '_>, label: &str) -> String {
    let found = row.descendants().find(|it| it.attribute("data-label") == Some(label));
    found.map(text).unwrap_or_default()
}

fn rows<'a>(document: &'a Document<'a>, table: &str) -> Vec<Node<'a, 'a>> {
    let tables = document.descendants().filter(move |it| {
        it.attribute("class").is_some_and(|classes| classes.split(' ').any(|one| one == table))
    });
    let bodies = tables.flat_map(|it| it.descendants()).filter(|it| it.has_tag_name("tbody"));
    bodies.flat_map(|it| it.children()).filter(|it| it.has_tag_name("tr")).collect()
}

/// A number with its unit, as the page writes it: times in ns, percentages and factors as such.
fn number(shown: &str) -> Option<f64> {
    let end = shown.find(|letter: char| !letter.is_ascii_digit() && letter != '.' && letter != ',');
    let (digits, unit) = shown.split_at(end.unwrap_or(shown.len()));
    let value: f64 = digits.replace(',', "").parse().ok()?;
    let factor = match unit.trim_start().split(' ').next().unwrap_or("") {
        "µs" | "µs/s" => 1e3,
        "ms" => 1e6,
        "s" | "min" => 1e9,
        "k/s" => 1e3,
        "M/s" => 1e6,
        "G/s" => 1e9,
        _ => 1.0,
    };
    Some(value * factor)
}

/// Rounding to three digits may lift a sum over its bound by this much.
const ROUNDING: f64 = 1.01;

fn check_threads(document: &Document<'_>, is_recorded: bool) {
    let rows = rows(document, "roles");
    assert!(rows.len() >= 8, "{} rows of threads", rows.len());
    for row in rows {
        let of = |label: &str| cell(row, label);
        let all = text(row);
        if !is_recorded {
            for label in ["Running", "Waiting", "Time covered"] {
                assert_eq!(of(label), "not recorded", "{all}");
            }
        } else {
            let share = |label: &str| {
                assert!(of(label).ends_with('%'), "{label} in {all}");
                number(&of(label)).expect("a share")
            };
            assert!(share("Running") + share("Waiting") <= 100.0 * ROUNDING, "{all}");
            assert!(number(&of("Time covered")).is_some_and(|time| time > 0.0), "{all}");
        }
        for label in ["Threads", "Migrations", "Switches, voluntary", "Switches, forced"] {
            let shown = of(label);
            assert!(shown == "–" || number(&shown).is_some_and(|it| it >= 0.0), "{label}: {all}");
        }
    }
}

fn check_rankings(document: &Document<'_>) {
    let rows = rows(document, "ranking");
    assert!(rows.len() >= 12, "{} rows of rankings", rows.len());
    for row in rows {
        let all = text(row);
        assert!(number(&cell(row, "Blocks")).is_some_and(|it| it >= 1.0), "{all}");
        let (median, worst) = (number(&cell(row, "Median")), number(&cell(row, "Worst block")));
        if let (Some(median), Some(worst)) = (median, worst) {
            let is_rate = cell(row, "Median").contains("/s");
            let in_order = if is_rate { worst <= median } else { worst >= median };
            assert!(in_order, "{all}");
        }
        let ratio = cell(row, "Median of the ratios, 95 % interval");
        let factors: Vec<f64> = ratio.split(['×', ' ']).filter_map(number).collect();
        if let [ratio, low, high] = factors[..] {
            assert!(0.0 < low && low <= ratio && ratio <= high, "{all}");
        } else {
            assert!(ratio.is_empty(), "{all}");
        }
        let p = cell(row, "p (Holm)");
        let p = number(p.trim_start_matches(['<', ' ']));
        assert!(p.is_none_or(|p| (0.0..=1.0).contains(&p)), "{all}");
    }
}

#[test]
fn every_number_of_a_recorded_run_is_possible() {
    for store in STORES {
        let made = page(store);
        let document = made.document();
        check_threads(&document, store != STORES[0]);
        check_rankings(&document);
        // The same rules on the exact numbers, before they are rounded.
        assert!(!made.html.contains("numbers of this page"), "{store} contradicts itself");
    }
}

#[test]
fn a_counter_that_cannot_be_is_reported_on_the_page() {
    let made = changed_page(STORES[1], "UPDATE cell SET roles_ns = 1000");
    assert!(made.html.contains("ns of running and waiting"));
}

#[test]
fn the_page_says_nothing_of_disks_and_users() {
    let secret = "root=UUID=5ec2e7 isolcpus=1 user.name=alice";
    // The sessions differ, so that the pages report that the host changed.
    let change = format!(
        "UPDATE run SET origin = json_set(origin, '$.cmdline', '{secret}');
         INSERT INTO session (run, began_unix_s, origin)
         SELECT run, began_unix_s + 1, json_set(origin, '$.cmdline', '{secret}') FROM session LIMIT 1"
    );
    for made in [changed_page(STORES[1], &change), study_page(&change)] {
        let words = text(made.document().root());
        assert!(words.contains("isolcpus=1") && words.contains("kernel parameters: "), "{words}");
        assert!(!made.html.contains("5ec2e7") && !made.html.contains("alice"));
    }
}

/// The numbers of a text, each with its unit; what is no number is left out.
fn numbers(shown: &str) -> Vec<f64> {
    let separators = ['[', ']', '(', ')', '×', '±', ';'];
    let clean = shown.replace(separators, " ").replace('\u{a0}', " ").replace(", ", " ");
    let words: Vec<&str> = clean.split_whitespace().collect();
    words
        .iter()
        .enumerate()
        .filter_map(|(index, word)| {
            let unit = words.get(index + 1).copied().unwrap_or("");
            number(&format!("{word} {unit}"))
        })
        .collect()
}

/// The rows of a table of the study's page by its identifier, as texts.
fn table_of(document: &Document<'_>, id: &str) -> Vec<Vec<String>> {
    let place = document.descendants().find(|it| it.attribute("id") == Some(id));
    let place = place.unwrap_or_else(|| panic!("there is no {id}"));
    let bodies = place.descendants().filter(|it| it.has_tag_name("tbody"));
    let rows = bodies.flat_map(|it| it.children()).filter(|it| it.has_tag_name("tr"));
    rows.map(|row| row.children().filter(Node::is_element).map(text).collect()).collect()
}

/// A value and its interval in one cell: `1.20 [1.10, 1.30]`, `1.20× (1.10× to 1.30×)`.
fn check_interval(cell: &str) -> bool {
    let [value, low, high] = numbers(cell)[..] else { return false };
    assert!(low <= value * ROUNDING && value <= high * ROUNDING, "{cell}");
    assert!(!cell.contains('%') || high <= 100.0, "{cell}: a share of more than all");
    true
}

#[test]
fn every_number_of_a_recorded_study_is_possible() {
    let made = study_page("");
    let document = made.document();
    assert!(!made.html.contains("numbers of this page"), "it contradicts itself");
    assert!(!made.html.contains("NaN") && !made.html.contains("inf "));
    // Every cell of the study's own tables has a value in its interval, or is empty.
    for (id, least) in [("table-rates", 6), ("table-times", 8), ("table-shares", 24)] {
        let cells: Vec<String> = table_of(&document, id).into_iter().flatten().collect();
        let found = cells.iter().filter(|cell| cell.contains('[')).map(|cell| check_interval(cell));
        assert!(found.filter(|is_interval| *is_interval).count() >= least, "{id}: {cells:?}");
    }
    let all = table_of(&document, "data-evidence");
    assert!(all.len() >= 50, "{} rows", all.len());
    let mut verdicts = [0, 0, 0, 0];
    for row in &all {
        let [_, _, blocks, median, mean, ratio, p, verdict] = &row[..] else { panic!("{row:?}") };
        assert!(number(blocks).is_some_and(|it| it >= 1.0), "{row:?}");
        assert!(check_interval(median) || numbers(median).iter().all(|it| *it >= 0.0), "{row:?}");
        assert!(check_interval(mean) || numbers(mean).len() <= 3, "{row:?}");
        assert!(ratio.is_empty() || check_interval(ratio), "{row:?}");
        assert!(p.is_empty() || number(p.trim_start_matches("< ")).is_some_and(|p| p <= 1.0));
        let factors = numbers(ratio);
        let higher = median.contains("/s");
        let which =
            ["better", "same", "worse", "unknown"].iter().position(|it| verdict.starts_with(it));
        let Some(which) = which else {
            assert!(verdict.is_empty() && ratio.is_empty(), "{row:?}");
            continue;
        };
        verdicts[which] += 1;
        match (which, higher) {
            (0, true) | (2, false) => assert!(factors[1] >= 1.0, "{row:?}"),
            (0, false) | (2, true) => assert!(factors[2] <= 1.0, "{row:?}"),
            (_, _) => {}
        }
    }
    for row in table_of(&document, "data-noise") {
        assert!(check_interval(&row[3]) && number(&row[2]).is_some_and(|it| it >= 1.0), "{row:?}");
    }
    // The large figures, the sentence of the costs and the table say the same.
    let [better, same, worse, unknown] = verdicts;
    let (all, words) = (better + same + worse + unknown, text(document.root()));
    for said in [
        format!("{all} comparisons with the baseline (workers 1)"),
        format!("{better} better, {worse} worse"),
        format!("{better} better, {same} same, {worse} worse, {unknown} unknown"),
    ] {
        assert!(words.contains(&said), "{said} is not in {words}");
    }
    let costs = rows(&document, "costs");
    assert_eq!(costs.len(), worse.min(10));
}

#[test]
fn a_share_above_all_is_reported_on_the_page_of_a_study() {
    let made = study_page("UPDATE figure SET unit = 'share' WHERE probe = 'switches'");
    assert!(made.html.contains("numbers of this page: switches of"));
}

#[test]
fn labels_of_a_study_are_whole() {
    let made = study_page("");
    let document = made.document();
    let labels: Vec<String> =
        document.descendants().filter(|it| it.has_tag_name("text")).map(text).collect();
    assert!(labels.iter().all(|label| !label.contains('…')), "{labels:?}");
    let all = labels.join(" ").replace("- ", "-");
    assert_parts(&all, &["integer-work-in-threads", "integer-work-in-processes"]);
}

/// The command lines that a page offers: those in backquotes, and those that it calls commands.
fn offered_commands(document: &Document<'_>) -> Vec<String> {
    let code = document.descendants().filter(|node| node.has_tag_name("code")).map(text);
    let code = code.filter(|words| words.starts_with("pinfold ")).collect::<Vec<_>>();
    let prose = text(document.root());
    let quoted = prose.split('`').skip(1).step_by(2).filter(|words| words.starts_with("pinfold "));
    code.into_iter().chain(quoted.map(str::to_owned)).collect()
}

/// A command line that the program's own parser accepts: with `--help` after its options nothing
/// runs.
fn parses(line: &str) {
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let words = [&words[..end], &["--help"], &words[end..]].concat();
    let output = pinfold(words);
    assert!(output.status.success(), "{line}: {}", output.stderr_text());
}

#[test]
fn each_command_that_a_page_names_is_a_command() {
    assert!(
        !pinfold(["tune", "--no-such-option", "--help"]).status.success(),
        "options are checked"
    );
    for made in STORES.map(page).into_iter().chain([study_page("")]) {
        let document = made.document();
        let commands = offered_commands(&document);
        assert!(!commands.is_empty());
        commands.iter().for_each(|line| parses(line));
    }
}

#[test]
fn a_print_fits_eight_pages() {
    let Some(chromium) = find_program("chromium") else {
        return skip("chromium is not installed");
    };
    for made in [page(STORES[1]), study_page("")] {
        check_print(&made, &chromium);
    }
}

fn check_print(made: &Made, chromium: &str) {
    let html = made.sandbox.write("page.html", &made.html);
    let pdf = made.path("page.pdf");
    let arguments = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        &format!("--user-data-dir={}", made.path("profile")),
        &format!("--print-to-pdf={pdf}"),
        &format!("file://{html}"),
    ];
    let output = run(chromium, arguments);
    let bytes = files::read(&pdf).unwrap_or_else(|_| panic!("{}", output.stderr_text()));
    let text = String::from_utf8_lossy(&bytes);
    let pages = text.matches("/Type /Page").count() - text.matches("/Type /Pages").count();
    assert!((1..=8).contains(&pages), "{pages} pages");
}

/// The CPUs that the vCPU thread of a child of this process may use.
fn vcpu_mask(script: u32) -> Option<String> {
    let look = format!(
        "for q in $(cat /proc/{script}/task/*/children); do for t in /proc/$q/task/*; do \
         grep -q '^CPU 0/' $t/comm && sed -n 's/^Cpus_allowed_list:.//p' $t/status; done; done"
    );
    let output = capture("/bin/sh", ["-c", &look], MINUTE_NS).ok()?;
    output.stdout_text().lines().next().map(str::to_owned)
}

/// The start script of the page, run with a QEMU that has nothing to boot.
#[test]
fn what_is_offered_to_be_run_runs() {
    let Some(qemu) = find_program("qemu-system-x86_64") else {
        return skip("qemu-system-x86_64 is not installed");
    };
    // On the recorded machine the baseline won: with the names exchanged it is `low-latency`.
    let made = changed_page(
        STORES[1],
        "PRAGMA foreign_keys = OFF; UPDATE start SET candidate = candidate + 100 WHERE candidate < 2;
         UPDATE start SET candidate = 101 - candidate WHERE candidate >= 100",
    );
    let document = made.document();
    assert!(text(document.root()).contains("low-latency is the best placement tried"));
    let offered: Vec<String> = document
        .descendants()
        .filter(|it| it.has_tag_name("pre"))
        .map(|it| it.descendants().filter_map(|it| it.text()).next().unwrap_or("").to_owned())
        .collect();
    let xml = offered.iter().find(|it| it.trim_start().starts_with('<')).expect("libvirt XML");
    Document::parse(&format!("<domain>{xml}</domain>")).expect("elements of a domain");
    let script = offered.iter().find(|it| it.starts_with("#!/bin/sh")).expect("a start script");
    assert!(!script.contains("/dev/shm"), "it names files of the run, which are gone");
    let file = made.sandbox.write("start.sh", script);
    let mut child = Spawn::new("/bin/sh")
        .args([&file, &qemu])
        .args(["-accel", "tcg,thread=multi", "-display", "none", "-nodefaults", "-no-shutdown"])
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .die_with_parent(true)
        .start()
        .expect("sh runs");
    let end = SystemClock.now_ns() + MINUTE_NS;
    let mut seen = None;
    while seen.as_deref() != Some("1") && SystemClock.now_ns() < end {
        SystemClock.sleep_ns(100_000_000);
        seen = vcpu_mask(child.pid().0);
    }
    child.terminate().expect("it is ours");
    child.wait_for(&SystemClock, MINUTE_NS).expect("it ends");
    assert_eq!(seen.as_deref(), Some("1"), "the vCPU is pinned as the page says");
}
