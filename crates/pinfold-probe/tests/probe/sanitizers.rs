//! The same sources under the address and undefined-behaviour sanitizers, the parallel programs
//! also under the thread sanitizer.

use crate::common::{PATIENCE, Program, a_pu, c_sources, is_full_size, program};
use pinfold_host::process::{Spawn, Stdio, capture};
use pinfold_probe::agent::{Agent, AgentError};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::parallel::{Catalogue, CatalogueEntry, Parallel, Size, ThreadRule};

const FLAGS: [&str; 8] = [
    "-std=c11",
    "-g",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-sanitize-recover=all",
    "-pthread",
];

/// The program with these sanitizers, or nothing (said) where there are no libraries for them.
fn build(folder: &str, sanitizers: &str) -> Option<String> {
    let path = format!("{folder}/pinload-sanitized");
    let mut arguments: Vec<String> = FLAGS.map(str::to_owned).to_vec();
    arguments.extend([format!("-fsanitize={sanitizers}"), "-o".to_owned(), path.clone()]);
    arguments.extend(c_sources());
    arguments.push("-lm".to_owned());
    let answer = capture("cc", &arguments, 5 * PATIENCE).unwrap();
    let why = answer.stderr_text();
    if !answer.status.success()
        && ["asan", "ubsan", "tsan"].iter().any(|library| why.contains(library))
    {
        println!("skipped: no sanitizer library: {why}");
        return None;
    }
    assert!(answer.status.success(), "{why}");
    Some(path)
}

/// Every second parallel program with some threads, so that each is run under one of the two builds;
/// all with `PINFOLD_TEST_SIZE=full`. The one whose stages can have threads of their own gets more
/// than six.
fn parallel_runs(program: &Program, first: usize) -> Vec<String> {
    let (first, step) = if is_full_size() { (0, 1) } else { (first, 2) };
    let programs = Catalogue::from_pinload(&program.pinload).unwrap().programs;
    let threads = |listed: &CatalogueEntry| match (listed.name.as_str(), listed.threads) {
        ("ferret", _) => 7,
        (_, ThreadRule::PowerOfTwo) => 4,
        (_, ThreadRule::Any) => 3,
    };
    programs
        .iter()
        .skip(first)
        .step_by(step)
        .map(|listed| {
            Parallel::new(&listed.name, threads(listed), Size::Small).instrument().argv().join(" ")
        })
        .collect()
}

#[test]
fn parallel_programs_do_not_race() {
    let program = program();
    let Some(path) = build(program.folder.path().to_str().unwrap(), "thread") else {
        return;
    };
    for arguments in parallel_runs(&program, 0) {
        let output = capture(&path, arguments.split(' '), 5 * PATIENCE).unwrap();
        let text = output.stderr_text();
        if text.contains("FATAL: ThreadSanitizer: unexpected memory mapping") {
            println!("skipped: this kernel's memory layout is unknown to the thread sanitizer");
            return;
        }
        assert_eq!(output.status.code(), Some(0), "{arguments}: {text}");
        assert!(!text.contains("ThreadSanitizer"), "{arguments}: {text}");
    }
}

