//! The page as a whole: well-formed, self-contained, escaped, small enough, in order,
//! and without numbers that are none.

use std::sync::LazyLock;

use pinfold_model::{Accelerator, Finding, LoadState, Metric};
use pinfold_report::{
    CandidateKind, Curve, Distribution, Page, Quantile, Verdict, contradictions, render, summary,
};

/// What a page of a realistic run may weigh, in bytes.
const BUDGET: usize = 500_000;
/// The demo machine.
const TWO_PUS: [u32; 5] = [1, 1, 1, 2, 1];

fn html(page: &Page) -> String {
    render(page).unwrap()
}

/// All texts of the summary.
fn summary_text(page: &Page) -> String {
    let summary = summary(page);
    let rows = summary.rows.iter().map(|row| row.join("  "));
    let texts = summary.banner.into_iter().chain([summary.answer]).chain(summary.caption);
    texts.chain(rows).chain(summary.notes).collect::<Vec<_>>().join("\n")
}

/// The page of the demo machine; made once, because its samples take a while.
fn two_pus() -> Page {
    static PAGE: LazyLock<Page> = LazyLock::new(|| crate::demo::page(TWO_PUS, 1));
    PAGE.clone()
}

/// Parses the page as XML: the templates close every element.
fn parse(html: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(html, options).unwrap_or_else(|error| {
        let line = error.pos().row as usize;
        panic!("{error}: {}", html.lines().nth(line - 1).unwrap_or(""))
    })
}

/// All text of a node.
fn text(node: roxmltree::Node<'_, '_>) -> String {
    node.descendants().filter(|it| it.is_text()).filter_map(|it| it.text()).collect()
}

/// A page with nothing measured on it.
fn empty() -> Page {
    let mut page = two_pus();
    page.answer.winner = None;
    page.distributions.clear();
    page.blocks.clear();
    page.rankings.clear();
    page.roles.clear();
    page.emitted.clear();
    page.failed_starts.clear();
    page.findings.clear();
    page
}

#[test]
fn pages_of_all_sizes_are_well_formed_and_within_the_budget() {
    for (shape, vcpus) in [
        ([1, 1, 1, 1, 1], 1),
        (TWO_PUS, 1),
        ([1, 1, 1, 4, 2], 3),
        ([1, 2, 2, 4, 1], 8),
        ([2, 1, 2, 8, 2], 12),
        ([2, 4, 2, 8, 2], 32),
    ] {
        let html = html(&crate::demo::page(shape, vcpus));
        parse(&html);
        assert!(html.len() < BUDGET, "{shape:?}: {} bytes", html.len());
    }
}

#[test]
fn sections_come_in_order_and_the_contents_lead_to_them() {
    let html = html(&two_pus());
    let document = parse(&html);
    let headings: Vec<String> =
        document.descendants().filter(|node| node.has_tag_name("h2")).map(text).collect();
    assert_eq!(
        headings,
        [
            "Each start of the comparison",
            "Ranking",
            "What it costs",
            "Placements",
            "The winner, ready to use",
            "Limits and findings",
            "What was asked",
            "All charts",
            "All other rankings",
            "Threads of the VM, as the host’s kernel counts them",
            "Where every number comes from",
            "How to read this page",
        ]
    );
    assert_eq!(document.descendants().filter(|node| node.has_tag_name("h1")).count(), 1);
    let ids: Vec<&str> = document.descendants().filter_map(|it| it.attribute("id")).collect();
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(ids.len(), unique.len(), "ids are unique");
    let mut links = 0;
    for link in document.descendants().filter_map(|node| node.attribute("href")) {
        assert!(ids.contains(&link.trim_start_matches('#')), "{link} leads nowhere");
        links += 1;
    }
    assert_eq!(links, 13);
}

