//! Many domains that start and end at the same time: every hook succeeds, each machine is placed
//! once, and nothing is left.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::machine::{QEMU, find_thread, start_quietly};
use crate::common::{MINUTE_NS, PINFOLD, Sandbox, is_missing, until};
use pinfold_host::process::{Child, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files, paths};
use pinfold_model::{CpuSet, Tid};
use serde_json::Value;

const LONGEST_NS: u64 = 20 * MINUTE_NS;

fn count() -> usize {
    match std::env::var("PINFOLD_TEST_SIZE").as_deref() {
        Ok("full") => 500,
        Ok(_) | Err(_) => 16,
    }
}

/// Machines as domains of libvirt.
struct Domains {
    sandbox: Sandbox,
    host: LiveHost,
    machines: Vec<Child>,
}

impl Domains {
    fn start() -> Option<Self> {
        if is_missing(&[QEMU]) {
            return None;
        }
        let sandbox = Sandbox::with_claims();
        sandbox.write("domains.toml", "[default]\nplace = true\n");
        let mut machines = Vec::new();
        for index in 0..count() {
            let guest = format!("guest={},debug-threads=on", name(index));
            // No memory and no devices: it starts in a tenth of a second.
            let words = "-M microvm,pit=off,pic=off,rtc=off -nodefaults -display none -S -m 2";
            let words = words.split(' ').chain(["-accel", "tcg,tb-size=1", "-name", &guest]);
            let machine =
                start_quietly(Spawn::new(QEMU).args(words.chain(["-uuid", &uuid(index)])));
            sandbox.write(&format!("{}.pid", name(index)), machine.pid().to_string());
            let xml = format!(
                "<domain type='qemu'><name>{}</name><uuid>{}</uuid><memory unit='MiB'>2</memory>\
                 <vcpu>1</vcpu></domain>",
                name(index),
                uuid(index)
            );
            sandbox.write(&format!("{index}.xml"), xml);
            machines.push(machine);
        }
        let host = LiveHost::new().expect("a host");
        for machine in &machines {
            assert!(
                until(|| find_thread(&host, machine.pid(), "CPU 0/").is_some()),
                "QEMU makes its vCPU"
            );
        }
        Some(Self { sandbox, host, machines })
    }

    /// Runs the hooks of all domains at the same time, each with its domain on standard input, and
    /// returns what each one reported.
    #[track_caller]
    fn hooks(&self, operation: &str, phase: &str) -> Vec<String> {
        let begin = SystemClock.now_ns();
        let (plans, domains, root) =
            (self.path("plans"), self.path("domains.toml"), self.sandbox.root());
        let mut hooks = Vec::new();
        for index in 0..self.machines.len() {
            let (xml, said) =
                (self.path(&format!("{index}.xml")), self.path(&format!("{index}.{operation}")));
            let line = r#"exec "$@" <"$0" >"$SAID.out" 2>"$SAID""#;
            let own =
                ["-c", line, &xml, PINFOLD, "--state-dir", &self.path("state")].map(str::to_owned);
            let hook =
                ["libvirt-hook", "--plans", &plans, "--domains", &domains, "--run-dir", &root];
            let event = [name(index), operation.to_owned(), phase.to_owned(), "-".to_owned()];
            let words = own.into_iter().chain(hook.map(str::to_owned)).chain(event);
            let hook = Spawn::new("sh").args(words).stdin(Stdio::Null).env("SAID", &said);
            hooks.push((hook.die_with_parent(true).start().expect("it starts"), said));
        }
        let mut reports = Vec::new();
        for (mut hook, said) in hooks {
            let status = hook.wait_for(&SystemClock, LONGEST_NS).expect("its state");
            let report = files::read_text(&said).expect("its messages");
            assert_eq!(status.expect("it ends").code(), Some(0), "{operation}: {report}");
            // libvirt takes it for a domain's XML.
            assert_eq!(files::read_text(&format!("{said}.out")).expect("a file"), "", "{report}");
            reports.push(report);
        }
        let each = (SystemClock.now_ns() - begin) / 1000 / self.machines.len() as u64;
        println!("{} hooks at the same time, {operation}: {each} µs each", reports.len());
        reports
    }

    fn path(&self, name: &str) -> String {
        self.sandbox.path(name)
    }

