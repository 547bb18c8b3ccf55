//! Share of CPU time in futex(2) of a program of our own, with and without contention.

use crate::common::known::KnownProgram;
use pinfold_host::{FutexSamples, LiveHost};
use pinfold_model::Role;
use pinfold_probe::futex_cycles::{main_lock, start};
use pinfold_probe::locks::LocksError;

/// The samples of threads of a program that does `what`, until they had 200 ms of CPU time
/// together and `inside` samples in the call.
fn sample(what: &str, threads: &str, inside: u64) -> Result<FutexSamples, String> {
    let host = LiveHost::new().unwrap();
    let mut known = KnownProgram::start(&[what, threads, "1000000000"]);
    let task = (known.child.task(), Role::Emulator);
    let sampling = match start(&host, &[task]) {
        Ok(sampling) => sampling,
        Err(LocksError::Unavailable { why }) => return Err(why),
        Err(error) => panic!("{error}"),
    };
    let mut input = known.child.stdin().unwrap();
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    assert!(crate::common::eventually(|| crate::common::work_ns(&host, known.child.pid())
        > 200 * crate::common::MS
        && sampling.read().unwrap().inside >= inside));
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
fn calls_of_futex_have_a_share_and_a_lock_that_is_free_has_none() {
    let calls = match sample("wakes", "4", 1) {
        Ok(samples) => samples,
        Err(why) => return println!("skipped: {why}"),
    };
    let free = sample("locks", "1", 0).unwrap();
    // The threads were created while they were sampled.
    assert!(calls.all > 20 && free.all > 20, "{calls:?}, {free:?}");
    assert!(!calls.words.is_empty());
    let [of_calls, of_free] = [&calls, &free].map(|one| one.share().unwrap());
    assert!(of_calls > 0.3, "{calls:?}");
    assert!(of_free < 0.05, "{free:?}");
    assert_eq!((calls.lost, free.lost), (0, 0));
    assert_eq!(calls.clock, free.clock);
}

#[test]
fn waits_for_a_contended_lock_are_sampled() {
    // How often the threads meet at the lock depends on the host: the samples are waited for.
    match sample("locks", "4", 3) {
        Ok(contended) => assert!(contended.share().unwrap() > 0.0, "{contended:?}"),
        Err(why) => println!("skipped: {why}"),
    }
}
