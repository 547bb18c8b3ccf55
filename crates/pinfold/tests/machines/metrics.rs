//! What Prometheus and its tools say about the metrics, the alert rules and the dashboard.

mod incidents;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::common::machine::{Machine, start_quietly};
use crate::common::{Sandbox, assert_parts, is_missing, run, skip, until};
use pinfold_host::process::{Child, Signaled, Spawn, signal};
use pinfold_host::{Clock as _, SystemClock, files};
use serde_json::Value;

const DASHBOARDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/dashboards");

/// The panels of the dashboard.
fn panels() -> Vec<Value> {
    let text = files::read_text(&format!("{DASHBOARDS}/grafana.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    dashboard["panels"].as_array().expect("panels").clone()
}

/// The expressions of a panel with values in place of Grafana's variables.
fn expressions_of(panel: &Value) -> Vec<String> {
    let variables = [("$vm", ".*"), ("$__rate_interval", "20s"), ("$__range", "6h")];
    let targets = panel["targets"].as_array().expect("targets").iter();
    let expressions = targets.map(|target| {
        let expression = target["expr"].as_str().expect("an expression").to_owned();
        variables.iter().fold(expression, |text, (name, value)| text.replace(name, value))
    });
    expressions.collect()
}

fn expressions() -> Vec<String> {
    panels().iter().flat_map(expressions_of).collect()
}

/// The expression of the panel with this title.
fn panel(title: &str) -> String {
    let panel = panels().into_iter().find(|panel| panel["title"] == title).expect(title);
    expressions_of(&panel).remove(0)
}

#[test]
fn promtool_accepts_the_rules_and_each_expression_of_the_dashboard() {
    if is_missing(&["promtool"]) {
        return;
    }
    fn check(path: &str) -> String {
        let output = run("promtool", ["check", "rules", path]);
        assert!(output.status.success(), "{}{}", output.stdout_text(), output.stderr_text());
        output.stdout_text()
    }
    assert_parts(&check(&format!("{DASHBOARDS}/alerts.yml")), &["9 rules found"]);
    let expressions = expressions();
    assert!(expressions.len() > 10);
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, expression) in (0..).zip(&expressions) {
        let expression = expression.replace('\'', "''");
        rules.push_str(&format!("      - record: panel:{number}\n        expr: '{expression}'\n"));
    }
    let sandbox = Sandbox::new();
    let found = check(&sandbox.write("dashboard.yml", rules));
    assert_parts(&found, &[&format!("{} rules found", expressions.len())]);
}

/// A machine that is placed and watched, with its metrics at a port.
struct Watched {
    machine: Machine,
    port: u16,
    _watch: Child,
}

/// A port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// The body of an answer; empty if nothing answers.
fn get(port: u16, path: &str) -> String {
    let mut text = String::new();
    if let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("asked");
        stream.read_to_string(&mut text).expect("answered");
    }
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

impl Watched {
    fn new() -> Option<Self> {
        let machine = Machine::new("-smp 2")?;
        let port = free_port();
        machine.print(&["apply", "--qmp", &machine.qmp(), "-s", "compact"]);
        let watch =
            machine.start_logged(&["watch", "--gaps", "1ms", "--metrics-port", &port.to_string()]);
        let watched = Self { machine, port, _watch: watch };
        assert!(
            until(|| {
                let page = get(port, "/metrics");
                page.contains("placements 1") && page.contains("pinfold_pool_cpus{")
            }),
            "{}",
            get(port, "/metrics")
        );
        Some(watched)
    }
}

#[test]
fn a_machine_that_is_stopped_has_gaps_of_that_cause() {
    let Some(watched) = Watched::new() else { return };
    let pid = watched.machine.qemu.pid();
    let log = || files::read_text(&watched.machine.path("said")).unwrap_or_default();
    let mut page = String::new();
    let is_seen = until(|| {
        page = get(watched.port, "/metrics");
        let stopped = page.lines().find(|line| line.contains("cause=\"stopped\""));
        for to_send in [Signaled::Stop, Signaled::Continue] {
            signal(pid, to_send).expect("a signal");
            SystemClock.sleep_ns(20_000_000);
        }
        stopped.is_some_and(|line| !line.ends_with(" 0.000000000"))
            || log().contains("no metrics of gaps")
    });
    if log().contains("no metrics of gaps") {
        skip("this kernel lets no gaps be observed");
        return;
    }
    assert!(is_seen, "{page}");
    assert_parts(&page, &["pinfold_vm_gap_seconds_count{", "le=\"+Inf\""]);
}

#[test]
fn promtool_accepts_the_page_of_a_watched_machine() {
    if is_missing(&["promtool"]) {
        return;
    }
    let Some(watched) = Watched::new() else { return };
    let page = get(watched.port, "/metrics");
    let (name, strategy) = (&watched.machine.name, "strategy=\"compact\"");
    let labels = format!("vm=\"{name}\"");
    let parts = ["pinfold_thread_migrations_total{", "pinfold_host_steal_seconds_total{"];
    assert_parts(&page, &parts);
    let parts = ["pinfold_vcpu_ready_seconds_total{", "vcpu=\"1\"", "role=\"emulator\""];
    assert_parts(&page, &[&parts[..], &[&labels, strategy]].concat());
    let path = watched.machine.write("page", &page);
    let output = run("sh", ["-c", "promtool check metrics < \"$0\"", &path]);
    let said = format!("{}{}", output.stdout_text(), output.stderr_text());
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// A series in the answer to a query.
struct Row {
    labels: Value,
    value: f64,
}

/// The answer of Prometheus to a query for this time (Unix seconds); empty if nothing answers.
fn ask(port: u16, query: &str, time: u64) -> Vec<Row> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let body = get(port, &format!("/api/v1/query?query={encoded}&time={time}"));
    let Ok(answer) = serde_json::from_str::<Value>(&body) else { return Vec::new() };
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    let rows = answer["data"]["result"].as_array().expect("a list").iter().map(|row| Row {
        labels: row["metric"].clone(),
        value: row["value"][1].as_str().and_then(|text| text.parse().ok()).expect("a number"),
    });
    rows.collect()
}

/// The number of series of a query now, 0 as long as there are none.
fn series(port: u16, query: &str) -> usize {
    ask(port, query, SystemClock.unix_seconds()).len()
}

/// A real Prometheus reads the page, its rules and the dashboard's queries.
#[test]
fn prometheus_scrapes_a_watched_machine() {
    if is_missing(&["prometheus"]) {
        return;
    }
    let Some(watched) = Watched::new() else { return };
    let rules = files::read_text(&format!("{DASHBOARDS}/alerts.yml")).expect("the rules");
    let rules = watched.machine.write("alerts.yml", rules);
    let config = format!(
        "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: ['{rules}']\n\
         scrape_configs:\n  - job_name: pinfold\n    static_configs:\n      \
         - targets: ['127.0.0.1:{}']\n",
        watched.port
    );
    let config = watched.machine.write("prometheus.yml", config);
    let port = free_port();
    let words = [
        format!("--config.file={config}"),
        format!("--storage.tsdb.path={}", watched.machine.path("tsdb")),
        format!("--web.listen-address=127.0.0.1:{port}"),
        "--log.level=error".to_owned(),
    ];
    let _prometheus = start_quietly(Spawn::new("prometheus").args(words));
    count("up{job=\"pinfold\"} == 1", 1, port);
    count("pinfold_vm_info{strategy=\"compact\"}", 1, port);
    count("pinfold_vcpu_ready_seconds_total", 2, port);
    count("pinfold_pool_cpus", 3, port);
    // Some scrapes later a rate has its values.
    count("rate(pinfold_thread_run_seconds_total{role=\"vcpu\"}[1m])", 1, port);
    // None of the queries is an error; those without values are about quotas, gaps, KVM, vnodes.
    let empty: Vec<String> =
        expressions().into_iter().filter(|query| series(port, query) == 0).collect();
    assert!(
        empty.iter().all(|query| {
            ["throttled", "gap", "exits", "vnode"].iter().any(|word| query.contains(word))
        }),
        "{empty:?}"
    );
}

fn count(query: &str, expected: usize, port: u16) {
    assert!(until(|| series(port, query) == expected), "{query}: {}", series(port, query));
}
