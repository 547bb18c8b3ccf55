//! Tests of the page of studies.

use pinfold_model::{PlotKind, Unit};

use super::*;
use crate::page::{Comparison, Verdict};

fn picture(name: &str, kind: PlotKind) -> Picture {
    Picture {
        name: name.to_owned(),
        title: "Speed <of> all".to_owned(),
        kind,
        scale: Scale::Ratio("ratio to the baseline"),
        x: "speed".to_owned(),
        x_unit: None,
        along: vec!["0.25".to_owned(), "0.5".to_owned()],
        names: vec!["stall".to_owned(), "quota & more".to_owned()],
        log: (false, false),
        mark: Some(("half".to_owned(), 0.3)),
        joined: false,
        brackets: Brackets::Intervals,
        only: String::new(),
        panels: vec![Panel {
            title: "cpu".to_owned(),
            lines: vec![line("stall", 0.0), line("quota & more", 0.1)],
            ideal: vec![("0.25".to_owned(), 0.25), ("0.5".to_owned(), 0.5)],
            source: Vec::new(),
        }],
        missing: Vec::new(),
    }
}

fn line(name: &str, up: f64) -> Line {
    Line { name: name.to_owned(), spots: vec![spot("0.25", 0.25 + up), spot("0.5", 0.5 + up)] }
}

fn spot(x: &str, value: f64) -> ChartPoint {
    ChartPoint { x: x.to_owned(), value, range: Some((value - 0.01, value + 0.02)) }
}

fn percentiles() -> Picture {
    Picture {
        scale: Scale::Of(Unit::Nanoseconds),
        along: Vec::new(),
        names: vec!["stall".to_owned()],
        log: (false, true),
        mark: None,
        panels: vec![Panel {
            title: "gaps".to_owned(),
            lines: vec![Line {
                name: "stall".to_owned(),
                spots: [(0.0, 1e3), (0.9, 2e3), (0.99, 3e4), (0.999, 5e6)]
                    .map(|(share, value)| ChartPoint { x: share.to_string(), value, range: None })
                    .to_vec(),
            }],
            ideal: Vec::new(),
            source: Vec::new(),
        }],
        ..picture("percentiles", PlotKind::Percentiles)
    }
}

fn against(ratio: f64, verdict: Verdict) -> Comparison {
    Comparison { ratio, low: ratio * 0.99, high: ratio * 1.01, p_holm: Some(0.016), verdict }
}

fn measure(cell: &str, median: f64, comparison: Option<Comparison>) -> MeasuredFigure {
    MeasuredFigure {
        cell: cell.to_owned(),
        figure: "rate".to_owned(),
        unit: Unit::PerSecond,
        blocks: 8,
        median,
        interval: Some((median * 0.9, median * 1.1)),
        summary: Some((median, Spread::Deviation(1.0))),
        comparison,
    }
}

fn claim() -> ClaimRow {
    ClaimRow {
        is_own: false,
        source: "It \"is\" so".to_owned(),
        place: "Fig. 5".to_owned(),
        see: "0.5".to_owned(),
        is_measured: true,
        agree: Agreement::NotSettled("no cell was measured".to_owned()),
        rule: "ratio(rate) < 1".to_owned(),
    }
}

