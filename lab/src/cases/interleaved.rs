//! Random sequences of what the owner of a host, systemd and Pinfold do, with kills.
//!
//! Machines start and end as units, or as domains of a real libvirt whose hook is Pinfold; they are
//! placed by hand and by a watch with `domains.toml`; their owner moves other tasks, and pins and
//! adds vCPUs of domains; libvirt's daemon is killed; systemd reloads its units; a CPU goes offline; the clock is set back;
//! Pinfold is killed.
//! After each step the owner's own masks are as the owner has set them, and no CPU is exclusive for
//! two vCPUs. After each round nothing is left: masks, groups, settings of systemd, journals.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::CpuSet;

use super::Extent;
use super::hotplug::differences;
use super::libvirt;
use super::random_kills::Moments;
use super::shapes::ROOT;
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::isa::IDLE_ROM;
use crate::snapshot::{Snapshot, Task};

const NAMES: [&str; 3] = ["one", "two", "three"];
/// Steps of a round.
const STEPS: usize = 12;
/// 300 steps.
const ROUNDS: usize = 25;
const ALL: &str = "0-7";

const LEFT: &str = "pinfold status; ls /var/lib/pinfold/journal 2>/dev/null | grep waiter || true";

/// Services of the owner, one of which the owner moves.
const PREPARE: &str = "
    mkdir -p /etc/pinfold
    printf '[default]\\nplace = true\\n' > /etc/pinfold/domains.toml
    for name in web batch; do
        systemd-run --quiet --unit=$name /bin/busybox tail -f /dev/null
    done
    systemctl show -P MainPID web";
/// What the hook and the watch have reported, for the transcript of a failure.
const REPORTS: &str =
    "tail -n 50 /run/hook.txt /run/holder.txt /var/log/pinfold/* 2>/dev/null || true";
const SETTINGS: &str = "for u in init.scope system.slice user.slice machine.slice web batch; do
        echo $u $(systemctl show -p AllowedCPUs $u); done
    find /run/systemd/system.control /etc/systemd/system.control -type f 2>/dev/null | sort";
/// A unit with the command line of a machine; the name and the machine are replaced.
const START: &str = "rm -f /run/NAME.qmp /run/NAME.pid
    systemd-run --quiet --unit=vm-NAME --slice=machine.slice --service-type=exec MACHINE \
        -accel tcg,thread=multi -smp 2 -name NAME,debug-threads=on \
        -qmp unix:/run/NAME.qmp,server=on,wait=off -pidfile /run/NAME.pid
    until [ -S /run/NAME.qmp ] && [ -s /run/NAME.pid ]; do usleep 50000; done
    until [ $(ls /proc/$(cat /run/NAME.pid)/task | wc -l) -ge 3 ]; do usleep 50000; done";
const STOP: &str = "systemctl stop vm-NAME
    systemctl reset-failed vm-NAME 2>/dev/null || true";
/// A domain of libvirt whose vCPUs halt in their first instruction.
const DEFINE: &str = "export LC_ALL=C
    echo \"<domain type='qemu'><name>NAME</name><memory unit='MiB'>32</memory>
        <vcpu current='1'>2</vcpu>
        <os><type arch='x86_64' machine='pc'>hvm</type><loader type='rom'>ROM</loader></os>
        <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
        <controller type='usb' model='none'/><memballoon model='none'/></devices></domain>\" \
        > /run/NAME.xml
    virsh -q define /run/NAME.xml >/dev/null";
const HOOK: &str = "mkdir -p /etc/libvirt/hooks
    printf '#!/bin/busybox sh\\n/usr/bin/pinfold libvirt-hook \"$@\" 2>>/run/hook.txt\\nexit 0\\n' \
        > /etc/libvirt/hooks/qemu
    chmod 755 /etc/libvirt/hooks/qemu";
const DAEMON: &str = "/system.slice/libvirtd.service";
/// libvirt's daemon starts again, and has found its domains when it answers. systemd 252 fails
/// after the kill if a process of the daemon has just ended.
const RESTART: &str = "systemctl kill -s KILL libvirtd || true
    while systemctl --quiet is-active libvirtd; do usleep 50000; done
    systemctl reset-failed libvirtd 2>/dev/null || true
    systemctl start libvirtd
    until timeout 20 virsh -q version >/dev/null; do usleep 200000; done";
