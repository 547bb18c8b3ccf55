//! The platform of Buchert 2011, Fig. 2, on eight cores: groups, CPUs, and the share of the guest's
//! time that busy loops in each vnode get; changed, shut down, killed and undone.
//!
//! None of the values is a measurement: the guest's clock continues while its CPUs wait for those
//! of this machine. Periods are 100 ms long, so that a fair share is still visible.

use std::collections::BTreeMap;

use pinfold_model::text::cpus_text;
use pinfold_model::{CpuSet, Method};
use serde_json::Value;

use super::shapes::ROOT;
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::Snapshot;

const EXAMPLE: &str = include_str!("../../../docs/examples/buchert-fig2.toml");
pub(super) const PLATFORM: &str = "/tmp/platform.toml";
pub(super) const UP: [&str; 3] = ["emulate", "up", PLATFORM];
const DOWN: [&str; 2] = ["emulate", "down"];
const UNDO: [&str; 2] = ["undo", "--all"];
/// The vnodes of the example: name, cores, speed.
const ASKED: [(&str, usize, f64); 4] =
    [("vnode1", 1, 0.75), ("vnode2", 1, 0.4), ("vnode3", 2, 0.6), ("vnode4", 4, 0.25)];
/// Minimum distance of the speeds; with half of it, a measured order is not random.
const NEAR: f64 = 0.15;
/// Tolerance: the CPU time of the last one or two seconds may lack one period, or have one more.
const ACCOUNT: f64 = 0.12;
const LOOKS: usize = 10;
/// Maximum number of measurements until the shares are right.
const SHARES: usize = 4;

/// A host without enabled controllers, with the scheduler's tunables mounted.
const MOUNT: &str = "mount -t cgroup2 none ROOT; mkdir ROOT/init.scope
    echo 1 > ROOT/init.scope/cgroup.procs; mount -t debugfs none /sys/kernel/debug";
/// What a method may change besides groups.
const TUNABLES: &str =
    "grep -s -H '' /sys/kernel/debug/sched/*_ns /proc/sys/kernel/sched_*_ns || true";
const GROUPS: &str = "find ROOT -mindepth 1 -name 'pinfold-*'";
/// Files of all Pinfold groups with the values that the kernel accepted.
const FILES: &str = "find ROOT -path '*/pinfold-vnode-*' \\( -name cpuset.cpus.effective -o \
    -name cgroup.type -o -name cpu.max -o -name cpu.weight \\) | sort | xargs grep -H ''";
/// Real-time burners of all supervisors, each with its CPU and its policy.
const HOGS: &str = "for t in $(grep -s -l '(hog-' /proc/[0-9]*/task/[0-9]*/stat); do d=${t%/stat}
    echo $(cut -d' ' -f41 $t) $(grep Cpus_allowed_list $d/status | cut -f2); done | sort";
/// Waits until the loops of a vnode have reported their process ids.
const SPUN: &str =
    "until [ $(cat /tmp/NAME.pids 2>/dev/null | wc -l) = CORES ]; do usleep 50000; done
    cat /tmp/NAME.pids";
/// Guest time in seconds, then the CPU time of each process, read by the shell alone.
const LOOK: &str = "look() { for p in PIDS; do read up rest < /proc/uptime
    read stat < /proc/$p/stat; echo \"$up $stat\"; done; }; look; sleep 5; look";
/// `of WORD`: processes of Pinfold with a word on their command line.
pub(super) const OF: &str = "of() { for p in $(pidof pinfold); do
    tr '\\0' ' ' < /proc/$p/cmdline 2>/dev/null | grep -q -e \"$1\" && echo $p; done; true; }";

/// A running vnode.
struct Vnode {
    name: &'static str,
    asked: f64,
    pus: CpuSet,
    loops: Vec<u32>,
}

