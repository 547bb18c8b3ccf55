//! Input that does not end, is too deep, or was written to deceive: each command refuses it at
//! once with the path and what to do, and no name makes a line of Pinfold's own.

use crate::common::machine::start_quietly;
use crate::common::{Checked as _, MINUTE_NS, PINFOLD, Sandbox, assert_parts, run, skip, until};
use pinfold_host::files;
use pinfold_host::process::{Spawn, Stdio, capture, find_program};

#[test]
fn only_regular_files_are_read() {
    let scene = Sandbox::new();
    let (fifo, large) = (scene.path("fifo"), scene.path("large"));
    run("mkfifo", [&fifo]).expect_success();
    // It has no blocks on the disk.
    run("truncate", ["-s", "1T", &large]).expect_success();
    let inputs = [
        (fifo.as_str(), "is a pipe: name a regular file"),
        ("/dev/zero", "is a device: name a regular file"),
        (large.as_str(), "is larger than 256 MiB"),
    ];
    for (path, why) in inputs {
        for words in [
            &["topo", "--input", path][..],
            &["plan", "--request", path],
            &["plan", "--check", path],
            &["plan", "--strategy", "compact", "--vcpus", "1", "--emit", "libvirt", "--into", path],
            &["emulate", "up", path],
            &["study", "check", path],
            &["study", "run", path],
            &["compare", path, path],
            &["run", "--plan", path, "--", "true"],
        ] {
            let output = scene.run(words);
            let said = output.stderr_text().replace('\n', " ");
            assert!(matches!(output.status.code(), Some(2 | 3)), "{words:?}: {said}");
            assert!(said.contains(path) && said.contains(why), "{words:?}: {said}");
        }
    }
}

#[test]
fn a_capture_with_a_path_of_many_parts_is_refused() {
    let scene = Sandbox::new();
    let text = format!("pinfold-capture 1\nfile {}\n\t0-3\n", "/a".repeat(60_000));
    let file = scene.write("deep", text);
    let output = scene.run(&["topo", "--input", &file]);
    output.expect_code(2);
    assert!(output.stderr_text().contains("path too long or too deep (at most 4096 bytes"));
}

/// libvirt, hwloc and a plan: each nested 60,000 deep.
#[test]
fn a_file_that_is_nested_too_deep_is_refused() {
    const DEPTH: usize = 60_000;
    let scene = Sandbox::new();
    let nested = |name: &str, [before, open, close, after]: [&str; 4]| {
        let path = scene.path(name);
        let text = format!("{before}{}{}{after}", open.repeat(DEPTH), close.repeat(DEPTH));
        files::write_atomic(&path, text.as_bytes()).expect("a file");
        path
    };
    let head = "<topology version=\"2.0\"><object type=\"Machine\" os_index=\"0\" cpuset=\"0x1\" \
                complete_cpuset=\"0x1\" allowed_cpuset=\"0x1\" nodeset=\"0x1\" complete_nodeset=\"0x1\" \
                allowed_nodeset=\"0x1\" gp_index=\"1\">";
    let domain = "<domain type='kvm'><vcpu>1</vcpu>";
    let domain = nested("vm.xml", [domain, "<a>", "</a>", "</domain>"]);
    let hwloc = nested("host.xml", [head, "<object>", "</object>", "</object></topology>"]);
    let info = nested("info.xml", [head, "<info>", "</info>", "</object></topology>"]);
    let plan = nested("plan.json", ["{\"format\": ", "[", "]", "}"]);
    for (words, why) in [
        (&["plan", "--check", &domain][..], "nested more than 256 deep"),
        (&["plan", "--vcpus", "1", "--emit", "libvirt", "--into", &domain], "nested more than 256"),
        (&["plan", "--check", &plan], "recursion limit"),
        (&["topo", "--input", &hwloc], ""),
        (&["topo", "--input", &info], ""),
    ] {
        let output = scene.run(words);
        let said = output.stderr_text().replace('\n', " ");
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(why) && said.contains(words[words.len() - 1]), "{words:?}: {said}");
    }
}

/// A value of 100,000 letters is not shown whole, whatever the file.
#[test]
fn a_long_value_makes_a_short_error() {
    let scene = Sandbox::new();
    let host = scene.path("host.topo");
    let long = "a".repeat(100_000);
    let input = "package:1 l3:1 core:4 pu:2";
    let plan = scene.run(&["plan", "--vcpus", "2", "--input", input, "--json"]).stdout_text();
    let plan: serde_json::Value = serde_json::from_str(&plan).expect("a plan");
    let changed = |pointer: &str| {
        let mut plan = plan.clone();
        *plan.pointer_mut(pointer).expect("a field") = long.clone().into();
        plan.to_string()
    };
    let vnode = format!("[[vnode]]\nname = \"slow\"\ncores = 1\nspeed = \"{long}\"\n");
    for (text, words) in [
        (changed("/vnodes/0/threads/0/pus"), &["plan", "--input", input, "--check"][..]),
        (changed("/vnodes/0/threads/0/role"), &["plan", "--input", input, "--check"]),
        (changed("/format"), &["plan", "--input", input, "--check"]),
        (vnode, &["emulate", "up", "--dry-run"]),
        (format!("[[vm]]\nname = \"vm\"\nvcpus = \"{long}\"\n"), &["plan", "--request"]),
        (
            format!("<domain type='kvm'><vcpu>{long}</vcpu></domain>"),
            &["plan", "--input", input, "--check"],
        ),
    ] {
        files::write_atomic(&host, text.as_bytes()).expect("a file");
        let output = scene.run(&[words, &[&host]].concat());
        let said = output.stderr_text();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {:.300}", said);
        assert!(
            said.contains("aaa") && said.len() < 4000,
            "{words:?}: {}: {:.300}",
            said.len(),
            said
        );
    }
}

