//! Two cores that stall: the kernel takes the program, the account is near what was asked, and
//! a supervisor that is stopped slows nobody.
//!
//! How far loops get is counted, not how fast they are: between stalled to a quarter and not
//! stalled at all lies more than what the guest's own host does to them.

use serde_json::Value;

use super::vnodes::{PLATFORM, UP, cores_of, mount, put, signal, status};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;

const TEXT: &str = "[[vnode]]\nname = \"slow\"\ncores = 2\nspeed = \"25%\"\nmethod = \"stall\"\nperiod = \"1ms\"\n";
/// Two loops, each of which adds a byte to its file now and then.
const LOOPS: &str = "exec pinfold emulate exec slow -- /bin/busybox sh -c 'for i in 1 2; do \
    while :; do k=0; while [ $k -lt 200 ]; do k=$((k+1)); done; echo; done > /tmp/steps.$i & \
    echo $!; done > /tmp/loops; wait'";
/// How far they get in three seconds of the guest's time.
const STEPS: &str = "until [ $(cat /tmp/loops | wc -l) = 2 ]; do usleep 50000; done; usleep 300000
    size() { stat -c %s /tmp/steps.1 /tmp/steps.2; }; size; sleep 3; size";
/// What a kernel says that was hurt.
const HURT: [&str; 6] = ["WARNING:", "BUG:", "lockdep", "Oops", "soft lockup", "hard LOCKUP"];
/// The account is the kernel's, of a second or two.
const ACCOUNT: f64 = 0.1;

pub(super) fn stalls(guest: &mut Guest) -> Result<String, LabError> {
    mount(guest)?;
    able(guest)?;
    put(guest, TEXT)?;
    let said = guest.shell("dmesg | wc -l")?;
    guest.pinfold(&UP)?;
    guest.background(LOOPS)?;
    let stalled = steps(guest)?;
    let got = accounted(guest)?;
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
        if fast < slow * 2.0 {
            wrong.push(format!("{fast} steps {what}, {slow} when stalled"));
        }
    }
    expect_none("the loops are not slowed as they must be", wrong)?;
    guest.shell("kill -9 $(cat /tmp/loops); ! find /sys/fs/cgroup -name 'pinfold-*' | grep .")?;
    let text = guest.shell("dmesg")?;
    let new = text.lines().skip(said.trim().parse().unwrap_or(0));
    let hurt = new.filter(|line| HURT.iter().any(|word| line.contains(word)));
    expect_none("the kernel complains", hurt.map(str::to_owned).collect())?;
    Ok(format!(
        "two cores at 25 %, by its own account {got:.0} %; {stalled} steps, {free} while the \
         supervisor was stopped, then {again}, and {after} after down; the kernel says nothing"
    ))
}

/// Skips a kernel of which Pinfold itself says why it cannot.
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
        _ => Err(LabError::wrong("emulate methods does not tell of stall", text)),
    }
}

/// Steps of both loops together.
fn steps(guest: &mut Guest) -> Result<f64, LabError> {
    let text = guest.shell(STEPS)?;
    let sizes: Vec<f64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    match sizes.as_slice() {
        [a, b, c, d] => Ok(c + d - a - b),
        _ => Err(LabError::wrong("the loops' files", text)),
    }
}

/// The mean of both cores, in percent.
fn accounted(guest: &mut Guest) -> Result<f64, LabError> {
    let status = status(guest)?;
    let got: Option<Vec<f64>> = cores_of(&status, "slow").iter().map(|core| core.got).collect();
    let got =
        got.filter(|got| got.len() == 2 && got.iter().all(|got| (got - 0.25).abs() <= ACCOUNT));
    got.map(|got| got.iter().sum::<f64>() * 50.0)
        .ok_or_else(|| LabError::wrong(format!("the account of {PLATFORM}"), status.to_string()))
}