pub(super) fn platform(guest: &mut Guest, method: Method) -> Result<String, LabError> {
    mount(guest)?;
    let before = HostState::take(guest)?;
    put(guest, &text(method))?;
    let mut vnodes = up(guest)?;
    check_groups(guest, method, &vnodes)?;
    kept_off(guest)?;
    spin(guest, &mut vnodes)?;
    let got = measure(guest, &vnodes)?;
    check_pins(guest, method, &vnodes)?;
    let said = check_accounting(guest, method)?;

    // Decreased, not increased: a CPU that is left free runs the host's other tasks.
    guest.pinfold(&["emulate", "set", "vnode2", "--speed", "10%"])?;
    vnodes[1].asked = 0.1;
    let changed = measure(guest, &vnodes)?;
    // Busy loops continue to run, without a vnode.
    guest.pinfold(&DOWN)?;
    stop(guest, &vnodes)?;
    same(guest, &before, "down left a trace")?;

    let mut vnodes = up(guest)?;
    spin(guest, &mut vnodes)?;
    signal(guest, "KILL")?;
    check_orphans(guest)?;
    guest.pinfold(&UNDO)?;
    stop(guest, &vnodes)?;
    same(guest, &before, "undo left a trace after a kill")?;
    let percent = |shares: &[f64]| {
        let each: Vec<String> = shares.iter().map(|got| format!("{:.0}", got * 100.0)).collect();
        each.join(", ")
    };
    Ok(format!(
        "vnodes of 1, 1, 2, 4 cores at 75, 40, 60, 25 % got {} % of the guest's time{said}; the \
         second got {:.0} % after `set` to 10 %; removed by `down`, and by `undo` after a kill",
        percent(&got),
        changed[1] * 100.0
    ))
}

pub(super) fn mount(guest: &mut Guest) -> Result<(), LabError> {
    guest.shell(&MOUNT.replace("ROOT", ROOT)).map(|_| ())
}

/// Writes the platform file.
pub(super) fn put(guest: &mut Guest, text: &str) -> Result<(), LabError> {
    guest.shell(&format!("cat > {PLATFORM} <<'END'\n{text}\nEND")).map(|_| ())
}

/// The example under a method, with the first vnode sharing the host's CPU.
fn text(method: Method) -> String {
    let vnodes = EXAMPLE.replace("[[vnode]]\n", "[[vnode]]\nperiod = \"100ms\"\n");
    let share = method == Method::Hogs;
    format!("share-housekeeping = {share}\nmethod = \"{}\"\n{vnodes}", method.name())
}

/// Starts the platform, and returns its vnodes, which must be disjoint.
fn up(guest: &mut Guest) -> Result<Vec<Vnode>, LabError> {
    guest.pinfold(&UP)?;
    let status = status(guest)?;
    let mut vnodes = Vec::new();
    let mut all = CpuSet::new();
    for (name, cores, asked) in ASKED {
        let pus: CpuSet = cores_of(&status, name).iter().filter_map(|core| core.pu).collect();
        if pus.len() != cores || !pus.is_disjoint(&all) {
            let found = format!("{name} has {}, others have {all}", cpus_text(&pus));
            return Err(LabError::wrong("vnodes are not placed apart", found));
        }
        all.add(&pus);
        vnodes.push(Vnode { name, asked, pus, loops: Vec::new() });
    }
    Ok(vnodes)
}

pub(super) fn status(guest: &mut Guest) -> Result<Value, LabError> {
    let text = guest.pinfold(&["emulate", "status", "--json"])?;
    serde_json::from_str(text.trim()).map_err(|_| LabError::wrong("emulate status", text))
}

/// A core of a vnode in `emulate status --json`.
pub(super) struct Core {
    pub(super) pu: Option<pinfold_model::PuId>,
    pub(super) asked: f64,
    pub(super) got: Option<f64>,
}

pub(super) fn cores_of(status: &Value, vnode: &str) -> Vec<Core> {
    let vnodes = status["vnodes"].as_array().into_iter().flatten();
    let cores =
        vnodes.filter(|one| one["vnode"] == vnode).filter_map(|one| one["cores"].as_array());
    let pu = |core: &Value| u32::try_from(core["pu"].as_u64()?).ok().map(pinfold_model::PuId);
    cores
        .flatten()
        .map(|core| Core {
            pu: pu(core),
            asked: core["asked"].as_f64().unwrap_or_default(),
            got: core["got"].as_f64(),
        })
        .collect()
}

