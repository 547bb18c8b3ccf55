//! The first row of the dashboard shows which machine waits most, since when, because of what and
//! because of which machine: incidents that were recorded are replayed to a real Prometheus.
//!
//! `PINFOLD_TEST_SIZE=full PINFOLD_BLESS=1` records them again from real machines, in six minutes.

use std::fmt::Write as _;

use pinfold_model::Tid;

use super::{ask, free_port, get, panel};
use crate::common::machine::{Machine, start_quietly};
use crate::common::{Sandbox, is_missing, run, until};
use pinfold_host::process::{Child, Spawn};
use pinfold_host::{Clock as _, Host as _, SystemClock, files, mountinfo};

const RECORDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/incidents");
/// Time from one scrape to the next (seconds).
const STEP: u64 = 5;
/// Scrapes before an incident, and all.
const SCRAPES_BEFORE: u64 = 9;
const SCRAPES: u64 = 24;
/// Metrics that the first row uses.
const RECORDED: [&str; 3] = [
    "pinfold_vcpu_ready_seconds_total{",
    "pinfold_gap_cause_seconds_total{",
    "pinfold_gap_machine_seconds_total{",
];

/// What happened to the machine `web`.
struct Incident {
    name: &'static str,
    cause: &'static str,
    by: Option<&'static str>,
}

const INCIDENTS: [Incident; 3] = [
    Incident { name: "other-machine", cause: "thread", by: Some("db") },
    Incident { name: "quota", cause: "quota", by: None },
    Incident { name: "host-task", cause: "thread", by: None },
];

#[test]
fn the_dashboard_answers_three_recorded_incidents() {
    if is_missing(&["prometheus", "promtool"]) {
        return;
    }
    let is_set = |name: &str, value: &str| std::env::var(name).is_ok_and(|text| text == value);
    let is_recording = is_set("PINFOLD_TEST_SIZE", "full") && is_set("PINFOLD_BLESS", "1");
    for incident in &INCIDENTS {
        let path = format!("{RECORDS}/{}.txt", incident.name);
        if is_recording {
            files::write_atomic(&path, record(incident.name).as_bytes()).expect("it is written");
        }
        replay(incident, &path);
    }
}

fn replay(incident: &Incident, path: &str) {
    let name = incident.name;
    let sandbox = Sandbox::new();
    let tsdb = sandbox.path("tsdb");
    let made = run("promtool", ["tsdb", "create-blocks-from", "openmetrics", path, &tsdb]);
    assert!(made.status.success(), "{name}: {}", made.stderr_text());
    let config = sandbox.write("prometheus.yml", "");
    let port = free_port();
    let words = [
        format!("--config.file={config}"),
        format!("--storage.tsdb.path={tsdb}"),
        "--storage.tsdb.retention.time=100y".to_owned(),
        format!("--web.listen-address=127.0.0.1:{port}"),
        "--log.level=error".to_owned(),
    ];
    let _prometheus = start_quietly(Spawn::new("prometheus").args(words));
    assert!(until(|| get(port, "/-/ready").contains("Ready")), "{name}: Prometheus starts");
    let text = files::read_text(path).expect("a record");
    let stamps = text.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    let first = stamps.min().expect("times");
    let begin = first + SCRAPES_BEFORE * STEP;
    // The last scrape but one.
    let during = first + (SCRAPES - 2) * STEP;
    let most = panel("Machines that wait most");
    let shown = ask(port, &most, during);
    assert_eq!(shown.first().map(|row| row.labels["vm"].as_str()), Some(Some("web")), "{name}");
    let since = panel("Since when");
    let waits = |at: u64| {
        let rows = ask(port, &since, at);
        rows.iter().find(|row| row.labels["vm"] == "web").is_some_and(|row| row.value > 0.2)
    };
    // The rate is that of the latest 20 seconds.
    let seen = (first + 4 * STEP..=during).step_by(1).find(|at| waits(*at)).expect("it is seen");
    assert!((begin..begin + 4 * STEP).contains(&seen), "{name}: {seen}, it began {begin}");
    let causes = ask(port, &panel("Because of what"), during);
    let of_web = causes.iter().filter(|row| row.labels["vm"] == "web");
    let main = of_web.max_by(|a, b| a.value.total_cmp(&b.value)).expect("a cause");
    assert_eq!(main.labels["cause"], incident.cause, "{name}");
    let others = ask(port, &panel("Because of which machine"), during);
    let other = others.iter().max_by(|a, b| a.value.total_cmp(&b.value));
    let other = other.filter(|row| row.value > 0.1);
    let by = other.map(|row| row.labels["by"].as_str().expect("a name"));
    assert_eq!(by, incident.by, "{name}");
}

