//! A machine under a real KVM, in a host under test whose (emulated) processor supports
//! virtualisation.
//!
//! Only such a host has kernel threads of KVM and vhost, and hardware page tables.

use pinfold_model::Isa;
use pinfold_model::text::cpus_text;

use super::shapes::{self, MONITOR, ROOT};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::guest_files::MODULES;
use crate::snapshot::Snapshot;

/// Inserts the modules that are not built in, and creates the device nodes, which no other program
/// does here.
const INSERT: &str = "for m in $(cat DIR/list); do insmod $m || echo \"$m is not inserted\"; done
    mkdir -p /dev/net; [ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
    [ -e /dev/kvm ] || mknod /dev/kvm c 10 232; [ -e /dev/vhost-net ] || mknod /dev/vhost-net c 10 238";
/// Its network has a kernel thread.
const NETWORK: &str = "-netdev tap,id=n0,ifname=t0,script=no,downscript=no,vhost=on,vhostforce=on \
    -device virtio-net-device,netdev=n0";

/// Enables KVM in the guest.
pub(super) fn insert(guest: &mut Guest) -> Result<(), LabError> {
    let said = guest.shell(&INSERT.replace("DIR", MODULES))?;
    if guest.run(&["/bin/busybox", "grep", "-qw", "kvm", "/proc/misc"])?.success() {
        return Ok(());
    }
    // PREEMPT_RT has no KVM on a processor whose time stamp counter may change its rate.
    let refusal = guest.shell("dmesg | grep -E 'kvm( \\[.*\\])?: ' | tail -n 1")?;
    match refusal.trim().split_once(": ") {
        Some((_, why)) => Err(LabError::Missing {
            what: format!("KVM of this kernel ({why})"),
            hint: "QEMU's translator cannot give it".to_owned(),
        }),
        None => Err(LabError::wrong("the host has no KVM", said)),
    }
}

/// QEMU's arguments for a machine under this KVM.
pub(super) fn machine_arguments(guest: &Guest) -> &'static str {
    match guest.isa {
        Isa::X86 => "-accel kvm -cpu host,-svm",
        Isa::Arm | Isa::Riscv => "-accel kvm -cpu host",
    }
}

pub(super) fn kvm(guest: &mut Guest) -> Result<String, LabError> {
    insert(guest)?;
    let machine = format!("{} {NETWORK}", machine_arguments(guest));
    let vm = shapes::start(guest, 2, &machine)?;
    let before = Snapshot::take(guest, ROOT, false)?;
    let apply = ["apply", "--qmp", MONITOR, "--strategy", "balanced", "--isolate", "host"];
    let reported = guest.pinfold(&apply)?;
    let status = guest.pinfold(&["status", "--json"])?;
    let said = shapes::ReportedPlacement::parse(&status)?;
    let during = Snapshot::take(guest, ROOT, false)?;
    expect_none("isolation is not so", shapes::intruders(&during, vm, &said))?;
    let named = threads(&during, vm)?;
    let tables =
        guest.shell("grep -E '^(Sec)?PageTables' /proc/meminfo | tr -s ' ' | tr '\\n' ','")?;
    guest.pinfold(&["undo", "--all"])?;
    let after = Snapshot::take(guest, ROOT, false)?;
    expect_none("undo left a trace", after.differences(&before, &shapes::near(&after)))?;
    if reported.contains("TCG") {
        return Err(LabError::wrong("the machine is not KVM's", reported));
    }
    let alone = cpus_text(&said.alone);
    Ok(format!("vCPUs of KVM on {alone}; {named}; {}", tables.trim_end_matches(',')))
}

/// The kernel threads of this machine, each with its mask while the plan is active.
fn threads(during: &Snapshot, vm: u32) -> Result<String, LabError> {
    let vcpus = during.of_group(vm).filter(|(_, task)| task.name.ends_with("/KVM")).count();
    if vcpus != 2 {
        return Err(LabError::wrong("vCPU threads of KVM", vcpus.to_string()));
    }
    let helpers = during
        .tasks
        .values()
        .filter(|task| task.name.starts_with("vhost-") || task.name.starts_with("kvm-nx-lpage"));
    let found: Vec<String> =
        helpers.map(|task| format!("{} on {}", kind(&task.name), task.mask)).collect();
    if found.iter().any(|one| one.starts_with("vhost")) {
        Ok(found.join(", "))
    } else {
        Err(LabError::wrong("no vhost thread", found.join(", ")))
    }
}

/// `vhost-812` without its number, which differs between runs.
fn kind(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-')
}