fn page() -> StudyPage {
    StudyPage {
        title: "How true?".to_owned(),
        question: "Is it?".to_owned(),
        source: "A paper".to_owned(),
        baseline: Some("speed 1".to_owned()),
        banner: Some("quick form".to_owned()),
        date: "2026-11-22".to_owned(),
        version: "0.1.0".to_owned(),
        claims: vec![claim()],
        pictures: vec![
            picture("figure-5", PlotKind::Lines),
            picture("figure-6", PlotKind::Bars),
            percentiles(),
            Picture {
                panels: Vec::new(),
                title: "An empty one".to_owned(),
                missing: vec!["too small".to_owned(), "no <SMT>".to_owned()],
                ..picture("empty", PlotKind::Lines)
            },
        ],
        tables: vec![PageTable {
            name: "errors".to_owned(),
            title: "Errors".to_owned(),
            note: "in points".to_owned(),
            missing: Vec::new(),
            names: 1,
            header: vec!["method".to_owned(), "cpu".to_owned()],
            rows: vec![vec!["<script>".to_owned(), "0.1".to_owned()]],
        }],
        measured: vec![
            measure("speed 1", 100.0, None),
            measure("speed 0.5", 40.0, Some(against(0.4, Verdict::Worse))),
            measure("speed 0.9", 95.0, Some(against(0.95, Verdict::Worse))),
            measure("quota & more", 101.0, Some(against(1.01, Verdict::Same))),
        ],
        summary_name: "mean".to_owned(),
        pairs: vec![AaPair {
            cell: "speed 1".to_owned(),
            figure: "rate".to_owned(),
            unit: Unit::PerSecond,
            blocks: 8,
            comparison: against(0.99, Verdict::Same),
        }],
        no_pairs: String::new(),
        evidence: Vec::new(),
        trials: (36, 2),
        skipped_cells: 1,
        executed_by: vec!["native".to_owned()],
        lab: vec![("study: a case".to_owned(), "guests boot".to_owned())],
        skipped: vec![("too small".to_owned(), "8 cores".to_owned())],
        failed: vec![("cell".to_owned(), "exit code 1".to_owned())],
        findings: vec!["the kernel changed".to_owned()],
        how: vec![("blocks".to_owned(), "3".to_owned())],
        repeat: "pinfold study run x.toml".to_owned(),
        file: "name = \"x\"\n".to_owned(),
    }
}

#[test]
fn the_page_is_one_file_of_well_formed_markup() {
    let html = render_study(&page()).unwrap();
    let body = html.split_once("<html").map(|(_, rest)| format!("<html{rest}")).unwrap();
    let parsed = roxmltree::Document::parse(&body).unwrap();
    assert_eq!(parsed.descendants().filter(|node| node.has_tag_name("script")).count(), 0);
    assert!(!html.contains("http://") && !html.contains("https://"));
    for word in [
        "quota &amp; more",
        ">99.9 %</text>",
        ">1 ms</text>",
        "Not measured, with the reason",
        "8 cores Without numbers: An empty one.",
        "this run does not settle the source&#39;s statement",
        "0 better, 2 worse",
        "3 comparisons with the baseline (speed 1)",
        "2.50× lower",
        "0.990× to 0.990×",
        "&lt;script&gt;",
        "pinfold study run x.toml",
        "too small",
        "exit code 1",
        "the kernel changed",
        "not settled: no cell was measured",
        "ratio(rate) &lt; 1",
    ] {
        assert!(
            html.contains(word)
                || html.contains(
                    &word
                        .replace("&amp;", "&#38;")
                        .replace("&lt;", "&#60;")
                        .replace("&gt;", "&#62;")
                ),
            "{word}"
        );
    }
    // Four bars, four whiskers of three strokes each in either chart.
    let class = |wanted: &str| {
        parsed.descendants().filter(|node| node.attribute("class") == Some(wanted)).count()
    };
    assert_eq!(class("leader"), 2 * 4 * 3);
    // And the two keys of the legend.
    assert_eq!(parsed.descendants().filter(|n| n.has_tag_name("rect")).count(), 6);
}

#[test]
fn the_answer_comes_first_and_charts_that_do_not_decide_are_folded() {
    let html = render_study(&page()).unwrap();
    let order = ["<h1 ", "worst cost", "chart-figure-5\">\n", "id=\"cost\"", "id=\"table-errors\""];
    let order = order.map(|what| place(&html, what));
    assert!(order.is_sorted(), "{order:?}");
    for folded in ["figure-6", "percentiles"] {
        place(&html, &format!("<details class=\"fold\" id=\"chart-{folded}\">"));
    }
    assert!(place(&html, "id=\"charts\"") > order[4]);
    // A chart without numbers has no frame: it stands with its reasons.
    assert!(!html.contains("chart-empty"));
    assert!(place(&html, "no &#60;SMT&#62;") > place(&html, "id=\"missing\""));
}

fn place(html: &str, what: &str) -> usize {
    html.find(what).unwrap_or_else(|| panic!("{what} is not there"))
}