/// A machine whose only vCPU executes one jump to itself.
fn start_busy_machine() -> Machine {
    let sandbox = Sandbox::new();
    let mut rom = vec![0_u8; 0x1_0000];
    rom[0xfff0..0xfff2].copy_from_slice(&[0xeb, 0xfe]);
    let path = sandbox.write("rom", rom);
    let options = format!("-M q35 -accel tcg,thread=multi -smp 1 -bios {path}");
    Machine::start_in(sandbox, &options).expect("a QEMU")
}

fn pin(thread: Tid, cpu: &str) {
    let pinned = run("taskset", ["-pc", cpu, &thread.to_string()]);
    assert!(pinned.status.success(), "{}", pinned.stderr_text());
}

/// The cgroup that gets the quota; removed when dropped.
struct Group(String);

impl Group {
    fn new(web: &Machine) -> Self {
        let mount = mountinfo::controller(&web.host, "cpu").expect("mounts").expect("cpu").mount;
        let group = Self(format!("{}/pinfold-test-incident-{}", mount.path, web.pid()));
        group.run(&format!("mkdir \"$0\"; echo {} >\"$0\"/cgroup.procs", web.pid()));
        group
    }

    fn run(&self, script: &str) {
        let ran = run("sh", ["-ec", script, &self.0]);
        assert!(ran.status.success(), "{}", ran.stderr_text());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.run("for pid in $(cat \"$0\"/cgroup.procs); do echo $pid >\"$0\"/../cgroup.procs; done; rmdir \"$0\"");
    }
}

/// Two busy machines, of which `web` is placed and watched, and what happens to it.
fn record(name: &str) -> String {
    let (web, db) = (start_busy_machine(), start_busy_machine());
    let group = Group::new(&web);
    web.print(&["apply", "--qmp", &web.qmp(), "-s", "compact"]);
    let vcpu = web.thread("CPU 0/").expect("a vCPU");
    let cpu = web.host.affinity(vcpu).expect("a mask").first().expect("a CPU").0;
    let other = db.thread("CPU 0/").expect("a vCPU");
    pin(other, if cpu == 0 { "1" } else { "0" });
    let port = free_port();
    let watch = ["watch", "--gaps", "1ms", "--metrics-port", &port.to_string()];
    let _watch = web.start_logged(&watch);
    assert!(until(|| get(port, "/metrics").contains(RECORDED[1])), "gaps are observed");
    let mut text = String::new();
    let mut task: Option<Child> = None;
    for scrape in 0..SCRAPES {
        if scrape == SCRAPES_BEFORE {
            match name {
                "other-machine" => pin(other, &cpu.to_string()),
                "quota" => group.run(
                    "if [ -e \"$0\"/cpu.max ]; then echo 30000 100000 >\"$0\"/cpu.max; \
                     else echo 30000 >\"$0\"/cpu.cfs_quota_us; fi",
                ),
                _ => {
                    let words = format!("-n -15 taskset -c {cpu} sh -c");
                    let hog = Spawn::new("nice").args(words.split(' '));
                    task = Some(start_quietly(hog.args(["while :; do :; done"])));
                }
            }
        }
        let now = SystemClock.unix_seconds();
        let page = get(port, "/metrics");
        for line in page.lines().filter(|line| RECORDED.iter().any(|one| line.starts_with(one))) {
            let line = line.replace(&web.name, "web").replace(&db.name, "db");
            writeln!(text, "{line} {now}").expect("a string");
        }
        SystemClock.sleep_ns(STEP * 1_000_000_000);
    }
    drop(task);
    text + "# EOF\n"
}
