//! The table of actuators × kernels × result, derived from the table of cases.
//!
//! A cell is the result of the cases that cover an actuator under a kernel: passed, failed, not
//! supported by this kernel (and reported), or why it was not tried.

use std::collections::BTreeSet;

/// One kind of change, and the tests that cover it.
struct Actuator {
    name: &'static str,
    /// Tests outside the lab.
    elsewhere: &'static str,
    /// Coverage in the lab.
    lab: LabCoverage,
}

/// Coverage of an actuator in the lab.
enum LabCoverage {
    /// Cases, by the prefixes of their names. One of them must report the text `says`, because a
    /// case may do less under a kernel that supports less, and a row may be older than its case.
    By { cases: &'static [&'static str], says: &'static str },
    /// Not covered, for this reason.
    Not(&'static str),
}

const fn actuator(
    name: &'static str,
    elsewhere: &'static str,
    cases: &'static [&'static str],
) -> Actuator {
    saying(name, elsewhere, cases, "")
}

const fn saying(
    name: &'static str,
    elsewhere: &'static str,
    cases: &'static [&'static str],
    says: &'static str,
) -> Actuator {
    Actuator { name, elsewhere, lab: LabCoverage::By { cases, says } }
}

const fn not_here(name: &'static str, elsewhere: &'static str, why: &'static str) -> Actuator {
    Actuator { name, elsewhere, lab: LabCoverage::Not(why) }
}

const SIMULATED: &str = "simulated";
const LIVE: &str = "live, simulated";
/// The machine that runs the tests has the controller in version 1.
const LIVE_V1: &str = "live where the tests' machine has it so, simulated";
const V1: &[&str] = &["cgroup v1: isolate", "cgroup v1: apply", "cgroup v1: undo"];
const V2: &[&str] = &[
    "cgroup v2, cpuset unused: isolate",
    "cgroup v2, cpuset unused: apply",
    "cgroup v2, cpuset unused: undo",
    "cgroup v2, cpuset in use: isolate",
    "cgroup v2, cpuset in use: apply",
    "cgroup v2, cpuset in use: undo",
];
/// The text with which the case of the tunables reports those that a kernel lacks.
const LACKING: &str = "; not available and reported: ";
const KNOBS: &[&str] = &["tunables of the host"];

const PART: &[&str] = &["cgroup v2, cpuset unused: part"];
const REMOTE: &[&str] = &["cgroup v2, cpuset in use: partition", "longest plan"];
const OFFLINE: &[&str] = &["SMT and CPUs", "longest plan"];
const SHARES: &[&str] = &["cpu controller, cgroup v1"];
/// For a host that has the cpu controller in version 1 from its start.
const NO_CASE: &str = "no case of the lab makes virtual nodes there; the tests' machine shows it";