#[test]
fn the_sentence_says_what_the_statements_or_comparisons_say() {
    fn check(claims: Vec<Agreement>, words: &str) {
        let page = StudyPage { claims: claims.into_iter().map(claim).collect(), ..page() };
        assert_eq!(answer::sentence(&page), words);
    }

    fn claim(agree: Agreement) -> ClaimRow {
        ClaimRow { agree, ..page().claims[0].clone() }
    }

    check(
        vec![Agreement::Agrees, Agreement::Agrees],
        "the results agree with all 2 statements of the source",
    );
    check(vec![Agreement::Agrees], "the results agree with the source's statement");
    check(vec![Agreement::Differs], "the results differ from the source's statement");
    let mixed = vec![Agreement::Agrees, Agreement::Differs, open(), open()];
    check(
        mixed,
        "the results agree with 1 of 4 statements of the source; 1 differs, 2 not settled",
    );
    let absent = ClaimRow { is_measured: false, ..claim(open()) };
    let page_of = StudyPage { claims: vec![claim(Agreement::Agrees), absent], ..page() };
    let words = "the results agree with 1 of 2 statements of the source; 1 not measured here";
    assert_eq!(answer::sentence(&page_of), words);
    check(Vec::new(), "of 3 comparisons with the baseline 0 are better, 2 worse");
    let mut page = StudyPage { claims: Vec::new(), ..page() };
    page.measured.truncate(1);
    let once = "measured once: comparisons with the baseline need several blocks";
    assert_eq!(answer::sentence(&page), once);
    let pictures = std::mem::take(&mut page.pictures);
    assert_eq!(answer::sentence(&page), "measured, without a baseline to compare with");
    page.pictures = pictures;
    page.measured.push(measure("speed 1.0", 99.0, Some(against(1.0, Verdict::Same))));
    assert_eq!(
        answer::sentence(&page),
        "none of 1 comparisons with the baseline shows a difference"
    );
    let unknown = Verdict::Unknown("3 starts, 8 needed".to_owned());
    page.measured.push(measure("speed 1.0", 99.0, Some(against(1.0, unknown))));
    assert_eq!(
        answer::sentence(&page),
        "of 2 comparisons with the baseline 1 show no difference, 1 are not settled (3 starts, 8 \
         needed)"
    );
}

fn open() -> Agreement {
    Agreement::NotSettled("no cell".to_owned())
}

#[test]
fn numbers_that_cannot_be_are_found() {
    check(|_| {}, &[]);
    check(|page| page.measured[0].median = 130.0, &["a median of 130 outside 90 to 110"]);
    check(|page| page.measured[0].median = -1.0, &["a value of -1"]);
    check(|page| page.measured[0].median = f64::NAN, &["a value of NaN"]);
    check(|page| page.measured[0].blocks = 0, &["no block"]);
    check(
        |page: &mut StudyPage| {
            page.measured[0].unit = Unit::Share;
            page.measured[0].median = 1.2;
        },
        &["a value of 1.2 (share)"],
    );
    check(
        |page: &mut StudyPage| {
            page.measured[0].summary = Some((99.0, Spread::Deviation(-1.0)));
        },
        &["a deviation of -1"],
    );
    check(
        |page: &mut StudyPage| {
            page.measured[1].comparison = Some(against(0.4, Verdict::Better));
        },
        &["Better with the interval"],
    );
    check(|page| page.pairs[0].comparison.ratio = 2.0, &["A/A pair"]);
    check(
        |page: &mut StudyPage| page.pictures[1].panels[0].lines[0].spots[0].value = 0.9,
        &["a number of 0.9 outside"],
    );
    check(
        |page: &mut StudyPage| page.pictures[2].panels[0].lines[0].spots[3].value = 1.0,
        &["a quantile below one of a smaller share"],
    );
    check(
        |page: &mut StudyPage| {
            "1.5".clone_into(&mut page.pictures[2].panels[0].lines[0].spots[3].x);
        },
        &["a share of 1.5"],
    );
}

fn check(change: fn(&mut StudyPage), expected: &[&str]) {
    let mut page = page();
    change(&mut page);
    let found = contradictions(&page);
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{found} is not {expected}");
    }
}

#[test]
fn below_six_blocks_brackets_are_ranges_and_are_called_so() {
    fn check(change: fn(&mut StudyPage), header: &str, note: &str, brackets: Brackets) {
        let mut page = page();
        change(&mut page);
        page.pictures.iter_mut().for_each(|picture| picture.brackets = brackets);
        let html = render_study(&page).unwrap();
        assert!(html.contains(header), "{header}");
        let markdown = study_markdown(&page, "charts", &[]).text;
        assert!(html.contains(note) && markdown.contains(note), "{note}");
    }

    assert_eq!(Brackets::from_blocks([6, 10]), Brackets::Intervals);
    assert_eq!(Brackets::from_blocks([5, 2]), Brackets::Ranges);
    check(|_| {}, "median [95 %]", "Whiskers are 95 % intervals", Brackets::Intervals);
    check(shorten, "median [range]", "Whiskers are the ranges of the blocks", Brackets::Ranges);
    check(
        |page: &mut StudyPage| page.measured[0].blocks = 3,
        "median [95 %, below 6 blocks the range]",
        "below 6 blocks",
        Brackets::Both,
    );
}

