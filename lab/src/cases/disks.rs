//! The disk limit of a vnode by `io.max` of cgroup version 2: a virtio disk with ext4, on a host
//! with systemd.
//!
//! The limit is read back from the kernel, for a vnode and for a unit that has a limit of its own
//! and is attached; `emulate verify` measures it. The rates are upper bounds: a busy machine only
//! lowers them.

use serde_json::Value;

use super::attached::{look, same};
use super::shapes::ROOT;
use super::vnodes::{UP, put, signal};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;

const PLATFORM: &str = "[[vnode]]\nname = \"slow\"\ncores = 1\nspeed = \"50%\"\n\
    method = \"stall\"\nperiod = \"1ms\"\ndisk = \"250 kB/s\"\niops = 20\ndisk-path = \"FOLDER\"\n";
const FOLDER: &str = "/disk/work";
/// A folder on tmpfs.
const VOLATILE: &str = "/run";
const PREPARE: &str = "mkdir /disk/work
    systemd-run --quiet --unit=base -p 'IOReadBandwidthMax=/dev/vda 9000000' \
        /bin/busybox tail -f /dev/null
    cat /sys/block/vda/dev";
const ATTACH: [&str; 5] = ["emulate", "attach", "slow", "--unit", "base"];
const VERIFY: [&str; 7] = ["emulate", "verify", "slow", "--quick", "--repetitions", "1", "--json"];
const OWN: &str = "pinfold-vnode-slow";
const BASE: &str = "system.slice/base.service";
/// Highest share of the limit that `verify` may have measured. The disk must be faster than this
/// without a limit, else the rate shows nothing.
const MOST: f64 = 1.5;
/// Bytes and operations, each written and read.
const ROWS: usize = 4;
const TRIES: usize = 3;

pub(super) fn limited(guest: &mut Guest) -> Result<String, LabError> {
    let disk = guest.shell(PREPARE)?.trim().to_owned();
    let before = look(guest)?;
    let own = before.knob(&io_max(BASE)).to_owned();
    if own != format!("{disk} rbps=9000000 wbps=max riops=max wiops=max") {
        return Err(LabError::wrong("the unit's own limit", own));
    }
    let refused = refuse(guest)?;
    same(guest, &before, "a refused platform changed the host")?;
    put(guest, &PLATFORM.replace("FOLDER", FOLDER))?;
    up(guest, &disk)?;
    let reloaded = reload(guest, &disk)?;
    let measured = verify(guest)?;
    guest.pinfold(&["emulate", "down"])?;
    same(guest, &before, "down left a trace")?;
    up(guest, &disk)?;
    signal(guest, "KILL")?;
    guest.pinfold(&["undo", "--left"])?;
    same(guest, &before, "undo left a trace after a kill")?;
    Ok(format!(
        "250 kB/s and 20 operations/s in io.max of a vnode and of an attached unit, by verify {measured}; \
         {refused}; {reloaded}; by down, and by undo after a kill, the unit has its own limit again, and {} files \
         are as before",
        before.knobs.len()
    ))
}

fn up(guest: &mut Guest, disk: &str) -> Result<(), LabError> {
    guest.pinfold(&UP)?;
    attach(guest, disk)
}

/// systemd writes the unit's own limit again: the status reports that, and the unit has the limit of
/// the vnode when it is attached again.
fn reload(guest: &mut Guest, disk: &str) -> Result<&'static str, LabError> {
    guest.shell("systemctl daemon-reload; sleep 3")?;
    let own = guest.shell(&format!("cat {}", io_max(BASE)))?.contains("rbps=9000000");
    let status = guest.pinfold(&["emulate", "status", "--json"])?;
    if own != status.contains("has set the limits of its disk") {
        return Err(LabError::wrong(format!("reported, and the unit's own limit: {own}"), status));
    }
    if !own {
        return Ok("the unit keeps the limit at daemon-reload");
    }
    attach(guest, disk)?;
    Ok("the unit's own limit, which systemd sets at daemon-reload, is reported")
}

/// Both groups must then have the limit of the vnode.
fn attach(guest: &mut Guest, disk: &str) -> Result<(), LabError> {
    guest.pinfold(&ATTACH)?;
    let during = look(guest)?;
    let wanted = format!("{disk} rbps=250000 wbps=250000 riops=20 wiops=20");
    let groups = [OWN, BASE].into_iter();
    let wrong = groups.filter(|group| during.knob(&io_max(group)) != wanted);
    let wrong = wrong.map(|group| format!("{group}: {:?}", during.knob(&io_max(group))));
    expect_none(&format!("io.max is not {wanted:?}"), wrong.collect())
}

/// A folder on tmpfs is refused with its file system and a hint.
fn refuse(guest: &mut Guest) -> Result<String, LabError> {
    put(guest, &PLATFORM.replace("FOLDER", VOLATILE))?;
    let output = guest.run(&["/usr/bin/pinfold", UP[0], UP[1], UP[2]])?;
    let text = output.stderr_text();
    let parts = ["cannot limit the disk of /run", "tmpfs", "has no block device", "disk-path = "];
    let missing = parts.into_iter().filter(|part| !text.contains(part));
    let mut wrong: Vec<String> = missing.map(|part| format!("no {part:?} in {text}")).collect();
    if output.success() {
        wrong.push("it is accepted".to_owned());
    }
    expect_none("a disk limit on tmpfs", wrong)?;
    Ok("a folder on tmpfs is refused".to_owned())
}

/// The measured rates. On a busy machine a part of the measurement may have done no work, or the
/// disk may have been too slow without the limit: then it is measured again.
fn verify(guest: &mut Guest) -> Result<String, LabError> {
    let mut wrong = Vec::new();
    for _ in 0..TRIES {
        let output = guest.run(&[&["/usr/bin/pinfold"][..], &VERIFY].concat())?;
        let json: Value = serde_json::from_str(output.stdout_text().trim()).unwrap_or(Value::Null);
        let rows = json["disk"].as_array().cloned().unwrap_or_default();
        let mut measured = Vec::new();
        wrong = vec![output.stderr_text()];
        for row in &rows {
            let (achieved, full) = (&row["achieved"], &row["rates_per_second"][0]["full"]);
            match (share_of_limit(row, achieved), share_of_limit(row, full)) {
                (Some(got), Some(full)) if got > 0.0 && got <= MOST && full > MOST => {
                    measured.push(format!("{:.0}", got * 100.0));
                }
                (got, full) => wrong.push(format!("{got:?} of the limit, {full:?} without: {row}")),
            }
        }
        if measured.len() == ROWS {
            return Ok(format!("{} % of it", measured.join(", ")));
        }
        wrong.push(format!("{} of {ROWS} rows are as the limit says", measured.len()));
    }
    Err(LabError::Wrong { what: "the disk by verify".to_owned(), found: wrong })
}

fn share_of_limit(row: &Value, rate: &Value) -> Option<f64> {
    Some(rate.as_f64()? / row["requested"].as_f64()?)
}

fn io_max(group: &str) -> String {
    format!("{ROOT}/{group}/io.max")
}
