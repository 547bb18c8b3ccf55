//! A simulated cluster: tasks wait, run, fail, and their results arrive in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pinfold_model::{Family, Figure, Origin, Unit};
use pinfold_stats::random::Pcg32;
use pinfold_study::RunError;
use pinfold_study::store::{OpenRun, Store, StoreError, TaskRecord, TrialRecord};
use pinfold_study::study::{
    Environment, MAX_FAILURES_IN_A_ROW, NewStudy, NodeTable, PresetSelection, TrialSlot, analyse,
    from_toml, node_table,
};

use super::super::scheduler::{QueuedTask, TaskState};
use super::super::*;
use super::world::{FACTS, STUDY, World, origin};

const OWN: &str = "0.1.0";
const LIMITS: Limits = Limits { most_out: 5, grace_ns: 1_000 };

/// A result of the first part, as a node returns it.
pub fn answer(attempt: u32) -> TaskResult {
    let figure = Figure {
        probe: "rate".to_owned(),
        labels: BTreeMap::new(),
        unit: Unit::PerSecond,
        family: Family::Capacity,
        cpu: Some(1),
        duration_ns: 7,
        samples: vec![0.1 + 0.2, -1.0, 1e300],
        dropped: 0,
        disturbed: 1,
        flags: vec!["odd".to_owned()],
    };
    let record = TrialRecord {
        block: 0,
        cell: 2,
        start: 0,
        twin: false,
        position: 3,
        node: "n1".to_owned(),
        ok: true,
        attempts: 1,
        error: None,
        began_unix_s: 17,
        duration_ns: 2_000,
        work_ns: 1_000,
    };
    let head = ResultIdentity {
        key: "key".to_owned(),
        pinfold: OWN.to_owned(),
        study: study_digest(STUDY, &PresetSelection::Whole),
        part: Some(0),
        attempt,
        node: "n1".to_owned(),
        job: "17_0".to_owned(),
        mask: "0-1".to_owned(),
        origin: origin(),
        began_unix_s: 16,
    };
    TaskResult { head, given: ResultContent::Trials(vec![(record, vec![figure])]) }
}

/// A task that was submitted.
fn task(PartAttempt { part, attempt }: PartAttempt, job: u64) -> TaskRecord {
    TaskRecord { part, attempt, job, element: part, submitted_unix_s: 1, failed: None }
}

/// A cluster whose nodes are the simulated machine of the other tests.
struct Simulated {
    world: World,
    job: JobDocument,
    run: OpenRun,
    generator: Pcg32,
    /// By part, how its first and second task fail; `None` if they do not.
    bad: BTreeMap<u32, [Option<&'static str>; 2]>,
    /// The speed of a node relative to the others.
    fast: BTreeMap<String, f64>,
}

impl Simulated {
    fn new(toml: &str) -> Self {
        let mut world = World::new();
        let mut job = JobDocument {
            key: "key".to_owned(),
            pinfold: OWN.to_owned(),
            toml: toml.to_owned(),
            form: PresetSelection::Whole,
            scouted: None,
        };
        let scouted = scout(&job).unwrap().read_properties(&FACTS, &world.machine).unwrap();
        job.scouted = Some(scouted.clone());
        let study = from_toml(toml).unwrap();
        let new = NewStudy {
            study: &study,
            form: &PresetSelection::Whole,
            command: "pinfold study run toy.toml --engine slurm",
            origin: &origin(),
            facts: &FACTS,
            now_unix_s: 1_700_000_000,
        };
        let options = Options::new("key".to_owned());
        let run = create_on_cluster(&mut world.store, &new, &scouted, &options).unwrap();
        let kept = world.store.submission_options(run.id()).unwrap().unwrap();
        assert_eq!(read_options(&kept).unwrap(), options);
        let generator = Pcg32::new(3, 1);
        Self { world, job, run, generator, bad: BTreeMap::new(), fast: BTreeMap::new() }
    }

    fn collector(&mut self) -> Collector {
        Collector::open(&mut self.world.store, self.run, "key", OWN, LIMITS).unwrap()
    }

