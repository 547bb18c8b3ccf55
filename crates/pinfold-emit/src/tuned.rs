//! A profile of tuned: boot parameters, and interrupts and kernel threads moved off the vCPUs'
//! CPUs.
//!
//! Sections and functions follow tuned's own `realtime-virtual-host`
//! (<https://github.com/redhat-performance/tuned/tree/master/profiles>), which a plan with
//! real-time vCPUs includes. tuned sets affinities by name pattern and, when the profile is
//! disabled, lets every matching task run everywhere. So the profile excludes the machine's threads
//! from tuned's scheduler plugin.

use pinfold_model::tunables::{
    FormatAnswer, Place, Scope, Setting, new_irqs, rt_throttle, workqueues,
};
use pinfold_model::{CpuSet, Plan, Policy, Topology, VnodePlan};

use super::common::{headline, nothing_kept, plain_name, replace_control_chars};
use super::format::{Format, Syntax};
use super::tunable_answers::Answers;
use pinfold_plan::boot::{self, without_boot_pu};
use pinfold_plan::text::verb;

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "tuned",
    summary: "A tuned profile",
    is_of_host: true,
    can_merge: false,
    syntax: Syntax::Lines,
    write: |plan, topology, _| Ok(tuned_profile(plan, topology)),
    together: None,
    tunable: files,
};

/// `tuned.conf` of a profile, with its path in the first line.
pub fn tuned_profile(plan: &Plan, topology: &Topology) -> String {
    let name = match plan.vnodes.as_slice() {
        [only] => plain_name(only),
        _ => "host".to_owned(),
    };
    let mut text = format!("# FILE: /etc/tuned/pinfold-{name}/tuned.conf\n# {}\n", headline(plan));
    let tunables = FORMAT.answers(Scope::of_host(plan));
    let reserved = boot::boot_isolated(plan, topology);
    let shares_all = reserved.is_empty();
    if shares_all {
        text.push_str(&nothing_kept(plan, topology, "tuned"));
    }
    text.push_str(&tunables.missing_text("tuned"));
    text.push_str(&at_boot(&reserved, topology));
    let sections: Vec<String> =
        SECTIONS.iter().filter_map(|name| section(name, plan, &reserved, &tunables)).collect();
    if sections.is_empty() {
        return text;
    }
    let profile = Profile::new(plan, &reserved);
    text.push_str(&format!(
        "# Activate it with: tuned-adm profile pinfold-{name}{}.\n\
         # Newer releases of tuned keep profiles in /etc/tuned/profiles; they read this folder too.\n\
         {needs}\
         [main]\nsummary=CPUs of virtual machines kept apart, by Pinfold\n\
         include={include}\n",
        if shares_all { "" } else { ", and a reboot for the section bootloader" },
        needs = profile.needs,
        include = profile.include,
    ));
    for section in sections {
        text.push('\n');
        text.push_str(&section);
    }
    text
}

/// Comments on the host's present boot parameters that prevent the profile from isolating.
fn at_boot(reserved: &CpuSet, topology: &Topology) -> String {
    let mut text = String::new();
    let siblings = boot::possible_siblings(reserved, topology);
    if !siblings.is_empty() {
        text.push_str(&format!(
            "# {} {siblings} {} offline, and the kernel does not show their cores: they may be siblings of\n\
             # isolated ones. tuned refuses offline CPUs: bring them online and plan again.\n",
            verb(&siblings, "CPU", "CPUs"),
            verb(&siblings, "is", "are")
        ));
    }
    let names = ["isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity"];
    let words: Vec<&str> = topology
        .boot_parameters
        .iter()
        .filter(|word: &&String| names.contains(&word.split('=').next().unwrap_or_default()))
        .map(String::as_str)
        .collect();
    if !reserved.is_empty() && !words.is_empty() {
        text.push_str(&format!(
            "# This host boots with {} already. tuned appends its own: unless these are of a profile of\n\
             # tuned, remove them from the kernel command line.\n",
            replace_control_chars(&words.join(" "))
        ));
    }
    text
}

const VARIABLES: &str = "variables";
const BOOTLOADER: &str = "bootloader";
const SYSCTL: &str = "sysctl";
/// Mask of the CPUs for the writeback workqueue.
const WRITEBACK: &str = "/sys/bus/workqueue/devices/writeback/cpumask";
const VM: &str = "vm";
const SYSFS: &str = "sysfs";
const IRQBALANCE: &str = "irqbalance";
const SCHEDULER: &str = "scheduler";

/// The sections in the order of the text.
const SECTIONS: [&str; 7] = [VARIABLES, BOOTLOADER, SYSCTL, VM, SYSFS, IRQBALANCE, SCHEDULER];