/// Files of Windows programs: which bytes, where, and the command that converts them.
#[test]
fn text_that_is_not_utf_8_is_refused_with_its_conversion() {
    let scene = Sandbox::new();
    let path = scene.path("vm.xml");
    let xml = "<domain type='kvm'>\n<name>B\u{e4}r</name><vcpu>1</vcpu></domain>";
    let wide: Vec<u8> =
        [0xfeff].into_iter().chain(xml.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    let latin: Vec<u8> = xml.chars().map(|letter| u8::try_from(letter).expect("Latin-1")).collect();
    for (bytes, place, from) in [
        (wide, "line 1, byte offset 0: this is UTF-16 text", "UTF-16"),
        (latin, "line 2, byte offset 27: 0xe4 is not UTF-8", "ISO-8859-1"),
    ] {
        files::write_atomic(&path, &bytes).expect("a file");
        let merge = ["plan", "--vcpus", "1", "--emit", "libvirt", "--into", &path];
        for words in [&["plan", "--check", &path][..], &merge, &["plan", "--check", &path, "--fix"]]
        {
            let output = scene.run(words);
            let said = output.stderr_text();
            assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
            assert_parts(
                &said,
                &[&format!("{path}: {place}"), &format!("`iconv -f {from} -t UTF-8 {path} > NEW`")],
            );
        }
        let converted = capture("iconv", ["-f", from, "-t", "UTF-8", &path], MINUTE_NS);
        if let Ok(converted) = converted.map(|output| output.stdout_text()) {
            assert!(converted.ends_with(xml), "{converted}");
        }
    }
}

#[test]
fn standard_input_is_read_and_may_not_be_silent() {
    let request = "[[vm]]\nname = \"a\"\nvcpus = 1\n";
    let command = format!("printf '%s' '{request}' | {PINFOLD} plan --request - --json");
    run("sh", ["-c", &command]).expect_success();
    // The pipe stays open until the child has ended.
    let mut silent = Spawn::new(PINFOLD)
        .args(["plan", "--request", "-"])
        .stdin(Stdio::Pipe)
        .stdout(Stdio::Null)
        .stderr(Stdio::Null)
        .start()
        .expect("it starts");
    let status = silent.wait_for(&pinfold_host::SystemClock, MINUTE_NS).expect("its state");
    assert_eq!(status.and_then(|status| status.code()), Some(2));
}

/// A store names the commands that a resume runs.
#[test]
fn a_study_of_another_user_is_not_resumed() {
    let scene = Sandbox::new();
    let store = scene.write("store", b"");
    assert!(run("chmod", ["666", &store]).status.success());
    let refused = scene.run(&["study", "resume", &store]);
    refused.expect_code(3);
    assert!(refused.stderr_text().contains("can be written by others"));
    assert!(run("chmod", ["644", &store]).status.success());
    let link = scene.path("link");
    std::os::unix::fs::symlink(&store, &link).expect("a link");
    assert_parts(&scene.run(&["study", "resume", &link]).stderr_text(), &["is a link"]);
    if pinfold_host::process::is_root() {
        run("chown", ["65534", &store]).expect_success();
        let refused = scene.run(&["study", "resume", &store]);
        assert!(refused.stderr_text().contains("belongs to user 65534"));
    }
}

/// A thread whose name has a line break, an escape sequence and a mark of direction.
const NAMED: &str = "import ctypes,time\n\
ctypes.CDLL(None).prctl(15,b'LK\\nok\\x1b[2J',0,0,0)\n\
end=time.time()+20\n\
while time.time()<end: time.sleep(0.001)\n";

#[test]
fn a_name_with_a_line_break_makes_no_line_in_a_measurement() {
    let Some(python) = find_program("python3") else {
        return skip("python3 is not installed");
    };
    let scene = Sandbox::new();
    let script = scene.write("named.py", NAMED);
    let child = start_quietly(Spawn::new(&python).args([&script]).stdout(Stdio::Null));
    let pid = child.pid().to_string();
    let comm = format!("/proc/{pid}/comm");
    assert!(
        until(|| files::read(&comm).is_ok_and(|name| name.starts_with(b"LK"))),
        "it names itself"
    );
    for words in [
        &["measure", "sched", "--pid", &pid, "--seconds", "0.5"][..],
        &["measure", "sched", "--pid", &pid, "--seconds", "0.5", "--json"],
    ] {
        let output = scene.run(words);
        let text = output.stdout_text() + &output.stderr_text();
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(text.lines().all(|line| !line.starts_with("ok")), "{text}");
    }
}

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 9}, "package": "\u001b[2J\nok"}, "capabilities": []}}"#;
/// A line break that begins a line of Pinfold's, an escape sequence, a mark of direction.
const STEERING: &str = r"a\npinfold: ok\u001b[2J\u202e";

