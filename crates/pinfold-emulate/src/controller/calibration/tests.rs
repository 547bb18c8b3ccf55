//! Starts with and without stored costs; the tests count reference runs.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use pinfold_host::SimClock;
use pinfold_model::{Method, Speed};

use super::*;
use crate::emulation::CoreAccount;
use crate::helper_spawner::{Burner, ReferenceRun, Throughput, Watchdog, Window};
use crate::stored_costs::CALIBRATION_HOLDS_NS;
use crate::{Cleanup, SpeedError};

/// A machine with another task that always runs, or on which reference runs fail.
#[derive(Clone, Copy, PartialEq)]
enum Disturbance {
    Nothing,
    Busy(PuId),
    Fails,
}

/// Records of the calls.
struct Machine {
    other: Disturbance,
    effort: Effort,
    taken: Arc<AtomicU32>,
    runs: Mutex<usize>,
    reports: Mutex<Vec<String>>,
    kept: Mutex<Calibrations>,
}

impl Machine {
    fn new(other: Disturbance, kept: Calibrations) -> Self {
        let (runs, reports) = (Mutex::default(), Mutex::default());
        let (effort, kept) = (Effort::Full, Mutex::new(kept));
        Self { other, effort, taken: Arc::default(), runs, reports, kept }
    }
}

impl HelperSpawner for Machine {
    fn load_calibrations(&self) -> Calibrations {
        self.kept.lock().unwrap().clone()
    }

    fn store_calibration(&self, calibration: &Calibration) {
        self.kept.lock().unwrap().add(calibration.clone());
    }

    fn effort(&self) -> Effort {
        self.effort
    }

    fn report(&self, message: &str) {
        self.reports.lock().unwrap().push(message.to_owned());
    }

    /// A thread gets 0.1 % less than all outside of the vnode, and 2 % less than what is left
    /// inside.
    fn measure_throughput(
        &self,
        entries: &[String],
        pus: &CpuSet,
        _: u64,
    ) -> Result<Throughput, SpeedError> {
        *self.runs.lock().unwrap() += 1;
        if self.other == Disturbance::Fails {
            let why = "reports 0 units".to_owned();
            return Err(SpeedError::HelperSpawner { what: "the witness", why });
        }
        let left = 980_000 - u64::from(self.taken.load(Ordering::Relaxed));
        let own_ns = if entries.is_empty() { 999_000 } else { left };
        let witnessed = |pu| ReferenceRun {
            windows: vec![Window { units: 7, own_ns, span_ns: 1_000_000 }; 7],
            total_own_ns: 7 * own_ns,
            cpu_ns: if self.other == Disturbance::Busy(pu) { 3_500_000 } else { 7_000_000 },
            elapsed_ns: 7_000_000,
        };
        Ok(pus.iter().map(|pu| (pu, witnessed(pu))).collect())
    }

    fn spawn_burner(&self, _: &[String], _: PuId) -> Result<Box<dyn Burner>, SpeedError> {
        panic!("no burner is asked for")
    }

    fn spawn_watchdog(&self, _: Cleanup) -> Result<Box<dyn Watchdog>, SpeedError> {
        panic!("no sentinel is asked for")
    }
}

/// A method whose cost is measured; stores what it is told.
#[derive(Clone, Default)]
struct Taking(Rc<RefCell<Costs>>, Arc<AtomicU32>);

impl Emulation for Taking {
    fn calibration_period(&self, _: u32) -> Option<u64> {
        Some(200_000)
    }

    fn steal_share(&mut self, millionths: u32) -> Result<(), SpeedError> {
        self.1.store(millionths, Ordering::Relaxed);
        Ok(())
    }

    fn set_costs(&mut self, costs: &Costs) -> Result<(), SpeedError> {
        self.0.borrow_mut().clone_from(costs);
        Ok(())
    }

    fn costs(&self) -> Costs {
        self.0.borrow().clone()
    }

    fn set(&mut self, _: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        Ok(())
    }