/// A section with the isolation settings and the tunables that belong there.
fn section(name: &str, plan: &Plan, reserved: &CpuSet, tunables: &Answers) -> Option<String> {
    let mut body =
        if reserved.is_empty() { String::new() } else { write_isolation(name, plan, reserved) };
    body.push_str(&tunables.text(name));
    (!body.is_empty()).then(|| format!("[{name}]\n{body}"))
}

/// The settings that exclude the host's tasks from the CPUs of vCPUs, by section.
fn write_isolation(section: &str, plan: &Plan, reserved: &CpuSet) -> String {
    let Profile { managed, cmdline, sysctl, kernel, .. } = Profile::new(plan, reserved);
    match section {
        VARIABLES => format!(
            "isolated_cores={reserved}\n{managed}\
             not_isolated_cpumask=${{f:cpulist2hex_invert:${{isolated_cores}}}}\n"
        ),
        BOOTLOADER => {
            let housekeeping = plan.housekeeping.difference(reserved);
            let affinity = plan.tuning.cpus(&new_irqs::TUNABLE).unwrap_or(&housekeeping);
            format!("cmdline_pinfold=+{cmdline}irqaffinity={affinity}\n")
        }
        SYSCTL if !plan.tuning.has(&rt_throttle::TUNABLE) => sysctl.to_owned(),
        SYSFS => {
            let (mask, workqueues) = ("= ${not_isolated_cpumask}\n", workqueues::FILE);
            let mut lines = format!("{WRITEBACK} {mask}");
            if !plan.tuning.has(&workqueues::TUNABLE) {
                lines.push_str(&format!("{workqueues} {mask}"));
            }
            lines
        }
        IRQBALANCE => "banned_cpus=${isolated_cores}\n".to_owned(),
        SCHEDULER => format!(
            "isolated_cores=${{isolated_cores}}\n\
             # tuned moves what it finds off these CPUs, and forgets the masks that it replaced. QEMU's threads\n\
             # are left alone: their pins come from libvirt or `pinfold apply`.\n\
             ps_blacklist={kernel}.*qemu.*;.*pinfold.*;^CPU \\d+/.*;^IO .*;.*vhost.*;.*kvm-.*\n"
        ),
        _ => String::new(),
    }
}

/// Differences between a profile for ordinary and one for real-time vCPUs.
struct Profile {
    needs: &'static str,
    include: &'static str,
    managed: &'static str,
    cmdline: String,
    sysctl: &'static str,
    /// Kernel threads that the scheduler plugin does not move.
    kernel: &'static str,
}

impl Profile {
    fn new(plan: &Plan, reserved: &CpuSet) -> Self {
        let mut vcpus = plan.vnodes.iter().flat_map(VnodePlan::vcpus);
        if !reserved.is_empty()
            && vcpus.any(|thread| thread.policy.is_some_and(Policy::is_real_time))
        {
            return Self {
                needs: "# It builds on tuned's own profile for real-time guests: package \
                        tuned-profiles-nfv-host, or -realtime.\n\
                        # That profile writes isolcpus, nohz_full and rcu_nocbs for isolated_cores.\n",
                include: "realtime-virtual-host",
                managed: "isolate_managed_irq=Y\n",
                cmdline: String::new(),
                sysctl: "# The real-time throttle, which tuned's profile switches off. With it on, a vCPU that polls under a\n\
                         # real-time policy is stopped for 50 ms in each second; with it off, one that spins locks out\n\
                         # kernel threads of its CPU, and can hang the host. To switch it off, plan with `--tunable rt-throttle=off`.\n\
                         kernel.sched_rt_runtime_us = 950000\n",
                kernel: "ksoftirqd.*;rcuc.*;rcub.*;ktimersoftd.*;",
            };
        }
        let tickless = without_boot_pu(reserved);
        let tickless = if tickless.is_empty() {
            String::new()
        } else {
            format!(" nohz_full={tickless} rcu_nocbs={tickless}")
        };
        Self {
            needs: "",
            include: "throughput-performance",
            managed: "",
            cmdline: format!("isolcpus=managed_irq,domain,${{isolated_cores}}{tickless} "),
            sysctl: "",
            kernel: "",
        }
    }
}

/// tuned's setting for a tunable of the host, by section; each section is the plugin of that name.
fn files(setting: &Setting, scope: &Scope<'_>) -> FormatAnswer {
    let Some(kernel) = setting.tunable.kernel else { return FormatAnswer::host() };
    let files = setting.tunable.files(&setting.value, &scope.pus()).into_iter();
    match kernel.place {
        Place::Sysctl(name) => {
            FormatAnswer::lines(SYSCTL, files.map(|(_, value)| format!("{name}={value}")).collect())
        }
        Place::Host(_) | Place::Cpu(_) | Place::Pool => FormatAnswer::lines(
            SYSFS,
            files.map(|(path, value)| format!("{path}={value}")).collect(),
        ),
    }
}
