//! Proxmox VE: `qm set` for its own options, and a hookscript for pins, which it lacks.
//!
//! `affinity` of `qm` is one mask for all threads of a machine (it starts QEMU under `taskset`). So
//! the hookscript pins each thread after the start, by the names that QEMU sets under
//! `debug-threads=on`, which Proxmox always uses (<https://pve.proxmox.com/pve-docs/qm.1.html>,
//! hookscripts: section 10.13 of its guide).

use pinfold_model::tunables::{FormatAnswer, Scope};
use pinfold_model::{CpuSet, MemoryPlan, NotSingleVnode, Plan, PuId, Topology, Vendor, VnodePlan};

use super::common::{self, headline, plain_name, policy};
use super::format::{Format, Syntax};
use super::libvirt::unit;
use super::qemu::{FUNCTIONS, function, taskset_lines};
use pinfold_plan::guest_cache::caches;
use pinfold_plan::guest_numa::{cells, node_list, shares};
use pinfold_plan::text;

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "proxmox",
    summary: "A script for a Proxmox host: qm set, and a hookscript for the pins",
    is_of_host: false,
    can_merge: false,
    syntax: Syntax::Script,
    write: |plan, topology, _| proxmox(plan, topology),
    together: None,
    tunable: |_, _| FormatAnswer::host(),
};

/// Commands and hookscript in one script for the Proxmox host: `sh THIS VMID`.
///
/// # Errors
/// [`NotSingleVnode`] if the plan does not place exactly one vnode.
pub fn proxmox(plan: &Plan, topology: &Topology) -> Result<String, NotSingleVnode> {
    let vnode = plan.single_vnode()?;
    if let Some(text) = common::process_group_text(vnode, "Proxmox") {
        return Ok(text);
    }
    let name = plain_name(vnode);
    let vcpus = vnode.vcpus().count();
    let mut script = format!(
        "#!/bin/sh\n# {}\n# On the Proxmox host: sh THIS VMID. The machine takes it at its next start.\n\
         set -eu\nvmid=${{1:?\"usage: sh $0 VMID\"}}\n\n",
        headline(plan)
    );
    let (sockets, per_socket) = match &vnode.guest {
        Some(guest) => (guest.sockets, u64::from(guest.cores) * u64::from(guest.threads)),
        None => (1, vcpus as u64),
    };
    script.push_str(&format!(
        "# One mask for all threads, until the hookscript pins each.\n\
         qm set \"$vmid\" --sockets {sockets} --cores {per_socket} --vcpus {vcpus} --affinity {} --numa 1\n",
        vnode.pus()
    ));
    script.push_str(&smp(vnode, topology));
    if let Some(memory) = &vnode.memory {
        script.push_str(&memory_lines(memory, vnode, topology));
    }
    let tunables = FORMAT.answers(Scope::of_vnode(plan, vnode));
    script.push_str(&tunables.text(""));
    script.push_str(&tunables.missing_text("qm"));
    script.push_str(&common::not_isolated(plan, "qm cannot"));
    script.push_str(&format!(
        "\n# Not possible with qm: iothreads follow its disks (iothread=1), and keep the CPUs of \
         the emulator here.\n# The storage \"local\" must allow snippets: Datacenter, Storage, \
         local, Content.\nmkdir -p /var/lib/vz/snippets\ncat \
         >/var/lib/vz/snippets/pinfold-{name}.sh <<'END_OF_HOOK'\n"
    ));
    script.push_str(&hook(vnode));
    script.push_str(&format!(
        "END_OF_HOOK\n\
         chmod +x /var/lib/vz/snippets/pinfold-{name}.sh\n\
         qm set \"$vmid\" --hookscript local:snippets/pinfold-{name}.sh\n"
    ));
    Ok(script)
}

