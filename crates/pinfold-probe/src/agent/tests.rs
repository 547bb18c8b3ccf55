//! The client against the real agent on the host, and against peers that violate the protocol.

use std::io::Write as _;
use std::os::unix::net::UnixListener;

use pinfold_host::process::{Child, Spawn, Stdio};
use pinfold_host::{SimClock, SystemClock};
use pinfold_model::CpuSet;

use super::*;
use crate::pinload::Pinload;

const PATIENCE: u64 = 60 * NS_PER_S;

struct Served {
    folder: tempfile::TempDir,
    _pinload: Pinload,
    child: Child,
}

fn serve() -> Served {
    let folder = tempfile::tempdir().unwrap();
    let pinload = Pinload::install_in(folder.path().join("bin").to_str().unwrap()).unwrap();
    let child = Spawn::new(&pinload.path())
        .args(["agent", "--stdio"])
        .stdin(Stdio::Pipe)
        .stdout(Stdio::Pipe)
        .start()
        .unwrap();
    Served { folder, _pinload: pinload, child }
}

fn agent() -> (Served, Agent) {
    let mut served = serve();
    let (input, output) = (served.child.stdout().unwrap(), served.child.stdin().unwrap());
    let agent = Agent::over(input, output, "here", PATIENCE).unwrap();
    (served, agent)
}

#[test]
fn hello_reports_the_kernel_and_the_cpus() {
    let (_served, agent) = agent();
    let hello = agent.hello();
    assert!(!hello.kernel.is_empty() && !hello.cpus_online.is_empty(), "{hello:?}");
    assert!(!hello.is_init && hello.module_failures.is_empty(), "{hello:?}");
}

#[test]
fn an_agent_that_is_not_init_brings_nothing_online_and_says_hello_again() {
    let (_served, mut agent) = agent();
    let before = agent.hello().clone();
    agent.bring_cpus_online(PATIENCE, &|| true).unwrap();
    assert_eq!(*agent.hello(), before);
    assert!(agent.run(&["/bin/true"], PATIENCE).unwrap().success());
}

#[test]
fn programs_give_output_code_and_signal() {
    let (_served, agent) = agent();
    let check = |argv: &[&str], exit, stdout: &str, stderr: &str| {
        let output = agent.run(argv, PATIENCE).unwrap();
        let found = (output.exit, output.stdout_text(), output.stderr_text());
        assert_eq!(found, (exit, stdout.to_owned(), stderr.to_owned()), "{argv:?}");
    };
    check(&["/bin/sh", "-c", "echo out; echo err >&2; exit 7"], Exit::Code(7), "out\n", "err\n");
    check(&["/bin/sh", "-c", "kill -9 $$"], Exit::Signal(9), "", "");
    check(&["/bin/cat"], Exit::Code(0), "", ""); // its standard input is at its end
    check(&["/bin/echo", "", "a b", "ü"], Exit::Code(0), " a b ü\n", "");
    let wrong = agent.run(&["fly"], PATIENCE).unwrap();
    assert_eq!(wrong.exit, Exit::Code(2), "{}", wrong.stderr_text());
}

#[test]
fn a_benchmark_runs_through_the_agent() {
    let (_served, agent) = agent();
    let pu = agent.hello().cpus_online.first().unwrap();
    let benchmark = crate::benchmarks::Benchmark::wakeup(50 * NS_PER_MS)
        .on(crate::benchmarks::Cpus::These(CpuSet::single(pu)));
    assert_eq!(benchmark.run_in_guest(&agent).unwrap()[0].samples.len(), 50);
}

#[test]
fn output_beyond_every_buffer_arrives_whole() {
    let (_served, agent) = agent();
    let output = agent.run(&["/bin/sh", "-c", "head -c 20000000 /dev/zero"], PATIENCE).unwrap();
    assert_eq!((output.exit, output.stdout.len()), (Exit::Code(0), 20_000_000));
}

