//! `run --pin-after`: the guest boots on all CPUs, and is placed when it is ready.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use crate::common::machine::{QEMU, list_masks};
use crate::common::{Checked as _, Sandbox, is_missing, skip, until};
use pinfold_host::process::{Child, Signaled, own_pid};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files};
use pinfold_model::{CpuSet, Tid};

const LINE: &str = "-M q35 -accel tcg,thread=multi -display none -nodefaults -m 64M -smp 2";

/// A machine that `run --pin-after` has started.
struct Booting {
    sandbox: Sandbox,
    host: LiveHost,
    run: Child,
    all: CpuSet,
}

impl Booting {
    /// Starts it with these options of `run` and of QEMU. `None`, reported, if a placement does not
    /// show here.
    fn new(sandbox: Sandbox, options: &[&str], more: &str) -> Option<Self> {
        if is_missing(&[QEMU]) {
            return None;
        }
        let host = LiveHost::new().expect("a host");
        let all = host.affinity(own_pid()).expect("a mask");
        if all.len() < 2 {
            skip("a placement that shows needs two CPUs");
            return None;
        }
        let avoid: CpuSet = all.iter().skip(1).collect();
        let avoid = format!("--avoid={avoid}");
        let pid = sandbox.path("pid");
        let words = ["run", "-s", "compact", &avoid].into_iter().chain(options.iter().copied());
        let words = words.chain(["--", QEMU]).chain(LINE.split(' '));
        let words = words.chain(more.split_whitespace()).chain(["-pidfile", &pid]);
        let run = sandbox.start_logged(&words.collect::<Vec<_>>());
        let booting = Self { sandbox, host, run, all };
        assert!(until(|| booting.said().contains("the guest boots on CPU")), "{}", booting.said());
        Some(booting)
    }

    fn said(&self) -> String {
        files::read_text(&self.sandbox.path("said")).unwrap_or_default()
    }

    fn masks(&self) -> Vec<CpuSet> {
        let pid = self.sandbox.read("pid").trim().parse().map(Tid).expect("a number");
        list_masks(&self.host, pid).into_values().collect()
    }

    #[track_caller]
    fn assert_wide(&self) {
        let masks = self.masks();
        assert!(masks.iter().all(|mask| *mask == self.all), "{masks:?}\n{}", self.said());
    }

    #[track_caller]
    fn assert_pinned(&mut self) {
        let one: CpuSet = self.all.iter().take(1).collect();
        assert!(
            until(|| self.masks().iter().all(|mask| *mask == one)),
            "{:?}\n{}",
            self.masks(),
            self.said()
        );
        assert!(until(|| self.said().contains("applied")), "{}", self.said());
        let status = self.sandbox.print(&["status"]);
        assert!(status.contains("1 placement is active"), "{status}");
        assert!(!status.contains("waits"), "{status}");
        self.run.signal(Signaled::Interrupt).expect("it runs");
        let ended = self.run.wait().expect("it ends");
        assert_eq!(ended.code(), Some(130), "{}", self.said());
    }
}

#[test]
fn a_guest_boots_on_all_cpus_until_a_port_is_open() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address").to_string();
    drop(free);
    let port = format!("port {address}");
    let Some(mut booting) = Booting::new(Sandbox::new(), &["--pin-after", &port], "") else {
        return;
    };
    SystemClock.sleep_ns(500_000_000);
    booting.assert_wide();
    let waits = format!("and waits until port {address} is open");
    let status = booting.sandbox.print(&["status"]);
    let flat = status.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("1 machine waits for a placement") && flat.contains(&waits), "{status}");
    let pid = booting.sandbox.read("pid").trim().to_owned();
    let json = booting.sandbox.run(&["status", &pid, "--json"]).json();
    assert_eq!(json["waiting"][0]["pid"].to_string(), pid, "{json}");
    let _guest = TcpListener::bind(&address).expect("the port is free");
    booting.assert_pinned();
}

/// The test answers in the place of the guest, at the socket to which QEMU connects as well.
#[test]
fn a_guest_is_pinned_when_its_agent_answers() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("agent");
    let listener = UnixListener::bind(&path).expect("a socket");
    let (go, gate) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        // The connections before are accepted and get no answer.
        if gate.recv().is_err() {
            return;
        }
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut writer = stream.try_clone().expect("a stream");
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let Some((_, id)) = line.split_once("\"id\":") else { continue };
                    let id = id.trim_end_matches('}');
                    // One that asked has gone meanwhile.
                    if writer.write_all(format!("{{\"return\": {id}}}\n").as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    let more = format!(
        "-device virtio-serial -chardev socket,id=qga,path={path} -device \
         virtserialport,chardev=qga,name=org.qemu.guest_agent.0"
    );
    let Some(mut booting) = Booting::new(sandbox, &["--pin-after", "agent"], &more) else {
        return;
    };
    SystemClock.sleep_ns(500_000_000);
    booting.assert_wide();
    go.send(()).expect("the thread runs");
    booting.assert_pinned();
}

#[test]
fn a_guest_is_pinned_after_a_time_or_after_the_timeout() {
    let Some(mut booting) = Booting::new(Sandbox::new(), &["--pin-after", "2s"], "") else {
        return;
    };
    booting.assert_wide();
    booting.assert_pinned();
    assert!(!booting.said().contains("warning: --pin-after"), "{}", booting.said());
    let never = ["--pin-after", "port 127.0.0.1:1", "--pin-timeout", "1s"];
    let Some(mut booting) = Booting::new(Sandbox::new(), &never, "") else { return };
    booting.assert_pinned();
    let warning = "warning: --pin-after: condition not met after 1 s (port 127.0.0.1:1 is open)";
    assert!(booting.said().contains(warning), "{}", booting.said());
}

#[test]
fn a_guest_that_ends_or_is_interrupted_while_it_boots_leaves_nothing() {
    let Some(mut booting) = Booting::new(Sandbox::new(), &["--pin-after", "10m"], "") else {
        return;
    };
    booting.run.signal(Signaled::Interrupt).expect("it runs");
    assert_eq!(booting.run.wait().expect("it ends").code(), Some(130), "{}", booting.said());
    let status = booting.sandbox.print(&["status"]);
    assert!(status.contains("no placement is active"), "{status}");
}

#[test]
fn conditions_that_cannot_hold_are_refused_before_the_start() {
    let sandbox = Sandbox::new();
    for (condition, why) in [
        ("agent", "no socket of the guest agent"),
        ("port 22", "expected HOST:PORT, got"),
        ("soon", "--pin-after \"soon\": is not a time"),
    ] {
        sandbox.refuse(&["run", "--pin-after", condition, "--", QEMU, "-S"], 2, why);
    }
}