const ACTUATORS: [Actuator; 37] = [
    actuator("affinity of threads", LIVE, V2),
    saying("scheduling policy", LIVE, &["isolate, undo: 2 CPUs", "longest plan"], "rr 1"),
    actuator("cpuset, cgroup v1", LIVE, V1),
    actuator("cpuset, cgroup v2", SIMULATED, V2),
    saying("partition below the root (local)", SIMULATED, PART, "local, isolated"),
    saying("partition elsewhere (remote)", SIMULATED, REMOTE, "isolated"),
    actuator("movable kernel threads", SIMULATED, V2),
    saying("vhost and KVM's kernel threads", SIMULATED, &["real KVM"], "vhost on"),
    saying("SMT off and on", SIMULATED, OFFLINE, "SMT off"),
    saying("CPUs offline by a plan", SIMULATED, OFFLINE, "offline by the plan"),
    saying("interrupts of a device", SIMULATED, KNOBS, "interrupts of"),
    saying("interrupts that come later", SIMULATED, KNOBS, "new-irqs"),
    saying(
        "interrupts that the kernel manages, reported",
        SIMULATED,
        KNOBS,
        "queues are the kernel's",
    ),
    saying("unbound workqueues", SIMULATED, KNOBS, "workqueues"),
    saying("memory nodes, pages moved", SIMULATED, KNOBS, "on the planned node"),
    saying("huge pages", SIMULATED, KNOBS, "huge-pages"),
    saying("numa_balancing", SIMULATED, KNOBS, "numa-balancing"),
    saying("transparent huge pages", SIMULATED, KNOBS, "thp"),
    saying("KSM", SIMULATED, KNOBS, "ksm"),
    saying("wake-up latency", SIMULATED, KNOBS, "wake-up latency"),
    saying("real-time throttle", SIMULATED, KNOBS, "rt-throttle"),
    not_here(
        "run time of real-time groups (RT_GROUP_SCHED)",
        SIMULATED,
        "Debian builds its kernels without it",
    ),
    saying("cpu weight and quota, cgroup v2", SIMULATED, KNOBS, "cpu-weight"),
    saying("cpu shares and quota, cgroup v1", SIMULATED, SHARES, "shares and quota"),
    actuator("frequency and governor", SIMULATED, &["cpufreq"]),
    actuator("CPU speed: stall", "live", &["vnodes: stall"]),
    actuator("CPU speed: hogs", "live", &["vnodes: hogs"]),
    actuator("CPU speed: fracas, cgroup v2", SIMULATED, &["vnodes: fracas"]),
    not_here("CPU speed: fracas, cgroup v1", LIVE_V1, NO_CASE),
    actuator("CPU speed: quota, cgroup v2", SIMULATED, &["vnodes: quota"]),
    not_here("CPU speed: quota, cgroup v1", LIVE_V1, NO_CASE),
    actuator("disk limit of a vnode, cgroup v2", SIMULATED, &["vnodes: disk limit"]),
    not_here("disk limit of a vnode, cgroup v1", LIVE_V1, NO_CASE),
    actuator("CPU speed: gov, freq", LIVE, &["vnodes: gov"]),
    not_here("libvirt's own settings", "live: a real libvirtd", "libvirt is not in a guest"),
    actuator("systemd's own lists", SIMULATED, &["systemd"]),
    not_here(
        "shares of caches and memory bandwidth (resctrl)",
        "simulated: no machine here has it",
        "QEMU gives no guest the features",
    ),
];

/// A row of the table of cases: its name, kernel, result and text.
type Line<'t> = (&'t str, &'t str, &'t str, &'t str);

/// The table as Markdown, from the text of the table of cases.
pub(crate) fn markdown(cases: &str) -> String {
    let lines: Vec<Line<'_>> = cases.lines().filter_map(line).collect();
    let kernels: BTreeSet<&str> =
        lines.iter().map(|(_, kernel, ..)| *kernel).filter(|name| is_release(name)).collect();
    let mut text = format!("| actuator | without the lab |{}\n", columns(&kernels, |name| name));
    text.push_str(&format!("|---|---|{}\n", columns(&kernels, |_| "---")));
    for one in &ACTUATORS {
        let cells = columns(&kernels, |kernel| cell(one, kernel, &lines));
        text.push_str(&format!("| {} | {} |{cells}\n", one.name, one.elsewhere));
    }
    text
}

fn columns<'t, T: std::fmt::Display>(
    kernels: &BTreeSet<&'t str>,
    show: impl Fn(&'t str) -> T,
) -> String {
    kernels.iter().map(|kernel| format!(" {} |", show(kernel))).collect()
}

/// A case that never booted has the name of its package.
fn is_release(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_digit())
}

fn line(text: &str) -> Option<Line<'_>> {
    let mut parts = text.strip_prefix("| ")?.split(" | ");
    let (case, kernel, result) = (parts.next()?, parts.next()?, parts.next()?);
    let is_head = case == "case" || case.starts_with("---");
    (!is_head).then(|| (case, kernel, result, parts.next().unwrap_or_default()))
}

