//! Device passthrough, and sources of latency on the host: idle states, polling, swapped or merged
//! memory, BPF schedulers.

use pinfold_host::{HostError, paths};
use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, PuId};

use super::{Capability, Context};

/// Maximum number of groups or devices that are listed by name; the rest is counted.
const NAMED: usize = 8;
/// Exit latency of an idle state above which a hint is given (µs); a short reply of a guest takes
/// as long.
const LONG_WAKE_US: u64 = 50;

/// IOMMU groups: devices that can only be passed through together.
pub(super) fn iommu(context: &Context<'_>) -> Capability {
    const NAME: &str = "IOMMU groups";
    let groups = match iommu_groups(context) {
        Ok(groups) => groups,
        Err(error) => return Capability::unread(NAME, &error),
    };
    let words = parameters(context);
    let said = if words.is_empty() { String::new() } else { format!("; booted with {words}") };
    if groups.is_empty() {
        return Capability::no(NAME, format!("none: no device can be passed through{said}")).hint(
            "enable VT-d or AMD-Vi in the firmware; on Intel boot with intel_iommu=on (AMD needs \
             no parameter); with iommu=pt the host's own devices are not translated",
        );
    }
    let devices: usize = groups.iter().map(|(_, devices)| devices.len()).sum();
    let shared: Vec<String> = groups
        .iter()
        .filter(|(_, devices)| devices.len() > 1)
        .map(|(group, devices)| format!("{group}: {}", devices.join(" ")))
        .collect();
    let together = match shared.len() {
        0 => "each device alone".to_owned(),
        _ => format!("must be passed through together: {}", first(&shared)),
    };
    Capability::yes(
        NAME,
        format!("{} with {}, {together}{said}", groups.len(), count_noun(devices, "device")),
    )
}

/// The number of each group with its devices, ascending.
fn iommu_groups(context: &Context<'_>) -> Result<Vec<(u32, Vec<String>)>, HostError> {
    let names = context.names(&paths::iommu_groups())?.unwrap_or_default();
    let mut groups = Vec::new();
    for name in names {
        if let Ok(number) = name.parse() {
            let mut devices =
                context.names(&paths::iommu_group_devices(&name))?.unwrap_or_default();
            devices.sort();
            groups.push((number, devices));
        }
    }
    groups.sort();
    Ok(groups)
}

