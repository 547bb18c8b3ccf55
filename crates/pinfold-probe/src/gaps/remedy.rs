//! What keeps the causes of gaps away, as literal commands.

use pinfold_host::paths;
use pinfold_model::command::{Command, quote};
use pinfold_model::{CpuSet, PuId};

use super::Cause;

/// The functions of the scheduler's tick and of the lockup detector, and beginnings of the names of
/// those of a guest's timers.
const TICKS: [&str; 2] = ["tick_nohz_handler", "tick_sched_timer"];
const WATCHDOG: &str = "watchdog_timer_fn";
const GUEST_TIMERS: [&str; 5] =
    ["apic_timer_fn", "kvm_", "pit_timer_fn", "kvmclock_", "vmx_preemption"];

/// What `apply` adds to the strategy that it chooses.
const ISOLATE: &str = " --isolate host";
const IRQS: &str = " --isolate host --tunable irq:all=housekeeping";
const WORKQUEUES: &str = " --isolate host --tunable workqueues=housekeeping";
const WATCHDOGS: &str = " --isolate host --tunable watchdog-cpus=housekeeping";
const PARTITION: &str = " --isolate host --tunable partition=isolated";
const WAKE_UP: &str = " --tunable wake-up-us=10";

/// What keeps a cause away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A command.
    Command(String),
    /// Parameters of the kernel's command line, which take effect at the next boot.
    Boot(String),
    /// Nothing on this host, with the reason.
    Nothing(&'static str),
}

impl Remedy {
    /// The command or the parameters.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Remedy::Command(text) | Remedy::Boot(text) => Some(text),
            Remedy::Nothing(_) => None,
        }
    }
}

/// Where a gap was.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The options that name its machine, as shell text, such as `--pid 42`; empty for processes
    /// and groups, which `apply` does not take.
    pub selector: &'a str,
    /// The thread.
    pub tid: u32,
    /// Its CPU.
    pub cpu: u32,
    /// The other CPUs of the host.
    pub elsewhere: &'a str,
    /// Those of them on which no thread of its machine, process or group had a gap.
    pub quiet: &'a str,
}

impl Cause {
    /// What keeps it away from the thread of this gap, the best first: the planner may refuse a
    /// command of `apply` for this machine, but the last one is none.
    #[must_use]
    pub fn remedies(&self, place: &Place<'_>) -> Vec<Remedy> {
        let only = match self {
            Cause::Interrupt { number, .. } => return place.interrupt(*number),
            Cause::Processor { name, function } => {
                return place.processor(name, function.as_deref());
            }
            Cause::Softirq { name, .. } => return place.softirq(name),
            Cause::Thread { is_own: true, tid, .. } => {
                return place.apply("", place.move_task(*tid));
            }
            Cause::Thread { name, tid, policy, machine, .. } => {
                return place.task(name, place.displace(*tid, policy, machine.is_some()));
            }
            Cause::KernelWork { .. } => return place.kernel_work(),
            Cause::IdleExit { .. } => {
                let file = paths::cpu_resume_latency(PuId(place.cpu));
                return place.apply(WAKE_UP, Remedy::Command(format!("echo 10 | tee {file}")));
            }
            Cause::Quota { group, is_v1 } => Remedy::Command(quota_off(group, *is_v1)),
            Cause::Awaited { is_own: true, .. } => {
                let why = "that thread works for it: give both threads CPUs of their own";
                return place.apply("", Remedy::Nothing(why));
            }
            Cause::Awaited { .. } => Remedy::Nothing("another process works for it"),
            Cause::Queued => {
                let why = "what ran is not known; observe again with a shorter --seconds";
                return place.apply(ISOLATE, Remedy::Nothing(why));
            }
            Cause::Stopped => {
                Remedy::Nothing("a signal, a debugger or a freezer stopped it on purpose")
            }
            Cause::Blocked { .. } => {
                Remedy::Nothing("it waits in the kernel for something of its own, such as a page")
            }
            Cause::Exit { .. } => {
                Remedy::Nothing("the guest causes it; `pinfold exits` counts all exits")
            }
            Cause::Unseen => Remedy::Nothing(
                "it is below Linux: a hypervisor, firmware, or code with interrupts disabled",
            ),
            Cause::Steal => {
                Remedy::Nothing("only the hypervisor below can give this machine CPUs of its own")
            }
        };
        vec![only]
    }
}

