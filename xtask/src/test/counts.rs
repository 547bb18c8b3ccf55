//! The results of all tests, read from what `cargo test` prints.

use std::collections::BTreeSet;

#[derive(Default)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: Vec<String>,
    /// The names of the tests that failed.
    pub failed_names: BTreeSet<String>,
    /// What the failed tests printed, as `cargo test` repeats it: it stands once more at the end,
    /// where a reader of a long log looks.
    pub failures: Vec<String>,
    /// Tests that failed and passed when they ran again with nothing beside them.
    pub unstable: Vec<String>,
    /// Lines `failures:` since the last result: the first begins the outputs, the second the names.
    headings: u32,
    /// Programs that have begun and not yet printed a result.
    running: u64,
}

impl Counts {
    /// `test result: ok. 12 passed; 0 failed; 0 ignored; …` and `skipped: REASON`.
    pub fn count_line(&mut self, line: &str) {
        if let Some(reason) = line.trim().strip_prefix("skipped: ") {
            self.skipped.push(reason.to_string());
        }
        let words = line.split(' ').collect::<Vec<_>>();
        if let ["running", number, "test" | "tests"] = words.as_slice() {
            self.running += u64::from(number.parse::<u64>().is_ok());
        }
        if line == "failures:" {
            self.headings += 1;
        }
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.headings = 0;
            self.running = self.running.saturating_sub(1);
            for part in rest.split(|c| c == '.' || c == ';') {
                let mut words = part.split_whitespace();
                let number = words.next().and_then(|word| word.parse::<u64>().ok());
                match (number, words.next()) {
                    (Some(n), Some("passed")) => self.passed += n,
                    (Some(n), Some("failed")) => self.failed += n,
                    _ => {}
                }
            }
        }
        if self.headings > 0 {
            self.failures.push(line.to_string());
        }
        if self.headings == 2 {
            self.failed_names.extend(line.strip_prefix("    ").map(str::to_string));
        }
    }

    /// After the last line of some programs: one that ended without a result has failed, and so has
    /// a cargo that failed before it ran one.
    pub fn end_of_programs(&mut self, is_good: bool) {
        self.failed += std::mem::take(&mut self.running);
        if !is_good && self.failed == 0 {
            self.failed += 1;
        }
    }

    /// Takes the results of the second run of the tests that failed. If that run had failures
    /// without a name, or did not run them all, it shows nothing.
    pub fn take_second_run(&mut self, second: &Counts) {
        let named = second.failed_names.len() as u64;
        if second.failed != named || second.passed + named < self.failed_names.len() as u64 {
            return;
        }
        let failed = std::mem::take(&mut self.failed_names);
        let (still, unstable): (BTreeSet<_>, BTreeSet<_>) =
            failed.into_iter().partition(|name| second.failed_names.contains(name));
        let mended = (unstable.len() as u64).min(self.failed);
        self.failed -= mended;
        self.passed += mended;
        self.failed_names = still;
        self.unstable = unstable.into_iter().collect();
    }

    /// Prints the end of the log, the counts last.
    pub fn finish(&self, broken: &[String]) -> Result<(), String> {
        println!();
        for reason in &self.skipped {
            println!("skipped: {}", reason);
        }
        for line in &self.failures {
            println!("{}", line);
        }
        for name in &self.unstable {
            println!("unstable: {} failed beside other tests, and passed alone", name);
        }
        for why in broken {
            println!("failed: {}", why);
        }
        let skipped = self.skipped.len() as u64;
        let passed = self.passed.saturating_sub(skipped);
        println!("{} passed, {} failed, {} skipped", passed, self.failed, skipped);
        if self.failed == 0 {
            Ok(())
        } else {
            Err(format!("{} failed", self.failed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    fn count(lines: &[&str]) -> Counts {
        let mut counts = Counts::default();
        lines.iter().for_each(|line| counts.count_line(line));
        counts
    }

    const FIRST: [&str; 13] = [
        "test a ... ok",
        "skipped: no libvirt here",
        "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        "failures:",
        "---- b stdout ----",
        "    not a name",
        "",
        "failures:",
        "    b",
        "    c::d",
        "",
        "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        "test e ... ok",
    ];

    #[test]
    fn counts_results_skips_and_failures() {
        let counts = count(&FIRST);
        assert_eq!((counts.passed, counts.failed, counts.skipped.len()), (15, 2, 1));
        assert_eq!(counts.failures.len(), 8);
        assert_eq!(counts.failed_names.iter().collect::<Vec<_>>(), ["b", "c::d"]);
    }

    #[test]
    fn a_test_that_fails_twice_has_failed() {
        let mut counts = count(&FIRST);
        let second =
            ["failures:", "failures:", "    c::d", "", "test result: FAILED. 1 passed; 1 failed"];
        counts.take_second_run(&count(&second));
        assert_eq!((counts.passed, counts.failed), (16, 1));
        assert_eq!(counts.unstable, ["b"]);
        assert!(counts.failed_names.contains("c::d"));
        assert!(counts.finish(&[]).is_err());
    }

    #[test]
    fn a_second_run_without_a_result_shows_nothing() {
        let mut counts = count(&FIRST);
        let mut second = count(&["running 2 tests"]);
        second.end_of_programs(false);
        counts.take_second_run(&second);
        assert_eq!((counts.failed, counts.unstable.len()), (2, 0));
    }

    #[test]
    fn a_program_that_ends_without_a_result_has_failed() {
        let mut counts =
            count(&["running 1 test", "running low on memory", "test result: ok. 1 passed"]);
        counts.end_of_programs(true);
        assert_eq!((counts.passed, counts.failed), (1, 0));
        counts.count_line("running 4 tests");
        counts.end_of_programs(false);
        assert_eq!(counts.failed, 1);
    }
}
