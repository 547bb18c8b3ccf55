//! The method `stall`: the kernel loads its program, the CPU time is close to the requested share,
//! and a stopped supervisor slows no vnode.
//!
//! The test counts the iterations of a loop and not its speed. The guest's clock counts
//! instructions, otherwise the time that the guest waits for this machine would count as interrupt
//! cost.

use serde_json::Value;

use super::vnodes::{Core, PLATFORM, UP, cores_of, mount, put, signal, status};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;

const TEXT: &str = "[[vnode]]\nname = \"slow\"\ncores = 1\nspeed = \"25%\"\nmethod = \"stall\"\nperiod = \"1ms\"\n";
/// A loop that appends a byte to its file at intervals.
const LOOP: &str = "exec pinfold emulate exec slow -- /bin/busybox sh -c 'echo $$ > /tmp/loop
    while :; do k=0; while [ $k -lt 200 ]; do k=$((k+1)); done; echo; done > /tmp/steps'";
/// Its number of steps in three seconds of guest time.
const STEPS: &str = "until [ -s /tmp/steps ]; do usleep 50000; done; usleep 300000
    stat -c %s /tmp/steps; sleep 3; stat -c %s /tmp/steps";
/// Kernel messages that show a problem.
const HURT: [&str; 7] = [
    "WARNING:",
    "BUG:",
    "lockdep",
    "Oops",
    "soft lockup",
    "hard LOCKUP",
    // Interrupts were too long: the kernel throttles events.
    "lowering kernel.perf_event_max_sample_rate",
];
/// Tolerance: the kernel's counter covers one or two seconds.
const ACCOUNT: f64 = 0.05;

pub(super) fn stalls(guest: &mut Guest) -> Result<String, LabError> {
    mount(guest)?;
    able(guest)?;
    put(guest, TEXT)?;
    let said = guest.shell("dmesg | wc -l")?;
    guest.pinfold(&UP)?;
    guest.background(LOOP)?;
    let stalled = steps(guest)?;
    let got = check_accounting(guest)?;
    signal(guest, "STOP")?;
    let free = steps(guest)?;
    signal(guest, "CONT")?;
    let again = steps(guest)?;
    guest.pinfold(&["emulate", "down"])?;
    let after = steps(guest)?;
    let mut wrong = Vec::new();
    for (what, slow, fast) in [
        ("while the supervisor was stopped", stalled, free),
        ("before it went on", again, free),
        ("after down", again, after),
    ] {
        if fast < slow * 3.0 {
            wrong.push(format!("{fast} steps {what}, {slow} when stalled"));
        }
    }
    expect_none("the loop is not slowed as it must be", wrong)?;
    guest.shell("kill -9 $(cat /tmp/loop); ! find /sys/fs/cgroup -name 'pinfold-*' | grep .")?;
    let text = guest.shell("dmesg")?;
    let new = text.lines().skip(said.trim().parse().unwrap_or(0));
    let hurt = new.filter(|line| HURT.iter().any(|word| line.contains(word)));
    expect_none("the kernel complains", hurt.map(str::to_owned).collect())?;
    Ok(format!(
        "a core at 25 %, by its own account {got:.0} %; {stalled} steps, {free} while the \
         supervisor was stopped, then {again}, and {after} after down; the kernel says nothing"
    ))
}

/// Skips a kernel for which Pinfold itself reports why the method is not available.
fn able(guest: &mut Guest) -> Result<(), LabError> {
    let text = guest.pinfold(&["emulate", "methods", "--json"])?;
    let json: Value = serde_json::from_str(text.trim())
        .map_err(|_| LabError::wrong("emulate methods", text.clone()))?;
    let methods = json["methods"].as_array().into_iter().flatten();
    let refused: Vec<&Value> = methods.filter(|one| one["method"] == "stall").collect();
    match refused.as_slice() {
        [one] if one["refused_here"].is_null() => Ok(()),
        [one] => Err(LabError::Missing {
            what: format!("stall in {}", guest.release),
            hint: one["refused_here"].as_str().unwrap_or("it does not say why").to_owned(),
        }),
        _ => Err(LabError::wrong("emulate methods does not mention stall", text)),
    }
}

fn steps(guest: &mut Guest) -> Result<f64, LabError> {
    let text = guest.shell(STEPS)?;
    let sizes: Vec<f64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    match sizes.as_slice() {
        [before, after] => Ok(after - before),
        _ => Err(LabError::wrong("the loop's file", text)),
    }
}

/// Percent of its core that it got.
fn check_accounting(guest: &mut Guest) -> Result<f64, LabError> {
    let status = status(guest)?;
    match cores_of(&status, "slow").as_slice() {
        [Core { got: Some(got), .. }] if (got - 0.25).abs() <= ACCOUNT => Ok(got * 100.0),
        _ => Err(LabError::wrong(format!("the account of {PLATFORM}"), status.to_string())),
    }
}