impl Place<'_> {
    /// A placement of the machine, then `other`; that alone for processes and groups.
    fn apply(&self, more: &str, other: Remedy) -> Vec<Remedy> {
        if self.selector.is_empty() {
            return vec![other];
        }
        let words = format!("apply {}{more}", self.selector);
        vec![Remedy::Command(Command::new(words).to_string()), other]
    }

    /// Takes a task from this CPU. If all CPUs are those of the thread and of its machine, the task
    /// can only be made less important.
    fn displace(&self, tid: u32, policy: &str, is_machine: bool) -> Remedy {
        if is_machine && !self.selector.is_empty() {
            return Remedy::Command(Command::new("plan --check --all").to_string());
        }
        let kind = policy.split([',', ':']).next().unwrap_or_default();
        match kind {
            _ if !self.quiet.is_empty() => {
                Remedy::Command(format!("taskset -pc {} {tid}", quote(self.quiet)))
            }
            "fifo" | "rr" | "deadline" => Remedy::Command(format!("chrt --other --pid 0 {tid}")),
            "idle" => {
                Remedy::Nothing("it runs only when nothing else does: this host is too small")
            }
            _ => Remedy::Command(format!("renice -n 19 -p {tid}")),
        }
    }

    fn move_task(&self, tid: u32) -> Remedy {
        self.write(&format!("taskset -pc {} {tid}", quote(self.elsewhere)))
    }

    /// A command with the other CPUs.
    fn write(&self, command: &str) -> Remedy {
        if self.elsewhere.is_empty() {
            Remedy::Nothing("this host has no other CPU")
        } else {
            Remedy::Command(command.to_owned())
        }
    }

    fn interrupt(&self, number: u64) -> Vec<Remedy> {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let file = paths::irq_file(number, "smp_affinity_list");
        self.apply(IRQS, self.write(&format!("echo {} | tee {file}", quote(self.elsewhere))))
    }

    fn processor(&self, name: &str, function: Option<&str>) -> Vec<Remedy> {
        let here = self.cpu;
        let only = match function {
            Some(function) if TICKS.contains(&function) => match here {
                0 => Remedy::Nothing("CPU 0 keeps the time of the host: use another CPU"),
                _ => Remedy::Boot(format!("nohz_full={here} rcu_nocbs={here}")),
            },
            Some(function) if function == WATCHDOG => {
                let setting = format!("kernel.watchdog_cpumask={}", self.elsewhere);
                let command = format!("sysctl -w {}", quote(&setting));
                return self.apply(WATCHDOGS, self.write(&command));
            }
            Some(function) if GUEST_TIMERS.iter().any(|start| function.starts_with(start)) => {
                Remedy::Nothing("it is a timer of the guest itself")
            }
            Some(_) | None if name == "local timer" || name == "reschedule IPI" => {
                return self.apply(ISOLATE, self.move_task(self.tid));
            }
            Some(_) | None => Remedy::Nothing(
                "another CPU asks for it; `perf record -e ipi:ipi_send_cpu -a -g` shows which code does",
            ),
        };
        vec![only]
    }

    fn softirq(&self, name: &str) -> Vec<Remedy> {
        match name {
            "RCU" if self.cpu > 0 => vec![Remedy::Boot(format!("rcu_nocbs={}", self.cpu))],
            "SCHED" => self.apply(PARTITION, Remedy::Boot(format!("isolcpus=domain,{}", self.cpu))),
            "TIMER" | "HRTIMER" | "RCU" => self.apply(ISOLATE, self.move_task(self.tid)),
            // These run where their interrupts arrive.
            _ => self.apply(IRQS, self.move_task(self.tid)),
        }
    }

    fn kernel_work(&self) -> Vec<Remedy> {
        let mask =
            CpuSet::parse_list(self.elsewhere).map(|cpus| cpus.to_mask()).unwrap_or_default();
        let command = format!("echo {mask} | tee {}", paths::workqueue_cpumask());
        self.apply(WORKQUEUES, self.write(&command))
    }

    /// A task of another process, which `other` takes away. Threads of the kernel that belong to a
    /// CPU cannot be moved.
    fn task(&self, name: &str, other: Remedy) -> Vec<Remedy> {
        let (kind, rest) = name.split_once('/').unwrap_or((name, ""));
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        match (kind, number.parse()) {
            ("irq", Ok(number)) => self.interrupt(number),
            ("ksoftirqd", Ok(_)) => self.softirq("NET_RX"),
            ("rcuc" | "rcuop" | "rcuog", Ok(_)) => self.softirq("RCU"),
            ("kworker", _) => self.kernel_work(),
            ("migration" | "cpuhp" | "idle_inject", Ok(_)) => {
                vec![Remedy::Nothing("the kernel moves a task or changes this CPU")]
            }
            _ => self.apply(ISOLATE, other),
        }
    }
}

/// Ends the quota of a group; the file differs between the versions of cgroups.
fn quota_off(group: &str, is_v1: bool) -> String {
    let (value, file) = if is_v1 { ("-1", "cpu.cfs_quota_us") } else { ("max", "cpu.max") };
    format!("echo {value} | tee {}", quote(&format!("{group}/{file}")))
}