fn cell(one: &Actuator, kernel: &str, lines: &[Line<'_>]) -> String {
    let (cases, says) = match one.lab {
        LabCoverage::By { cases, says } => (cases, says),
        LabCoverage::Not(why) => return format!("not tested: {why}"),
    };
    let found: Vec<&Line<'_>> = lines
        .iter()
        .filter(|(case, at, ..)| *at == kernel && cases.iter().any(|start| case.starts_with(start)))
        .collect();
    if has_result("**failed**", &found) {
        return "**failed**".to_owned();
    }
    if found.iter().any(|(.., text)| text.starts_with("reported that there can be none")) {
        return "reported: this kernel has none".to_owned();
    }
    let passed = || found.iter().filter(|(_, _, result, _)| *result == "passed");
    // Tunables that a kernel lacks are at the end of the text.
    if passed().any(|(.., text)| text.split(LACKING).next().is_some_and(|done| done.contains(says)))
    {
        return "lab".to_owned();
    }
    if passed().any(|(.., text)| text.contains(says)) {
        return "reported: this kernel has none".to_owned();
    }
    if has_result("passed", &found) {
        return "not tested: its case did not do it under this kernel".to_owned();
    }
    let why = found.iter().find(|(_, _, result, _)| *result == "skipped").map(|(.., why)| *why);
    why.map_or_else(
        || not_run(cases, kernel, lines),
        |why| format!("not tested: {}", why.trim_end_matches([' ', '|'])),
    )
}

fn has_result(word: &str, found: &[&Line<'_>]) -> bool {
    found.iter().any(|(_, _, result, _)| *result == word)
}

/// True for the cloud build of a kernel: `6.1.0-56-cloud-amd64` of `6.1.0-56-amd64`.
fn is_cloud_of(release: &str, kernel: &str) -> bool {
    release.contains("-cloud-") && release.replace("-cloud-", "-") == kernel
}

/// The stage reports a kernel without the cpuset controller of cgroup v1.
fn not_run(cases: &[&str], kernel: &str, lines: &[Line<'_>]) -> String {
    let is_stage = lines.iter().any(|(case, at, ..)| *at == kernel && *case == "cgroup v1: stage");
    let why = if cases == V1 && is_stage {
        "this kernel has no cpuset of cgroup v1"
    } else if lines.iter().any(|(_, at, ..)| is_cloud_of(at, kernel)) {
        // It has the same source, and only what that build lacks is tried with it.
        "the cloud build of this version shows it"
    } else if ["-arm64", "-riscv64"].iter().any(|name| kernel.ends_with(name)) {
        "the lab tries it on x86-64 only"
    } else {
        "not run"
    };
    format!("not tested: {why}")
}

#[cfg(test)]
mod tests {
    use super::markdown;

    #[test]
    fn a_cell_is_what_its_cases_came_to() {
        let table = markdown(
            "| case | kernel | result | what was tried |\n|---|---|---|---|\n\
             | SMT and CPUs offline | 6.12 | passed | SMT off |\n\
             | cgroup v2, cpuset in use: partition | 6.1 | passed | reported that there can be none |\n\
             | tunables of the host | 6.12 | **failed** | y |\n\
             | cgroup v1: stage | 6.12 | skipped | it is missing |\n\
             | cgroup v2, cpuset in use: undo killed | 6.12+deb13-arm64 | passed | z |\n",
        );
        assert!(
            table.starts_with("| actuator | without the lab | 6.1 | 6.12 | 6.12+deb13-arm64 |\n")
        );
        let x86 = "not tested: the lab tries it on x86-64 only |";
        assert!(
            row_of("SMT off", &table).ends_with(&format!("| not tested: not run | lab | {x86}"))
        );
        assert!(row_of("remote", &table).contains("| reported: this kernel has none |"));
        assert!(row_of("huge pages", &table).ends_with(&format!("| **failed** | {x86}")));
        assert!(
            row_of("cgroup v1 | live", &table)
                .ends_with(&format!("has no cpuset of cgroup v1 | {x86}"))
        );
        fn none(why: &str) -> String {
            format!("| not tested: {why} ").repeat(3) + "|"
        }
        assert!(row_of("libvirt", &table).ends_with(&none("libvirt is not in a guest")));
        assert!(row_of("resctrl", &table).ends_with(&none("QEMU gives no guest the features")));
        assert!(row_of("movable", &table).ends_with("| lab |"));
    }

    fn row_of<'t>(name: &str, table: &'t str) -> &'t str {
        table.lines().find(|line| line.contains(name)).unwrap()
    }

    #[test]
    fn a_cell_claims_no_more_than_its_cases_say() {
        let table = markdown(
            "| isolate, undo: 2 CPUs | 6.1 | passed | low-latency on CPUs 1, 58 tasks and back |\n\
             | isolate, undo: 2 CPUs | 6.12 | passed | low-latency-rt on CPU 1 with rr 1 |\n\
             | tunables of the host | 6.1 | passed | thp, ksm, interrupts of 0000:00:01.0 |\n\
             | tunables of the host | 6.12 | passed | ksm; no cpufreq here; not available and reported: thp |\n",
        );
        let undone = "| not tested: its case did not do it under this kernel";
        assert!(row_of("scheduling policy", &table).ends_with(&format!("{undone} | lab |")));
        assert!(
            row_of("| transparent", &table).ends_with("| lab | reported: this kernel has none |")
        );
        assert!(row_of("KSM", &table).ends_with("| lab | lab |"));
        assert!(row_of("workqueues", &table).ends_with(&format!("{undone} {undone} |")));
    }
}
