//! Random sequences of what the owner of two domains, libvirt and Pinfold do, with kills: no pin
//! that the owner set is lost, no exclusive CPU has two owners, and after undo nothing is left.

use std::collections::BTreeMap;

use crate::common::machine::{find_thread, list_masks};
use crate::common::{Checked as _, SECOND_NS, Sandbox, run, until};
use crate::daemon::Daemon;
use crate::libvirt::{daemon_with_hook, root};
use pinfold_host::process::{Child, Output, Signaled, Spawn, Stdio, find_program};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files, paths};
use pinfold_model::{CpuSet, Tid};
use serde_json::Value;

/// The first one ends with the daemon.
const DOMAINS: [&str; 2] = ["pinfold-test", "pinfold-test-2"];
/// Number of events of a sequence.
const EVENTS: u64 = 9;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn one_of(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }
}

/// The seeds of this run: `PINFOLD_TEST_SEEDS=FIRST-LAST`, or a few.
fn seeds() -> std::ops::RangeInclusive<u64> {
    if let Ok(text) = std::env::var("PINFOLD_TEST_SEEDS") {
        let (first, last) = text.split_once('-').expect("FIRST-LAST");
        return first.parse().expect("a number")..=last.parse().expect("a number");
    }
    match std::env::var("PINFOLD_TEST_SIZE").as_deref() {
        Ok("full") => 1..=300,
        Ok(_) | Err(_) => 1..=2,
    }
}

/// A domain as its owner sees it.
#[derive(Clone, Debug, Default)]
struct Domain {
    is_running: bool,
    /// The pins that the owner has set while it runs.
    pins: BTreeMap<u32, CpuSet>,
    /// What its first vCPU was pinned to before an `apply` that the owner gave later.
    earlier: Vec<CpuSet>,
    /// Pins of its first vCPU that Pinfold has set in libvirt: the same by the owner looks alike.
    applied: Vec<CpuSet>,
    /// Pinfold has set pins in libvirt, which a saved image contains.
    is_pinned_by_apply: bool,
}

/// A libvirt whose hook is Pinfold, with two domains.
struct Host {
    // Dropped first: it ends with its domains.
    daemon: Daemon,
    hooks: Sandbox,
    live: LiveHost,
    domains: [Domain; 2],
    watch: Option<Child>,
    /// The CPUs of a thread that is not pinned.
    all: CpuSet,
    events: Vec<String>,
}

impl Host {
    fn new() -> Option<Self> {
        let hooks = Sandbox::new();
        let daemon = daemon_with_hook(&hooks)?;
        // Pinfold may be killed while libvirt waits for it.
        let script = "#!/bin/sh\nlimit=\nread -r limit < \"$HOME/kill-hook\"\n\
            /usr/bin/timeout -s KILL \"${limit:-0}\" \"$(dirname \"$0\")/pinfold\" --state-dir \
            \"$HOME/state\" libvirt-hook --plans \"$HOME/plans\" --domains \"$HOME/domains.toml\" \
            --run-dir \"$HOME/libvirt/qemu/run\" \"$@\" 2>> \"$HOME/hook.log\"\nexit 0\n";
        files::write_atomic(&format!("{}/qemu", hooks.root()), script.as_bytes()).expect("written");
        run("chmod", ["0755", &format!("{}/qemu", hooks.root())]).expect_success();
        let live = LiveHost::new().expect("a host");
        let domains = Default::default();
        let mut host = Self {
            daemon,
            hooks,
            live,
            domains,
            watch: None,
            all: CpuSet::new(),
            events: Vec::new(),
        };
        host.write("kill-hook", "0\n");
        let emulator = find_program("qemu-system-x86_64").expect("it was found before");
        for name in DOMAINS {
            let xml = format!(
                "<domain type='qemu'><name>{name}</name><memory unit='MiB'>32</memory>
                 <vcpu current='1'>2</vcpu>
                 <os><type arch='x86_64' machine='q35'>hvm</type></os>
                 <devices><emulator>{emulator}</emulator></devices></domain>"
            );
            host.write("domain.xml", &xml);
            let file = format!("{}/domain.xml", root(&host.daemon));
            host.daemon.virsh(&["define", &file]).expect("it is defined");
        }
        // Nothing asks for a placement yet.
        host.virsh(&["start", DOMAINS[0], "--paused"]);
        host.all = host.masks(0).values().next().expect("a thread").clone();
        host.virsh(&["destroy", DOMAINS[0]]);
        host.write("domains.toml", "[default]\nplace = true\n");
        Some(host)
    }