/// The pins of the vCPUs and of the emulator, as libvirt reports them.
const PINS: &str = "virsh -q vcpupin NAME --live
    echo emulator $(virsh -q emulatorpin NAME --live)";
const WATCH: &str = "systemd-run --quiet --unit=holder -p StandardError=append:/run/holder.txt \
    /usr/bin/pinfold watch --all";
/// It may have ended by itself, when its last machine did.
const KILL_WATCH: &str = "systemctl kill -s SIGNAL holder 2>/dev/null || true
    while systemctl --quiet is-active holder; do usleep 50000; done
    systemctl reset-failed holder 2>/dev/null || true";

/// What starts and ends the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manager {
    Systemd,
    Libvirt,
}

/// What the owner and systemd have done so far.
struct Host<'g> {
    manager: Manager,
    guest: &'g mut Guest,
    random: Moments,
    running: BTreeSet<&'static str>,
    watches: bool,
    offline: Option<u64>,
    /// The process of the service that the owner moves.
    web: u32,
    /// The CPUs to which the owner has moved it.
    web_cpus: Option<CpuSet>,
    /// The CPU to which the owner has pinned the first vCPU of a domain, until the owner asks
    /// Pinfold for a placement.
    pins: BTreeMap<&'static str, u64>,
    /// The same, and those to which an undo of that placement may return.
    all_pins: BTreeSet<(&'static str, u64)>,
    /// The domains that `apply` has pinned: a saved image has those pins, and no undo finds them.
    applied: BTreeSet<&'static str>,
    /// The domains that have got a second vCPU while they run, with the CPU that was offline then:
    /// libvirt gives a new thread the CPUs that are online.
    added: BTreeMap<&'static str, Option<u64>>,
    /// An isolation in this round may have moved it off these CPUs.
    isolates: bool,
    events: Vec<String>,
}

