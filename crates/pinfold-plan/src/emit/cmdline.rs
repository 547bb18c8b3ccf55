//! The kernel's command line: what keeps the host off the vCPUs' PUs from boot on.
//!
//! Parameters as of <https://docs.kernel.org/admin-guide/kernel-parameters.html>. Most of what
//! `isolcpus` does can be had, and taken back, at run time; the text says what cannot.

use pinfold_model::{Plan, VnodePlan};

use super::held::{headline, reserved, without_boot_pu};

/// The parameters on one line, and in comments what they need and cost.
#[must_use]
pub fn cmdline(plan: &Plan) -> String {
    let mut text = format!("# {}\n", headline(plan));
    let reserved = reserved(plan);
    if reserved.is_empty() {
        text.push_str(
            "# This plan shares all its PUs with the host: no parameter fits it.\n\
             # Plan with a strategy that keeps PUs free, such as low-latency or balanced, and --isolate host.\n",
        );
        return text;
    }
    let host = &plan.housekeeping;
    let tickless = without_boot_pu(&reserved);
    let mut line = format!("isolcpus=managed_irq,domain,{reserved}");
    if !tickless.is_empty() {
        line.push_str(&format!(" nohz_full={tickless} rcu_nocbs={tickless}"));
    }
    line.push_str(&format!(" irqaffinity={host}"));
    text.push_str(
        "# Debian, Ubuntu: append to GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, then update-grub.\n\
         # Fedora: grubby --update-kernel=ALL --args=\"…\". systemd-boot: /etc/kernel/cmdline.\n",
    );
    text.push_str(&line);
    text.push_str("\n\n# All of this line needs a reboot. Without one:\n");
    text.push_str(
        "#   isolcpus=domain   `pinfold apply --isolate host` moves the host's tasks away by cpuset, and `undo` back\n\
         #   irqaffinity       the affinity of each interrupt can be written at run time, managed ones excepted\n\
         #   isolcpus=managed_irq, nohz_full, rcu_nocbs   only at boot: try without them first, then measure\n\
         # What it costs: isolated PUs do no load balancing (a thread stays where its mask puts it, so pin each\n\
         # to one PU), and they are lost to every other task, also while the machine is off. nohz_full makes\n\
         # each entry to the kernel slower; it pays for guests that spin or poll, and for few others.\n",
    );
    if tickless != reserved {
        text.push_str(
            "# PU 0 keeps time for all: it cannot be in nohz_full, so it is left out there.\n",
        );
    }
    let mut vcpus = plan.vnodes.iter().flat_map(VnodePlan::vcpus);
    let floating = vcpus.any(|thread| thread.pus.intersection(&reserved).len() > 1);
    if floating {
        text.push_str(
            "# This plan has vCPUs that may run on several of these PUs: under isolcpus they would all stay on one.\n",
        );
    }
    text
}
