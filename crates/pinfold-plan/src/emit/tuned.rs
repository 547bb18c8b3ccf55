//! A profile of tuned: boot parameters, interrupts and kernel threads off the vCPUs' PUs.
//!
//! Sections and functions as in tuned's own `realtime-virtual-host`
//! (<https://github.com/redhat-performance/tuned/tree/master/profiles>), which a plan with
//! real-time vCPUs builds on. tuned sets affinities by
//! name pattern and, on its way back, lets every matching task run everywhere: the pins of the
//! machine's threads are therefore kept out of its reach.

use pinfold_model::{CpuSet, Plan, Policy, ThreadPlan, VnodePlan};

use super::held::{headline, plain_name, reserved, without_boot_pu};

/// `tuned.conf` of a profile, with its path in the first line.
#[must_use]
pub fn tuned(plan: &Plan) -> String {
    let name = match plan.vnodes.as_slice() {
        [only] => plain_name(only),
        _ => "host".to_owned(),
    };
    let mut text = format!("# FILE: /etc/tuned/pinfold-{name}/tuned.conf\n# {}\n", headline(plan));
    let reserved = reserved(plan);
    if reserved.is_empty() {
        text.push_str(
            "# This plan shares all its PUs with the host: a profile has nothing to keep apart.\n",
        );
        return text;
    }
    let profile = Profile::of(plan, &reserved);
    text.push_str(&format!(
        "# In force with: tuned-adm profile pinfold-{name}, and a reboot for the section bootloader.\n\
         {needs}\
         [main]\n\
         summary=PUs of virtual machines kept apart, by Pinfold\n\
         include={include}\n\n\
         [variables]\n\
         isolated_cores={reserved}\n\
         {managed}\
         not_isolated_cpumask=${{f:cpulist2hex_invert:${{isolated_cores}}}}\n\n\
         [bootloader]\n\
         cmdline_pinfold=+{cmdline}irqaffinity={host}\n\n\
         {sysctl}\
         [sysfs]\n\
         /sys/bus/workqueue/devices/writeback/cpumask = ${{not_isolated_cpumask}}\n\
         /sys/devices/virtual/workqueue/cpumask = ${{not_isolated_cpumask}}\n\n\
         [irqbalance]\n\
         banned_cpus=${{isolated_cores}}\n\n\
         [scheduler]\n\
         isolated_cores=${{isolated_cores}}\n\
         # tuned moves what it finds off these PUs, and forgets the masks that it replaced. QEMU's threads\n\
         # are left alone: their pins come from libvirt or `pinfold apply`.\n\
         ps_blacklist={kernel}.*qemu.*;.*pinfold.*;^CPU \\d+/.*;^IO .*;.*vhost.*;.*kvm-.*\n",
        needs = profile.needs,
        include = profile.include,
        managed = profile.managed,
        cmdline = profile.cmdline,
        sysctl = profile.sysctl,
        kernel = profile.kernel,
        host = plan.housekeeping
    ));
    text
}

/// What differs between a profile for ordinary and one for real-time vCPUs.
struct Profile {
    needs: &'static str,
    include: &'static str,
    managed: &'static str,
    cmdline: String,
    sysctl: &'static str,
    /// Kernel threads that the scheduler plugin leaves where they are.
    kernel: &'static str,
}

impl Profile {
    fn of(plan: &Plan, reserved: &CpuSet) -> Self {
        let real_time = |thread: &ThreadPlan| thread.policy.is_some_and(Policy::is_real_time);
        if plan.vnodes.iter().flat_map(VnodePlan::vcpus).any(real_time) {
            return Self {
                needs: "# It builds on tuned's own profile for real-time guests: package \
                        tuned-profiles-nfv-host, or -realtime.\n\
                        # That profile writes isolcpus, nohz_full and rcu_nocbs for isolated_cores.\n",
                include: "realtime-virtual-host",
                managed: "isolate_managed_irq=Y\n",
                cmdline: String::new(),
                sysctl: "[sysctl]\n\
                         # tuned's profile switches it off. With it on, a vCPU that spins leaves the kernel 5 %.\n\
                         kernel.sched_rt_runtime_us = 950000\n\n",
                kernel: "ksoftirqd.*;rcuc.*;rcub.*;ktimersoftd.*;",
            };
        }
        let tickless = without_boot_pu(reserved);
        let tickless = match tickless.is_empty() {
            true => String::new(),
            false => format!(" nohz_full={tickless} rcu_nocbs={tickless}"),
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
