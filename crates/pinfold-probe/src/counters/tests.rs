//! Sums of readings, the statistics in `/proc`, and the reasons for absent quantities.

use pinfold_host::{SimClock, SnapshotHost};

use super::reasons::Machine;
use super::*;

fn reading(value: u64, enabled_ns: u64, running_ns: u64) -> CounterReading {
    CounterReading { value, enabled_ns, running_ns }
}

fn read_count(outcome: &Outcome) -> &Counted {
    match outcome {
        Outcome::Counted(counted) => counted,
        Outcome::Absent(why) => panic!("{why}"),
    }
}

fn absent(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Absent(why) => why,
        Outcome::Counted(counted) => panic!("{counted:?}"),
    }
}

#[test]
fn a_shared_pmu_is_scaled_and_reported() {
    let outcome =
        join_readings(&[reading(100, 1_000, 500), reading(10, 1_000, 1_000)], Source::Perf);
    let one = read_count(&outcome);
    assert_eq!((one.value, one.running_share), (210, 0.75));
}

#[test]
fn an_event_that_never_got_a_place_is_absent_not_zero() {
    let outcome = join_readings(&[reading(100, 1_000, 1_000), reading(0, 1_000, 0)], Source::Perf);
    assert!(absent(&outcome).starts_with("the PMU had no counter left"));
}

#[test]
fn a_thread_that_did_not_run_counted_nothing() {
    let outcome = join_readings(&[reading(0, 0, 0), reading(7, 9, 9)], Source::Perf);
    assert_eq!((read_count(&outcome).value, read_count(&outcome).running_share), (7, 1.0));
    assert_eq!(read_count(&join_readings(&[reading(0, 0, 0)], Source::Perf)).value, 0);
}

#[test]
fn each_refusal_has_its_reason() {
    let machine = |pmus: Option<&[&str]>, is_guest| Machine {
        paranoid: Some("4".to_owned()),
        pmus: pmus.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        is_guest,
    };
    let none = machine(Some(&[]), true);
    check(&none, CounterError::NoPmu, "no PMU: the hypervisor does not expose one to this host");
    check(&machine(None, false), CounterError::NoPmu, "no driver for this processor's");
    let core = machine(Some(&["cpu_core", "cpu_atom"]), false);
    check(&core, CounterError::NoPmu, "the PMU (cpu_core, cpu_atom) has no such event");
    check(&core, CounterError::NoRight, "kernel.perf_event_paranoid is 4");
    check(&Machine { paranoid: None, ..none }, CounterError::NoRight, "CAP_PERFMON is needed");
    check(&core, CounterError::TooManyFiles, "ulimit -n");
    check(&core, CounterError::NotInThisForm, "with these options");
    check(&core, CounterError::Other(std::io::Error::from_raw_os_error(5)), "refused: ");
}

fn check(machine: &Machine, error: CounterError, why: &str) {
    let found = machine.why(&error);
    assert!(found.contains(why), "{found}");
}

#[test]
fn what_a_machine_says_of_itself() {
    let tree = SnapshotHost::from_files([
        ("/proc/sys/kernel/perf_event_paranoid", "2\n"),
        ("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor lahf\n"),
        ("/sys/bus/event_source/devices/software/type", "1\n"),
        ("/sys/bus/event_source/devices/msr/type", "8\n"),
    ]);
    let found = Machine::read(&tree);
    let wanted = Machine { paranoid: Some("2".to_owned()), pmus: Some(Vec::new()), is_guest: true };
    assert_eq!(found, wanted);
    let nothing = Machine { paranoid: None, pmus: None, is_guest: false };
    assert_eq!(Machine::read(&SnapshotHost::new()), nothing);
}

/// The `/proc` files of a task with these values; without a `sched` file, as without
/// `CONFIG_SCHED_DEBUG`.
fn task_files(tid: u32, minor: u64, major: u64, switches: u64, run_ns: u64) -> SnapshotHost {
    let mut tree = SnapshotHost::new();
    // Fields 10 and 12 are the faults, 22 is the start time.
    let stat = format!(
        "{tid} (a) b) S 1 0 0 0 0 0 {minor} 0 {major} {}5 {}\n",
        "0 ".repeat(9),
        "0 ".repeat(30)
    );
    let status = format!(
        "Name:\ta\nTgid:\t{tid}\nPPid:\t1\nUid:\t0\t0\t0\t0\n\
         voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t1\n"
    );
    for of in [format!("/proc/{tid}"), format!("/proc/{tid}/task/{tid}")] {
        tree.insert_file(&format!("{of}/stat"), stat.clone());
        tree.insert_file(&format!("{of}/status"), status.clone());
    }
    tree.insert_file(&format!("/proc/{tid}/task/{tid}/schedstat"), format!("{run_ns} 0 1\n"));
    tree
}

#[test]
fn statistics_stand_in_and_what_has_none_is_absent() {
    let clock = SimClock::at(0);
    let threads = [(TaskId { tid: Tid(7), start_time: 5 }, Role::Task)];
    let before = task_files(7, 10, 2, 100, 1_000);
    let counting = start(&before, &clock, &threads, &Quantity::ALL).unwrap();
    clock.sleep_ns(500);
    let after = task_files(7, 15, 3, 140, 1_900);
    let found = counting.stop(&after, &clock).unwrap();
    assert_eq!(found.duration_ns, 500);
    let outcomes: BTreeMap<_, _> = found.roles[0].outcomes.iter().cloned().collect();
    let value = |quantity| {
        let one = read_count(&outcomes[&quantity]);
        assert_eq!(one.instead_of.as_deref(), Some("this is not the running machine"));
        (one.value, one.source)
    };
    assert_eq!(value(Quantity::PageFaults), (6, Source::Stat));
    assert_eq!(value(Quantity::ContextSwitches), (40, Source::Status));
    assert_eq!(value(Quantity::RunTime), (900, Source::Schedstat));
    assert!(absent(&outcomes[&Quantity::Migrations]).contains("/proc does not report it"));
    assert_eq!(absent(&outcomes[&Quantity::Cycles]), "this is not the running machine");
    // An absent quantity has no figure, and is listed once with its reason.
    let figures = found.figures();
    assert_eq!(figures.len(), 3);
    assert!(figures.iter().all(|one| one.flags[0].starts_with("stands in: ")));
    assert_eq!(found.absent().len(), Quantity::ALL.len() - 3);
}

#[test]
fn a_thread_that_ended_leaves_its_statistics_unknown() {
    let clock = SimClock::at(0);
    let threads = [(TaskId { tid: Tid(7), start_time: 5 }, Role::Task)];
    let before = task_files(7, 1, 1, 1, 1);
    let counting = start(&before, &clock, &threads, &[Quantity::PageFaults]).unwrap();
    let found = counting.stop(&SnapshotHost::new(), &clock).unwrap();
    assert_eq!(found.roles[0].ended, 1);
    assert!(absent(&found.roles[0].outcomes[0].1).contains("all threads of this role have ended"));
    assert!(found.figures().is_empty());
}

#[test]
fn names_lead_back_to_quantities() {
    for quantity in Quantity::ALL {
        assert_eq!(Quantity::from_name(quantity.name()), Some(quantity));
    }
    assert_eq!(Quantity::from_name("cache-misses"), None);
}