#[test]
fn nothing_is_loaded_and_nothing_runs() {
    let html = html(&crate::demo::page([2, 1, 2, 8, 2], 12));
    let document = parse(&html);
    for name in ["script", "link", "img", "iframe", "object", "embed", "form", "base", "use"] {
        let found = document.descendants().any(|node| node.has_tag_name(name));
        assert!(!found, "<{name}> on the page");
    }
    for text in ["http://", "https://", "url(", "@import", "javascript:"] {
        assert!(!html.contains(text), "{text} on the page");
    }
    let handlers = document
        .descendants()
        .flat_map(|node| node.attributes())
        .filter(|attribute| attribute.name().starts_with("on") || attribute.name() == "src");
    assert_eq!(handlers.count(), 0);
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn every_chart_reports_its_content_in_words() {
    let html = html(&two_pus());
    let document = parse(&html);
    let mut charts = 0;
    for svg in document.descendants().filter(|node| node.has_tag_name("svg")) {
        if svg.attribute("aria-hidden") == Some("true") {
            continue;
        }
        charts += 1;
        assert_eq!(svg.attribute("role"), Some("img"));
        for words in ["title", "desc"]
            .map(|name: &str| svg.children().find(|it| it.has_tag_name(name)).map(text))
        {
            assert!(words.is_some_and(|words| !words.trim().is_empty()));
        }
    }
    // 4 percentile plots, 4 dot plots, 20 tables with 5 comparisons and a head each.
    assert_eq!(charts, 4 + 4 + 20 * 6);
}

const HOSTILE: &str = "<script>alert(1)</script>\"'&]]>--><svg onload=x>\u{1b}[2J\u{202e}\u{0}";

/// Writes the hostile text wherever a plan or a question holds a text.
fn poison_question(page: &mut Page) {
    page.vm = hostile();
    page.banner = Some(hostile());
    page.asked.command = hostile();
    page.asked.goal = hostile();
    page.asked.guest = hostile();
    page.asked.more.push((hostile(), hostile()));
    page.topology.model = Some(hostile());
    for candidate in &mut page.candidates {
        candidate.name = hostile();
        candidate.plan.housekeeping_reason = hostile();
        candidate.plan.findings.push(Finding::note(HOSTILE, HOSTILE).with_hint(HOSTILE));
        for thread in &mut candidate.plan.vnodes[0].threads {
            thread.reason = hostile();
            if thread.role == pinfold_model::Role::Emulator {
                thread.role = pinfold_model::Role::Iothread(hostile());
            }
        }
    }
}

fn hostile() -> String {
    HOSTILE.to_owned()
}

/// The same for results and their origin.
fn poison_results(page: &mut Page) {
    for ranking in &mut page.rankings {
        ranking.statistic = hostile();
        for comparison in ranking.rows.iter_mut().filter_map(|row| row.comparison.as_mut()) {
            comparison.verdict = Verdict::Unknown(hostile());
        }
    }
    for blocks in &mut page.blocks {
        blocks.statistic = hostile();
    }
    for emitted in &mut page.emitted {
        emitted.title = hostile();
        emitted.usage = hostile();
        emitted.text = hostile();
    }
    page.failed_starts[0].why = hostile();
    page.findings.push(Finding::problem(HOSTILE, HOSTILE).with_hint(HOSTILE));
    page.provenance.store = hostile();
    page.provenance.repeat = hostile();
    page.provenance.date = hostile();
    page.provenance.origin.cmdline = hostile();
    page.provenance.origin.pinfold = hostile();
    page.provenance.origin.guest_kernel = Some(hostile());
}

#[test]
fn hostile_texts_stay_texts() {
    let mut page = two_pus();
    poison_question(&mut page);
    poison_results(&mut page);
    let html = html(&page);
    let document = parse(&html);
    assert!(!html.contains("<script"));
    assert!(!document.descendants().any(|node| node.has_attribute("onload")));
    let summary = summary_text(&page);
    for text in [&html, &summary] {
        assert!(!text.contains(['\u{0}', '\u{1b}', '\u{202e}']));
    }
    let pre = document.descendants().find(|node| node.has_tag_name("pre")).unwrap();
    assert!(text(pre).starts_with("<script>alert(1)</script>\"'&]]>--><svg onload=x>"));
}

#[test]
fn numbers_that_are_none_never_show() {
    check(&empty());
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e300, 1e-300] {
        let mut page = two_pus();
        for row in page.rankings.iter_mut().flat_map(|ranking| &mut ranking.rows) {
            (row.median, row.worst) = (Some(odd), Some(odd));
            if let Some(comparison) = &mut row.comparison {
                (comparison.ratio, comparison.low, comparison.high) = (odd, odd, odd);
                comparison.p_holm = Some(odd);
            }
        }
        for row in page.blocks.iter_mut().flat_map(|blocks| &mut blocks.rows) {
            row.values = vec![odd];
        }
        for curve in page.distributions.iter_mut().flat_map(|it| &mut it.curves) {
            curve.points.push(Quantile { share: odd, value: odd });
            curve.max = Some(odd);
        }
        for row in page.roles.iter_mut().flat_map(|table| &mut table.rows) {
            row.observed_ns = Some(0);
            row.stats.threads = 0;
        }
        page.asked.max_gap_ns = Some(odd);
        check(&page);
    }
}