/// The boot parameters about the IOMMU.
fn parameters(context: &Context<'_>) -> String {
    let text = context.text(&paths::kernel_cmdline()).ok().flatten().unwrap_or_default();
    let names =
        ["amd_iommu", "intel_iommu", "iommu", "iommu.passthrough", "iommu.strict", "vfio-pci.ids"];
    let words = text.split_ascii_whitespace();
    words
        .filter(|word| names.contains(&word.split('=').next().unwrap_or(word)))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The driver to which a device is bound for passthrough.
pub(super) fn vfio(context: &Context<'_>) -> Capability {
    const NAME: &str = "VFIO";
    if !is_loaded(context, "vfio_pci") {
        let loaded = if is_loaded(context, "vfio") {
            "vfio is loaded, vfio_pci is not"
        } else {
            "not loaded"
        };
        return Capability::no(NAME, loaded)
            .hint("`modprobe vfio-pci`; bind a device by vfio-pci.ids= or driverctl");
    }
    let names = match context.names(&paths::pci_driver("vfio-pci")) {
        Ok(names) => names.unwrap_or_default(),
        Err(error) => return Capability::unread(NAME, &error),
    };
    let mut bound: Vec<String> = names.into_iter().filter(|name| name.contains(':')).collect();
    bound.sort();
    let devices = match bound.len() {
        0 => "no device is bound".to_owned(),
        _ => format!("bound: {}", first(&bound)),
    };
    let unsafe_interrupts = paths::module_parameter("vfio_iommu_type1", "allow_unsafe_interrupts");
    match context.text(&unsafe_interrupts) {
        Ok(Some(value)) if value == "Y" => Capability::partly(
            NAME,
            format!("vfio_pci is loaded, {devices}; allow_unsafe_interrupts is on"),
        )
        .hint(
            "a guest's device can raise any interrupt: disable allow_unsafe_interrupts if the host \
             supports interrupt remapping",
        ),
        Ok(_) => Capability::yes(NAME, format!("vfio_pci is loaded, {devices}")),
        Err(error) => Capability::unread(NAME, &error),
    }
}

fn is_loaded(context: &Context<'_>, module: &str) -> bool {
    context.host.exists(&paths::module_dir(module))
}

/// Kernel samepage merging, <https://docs.kernel.org/admin-guide/mm/ksm.html>.
pub(super) fn same_page_merging(context: &Context<'_>) -> Capability {
    const NAME: &str = "KSM off";
    match context.text(&paths::ksm_run()) {
        Err(error) => Capability::unread(NAME, &error),
        Ok(None) => Capability::yes(NAME, "not built in"),
        Ok(Some(value)) if value == "1" => Capability::no(
            NAME,
            "identical pages of guests are merged, also across nodes: a write to one causes a page \
             fault",
        )
        .hint("--tunable ksm=unmerge, or <nosharepages/> in the domain's memoryBacking"),
        Ok(Some(_)) => Capability::yes(NAME, "pages are not merged"),
    }
}

/// Swap: guest memory that is not locked may be swapped out.
pub(super) fn swap(context: &Context<'_>) -> Capability {
    const NAME: &str = "swap off";
    let text = match context.text(&paths::swaps()) {
        Err(error) => return Capability::unread(NAME, &error),
        Ok(text) => text.unwrap_or_default(),
    };
    // Columns: Filename, Type, Size, Used, Priority; sizes in KiB.
    let areas = text.lines().skip(1).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let sizes: Vec<(u64, u64)> = areas.map(|area| (number(&area, 2), number(&area, 3))).collect();
    if sizes.is_empty() {
        return Capability::yes(NAME, "no swap area");
    }
    let text = format!(
        "{} of {} MiB in use: unlocked memory of a guest may be swapped",
        sum(&sizes, |area| area.1),
        sum(&sizes, |area| area.0)
    );
    Capability::partly(NAME, text)
        .hint("lock the guest's memory: <memoryBacking><locked/>, or -overcommit mem-lock=on")
}

fn sum(sizes: &[(u64, u64)], of: fn(&(u64, u64)) -> u64) -> u64 {
    sizes.iter().map(of).sum::<u64>() / 1024
}

fn number(area: &Vec<&str>, column: usize) -> u64 {
    area.get(column).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
}

/// Idle states of the CPUs, <https://docs.kernel.org/admin-guide/pm/cpuidle.html>.
pub(super) fn idle_states(context: &Context<'_>) -> Capability {
    const NAME: &str = "C-states";
    match deepest(context) {
        Err(error) => Capability::unread(NAME, &error),
        Ok(None) => Capability::no(NAME, "the kernel has no idle driver (usual in a guest)")
            .hint("the hypervisor or the firmware controls idle states"),
        Ok(Some((driver, state, wake_us))) => {
            let text = format!("driver {driver}, deepest state {state}: {wake_us} µs to leave it");
            if wake_us <= LONG_WAKE_US {
                return Capability::yes(NAME, text);
            }
            Capability::partly(NAME, text)
                .hint("--tunable wake-up-us=N keeps a plan's CPUs out of deeper states")
        }
    }
}

/// Driver, and name and exit latency (µs) of the enabled state with the highest exit latency on any
/// CPU.
fn deepest(context: &Context<'_>) -> Result<Option<(String, String, u64)>, HostError> {
    let Some(driver) = context.text(&paths::cpuidle_file("current_driver"))? else {
        return Ok(None);
    };
    let online = context.text(&paths::cpu_online())?.unwrap_or_default();
    let online = CpuSet::parse_list(&online).unwrap_or_else(|_| CpuSet::single(PuId(0)));
    let mut deepest = None;
    for pu in online.iter() {
        let names = context.names(&paths::cpu_file(pu, "cpuidle"))?.unwrap_or_default();
        for state in names.iter().filter(|name| name.starts_with("state")) {
            let read =
                |file: &str| context.text(&paths::cpu_file(pu, &format!("cpuidle/{state}/{file}")));
            let wake_us = read("latency")?.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            let is_off = read("disable")?.is_some_and(|text| text != "0");
            if !is_off && deepest.as_ref().is_none_or(|(_, longest)| wake_us > *longest) {
                deepest = Some((read("name")?.unwrap_or_else(|| state.clone()), wake_us));
            }
        }
    }
    Ok(deepest.map(|(state, wake_us)| (driver, state, wake_us)))
}

/// How long KVM polls before a halted vCPU blocks,
/// <https://docs.kernel.org/virt/kvm/halt-polling.html>.
pub(super) fn halt_polling(context: &Context<'_>) -> Capability {
    const NAME: &str = "halt polling";
    let longest = match read(context, "halt_poll_ns") {
        Err(error) => return Capability::unread(NAME, &error),
        Ok(None) => return Capability::no(NAME, "the module kvm is not loaded"),
        Ok(Some(text)) => text,
    };
    if longest == "0" {
        return Capability::partly(
            NAME,
            "off: a vCPU that halts sleeps at once, and its wake-up takes a context switch",
        )
        .hint(format!(
            "`echo 200000 > {}`, where CPUs are not shared",
            paths::module_parameter("kvm", "halt_poll_ns")
        ));
    }
    let more = [("halt_poll_ns_grow", "grow"), ("halt_poll_ns_shrink", "shrink")];
    let more: String = more
        .into_iter()
        .filter_map(|(name, word)| {
            Some(format!(", {word} {}", read(context, name).ok().flatten()?))
        })
        .collect();
    Capability::yes(NAME, format!("KVM polls for up to {longest} ns when a vCPU halts{more}"))
}

fn read(context: &Context<'_>, name: &str) -> Result<Option<String>, HostError> {
    context.text(&paths::module_parameter("kvm", name))
}

/// The first items of a list; the others are counted.
fn first(items: &[String]) -> String {
    let shown = items.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match items.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