#[test]
fn no_sanitizer_has_anything_to_say() {
    let program = program();
    let folder = program.folder.path().to_str().unwrap();
    let Some(path) = build(folder, "address,undefined") else {
        return;
    };
    let check = |arguments: &str, code: i32| {
        let output = capture(&path, arguments.split(' '), PATIENCE).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {}", output.stderr_text());
    };
    let cpu = a_pu();
    check(&format!("spin-gap --seconds 0.05 --cpus {cpu} --max-samples 3 --floor-ns 1"), 0);
    check("spin-gap --seconds 0.05 --cpus all --policy fifo:2", 0);
    check(&format!("wakeup --seconds 0.05 --cpus {cpu}"), 0);
    check(&format!("compute --seconds 0.05 --cpus {cpu}"), 0);
    check(
        &format!("io-latency --seconds 0.05 --direct --file {}", program.file("blocks", 65_536)),
        0,
    );
    check("io-latency --seconds 0.05 --file /none", 1);
    check("load cpu --threads 2 --seconds 0.05", 0);
    check("load memory --threads 2 --seconds 0.05 --memory-mib 1", 0);
    check(
        &format!("load io --threads 1 --seconds 0.05 --path {}", program.folder.path().display()),
        0,
    );
    for kind in ["cpu", "udp", "sleep --sleep-seconds 0.01", "memory --memory-mib 1", "cache"] {
        check(&format!("micro {kind} --seconds 0.02"), 0);
    }
    check("micro processes --units 100 --workers 3", 0);
    check("micro threads --units 100 --workers 3", 0);
    check("progress --seconds 0.015 --threads 2 --cpus all", 0);
    check("progress --seconds 0.015 --processes 3 --gap-min-ns 1000 --max-stops 1", 0);
    check("burst --seconds 0.02 --units 50 --sleep-us 50 --max-samples 3", 0);
    for kind in ["fork", "spawn", "pipe"] {
        check(&format!("churn {kind} --seconds 0.02"), 0);
    }
    memory_is_clean(&check);
    let folder = program.folder.path().display();
    check(&format!("switch --seconds 0.02 --cpus {cpu} --processes 2,5 --kib 0,3"), 0);
    check("switch --seconds 0.02 --cpus all --processes 3 --placement balanced --policy fifo:2", 0);
    check("switch --seconds 0.02 --cpus all --max-samples 1", 0);
    check(&format!("ipc-bandwidth --seconds 0.02 --from 4K --to 1M --directory {folder}"), 0);
    check(&format!("os-latency --seconds 0.02 --rss-mib 1 --directory {folder}"), 0);
    check("os-latency --seconds 0.02 --operations create-0k --directory /none", 1);
    check("intmix --seconds 0.02 --cpus all", 0);
    check("compute --seconds 1 --cpus 0,,0", 2);
    check("load", 2);
    for arguments in parallel_runs(&program, 1) {
        check(&arguments, 0);
    }
    check("parallel fft --threads 3 --size small", 2);
    check("parallel --list", 0);
    agent_is_clean(&path, program.folder.path().to_str().unwrap());
}

fn memory_is_clean(check: &dyn Fn(&str, i32)) {
    let cpu = a_pu();
    let all = "read,write,copy,read-partial,write-partial,modify-partial,copy-partial,fill";
    let windows = "--windows 30 --window-us 100";
    for width in ["auto", "scalar"] {
        check(&format!("bandwidth --to 8K --operations {all} --width {width} {windows}"), 0);
    }
    check(&format!("stream-variant --array-mib 1 {windows}"), 0);
    check(
        &format!("chase --to 64K --order both --loads 2 --load-cpus {cpu} --load-mib 1 {windows}"),
        0,
    );
    check(
        &format!(
            "loop64 --seconds 0.05 --interferer copy --interferer-cpu {cpu} --interferer-mib 2"
        ),
        0,
    );
}

fn agent_is_clean(path: &str, folder: &str) {
    let mut child = Spawn::new(path)
        .args(["agent", "--stdio"])
        .stdin(Stdio::Pipe)
        .stdout(Stdio::Pipe)
        .start()
        .unwrap();
    let (input, output) = (child.stdout().unwrap(), child.stdin().unwrap());
    let agent = Agent::over(input, output, "sanitized", PATIENCE).unwrap();
    let cat = agent.start(&["/bin/cat"]).unwrap();
    agent.write(cat, &vec![b'x'; 300_000]).unwrap();
    agent.close(cat).unwrap();
    assert_eq!(agent.wait(cat, PATIENCE).unwrap().stdout.len(), 300_000);
    agent.send_file(&format!("{folder}/sent"), 0o600, &vec![1; 700_000]).unwrap();
    let refused = agent.run(&["/none"], PATIENCE).unwrap_err();
    assert!(matches!(refused, AgentError::Refused { .. }), "{refused}");
    let load =
        agent.start(&["load", "cpu", "--threads", "1", "--seconds", "60", "--supervised"]).unwrap();
    agent.heartbeat().unwrap();
    assert!(agent.stop(load).unwrap().success());
    agent.start(&["/bin/sleep", "600"]).unwrap(); // ended with the agent
    drop(agent);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
