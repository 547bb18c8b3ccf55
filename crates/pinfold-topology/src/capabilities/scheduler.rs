//! What decides where threads run inside their masks: the fair scheduler, its cache-aware part, and
//! a BPF scheduler.

use pinfold_host::{osrelease, paths};

use super::{Capability, Context};

/// The first kernel whose fair scheduler is EEVDF,
/// <https://docs.kernel.org/scheduler/sched-eevdf.html>; before it was CFS.
const EEVDF: (u32, u32) = (6, 6);
/// The first kernel whose threads can have slices of their own.
const THREAD_SLICES: (u32, u32) = (6, 12);
/// The first kernel with cache-aware scheduling (`CONFIG_SCHED_CACHE`).
const CACHE_AWARE: (u32, u32) = (7, 2);

/// The fair scheduler by the kernel's version, its slice, and whether it gathers the threads of a
/// process on one L3 cache.
pub(super) fn scheduler(context: &Context<'_>) -> Capability {
    const NAME: &str = "scheduler";
    let release = match context.text(&paths::kernel_release()) {
        Err(error) => return Capability::unread(NAME, &error),
        Ok(None) => return Capability::partly(NAME, "not known: no kernel release"),
        Ok(Some(release)) => release,
    };
    let Some(version) = osrelease::version(&release) else {
        return Capability::partly(NAME, format!("not known: cannot parse {release:?}"));
    };
    let name = if version < EEVDF { "CFS" } else { "EEVDF" };
    let slice = context.text(&paths::debug_sched("base_slice_ns")).ok().flatten();
    let slice = slice.and_then(|text| text.parse::<u64>().ok());
    let slice = slice.map_or_else(String::new, |ns| format!(", base slice {} µs", ns / 1000));
    if version < CACHE_AWARE {
        let slices = if version < THREAD_SLICES {
            "; a thread cannot have a slice of its own (Linux 6.12 and later)"
        } else {
            ""
        };
        let why = format!("{name}{slice}{slices}; not cache-aware (Linux 7.2 and later)");
        return Capability::yes(NAME, why);
    }
    let path = paths::debug_sched("llc_balancing/enabled");
    match context.text(&path) {
        Ok(Some(value)) if matches!(value.as_str(), "0" | "N") => {
            Capability::yes(NAME, format!("{name}{slice}; cache-aware scheduling is off"))
        }
        Ok(Some(_)) => Capability::yes(
            NAME,
            format!(
                "{name}{slice}; cache-aware: draws the threads of a process to one L3 inside their \
                 masks, so it acts on machines that float, not on 1:1 pins"
            ),
        )
        .hint(format!(
            "compare it with pins on this host: `pinfold study run pinning-pays`; `echo 0 > \
             {path}` switches it off"
        )),
        Ok(None) | Err(_) => Capability::yes(
            NAME,
            format!("{name}{slice}; whether it is cache-aware is only visible in debugfs, as root"),
        ),
    }
}

/// Groups of tasks by session, among which nice values do not count,
/// <https://man7.org/linux/man-pages/man7/sched.7.html>.
pub(super) fn autogroup(context: &Context<'_>) -> Capability {
    const NAME: &str = "autogroup off";
    match context.text(&paths::sysctl_kernel("sched_autogroup_enabled")) {
        Err(error) => Capability::unread(NAME, &error),
        Ok(None) => {
            Capability::yes(NAME, "it is not built in: a nice value counts against all tasks")
        }
        Ok(Some(value)) if value == "0" => {
            Capability::yes(NAME, "a nice value counts against all tasks of the same cgroup")
        }
        Ok(Some(_)) => Capability::partly(
            NAME,
            "it is on: a nice value counts only among the tasks of one session, if these are in no \
             cgroup of their own",
        )
        .hint("set kernel.sched_autogroup_enabled=0 or give the tasks cgroups with weights"),
    }
}

/// BPF scheduler, <https://docs.kernel.org/scheduler/sched-ext.html>.
pub(super) fn sched_ext(context: &Context<'_>) -> Capability {
    const NAME: &str = "no BPF scheduler";
    match context.text(&paths::sched_ext_state()) {
        Err(error) => Capability::unread(NAME, &error),
        Ok(None) => Capability::yes(NAME, "sched_ext is not built in"),
        Ok(Some(state)) if state == "disabled" => {
            Capability::yes(NAME, "sched_ext is built in, no BPF scheduler runs")
        }
        Ok(Some(state)) => {
            let name = context.text(&paths::sched_ext_ops()).ok().flatten();
            let name = name.unwrap_or_else(|| "unnamed".to_owned());
            Capability::partly(
                NAME,
                format!(
                    "the BPF scheduler {name} is {state} (sched_ext): within the affinity masks it \
                     decides where threads run and for how long"
                ),
            )
            .hint(
                "stop it before you measure or tune, or state that it was active: `systemctl stop \
                 scx`; under it use either its layers or pins: scx_layered treats every pinned \
                 thread alike, outside its layers",
            )
        }
    }
}
