//! A host with systemd: settings that Pinfold makes through it persist, are reverted by `undo`, and
//! are restored after a crash by the installed unit.

use std::collections::BTreeMap;

use super::{SMALL, exclusive};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::Snapshot;

const ROOT: &str = "/sys/fs/cgroup";
const MONITOR: &str = "/run/vm.qmp";
pub(super) const APPLY: [&str; 7] =
    ["apply", "--qmp", MONITOR, "--strategy", "balanced", "--isolate", "host"];
/// The text with which undo reports a list that could only be restored with explicit CPUs.
const NEAR: &str = " was empty and is now 0-3";
/// A slice whose own file has a list, services with and without their own CPUs, a session, and the
/// machine.
pub(super) const PREPARE: &str = "
    mkdir -p /run/systemd/system/user.slice.d
    printf '[Slice]\\nAllowedCPUs=0-2\\n' > /run/systemd/system/user.slice.d/10-own.conf
    systemctl daemon-reload
    unit() { name=$1; shift; systemd-run --quiet --unit=$name \"$@\"; }
    idle='/bin/busybox tail -f /dev/null'
    unit web $idle
    unit narrow -p AllowedCPUs=0-2 $idle
    unit batch -p CPUSchedulingPolicy=batch -p CPUAffinity=1 $idle
    unit session --slice=user.slice $idle
    unit vm --slice=machine.slice --service-type=exec MACHINE \
        -accel tcg,thread=multi -smp 2 -name vm,debug-threads=on \
        -qmp unix:/run/vm.qmp,server=on,wait=off -pidfile /run/vm.pid
    until [ -S /run/vm.qmp ] && [ -s /run/vm.pid ]; do usleep 50000; done
    until [ $(ls /proc/$(cat /run/vm.pid)/task | wc -l) -ge 3 ]; do usleep 50000; done";
/// The CPU settings of systemd, and the files in which it stores run-time settings; the empty
/// folder that it creates for them stays.
const SETTINGS: &str = "
    for u in init.scope system.slice user.slice machine.slice web narrow batch session vm; do
        echo $u $(systemctl show -p AllowedCPUs $u); done
    find /run/systemd/system.control /etc/systemd/system.control /run/systemd/transient/*.d \
        2>/dev/null | sort | while read f; do [ -d $f ] || { echo $f; cat $f; }; done";

pub(super) fn keeps(guest: &mut Guest) -> Result<String, LabError> {
    let prepare = PREPARE.replace("MACHINE", &guest.machine());
    guest.shell(&prepare)?;
    let text = guest.shell("cat /run/vm.pid")?;
    let vm: u32 = text.trim().parse().map_err(|_| LabError::wrong("pid of the machine", text))?;
    let mut before = look(guest)?;
    let settings = guest.shell(SETTINGS)?;

    guest.pinfold(&APPLY)?;
    let held = guest.shell(SETTINGS)?;
    for slice in ["system.slice", "user.slice", "init.scope"] {
        let wanted = format!("{slice} AllowedCPUs=0-1\n");
        if !held.contains(&wanted) {
            return Err(LabError::wrong(format!("systemd does not hold {wanted:?}"), held));
        }
    }
    expect_none("isolation is not so", intruders(&look(guest)?, vm))?;
    // systemd writes the lists of a slice again when it reloads its units or creates one.
    guest.shell("systemctl daemon-reload; systemd-run --quiet --unit=late sleep 99999")?;
    let during = look(guest)?;
    expect_none("a new service is not excluded", intruders(&during, vm))?;
    if !during.tasks.values().any(|task| task.group == "/system.slice/late.service") {
        return Err(LabError::wrong("the new service", "is not there"));
    }
    guest.shell("systemctl stop late")?;
    let near = undone(guest, &mut before, &settings)?;

    // The supervisor is killed, as by the OOM killer; then the installed unit runs `undo` with its
    // restricted privileges.
    let reported = "StandardError=file:/run/holder.txt";
    let mut watch =
        vec!["systemd-run", "--quiet", "--unit=holder", "-p", reported, "/usr/bin/pinfold"];
    watch.extend(APPLY);
    watch.push("--watch");
    guest.shell(&watch.join(" "))?;
    guest.shell(
        "until grep -q '^watching' /run/holder.txt; do usleep 200000; done
         systemctl kill -s KILL holder; while systemctl --quiet is-active holder; do usleep 50000; done
         systemctl reset-failed holder",
    )?;
    expect_none("the kill took the isolation away", intruders(&look(guest)?, vm))?;
    let recover = ["/usr/bin/systemctl", "start", "pinfold-recover"];
    let ended = guest.run(&recover)?;
    if !ended.success() {
        let why = guest.shell("systemctl status pinfold-recover || true; dmesg | tail -n 40")?;
        return Err(LabError::wrong("pinfold-recover fails", why));
    }
    same(guest, &before, &settings, "pinfold-recover left a trace")?;
    let users = before.tasks.values().filter(|task| !task.is_kernel_thread()).count();
    Ok(format!(
        "{users} tasks that are not the kernel's in slices of systemd {}; excluded after daemon-reload \
         and from a new service; put back by undo and, after a kill, by pinfold-recover.service \
         ({near} lists by name)",
        guest.shell("systemctl --version")?.split_whitespace().nth(1).unwrap_or("?")
    ))
}

pub(super) fn look(guest: &mut Guest) -> Result<Snapshot, LabError> {
    Snapshot::take(guest, ROOT, false)
}

fn undone(guest: &mut Guest, before: &mut Snapshot, settings: &str) -> Result<usize, LabError> {
    let reported = guest.pinfold(&["undo", "--all"])?;
    let many = near(before, &reported)?;
    same(guest, before, settings, "undo left a trace")?;
    Ok(many)
}

/// Lists that the kernel does not accept empty are restored with explicit CPUs, are reported by
/// undo, and are the reference from then on. Returns their number.
pub(super) fn near(before: &mut Snapshot, reported: &str) -> Result<usize, LabError> {
    let near: BTreeMap<String, String> = before
        .knobs
        .iter()
        .filter(|(path, text)| {
            text.trim().is_empty() && reported.contains(&format!("{path}{NEAR}"))
        })
        .map(|(path, _)| (path.clone(), "0-3\n".to_owned()))
        .collect();
    if reported.matches(NEAR).count() != near.len() {
        return Err(LabError::wrong("undo reports lists that were not empty", reported));
    }
    let many = near.len();
    before.knobs.extend(near);
    Ok(many)
}

/// Everything is as before, also after systemd has reloaded its units.
fn same(guest: &mut Guest, before: &Snapshot, settings: &str, what: &str) -> Result<(), LabError> {
    for reload in ["true", "systemctl daemon-reload"] {
        guest.shell(reload)?;
        expect_none(what, look(guest)?.differences(before, &BTreeMap::new()))?;
        let now = guest.shell(SETTINGS)?;
        if now != settings {
            return Err(LabError::Wrong {
                what: what.to_owned(),
                found: vec![now, settings.to_owned()],
            });
        }
    }
    Ok(())
}

/// Tasks that may run on the machine's CPUs and are neither the machine's nor kernel threads.
fn intruders(during: &Snapshot, vm: u32) -> Vec<String> {
    let others = during.tasks.iter().filter(|(_, task)| {
        task.process_group != vm
            && !task.is_kernel_thread()
            && !task.mask.is_disjoint(&exclusive(&SMALL))
    });
    let mut found: Vec<String> = others
        .map(|(tid, task)| {
            format!("task {tid} ({}) in {} may run on {}", task.name, task.group, task.mask)
        })
        .collect();
    let placed = during.of_group(vm).filter(|(_, task)| task.mask.is_subset(&exclusive(&SMALL)));
    if placed.count() != 2 {
        found.push("the machine's two vCPUs are not on its CPUs".to_owned());
    }
    found
}
