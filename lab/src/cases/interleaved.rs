//! Random sequences of what the owner of a host, systemd and Pinfold do, with kills.
//!
//! Machines start and end as units; they are placed by hand and by a watch with `domains.toml`;
//! their owner moves other tasks; systemd reloads its units; a CPU goes offline; the clock is set back;
//! Pinfold is killed.
//! After each step the owner's own masks are as the owner has set them, and no CPU is exclusive for
//! two vCPUs. After each round nothing is left: masks, groups, settings of systemd, journals.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::CpuSet;

use super::Extent;
use super::hotplug::differences;
use super::longest::Moments;
use super::shapes::ROOT;
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::Snapshot;

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
const WATCH: &str = "systemd-run --quiet --unit=holder -p StandardError=append:/run/holder.txt \
    /usr/bin/pinfold watch --all";
/// It may have ended by itself, when its last machine did.
const KILL_WATCH: &str = "systemctl kill -s SIGNAL holder 2>/dev/null || true
    while systemctl --quiet is-active holder; do usleep 50000; done
    systemctl reset-failed holder 2>/dev/null || true";

/// What the owner and systemd have done so far.
struct Host<'g> {
    guest: &'g mut Guest,
    random: Moments,
    running: BTreeSet<&'static str>,
    watches: bool,
    offline: Option<u64>,
    /// The process of the service that the owner moves.
    web: u32,
    /// The CPUs to which the owner has moved it.
    web_cpus: Option<CpuSet>,
    /// An isolation in this round may have moved it off these CPUs.
    isolates: bool,
    events: Vec<String>,
}

pub(super) fn keep_order(guest: &mut Guest, extent: Extent) -> Result<String, LabError> {
    let rounds = match extent {
        Extent::Sample | Extent::Fixed => 1,
        Extent::Full => ROUNDS,
    };
    let text = guest.shell(PREPARE)?;
    let web = text.trim().parse().map_err(|_| LabError::wrong("pid of a service", text))?;
    let seed = 52;
    let mut host = Host {
        guest,
        random: Moments(seed),
        running: BTreeSet::new(),
        watches: false,
        offline: None,
        web,
        web_cpus: None,
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
            let script = START.replace("MACHINE", &self.guest.machine()).replace("NAME", name);
            return self.guest.shell(&script).map(|_| ());
        }
        let script = match self.below(9) {
            0 => {
                self.events.push(format!("stop {name}"));
                self.running.remove(name);
                STOP.replace("NAME", name)
            }
            1 | 2 => {
                let isolates = self.below(3) == 0;
                self.isolates |= isolates;
                let isolate = if isolates { " --isolate host" } else { "" };
                let apply = format!("apply --qmp /run/{name}.qmp -s low-latency{isolate}");
                self.pinfold(&apply)
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
            _ => {
                self.watches = !self.watches;
                self.events.push(format!("watch {}", if self.watches { "on" } else { "killed" }));
                let kill = KILL_WATCH.replace("SIGNAL", "KILL");
                if self.watches { WATCH.to_owned() } else { kill }
            }
        };
        self.guest.shell(&script).map(|_| ())
    }

    /// A command of Pinfold that may be refused, and is killed every third time.
    fn pinfold(&mut self, words: &str) -> String {
        let log = "/run/pinfold.txt";
        if self.below(3) > 0 {
            self.events.push(words.to_owned());
            return format!("pinfold {words} > {log} 2>&1 || cat {log}");
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
        let after = Snapshot::take(self.guest, ROOT, false)?;
        let bound = after.tasks.iter().filter(|(_, task)| {
            task.group.starts_with("/machine.slice/") && task.mask.to_string() != ALL
        });
        let found = bound
            .map(|(tid, task)| format!("task {tid} ({}) has the mask {}", task.name, task.mask));
        expect_none("a machine after undo", found.collect())
    }

    fn end(&mut self, mut before: Snapshot, settings: &str) -> Result<(), LabError> {
        self.revert()?;
        self.check_machines()?;
        for name in std::mem::take(&mut self.running) {
            self.guest.shell(&STOP.replace("NAME", name))?;
        }
        let left = self.guest.shell(LEFT)?;
        if !left.contains("no placement is active") || left.contains("waiter") {
            return Err(LabError::wrong("what is left of Pinfold", left));
        }
        let after = Snapshot::take(self.guest, ROOT, false)?;
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