#[test]
fn channels_run_side_by_side() {
    let (_served, agent) = agent();
    let cats: Vec<ChannelId> = (0..20).map(|_| agent.start(&["/bin/cat"]).unwrap()).collect();
    for round in 0..3 {
        for (index, cat) in cats.iter().enumerate() {
            agent.write(*cat, format!("{index}:{round} ").as_bytes()).unwrap();
        }
    }
    let between = agent.run(&["/bin/echo", "between"], PATIENCE).unwrap();
    assert_eq!(between.stdout_text(), "between\n");
    for (index, cat) in cats.iter().enumerate().rev() {
        assert!(!agent.has_ended(*cat));
        agent.close(*cat).unwrap();
        let output = agent.wait(*cat, PATIENCE).unwrap();
        assert_eq!(output.stdout_text(), format!("{index}:0 {index}:1 {index}:2 "));
    }
}

#[test]
fn many_threads_may_share_an_agent() {
    let (_served, agent) = agent();
    std::thread::scope(|scope| {
        for index in 0..8 {
            let agent = &agent;
            scope.spawn(move || {
                let text = index.to_string();
                let output = agent.run(&["/bin/echo", &text], PATIENCE).unwrap();
                assert_eq!(output.stdout_text(), format!("{index}\n"));
            });
        }
    });
}

#[test]
fn what_cannot_be_done_is_refused_and_the_agent_lives_on() {
    let (_served, agent) = agent();
    let refused = agent.run(&["/none"], PATIENCE).unwrap_err().to_string();
    assert!(refused.contains("/none") && refused.contains("No such file"), "{refused}");
    let refused = agent.send_file("/none/file", 0o644, b"x").unwrap_err().to_string();
    assert!(refused.contains("/none/file") && refused.contains("No such file"), "{refused}");
    check(agent.start::<&str>(&[]).map(|_| ()));
    check(agent.start(&[""]).map(|_| ()));
    check(agent.start(&["/bin/echo", "a\0b"]).map(|_| ()));
    check(agent.start(&["/bin/echo", &"x".repeat(2 << 20)]).map(|_| ()));
    check(agent.send_file("relative", 0o644, b"x"));
    assert!(agent.run(&["/bin/true"], PATIENCE).unwrap().success());
}

fn check(result: Result<(), AgentError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, AgentError::Unsendable { .. }), "{error}");
}

#[test]
fn a_program_that_takes_too_long_is_killed() {
    let (_served, agent) = agent();
    let error = agent.run(&["/bin/sleep", "600"], 100 * NS_PER_MS).unwrap_err();
    assert!(matches!(&error, AgentError::Timeout { what, .. } if what == "/bin/sleep"), "{error}");
    assert!(agent.run(&["/bin/true"], PATIENCE).unwrap().success());
}

#[test]
fn signals_and_stop() {
    let (_served, agent) = agent();
    let sleeper = agent.start(&["/bin/sleep", "600"]).unwrap();
    agent.kill(sleeper, 15).unwrap();
    assert_eq!(agent.wait(sleeper, PATIENCE).unwrap().exit, Exit::Signal(15));
    // A shell that ignores the end of its input and has a child: both are killed.
    let stubborn = agent.start(&["/bin/sh", "-c", "sleep 600 & wait; sleep 600"]).unwrap();
    assert_eq!(agent.stop(stubborn).unwrap().exit, Exit::Signal(9));
}

#[test]
fn a_supervised_load_lives_by_the_heartbeat_and_stops() {
    let (_served, agent) = agent();
    let agent = Arc::new(agent);
    let beat = Heartbeat::start(&agent).unwrap();
    let argv = ["load", "cpu", "--threads", "1", "--seconds", "600", "--supervised"];
    let load = agent.start(&argv).unwrap();
    SystemClock.sleep_ns(2 * NS_PER_S); // it pauses after 1.5 s without a heartbeat
    let output = agent.stop(load).unwrap();
    assert!(output.success(), "{}", output.stderr_text());
    assert!(output.stdout_text().contains("\"pauses\":0"), "{}", output.stdout_text());
    drop(beat);
}

#[test]
fn files_arrive_whole_with_their_mode() {
    let (served, agent) = agent();
    let path = served.folder.path().join("sent").to_str().unwrap().to_owned();
    for size in [0, 1, FILE_PIECE, 3 * FILE_PIECE + 17] {
        let content: Vec<u8> = (0..size).map(|index| (index % 251).to_le_bytes()[0]).collect();
        agent.send_file(&path, 0o750, &content).unwrap();
        assert_eq!(pinfold_host::files::read(&path).unwrap(), content);
    }
    let mode = agent.run(&["/usr/bin/stat", "-c", "%a", &path], PATIENCE).unwrap();
    assert_eq!(mode.stdout_text(), "750\n");
}

