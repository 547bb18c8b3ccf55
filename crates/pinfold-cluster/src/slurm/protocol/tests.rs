//! Arguments for Slurm and its output, including malformed output.

use super::*;
use crate::arrays::{Batch, arrays, batches};
use crate::collector::PartAttempt;

#[test]
fn words_of_the_command_line_are_checked() {
    for word in ["pf", "gpu-2", "a_b.c"] {
        assert_eq!(partition(word), Ok(()), "{word}");
    }
    for word in ["", "-x", "a b", "a;b", "a'b", "ä"] {
        assert!(partition(word).is_err(), "{word}");
    }
    for word in ["10", "10:30", "1:00:00", "2-12", "2-12:30", "2-12:30:00"] {
        assert_eq!(check_time_limit(word), Ok(()), "{word}");
    }
    for word in ["", "soon", "1:2:3:4", "1-2-3", "10m", "-5", "1:", "99999999999", "1-1:1:1:1"] {
        assert!(check_time_limit(word).is_err(), "{word}");
    }
    assert_eq!(nodes("12"), Ok(NodeSelection::AtOnce(12)));
    assert_eq!(nodes("n[1-4,7]"), Ok(NodeSelection::These("n[1-4,7]".to_owned())));
    for word in ["", "0", "99999999999", "-w", "n1 n2", "n1;true", "$(x)"] {
        assert!(nodes(word).is_err(), "{word}");
    }
}

#[test]
fn arrays_are_ranges_below_the_limit() {
    check(&[0, 1, 2, 3], "0-3");
    check(&[7, 0, 1, 12, 10, 11, 1], "0-1,7,10-12");
    check(&[4_294_967_295, 4_294_967_294], "4294967294-4294967295");
    check(&[], "");
    assert_eq!(
        batches(&[0, 2, 1000, 1001, 2500], 1001),
        [batch(0, &[0, 2, 1000]), batch(1001, &[0]), batch(2002, &[498]),]
    );
    assert_eq!(batches(&[3, 4], 0), [batch(3, &[0]), batch(4, &[0])]);
    let all: Vec<u32> = (0..25_000).collect();
    for one in batches(&all, 1001) {
        assert!(one.elements.iter().all(|element| *element < 1001));
    }
}

fn batch(offset: u32, elements: &[u32]) -> Batch {
    Batch { offset, elements: elements.to_vec() }
}

fn check(elements: &[u32], expected: &str) {
    assert_eq!(array(elements), expected)
}

#[test]
fn scripts_hold_words_that_no_shell_changes() {
    let words = ["/a b/pin'fold", "--job", "$(rm -rf /)", "a\"b\\", ""].map(str::to_owned);
    let text = script(&words);
    assert_eq!(text, "#!/bin/sh\nexec '/a b/pin'\\''fold' '--job' '$(rm -rf /)' 'a\"b\\' ''\n");
    let job_request = JobRequest {
        name: "pinfold-1".to_owned(),
        partition: Some("pf".to_owned()),
        exclude: vec!["n2".to_owned(), "n3".to_owned()],
        time: Some("10".to_owned()),
    };
    let batch =
        BatchJob { program: &[], output: "/d", array_indices: &[0, 1, 2], at_once: Some(2) };
    let words = job_request.sbatch(&batch);
    for word in [
        "--exclusive",
        "--nodes=1",
        "--array=0-2%2",
        "--exclude=n2,n3",
        "--partition=pf",
        "--time=10",
        "--no-requeue",
        "--job-name=pinfold-1",
        "--output=/d/%A_%a.txt",
    ] {
        assert!(words.iter().any(|found| found == word), "{word}: {words:?}");
    }
}

#[test]
fn numbers_of_jobs() {
    assert_eq!(parse_job_id("17\n"), Ok(17));
    assert_eq!(parse_job_id("17;cluster\n"), Ok(17));
    assert_eq!(parse_job_id("sbatch: a note\n17\n"), Ok(17));
    for answer in
        ["", "\n", "Submitted batch job 17\n", "0\n", "-1\n", "1e3", "99999999999999999999"]
    {
        assert!(parse_job_id(answer).is_err(), "{answer:?}");
    }
}