    /// Writes a file of the daemon's user.
    fn write(&self, name: &str, text: &str) {
        let path = format!("{}/{name}", root(&self.daemon));
        files::write_atomic(&path, text.as_bytes()).expect("written");
        run("chown", ["65534:65534", &path]).expect_success();
    }

    fn virsh(&self, words: &[&str]) -> String {
        self.daemon.virsh(words).unwrap_or_else(|error| panic!("{words:?}: {error}{}", self.told()))
    }

    fn told(&self) -> String {
        let [hook, watch] = ["hook.log", "watch.log"].map(|name| {
            files::read_text(&format!("{}/{name}", root(&self.daemon))).unwrap_or_default()
        });
        format!("\nevents: {:#?}\nhook: {hook}\nwatch: {watch}", self.events)
    }

    fn pid(&self, index: usize) -> Tid {
        let file = format!("{}/libvirt/qemu/run/{}.pid", root(&self.daemon), DOMAINS[index]);
        let text = files::read_text(&file).unwrap_or_else(|error| panic!("{error}{}", self.told()));
        Tid(text.trim().parse().expect("a number"))
    }

    fn masks(&self, index: usize) -> BTreeMap<Tid, CpuSet> {
        list_masks(&self.live, self.pid(index))
    }

    /// Pinfold as the user of the daemon and its hook.
    fn pinfold(&self, words: &[&str]) -> Spawn {
        let root = root(&self.daemon);
        let (home, state) = (format!("HOME={root}"), format!("--state-dir={root}/state"));
        let uri = format!("LIBVIRT_DEFAULT_URI={}", self.daemon.uri());
        let program = format!("{}/pinfold", self.hooks.root());
        let user = ["--clear-groups", "--reuid=65534", "--regid=65534", "env", "-C", "/"];
        let own = [home.as_str(), &uri, &program, &state];
        let words = [&user[..], &own, words].concat();
        Spawn::new("setpriv").args(words).stdin(Stdio::Null).die_with_parent(true)
    }

    fn run(&self, words: &[&str]) -> Output {
        self.pinfold(words).capture(120 * SECOND_NS).expect("pinfold runs")
    }

    /// Runs it, and kills it after this time, if any.
    fn run_or_kill(&mut self, words: &[&str], kill_ms: Option<u64>) {
        self.events.push(format!("{words:?}, killed after {kill_ms:?} ms"));
        let Some(ms) = kill_ms else {
            let output = self.run(words);
            self.events.push(output.stderr_text());
            return;
        };
        let quiet = self.pinfold(words).stdout(Stdio::Null).stderr(Stdio::Null);
        let mut child = quiet.start().expect("it starts");
        SystemClock.sleep_ns(ms * 1_000_000);
        child.signal(Signaled::Kill).expect("killed");
        child.wait().expect("it ends");
    }

    fn start_watch(&mut self) {
        let root = root(&self.daemon);
        let log = format!("{root}/watch.log");
        let line = "exec \"$@\" 2>>\"$0\"";
        // The wrapper keeps the descriptor of the log.
        let program = format!("{}/pinfold", self.hooks.root());
        let uri = format!("LIBVIRT_DEFAULT_URI={}", self.daemon.uri());
        let state = format!("--state-dir={root}/state");
        let user = ["-c", line, &log, "setpriv", "--clear-groups", "--reuid=65534"];
        let own = ["--regid=65534", "env", "-C", "/", &uri, &program, &state, "watch"];
        let watch = Spawn::new("sh").args([&user[..], &own].concat()).stdin(Stdio::Null);
        let watch = watch.stdout(Stdio::Null).die_with_parent(true).start();
        self.watch = Some(watch.expect("it starts"));
        self.events.push("watch".to_owned());
    }

    fn kill_watch(&mut self, signal: Signaled) {
        if let Some(mut watch) = self.watch.take() {
            self.events.push("the end of watch".to_owned());
            // It may have ended by itself, for example when it monitored the last machine.
            match watch.signal(signal) {
                Ok(()) | Err(_) => {}
            }
            watch.wait().expect("it ends");
        }
    }

