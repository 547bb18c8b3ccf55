//! Exits of a guest of a real KVM, counted one by one: those of the micro-guest must be exact.
//!
//! Nothing is mounted for it: Pinfold mounts tracefs in its own mount namespace.

use pinfold_model::Isa;
use serde_json::Value;

use super::{nested, shapes};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::isa::{LEAVING_ROM, firmware};

/// A machine without exits, because it is run by TCG.
const TRANSLATED: &str =
    "-accel tcg,thread=multi -name t,debug-threads=on -qmp unix:/tmp/t.qmp,server=on,wait=off";
/// The exits that the micro-guest causes: CPUID, RDMSR, port writes, MMIO writes.
const EXPECTED: [(&str, u64); 4] =
    [("CPUID", 500), ("RDMSR", 500), ("port writes", 1_000), ("MMIO writes", 200)];
/// In this lockdown mode a kernel allows no tracing.
const LOCK: &str = "mount -t securityfs none /sys/kernel/security 2>/dev/null || true
    [ -e /sys/kernel/security/lockdown ] && echo confidentiality > /sys/kernel/security/lockdown";

pub(super) fn count_exits(guest: &mut Guest) -> Result<String, LabError> {
    nested::insert(guest)?;
    match guest.isa {
        Isa::X86 => of_micro_guest(guest),
        Isa::Arm => of_firmware(guest, &["HVC64", "DABT_IO_MEM"], Some(0x900_0000)),
        // Its KVM has no event for an access to a device.
        Isa::Riscv => of_firmware(guest, &["SUPERVISOR_SYSCALL", "STORE_GUEST_PAGE_FAULT"], None),
    }
}

/// Exits of a machine that runs all the time: for each write to its serial port at `address` (if
/// the kernel reports it) it makes two calls; `names` are those of a call and of a write.
fn of_firmware(
    guest: &mut Guest,
    names: &[&str; 2],
    address: Option<u64>,
) -> Result<String, LabError> {
    let mounts = guest.shell("cat /proc/mounts")?;
    let rom = firmware(guest.isa, LEAVING_ROM);
    let machine = format!("{} {rom}", nested::machine_arguments(guest));
    shapes::start(guest, 1, &machine)?;
    let text = guest.pinfold(&[
        "exits",
        "--qmp",
        shapes::MONITOR,
        "--seconds",
        "5",
        "--top",
        "5",
        "--json",
    ])?;
    let json: Value = serde_json::from_str(text.trim())
        .map_err(|_| LabError::wrong("pinfold exits", text.clone()))?;
    if json["level"] != "A" {
        return Err(LabError::wrong("the level is not A", text));
    }
    let [calls, writes] = names.map(|name| {
        let rows = json["rows"].as_array().into_iter().flatten();
        rows.filter(|row| row["type"] == name).filter_map(|row| row["count"].as_u64()).sum::<u64>()
    });
    let mut wrong = Vec::new();
    // The observation may start and end between the exits of an iteration.
    if writes < 5 || calls.abs_diff(2 * writes) > 2 {
        wrong.push(format!("{calls} calls for {writes} writes: {}", json["rows"]));
    }
    let reported = match address {
        Some(address) => {
            let addresses = json["addresses"].as_array().into_iter().flatten();
            let written = addresses
                .filter(|row| row["kind"] == "mmio" && row["address"] == address)
                .find_map(|row| row["count"].as_u64());
            if written.is_none_or(|count| count.abs_diff(writes) > 1) {
                wrong.push(format!("{address:#x}: not {writes} times: {}", json["addresses"]));
            }
            "its address"
        }
        None => {
            if !findings(&json).iter().any(|text| text.contains("have no addresses")) {
                wrong.push(format!("nothing is said of addresses: {}", json["findings"]));
            }
            "that its address is not known"
        }
    };
    if guest.shell("grep -v cgroup2 /proc/mounts")? != mounts {
        wrong.push("a mount is left".to_owned());
    }
    expect_none("the exits are not those that were made", wrong)?;
    check_refusal(guest)?;
    check_watch(guest)?;
    let locked = lock(guest, &["exits", "--qmp", shapes::MONITOR])?;
    Ok(format!(
        "level A: two calls for each write to a device, and {reported}; types {}; a TCG \
         machine is reported to make none, and its waits for a CPU and for locks are recorded; {locked}",
        self::names(&json).join(", ")
    ))
}

