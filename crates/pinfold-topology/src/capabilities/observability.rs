//! Observability: performance counters, tracepoints, BPF.

use pinfold_host::paths;

use super::{Capability, Context, LinuxCapability};

/// Tracers for interruptions by hardware and kernel.
const NOISE_TRACERS: [&str; 3] = ["hwlat", "osnoise", "timerlat"];

/// Hardware performance counters, <https://docs.kernel.org/admin-guide/perf-security.html>.
pub(super) fn perf(context: &Context<'_>) -> Capability {
    const NAME: &str = "perf events";
    let level = match context.text(&paths::sysctl_kernel("perf_event_paranoid")) {
        Err(error) => return Capability::unread(NAME, &error),
        Ok(None) => {
            return Capability::no(NAME, "the kernel is built without perf events");
        }
        Ok(Some(level)) => level,
    };
    let sources = match context.names(&paths::event_sources()) {
        Err(error) => return Capability::unread(NAME, &error),
        Ok(names) => names.unwrap_or_default(),
    };
    let privileged =
        context.has(LinuxCapability::Perfmon) || context.has(LinuxCapability::SysAdmin);
    let reach = if privileged {
        "all threads".to_owned()
    } else {
        format!("own threads (perf_event_paranoid is {level})")
    };
    let denied = !privileged && level.parse::<i32>().is_ok_and(|level| level > 2);
    if denied {
        return Capability::no(NAME, format!("perf_event_paranoid is {level}"))
            .hint("`sysctl kernel.perf_event_paranoid=1`, or run as root");
    }
    match sources.iter().find(|name| is_core_pmu(name)) {
        Some(pmu) => Capability::yes(NAME, format!("hardware counters (PMU {pmu}) of {reach}")),
        None => Capability::partly(
            NAME,
            format!("software events of {reach}; no hardware counters, because there is no PMU"),
        )
        .hint("if this is a guest, its hypervisor must pass the PMU (-cpu host,pmu=on)"),
    }
}

/// True for a core PMU: `cpu` on x86 (hybrid: `cpu_core`), `armv8_pmuv3_0` or `armv8_cortex_a72` on
/// Arm.
fn is_core_pmu(name: &str) -> bool {
    name == "cpu" || name == "cpu_core" || name.starts_with("armv")
}

/// Tracepoints, <https://docs.kernel.org/trace/ftrace.html>.
pub(super) fn tracefs(context: &Context<'_>) -> Capability {
    const NAME: &str = "tracefs";
    match context.knows_filesystem("tracefs") {
        Err(error) => return Capability::unread(NAME, error),
        Ok(false) => return Capability::no(NAME, "the kernel is built without tracing"),
        Ok(true) => {}
    }
    let Some(directory) = context.find_mount("tracefs") else {
        let usual = paths::tracing_dir();
        return Capability::partly(NAME, "supported by the kernel, but not mounted")
            .hint(format!("`mount -t tracefs tracefs {usual}`"));
    };
    match context.text(&format!("{directory}/available_tracers")) {
        Err(error) => Capability::unread(NAME, &error).hint("run as root"),
        Ok(None) => Capability::partly(NAME, format!("{directory} has no tracers")),
        Ok(Some(tracers)) => {
            let noise: Vec<&str> = NOISE_TRACERS
                .into_iter()
                .filter(|name| tracers.split_ascii_whitespace().any(|tracer| tracer == *name))
                .collect();
            let noise = if noise.is_empty() {
                "no noise tracers (hwlat, osnoise)".to_owned()
            } else {
                noise.join(", ")
            };
            Capability::yes(NAME, format!("mounted at {directory}; {noise}"))
        }
    }
}

/// BPF programs with CO-RE (compile once, run everywhere),
/// <https://docs.kernel.org/bpf/index.html>.
pub(super) fn bpf(context: &Context<'_>) -> Capability {
    const NAME: &str = "BPF";
    let unprivileged = match context.text(&paths::sysctl_kernel("unprivileged_bpf_disabled")) {
        Err(error) => return Capability::unread(NAME, &error),
        Ok(None) => return Capability::no(NAME, "the kernel is built without the bpf system call"),
        Ok(Some(value)) => value == "0",
    };
    if !context.host.exists(&paths::btf_vmlinux()) {
        return Capability::partly(NAME, "available, but without kernel type information (BTF)")
            .hint("use a kernel with CONFIG_DEBUG_INFO_BTF");
    }
    if context.has(LinuxCapability::Bpf) || context.has(LinuxCapability::SysAdmin) {
        Capability::yes(NAME, "with kernel type information (BTF)")
    } else if unprivileged {
        Capability::partly(NAME, "unprivileged programs only, no tracing").hint("run as root")
    } else {
        Capability::no(NAME, "this user may not load programs").hint("run as root")
    }
}
