//! A command that a hint names repeats the user's options: run as it stands, it gives what the
//! hint promises.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

use pinfold_host::process::capture;
use pinfold_host::user;

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const RYZEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts/ryzen-7950x3d.xml");
const MINUTE_NS: u64 = 60_000_000_000;

struct Answer {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn pinfold(arguments: &str) -> Answer {
    shell(&format!("pinfold {arguments}"))
}

/// Runs a command line as a person would type it.
fn shell(line: &str) -> Answer {
    let line = line.replacen("pinfold ", &format!("{PINFOLD} "), 1);
    let output = capture("sh", ["-c", &line], MINUTE_NS).expect("sh runs");
    Answer {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: output.stderr_text(),
    }
}

/// The commands that a text names, each up to what ends it there. Sentences are folded.
fn commands(text: &str) -> Vec<String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let ends = [" > NEW", "`", " places it", ")"];
    let starts = text.match_indices("pinfold plan ").map(|(at, _)| &text[at..]);
    starts
        .map(|rest| {
            let end = ends.iter().filter_map(|end| rest.find(end)).min();
            rest[..end.unwrap_or(rest.len())].trim_end().to_owned()
        })
        .collect()
}

fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name).to_string_lossy().into_owned();
    user::write_atomic(&path, text.as_bytes()).expect("a file");
    path
}

/// Asserts that the first command that `answer` names has these options, and runs it.
fn follow(answer: &Answer, options: &[&str]) -> (String, Answer) {
    let said = format!("{}\n{}", answer.stderr, answer.stdout);
    let named = commands(&said);
    let command = named.first().unwrap_or_else(|| panic!("no command in {said}")).clone();
    for option in options {
        assert!(command.contains(option), "{option} is not in {command}");
    }
    let followed = shell(&command);
    assert_eq!(followed.code, Some(0), "{command}: {}", followed.stderr);
    (command, followed)
}

#[test]
fn a_preference_that_would_change_the_plan_is_planned_by_its_hint() {
    let asked = format!("plan -s balanced --vcpus 8 --input {RYZEN} --avoid 3 --pin emulator=1");
    let answer = pinfold(&asked);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    let options = ["--strategy balanced", "--vcpus 8", "--avoid 3", "--pin emulator=1", "--prefer"];
    let (command, followed) = follow(&answer, &options);
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let there = "with a preference for ";
    assert!(flat(&answer.stdout).contains(there), "{}", answer.stdout);
    assert_ne!(followed.stdout, answer.stdout, "{command}");
}

#[test]
fn a_plan_with_warnings_is_made_again_without_them() {
    let folder = tempfile::tempdir().expect("a folder");
    // The vCPUs of this plan are on both L3 caches.
    let conditions = format!("--input {RYZEN} --avoid 5 --prefer frequency");
    let made =
        pinfold(&format!("plan -s scatter --vcpus 8 --name du --iothread io1 {conditions} --json"));
    let plan = file(&folder, "plan.json", &made.stdout);
    let found = pinfold(&format!("plan --check {plan} {conditions}"));
    assert_eq!(found.code, Some(1), "{}", found.stdout);
    let hint = Answer { stdout: String::new(), ..found };
    let options = ["--vcpus 8", "--name du", "--iothread io1", "--avoid 5", "--prefer frequency"];
    let (_, again) = follow(&hint, &options);
    let again = file(&folder, "again.json", &again.stdout);
    let passes = pinfold(&format!("plan --check {again} {conditions}"));
    assert_eq!(passes.code, Some(0), "{}", passes.stdout);
}

#[test]
fn a_plan_is_no_domain_file_and_the_hint_plans_it_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let made =
        pinfold(&format!("plan -s balanced --vcpus 4 --isolate host --input {RYZEN} --json"));
    let plan = file(&folder, "plan.json", &made.stdout);
    let found = pinfold(&format!("plan --check {plan} --fix --input {RYZEN} --isolate host"));
    assert_eq!(found.code, Some(2), "{}", found.stderr);
    let (_, again) = follow(&found, &["--strategy balanced", "--vcpus 4", "--isolate host"]);
    assert_eq!(again.stdout, made.stdout);
}

#[test]
fn what_isolates_repeats_the_conditions_and_is_for_the_very_cores() {
    let folder = tempfile::tempdir().expect("a folder");
    let conditions = format!("--input {RYZEN} --host-pus 0-1,16-17");
    let made = pinfold(&format!("plan -s balanced --vcpus 4 {conditions} --json"));
    let plan = file(&folder, "plan.json", &made.stdout);
    let found = pinfold(&format!("plan --check {plan} {conditions} --json"));
    assert_eq!(found.code, Some(0), "{}", found.stdout);
    let named = commands(&found.stdout);
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(named[0].contains("--isolate host --host-pus 0-1,16-17"), "{named:?}");
    let followed = shell(&named[0]);
    assert_eq!(followed.code, Some(0), "{named:?}: {}", followed.stderr);
    assert!(followed.stdout.contains("\"exclusive_pus\": \"2"), "{}", followed.stdout);
    let boot = "`isolcpus=managed_irq,domain,2-3,18-19 nohz_full=2-3,18-19 rcu_nocbs=2-3,18-19 \
                irqaffinity=0-1,4-17,20-31`";
    assert!(found.stdout.contains(boot), "{}", found.stdout);
}

#[test]
fn a_plan_of_another_machine_or_of_several_is_made_again_here() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = pinfold(&format!("plan --group name=job,cores=1 --input {RYZEN} --json"));
    let foreign = file(&folder, "foreign.json", &made.stdout);
    let state = format!("--state-dir {}", folder.path().join("state").display());
    let found = pinfold(&format!("run {state} --plan {foreign} -- true"));
    assert_eq!(found.code, Some(2), "{}", found.stderr);
    let (_, again) = follow(&found, &["--group name=job,cores=1"]);
    let here = file(&folder, "here.json", &again.stdout);
    let checked = pinfold(&format!("plan --check {here}"));
    assert!(!checked.stderr.contains("another machine"), "{}", checked.stderr);

    let made = pinfold("plan -s none --vm name=a,vcpus=1 --vm name=b,vcpus=1 --json");
    let both = file(&folder, "both.json", &made.stdout);
    let found = pinfold(&format!("run {state} --plan {both} -- qemu-system-x86_64 -S"));
    assert_eq!(found.code, Some(2), "{}", found.stderr);
    let (_, again) = follow(&found, &["--strategy none", "--vcpus 1", "--name a"]);
    assert!(again.stdout.contains("\"name\": \"a\"") && !again.stdout.contains("\"name\": \"b\""));
}