fn check(page: &Page) {
    let html = html(page);
    let document = parse(&html);
    let body = document.descendants().find(|node| node.has_tag_name("body")).unwrap();
    let mut shown = text(body);
    shown.push_str(&summary_text(page));
    for attribute in body.descendants().flat_map(|node| node.attributes()) {
        shown.push_str(&format!(" {}", attribute.value()));
    }
    for word in shown.split(|letter: char| !letter.is_alphanumeric()) {
        assert!(!["NaN", "nan", "inf", "Infinity"].contains(&word), "{word} is shown");
    }
}

#[test]
fn one_sample_is_enough_for_a_chart() {
    let mut page = empty();
    let candidate = page.baseline().unwrap();
    let curves = vec![Curve::from_samples(candidate, &[1_500.0])];
    let (metric, load) = (Metric::Wakeup, LoadState::BOTH);
    page.distributions.push(Distribution { metric, load, curves });
    let html = html(&page);
    parse(&html);
    assert!(html.contains("longest 1.50 µs of 1 samples"));
}

#[test]
fn ids_that_do_not_exist_are_named_not_followed() {
    let mut page = two_pus();
    page.candidates.clear();
    let html = html(&page);
    parse(&html);
    assert!(html.contains("candidate 2"));
    assert!(summary_text(&page).contains("candidate 2"));
}

#[test]
fn the_sentence_claims_what_the_verdict_says() {
    fn check(page: &Page, words: &[&str]) {
        let summary = summary_text(page);
        for word in words {
            assert!(summary.contains(word), "{word:?} not in {summary}");
        }
    }

    check(
        &winner_is(Verdict::Better),
        &[
            "low-latency is the best placement tried on this machine: its worst spin-gap is ",
            "× shorter than under the baseline (none)",
            "95 % interval ",
            "p = 0.023",
            "8 VM starts each",
            "host loaded, guest loaded",
            "measured under TCG (thread=multi)",
        ],
    );
    check(
        &winner_is(Verdict::Same),
        &["low-latency ranks first, but does the same as the baseline (none)"],
    );
    check(&winner_is(Verdict::Worse), &["but is worse than the baseline (none)"]);
    check(
        &winner_is(Verdict::Unknown("3 starts, 8 needed".to_owned())),
        &[
            "ranks first, but this run does not show whether it beats the baseline (none)",
            "3 starts, 8 needed",
        ],
    );
}

fn winner_is(verdict: Verdict) -> Page {
    let mut page = two_pus();
    let winner = page.answer.winner;
    for row in page.rankings.iter_mut().flat_map(|ranking| &mut ranking.rows) {
        if let Some(comparison) = row.comparison.as_mut().filter(|_| Some(row.candidate) == winner)
        {
            comparison.verdict = verdict.clone();
        }
    }
    page
}

#[test]
fn without_a_winner_the_sentence_says_why() {
    fn check(verdict: Verdict, keeps_limit: Option<bool>, words: &str) {
        let mut page = two_pus();
        page.answer.winner = None;
        for candidate in &mut page.candidates {
            candidate.keeps_limit = keeps_limit;
        }
        for row in page.rankings.iter_mut().flat_map(|ranking| &mut ranking.rows) {
            if let Some(comparison) = row.comparison.as_mut().filter(|it| it.p_holm.is_some()) {
                comparison.verdict = verdict.clone();
            }
        }
        let summary = summary_text(&page);
        assert!(summary.contains(words), "{words:?} not in {summary}");
    }

    // All confirmed layouts get the same verdict; the screened one keeps its own, unknown.
    check(
        Verdict::Worse,
        None,
        "No placement tried is better than the baseline (none) on this machine",
    );
    check(
        Verdict::Same,
        None,
        "No placement tried is better than the baseline (none) on this machine",
    );
    check(
        Verdict::Unknown("3 starts, 8 needed".to_owned()),
        None,
        "This run does not show whether any placement beats the baseline (none) – 3 starts, 8 needed",
    );
    check(Verdict::Better, Some(false), "meets the goal – low-latency makes the worst spin-gap");
    check(
        Verdict::Better,
        Some(false),
        "shorter than the baseline (none) does, but breaks the limit",
    );
    check(Verdict::Better, None, "shorter than the baseline (none) does, but was not chosen");
    let mut page = two_pus();
    page.answer.winner = page.baseline();
    assert!(summary_text(&page).contains("No placement tried meets the goal"));
    assert!(summary_text(&empty()).contains("No placement was compared"));
}