/// A monitor that gives the same answer to every command, of as many clients as come.
fn lying_monitor(socket: &str, answer: String) {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = std::os::unix::net::UnixListener::bind(socket).expect("a socket");
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let Ok(input) = stream.try_clone() else { continue };
            let mut lives = writeln!(stream, "{GREETING}").is_ok();
            for (line, id) in BufReader::new(input).lines().zip(1..) {
                let Ok(line) = line else { break };
                let reply = if line.contains("qmp_capabilities") {
                    r#"{"return": {}, "id": ID}"#
                } else {
                    answer.as_str()
                };
                lives &= writeln!(stream, "{}", reply.replace("ID", &format!("{id}"))).is_ok();
                if !lives {
                    break;
                }
            }
        }
    });
}

#[test]
fn a_lying_monitor_makes_one_clean_error() {
    let scene = Sandbox::new();
    let answers = [
        format!(r#"{{"error": {{"class": "{STEERING}", "desc": "{STEERING}"}}, "id": ID}}"#),
        format!(r#"{{"return": "{STEERING}", "id": ID}}"#),
        format!(r#"{{"return": [{{"{STEERING}": 1}}], "id": ID}}"#),
        // Threads of processes that are no QEMU: init, and this test.
        cpus(1),
        cpus(pinfold_host::process::own_pid().0),
        cpus(u32::MAX),
        "[".repeat(100_000),
        "x".repeat(9 << 20),
    ];
    for (answer, number) in answers.into_iter().zip(0..) {
        let socket = scene.path(&format!("qmp-{number}"));
        let what: String = answer.chars().take(80).collect();
        lying_monitor(&socket, answer);
        let output = scene.run(&["apply", "--qmp", &socket, "--strategy", "compact"]);
        let said = output.stderr_text();
        assert!(matches!(output.status.code(), Some(3 | 4)), "{what}: {said}");
        assert!(!said.contains(['\u{1b}', '\u{202e}', '\r']), "{what}: {said:?}");
        assert!(!said.lines().any(|line| line.starts_with("pinfold: ok")), "{what}: {said}");
        assert!(said.lines().count() <= 3 && said.len() < 2000, "{what}: {said}");
        assert!(output.stdout.is_empty(), "{what}: {}", output.stdout_text());
    }
}

fn cpus(tid: u32) -> String {
    format!(
        r#"{{"return": [{{"cpu-index": 0, "thread-id": {tid}, "qom-path": "{STEERING}"}}], "id": ID}}"#
    )
}

const STUDY: &str = r#"name = "hostile"
title = "<script>alert(1)</script>\u001b[31m"
repetitions = 2
time-limit = "60s"
[baseline]
lev = "=cmd|'/C calc'!A0"
[[factor]]
name = "lev"
levels = ["=cmd|'/C calc'!A0", "x\u202ey"]
[[workload]]
name = "w"
command = ["sh", "-c", "echo 1", "{lev}"]
lasts = "0.01s"
[[workload.figure]]
name = "f"
unit = "count"
regex = '^([0-9]+)'
[[workload]]
name = "bad"
command = ["sh", "-c", "printf '\\033[2J' >&2; exit 3"]
lasts = "0.01s"
"#;

#[test]
fn the_page_and_the_tables_of_a_study_steer_nothing() {
    let scene = Sandbox::new();
    let (file, store) = (scene.path("study.toml"), scene.path("store"));
    let (page, tables) = (scene.path("page.html"), scene.path("tables"));
    files::write_atomic(&file, STUDY.as_bytes()).expect("a study");
    let run = scene.run(&["study", "run", &file, "--store", &store]);
    assert_eq!(run.status.code(), Some(1), "trials failed: {}", run.stderr_text());
    scene.run(&["study", "report", &store, "--out", &page]).expect_success();
    let html = files::read_text(&page).expect("a page");
    assert!(!html.contains(['\u{1b}', '\u{202e}']) && !html.contains("<script>alert"));
    assert!(scene.run(&["study", "export", &store, "--out", &tables]).status.success());
    let trials = files::read_text(&format!("{tables}/trials.csv")).expect("a table");
    assert!(trials.contains("\"'=cmd|"), "{trials}");
    assert!(!trials.split([',', '\n']).any(|cell| cell.starts_with('=')), "{trials}");
}