fn shorten(page: &mut StudyPage) {
    page.measured.iter_mut().for_each(|one| one.blocks = 3)
}

#[test]
fn a_page_has_its_noise_floor_or_the_reason_why_not() {
    let mut page = page();
    let floor = "noise floor (A/A pairs) | 0.990× to 0.990×";
    assert!(study_markdown(&page, "charts", &[]).text.contains(floor));
    page.pairs.clear();
    "the study has no baseline".clone_into(&mut page.no_pairs);
    let markdown = study_markdown(&page, "charts", &[]).text;
    assert!(markdown.contains("noise floor (A/A pairs) | none; the study has no baseline"));
    assert!(render_study(&page).unwrap().contains("the study has no baseline"));
}

#[test]
fn values_of_the_source_are_hollow_marks_and_one_side_is_said() {
    let mut page = page();
    for picture in &mut page.pictures[..2] {
        // The second is above all lines: the axis includes it.
        picture.panels[0].source = vec![mark("stall", 0.4), mark("quota & more", 1.0)];
        "Only speed 0.5 was measured".clone_into(&mut picture.only);
    }
    let StudyMarkdown { text, charts } = study_markdown(&page, "charts", &[]);
    assert!(text.contains("A hollow mark is the source’s value"));
    for (name, chart) in &charts[..2] {
        let drawn = roxmltree::Document::parse(chart).unwrap();
        let rings = drawn.descendants().filter(|node| node.attribute("class") == Some("mark open"));
        // Two values, and the key.
        assert_eq!(rings.count(), 3, "{name}");
        assert!(chart.contains(">source</text>"), "{name}");
        assert!(chart.contains("source, stall, speed 0.5: 0.400"), "{name}");
        assert!(chart.contains(">Only speed 0.5 was measured</text>"), "{name}");
        assert!(chart.contains(">1</text>"), "{name}");
    }
    assert!(!charts[2].1.contains(">source</text>"));
}

fn mark(line: &str, value: f64) -> SourceMark {
    SourceMark { line: line.to_owned(), x: "0.5".to_owned(), value }
}

/// A page on which nothing of the source is settled begins with what the lab shows.
#[test]
fn the_lab_comes_first_if_no_statement_is_settled() {
    let mut page = page();
    assert_eq!(places(&page), [true; 2]);
    page.claims[0].agree = Agreement::Agrees;
    assert_eq!(places(&page), [false; 2]);
}

fn places(page: &StudyPage) -> [bool; 2] {
    let text = study_markdown(page, "charts", &[]).text;
    let html = render_study(page).unwrap();
    [
        position_of(&text, "## Shown functionally, in the lab") < position_of(&text, "## The run"),
        position_of(&html, "<section id=\"lab\">") < position_of(&html, "<section id=\"claims\">"),
    ]
}

fn position_of(text: &str, what: &str) -> usize {
    text.find(what).unwrap_or_else(|| panic!("{what}"))
}

#[test]
fn markdown_has_each_reason_once_and_all_rows() {
    let mut page = page();
    page.claims.push(ClaimRow {
        source: "It was not measured".to_owned(),
        is_measured: false,
        ..page.claims[0].clone()
    });
    page.tables[0].rows = (0..40).map(|row| vec![format!("row {row}"), "1".to_owned()]).collect();
    let text = study_markdown(&page, "charts", &[]).text;
    assert!(text.contains("| row 39 | 1 |") && !text.contains("in the store"), "{text}");
    assert!(text.contains("| too small | 8 cores | An empty one |"), "{text}");
    assert!(text.contains("| no &lt;SMT> |  | An empty one |"), "{text}");
    assert_eq!(text.matches("too small").count(), 1, "{text}");
    let open = "## The source's statements: not measured here\n\n| the source says | where |";
    assert!(text.contains(open) && text.contains("| It was not measured | Fig. 5 |"), "{text}");
}