/// The groups exist, and have the values that the method set.
fn check_groups(guest: &mut Guest, method: Method, vnodes: &[Vnode]) -> Result<(), LabError> {
    let text = guest.shell(&FILES.replace("ROOT", ROOT))?;
    let files: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once(':')).collect();
    let mut wrong = Vec::new();
    for vnode in vnodes {
        let group = format!("{ROOT}/pinfold-vnode-{}", vnode.name);
        must(format!("{group}/cpuset.cpus.effective"), &vnode.pus.to_string(), &files, &mut wrong);
        if method == Method::Hogs {
            must(format!("{group}/cgroup.type"), "domain", &files, &mut wrong);
            continue;
        }
        must(format!("{group}/cgroup.type"), "domain threaded", &files, &mut wrong);
        for pu in vnode.pus.iter() {
            let core = format!("{group}/pinfold-core-{pu}");
            must(format!("{core}/cgroup.type"), "threaded", &files, &mut wrong);
            must(format!("{core}/cpuset.cpus.effective"), &pu.to_string(), &files, &mut wrong);
            let quota = format!("{:.0} 100000", vnode.asked * 100_000.0);
            if method == Method::Quota {
                must(format!("{core}/cpu.max"), &quota, &files, &mut wrong)
            } else {
                must(
                    format!("{group}/pinfold-burn-{pu}/cgroup.type"),
                    "threaded",
                    &files,
                    &mut wrong,
                )
            }
        }
    }
    if method == Method::Fracas {
        wrong.extend(vnodes.iter().flat_map(|vnode| find_imbalance(vnode, &files)));
    }
    let hogs = guest.shell(HOGS)?;
    // SCHED_FIFO, one on each CPU.
    let wanted = (0..8).map(|pu| format!("1 {pu}\n")).collect::<String>();
    if method == Method::Hogs && hogs != wanted {
        wrong.push(format!("burners by policy and CPU:\n{hogs}"));
    }
    expect_none("the kernel's files", wrong)
}

fn must(path: String, value: &str, files: &BTreeMap<&str, &str>, wrong: &mut Vec<String>) {
    let found = files.get(path.as_str()).copied().unwrap_or("nothing");
    if found != value {
        wrong.push(format!("{path} holds {found:?}, not {value:?}"));
    }
}

/// The supervisor may run only on the host's CPU: kernels before 6.2 reset that when the controller
/// is enabled.
fn kept_off(guest: &mut Guest) -> Result<(), LabError> {
    let list = format!(
        "{OF}; for p in $(of --foreground); do grep Cpus_allowed_list /proc/$p/status; done"
    );
    let list = guest.shell(&list)?;
    if list.split_whitespace().collect::<Vec<_>>() == ["Cpus_allowed_list:", "0"] {
        Ok(())
    } else {
        Err(LabError::wrong("the supervisor's CPUs", list))
    }
}

/// Weights whose ratio does not match the speed.
fn find_imbalance(vnode: &Vnode, files: &BTreeMap<&str, &str>) -> Vec<String> {
    let mut wrong = Vec::new();
    for pu in vnode.pus.iter() {
        let [mine, other] = ["core", "burn"].map(|part: &str| {
            let path =
                format!("{ROOT}/pinfold-vnode-{}/pinfold-{part}-{pu}/cpu.weight", vnode.name);
            files.get(path.as_str()).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0)
        });
        if ((mine / (mine + other)) - vnode.asked).abs() >= 0.001 {
            wrong.push(format!("weights of {} on CPU {pu} are {mine} and {other}", vnode.name));
        }
    }
    wrong
}

/// Busy loops, one for each core of each vnode, started in the vnode by one process.
fn spin(guest: &mut Guest, vnodes: &mut [Vnode]) -> Result<(), LabError> {
    guest.shell("rm -f /tmp/*.pids")?;
    for vnode in vnodes.iter() {
        let (name, cores) = (vnode.name, vnode.pus.len());
        guest.background(&format!(
            "exec pinfold emulate exec {name} -- /bin/busybox sh -c 'for i in $(seq {cores}); do \
             while :; do :; done & echo $!; done > /tmp/{name}.pids; wait'"
        ))?;
    }
    for vnode in vnodes {
        let script =
            SPUN.replace("NAME", vnode.name).replace("CORES", &vnode.pus.len().to_string());
        let pids = guest.shell(&script)?;
        vnode.loops = pids.lines().filter_map(|line| line.trim().parse().ok()).collect();
    }
    Ok(())
}