#[test]
fn what_the_page_does_not_say_follows_the_run() {
    fn check(change: &dyn Fn(&mut Page), words: &str) {
        let mut page = two_pus();
        change(&mut page);
        assert!(html(&page).contains(words), "{words:?}");
    }

    check(&|_| (), "do not carry over to KVM or bare metal");
    check(&|_| (), "The host is itself a virtual machine (KVM)");
    check(
        &|_| (),
        "Dropped after 3 blocks of the race, without a significance test: max-performance",
    );
    check(&|_| (), "Isolation was limited to tasks that Pinfold itself had started");
    check(&|_| (), "1 start failed and gave no numbers.");
    check(&|page| page.failed_starts.clear(), "No failed starts.");
    check(&|page| page.provenance.origin.accelerator = Accelerator::Kvm, "ran under KVM on this");
    check(
        &|page| page.rankings.clear(),
        "No A/A pair was measured, so the noise floor of this run is not known.",
    );
    check(
        &|page| {
            let repeat = |page: &Page, id| {
                page.candidate(id).is_some_and(|it| it.kind == CandidateKind::Repeat)
            };
            let before = page.clone();
            for row in page.rankings.iter_mut().flat_map(|ranking| &mut ranking.rows) {
                if let Some(it) = row.comparison.as_mut().filter(|_| repeat(&before, row.candidate))
                {
                    it.verdict = Verdict::Worse;
                }
            }
        },
        "do not rely on small differences on this page",
    );
}

#[test]
fn the_summary_is_a_plain_table() {
    let summary = summary(&two_pus());
    assert_eq!(
        summary.banner.as_deref(),
        Some("[EXAMPLE DATA: made up, nothing here was measured]")
    );
    assert_eq!((summary.rows.len(), summary.rows[0][0].as_str()), (7, "placement"));
    assert_eq!(
        (summary.rows[1][0].as_str(), summary.rows[1][6].as_str()),
        ("low-latency", "better")
    );
    let repeat = "To repeat: pinfold tune --goal latency --max-gap 2ms --seed 20261104 --demo";
    assert_eq!(summary.notes.last().map(String::as_str), Some(repeat));
}

#[test]
fn the_answer_comes_first_and_all_other_charts_are_folded() {
    let html = html(&two_pus());
    let document = parse(&html);
    let charts = document.descendants().filter(|node| node.attribute("role") == Some("img"));
    let open: Vec<String> = charts
        .filter(|chart| !chart.ancestors().any(|it| it.has_tag_name("details")))
        .map(|chart| section(&chart))
        .collect();
    assert_eq!(open.iter().filter(|it| *it == "comparison").count(), 1, "one chart convinces");
    assert!(open.iter().all(|it| it == "comparison" || it == "ranking"), "{open:?}");
    let folded = document.descendants().filter(|node| node.has_tag_name("details"));
    assert!(folded.filter(|node| node.has_attribute("open")).count() == 0, "all start folded");
}

fn section(node: &roxmltree::Node<'_, '_>) -> String {
    let found = node.ancestors().find(|it| it.has_tag_name("section"));
    found.and_then(|it| it.attribute("id")).unwrap_or("").to_owned()
}