    /// What happens next.
    fn step(&mut self, random: &mut Random) {
        let index = usize::try_from(random.below(2)).expect("small");
        let name = DOMAINS[index];
        let kill = |random: &mut Random| random.one_of(3).then(|| random.below(150));
        if !self.domains[index].is_running {
            let limit = if random.one_of(4) { random.below(150) } else { 0 };
            self.write("kill-hook", &format!("{}\n", seconds(limit)));
            self.events.push(format!("start {name}, hook killed after {limit} ms"));
            self.virsh(&["start", name, "--paused"]);
            self.write("kill-hook", "0\n");
            self.domains[index] = Domain { is_running: true, ..Domain::default() };
            return;
        }
        match random.below(9) {
            0 => {
                self.events.push(format!("destroy {name}"));
                // A daemon that was restarted just now may notice the end of the process before it
                // answers.
                match self.daemon.virsh(&["destroy", name]) {
                    Err(error) if error.contains("domain is not running") => {}
                    done => assert!(done.is_ok(), "{done:?}{}", self.told()),
                }
                self.domains[index] = Domain::default();
            }
            1 if !self.domains[index].is_pinned_by_apply => {
                self.events.push(format!("save and restore {name}"));
                let image = format!("{}/image", root(&self.daemon));
                self.virsh(&["save", name, &image, "--paused"]);
                self.virsh(&["restore", &image, "--paused"]);
            }
            2 => {
                self.events.push(format!("setvcpus {name}"));
                self.virsh(&["setvcpus", name, "2", "--live"]);
            }
            1 | 3 | 4 => self.pin_by_owner(index, random),
            5 => {
                let kill = kill(random);
                self.apply_by_owner(index, kill);
            }
            6 => {
                let kill = kill(random);
                self.run_or_kill(&["undo", name], kill);
            }
            7 => match self.watch {
                Some(_) => self.kill_watch(Signaled::Kill),
                None => self.start_watch(),
            },
            _ => {
                self.events.push("libvirtd is killed and starts again".to_owned());
                self.daemon.stop();
                self.daemon.restart();
                // Each waits until the daemon has found its domain, and its hook has ended.
                for (name, domain) in DOMAINS.iter().zip(self.domains.clone()) {
                    if domain.is_running {
                        self.virsh(&["suspend", name]);
                    }
                }
            }
        }
        self.expect_pins();
    }

    fn pin_by_owner(&mut self, index: usize, random: &mut Random) {
        let name = DOMAINS[index];
        let cpus: Vec<_> = self.all.iter().collect();
        let cpu = cpus[usize::try_from(random.below(cpus.len() as u64)).expect("small")];
        let cpu = CpuSet::single(cpu);
        self.events.push(format!("vcpupin {name} 0 {cpu}"));
        self.virsh(&["vcpupin", name, "0", &cpu.to_string(), "--live"]);
        let domain = &mut self.domains[index];
        if domain.applied.contains(&cpu) {
            domain.earlier.extend(domain.pins.remove(&0));
            domain.earlier.push(cpu);
        } else {
            domain.pins.insert(0, cpu);
        }
    }

    fn apply_by_owner(&mut self, index: usize, kill_ms: Option<u64>) {
        let name = DOMAINS[index];
        let domain = &mut self.domains[index];
        domain.is_pinned_by_apply = true;
        // That is the owner's word too, and undo leads back to a state before it.
        domain.earlier.extend(std::mem::take(&mut domain.pins).into_values());
        self.run_or_kill(&["apply", "--libvirt", name, "-s", "compact"], kill_ms);
        let xml = self.virsh(&["dumpxml", name]);
        let pin = xml.split_once("<vcpupin vcpu='0' cpuset='").map(|(_, rest)| rest);
        let pin = pin.and_then(|rest| CpuSet::parse_list(rest.split('\'').next()?).ok());
        self.domains[index].applied.extend(pin);
    }

    /// The owner's pins are as the owner has set them.
    #[track_caller]
    fn expect_pins(&self) {
        for (index, domain) in self.domains.iter().enumerate() {
            for (vcpu, cpus) in &domain.pins {
                let thread = find_thread(&self.live, self.pid(index), &format!("CPU {vcpu}/"));
                assert_eq!(
                    self.live.affinity(thread.expect("a vCPU")).expect("a mask"),
                    *cpus,
                    "vCPU {vcpu} of {}{}",
                    DOMAINS[index],
                    self.told()
                );
            }
        }
    }