pub(super) fn keep_order(
    guest: &mut Guest,
    extent: Extent,
    manager: Manager,
) -> Result<String, LabError> {
    let rounds = match extent {
        Extent::Sample | Extent::Fixed => 1,
        Extent::Full => ROUNDS,
    };
    let text = guest.shell(PREPARE)?;
    let web = text.trim().parse().map_err(|_| LabError::wrong("pid of a service", text))?;
    if manager == Manager::Libvirt {
        guest.shell(HOOK)?;
        guest.shell(libvirt::START_DAEMON)?;
        for name in NAMES {
            guest.shell(&DEFINE.replace("NAME", name).replace("ROM", IDLE_ROM))?;
        }
        // libvirt makes the groups of all domains with the first one.
        guest.shell("virsh -q start one && virsh -q destroy one")?;
        guest.shell("until [ ! -e /run/libvirt/qemu/one.pid ]; do usleep 50000; done")?;
    }
    let seed = 52;
    let mut host = Host {
        manager,
        guest,
        random: Moments(seed),
        running: BTreeSet::new(),
        watches: false,
        offline: None,
        web,
        web_cpus: None,
        pins: BTreeMap::new(),
        all_pins: BTreeSet::new(),
        applied: BTreeSet::new(),
        added: BTreeMap::new(),
        isolates: false,
        events: Vec::new(),
    };
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for round in 1..=rounds {
        let done = host.round();
        for event in &host.events {
            *kinds.entry(event.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
        let events = std::mem::take(&mut host.events).join("; ");
        if done.is_err() {
            host.guest.shell(REPORTS)?;
        }
        done.map_err(|error| {
            LabError::wrong(format!("round {round}, {events}"), error.to_string())
        })?;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, many)| format!("{many} {kind}")).collect();
    Ok(format!(
        "{} random steps from seed {seed} in {rounds} rounds ({}): the owner's masks stay, no \
         exclusive CPU has two vCPUs, and nothing is left after each round",
        rounds * STEPS,
        kinds.join(", ")
    ))
}

impl Host<'_> {
    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn name(&mut self) -> &'static str {
        [NAMES[0], NAMES[1], NAMES[2]][usize::try_from(self.below(3)).unwrap_or(0)]
    }

    /// Some steps, each with its checks, and the way back to the host as it was.
    fn round(&mut self) -> Result<(), LabError> {
        let before = Snapshot::take(self.guest, ROOT, false)?;
        let settings = self.guest.shell(SETTINGS)?;
        for _ in 0..STEPS {
            self.step()?;
            self.check()?;
        }
        self.end(before, &settings)
    }

    fn step(&mut self) -> Result<(), LabError> {
        let name = self.name();
        if !self.running.contains(name) {
            self.events.push(format!("start {name}"));
            self.running.insert(name);
            let script = match self.manager {
                Manager::Systemd => START.replace("MACHINE", &self.guest.machine()),
                Manager::Libvirt => "virsh -q start NAME".to_owned(),
            };
            return self.guest.shell(&script.replace("NAME", name)).map(|_| ());
        }
        let kinds = match self.manager {
            Manager::Systemd => 9,
            Manager::Libvirt => 14,
        };
        let script = match self.below(kinds) {
            0 => {
                self.events.push(format!("stop {name}"));
                self.running.remove(name);
                self.forget(name);
                self.stop(name)
            }
            1 | 2 => {
                let isolates = self.below(3) == 0;
                self.isolates |= isolates;
                let isolate = if isolates { " --isolate host" } else { "" };
                let machine = match self.manager {
                    Manager::Systemd => format!("--qmp /run/{name}.qmp"),
                    Manager::Libvirt => format!("--libvirt {name}"),
                };
                self.pins.remove(name);
                self.applied.insert(name);
                self.pinfold(&format!("apply {machine} -s low-latency{isolate}"))
            }
            3 => self.pinfold(&format!("undo {name}")),
            // The kernel refuses a CPU that an isolation keeps for a vCPU.
            4 if !self.isolates => {
                let cpu = self.below(2);
                self.events.push(format!("owner's CPU {cpu}"));
                self.web_cpus = CpuSet::parse_list(&cpu.to_string()).ok();
                format!("taskset -pc {cpu} {} >/dev/null", self.web)
            }
            5 => {
                self.events.push("daemon-reload".to_owned());
                "systemctl daemon-reload".to_owned()
            }
            6 => self.switch_cpu(),
            7 => {
                self.events.push("clock an hour back".to_owned());
                "date -s @$(($(date +%s) - 3600)) >/dev/null".to_owned()
            }
            4 | 8 => {
                self.watches = !self.watches;
                self.events.push(format!("watch {}", if self.watches { "on" } else { "killed" }));
                let kill = KILL_WATCH.replace("SIGNAL", "KILL");
                if self.watches { WATCH.to_owned() } else { kill }
            }
            kind => self.step_of_libvirt(kind, name),
        };
        self.guest.shell(&script).map(|_| ())
    }

    /// Forgets what was done to a machine that ends.
    fn forget(&mut self, name: &str) {
        self.pins.remove(name);
        self.applied.remove(name);
        self.added.remove(name);
        self.all_pins.retain(|(other, _)| *other != name);
    }

    fn step_of_libvirt(&mut self, kind: u64, name: &'static str) -> String {
        match kind {
            9 => {
                self.events.push(format!("setvcpus {name}"));
                self.added.entry(name).or_insert(self.offline);
                format!("virsh -q setvcpus {name} 2 --live")
            }
            10 | 11 => {
                let cpu = self.below(4);
                self.events.push(format!("vcpupin {name} 0 {cpu}"));
                self.pins.insert(name, cpu);
                self.all_pins.insert((name, cpu));
                format!("virsh -q vcpupin {name} 0 {cpu} --live")
            }
            12 => {
                self.events.push("libvirtd killed".to_owned());
                RESTART.to_owned()
            }
            _ if self.applied.contains(name) => "true".to_owned(),
            _ => {
                self.events.push(format!("managedsave {name}"));
                // It starts with both, which the hook places.
                self.added.entry(name).and_modify(|offline| *offline = None);
                format!("virsh -q managedsave {name} && virsh -q start {name}")
            }
        }
    }

    fn stop(&self, name: &str) -> String {
        match self.manager {
            Manager::Systemd => STOP.replace("NAME", name),
            Manager::Libvirt => format!("virsh -q destroy {name}"),
        }
    }

    /// The process of a machine.
    fn pid(&mut self, name: &str) -> Result<u32, LabError> {
        let folder = match self.manager {
            Manager::Systemd => "/run",
            Manager::Libvirt => "/run/libvirt/qemu",
        };
        let text = self.guest.shell(&format!("cat {folder}/{name}.pid"))?;
        text.trim().parse().map_err(|_| LabError::wrong("pid of a machine", text))
    }

    /// A command of Pinfold that may be refused, and is killed every third time.
    fn pinfold(&mut self, words: &str) -> String {
        let log = "/run/pinfold.txt";
        if self.below(3) > 0 {
            self.events.push(words.to_owned());
            return format!("pinfold {words} > {log} 2>&1 || true; cat {log}");
        }
        let us = self.below(1_500_000);
        self.events.push(format!("{words} killed after {us} us"));
        format!(
            "pinfold {words} > {log} 2>&1 & p=$!; usleep {us}; kill -9 $p 2>/dev/null || true
             wait $p || true"
        )
    }

    fn switch_cpu(&mut self) -> String {
        let (cpu, value) = match self.offline.take() {
            Some(cpu) => (cpu, 1),
            None => (4 + self.below(4), 0),
        };
        if value == 0 {
            self.offline = Some(cpu);
        }
        self.events.push(format!("{} CPU {cpu}", if value == 0 { "offline" } else { "online" }));
        format!("echo {value} > /sys/devices/system/cpu/cpu{cpu}/online")
    }

    fn check(&mut self) -> Result<(), LabError> {
        let now = Snapshot::take(self.guest, ROOT, false)?;
        let web = now.tasks.get(&self.web).map(|task| task.mask.clone());
        if !self.isolates && self.web_cpus.is_some() && web != self.web_cpus {
            let text = format!("{web:?}, not {:?}", self.web_cpus);
            return Err(LabError::wrong("the mask that the owner has set", text));
        }
        for (name, cpu) in self.pins.clone() {
            let pid = self.pid(name)?;
            let threads = libvirt::threads_of(self.guest, pid)?;
            let first = threads.iter().find(|(_, task)| task.name.starts_with("CPU 0/"));
            let mask = first.map(|(_, task)| task.mask.to_string());
            if mask != Some(cpu.to_string()) {
                let status = self.guest.run(&["/usr/bin/pinfold", "status"])?.stdout_text();
                // With too few CPUs an isolation that the owner asks for later takes them.
                if !(self.isolates && status.contains(name)) {
                    let text = format!("{mask:?}, not {cpu}\n{status}");
                    return Err(LabError::wrong(format!("the owner's pin of {name}"), text));
                }
            }
        }
        let mut used = CpuSet::new();
        for (tid, task) in &now.tasks {
            if !task.name.starts_with("CPU ") || task.mask.len() != 1 {
                continue;
            }
            if !task.mask.is_disjoint(&used) {
                let status = self.guest.run(&["/usr/bin/pinfold", "status"])?.stdout_text();
                // With too few CPUs that is reported.
                if !status.contains("cpu-used-twice") {
                    let text = format!("task {tid} is on {} too\n{status}", task.mask);
                    return Err(LabError::wrong("a CPU for two vCPUs", text));
                }
            }
            used.add(&task.mask);
        }
        Ok(())
    }

    /// Ends Pinfold, brings the CPU online, and undoes everything.
    fn revert(&mut self) -> Result<(), LabError> {
        if let Some(cpu) = self.offline.take() {
            self.guest.shell(&format!("echo 1 > /sys/devices/system/cpu/cpu{cpu}/online"))?;
        }
        self.watches = false;
        self.guest.shell(&KILL_WATCH.replace("SIGNAL", "TERM"))?;
        let undo = self.guest.run(&["/usr/bin/pinfold", "undo", "--all"])?;
        let said = format!("{}{}", undo.stdout_text(), undo.stderr_text());
        if undo.success() || said.contains("no placement") {
            Ok(())
        } else {
            Err(LabError::wrong("undo", said))
        }
    }

    /// The machines' threads may run everywhere again.
    fn check_machines(&mut self) -> Result<(), LabError> {
        let mut found = Vec::new();
        for name in self.running.clone() {
            let pid = self.pid(name)?;
            for (tid, task) in libvirt::threads_of(self.guest, pid)? {
                let mask = task.mask.to_string();
                let pinned = self.all_pins.iter().any(|(owned, cpu)| {
                    *owned == name && task.name.starts_with("CPU 0/") && mask == cpu.to_string()
                });
                if mask != ALL && !pinned && !self.lacks_offline(name, &task) {
                    found.push(format!("task {tid} ({}) of {name} has the mask {mask}", task.name));
                }
            }
        }
        expect_none("a machine after undo", found)?;
        if self.manager == Manager::Libvirt { self.check_pins() } else { Ok(()) }
    }

    /// True for a vCPU that was added while a CPU was offline, and has all others.
    fn lacks_offline(&self, name: &str, task: &Task) -> bool {
        let Some(Some(cpu)) = self.added.get(name) else { return false };
        let others = CpuSet::parse_list(ALL).unwrap_or_default();
        let offline = CpuSet::parse_list(&cpu.to_string()).unwrap_or_default();
        task.name.starts_with("CPU 1/") && task.mask == others.difference(&offline)
    }

    /// The masks are those that libvirt reports.
    fn check_pins(&mut self) -> Result<(), LabError> {
        let mut found = Vec::new();
        for name in self.running.clone() {
            let pid = self.pid(name)?;
            let threads = libvirt::threads_of(self.guest, pid)?;
            let text = self.guest.shell(&PINS.replace("NAME", name))?;
            let pins: Vec<(&str, &str)> =
                text.lines().filter_map(|line| line.trim().split_once(' ')).collect();
            if !pins.iter().any(|(thread, _)| *thread == "0") {
                return Err(LabError::wrong(format!("pins of {name}"), text));
            }
            for (thread, pin) in pins {
                let comm = format!("CPU {thread}/");
                let is_meant = |(tid, task): &(u32, Task)| {
                    if thread == "emulator" { *tid == pid } else { task.name.starts_with(&comm) }
                };
                // A vCPU that was not added yet has no thread.
                let Some((_, task)) = threads.iter().find(|one| is_meant(one)) else { continue };
                let mask = task.mask.to_string();
                if mask != pin.trim() && !self.lacks_offline(name, task) {
                    found.push(format!("{} of {name} is on {mask}, not on {pin}", task.name));
                }
            }
        }
        expect_none("libvirt reports other pins after undo", found)
    }

    fn end(&mut self, mut before: Snapshot, settings: &str) -> Result<(), LabError> {
        self.revert()?;
        self.check_machines()?;
        for name in std::mem::take(&mut self.running) {
            self.guest.shell(&self.stop(name))?;
        }
        self.pins.clear();
        self.all_pins.clear();
        self.applied.clear();
        self.added.clear();
        let left = self.guest.shell(LEFT)?;
        if !left.contains("no placement is active") || left.contains("waiter") {
            return Err(LabError::wrong("what is left of Pinfold", left));
        }
        let mut after = Snapshot::take(self.guest, ROOT, false)?;
        if let (Some(task), Some(cpus)) = (before.tasks.get_mut(&self.web), &self.web_cpus) {
            task.mask = cpus.clone();
        }
        // The kernel does not accept an empty list for a group with tasks before 7.0.
        let mut near = BTreeMap::new();
        for (path, text) in &after.knobs {
            if path.ends_with("/cpuset.cpus") && text.trim() == ALL && before.knob(path).is_empty()
            {
                near.insert(path.clone(), text.clone());
            }
        }
        // Its daemon may have been started again.
        for one in [&mut before, &mut after] {
            one.tasks.retain(|_, task| task.group != DAEMON);
        }
        let mut found = differences(&after, &before, &near);
        // systemd makes the slice with its first unit, and keeps it.
        found.retain(|one| !one.contains("/machine.slice"));
        expect_none("a round left a trace", found)?;
        self.isolates = false;
        let now = self.guest.shell(SETTINGS)?;
        if now != settings {
            return Err(LabError::wrong("settings of systemd", format!("{now}, not {settings}")));
        }
        Ok(())
    }
}
