//! Counters of a real child: what it must have done is counted, what this machine lacks is said.

use crate::common::known::KnownProgram;
use crate::common::{SECOND, eventually, own_pus, program, work_ns};
use pinfold_host::process::Spawn;
use pinfold_host::{LiveHost, SystemClock};
use pinfold_model::Role;
use pinfold_probe::counters::{Outcome, Quantity, Source, start};

#[test]
fn a_child_that_works_is_counted_and_its_later_threads_too() {
    let program = program();
    let host = LiveHost::new().unwrap();
    // Stopped before its first thread is made, so that each is born while it is counted.
    let mut child = Spawn::new(&program.pinload.path())
        .args("load cpu --threads 2 --seconds 600".split(' '))
        .affinity(own_pus())
        .start()
        .unwrap();
    let threads = [(child.task(), Role::Emulator)];
    let counting = start(&host, &SystemClock, &threads, &Quantity::ALL).unwrap();
    assert!(eventually(|| work_ns(&host, child.pid()) > SECOND / 5));
    let found = counting.stop(&host, &SystemClock).unwrap();
    child.kill().unwrap();
    let [emulator] = &found.roles[..] else { panic!("{found:?}") };
    for (quantity, outcome) in &emulator.outcomes {
        match outcome {
            Outcome::Absent(why) => {
                println!("{}: {why}", quantity.name());
                assert!(quantity.needs_pmu(), "{}: {why}", quantity.name());
                assert!(!why.is_empty());
            }
            Outcome::Counted(counted) => {
                println!("{}: {counted:?}", quantity.name());
                assert!(counted.running_share > 0.0 && counted.running_share <= 1.0);
                let may_be_zero = matches!(
                    quantity,
                    Quantity::Migrations
                        | Quantity::PageFaults
                        | Quantity::GuestCycles
                        | Quantity::GuestInstructions
                );
                let sees_births = counted.source == Source::Perf;
                if *quantity == Quantity::RunTime && sees_births {
                    // Whatever was made before it began is listed, what was made later inherited.
                    assert!(counted.value > SECOND / 10, "{counted:?}");
                }
                assert!(counted.value > 0 || may_be_zero || !sees_births, "{counted:?}");
            }
        }
    }
    let absent = found.absent().len();
    assert_eq!(found.figures().len() + absent, Quantity::ALL.len());
}

#[test]
fn a_child_that_dies_meanwhile_was_counted() {
    let program = program();
    let host = LiveHost::new().unwrap();
    let mut child = program.start("load cpu --threads 1 --seconds 600");
    assert!(eventually(|| work_ns(&host, child.pid()) > 0));
    let threads = [(child.task(), Role::Emulator)];
    let counting =
        start(&host, &SystemClock, &threads, &[Quantity::RunTime, Quantity::Cycles]).unwrap();
    // schedstat is as old as the last tick: what it tells next was counted from a later moment on.
    let old = work_ns(&host, child.pid());
    assert!(eventually(|| work_ns(&host, child.pid()) > old));
    let ran = work_ns(&host, child.pid());
    assert!(eventually(|| work_ns(&host, child.pid()) > ran + SECOND / 10));
    child.kill().unwrap();
    let found = counting.stop(&host, &SystemClock).unwrap();
    assert_eq!(found.roles[0].ended, found.roles[0].threads);
    match &found.roles[0].outcomes[0].1 {
        Outcome::Counted(counted) => {
            assert_eq!(counted.source, Source::Perf);
            assert!(counted.value >= SECOND / 10, "{counted:?}");
        }
        Outcome::Absent(why) => {
            assert!(why.contains("all threads of this role have ended"), "{why}")
        }
    }
}

#[test]
fn known_switches_and_faults_are_counted() {
    let host = LiveHost::new().unwrap();
    let mut known = KnownProgram::start(&["work", "50", "400"]);
    let threads = [(known.child.task(), Role::Emulator)];
    let wanted = [Quantity::ContextSwitches, Quantity::PageFaults];
    let counting = start(&host, &SystemClock, &threads, &wanted).unwrap();
    let mut input = known.child.stdin().unwrap();
    let said = known.go(&mut input);
    let found = counting.stop(&host, &SystemClock).unwrap();
    let own: Vec<u64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
    assert!(own[0] >= 50 && own[1] >= 400, "{said}");
    for ((quantity, outcome), own) in found.roles[0].outcomes.iter().zip(own) {
        let Outcome::Counted(counted) = outcome else { panic!("{outcome:?}") };
        println!("{}: {} seen, {own} by itself", quantity.name(), counted.value);
        // It counted its work alone, not its way to and from it.
        assert!(counted.value >= own && counted.value < own + 100, "{counted:?}, {said}");
    }
}
