//! A profile of tuned: boot parameters, interrupts and kernel threads off the vCPUs' PUs.
//!
//! Sections and functions as in tuned's own `realtime-virtual-host`
//! (<https://github.com/redhat-performance/tuned/tree/master/profiles>). tuned sets affinities by
//! name pattern and, on its way back, lets every matching task run everywhere: the pins of the
//! machine's threads are therefore kept out of its reach.

use pinfold_model::Plan;

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
    let tickless = without_boot_pu(&reserved);
    let tickless = match tickless.is_empty() {
        true => String::new(),
        false => format!(" nohz_full={tickless} rcu_nocbs={tickless}"),
    };
    text.push_str(&format!(
        "# In force with: tuned-adm profile pinfold-{name}, and a reboot for the section bootloader.\n\
         [main]\n\
         summary=PUs of virtual machines kept apart, by Pinfold\n\
         include=throughput-performance\n\n\
         [variables]\n\
         isolated_cores={reserved}\n\
         not_isolated_cpumask=${{f:cpulist2hex_invert:${{isolated_cores}}}}\n\n\
         [bootloader]\n\
         cmdline_pinfold=+isolcpus=managed_irq,domain,${{isolated_cores}}{tickless} irqaffinity={host}\n\n\
         [sysfs]\n\
         /sys/bus/workqueue/devices/writeback/cpumask = ${{not_isolated_cpumask}}\n\
         /sys/devices/virtual/workqueue/cpumask = ${{not_isolated_cpumask}}\n\n\
         [irqbalance]\n\
         banned_cpus=${{isolated_cores}}\n\n\
         [scheduler]\n\
         isolated_cores=${{isolated_cores}}\n\
         # tuned moves what it finds off these PUs, and forgets the masks that it replaced. QEMU's threads\n\
         # are left alone: their pins come from libvirt or `pinfold apply`.\n\
         ps_blacklist=.*qemu.*;.*pinfold.*;^CPU \\d+/.*;^IO .*;.*vhost.*;.*kvm-.*\n",
        host = plan.housekeeping
    ));
    text
}
