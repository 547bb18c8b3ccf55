//! The table of actuators × kernels × result, worked out from the table of cases.
//!
//! A cell is what the cases that show an actuator came to under a kernel: passed, failed, told
//! that this kernel has none, or why it was not tried.

use std::collections::BTreeSet;

/// One kind of change, and what shows that it works.
struct Actuator {
    name: &'static str,
    /// What tests show outside the lab.
    elsewhere: &'static str,
    /// Beginnings of the names of the cases that show it.
    cases: &'static [&'static str],
}

const fn actuator(
    name: &'static str,
    elsewhere: &'static str,
    cases: &'static [&'static str],
) -> Actuator {
    Actuator { name, elsewhere, cases }
}

const SIMULATED: &str = "simulated";
const LIVE: &str = "live, simulated";
/// The machine where the tests run has the controller in version 1.
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
const KNOBS: &[&str] = &["knobs of the host"];

const ACTUATORS: [Actuator; 28] = [
    actuator("affinity of threads", LIVE, V2),
    actuator("scheduling policy", LIVE, &["isolate, undo: 2 PUs"]),
    actuator("cpuset, cgroup v1", LIVE, V1),
    actuator("cpuset, cgroup v2", SIMULATED, V2),
    actuator("partition below the root (local)", SIMULATED, &["cgroup v2, cpuset unused: part"]),
    actuator("partition elsewhere (remote)", SIMULATED, &["cgroup v2, cpuset in use: partition"]),
    actuator("movable kernel threads", SIMULATED, V2),
    actuator("vhost and KVM's kernel threads", SIMULATED, &["real KVM"]),
    actuator("SMT, PUs offline", SIMULATED, &["SMT and PUs"]),
    actuator("interrupts, and those that come later", SIMULATED, KNOBS),
    actuator("unbound workqueues", SIMULATED, KNOBS),
    actuator("memory nodes, pages moved", SIMULATED, KNOBS),
    actuator("huge pages", SIMULATED, KNOBS),
    actuator("numa_balancing, THP, KSM", SIMULATED, KNOBS),
    actuator("wake-up latency", SIMULATED, KNOBS),
    actuator("cpu weight and quota, cgroup v2", SIMULATED, KNOBS),
    actuator("cpu shares and quota, cgroup v1", SIMULATED, &[]),
    actuator("frequency and governor", SIMULATED, &["cpufreq"]),
    actuator("CPU speed: stall", "live", &["vnodes: stall"]),
    actuator("CPU speed: hogs", "live", &["vnodes: hogs"]),
    actuator("CPU speed: fracas, cgroup v2", SIMULATED, &["vnodes: fracas"]),
    actuator("CPU speed: fracas, cgroup v1", LIVE_V1, &[]),
    actuator("CPU speed: quota, cgroup v2", SIMULATED, &["vnodes: quota"]),
    actuator("CPU speed: quota, cgroup v1", LIVE_V1, &[]),
    actuator("CPU speed: gov, freq", LIVE, &["vnodes: gov"]),
    actuator("libvirt's own settings", "live: a real libvirtd", &[]),
    actuator("systemd's own lists", SIMULATED, &["systemd"]),
    actuator(
        "shares of caches and memory bandwidth (resctrl)",
        "simulated: no machine here has it",
        &[],
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

/// A case that never booted bears its package's name.
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
    if one.cases.is_empty() {
        let what = if one.elsewhere.starts_with("live") { "live" } else { "simulated" };
        return format!("not tested: no case of the lab; {what} only");
    }
    let mut found = lines.iter().filter(|(case, at, ..)| {
        *at == kernel && one.cases.iter().any(|start| case.starts_with(start))
    });
    let results: BTreeSet<&str> = found.clone().map(|(_, _, result, _)| *result).collect();
    if results.contains("**failed**") {
        return "**failed**".to_owned();
    }
    if found.clone().any(|(.., text)| text.starts_with("told that there can be none")) {
        return "told: this kernel has none".to_owned();
    }
    if results.contains("passed") {
        return "lab".to_owned();
    }
    let why = found.find(|(_, _, result, _)| *result == "skipped").map(|(.., why)| *why);
    why.map_or_else(
        || not_run(one, kernel, lines),
        |why| format!("not tested: {}", why.trim_end_matches([' ', '|'])),
    )
}

/// True for the cloud build of a kernel: `6.1.0-56-cloud-amd64` of `6.1.0-56-amd64`.
fn is_cloud_of(release: &str, kernel: &str) -> bool {
    release.contains("-cloud-") && release.replace("-cloud-", "-") == kernel
}

/// The stage itself tells of a kernel without cgroup v1's cpuset.
fn not_run(one: &Actuator, kernel: &str, lines: &[Line<'_>]) -> String {
    let is_stage = |(case, at, ..): &&Line<'_>| *at == kernel && *case == "cgroup v1: stage";
    let why = match one.cases == V1 && lines.iter().any(|line| is_stage(&line)) {
        true => "this kernel has no cpuset of cgroup v1",
        // It has the same source, and only what that build lacks is tried with it.
        false if lines.iter().any(|(_, at, ..)| is_cloud_of(at, kernel)) => {
            "the cloud build of this version shows it"
        }
        false if ["-arm64", "-riscv64"].iter().any(|name| kernel.ends_with(name)) => {
            "the lab tries it on x86-64 only"
        }
        false => "not run",
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
             | SMT and PUs offline | 6.12 | passed | x |\n\
             | cgroup v2, cpuset in use: partition | 6.1 | passed | told that there can be none |\n\
             | knobs of the host | 6.12 | **failed** | y |\n\
             | cgroup v1: stage | 6.12 | skipped | it is missing |\n\
             | cgroup v2, cpuset in use: undo killed | 6.12+deb13-arm64 | passed | z |\n",
        );
        let row = |name: &str| table.lines().find(|line| line.contains(name)).unwrap();
        assert!(
            table.starts_with("| actuator | without the lab | 6.1 | 6.12 | 6.12+deb13-arm64 |\n")
        );
        let x86 = "not tested: the lab tries it on x86-64 only |";
        assert!(row("SMT").ends_with(&format!("| not tested: not run | lab | {x86}")));
        assert!(row("remote").contains("| told: this kernel has none |"));
        assert!(row("huge pages").ends_with(&format!("| **failed** | {x86}")));
        assert!(row("cgroup v1 | live").ends_with(&format!("has no cpuset of cgroup v1 | {x86}")));
        let none = |what: &str| format!("| not tested: no case of the lab; {what} only ").repeat(3);
        assert!(row("libvirt").ends_with(&(none("live") + "|")));
        assert!(row("resctrl").ends_with(&(none("simulated") + "|")));
        assert!(row("movable").ends_with("| lab |"));
    }
}
