//! Every wrong argument is refused by name with exit code 2.

use crate::common::{PATIENCE, program};
use pinfold_host::process::capture;

fn check_refused(path: &str, arguments: &str, expected: &str) {
    let output = capture(path, arguments.split(' '), PATIENCE).unwrap();
    let text = output.stderr_text();
    assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
    assert!(text.contains(expected), "{arguments}: {text} should hold {expected:?}");
    assert_eq!(output.stdout, b"", "{arguments}");
}

#[test]
fn wrong_arguments_are_refused_by_name() {
    let program = program();
    let path = program.pinload.path();
    let check = |arguments: &str, expected: &str| check_refused(&path, arguments, expected);
    for seconds in
        ["nan", "inf", "-1", "+1", "0", "1e3", "0x1", "", ".", "1.2.3", "1s", "99999999999"]
    {
        check(&format!("wakeup --cpus all --seconds {seconds}"), "--seconds: \"");
    }
    for cpus in ["", "x", "0-", "-1", "1-0", "0,,1", "99999", "0,0", "all,0"] {
        check(&format!("compute --seconds 1 --cpus {cpus}"), "--cpus: ");
    }
    check("compute --seconds 1 --cpus 8191", "--cpus: CPU 8191 is offline or not ours");
    for policy in ["fifo", "fifo:0", "fifo:100", "fifo:-1", "rr:1", "", "OTHER"] {
        check(&format!("spin-gap --seconds 1 --cpus all --policy {policy}"), "--policy: \"");
    }
    check("spin-gap --seconds 1", "--cpus: this argument is required");
    check("spin-gap --seconds 1 --cpus all --duty 0", "--duty: \"0\"");
    check("spin-gap --seconds 1 --cpus all --duty 101", "--duty: \"101\"");
    check("spin-gap --seconds 1 --cpus all --duty 100 --policy fifo:1", "--duty: 100 under");
    check("spin-gap --seconds 1 --cpus all --floor-ns 0", "--floor-ns: \"0\"");
    check("spin-gap --seconds 1 --cpus all --period-us 999", "--period-us: \"999\"");
    check("spin-gap --seconds 1 --cpus all --max-samples 0", "--max-samples: \"0\"");
    check("spin-gap --seconds 1 --cpus all --speed 3", "--speed: unknown argument");
    check("spin-gap --seconds 1 --seconds 2", "--seconds: given twice");
    check("spin-gap --cpus all --seconds", "--seconds: the value is missing");
    check(
        "wakeup --seconds 0.5 --cpus all --period-us 1000000",
        "--period-us: the period is longer",
    );
    check("compute --seconds 1 --cpus all --window-ms 0", "--window-ms: \"0\"");
    check("compute --seconds 1 --cpus all --policy fifo:1", "--policy: fifo would starve");
    check("io-latency --seconds 1", "--device, --file: exactly one");
    check("io-latency --seconds 1 --file /a --device /b", "--device, --file: exactly one");
    check("io-latency --seconds 1 --file /a --block 1000", "--block: 1000 is not a multiple");
    check("io-latency --seconds 1 --file /a --seed -1", "--seed: \"-1\"");
    check("load", "the kind of load is missing");
    check("load gpu", "\"gpu\" is not a kind of load");
    check("load cpu --seconds 1", "--threads: this argument is required");
    check("load cpu --threads 0 --seconds 1", "--threads: \"0\"");
    check("load cpu --threads 1", "--seconds: required of a load that is not --supervised");
    check("load cpu --threads 1 --supervised --silence 0", "--silence: \"0\"");
    check("load io --threads 1 --seconds 1", "--path: the io load requires a path");
    check("load cpu --threads 1 --seconds 1 --path /tmp", "--path: only the io load");
    check("agent", "--stdio, --socket-fd: exactly one");
    check("agent --socket-fd 2", "--socket-fd: \"2\"");
    check("fly", "\"fly\" is not a command");
}