#[test]
fn queues_are_read_and_nothing_else() {
    fn check(text: &str, why: &str) {
        let error = queue(text).unwrap_err().to_string();
        assert!(error.starts_with("squeue printed ") && error.contains(why), "{error}");
    }

    let text = "1|5|COMPLETED|n3|None\n1|2|FAILED|n3|NonZeroExitCode\n1|3|RUNNING|n1|None\n\
                1|N/A|PENDING||ReqNodeNotAvail, UnavailableNodes:n[1-2] | odd\n\n";
    assert_eq!(
        queue(text).unwrap(),
        [
            line(Some(5), TaskState::Completed, "n3"),
            line(Some(2), TaskState::Ended("FAILED".to_owned()), "n3"),
            line(Some(3), TaskState::Running, "n1"),
            line(
                None,
                TaskState::Pending("ReqNodeNotAvail, UnavailableNodes:n[1-2] | odd".to_owned()),
                ""
            ),
        ]
    );
    check("slurm_load_jobs error: Unexpected message received", "has 1 fields, not 5");
    check("1|2|RUNNING|n1", "has 4 fields, not 5");
    check("x|2|RUNNING|n1|", "\"x\" is not a job ID");
    check("1|5-99%3|PENDING||", "\"5-99%3\" is not an index");
    check("1|2|DREAMING|n1|", "\"DREAMING\" is not a job state");
    check("1|-2|RUNNING|n1|", "\"-2\" is not an index");
    // A line of one megabyte is not repeated in full.
    let long = queue(&"x".repeat(1 << 20)).unwrap_err().to_string();
    assert!(long.len() < 300, "{}", long.len());
}

fn line(element: Option<u32>, state: TaskState, node: &str) -> QueuedTask {
    QueuedTask { job: 1, element, state, node: node.to_owned() }
}

#[test]
fn configurations_nodes_and_partitions() {
    let text = "Configuration data as of now\nClusterName             = pf\n\
                MaxArraySize            = 1001\nMaxJobCount             = 10000\n\
                SLURM_VERSION           = 22.05.8\n";
    let found = config(text).unwrap();
    assert_eq!((found.max_array, found.max_jobs), (1001, 10_000));
    assert_eq!((found.version.as_str(), found.cluster.as_str()), ("22.05.8", "pf"));
    let error = config(&text.replace("1001", "many")).unwrap_err().to_string();
    assert!(error.contains("not a number for MaxArraySize"), "{error}");
    assert!(config("").is_err());

    let lines = node_lines("n1|idle|pf*\nn1|idle|shut\nn2|down*|pf*\nn3|mixed|pf*\n").unwrap();
    let (all, excluded) = choose(&lines, None, None).unwrap();
    assert_eq!(
        (names(&all), excluded),
        (
            names(&lines[..1]).into_iter().chain(["n2".to_owned(), "n3".to_owned()]).collect(),
            Vec::new()
        )
    );
    let up: Vec<bool> = all.iter().map(NodeLine::is_up).collect();
    assert_eq!(up, [true, false, true]);
    let (used, excluded) = choose(&lines, Some("pf"), Some(&["n3".to_owned()])).unwrap();
    assert_eq!(
        (names(&used), excluded),
        (vec!["n3".to_owned()], vec!["n1".to_owned(), "n2".to_owned()])
    );
    let (what, hint) = choose(&lines, Some("nope"), None).unwrap_err();
    assert_eq!(
        (what.as_str(), hint.as_str()),
        ("there is no partition \"nope\"", "name one with --partition: pf, shut")
    );
    let (what, _) = choose(&lines, None, Some(&["n9".to_owned()])).unwrap_err();
    assert_eq!(what, "the partition pf has no node \"n9\"");
    let (what, _) = choose(&lines[1..2], None, None).unwrap_err();
    assert_eq!(what, "the cluster has no default partition");
    for text in ["n1|idle\n", "|idle|pf\n", "n1|idle|pf|more\n"] {
        assert!(node_lines(text).is_err(), "{text}");
    }
}

fn names(lines: &[NodeLine]) -> Vec<String> {
    lines.iter().map(|one| one.name.clone()).collect::<Vec<_>>()
}

