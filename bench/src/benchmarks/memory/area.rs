//! Load latency by the size of the memory area, around the last-level cache.
//!
//! sysfs reports the size of a cache, which other CPUs of the package use too, and in a virtual
//! machine the value comes from the hypervisor. The part that a program gets shows only in its own
//! loads. With huge pages few loads miss the TLB, so the result depends on the cache alone.

use pinfold_host::{Host as _, LiveHost, paths};
use pinfold_probe::figures::Instrument;
use pinfold_probe::memory::{Chase, Order, Pages, Place, Sizes};
use pinfold_study::random::Pcg32;
use pinfold_study::stats::median;

use super::{Bench, Best, CHASE_WINDOWS, Match, ROUNDS, ReferenceTool};
use crate::arguments::{Arguments, Failure};
use crate::benchmarks::{Goal, Measured};

/// Measures the rows: for each area one with small pages and one with huge pages.
pub fn run(arguments: &Arguments) -> Result<Measured, Failure> {
    let bench = Bench::new()?;
    let caches = bench.caches()?;
    let last = *caches.last().ok_or("pinload reported no caches")?;
    let (areas, too_large) = areas(&caches, available_bytes()?);
    let mut matches: Vec<Match> =
        areas.iter().flat_map(|bytes| matches_of(&bench, *bytes)).collect();
    if arguments.quick {
        matches.truncate(2);
    }
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    bench.blocks(&mut matches, rounds, &mut Pcg32::new(arguments.seed, 4))?;
    let huge: Vec<f64> =
        matches.iter().skip(1).step_by(2).filter_map(|one| median(&one.values[0][0])).collect();
    let mut notes = vec![
        "Ours is the slowest of the quickest tenth of windows of 4 ms in a run of 1.5 s, the plain code's the best of its samples of 0.5 s.".to_owned(),
    ];
    notes.extend(too_large.map(|bytes| {
        format!(
            "The largest area would be twice the last cache, {} MiB, for which there is too little free memory here.",
            bytes >> 20
        )
    }));
    notes.extend(held(&areas, &huge).map(|(bytes, limit)| {
        format!(
            "From huge pages, where the TLB is hardly in it, a load takes less than {limit:.0} ns, the geometric mean of its times from the smallest and the largest area, up to {} MiB: so much of the last-level cache, of which sysfs tells {} MiB, a program on this PU has while others use it too.",
            bytes >> 20,
            last >> 20
        )
    }));
    Ok(Measured {
        conditions: format!("{}; {rounds} blocks, seed {}", bench.conditions()?, arguments.seed),
        table: super::table(matches),
        notes,
    })
}

/// From the second-last cache, each area twice the one before, and finally twice the last-level
/// cache, which need not be such a multiple. Areas that do not fit into memory are left out; the
/// second value is the largest area if that is left out.
fn areas(caches: &[u64], available: u64) -> (Vec<u64>, Option<u64>) {
    let last = caches.last().copied().unwrap_or(0);
    let first = caches.iter().rev().nth(1).copied().unwrap_or(last / 2);
    let most = 2 * last;
    // The plain code stores its order in addition to the area, an eighth of it; the rest is left to
    // other programs.
    let fits = |bytes: &u64| bytes * 2 <= available;
    let areas = std::iter::successors(Some(first), |bytes| Some(bytes * 2))
        .take_while(|bytes| *bytes < most)
        .chain([most]);
    (areas.filter(fits).collect(), (!fits(&most)).then_some(most))
}

/// Memory that may be used without swapping (bytes).
fn available_bytes() -> Result<u64, Failure> {
    let text = LiveHost::new()?.read_text(&paths::meminfo())?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Ok(kib.ok_or("the kernel tells no MemAvailable")? * 1024)
}

fn matches_of(bench: &Bench, bytes: u64) -> [Match; 2] {
    let chase = |pages| -> Instrument {
        let place = Place { pages, ..super::place(bench) };
        let (sizes, windows) = (Sizes::one(bytes), CHASE_WINDOWS);
        Chase { sizes, order: Order::Random, loads: None, place, windows }.instrument()
    };
    let one = |pages: &str, ours, (reference_tool_name, reference_tool): (&str, _), goal| Match {
        names: vec![format!("random chase {} KiB, {pages}", bytes >> 10)],
        how: format!("chase, {pages}"),
        reference_tool_name: reference_tool_name.to_owned(),
        ours,
        picks: vec![0],
        best: Best::Least,
        reference_tool,
        text: super::nanoseconds,
        goal,
        values: vec![Default::default()],
    };
    let plain = ReferenceTool::Plain(vec!["chase".to_owned(), bytes.to_string(), "3".to_owned()]);
    [
        one(
            "small pages",
            chase(Pages::Small),
            ("plain chase, best of 3 samples of 0.5 s", plain),
            Goal::AtMost(1.02),
        ),
        one(
            "huge pages",
            chase(Pages::Huge),
            ("ours, small pages", ReferenceTool::Ours(chase(Pages::Small))),
            Goal::None,
        ),
    ]
}

/// The largest area before loads take longer than the geometric mean of the first and the last, and
/// this mean; `None` if these do not differ enough.
fn held(areas: &[u64], times: &[f64]) -> Option<(u64, f64)> {
    let (first, last) = (times.first()?, times.last()?);
    let limit = (first * last).sqrt();
    let inside = times.iter().take_while(|time| **time < limit).count();
    (*last > 2.0 * first).then(|| areas.get(inside.checked_sub(1)?).map(|area| (*area, limit)))?
}

#[cfg(test)]
mod tests {
    use super::{areas, held};

    #[test]
    fn areas_reach_from_the_private_cache_to_twice_the_shared_one() {
        let all = |caches: &[u64]| areas(caches, u64::MAX).0;
        assert_eq!(all(&[32, 1024, 4096]), [1024, 2048, 4096, 8192]);
        assert_eq!(all(&[64]), [32, 64, 128]);
        // 512 is not twice the last-level cache.
        assert_eq!(all(&[2, 480]), [2, 4, 8, 16, 32, 64, 128, 256, 512, 960]);
        assert_eq!(areas(&[32, 64], 256), (vec![32, 64, 128], None));
        assert_eq!(areas(&[32, 64], 255), (vec![32, 64], Some(128)));
    }

    #[test]
    fn a_cache_holds_what_is_near_and_nothing_where_all_is_alike() {
        assert_eq!(held(&[1, 2, 4, 8], &[4.0, 10.0, 30.0, 100.0]), Some((2, 20.0)));
        assert_eq!(held(&[1, 2, 4, 8], &[50.0, 60.0, 70.0, 80.0]), None);
        assert_eq!(held(&[], &[]), None);
    }
}
