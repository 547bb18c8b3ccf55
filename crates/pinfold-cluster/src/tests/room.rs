//! The limit of outstanding tasks, on a cluster that accepts a limited number.

use super::super::queue_limit::QueueLimit;

const SECOND_NS: u64 = 1_000_000_000;

/// Submits like the collector, to a cluster that accepts `limit` at a time, with `left` tasks to
/// submit. Returns the number of outstanding tasks and the number of requests.
fn fill(
    room: &mut QueueLimit,
    mut out: usize,
    mut left: usize,
    limit: usize,
    now_ns: u64,
) -> (usize, u32) {
    let mut questions = 0;
    loop {
        let asked = room.at(now_ns).saturating_sub(out).min(left);
        if asked == 0 {
            return (out, questions);
        }
        questions += 1;
        if out + asked <= limit {
            (out, left) = (out + asked, left - asked);
            room.grow(out, now_ns);
        } else {
            room.shrink(out, asked, now_ns);
        }
        assert!(questions < 100, "it never ends: {room:?}");
    }
}

#[test]
fn all_is_out_where_slurm_takes_all() {
    let mut room = QueueLimit::new(5_000);
    assert_eq!(fill(&mut room, 0, 25_000, 10_000, 0), (5_000, 1));
    assert!(!room.is_short());
}

#[test]
fn a_limit_is_found_within_a_turn_and_kept() {
    let mut room = QueueLimit::new(5_000);
    let (out, questions) = fill(&mut room, 0, 25_000, 100, 0);
    // 5,000 is halved repeatedly: 78 are accepted, more are tried later.
    assert_eq!((out, room.is_short()), (78, true));
    assert!(questions <= 8, "{questions}");
    // Nothing is tried before the pause is over, but tasks that ended are replaced at once.
    assert_eq!(fill(&mut room, 78, 24_922, 100, SECOND_NS), (78, 0));
    assert_eq!(fill(&mut room, 70, 24_914, 100, SECOND_NS), (78, 1));
    // Then the rest of the limit is found.
    let (out, _) = fill(&mut room, 78, 24_906, 100, 15 * SECOND_NS);
    assert_eq!(out, 97);
}

#[test]
fn a_full_cluster_is_asked_less_and_less_often() {
    let mut room = QueueLimit::new(50);
    let (out, _) = fill(&mut room, 0, 12, 0, 0);
    assert_eq!(out, 0);
    let mut asked = Vec::new();
    for second in 1..2_000 {
        if fill(&mut room, 0, 12, 0, second * SECOND_NS).1 > 0 {
            asked.push(second);
        }
    }
    let pauses: Vec<u64> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses, [30, 60, 120, 240, 300, 300, 300, 300, 300]);
    // When tasks are accepted again, the limit grows to the requested number.
    let mut out = 0;
    for second in 2_000..2_600 {
        out = fill(&mut room, out, 50 - out, 1_000, second * SECOND_NS).0;
    }
    assert_eq!((out, room.is_short()), (50, false));
}