#[test]
fn shutdown_ends_the_agent_and_every_later_call() {
    let (mut served, agent) = agent();
    let sleeper = agent.start(&["/bin/sleep", "600"]).unwrap();
    agent.shutdown().unwrap();
    assert!(agent.wait_gone(PATIENCE));
    assert!(served.child.wait().unwrap().success());
    let waited = agent.wait(sleeper, PATIENCE).unwrap_err();
    assert!(matches!(waited, AgentError::Gone { .. }), "{waited}");
    assert!(waited.to_string().contains("here"), "{waited}");
    assert!(matches!(agent.heartbeat().unwrap_err(), AgentError::Gone { .. }));
}

#[test]
fn a_guest_that_dies_wakes_those_who_wait_and_is_named() {
    let (mut served, agent) = agent();
    let sleeper = agent.start(&["/bin/sleep", "600"]).unwrap();
    served.child.kill().unwrap();
    let error = agent.wait(sleeper, PATIENCE).unwrap_err();
    assert_eq!(error.to_string(), "lost the connection to the guest behind here: its stream ended");
    assert!(error.hint().is_some());
}

/// The frames that the agent sends in response to raw bytes, and its exit code.
fn answer_to(bytes: &[u8]) -> (Vec<(u32, frame::Event)>, Option<i32>) {
    let mut served = serve();
    let mut stdout = served.child.stdout().unwrap();
    let mut stdin = served.child.stdin().unwrap();
    let (_, hello) = frame::read(&mut stdout).unwrap().unwrap();
    assert!(matches!(hello, frame::Event::Hello(_)));
    stdin.write_all(bytes).unwrap();
    stdin.flush().unwrap();
    drop(stdin);
    let mut events = Vec::new();
    while let Some(event) = frame::read(&mut stdout).unwrap() {
        events.push(event);
    }
    (events, served.child.wait().unwrap().code())
}

#[test]
fn malformed_frames_end_the_connection_with_an_error() {
    fn check(bytes: &[u8]) {
        let (events, code) = answer_to(bytes);
        let [(0, frame::Event::Error(text))] = events.as_slice() else {
            panic!("{bytes:?}: {events:?}");
        };
        assert!(text.contains("malformed frame"), "{text}");
        assert_eq!(code, Some(3));
    }

    check(&[0xFF; 64]);
    check(&[0; 9]); // kind 0
    check(&[1, 0, 16, 0, 1, 0, 0, 0, 1]); // one byte beyond the limit
    check(&[0, 0, 0, 0, 1, 0, 0, 0, 66]); // a kind of the other direction
    // Frames after malformed data are not executed.
    let run = frame::encode(Kind::Run, 1, b"/bin/echo\0never\0");
    check(&[&[0xFF_u8; 9], run.as_slice()].concat());
}

#[test]
fn frames_that_ask_for_nonsense_are_answered_on_their_channel() {
    fn check(frames: &[Vec<u8>], channel: u32, expected: &str) {
        let (events, code) = answer_to(&frames.concat());
        let texts: Vec<&str> = events
            .iter()
            .filter_map(|(on, event)| match event {
                frame::Event::Error(text) if *on == channel => Some(text.as_str()),
                frame::Event::Error(_)
                | frame::Event::Hello(_)
                | frame::Event::Out(_)
                | frame::Event::Err(_)
                | frame::Event::ExitCode(_)
                | frame::Event::ExitSignal(_) => None,
            })
            .collect();
        assert!(texts.len() == 1 && texts[0].contains(expected), "{events:?}");
        assert_eq!(code, Some(0));
    }

    check(&[run_frame(1, b"")], 1, "1 to 1024 arguments");
    check(&[run_frame(1, b"\0x")], 1, "1 to 1024 arguments");
    check(&[run_frame(1, &b"a\0".repeat(1025))], 1, "1 to 1024 arguments");
    check(&[run_frame(0, b"/bin/true")], 0, "ascend");
    check(&[run_frame(2, b"/bin/true"), run_frame(1, b"/bin/true")], 1, "ascend");
    check(&[frame::encode(Kind::Stdin, 9, b"x")], 9, "no such channel");
    check(&[run_frame(1, b"/bin/cat"), frame::encode(Kind::Kill, 1, b"")], 1, "one byte, a signal");
    check(
        &[run_frame(1, b"/bin/cat"), frame::encode(Kind::Kill, 1, &[65])],
        1,
        "one byte, a signal",
    );
    check(&[file(b"/tmp/x")], 1, "a path, NUL, a mode");
    check(&[file(b"/tmp/x\0\0\0")], 1, "a path, NUL, a mode");
    check(&[file(b"x\0\0\0\0\0"), file(b"x\0\0\0\0\0")], 1, "must be absolute");
    check(&[file(b"/tmp/x\0\xFF\xFF\xFF\xFF")], 1, "mode");
}