    /// Numad is asked at the same time.
    fn ask_numad(&self) -> Vec<Child> {
        let numad = self.sandbox.path("numad");
        std::os::unix::fs::symlink(PINFOLD, &numad).expect("a link");
        (0..self.machines.len())
            .map(|index| {
                let answer = self.sandbox.path(&format!("{index}.nodes"));
                let line = r#"exec "$1" -w 1:2 >"$0" 2>/dev/null"#;
                let asked = Spawn::new("sh").args(["-c", line, &answer, &numad]).stdin(Stdio::Null);
                asked.die_with_parent(true).start().expect("it starts")
            })
            .collect()
    }

    /// The plans of the journals, by the process of their machine.
    fn plans(&self) -> BTreeMap<u64, Vec<Value>> {
        let folder = self.sandbox.path("state/journal");
        let mut plans: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
        for name in files::list(&folder).unwrap_or_default() {
            if name.ends_with(".jsonl") {
                let text = files::read_text(&format!("{folder}/{name}")).expect("a journal");
                let header = text.lines().next().expect("a header");
                let header: Value = serde_json::from_str(header).expect("JSON");
                let plan = header["plan"].as_str().expect("a plan");
                let plan = serde_json::from_str(plan).expect("JSON");
                plans
                    .entry(header["vm"]["tid"].as_u64().expect("a number"))
                    .or_default()
                    .push(plan);
            }
        }
        plans
    }

    /// The processes that wait for the end of a machine of this test, and late hooks.
    fn helpers(&self) -> Vec<String> {
        let state = self.sandbox.path("state");
        let pids = self.host.list(&paths::proc_dir()).expect("processes");
        let pids = pids.into_iter().filter_map(|pid| pid.parse().ok().map(Tid));
        let words = pids.filter_map(|pid| self.host.read_text(&paths::process_cmdline(pid)).ok());
        words.filter(|words| words.contains(&state)).collect()
    }
}

fn name(index: usize) -> String {
    format!("many-{index}")
}

fn uuid(index: usize) -> String {
    format!("00000000-0000-4000-8000-{index:012}")
}

fn exclusive(plan: &Value) -> CpuSet {
    CpuSet::parse_list(plan["exclusive_pus"].as_str().expect("a list")).expect("CPUs")
}

#[test]
fn many_domains_start_and_end_at_the_same_time() {
    let Some(mut domains) = Domains::start() else { return };
    let nodes = domains.ask_numad();
    let reports = domains.hooks("started", "begin");
    for (index, mut asked) in nodes.into_iter().enumerate() {
        let status = asked.wait_for(&SystemClock, LONGEST_NS).expect("its state");
        assert!(status.expect("it ends").success());
        let answer = domains.sandbox.read(&format!("{index}.nodes"));
        let answer = CpuSet::parse_list(answer.trim()).expect("nodes");
        assert!(!answer.is_empty());
    }
    // Those that libvirt would have waited for too long are placed by a process of their own.
    let active = format!("{} placements are active", count());
    let status = || domains.sandbox.run(&["status"]).stdout_text();
    let end = SystemClock.now_ns() + LONGEST_NS;
    while !status().contains(&active) && SystemClock.now_ns() < end {
        SystemClock.sleep_ns(MINUTE_NS / 60);
    }
    assert!(status().contains(&active), "{}", status());
    let plans = domains.plans();
    let machines: BTreeSet<u64> =
        domains.machines.iter().map(|machine| u64::from(machine.pid().0)).collect();
    assert_eq!(plans.keys().copied().collect::<BTreeSet<u64>>(), machines, "{reports:?}");
    assert!(plans.values().all(|plans| plans.len() == 1), "one is placed twice");
    // On a host with so few CPUs some are used twice: that is reported.
    let mut taken = CpuSet::new();
    for plan in plans.values().flatten() {
        let own = exclusive(plan);
        let is_free = own.is_disjoint(&taken);
        assert!(is_free || status().contains("cpu-used-twice"), "CPUs {own} are exclusive twice");
        taken.add(&own);
    }
    for machine in &mut domains.machines {
        machine.kill().expect("it ends");
    }
    domains.hooks("release", "end");
    assert!(until(|| domains.helpers().is_empty()), "{:?}", domains.helpers());
    let status = domains.sandbox.run(&["status"]).stdout_text();
    assert!(status.contains("no placement is active"), "{status}");
    let left = files::list(&domains.sandbox.path("state/journal")).expect("files");
    let mut left = left.iter().filter(|name| name.ends_with(".waiter"));
    assert_eq!(left.next(), None);
}