/// The share of the guest's time of each vnode's loops, per core; it must be close to the requested
/// one, and in that order. If a CPU of the guest waited for this machine too long, it is measured
/// again.
fn measure(guest: &mut Guest, vnodes: &[Vnode]) -> Result<Vec<f64>, LabError> {
    let mut seen = Vec::new();
    for _ in 0..SHARES {
        let shares = shares(guest, vnodes)?;
        let mut pairs = (0..vnodes.len()).flat_map(|a| (0..vnodes.len()).map(move |b| (a, b)));
        if !vnodes
            .iter()
            .zip(&shares)
            .any(|(vnode, got): (&Vnode, &f64)| (vnode.asked - got).abs() > NEAR)
            && !pairs.any(|(a, b)| vnodes[a].asked > vnodes[b].asked && shares[a] <= shares[b])
        {
            return Ok(shares);
        }
        seen.push(format!("{shares:.3?} of the guest's time"));
    }
    Err(LabError::Wrong { what: "vnodes are not as slow as asked".to_owned(), found: seen })
}

/// One measurement of five seconds.
fn shares(guest: &mut Guest, vnodes: &[Vnode]) -> Result<Vec<f64>, LabError> {
    let pids: Vec<String> =
        vnodes.iter().flat_map(|vnode| &vnode.loops).map(u32::to_string).collect();
    let text = guest.shell(&LOOK.replace("PIDS", &pids.join(" ")))?;
    let looks: Vec<(u32, f64, f64)> = text.lines().filter_map(ran).collect();
    let share = |pid: u32| {
        let mut of_pid = looks.iter().filter(|(at, ..)| *at == pid);
        let (_, from, had) = of_pid.next()?;
        let (_, to, has) = of_pid.next()?;
        (to > from).then(|| (has - had) / (to - from))
    };
    let mut shares = Vec::new();
    for vnode in vnodes {
        let each: Option<Vec<f64>> = vnode.loops.iter().map(|pid| share(*pid)).collect();
        let each = each.ok_or_else(|| LabError::wrong("a busy loop has ended", text.clone()))?;
        let cores = f64::from(u32::try_from(each.len()).unwrap_or(1));
        shares.push(each.iter().sum::<f64>() / cores);
    }
    Ok(shares)
}

/// Process id, time of the sample, and CPU time, in seconds: `stat` fields 14, 15.
fn ran(line: &str) -> Option<(u32, f64, f64)> {
    let (head, tail) = line.rsplit_once(')')?;
    let mut head = head.split_whitespace();
    let (up, pid) = (head.next()?.parse().ok()?, head.next()?.parse().ok()?);
    let fields: Vec<&str> = tail.split_whitespace().collect();
    Some((pid, up, (ticks_in(14, &fields)? + ticks_in(15, &fields)?) / 100.0))
}

fn ticks_in(field: usize, fields: &[&str]) -> Option<f64> {
    fields.get(field - 3)?.parse::<f64>().ok()
}

/// The loops may run on the CPUs of their vnode; if each core has a group, on one CPU each.
fn check_pins(guest: &mut Guest, method: Method, vnodes: &[Vnode]) -> Result<(), LabError> {
    let mut wrong = Vec::new();
    for vnode in vnodes {
        let mut used = CpuSet::new();
        for pid in &vnode.loops {
            let list =
                guest.shell(&format!("grep Cpus_allowed_list /proc/{pid}/status | cut -f2"))?;
            let mask = CpuSet::parse_list(list.trim()).unwrap_or_default();
            let is_right = if method == Method::Hogs {
                mask == vnode.pus
            } else {
                mask.len() == 1 && mask.is_disjoint(&used)
            };
            if !is_right {
                wrong.push(format!("loop {pid} of {} may run on {mask}", vnode.name));
            }
            used.add(&mask);
        }
        if used != vnode.pus {
            wrong.push(format!("loops of {} are on {used}, not {}", vnode.name, vnode.pus));
        }
    }
    expect_none("the loops' CPUs", wrong)
}

