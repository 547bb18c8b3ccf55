//! Results that are incomplete, foreign, of another study, run or version, or have invalid values.

use pinfold_study::study::{PresetSelection, QUICK};

use super::super::*;
use super::cluster::answer;
use super::world::{FACTS, STUDY};

const OWN: &str = "0.1.0";

fn digest() -> String {
    study_digest(STUDY, &PresetSelection::Whole)
}

#[track_caller]
fn check(text: &str, expected: &str) {
    let error = read_result(text, "key", &digest(), OWN).unwrap_err();
    assert_eq!(pinfold_host::with_causes(&error).split(" at line").next(), Some(expected));
}

/// The result with its line changed and its digest recomputed.
fn replace_part(from: &str, to: &str) -> String {
    let text = result_text(&answer(1)).unwrap();
    let line = text.lines().next().unwrap();
    assert!(line.contains(from), "{from} is not in {line}");
    seal(&line.replacen(from, to, 1))
}

#[test]
fn results_come_back_as_they_went() {
    let answer = answer(1);
    let text = result_text(&answer).unwrap();
    assert_eq!(read_result(&text, "key", &digest(), OWN).unwrap(), answer);
    // The prolog of a node may print first.
    let noisy = format!("Welcome to the cluster!\n{{}}\n{text}\n\n");
    assert_eq!(read_result(&noisy, "key", &digest(), OWN).unwrap(), answer);
    let scouted = NodeProperties { facts: FACTS, skipped: vec![None, Some("no".to_owned())] };
    let looked = TaskResult {
        head: ResultIdentity { part: None, ..answer.head },
        given: ResultContent::Scouted(scouted.clone()),
    };
    let text = result_text(&looked).unwrap();
    assert_eq!(read_result(&text, "key", &digest(), OWN).unwrap(), looked);
    let job = JobDocument {
        key: "key".to_owned(),
        pinfold: OWN.to_owned(),
        toml: STUDY.to_owned(),
        form: PresetSelection::from_preset(Some("evening")),
        scouted: Some(scouted),
    };
    assert_eq!(JobDocument::from_json(&job.to_json().unwrap()).unwrap(), job);
    let mut options = Options::new("key".to_owned());
    options.partition = Some("pf".to_owned());
    assert_eq!(read_options(&options.to_json().unwrap()).unwrap(), options);
    assert!(read_options("{}").is_err());
}

#[test]
fn figures_without_samples_come_back_with_their_reason() {
    assert!(with_flag("absent: no PMU").is_ok());
    assert!(with_flag("finding: warning: governor: refused").is_ok());
    assert!(with_flag("odd").is_err());
}

fn with_flag(flag: &str) -> Result<(), ResultError> {
    let mut answer = answer(1);
    if let ResultContent::Trials(trials) = &mut answer.given {
        trials[0].1[0].samples.clear();
        trials[0].1[0].flags = vec![flag.to_owned()];
    }
    let read = read_result(&result_text(&answer).unwrap(), "key", &digest(), OWN);
    read.map(|read| assert_eq!(read, answer))
}

#[test]
fn torn_and_foreign_results_are_refused() {
    let text = result_text(&answer(1)).unwrap();
    for end in 0..text.len() - 1 {
        let torn = read_result(&text[..end], "key", &digest(), OWN).unwrap_err();
        assert!(matches!(torn, ResultError::Torn(_)), "{end}: {torn}");
    }
    check("", "it is incomplete: its last line, with its digest, is missing");
    check(
        &text.replacen("\"ok\":true", "\"ok\":false", 1),
        "it is incomplete: its digest is not that of its content",
    );
    check(
        &replace_part("pinfold-result/1", "cargo-result/1"),
        "its format is \"cargo-result/1\", not \"pinfold-result/1\"",
    );
    check(
        &replace_part("pinfold-result/1", "pinfold-result/2"),
        "its format is \"pinfold-result/2\", not \"pinfold-result/1\"",
    );
    check(
        &replace_part("\"key\":\"key\"", "\"key\":\"other\""),
        "it belongs to the run other, not to key",
    );
    check(
        &replace_part("\"pinfold\":\"0.1.0\"", "\"pinfold\":\"0.2.0\""),
        "node n1 runs Pinfold 0.2.0, but this is 0.1.0",
    );
    let other = study_digest(STUDY, &PresetSelection::from_preset(Some(QUICK)));
    check(
        &replace_part(&digest(), &other),
        &format!("it belongs to another study, or to another form of this study (digest {other})"),
    );
    check(
        &replace_part("\"node\":\"n1\"", "\"node\":\"n1; rm\""),
        "node is \"n1; rm\", which is not a valid name",
    );
    check(&replace_part("\"attempt\":1", "\"attempt\":3"), "attempt is 3");
    check(
        &replace_part("\"per-second\"", "\"furlongs\""),
        "trials[0].figures[0].unit is not valid: unknown variant `furlongs`, expected one of `ns`, \
         `per-second`, `per-second-per-mhz`, `bytes-per-second`, `bytes`, `count`, `share`",
    );
    check(
        &replace_part("\"attempts\":1,\"error\":null", "\"attempts\":-1,\"error\":null"),
        "trials[0] is not valid: invalid value: integer `-1`, expected u32",
    );
    check(&replace_part("\"ok\":true", "\"ok\":false"), "trials [0]: it failed without a reason");
    let refused =
        TaskResult { given: ResultContent::Refused("it is small".to_owned()), ..answer(1) };
    let error = read_result(&result_text(&refused).unwrap(), "key", &digest(), OWN).unwrap_err();
    assert!(error.ends_the_study() && error.hint().is_some());
    assert_eq!(error.to_string(), "node n1 cannot be used: it is small");
}

proptest::proptest! {
    #[test]
    fn no_text_breaks_a_reader(text in ".{0,200}") {
        assert!(read_result(&text, "key", "digest", OWN).is_err());
        assert!(JobDocument::from_json(&text).is_err());
        assert!(slurm::protocol::config(&text).is_err());
        // The parser may accept them; otherwise the error shows what was read, shortened.
        let errors = [
            slurm::protocol::queue(&text).err(),
            slurm::protocol::parse_job_id(&text).err(),
            slurm::protocol::node_lines(&text).err(),
        ];
        for error in errors.into_iter().flatten() {
            assert!(error.line.chars().count() <= 120 && !error.why.is_empty());
        }
        let (sentence, _) = slurm::protocol::explain_error("sbatch", &text);
        assert!(!sentence.is_empty());
    }

    #[test]
    fn a_shell_reads_a_quoted_word_back(word in "[ -~]{0,40}") {
        let quoted = slurm::protocol::quote(&word);
        // In single quotes all characters are literal; outside there are only escaped quotes.
        let mut plain = String::new();
        let mut inside = false;
        let mut letters = quoted.chars();
        while let Some(letter) = letters.next() {
            match (letter, inside) {
                ('\'', _) => inside = !inside,
                ('\\', false) => plain.extend(letters.next()),
                (letter, true) => plain.push(letter),
                (letter, false) => panic!("{letter:?} stands outside of quotes in {quoted}"),
            }
        }
        assert!(!inside);
        assert_eq!(plain, word);
    }
}