    fn tick(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        Ok(now_ns)
    }

    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        Ok(Vec::new())
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        Ok(())
    }
}

/// Effects of the start of a vnode on these CPUs.
struct Done {
    runs: usize,
    reports: Vec<String>,
    learnt: Costs,
    kept: Calibrations,
}

fn start(other: Disturbance, kept: Calibrations, pus: &[u32], now_ns: u64) -> Done {
    start_on(Machine::new(other, kept), pus, Speed::FULL, now_ns)
}

fn start_on(machine: Machine, pus: &[u32], speed: Speed, now_ns: u64) -> Done {
    let method = Taking(Rc::default(), Arc::clone(&machine.taken));
    let cores = pus.iter().map(|pu| (PuId(*pu), speed)).collect();
    let node = Node::new("web", Method::Stall, cores);
    let cgroup = VnodeCgroup { perf: Some("/perf/web".to_owned()), ..VnodeCgroup::default() };
    let mut started: Vec<Started<'_>> = vec![(node, cgroup, Box::new(method.clone()))];
    calibrate(&machine, &SimClock::at(now_ns), &mut started).unwrap();
    Done {
        runs: machine.runs.into_inner().unwrap(),
        reports: machine.reports.into_inner().unwrap(),
        learnt: method.0.take(),
        kept: machine.kept.into_inner().unwrap(),
    }
}

const CALIBRATING: &str = "calibrating for about 8 s";
const ROUNDS: usize = 19;

#[test]
fn a_second_start_runs_no_witness_and_says_nothing() {
    let first = start(Disturbance::Nothing, Calibrations::default(), &[1], 5);
    assert_eq!(first.runs, ROUNDS);
    assert!(first.reports.len() == 1 && first.reports[0].starts_with(CALIBRATING));
    let measured_ns = first.kept.0[0].measured_ns;
    let soon = measured_ns + 1_000_000_000;
    let second = start(Disturbance::Nothing, first.kept.clone(), &[1], soon);
    assert_eq!((second.runs, second.reports), (0, Vec::new()));
    assert_eq!(second.learnt, first.learnt);
    assert!(second.learnt.values().all(|known| known.source == Source::Measured));
    // A busy machine needs no reference run either.
    assert_eq!(start(Disturbance::Fails, first.kept.clone(), &[1], soon).runs, 0);
    // Other CPUs, or the same ones a day later, are measured.
    assert_eq!(start(Disturbance::Nothing, first.kept.clone(), &[0, 1], soon).runs, ROUNDS);
    let late = (&[1][..], measured_ns + CALIBRATION_HOLDS_NS);
    assert_eq!(start(Disturbance::Nothing, first.kept, late.0, late.1).runs, ROUNDS);
}

#[test]
fn a_busy_core_never_ends_a_start_and_does_not_hold_it_up() {
    let known = start(Disturbance::Nothing, Calibrations::default(), &[1], 0).kept;
    let late = known.0[0].measured_ns + CALIBRATION_HOLDS_NS;
    let busy = Disturbance::Busy(PuId(1));
    let not_known = ["vnode web: the cost of stall on CPU 1", "other tasks ran there", "zero"];
    let cost = check(late, busy, Calibrations::default(), &not_known, Source::Unknown);
    assert_eq!(cost, Cost::default());
    let last = ["the last known cost is used, until the CPU is idle"];
    let cost = check(late, busy, known.clone(), &last, Source::LastKnown);
    assert_eq!(cost.free, 999_000);
    check(
        late,
        Disturbance::Fails,
        known.clone(),
        &["the witness: reports 0 units"],
        Source::LastKnown,
    );
    check(late, Disturbance::Fails, Calibrations::default(), &["reports 0 units"], Source::Unknown);
}