fn run_frame(channel: u32, payload: &[u8]) -> Vec<u8> {
    frame::encode(Kind::Run, channel, payload)
}

fn file(payload: &[u8]) -> Vec<u8> {
    frame::encode(Kind::File, 1, payload)
}

/// A peer that sends these bytes after the connection, and then closes it if `ends` is true.
fn against(bytes: &[u8], ends: bool) -> AgentError {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(bytes).unwrap();
    let kept = (!ends).then_some(theirs); // otherwise it is dropped here
    let error = Agent::over_socket(ours, "peer", 200 * NS_PER_MS).unwrap_err();
    drop(kept);
    error
}

fn hello_frame(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    [&length, &[0_u8; 4][..], &[65], text.as_bytes()].concat()
}

#[test]
fn peers_that_are_no_agents_are_named_with_the_reason() {
    let check = |bytes: &[u8], ends, expected: &str| {
        let error = against(bytes, ends);
        assert!(error.to_string().contains(expected), "{error} should hold {expected:?}");
        assert!(error.to_string().contains("peer") && error.hint().is_some(), "{error}");
    };
    check(b"", false, "did not answer within 0.2 s");
    check(b"", true, "its stream ended");
    check(b"\r\nlogin: ", false, "it sent a frame of");
    check(&hello_frame("{}")[..5], true, "lost the connection");
    check(&hello_frame("garbage"), false, "its HELLO is invalid");
    check(&hello_frame("{}"), false, "missing field");
    let version_2 = r#"{"protocol":2,"pinload":"9","kernel":"","machine":"","init":true,"cpus_online":"0","module_failures":[]}"#;
    check(&hello_frame(version_2), false, "version 2 of the protocol");
    check(
        &hello_frame(&version_2.replace(":2", ":1").replace("\"0\"", "\"x\"")),
        false,
        "not a list of CPUs",
    );
}

#[test]
fn module_failures_are_reported() {
    let text = r#"{"protocol":1,"pinload":"0","kernel":"6.1","machine":"x86_64","init":true,"cpus_online":"0-3","module_failures":[{"name":"ahci.ko","error":"Exec format error"}]}"#;
    let hello = Hello::parse(text).unwrap();
    assert_eq!(hello.module_failures, [("ahci.ko".to_owned(), "Exec format error".to_owned())]);
    assert_eq!((hello.is_init, hello.cpus_online.len()), (true, 4));
}

#[test]
fn connecting_waits_for_the_socket_and_gives_up_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let path = path.to_str().unwrap();
    // Simulated time: ten minutes pass at once.
    let error = Agent::connect(path, 600 * NS_PER_S, &SimClock::at(0)).unwrap_err();
    assert!(matches!(error, AgentError::Connect { .. }), "{error}");
    let listener = UnixListener::bind(path).unwrap();
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let text = r#"{"protocol":1,"pinload":"0","kernel":"6.1","machine":"x86_64","init":true,"cpus_online":"0","module_failures":[]}"#;
        stream.write_all(&hello_frame(text)).unwrap();
        stream
    });
    let agent = Agent::connect(path, PATIENCE, &SystemClock).unwrap();
    assert!(agent.hello().is_init);
    drop(peer.join().unwrap());
    assert!(agent.wait_gone(PATIENCE));
}