/// `--args` with the guest's threads and dies, if it has any.
fn smp(vnode: &VnodePlan, topology: &Topology) -> String {
    let known = Vendor::from_topology(topology) != Vendor::Unknown;
    let dies = if known { caches(vnode, topology).dies.max(1) } else { 1 };
    let Some(guest) = vnode.guest.as_ref().filter(|guest| guest.threads > 1 || dies > 1) else {
        return String::new();
    };
    let (sockets, threads, vcpus) = (guest.sockets, guest.threads, guest.vcpus());
    let hint = if threads > 1 { topoext(topology) } else { "" };
    let of_die = if dies > 1 { format!("dies={dies},") } else { String::new() };
    format!(
        "# qm has no option for threads and dies: QEMU uses the last -smp. This replaces other \
         --args.\n{hint}qm set \"$vmid\" --args '-smp \
         {vcpus},sockets={sockets},{of_die}cores={},threads={threads},maxcpus={vcpus}'\n",
        guest.cores / dies
    )
}

/// The option that a guest with threads needs on an AMD host.
fn topoext(topology: &Topology) -> &'static str {
    match Vendor::from_topology(topology) {
        Vendor::Intel => "",
        Vendor::Amd => {
            "# On this AMD host add `-cpu host,topoext=on` to it: without topoext QEMU hides the threads.\n"
        }
        Vendor::Unknown => {
            "# On an AMD host add `-cpu host,topoext=on` to it: without topoext QEMU hides the threads.\n"
        }
    }
}

/// The memory in guest cells, each bound to its host node.
fn memory_lines(memory: &MemoryPlan, vnode: &VnodePlan, topology: &Topology) -> String {
    // qm separates the numbers of a list by semicolons.
    let nodes = node_list(&memory.nodes);
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
    let cells = cells(vnode, topology);
    let parts: Vec<(CpuSet, CpuSet, u64)> = match shares(&cells, bytes, unit(memory)) {
        Some(sizes) if cells.len() > 1 => cells
            .iter()
            .zip(sizes)
            .map(|(cell, size)| (cell.vcpus.clone(), node_list(&[cell.node]), size >> 20))
            .collect(),
        Some(_) | None => {
            let last = u32::try_from(vnode.vcpus().count()).unwrap_or(u32::MAX);
            vec![((0..last).map(PuId).collect(), nodes, mib)]
        }
    };
    let mut lines = match memory.page_bytes {
        Some(page) if pages.is_empty() => format!(
            "# The plan wants huge pages of {}; qm has those of 2 and 1024 MiB only.\n",
            text::mib(page)
        ),
        Some(_) | None => String::new(),
    };
    lines.push_str(&format!("qm set \"$vmid\" --memory {mib}{pages}"));
    for (number, (vcpus, nodes, mib)) in parts.iter().enumerate() {
        lines.push_str(&format!(
            " \\\n    --numa{number} 'cpus={},hostnodes={},memory={mib},policy={}'",
            list(vcpus),
            list(nodes),
            policy(memory)
        ));
    }
    lines.push('\n');
    lines
}

fn list(set: &CpuSet) -> String {
    set.to_string().replace(',', ";")
}

/// The hookscript, which Proxmox calls with the machine's ID and a phase.
fn hook(vnode: &VnodePlan) -> String {
    let mut script = format!(
        "#!/bin/sh\n# Pins each thread of the machine after its start. Arguments: VMID PHASE.\n\
         [ \"$2\" = post-start ] || exit 0\n\
         qemu=$(cat \"/run/qemu-server/$1.pid\") || exit 1\n\
         vcpus={}\n{FUNCTIONS}",
        vnode.vcpus().count()
    );
    // Proxmox names iothreads after its disks; they keep the mask that is first set for all
    // threads.
    let mut vnode = vnode.clone();
    vnode.threads.retain(|thread| thread.role.iothread().is_none());
    let what = "All threads as the emulator, then those with a name.";
    function(&mut script, "pin_by_taskset", what, &taskset_lines(&vnode, vnode.vcpus().count()));
    script.push_str(
        "\n[ \"$(count_vcpus)\" -eq \"$vcpus\" ] || {\n    \
         echo \"$0: the machine does not have $vcpus vCPUs\" >&2\n    exit 1\n}\n\
         pin_by_taskset\n",
    );
    script
}