    /// The result of a node for a part.
    fn result(&mut self, part: u32, attempt: u32, node: &str) -> String {
        let scout = scout(&self.job).unwrap();
        let mut environment = Environment {
            runner: &mut self.world.machine,
            clock: &*self.world.clock,
            progress: &mut ignore,
            stop: &self.world.stop,
            node,
        };
        let found = work(&scout, part, &origin(), &FACTS, &mut environment).unwrap();
        let PartResult::Whole(mut trials) = found else { panic!("interrupted") };
        let factor = self.fast.get(node).copied().unwrap_or(1.0);
        for sample in
            trials.iter_mut().flat_map(|(_, figures)| figures).flat_map(|f| &mut f.samples)
        {
            *sample *= factor;
        }
        let origin = match node {
            "n3" => Origin { kernel: "7.0".to_owned(), ..origin() },
            _ => origin(),
        };
        let head = ResultIdentity {
            part: Some(part),
            attempt,
            node: node.to_owned(),
            job: format!("{part}_{attempt}"),
            origin,
            ..answer(1).head
        };
        let head =
            ResultIdentity { study: study_digest(&self.job.toml, &PresetSelection::Whole), ..head };
        result_text(&TaskResult { head, given: ResultContent::Trials(trials) }).unwrap()
    }