#[test]
fn complaints_become_sentences_with_a_way_out() {
    fn check(program: &str, said: &str, message: &str, hint: &str) {
        let (found, way) = explain_error(program, said);
        assert_eq!(found, message);
        assert!(way.unwrap_or("none").contains(hint), "{way:?}");
    }

    check(
        "sbatch",
        "sbatch: error: If munged is up, restart with --num-threads=10\n\
         sbatch: error: Munge encode failed: Failed to access \"/run/munge\": No such file",
        "sbatch cannot authenticate: munge does not answer",
        "munged",
    );
    check(
        "sinfo",
        "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
        "sinfo cannot reach the Slurm controller",
        "slurmctld",
    );
    check(
        "sbatch",
        "sbatch: error: invalid partition specified: nope\n\
         sbatch: error: Batch job submission failed: Invalid partition name specified\n",
        "sbatch: Batch job submission failed: Invalid partition name specified",
        "sinfo",
    );
    check("sbatch", "", "sbatch: it failed", "none");
    let full = "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: \
                Job violates accounting/QOS policy (job submit limit)\n";
    check(
        "sbatch",
        full,
        "sbatch: Batch job submission failed: Job violates accounting/QOS policy (job submit limit) \
         (AssocMaxSubmitJobLimit)",
        "ask the administrators of the cluster",
    );
    check(
        "sbatch",
        "sbatch: error: Batch job submission failed: Invalid job array specification\n",
        "sbatch: Batch job submission failed: Invalid job array specification",
        "MaxArraySize",
    );
    assert_eq!(describe_end_state("TIMEOUT", None), "the time limit ended it");
    assert_eq!(describe_end_state("FAILED", Some("7:0")), "exit code 7");
    assert_eq!(describe_end_state("FAILED", Some("0:9")), "killed by signal 9");
    assert_eq!(describe_end_state("FAILED", Some("rubbish")), "it failed");
    assert_eq!(describe_end_state("UNHEARD", None), "it ended as UNHEARD");
    let answer = "JobId=4 JobState=FAILED Reason=X ExitCode=7:0 NodeList=n3";
    assert_eq!(job_field(answer, "ExitCode"), Some("7:0"));
    assert_eq!(job_field(answer, "Exit"), None);
    let said = "first\nslurmstepd: error: *** JOB 9 ON n2 CANCELLED AT now DUE TO TIME LIMIT ***\n";
    assert_eq!(last_message(said), Some("first"));
    assert_eq!(last_message(""), None);
}

#[test]
fn refusals_are_distinguished_by_what_waiting_helps() {
    fn check(said: &str, expected: Option<Rejection>) {
        assert_eq!(not_taken(said), expected, "{said}");
        // The message that is composed from it gives the same result.
        assert_eq!(not_taken(&explain_error("sbatch", said).0), expected, "{said}");
    }

    let policy =
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)";
    let failed = "sbatch: error: Batch job submission failed:";
    let room = Some(Rejection::NoRoom);
    for limit in [
        "AssocMaxSubmitJobLimit",
        "AssocGrpSubmitJobsLimit",
        "QOSMaxSubmitJobPerUserLimit",
        "QOSGrpSubmitJobsLimit",
        "MaxSubmitJobsPerAccount",
    ] {
        check(&format!("sbatch: error: {limit}\n{failed} {policy}\n"), room);
    }
    // The same last line, for limits where waiting does not help.
    for limit in ["AssocMaxWallDurationPerJobLimit", "QOSMaxNodePerJobLimit", "QOSMinGRES"] {
        check(&format!("sbatch: error: {limit}\n{failed} {policy}\n"), None);
    }
    check(&format!("{failed} {policy}\n"), Some(Rejection::Unnamed));
    // MaxJobCount in Slurm 22.05: at once, and after the wait of sbatch itself.
    let full = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n";
    check(full, room);
    check(&format!("{full}{failed} Resource temporarily unavailable\n"), room);
    check("sbatch: error: Slurm job queue full, sleeping and retrying\n", room);
    check("sbatch: Job creation temporarily disabled, retrying\n", room);
    check(&format!("{failed} Invalid job array specification\n"), Some(Rejection::ArrayTooLarge));
    check(&format!("{failed} Invalid partition name specified\n"), None);
    check("", None);
    assert!(is_sbatch_retrying(full) && !is_sbatch_retrying(failed));
    // A controller that does not answer is not full.
    assert_eq!(
        not_taken("sbatch: error: Slurm controller not responding, sleeping and retrying.\n"),
        None
    );
}

#[test]
fn arrays_hold_each_task_once_with_its_attempt() {
    let asks: Vec<PartAttempt> = [(0, 1), (2, 2), (1001, 1), (3, 1), (1002, 2)]
        .map(|(part, attempt)| PartAttempt { part, attempt })
        .to_vec();
    let found = arrays(&asks, 1001);
    let tasks: Vec<(u32, u32, u64, u32)> = found
        .iter()
        .zip(7..)
        .flat_map(|((attempt, batch), job)| batch.tasks(*attempt, job, 5))
        .map(|task| (task.part, task.attempt, task.job, task.element))
        .collect();
    assert_eq!(
        tasks,
        [(0, 1, 7, 0), (3, 1, 7, 3), (1001, 1, 8, 0), (2, 2, 9, 2), (1002, 2, 10, 1)]
    );
    // Half as long, for any position of the parts.
    for size in [1, 2, 500] {
        let found = arrays(&asks, size);
        assert!(found.iter().all(|(_, one)| one.elements.iter().all(|index| *index < size)));
        assert_eq!(found.iter().map(|(_, one)| one.elements.len()).sum::<usize>(), asks.len());
    }
}
