//! Proxmox VE: `qm set` for what it has, a hookscript for the pins that it has not.
//!
//! `affinity` of `qm` is one mask for all threads of a machine (it starts QEMU under `taskset`), so
//! the hookscript pins each thread after the start, by the names that QEMU gives under
//! `debug-threads=on`, which Proxmox always asks for
//! (<https://pve.proxmox.com/pve-docs/qm.1.html>, hookscripts: section 10.13 of its guide).

use pinfold_model::{MemoryPlan, Plan, Role, VnodePlan};

use crate::cells::node_list;

use super::held::{headline, plain_name};
use super::qemu::{FUNCTIONS, function, taskset_lines};

/// Commands and hookscript in one script for the Proxmox host: `sh THIS VMID`.
#[must_use]
pub fn proxmox((plan, vnode): (&Plan, &VnodePlan)) -> String {
    let name = plain_name(vnode);
    let vcpus = vnode.vcpus().count();
    let mut script = format!(
        "#!/bin/sh\n# {}\n# On the Proxmox host: sh THIS VMID. The machine takes it at its next start.\n\
         set -eu\nvmid=${{1:?\"say which machine: sh $0 VMID\"}}\n\n",
        headline(plan)
    );
    let (sockets, per_socket, threads) = match &vnode.guest {
        Some(guest) => {
            (guest.sockets, u64::from(guest.cores) * u64::from(guest.threads), guest.threads)
        }
        None => (1, vcpus as u64, 1),
    };
    script.push_str(&format!(
        "# One mask for all threads, until the hookscript pins each.\n\
         qm set \"$vmid\" --sockets {sockets} --cores {per_socket} --vcpus {vcpus} --affinity {} --numa 1\n",
        vnode.pus()
    ));
    if let (Some(guest), true) = (&vnode.guest, threads > 1) {
        script.push_str(&format!(
            "# qm has no word for threads: QEMU takes the later -smp. This replaces other --args.\n\
             qm set \"$vmid\" --args '-smp {vcpus},sockets={sockets},cores={},threads={threads},maxcpus={vcpus}'\n",
            guest.cores
        ));
    }
    if let Some(memory) = &vnode.memory {
        script.push_str(&memory_lines(memory, vcpus));
    }
    script.push_str(&format!(
        "\n# Not to be had from qm: iothreads follow its disks (iothread=1), and keep the PUs of the emulator here.\n\
         mkdir -p /var/lib/vz/snippets\n\
         cat >/var/lib/vz/snippets/pinfold-{name}.sh <<'END_OF_HOOK'\n"
    ));
    script.push_str(&hook(vnode));
    script.push_str(&format!(
        "END_OF_HOOK\n\
         chmod +x /var/lib/vz/snippets/pinfold-{name}.sh\n\
         qm set \"$vmid\" --hookscript local:snippets/pinfold-{name}.sh\n"
    ));
    script
}

/// The memory as one cell of the guest, bound to the plan's nodes.
fn memory_lines(memory: &MemoryPlan, vcpus: usize) -> String {
    let nodes = node_list(&memory.nodes).to_string().replace(',', ";");
    let Some(bytes) = memory.bytes else {
        return format!(
            "# The plan wants the memory on node {nodes}: plan with its size, and it is bound here.\n"
        );
    };
    let mib = bytes >> 20;
    let pages = match memory.page_bytes.map(|page| page >> 20) {
        Some(page @ (2 | 1024)) => format!(" --hugepages {page}"),
        Some(_) | None => String::new(),
    };
    format!(
        "qm set \"$vmid\" --memory {mib}{pages} \\\n    \
         --numa0 'cpus=0-{},hostnodes={nodes},memory={mib},policy=bind'\n",
        vcpus.saturating_sub(1)
    )
}

/// The hookscript: Proxmox calls it with the machine's number and a phase.
fn hook(vnode: &VnodePlan) -> String {
    let mut script = format!(
        "#!/bin/sh\n# Pins each thread of the machine after its start. Arguments: VMID PHASE.\n\
         [ \"$2\" = post-start ] || exit 0\n\
         qemu=$(cat \"/run/qemu-server/$1.pid\") || exit 1\n\
         vcpus={}\n{FUNCTIONS}",
        vnode.vcpus().count()
    );
    // Proxmox names iothreads after its disks; they stay where all threads are put first.
    let mut vnode = vnode.clone();
    vnode.threads.retain(|thread| !matches!(thread.role, Role::Iothread(_)));
    let what = "All threads as the emulator, then those with a name.";
    function(&mut script, "pin_by_taskset", what, &taskset_lines(&vnode, vnode.vcpus().count()));
    script.push_str(
        "\n[ \"$(count_vcpus)\" -eq \"$vcpus\" ] || {\n    \
         echo \"$0: the machine has not $vcpus vCPUs\" >&2\n    exit 1\n}\n\
         pin_by_taskset\n",
    );
    script
}