    /// Runs rounds of submitting, working and collecting until all is done or `rounds` are over.
    fn go(&mut self, rounds: u32) -> Result<Collector, RunError> {
        let mut collector = self.collector();
        for (number, round) in (101..).zip(0..rounds) {
            if collector.is_done() {
                break;
            }
            let asks = collector.to_submit(0);
            let tasks: Vec<TaskRecord> = asks.iter().map(|ask| task(*ask, number)).collect();
            collector.record_submission(&mut self.world.store, self.run, &tasks).unwrap();
            assert!(collector.outstanding().len() <= LIMITS.most_out);
            let mut queue = Vec::new();
            let mut results = Vec::new();
            for (ask, job) in collector.outstanding() {
                let node = format!("n{}", self.generator.draw_below(3) + 1);
                let bad = self.bad.get(&ask.part).and_then(|bad| bad[ask.attempt as usize - 1]);
                let state = match bad {
                    Some(state) => TaskState::Ended(state.to_owned()),
                    None => {
                        let from = format!("{}-{}", ask.part, ask.attempt);
                        results.push((from, self.result(ask.part, ask.attempt, &node)));
                        TaskState::Completed
                    }
                };
                queue.push(QueuedTask { job, element: Some(ask.part), state, node });
            }
            self.generator.shuffle(&mut results);
            let accepted = collector.accept(&mut self.world.store, self.run, &results)?;
            assert!(
                accepted.iter().all(|one| matches!(one, Accepted::Merged { .. })),
                "{accepted:?}"
            );
            for ended in collector.compare_queue(&queue, u64::from(round)).ended {
                let reason = match ended.state {
                    Some(TaskState::Ended(state)) => state,
                    Some(TaskState::Completed) => "COMPLETED".to_owned(),
                    Some(TaskState::Pending(_) | TaskState::Running) | None => String::new(),
                };
                let lost = Lost { ask: ended.ask, node: ended.node, reason };
                collector.handle_failure(&mut self.world.store, self.run, &lost, 1)?;
            }
        }
        Ok(collector)
    }
}

fn ignore(_: &pinfold_study::study::Update<'_>) {}

#[test]
fn a_run_on_nodes_is_the_run_of_one_machine() {
    let mut simulated = Simulated::new(STUDY);
    let collector = simulated.go(100).unwrap();
    assert!(collector.is_done());
    assert_eq!(collector.progress(), (112, 112));
    let mut local = World::new();
    let run = local.create(STUDY, false).unwrap();
    local.run(run).unwrap();
    let world = &simulated.world;
    assert_eq!(places(&world.store, simulated.run), places(&local.store, run));
    // The parts of a block stay on one node each, and every trial has the name of its node.
    let deliveries = world.store.trial_deliveries(simulated.run.id()).unwrap();
    let mut nodes: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for (id, trial) in world.store.trials(simulated.run.id()).unwrap() {
        let place = &deliveries[&id];
        assert_eq!((place.node.as_str(), place.mask.as_str()), (trial.node.as_str(), "0-1"));
        let slot = TrialSlot::from_record(&trial);
        nodes.entry(collector.parts().part_of(slot).unwrap()).or_default().insert(trial.node);
    }
    assert_eq!(nodes.len(), 16);
    assert!(nodes.values().all(|nodes| nodes.len() == 1), "{nodes:?}");
}

fn places(store: &Store, run: OpenRun) -> BTreeSet<(u32, usize, u32, bool, u32)> {
    let trials = store.trials(run.id()).unwrap().into_iter();
    trials.map(|(_, t)| (t.block, t.cell, t.start, t.twin, t.position)).collect::<BTreeSet<_>>()
}

#[test]
fn failed_tasks_are_tried_once_more_and_recorded() {
    let mut simulated = Simulated::new(STUDY);
    simulated.bad.insert(3, [Some("NODE_FAIL"), None]);
    simulated.bad.insert(5, [Some("TIMEOUT"), Some("CANCELLED")]);
    let collector = simulated.go(100).unwrap();
    assert!(collector.is_done());
    let trials = simulated.world.store.trials(simulated.run.id()).unwrap();
    assert_eq!(trials.len(), 112);
    for (_, trial) in &trials {
        let part = collector.parts().part_of(TrialSlot::from_record(trial));
        assert_eq!(trial.ok, part != Some(5), "{trial:?}");
        if !trial.ok {
            assert!(trial.error.as_ref().unwrap().ends_with(": CANCELLED"), "{trial:?}");
            assert_eq!(
                (trial.attempts, trial.error.as_ref().unwrap().starts_with("on n")),
                (2, true)
            );
        }
    }
    let tasks = simulated.world.store.tasks(simulated.run.id()).unwrap();
    let failed: Vec<(u32, u32)> =
        tasks.iter().filter(|t| t.failed.is_some()).map(|t| (t.part, t.attempt)).collect();
    assert_eq!(failed, [(3, 1), (5, 1), (5, 2)]);
    let opened = simulated.collector();
    assert!(opened.is_done() && opened.to_submit(0).is_empty() && opened.outstanding().is_empty());
}

#[test]
fn a_cluster_on_which_all_fails_ends_the_study() {
    let mut simulated = Simulated::new(STUDY);
    simulated.bad = (0..16).map(|part| (part, [Some("FAILED"); 2])).collect();
    let collector = simulated.go(100).unwrap();
    let error = collector.keeps_failing("part 1", "exit code 1").unwrap_err();
    assert!(
        matches!(&error, RunError::KeepsFailing { count, .. } if *count >= MAX_FAILURES_IN_A_ROW)
    );
    assert!(error.to_string().contains(" parts in a row failed"), "{error}");
}

#[test]
fn merging_is_idempotent_and_only_whole_parts_are_taken() {
    let mut simulated = Simulated::new(STUDY);
    let mut collector = simulated.collector();
    let text = simulated.result(4, 1, "n1");
    let second = simulated.result(4, 2, "n2");
    let mut accept = |simulated: &mut Simulated, text: &str| {
        let result = [("file".to_owned(), text.to_owned())];
        let open = (&mut simulated.world.store, simulated.run);
        collector.accept(open.0, open.1, &result).unwrap().remove(0)
    };
    assert!(matches!(accept(&mut simulated, &text), Accepted::Merged { part: 4, .. }));
    let before = trials_of(&simulated);
    // The same again: the second attempt of a task that was considered dead.
    assert!(matches!(accept(&mut simulated, &text), Accepted::Known { part: 4 }));
    assert!(matches!(accept(&mut simulated, &second), Accepted::Known { part: 4 }));
    assert_eq!(trials_of(&simulated), before);
    // A part without one of its trials, with one of another part, with one twice, unknown.
    let digest = study_digest(STUDY, &PresetSelection::Whole);
    let whole = simulated.result(6, 1, "n1");
    let TaskResult { head, given } = read_result(&whole, "key", &digest, OWN).unwrap();
    let ResultContent::Trials(trials) = given else { panic!() };
    let mut refuse = |simulated: &mut Simulated, trials, part, expected: &str| {
        let head = ResultIdentity { part: Some(part), ..head.clone() };
        let text = result_text(&TaskResult { head, given: ResultContent::Trials(trials) }).unwrap();
        let Accepted::Refused(refusal) = accept(simulated, &text) else { panic!("it was taken") };
        assert!(refusal.to_string().contains(expected), "{}", refusal);
    };
    refuse(&mut simulated, trials[1..].to_vec(), 6, "of its");
    refuse(&mut simulated, [&trials[..1], &trials].concat(), 6, "twice");
    refuse(&mut simulated, trials.clone(), 7, "part 7 lacks the trial of");
    refuse(&mut simulated, trials.clone(), 99, "part is 99, of 16");
    let mut moved = trials.clone();
    moved[0].0.position += 1;
    refuse(&mut simulated, moved, 6, "part 6 lacks the trial of");
    assert_eq!(trials_of(&simulated), before);
    assert!(matches!(accept(&mut simulated, &whole), Accepted::Merged { part: 6, .. }));
}

fn trials_of(simulated: &Simulated) -> Vec<(pinfold_study::store::TrialId, TrialRecord)> {
    simulated.world.store.trials(simulated.run.id()).unwrap()
}

#[test]
fn a_locked_store_loses_nothing() {
    let mut simulated = Simulated::new(STUDY);
    let mut collector = simulated.collector();
    let results: Vec<(String, String)> =
        [2, 4].map(|part| (format!("{part}-1.json"), simulated.result(part, 1, "n1"))).to_vec();
    let open = (&mut simulated.world.store, simulated.run);
    collector
        .record_submission(
            open.0,
            open.1,
            &[2, 4, 5].map(|part| task(PartAttempt { part, attempt: 1 }, 7)),
        )
        .unwrap();
    let before = collector.outstanding();
    simulated.world.store.set_busy_timeout(Duration::from_millis(10)).unwrap();
    let other = rusqlite::Connection::open(simulated.world.store.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let open = (&mut simulated.world.store, simulated.run);
    is_locked(&collector.accept(open.0, open.1, &results).unwrap_err());
    let open = (&mut simulated.world.store, simulated.run);
    is_locked(
        &collector
            .record_submission(open.0, open.1, &[task(PartAttempt { part: 6, attempt: 1 }, 7)])
            .unwrap_err(),
    );
    let ask = PartAttempt { part: 5, attempt: 1 };
    let lost = Lost { ask, node: "n2".to_owned(), reason: "it broke".to_owned() };
    let open = (&mut simulated.world.store, simulated.run);
    is_locked(&collector.handle_failure(open.0, open.1, &lost, 1).unwrap_err());
    // The collector keeps its state, and the next one has the same.
    assert_eq!((collector.outstanding(), collector.progress().0), (before.clone(), 0));
    assert_eq!(simulated.world.store.trials(simulated.run.id()).unwrap(), []);
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(simulated.collector().outstanding(), before);
    let open = (&mut simulated.world.store, simulated.run);
    let accepted = collector.accept(open.0, open.1, &results).unwrap();
    assert!(accepted.iter().all(|one| matches!(one, Accepted::Merged { .. })), "{accepted:?}");
    let open = (&mut simulated.world.store, simulated.run);
    let failed = collector.handle_failure(open.0, open.1, &lost, 1).unwrap();
    assert_eq!(failed, Failed::Again);
    assert!(simulated.go(100).unwrap().is_done());
}

fn is_locked(error: &RunError) {
    assert!(matches!(error, RunError::Store(StoreError::Locked { .. })), "{error:?}");
}

#[test]
fn tasks_that_are_not_taken_count_as_never_submitted() {
    let mut simulated = Simulated::new(STUDY);
    let mut collector = simulated.collector();
    let asks = collector.to_submit(0);
    assert_eq!(asks.len(), LIMITS.most_out);
    let tasks: Vec<TaskRecord> = asks.iter().map(|ask| task(*ask, 0)).collect();
    collector.record_submission(&mut simulated.world.store, simulated.run, &tasks).unwrap();
    let open = (&mut simulated.world.store, simulated.run);
    collector.forget(open.0, open.1, &asks[2..]).unwrap();
    collector.note_refusal(1, 0);
    assert_eq!((collector.count_outstanding(), collector.count_kept_back()), (2, 14));
    assert_eq!(collector.to_submit(0), []);
    // Later the same ones are requested, with the same attempts.
    assert_eq!(collector.to_submit(u64::MAX), asks[2..4]);
    let reopened = simulated.collector();
    assert_eq!((reopened.count_outstanding(), reopened.count_kept_back()), (2, 0));
    assert_eq!(reopened.to_submit(0), asks[2..]);
}

#[test]
fn a_collector_that_was_killed_goes_on_with_what_is_out() {
    let mut simulated = Simulated::new(STUDY);
    let collector = simulated.go(2).unwrap();
    let (done, _) = collector.progress();
    assert!(done > 0 && !collector.is_done());
    let mut collector = simulated.collector();
    let asks = collector.to_submit(0);
    let tasks: Vec<TaskRecord> = asks.iter().map(|ask| task(*ask, 7)).collect();
    collector.record_submission(&mut simulated.world.store, simulated.run, &tasks).unwrap();
    drop(collector);
    // After the crash: two run, one waits, one is not known any more, the last one is done.
    let mut collector = simulated.collector();
    assert_eq!(collector.outstanding().iter().map(|(ask, _)| *ask).collect::<Vec<_>>(), asks);
    assert_eq!(collector.to_submit(0), []);
    let queue = [
        line(&asks, 0, TaskState::Running),
        line(&asks, 1, TaskState::Running),
        line(&asks, 2, TaskState::Pending("Priority".to_owned())),
        line(&asks, 4, TaskState::Completed),
    ];
    let seen = collector.compare_queue(&queue, 5_000);
    assert_eq!((seen.running, seen.pending["Priority"], seen.ended.len()), (2, 1, 0));
    // The time for their results to appear has passed.
    let seen = collector.compare_queue(&queue, 5_000 + LIMITS.grace_ns);
    let ended: Vec<(PartAttempt, Option<TaskState>)> =
        seen.ended.iter().map(|one| (one.ask, one.state.clone())).collect();
    assert_eq!(ended, [(asks[3], None), (asks[4], Some(TaskState::Completed))]);
    // The collector cancels them: they count as never submitted.
    collector.withdraw_all(&mut simulated.world.store, simulated.run).unwrap();
    assert_eq!(collector.to_submit(0), asks);
    assert_eq!(simulated.collector().to_submit(0), asks);
    assert!(simulated.go(100).unwrap().is_done());
}

fn line(asks: &[PartAttempt], index: usize, state: TaskState) -> QueuedTask {
    QueuedTask { job: 7, element: Some(asks[index].part), state, node: "n1".to_owned() }
}

#[test]
fn budgets_go_block_by_block() {
    // A block takes 14 s: three fit into 50.
    let toml = STUDY.replacen("seed = 5", "seed = 5\nbudget = \"50s\"", 1);
    let mut simulated = Simulated::new(&toml);
    let first = simulated.collector().to_submit(0);
    assert_eq!(first.iter().map(|ask| ask.part).collect::<Vec<_>>(), [0, 1]);
    let collector = simulated.go(100).unwrap();
    assert!(collector.is_done());
    assert_eq!(collector.progress(), (3 * 14, 3 * 14));
    let early = analyse(&simulated.world.store, simulated.run.id()).unwrap().loaded.early.unwrap();
    assert!(early.blocks == 3 && early.reason.contains("budget of 50 s"), "{early:?}");
}

#[test]
fn differences_between_nodes_are_reported_and_not_in_the_ratios() {
    let toml = STUDY.replacen("repetitions = 8", "repetitions = 20", 1);
    let mut simulated = Simulated::new(&toml);
    simulated.fast.insert("n2".to_owned(), 1.3);
    assert!(simulated.go(200).unwrap().is_done());
    let store = &simulated.world.store;
    let analysis = analyse(store, simulated.run.id()).unwrap();
    let table = node_table(store, &analysis).unwrap();
    assert_eq!(table.nodes.iter().map(|row| row.trials).sum::<u64>(), 20 * 14);
    assert_eq!(table.nodes.iter().map(|row| row.jobs).sum::<usize>(), 40);
    let differs: Vec<(&str, bool)> =
        table.figures.iter().map(|one| (one.node.as_str(), one.ratio > 1.2)).collect();
    assert_eq!(differs, [("n1", false), ("n2", true), ("n3", false)]);
    assert!(
        table.warnings.iter().any(|text| text.contains("kernel: 6.12.1 on n")),
        "{:?}",
        table.warnings
    );
    let reported = table.warnings.iter().any(|text| text.starts_with("node n2 differs in rate: +"));
    assert!(reported, "{:?}", table.warnings);
    for one in analysis.estimates.iter().filter_map(|one| one.comparison) {
        let width = one.interval.high - one.interval.low;
        assert!(width < 0.01, "nodes are in the ratio: {:?}", one.interval);
    }
    // There are none on one machine.
    let mut local = World::new();
    let run = local.create(STUDY, false).unwrap();
    local.run(run).unwrap();
    let analysis = analyse(&local.store, run.id()).unwrap();
    assert_eq!(node_table(&local.store, &analysis).unwrap(), NodeTable::default());
}

#[test]
fn nodes_that_are_not_like_the_first_are_distinguished() {
    let simulated = Simulated::new(STUDY);
    let first = simulated.job.scouted.clone().unwrap();
    let scout = scout(&simulated.job).unwrap();
    let mut here = first.clone();
    assert_eq!(differences(&scout, &first, &here), None);
    here.facts.pus = 64;
    assert_eq!(differences(&scout, &first, &here).unwrap(), "it has 64 CPUs, the first node had 2");
    here = first.clone();
    let runs = here.skipped.iter().position(Option::is_none).unwrap();
    here.skipped[runs] = Some("no PMU".to_owned());
    let why = differences(&scout, &first, &here).unwrap();
    assert!(why.starts_with("it cannot run a: method") && why.ends_with(": no PMU"), "{why}");
    assert!(differences(&scout, &here, &first).unwrap().contains("which the first node could not"));
}
