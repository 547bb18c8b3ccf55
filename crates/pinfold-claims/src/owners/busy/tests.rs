//! Busy threads.

use super::*;
use crate::owners::tests::found;

fn bound(cpu: &str, run_ms: u64) -> Bound {
    let cpu = CpuSet::parse_list(cpu).unwrap();
    Bound { process: Tid(9), name: "spin".to_owned(), cpu, run_ns: run_ms * 1_000_000 }
}

#[test]
fn only_what_ran_nearly_all_the_time_on_one_cpu_counts() {
    let check = |before: Bound, after: Bound, expected: &[&str]| {
        let first = Sample::from_threads([(Tid(10), before)]);
        let later = Sample::from_threads([(Tid(10), after), (Tid(11), bound("5", 99_000))]);
        let mut claims = Claims::default();
        first.add_busy(&later, 1_000_000_000, &mut claims);
        assert_eq!(found(&claims), expected);
    };
    check(bound("3", 5_000), bound("3", 5_950), &["spin 3 exclusive"]);
    check(bound("3", 5_000), bound("3", 5_890), &[]);
    check(bound("3", 5_000), bound("4", 6_000), &[]);
    check(bound("3", 5_000), bound("3", 0), &[]);
}