#[test]
fn wrong_arguments_of_the_benchmarks_of_speed_are_refused_by_name() {
    let program = program();
    let path = program.pinload.path();
    let check = |arguments: &str, expected: &str| check_refused(&path, arguments, expected);
    check("micro", "the micro-benchmark is missing");
    check("micro gpu --seconds 1", "\"gpu\" is not a micro-benchmark");
    check("micro cpu", "--seconds, --units: exactly one");
    check("micro cpu --seconds 1 --units 1", "--seconds, --units: exactly one");
    check("micro cpu --seconds 0.001", "--seconds: \"0.001\"");
    check("micro cpu --units 0", "--units: \"0\"");
    check("micro cpu --units 1 --workers 2", "--workers: only processes and threads");
    check("micro threads --units 1 --workers 1025", "--workers: \"1025\"");
    check("micro memory --units 1 --memory-mib 0", "--memory-mib: \"0\"");
    check("micro cache --units 1 --cache-kib 3", "--cache-kib: \"3\"");
    check("micro sleep --units 1 --sleep-seconds 0", "--sleep-seconds: \"0\"");
    check("progress --seconds 1", "--threads, --processes: exactly one");
    check("progress --seconds 1 --threads 1 --processes 1", "--threads, --processes: exactly");
    check("progress --seconds 1 --threads 0", "--threads: \"0\"");
    check("progress --seconds 0.0105 --threads 1", "--seconds: not a whole number of millisec");
    check("progress --seconds 601 --threads 1", "--seconds: \"601\"");
    check("progress --seconds 1 --threads 1 --gap-min-ns 999", "--gap-min-ns: \"999\"");
    check("progress --seconds 1 --threads 1 --max-stops 0", "--max-stops: \"0\"");
    check("burst --seconds 1 --units 1", "--sleep-us: this argument is required");
    check("burst --seconds 1 --sleep-us 1", "--units: this argument is required");
    check("burst --seconds 1 --units 1 --sleep-us 0", "--sleep-us: \"0\"");
    check("churn", "the kind of churn is missing");
    check("churn exec --seconds 1", "\"exec\" is not a kind of churn");
    check("churn fork", "--seconds: this argument is required");
    check("churn fork --seconds 1 --units 0", "--units: \"0\"");
    check("churn child", "--units: this argument is required");
}

#[test]
fn wrong_arguments_of_the_memory_instruments_are_refused_by_name() {
    let program = program();
    let path = program.pinload.path();
    let check = |arguments: &str, expected: &str| check_refused(&path, arguments, expected);
    for size in ["", "4095", "4k", "1T", "-4096", "4096G1", "G", "99999999999G"] {
        check(&format!("bandwidth --from {size}"), "--from: \"");
    }
    check("bandwidth --from 8K --to 4K", "--from: 8192 is more than --to, 4096");
    check("bandwidth --steps 0", "--steps: \"0\"");
    check("bandwidth --operations read,fly", "--operations: \"fly\" is not read, write");
    check("bandwidth --operations read,", "--operations: \"\" is not read, write");
    check("bandwidth --operations read,read", "--operations: read is listed twice");
    check("bandwidth --width mmx", "--width: \"mmx\" is not auto, scalar, 128");
    check("bandwidth --stride 24", "--stride: 24 is not 16 or 32");
    check("bandwidth --pages 2m", "--pages: \"2m\" is not 4k or huge");
    check("bandwidth --node -1", "--node: \"-1\" is not a node");
    check("bandwidth --windows 29", "--windows: \"29\"");
    check("bandwidth --window-us 99", "--window-us: \"99\"");
    check("stream-variant --array-mib 0", "--array-mib: \"0\"");
    check("chase --order zigzag", "--order: \"zigzag\" is not random, linear or both");
    check("chase --from 1023", "--from: \"1023\"");
    check("chase --loads 0", "--loads: \"0\"");
    check("chase --load-node 0", "--load-cpus, --load-node: there are no loads");
    check("chase --delays-ns 1,,2", "--delays-ns: \"1,,2\" is not a list");
    check("chase --delays-ns 5,5", "--delays-ns: 5 is listed twice");
    check("chase --pause-us 0", "--pause-us: \"0\"");
    check("chase --cpu 8191", "--cpu: CPU 8191 is offline or not ours");
    check("loop64", "--seconds: this argument is required");
    check("loop64 --seconds 1 --policy fifo:0", "--policy: \"fifo:0\"");
    check(
        "loop64 --seconds 1 --interferer fly",
        "--interferer: \"fly\" is not read, write or copy",
    );
    check("loop64 --seconds 1 --interferer-node 0", "there is none without --interferer");
    check("loop64 --seconds 1 --passes 0", "--passes: \"0\"");
    check(
        "loop64 --seconds 1 --accesses chain",
        "--accesses: \"chain\" is not independent or dependent",
    );
}

