//! Tunables that reduce noise, and services that move interrupts or pages.

use pinfold_host::paths;
use pinfold_model::text::count_noun;
use pinfold_model::tunables::TUNABLES;
use pinfold_model::{CpuSet, PuId, Tid};

use super::{Capability, Context};

/// Frequency control, <https://docs.kernel.org/admin-guide/pm/cpufreq.html>.
pub(super) fn cpufreq(context: &Context<'_>) -> Capability {
    const NAME: &str = "cpufreq";
    let names = match context.names(&paths::cpufreq_dir()) {
        Err(error) => return Capability::unread(NAME, &error),
        Ok(names) => names.unwrap_or_default(),
    };
    let Some(policy) = names.iter().find(|name| name.starts_with("policy")) else {
        return Capability::no(NAME, "the kernel has no frequency policy (usual in a guest)").hint(
            "the hypervisor or the firmware controls frequencies: compare only within a block",
        );
    };
    let read = |file| context.text(&paths::cpufreq_policy_file(policy, file));
    match (read("scaling_driver"), read("scaling_governor")) {
        (Err(error), _) | (_, Err(error)) => Capability::unread(NAME, &error),
        (Ok(driver), Ok(governor)) => {
            let driver = driver.unwrap_or_else(|| "unnamed".to_owned());
            let governor = governor.unwrap_or_else(|| "no".to_owned());
            let capability = Capability::yes(NAME, format!("driver {driver}, governor {governor}"));
            if governor == "performance" {
                capability
            } else {
                capability
                    .hint("`cpupower frequency-set -g performance` makes measurements steadier")
            }
        }
    }
}

/// Cache and bandwidth allocation, <https://docs.kernel.org/filesystems/resctrl.html>.
pub(super) fn resctrl(context: &Context<'_>) -> Capability {
    const NAME: &str = "resctrl";
    match context.knows_filesystem("resctrl") {
        Err(error) => Capability::unread(NAME, error),
        Ok(false) => Capability::no(
            NAME,
            "the CPU or the kernel does not support cache and bandwidth \
                                  allocation",
        ),
        Ok(true) => match context.find_mount("resctrl") {
            Some(directory) => Capability::yes(NAME, format!("mounted at {directory}")),
            None => Capability::partly(NAME, "supported by the kernel, but not mounted")
                .hint(format!("`mount -t resctrl resctrl {}`", paths::resctrl_dir())),
        },
    }
}

/// Result of a search among the process names.
enum Search {
    Found(Tid),
    Absent,
    /// Number of processes that could not be read, and the first error.
    Blind(usize, String),
}

/// Whether irqbalance moves interrupts during measurements.
pub(super) fn irqbalance(context: &Context<'_>) -> Capability {
    const NAME: &str = "irqbalance off";
    let names = match context.names(&paths::proc_dir()) {
        Err(error) => return Capability::unread(NAME, &error),
        Ok(names) => names.unwrap_or_default(),
    };
    let pids: Vec<Tid> = names.iter().filter_map(|name| name.parse().ok().map(Tid)).collect();
    if pids.is_empty() {
        return Capability::partly(NAME, "not known: no processes are visible");
    }
    match search(context, &pids, "irqbalance") {
        Search::Found(pid) => Capability::no(
            NAME,
            format!("irqbalance runs (process {pid}) and may move IRQs onto reserved CPUs"),
        )
        .hint("`systemctl stop irqbalance`, or set IRQBALANCE_BANNED_CPULIST to the vCPUs' CPUs"),
        Search::Absent => {
            Capability::yes(NAME, "no process of that name: IRQs stay where they are")
        }
        Search::Blind(count, error) => Capability::partly(
            NAME,
            format!("not seen, but {} could not be read ({error})", count_noun(count, "process")),
        ),
    }
}

fn search(context: &Context<'_>, pids: &[Tid], wanted: &str) -> Search {
    let (mut blind, mut first) = (0, None);
    for pid in pids {
        match context.text(&paths::process_comm(*pid)) {
            Ok(Some(name)) if name == wanted => return Search::Found(*pid),
            Ok(Some(_) | None) => {}
            Err(error) => {
                blind += 1;
                first.get_or_insert_with(|| crate::reader::describe_error(&error));
            }
        }
    }
    match first {
        None => Search::Absent,
        Some(error) => Search::Blind(blind, error),
    }
}

/// Transparent huge pages, <https://docs.kernel.org/admin-guide/mm/transhuge.html>.
pub(super) fn huge_pages(context: &Context<'_>) -> Capability {
    const NAME: &str = "transparent huge pages";
    let text = match context.text(&paths::thp_file("enabled")) {
        Err(error) => return Capability::unread(NAME, &error),
        Ok(None) => return Capability::no(NAME, "the kernel is built without them"),
        Ok(Some(text)) => text,
    };
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match chosen.map(|(word, _)| word) {
        Some("always") => Capability::yes(NAME, "for all memory"),
        Some("madvise") => Capability::yes(NAME, "for memory with madvise (QEMU uses it)"),
        Some("never") => Capability::no(NAME, "switched off: guests miss the TLB more often")
            .hint(format!("`echo madvise > {}`", paths::thp_file("enabled"))),
        Some(_) | None => Capability::partly(NAME, format!("cannot parse {text:?}")),
    }
}

/// Automatic NUMA balancing: the kernel migrates pages to threads, at the cost of page faults.
pub(super) fn numa_balancing(context: &Context<'_>) -> Capability {
    const NAME: &str = "NUMA balancing off";
    match context.text(&paths::sysctl_kernel("numa_balancing")) {
        Err(error) => Capability::unread(NAME, &error),
        Ok(None) => Capability::yes(NAME, "not built in"),
        Ok(Some(value)) if value == "0" => Capability::yes(NAME, "memory stays where it is put"),
        Ok(Some(_)) => Capability::no(NAME, "the kernel unmaps and moves pages of pinned guests")
            .hint("`sysctl kernel.numa_balancing=0` while guests are pinned"),
    }
}

/// Which files of the tunables of a plan this kernel has.
pub(super) fn tunables(context: &Context<'_>) -> Capability {
    const NAME: &str = "tunables";
    let online = match context.text(&paths::cpu_online()) {
        Err(error) => return Capability::unread(NAME, &error),
        Ok(text) => CpuSet::parse_list(&text.unwrap_or_default()).unwrap_or_default(),
    };
    // The first CPU cannot go offline on most machines, and has no file for it.
    let pu = online.iter().last().unwrap_or(PuId(0));
    let files = || TUNABLES.iter().filter_map(|one| Some((one.key, one.kernel?.path(pu))));
    let lacking = files().filter(|(_, path)| !context.host.exists(path)).map(|(key, _)| key);
    let lacking: Vec<&str> = lacking.collect();
    match (files().count(), lacking.len()) {
        (_, 0) => Capability::yes(NAME, "the kernel has the files of all"),
        (all, none) if all == none => Capability::no(NAME, "the kernel has no file of any"),
        _ => Capability::partly(NAME, format!("the kernel has no {}", lacking.join(", ")))
            .hint("it was built without them, or the hardware lacks them"),
    }
}
