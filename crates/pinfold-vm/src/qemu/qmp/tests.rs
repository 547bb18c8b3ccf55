//! The client against simulated servers on real sockets.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;

use pinfold_host::SystemClock;
use serde_json::json;

use super::*;
use crate::hypervisor::RunState;

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "capabilities": ["oob"]}}"#;
const SECOND: u64 = 1_000_000_000;
/// Timeout for cases in which nothing arrives.
const SHORT: u64 = 50_000_000;

struct Server {
    folder: tempfile::TempDir,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server with this behaviour for one client.
    fn new(serve: impl FnOnce(UnixStream) + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("qmp")).unwrap();
        let thread = std::thread::spawn(move || serve(listener.accept().unwrap().0));
        Self { folder, thread: Some(thread) }
    }

    /// Sends these lines at once and then waits until the client disconnects.
    fn saying(text: &'static [u8]) -> Self {
        Self::new(move |mut stream| {
            stream.write_all(text).unwrap();
            BufReader::new(stream).lines().for_each(drop);
        })
    }

    /// Greets, then answers each command with the lines that `answer` gives for its name and id.
    fn answering(answer: impl Fn(&str, u64) -> String + Send + 'static) -> Self {
        Self::new(move |mut stream| {
            writeln!(stream, "{GREETING}").unwrap();
            for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
                let command: Value = serde_json::from_str(&line).unwrap();
                let id = command["id"].as_u64().unwrap();
                let text = match command["execute"].as_str().unwrap() {
                    "qmp_capabilities" => format!("{}\n", json!({"return": {}, "id": id})),
                    name => answer(name, id),
                };
                if text.is_empty() || stream.write_all(text.as_bytes()).is_err() {
                    return;
                }
            }
        })
    }

    fn connect(&self, timeout_ns: u64) -> Result<Qmp, VmError> {
        Qmp::connect(self.folder.path().join("qmp").to_str().unwrap(), timeout_ns, SystemClock)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn greets_and_matches_replies_among_events() {
    let server = Server::answering(|name, id| match name {
        "query-status" => format!(
            "{}\n{}\r\n\n{}\n",
            json!({"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 2}}),
            json!({"return": "a reply to a command that was given up", "id": id + 1000}),
            json!({"return": {"status": "paused", "running": false}, "id": id}),
        ),
        "query-kvm" => {
            format!("{}\n", json!({"error": {"class": "CommandNotFound", "desc": "no"}, "id": id}))
        }
        _ => format!("{}\n", json!({"event": "SHUTDOWN", "data": {"guest": false}})),
    });
    let mut qmp = server.connect(SECOND).unwrap();
    assert_eq!(qmp.greeted_version().unwrap().number, (7, 2, 22));
    assert_eq!(qmp.status().unwrap(), RunState { running: false, name: "paused".to_owned() });
    let error = qmp.kvm_enabled().unwrap_err();
    assert_eq!(error.to_string(), "QEMU refused query-kvm: no");
    assert!(error.hint().unwrap().contains("too old"));

    qmp.set_timeout(SHORT);
    let error = qmp.execute("silence", None).unwrap_err();
    assert_eq!(error.to_string(), "no reply to QMP command silence within 1 s");
    let event = qmp.wait_event(&["SHUTDOWN"], SECOND).unwrap().unwrap();
    assert_eq!(event.data, json!({"guest": false}));
    let names: Vec<String> =
        qmp.take_events().unwrap().into_iter().map(|event| event.name).collect();
    assert_eq!(names, ["STOP"]);
    assert_eq!(qmp.wait_event(&["SHUTDOWN"], SHORT).unwrap(), None);
}

#[test]
fn refuses_what_is_not_qmp() {
    check(b"", "no QMP greeting", "one client per QMP socket");
    check(b"HTTP/1.1 400 Bad Request\r\n", "it sent \"HTTP/1.1 400 Bad Request\"", "-qmp unix:");
    check(
        b"QEMU 7.2.22 monitor - type 'help' for more information\r\n(qemu) ",
        "not a QMP socket",
        "human monitor",
    );
    check(b"half a line", "it sent \"half a line\"", "-qmp unix:");
    check(b"\xff\xfe\x00\n", "not a QMP socket", "-qmp unix:");
    check(b"{\"QMP\": {}}\n", "not a QMP socket", "-qmp unix:");
    check(b"{\"return\": {}}\n", "not a QMP socket", "-qmp unix:");
    check(b"[[[[[[\n", "not a QMP socket", "-qmp unix:");
}

fn check(said: &'static [u8], expected: &str, hint: &str) {
    // Without a complete line the client waits for the whole timeout.
    let timeout = match said {
        b"" => SHORT,
        _ if said.contains(&b'\n') => 20 * SECOND,
        _ => SECOND,
    };
    let error = Server::saying(said).connect(timeout).err().unwrap();
    assert!(error.to_string().contains(expected), "{error}");
    assert!(error.hint().unwrap().contains(hint), "{:?}", error.hint());
}

#[test]
fn bounds_what_a_hostile_peer_can_send() {
    let server = Server::new(|mut stream| {
        let part = vec![b'x'; 1 << 20];
        // Writing fails as soon as the client disconnects.
        while stream.write_all(&part).is_ok() {}
    });
    let error = server.connect(20 * SECOND).err().unwrap();
    assert!(error.to_string().contains("longer than 8388608 bytes"), "{error}");
    drop(server);

    let server = Server::answering(|_, id| {
        let event = format!("{}\n", json!({"event": "SPAM"}));
        format!("{}{}\n", event.repeat(1000), json!({"return": 1, "id": id}))
    });
    let mut qmp = server.connect(SECOND).unwrap();
    assert_eq!(qmp.execute("any", None).unwrap(), json!(1));
    assert_eq!(qmp.take_events().unwrap().len(), MAX_EVENTS);
}

#[test]
fn reports_when_the_other_side_goes() {
    let server = Server::answering(|_, _| String::new());
    let mut qmp = server.connect(SECOND).unwrap();
    let error = qmp.status().unwrap_err();
    assert!(error.is_gone(), "{error}");
    assert!(error.to_string().ends_with("during query-status"), "{error}");
    assert!(qmp.quit().is_ok());

    let error = Server::new(drop).connect(SECOND).err().unwrap();
    assert!(error.is_gone(), "{error}");
}

#[test]
fn reports_why_it_cannot_connect() {
    fn connect(path: &std::path::Path) -> String {
        Qmp::connect(path.to_str().unwrap(), SHORT, SystemClock).err().unwrap().hint().unwrap()
    }

    let folder = tempfile::tempdir().unwrap();
    assert!(connect(&folder.path().join("absent")).contains("there is no such socket"));
    let dead = folder.path().join("dead");
    drop(UnixListener::bind(&dead).unwrap());
    assert!(connect(&dead).contains("no process listens"));
    assert!(connect(&folder.path().join("x".repeat(200))).contains("at most 107 bytes"));

    // With a full backlog, connect(2) itself would wait forever.
    let busy = folder.path().join("busy");
    let listener = UnixListener::bind(&busy).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _waiting = UnixStream::connect(&busy).unwrap();
    assert!(connect(&busy).contains("waiting for this socket"));
}

/// An error message is one line without terminal control characters, however long the answer was.
fn clean(error: &VmError, what: &str) {
    let mut texts = vec![error.to_string()];
    texts.extend(error.hint());
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    for text in texts {
        assert!(text.len() < 2000, "{what}: {} bytes", text.len());
        assert_eq!(pinfold_model::escape::name(&text), text, "{what}");
    }
}

const STEERING: &str = "a\n\u{1b}[2J\u{202e}\u{7}\rpinfold: all is well\t\u{9b}";

#[test]
fn lying_answers_are_errors_of_one_clean_line() {
    let long = "x".repeat(1 << 20);
    let returned = [
        "null".to_owned(),
        "5".to_owned(),
        json!(STEERING).to_string(),
        json!({"a": STEERING}).to_string(),
        json!([null]).to_string(),
        json!([[], {}]).to_string(),
        deep(100),
        cpu("thread-id", json!(STEERING)),
        cpu("thread-id", json!(-7)),
        cpu("thread-id", json!(1e300)),
        cpu("thread-id", json!(true)),
        cpu("thread-id", json!(0)),
        cpu("cpu-index", json!({"x": STEERING})),
        cpu("cpu-index", json!(u64::MAX)),
        cpu("qom-path", json!([1])),
        cpu("qom-path", json!(long)),
    ];
    let errors = [
        json!({"class": "GenericError", "desc": STEERING}),
        json!({"class": STEERING, "desc": long}),
        json!({"class": 5, "desc": null}),
        json!({}),
        json!(STEERING),
        json!(null),
    ];
    // Lines that are no QMP messages.
    let odd =
        [deep(100_000), "\u{0}\u{1b}[2J".to_owned(), STEERING.replace('\n', ""), long.clone()];
    let lines = returned.iter().map(|value| format!("{{\"return\": {value}, \"id\": ID}}"));
    let lines = lines.chain(errors.iter().map(|error| json!({"error": error}).to_string()));
    for line in lines.chain(odd) {
        let what: String = line.chars().take(80).collect();
        let server = Server::answering(move |_, id| line.replace("ID", &id.to_string()) + "\n");
        let mut qmp = server.connect(20 * SECOND).unwrap();
        qmp.set_timeout(20 * SECOND);
        let error = qmp.cpus().map(|cpus| panic!("{what} gives {cpus:?}")).unwrap_err();
        assert!(
            !matches!(error.downcast_driver(), Some(QmpError::NoAnswer { .. })),
            "{what}: {error}"
        );
        clean(&error, &what);
    }
}

fn cpu(key: &str, value: Value) -> String {
    let mut cpu = json!({"cpu-index": 0, "thread-id": 7, "qom-path": "/x", "props": {}});
    cpu[key] = value;
    json!([cpu]).to_string()
}

fn deep(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

/// No answer delays the caller beyond its timeout.
#[test]
fn endless_and_missing_answers_end_with_the_time() {
    fn check(what: &str, part: String) {
        let sent = part.clone();
        let server = Server::new(move |mut stream| {
            writeln!(stream, "{GREETING}").unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.next();
            writeln!(stream, "{{\"return\": {{}}, \"id\": 1}}").unwrap();
            // A peer that sends until it is disconnected, or waits for that.
            while !sent.is_empty() && stream.write_all(sent.as_bytes()).is_ok() {}
            lines.for_each(drop);
        });
        let mut qmp = server.connect(20 * SECOND).unwrap();
        qmp.set_timeout(SHORT);
        let error = qmp.cpus().map(|_| panic!("{what} is an answer")).unwrap_err();
        assert!(
            matches!(error.downcast_driver(), Some(QmpError::NoAnswer { .. })),
            "{what}: {error}"
        );
        clean(&error, what);
    }

    check("nothing", String::new());
    check("events", line(json!({"event": "SPAM", "data": {"x": "y".repeat(100)}})));
    check("large events", line(json!({"event": STEERING, "data": "y".repeat(4 << 20)})));
    check("answers without an id", line(json!({"return": []})));
    check("answers to others", line(json!({"return": [], "id": "1"})));
    check("greetings", format!("{GREETING}\n"));
    check("empty lines", "\n".repeat(1 << 16));
}

fn line(value: Value) -> String {
    format!("{value}\n")
}