/// The method's own record in status, if it has one. It covers one or two seconds, in which a CPU
/// of the guest may have waited for this machine: then it is read again.
fn check_accounting(guest: &mut Guest, method: Method) -> Result<String, LabError> {
    let mut wrong = Vec::new();
    for _ in 0..LOOKS {
        let status = status(guest)?;
        wrong.clear();
        let mut worst = 0.0_f64;
        for (name, _, asked) in ASKED {
            for core in cores_of(&status, name) {
                let off = core.got.map(|got| (got - core.asked).abs());
                let is_right = (core.asked - asked).abs() < 1e-6
                    && off.map_or(method == Method::Fracas, |off| off <= ACCOUNT);
                if !is_right {
                    wrong.push(format!("{name}: asked {}, got {:?}", core.asked, core.got));
                }
                worst = worst.max(off.unwrap_or_default());
            }
        }
        if wrong.is_empty() {
            return Ok(if method == Method::Fracas {
                String::new()
            } else {
                format!(
                    " (Pinfold's own figures agree within {:.0} points)",
                    (worst * 100.0).ceil()
                )
            });
        }
        guest.shell("sleep 1")?;
    }
    Err(LabError::Wrong { what: "the speeds by the method's own account".to_owned(), found: wrong })
}

/// A supervisor that was killed leaves no burner, and no socket that responds.
fn check_orphans(guest: &mut Guest) -> Result<(), LabError> {
    guest.shell("usleep 500000")?;
    let burners =
        format!("{HOGS}; cat /dev/null $(find {ROOT} -path '*/pinfold-burn-*/cgroup.threads')");
    let left = guest.shell(&burners)?;
    let asked = guest.run(&["/usr/bin/pinfold", "emulate", "status"])?;
    if left.is_empty() && !asked.success() && asked.stderr_text().contains("no platform is up") {
        Ok(())
    } else {
        Err(LabError::wrong("after the kill", format!("{left}{}", asked.stderr_text())))
    }
}

/// Sends the supervisor a signal.
pub(super) fn signal(guest: &mut Guest, signal: &str) -> Result<(), LabError> {
    guest.shell(&format!("{OF}; kill -{signal} $(of --foreground)")).map(|_| ())
}

/// Ends the loops, which must have run until now, and the processes that wait for them.
fn stop(guest: &mut Guest, vnodes: &[Vnode]) -> Result<(), LabError> {
    let pids: Vec<String> =
        vnodes.iter().flat_map(|vnode| &vnode.loops).map(u32::to_string).collect();
    let script = format!(
        "{OF}; kill -9 {}; while [ -n \"$(of ' exec ')\" ]; do usleep 50000; done",
        pids.join(" ")
    );
    guest.shell(&script).map(|_| ())
}

/// What undo restores.
pub(super) struct HostState {
    snapshot: Snapshot,
    tunables: String,
}

impl HostState {
    pub(super) fn take(guest: &mut Guest) -> Result<Self, LabError> {
        let snapshot = Snapshot::take(guest, ROOT, false)?;
        Ok(Self { snapshot, tunables: guest.shell(TUNABLES)? })
    }
}

/// No Pinfold group, and all tasks and files as before.
pub(super) fn same(guest: &mut Guest, before: &HostState, what: &str) -> Result<(), LabError> {
    let groups = guest.shell(&GROUPS.replace("ROOT", ROOT))?;
    let mut found: Vec<String> = groups.lines().map(|path| format!("{path} is there")).collect();
    found.extend(
        Snapshot::take(guest, ROOT, false)?.differences(&before.snapshot, &BTreeMap::new()),
    );
    let now = guest.shell(TUNABLES)?;
    if now != before.tunables {
        found.push(format!("tunables are\n{now}not\n{}", before.tunables));
    }
    expect_none(what, found)
}

#[cfg(test)]
mod tests {
    use super::ran;

    #[test]
    fn cpu_time_is_user_and_system_time() {
        let line = "73.20 812 (a) b) R 1 1 0 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 1";
        assert_eq!(ran(line), Some((812, 73.2, 2.0)));
        assert_eq!(ran("73.20"), None);
    }
}
