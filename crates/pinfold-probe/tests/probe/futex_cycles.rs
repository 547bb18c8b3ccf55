//! Share of CPU time in futex(2) of a program of our own, with and without contention.

use crate::common::known::KnownProgram;
use pinfold_host::{FutexSamples, LiveHost};
use pinfold_model::Role;
use pinfold_probe::futex_cycles::{main_lock, start};
use pinfold_probe::locks::LocksError;

/// The samples of threads that take one lock, until they had 100 ms of CPU time together.
fn sample(threads: &str) -> Result<FutexSamples, String> {
    let host = LiveHost::new().unwrap();
    let mut known = KnownProgram::start(&["locks", threads, "1000000"]);
    let task = (known.child.task(), Role::Emulator);
    let sampling = match start(&host, &[task]) {
        Ok(sampling) => sampling,
        Err(LocksError::Unavailable { why }) => return Err(why),
        Err(error) => panic!("{error}"),
    };
    let mut input = known.child.stdin().unwrap();
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    assert!(crate::common::eventually(
        || crate::common::work_ns(&host, known.child.pid()) > 100 * crate::common::MS
    ));
    let early = sampling.read().unwrap();
    let (samples, mut symbols) = sampling.stop().unwrap();
    let later = samples.since(&early);
    assert_eq!(early.all + later.all, samples.all);
    assert_eq!(samples.words.values().sum::<u64>(), samples.inside);
    if let Some(lock) = main_lock(&host, &mut symbols, &samples) {
        assert_eq!(lock.name.as_deref(), Ok("contended_word"), "{samples:?}");
    }
    known.child.kill().unwrap();
    Ok(samples)
}

#[test]
fn a_contended_lock_has_a_larger_share_than_one_that_is_free() {
    let contended = match sample("4") {
        Ok(samples) => samples,
        Err(why) => return println!("skipped: {why}"),
    };
    let free = sample("1").unwrap();
    // The threads were created while they were sampled.
    assert!(contended.all > 20 && free.all > 20, "{contended:?}, {free:?}");
    assert!(!contended.words.is_empty());
    let [of_contended, of_free] = [&contended, &free].map(|one| one.share().unwrap());
    assert!(of_contended > of_free + 0.1, "{contended:?}, {free:?}");
    assert!(of_free < 0.05, "{free:?}");
    assert_eq!((contended.lost, free.lost), (0, 0));
    assert_eq!(contended.clock, free.clock);
}