#[test]
fn help_is_no_error() {
    let program = program();
    let benchmarks = ["spin-gap", "wakeup", "compute", "io-latency", "load", "agent"];
    for command in benchmarks.into_iter().chain([
        "progress",
        "burst",
        "micro",
        "churn",
        "switch",
        "ipc-bandwidth",
        "os-latency",
        "intmix",
    ]) {
        let output = capture(&program.pinload.path(), [command, "--help"], PATIENCE).unwrap();
        assert!(output.status.success() && output.stdout_text().contains("--"), "{command}");
    }
}

#[test]
fn wrong_arguments_of_the_instruments_of_the_operating_system_are_refused_by_name() {
    let program = program();
    let path = program.pinload.path();
    let check = |arguments: &str, expected: &str| check_refused(&path, arguments, expected);
    let cpu = crate::common::a_pu();
    check("switch --seconds 1", "--cpus: this argument is required");
    for processes in ["0", "1", "513", "", "2,", "2,,4", "2,2", "2,x", "-2"] {
        check(&format!("switch --seconds 1 --cpus all --processes {processes}"), "--processes: ");
    }
    let many: Vec<_> = (2..40).map(|number: u32| number.to_string()).collect();
    check(
        &format!("switch --seconds 1 --cpus all --processes {}", many.join(",")),
        "--processes: more than 32 values",
    );
    check("switch --seconds 1 --cpus all --kib 1048577", "--kib: \"1048577\"");
    check("switch --seconds 1 --cpus 8191", "--cpus: CPU 8191 is offline or not ours");
    check(
        "switch --seconds 1 --cpus all --placement spread",
        "--placement: \"spread\" is not one-pu, unique or balanced",
    );
    check(
        &format!("switch --seconds 1 --cpus {cpu} --processes 2,3 --placement unique"),
        "--placement: unique needs a CPU for each of 2 processes, and --cpus has 1",
    );
    check(
        "switch --seconds 0.01 --cpus all --window-us 10001",
        "--window-us: the window is longer than --seconds",
    );
    check("ipc-bandwidth --seconds 1 --transports tcp", "--transports: \"tcp\" is not pipe, unix,");
    check("ipc-bandwidth --seconds 1 --transports pipe,pipe", "--transports: pipe is listed twice");
    check("ipc-bandwidth --seconds 1 --transports pipe,", "--transports: \"\" is not pipe");
    check("ipc-bandwidth --seconds 1 --chunk-kib 0", "--chunk-kib: \"0\"");
    check("ipc-bandwidth --seconds 1 --from 1K", "--from: \"1K\"");
    check("ipc-bandwidth --seconds 1 --from 16M", "--from: 16777216 is more than --to, 8388608");
    check("ipc-bandwidth --seconds 0.01 --window-us 10001", "--window-us: the window is longer");
    check("os-latency", "--seconds: this argument is required");
    check("os-latency --seconds 1 --operations fork", "--operations: \"fork\" is not null,");
    check("os-latency --seconds 1 --descriptors 901", "--descriptors: \"901\"");
    check("os-latency --seconds 1 --descriptors 0", "--descriptors: \"0\"");
    check("os-latency child --seconds 1", "child: unknown argument");
    check("intmix --seconds 1", "--cpus: this argument is required");
    check("intmix --seconds 0 --cpus all", "--seconds: \"0\"");
    check("compute --seconds 1 --cpus all --dma-latency", "--dma-latency: unknown argument");
}