    /// The plans of active journals, by the name of their machine.
    fn plans(&self) -> Vec<(String, Value)> {
        let folder = format!("{}/state/journal", root(&self.daemon));
        let mut plans = Vec::new();
        for name in files::list(&folder).unwrap_or_default() {
            if !name.ends_with(".jsonl") {
                continue;
            }
            let text = files::read_text(&format!("{folder}/{name}")).expect("a journal");
            if text.lines().any(|line| line.starts_with("{\"end\"")) {
                continue;
            }
            let header: Value = serde_json::from_str(text.lines().next().expect("a header"))
                .unwrap_or_else(|error| panic!("{name}: {error}{}", self.told()));
            let plan = serde_json::from_str(header["plan"].as_str().expect("a plan"));
            let machine = header["vm_name"].as_str().expect("a name").to_owned();
            plans.push((machine, plan.expect("JSON")));
        }
        plans
    }

    #[track_caller]
    fn expect_one_owner(&self) {
        let mut taken = CpuSet::new();
        for (name, plan) in self.plans() {
            let own = CpuSet::parse_list(plan["exclusive_pus"].as_str().expect("a list"));
            let own = own.expect("CPUs");
            // On a host with so few CPUs some are used twice: that is reported.
            assert!(
                own.is_disjoint(&taken)
                    || self.run(&["status"]).stdout_text().contains("cpu-used-twice"),
                "{name}: CPUs {own} are exclusive twice{}",
                self.told()
            );
            taken.add(&own);
        }
    }

    /// The command lines of running processes that have a text in them.
    fn processes(&self, text: &str) -> Vec<String> {
        let pids = self.live.list(&paths::proc_dir()).expect("processes");
        let pids = pids.into_iter().filter_map(|pid| pid.parse().ok().map(Tid));
        let words = pids.filter_map(|pid| self.live.read_text(&paths::process_cmdline(pid)).ok());
        words.filter(|words| words.contains(text)).collect()
    }

    /// Undoes everything, and asserts that nothing is left.
    #[track_caller]
    fn end(&mut self) {
        self.kill_watch(Signaled::Terminate);
        // A hook that goes on after libvirt's wait for it.
        let hook = format!("{}/state\0libvirt-hook", root(&self.daemon));
        assert!(until(|| self.processes(&hook).is_empty()), "{}", self.told());
        let undone = self.run(&["undo", "--all"]);
        let said = undone.stderr_text();
        self.events.push(said.clone());
        let is_none = said.contains("no placement");
        assert!(undone.status.success() || is_none, "{said}{}", self.told());
        self.expect_pins();
        for (index, domain) in self.domains.clone().iter().enumerate() {
            if !domain.is_running {
                continue;
            }
            let first = find_thread(&self.live, self.pid(index), "CPU 0/");
            let mut masks = self.masks(index);
            masks.retain(|tid, mask| {
                let is_owners = domain.pins.contains_key(&0) || domain.earlier.contains(mask);
                *mask != self.all && !(Some(*tid) == first && is_owners)
            });
            assert!(masks.is_empty(), "{}: {masks:?}{}", DOMAINS[index], self.told());
        }
        let status = self.run(&["status"]);
        let text = status.stdout_text();
        assert!(text.contains("no placement is active"), "{text}{}", self.told());
        let state = format!("{}/state", root(&self.daemon));
        let own = || self.processes(&state);
        assert!(until(|| own().is_empty()), "{:?}{}", own(), self.told());
        let left = files::list(&format!("{state}/journal")).unwrap_or_default();
        let left: Vec<_> = left.iter().filter(|name| name.ends_with(".waiter")).collect();
        assert!(left.is_empty(), "{left:?}{}", self.told());
        for (index, name) in DOMAINS.iter().enumerate() {
            if self.domains[index].is_running {
                self.virsh(&["destroy", name]);
                self.domains[index] = Domain::default();
            }
        }
        self.events.clear();
    }
}

/// For `timeout`, for which 0 is none.
fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

impl Drop for Host {
    fn drop(&mut self) {
        match self.daemon.virsh(&["destroy", DOMAINS[1]]) {
            Ok(_) | Err(_) => {}
        }
    }
}

#[test]
fn random_sequences_lose_no_pin_and_leave_nothing() {
    let Some(mut host) = Host::new() else { return };
    for seed in seeds() {
        let mut random = Random(seed);
        host.events.push(format!("seed {seed}"));
        for _ in 0..EVENTS {
            host.step(&mut random);
        }
        host.expect_one_owner();
        host.end();
    }
}
