//! `virsh` commands for an existing domain, running or not.
//!
//! `vcpupin`, `emulatorpin`, `iothreadpin` and `numatune` take `--live` (the running domain) and
//! `--config` (from the next start on), which are the script's arguments. The number of vCPUs, the
//! guest topology and the schedulers have no command; they need the domain file
//! (<https://www.libvirt.org/manpages/virsh.html>).

use pinfold_model::command::quote;
use pinfold_model::{Plan, Role, VnodePlan};

use super::common::safe;
use super::common::{self, headline};
use super::format::{Format, Syntax};
use super::said::{FormatAnswer, Scope};
use crate::guest_numa::node_list;
use crate::tunables::Tunable;

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "virsh",
    summary: "A script of virsh commands for an existing domain",
    is_of_host: false,
    can_merge: false,
    syntax: Syntax::Lines,
    write: |plan, _, _| Ok(virsh((plan, plan.single()?))),
    tunable: words,
};

/// A shell script of `virsh` commands that pin the domain `vnode.name` as planned.
#[must_use]
pub fn virsh((plan, vnode): (&Plan, &VnodePlan)) -> String {
    if let Some(text) = common::not_a_machine(vnode, "virsh") {
        return text;
    }
    let mut script = format!(
        "#!/bin/sh\n# {}\n\
         # sh THIS --live      what runs now, until it ends\n\
         # sh THIS --config    from the next start on\n\
         # sh THIS             both; needs a domain that runs\n\
         set -eu\n\
         [ $# -gt 0 ] || set -- --live --config\n\
         domain={}\n\n",
        headline(plan),
        quote(&vnode.name)
    );
    let mut line = |text: String| {
        script.push_str(&text);
        script.push('\n');
    };
    // The emulator leaves the vCPUs' CPUs before the vCPUs move there.
    if let Some(emulator) = vnode.thread(&Role::Emulator) {
        line(format!("virsh emulatorpin --domain \"$domain\" --cpulist {} \"$@\"", emulator.pus));
    }
    let mut number = 0_u32;
    for thread in &vnode.threads {
        let pus = &thread.pus;
        match &thread.role {
            Role::Iothread(id) => {
                number += 1;
                let own = id.strip_prefix("iothread").and_then(|rest| rest.parse().ok());
                let iothread = own.unwrap_or(number);
                line(format!("# {}", safe(&thread.role.to_string())));
                line(format!(
                    "virsh iothreadpin --domain \"$domain\" --iothread {iothread} --cpulist {pus} \"$@\""
                ));
            }
            Role::Vhost(_) => {
                line(format!("# libvirt has no pin for {}: the plan wants {pus}", thread.role));
            }
            Role::Vcpu(_) | Role::Emulator | Role::Worker | Role::Task => {}
        }
    }
    for thread in vnode.vcpus() {
        let (index, pus) = (thread.role.short(), &thread.pus);
        line(format!("virsh vcpupin --domain \"$domain\" --vcpu {index} --cpulist {pus} \"$@\""));
    }
    let tunables = FORMAT.answers(Scope::of_vnode((plan, vnode)));
    script.push_str(&tunables.text(""));
    missing(&mut script, vnode);
    script.push_str(&tunables.missing_text("virsh"));
    script
}

/// The `virsh` commands for a tunable.
pub(super) fn words(tunable: &Tunable<'_>, _: &Scope<'_>) -> FormatAnswer {
    let set = |what: String| format!("virsh schedinfo --domain \"$domain\" --set {what} \"$@\"");
    match tunable {
        Tunable::CpuWeight(weight) => {
            let shares = (u64::from(*weight) * 1024 / 100).max(2);
            FormatAnswer::line(set(format!("cpu_shares={weight}")))
                .but(format!("for cgroup v2; on a host with cgroup v1 {shares}"))
        }
        Tunable::CpuQuota(quota) => FormatAnswer::lines(
            "",
            vec![
                set(format!("global_period={}", quota.period_us)),
                set(format!("global_quota={}", quota.quota_us)),
            ],
        ),
        Tunable::HugePages(pool) => FormatAnswer::line(format!(
            "virsh allocpages --pagesize {} --pagecount {} --cellno {}",
            pool.page_bytes >> 10,
            pool.pages,
            pool.node
        ))
        .but("of the host, until it reboots"),
        Tunable::Policy { .. } => FormatAnswer::Elsewhere,
        Tunable::Share(_) => FormatAnswer::nothing(
            "<cachetune> and <memorytune> are in the domain file only (`--emit libvirt`)",
        ),
        Tunable::SamePageMerging(_) => {
            FormatAnswer::nothing("virsh node-memory-tune tunes it, but does not start or stop it")
        }
        Tunable::Partition(_) => FormatAnswer::nothing(
            "libvirt makes the groups of its domains itself, none of them a cpuset partition",
        ),
        Tunable::Required => FormatAnswer::nothing("`pinfold apply` alone checks it"),
        Tunable::Irq(_)
        | Tunable::NewIrqs(_)
        | Tunable::Workqueues(_)
        | Tunable::NumaBalancing(_)
        | Tunable::TransparentHugePages(_)
        | Tunable::WakeUp(_)
        | Tunable::RealTimeThrottle(_)
        | Tunable::Governor(_)
        | Tunable::MinKhz(_)
        | Tunable::MaxKhz(_)
        | Tunable::Smt(_)
        | Tunable::Offline(_) => FormatAnswer::host(),
    }
}

/// Comments on settings without a command, and on memory, whose command takes effect at the next
/// start only.
fn missing(script: &mut String, vnode: &VnodePlan) {
    let mut line = |text: String| {
        script.push_str(&text);
        script.push('\n');
    };
    if let Some(memory) = &vnode.memory {
        let nodes = node_list(&memory.nodes);
        line("# Memory that is there already does not move: from the next start on".to_owned());
        line(format!(
            "virsh numatune --domain \"$domain\" --mode strict --nodeset {nodes} --config"
        ));
    }
    line(
        "\n# Not to be had by a command, only in the domain file (`--emit libvirt --into FILE`):"
            .to_owned(),
    );
    if let Some(guest) = &vnode.guest {
        let (sockets, cores, threads) = (guest.sockets, guest.cores, guest.threads);
        line(format!("# the guest's topology {sockets}×{cores}×{threads}, from the next start on"));
    }
    for thread in &vnode.threads {
        if let Some(policy) = thread.policy {
            line(format!("# {} under the policy {policy}", safe(&thread.role.to_string())));
        }
    }
}