#[test]
fn labels_are_whole_and_the_equal_placements_stand_in_the_legend() {
    let mut page = two_pus();
    let winner = page.answer.winner.unwrap();
    let long = "my-layout-for-the-real-time-guest-number-seventeen";
    page.candidates[winner.0].name = long.to_owned();
    page.candidates[winner.0].alike = vec!["balanced".to_owned(), "compact-cores".to_owned()];
    let html = html(&page);
    let document = parse(&html);
    let labels: Vec<String> = document
        .descendants()
        .filter(|it| matches!(it.attribute("class"), Some("label" | "row-label")))
        .map(text)
        .collect();
    assert!(labels.iter().any(|label| label == long), "{labels:?}");
    assert!(labels.iter().all(|label| !label.contains(['…', '='])), "{labels:?}");
    let legend = document.descendants().find(|it| it.attribute("class") == Some("legend"));
    assert!(text(legend.unwrap()).contains("= balanced, compact-cores"));
}

#[test]
fn what_it_costs_is_on_the_first_screen() {
    let mut page = two_pus();
    let winner = page.answer.winner;
    let rate = page.rankings.iter_mut().find(|it| {
        it.metric == Metric::ComputeRate && it.load == LoadState { host: true, guest: false }
    });
    for row in rate.unwrap().rows.iter_mut().filter(|row| Some(row.candidate) == winner) {
        let comparison = row.comparison.as_mut().unwrap();
        (comparison.ratio, comparison.low, comparison.high) = (0.2, 0.1, 0.25);
        comparison.verdict = Verdict::Worse;
    }
    let with_cost = html(&page);
    let header = with_cost.split("</header>").next().unwrap().to_owned();
    for words in ["worst cost: compute rate", "5.00× lower", "▼ worse; host loaded, guest idle"]
    {
        assert!(header.contains(words), "{words:?} not in {header}");
    }
    for ranking in &mut page.rankings {
        for comparison in ranking.rows.iter_mut().filter_map(|row| row.comparison.as_mut()) {
            comparison.verdict = Verdict::Same;
        }
    }
    assert!(html(&page).split("</header>").next().unwrap().contains("none shown"));
}

#[test]
fn rates_of_threads_are_shares_or_not_recorded() {
    let mut page = two_pus();
    assert!(shares(&page).iter().all(|it| it.ends_with('%') || it.ends_with('s')));
    for row in page.roles.iter_mut().flat_map(|table| &mut table.rows) {
        row.observed_ns = None;
    }
    assert!(shares(&page).iter().all(|it| it == "not recorded"));
    assert_eq!(contradictions(&page), Vec::<String>::new());
}

fn shares(page: &Page) -> Vec<String> {
    let html = html(page);
    let document = parse(&html);
    let cells = document.descendants().filter(|it| {
        matches!(it.attribute("data-label"), Some("Running" | "Waiting" | "Time covered"))
    });
    cells.map(text).collect()
}

#[test]
fn each_number_that_cannot_be_is_found() {
    fn check(change: &dyn Fn(&mut Page), words: &str) {
        let mut page = two_pus();
        assert_eq!(contradictions(&page), Vec::<String>::new());
        change(&mut page);
        let found = contradictions(&page);
        assert!(found.iter().any(|it| it.contains(words)), "{words:?} not in {found:?}");
    }

    check(&|page| page.roles[0].rows[0].observed_ns = Some(1), "running and waiting");
    check(&|page| page.rankings[0].rows[0].blocks += 1, "marks");
    check(&|page| page.rankings[0].rows[0].median = Some(1e99), "a median of");
    check(&|page| page.rankings[0].rows[0].worst = Some(0.0), "a worst block of");
    check(&|page| page.distributions[0].curves[0].max = Some(0.0), "above the largest");
    check(&|page| page.distributions[0].curves[0].points.reverse(), "of a smaller share");
    check(&|page| comparison(page, &|it| it.ratio = 99.0), "outside its interval");
    check(&|page| comparison(page, &|it| it.p_holm = Some(1.5)), "a probability of");
    check(
        &|page| {
            comparison(page, &|it| {
                (it.low, it.ratio, it.high, it.verdict) = (0.5, 1.0, 2.0, Verdict::Better);
            });
        },
        "Better with the interval",
    );
}

fn comparison(page: &mut Page, change: &dyn Fn(&mut pinfold_report::Comparison)) {
    let rows = &mut page.rankings[0].rows;
    rows.iter_mut().filter_map(|row| row.comparison.as_mut()).for_each(change);
}