fn of_micro_guest(guest: &mut Guest) -> Result<String, LabError> {
    let mounts = guest.shell("cat /proc/mounts")?;
    let text = guest.pinfold(&["exits", "--micro-guest", "--json"])?;
    let json: Value = serde_json::from_str(text.trim())
        .map_err(|_| LabError::wrong("pinfold exits --micro-guest", text.clone()))?;
    if json["level"] != "A" {
        return Err(LabError::wrong("the level is not A", json["level"].to_string()));
    }
    let mut wrong = Vec::new();
    for (what, expected) in EXPECTED {
        let rows = json["expected"].as_array().into_iter().flatten();
        let counted = rows.filter(|row| row["what"] == what).map(|row| row["counted"].as_u64());
        if counted.collect::<Vec<_>>() != [Some(expected)] {
            wrong.push(format!("{what}: not {expected}: {}", json["expected"]));
        }
    }
    let names = names(&json);
    for name in ["cpuid", "msr", "io", "npf (MMIO)", "TIMEINGUEST"] {
        if !names.iter().any(|found| found == name) {
            wrong.push(format!("there is no row {name}: {names:?}"));
        }
    }
    for (kind, address, count) in
        [("port", 0x5a0, 1_000), ("mmio", 0x2_0000, 200), ("register", 0x1b, 500)]
    {
        let addresses = json["addresses"].as_array().into_iter().flatten();
        let mut found = addresses.filter(|row| row["kind"] == kind && row["address"] == address);
        if found.next().and_then(|row| row["count"].as_u64()) != Some(count) {
            wrong.push(format!("{kind} {address:#x}: not {count}: {}", json["addresses"]));
        }
    }
    // Created and ended during the observation.
    wrong.extend(findings(&json).into_iter().filter(|text| !text.contains("is in no row")));
    if guest.shell("cat /proc/mounts")? != mounts {
        wrong.push("a mount is left".to_owned());
    }
    expect_none("the exits are not those that were made", wrong)?;
    check_refusal(guest)?;
    check_watch(guest)?;
    let locked = lock(guest, &["exits", "--micro-guest"])?;
    Ok(format!(
        "level A: 500 CPUID, 500 RDMSR, 1,000 port and 200 MMIO writes are exact; types {}; a \
         translated machine is told to make none, and its waits for a CPU and for locks are \
         seen; {locked}",
        names.join(", ")
    ))
}

fn names(json: &Value) -> Vec<String> {
    let rows = json["rows"].as_array().into_iter().flatten();
    rows.filter_map(|row| row["type"].as_str().map(str::to_owned)).collect()
}

/// The findings in addition to the numbers, such as exits that were not counted.
fn findings(json: &Value) -> Vec<String> {
    let findings = json["findings"].as_array().into_iter().flatten();
    findings.filter_map(|finding| finding["text"].as_str().map(str::to_owned)).collect()
}

/// A machine without exits, and one that does not exist.
fn check_refusal(guest: &mut Guest) -> Result<(), LabError> {
    let machine = guest.machine();
    guest.background(&format!("exec {machine} {TRANSLATED}"))?;
    guest.shell("until [ -S /tmp/t.qmp ]; do usleep 50000; done")?;
    let output = guest.run(&["/usr/bin/pinfold", "exits", "--qmp", "/tmp/t.qmp"])?;
    let said = output.stderr_text();
    if said.contains("so there are no exits") && said.contains("-accel kvm") {
        Ok(())
    } else {
        Err(LabError::wrong("exits of a translated machine", said))
    }
}

/// The other programs that trace the kernel are accepted by this one too.
fn check_watch(guest: &mut Guest) -> Result<(), LabError> {
    let seen = measure_exits(guest, "sched")?;
    if seen["found"][0]["level"] != "tracepoints" {
        return Err(LabError::wrong("waits that only sums show", seen["found"].to_string()));
    }
    measure_exits(guest, "locks").map(drop)
}

fn measure_exits(guest: &mut Guest, probe: &str) -> Result<Value, LabError> {
    let words = ["measure", probe, "--qmp", "/tmp/t.qmp", "--seconds", "1", "--json"];
    let output = guest.run(&[&["/usr/bin/pinfold"], words.as_slice()].concat())?;
    serde_json::from_str::<Value>(output.stdout_text().trim())
        .map_err(|_| LabError::wrong(probe, output.stderr_text()))
}

/// The last test in this guest: lockdown cannot be reverted.
fn lock(guest: &mut Guest, exits: &[&str]) -> Result<&'static str, LabError> {
    if !guest.run(&["/bin/busybox", "sh", "-c", LOCK])?.success() {
        return Ok("this kernel has no lockdown");
    }
    let output = guest.run(&[&["/usr/bin/pinfold"], exits].concat())?;
    // A machine with a monitor still has a table of counts, which says why there are no times.
    let said = if exits.contains(&"--qmp") { output.stdout_text() } else { output.stderr_text() };
    if said.contains("locked down (confidentiality)") {
        Ok("under lockdown that is said")
    } else {
        Err(LabError::wrong("exits under lockdown", said))
    }
}