fn check(
    late: u64,
    other: Disturbance,
    kept: Calibrations,
    expected: &[&str],
    source: Source,
) -> Cost {
    let done = start(other, kept.clone(), &[1], late);
    assert_eq!(done.runs, 2, "a sample, and once more");
    assert_eq!(done.reports.len(), 1, "{:?}", done.reports);
    for part in expected {
        assert!(done.reports[0].contains(part), "{part}: {:?}", done.reports);
    }
    assert_eq!(done.learnt[&PuId(1)].source, source);
    assert_eq!(done.kept, kept, "nothing was measured");
    done.learnt[&PuId(1)].cost
}

#[test]
fn a_busy_core_leaves_the_others_measured() {
    let done = start(Disturbance::Busy(PuId(1)), Calibrations::default(), &[0, 1], 5);
    assert_eq!(done.runs, ROUNDS);
    assert_eq!((source(&done, 0), source(&done, 1)), (Source::Measured, Source::OtherCpu));
    assert_eq!(done.learnt[&PuId(1)].cost, done.learnt[&PuId(0)].cost);
    assert!(done.reports[1].contains("on CPU 1 could"), "{:?}", done.reports);
    assert!(done.reports[1].contains("that of another CPU is used"), "{:?}", done.reports);
    // A start on the busy CPU alone has that of the earlier calibration.
    let alone = start(Disturbance::Busy(PuId(1)), done.kept.clone(), &[1], 9);
    assert_eq!(alone.learnt[&PuId(1)].source, Source::OtherCpu);
    assert!(alone.learnt[&PuId(1)].cost.extra_ns[0] > 0);
    let kept: Vec<PuId> = done.kept.0[0].costs.keys().copied().collect();
    assert_eq!(kept, [PuId(0)]);
}

fn source(done: &Done, pu: u32) -> Source {
    done.learnt[&PuId(pu)].source
}

fn start_briefly(other: Disturbance, kept: &Calibrations, speed: Speed) -> Done {
    let machine = Machine { effort: Effort::Brief, ..Machine::new(other, kept.clone()) };
    let now_ns = kept.0.last().map_or(7, |one| one.measured_ns + 1);
    start_on(machine, &[1], speed, now_ns)
}

#[test]
fn a_brief_start_runs_one_witness_and_its_cost_is_marked() {
    let slow = Speed::from_millionths(400_000).unwrap();
    let none = Calibrations::default();
    let first = start_briefly(Disturbance::Nothing, &none, slow);
    assert_eq!((first.runs, source(&first, 1)), (1, Source::Brief));
    assert_eq!(first.learnt[&PuId(1)].cost.extra_ns, [4_000; 5]);
    assert!(first.kept.0[0].is_brief);
    assert!(first.reports[0].contains("measured briefly"), "{:?}", first.reports);
    assert!(first.reports[0].contains("up to 2 points"), "{:?}", first.reports);
    let second = start_briefly(Disturbance::Fails, &first.kept, slow);
    assert_eq!((second.runs, source(&second, 1)), (0, Source::Brief));
    // Such a cost does not replace a full measurement, where one is wanted.
    let full = start_on(Machine::new(Disturbance::Nothing, first.kept), &[1], slow, 8);
    assert_eq!((full.runs, source(&full, 1)), (ROUNDS, Source::Measured));
    let third = start_briefly(Disturbance::Fails, &full.kept, slow);
    assert_eq!((third.runs, source(&third, 1)), (0, Source::Measured));
    assert_eq!(third.reports, Vec::<String>::new());
    let again = Machine { effort: Effort::Again, ..Machine::new(Disturbance::Nothing, full.kept) };
    assert_eq!(start_on(again, &[1], slow, 9).runs, ROUNDS);
    let failed = start_briefly(Disturbance::Fails, &none, slow);
    assert_eq!((source(&failed, 1), failed.kept), (Source::Usual, none.clone()));
    assert!(failed.reports[0].contains("up to 7 points"), "{:?}", failed.reports);
    // Its speed may change later.
    let full_speed = start_briefly(Disturbance::Nothing, &none, Speed::FULL);
    assert_eq!((full_speed.runs, source(&full_speed, 1)), (1, Source::Brief));
    assert_eq!(full_speed.reports, Vec::<String>::new());
}
