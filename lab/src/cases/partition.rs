//! `partition=isolated`: local below the root, remote elsewhere, invalid when another group
//! requests the CPUs, and that undo leaves no trace.

use std::collections::BTreeMap;

use pinfold_model::CpuSet;

use super::isolate::{self, APPLY};
use super::{Extent, kill, shapes};
use crate::error::{LabError, expect_none};
use crate::stage::{Cgroups, LabHost};

const KNOB: [&str; 2] = ["--knob", "partition=isolated"];
/// The first kernel with remote partitions.
const REMOTE: (u32, u32) = (6, 7);

pub(super) fn partition(stage: &mut LabHost, extent: Extent) -> Result<String, LabError> {
    let apply = [&APPLY[..], &KNOB].concat();
    let remote = match stage.cgroups {
        Cgroups::V1 => return not_here(stage, &apply, "cgroup version 1"),
        Cgroups::V2Plain => false,
        Cgroups::V2Used if shapes::version(&stage.guest.release) < REMOTE => {
            return not_here(stage, &apply, "boot Linux 6.7");
        }
        Cgroups::V2Used => true,
    };
    stage.guest.pinfold(&apply)?;
    is_made(stage)?;
    stage.fork()?;
    isolate::check(stage)?;
    let rival = rival(stage)?;
    stage.guest.pinfold(&["undo", "--all"])?;
    same(stage, "undo of a partition left a trace")?;
    stage.reap()?;
    let killed = kill::kill_apply(stage, &apply, extent)?;
    let kind = if remote { "remote" } else { "local" };
    Ok(format!("{kind}, isolated, the vCPUs alone in it; {rival}; {killed}"))
}

/// A host without partitions reports this, and isolates as without the option.
fn not_here(stage: &mut LabHost, apply: &[&str], words: &str) -> Result<String, LabError> {
    let reported = stage.guest.pinfold(apply)?;
    if !reported.contains(words) {
        return Err(LabError::wrong(format!("nothing reports {words:?}"), reported));
    }
    isolate::check(stage)?;
    stage.guest.pinfold(&["undo", "--all"])?;
    same(stage, "undo left a trace")?;
    let required = [apply, &["--knob", "required=yes"]].concat();
    let mut words = vec!["/usr/bin/pinfold"];
    words.extend(&required);
    if stage.guest.run(&words)?.success() {
        return Err(LabError::wrong("a partition that is required", "the plan was applied"));
    }
    same(stage, "a refused plan left a trace")?;
    Ok("reported that there can be none, with a hint; refused where it is required".to_owned())
}

fn same(stage: &mut LabHost, what: &str) -> Result<(), LabError> {
    let after = stage.look()?;
    expect_none(what, after.differences(&stage.before, &BTreeMap::new()))
}

/// The partition's file and the CPUs of other groups, as read by busybox.
fn is_made(stage: &mut LabHost) -> Result<(), LabError> {
    let root = stage.cgroups.root();
    let text = stage.guest.shell(&format!(
        "p=$(find {root} -name 'pinfold-*-part'); cat $p/cpuset.cpus.partition
         cat $p/cpuset.cpus.effective {root}/cpuset.cpus.effective; grep -c . $p/cgroup.threads"
    ))?;
    let expected = format!("isolated\n{}\n{}\n2\n", stage.alone, rest(&stage.alone));
    if text == expected {
        Ok(())
    } else {
        Err(LabError::wrong("the partition is not so", format!("{text:?}")))
    }
}

/// The CPUs of other tasks, out of four.
fn rest(alone: &CpuSet) -> CpuSet {
    CpuSet::first_n(4).difference(alone)
}

/// Another group requests the same CPUs: `status` reports the reaction of the kernel.
fn rival(stage: &mut LabHost) -> Result<String, LabError> {
    let root = stage.cgroups.root();
    let shown = stage.guest.shell(&format!(
        "mkdir {root}/rival; echo {} > {root}/rival/cpuset.cpus 2>/dev/null || echo refused
         cat $(find {root} -name 'pinfold-*-part')/cpuset.cpus.partition",
        stage.alone
    ))?;
    // It exits with 1 if there is drift.
    let status = stage.guest.run(&["/usr/bin/pinfold", "status", "--json"])?.stdout_text();
    stage.guest.shell(&format!("rmdir {root}/rival"))?;
    let invalid = shown.contains("invalid");
    if status.contains(" invalid") != invalid {
        return Err(LabError::wrong(format!("the partition shows {shown:?}, status"), status));
    }
    let shown = shown.trim().replace('\n', ", ");
    Ok(format!("with a rival for its CPUs it shows \"{shown}\", as status does"))
}
