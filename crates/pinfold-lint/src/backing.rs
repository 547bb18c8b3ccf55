//! The pages of the guest's memory: huge pages, locked pages, and limits on both.
//!
//! Sources: libvirt's formatdomain ("Memory Backing", "Memory Tuning"), the kernel's
//! `Documentation/driver-api/vfio.rst` and `Documentation/admin-guide/mm/hugetlbpage.rst`.

use pinfold_model::Severity;
use pinfold_plan::domain_file::{bytes, page_bytes};
use pinfold_plan::locality::whole_pages;

use super::Diagnostic;
use super::properties::File;
use super::repair::Repair;

const HUGE: u64 = 2 << 20;
/// Bytes that libvirt adds to the guest's memory for the limit of locked pages if none is given.
const FOR_DEVICES: u64 = 1 << 30;
/// Guests smaller than this have few small pages.
const LARGE_GUEST: u64 = 2 << 30;

pub(super) fn check(file: &File<'_>, flaws: &mut Vec<Diagnostic>) {
    let Some(memory) = file.find(&["memory"]).and_then(|node| bytes(node).ok()) else { return };
    let huge = file.find(&["memoryBacking", "hugepages"]).is_some();
    let locked = file.find(&["memoryBacking", "locked"]).is_some();
    if file.vfio || locked {
        hard_limit(file, memory, flaws);
    }
    flaws.extend(part_of_a_page(file, memory));
    if file.vfio && file.x86 && !huge && memory >= LARGE_GUEST {
        flaws.push(small_pages(file, memory));
    }
    if file.real_time && !huge && !locked && !file.vfio {
        let mut flaw = file.flaw(
            (Severity::Note, "memory-not-locked"),
            (
                "the vCPUs are real-time threads, and the host may swap, merge or move the guest's pages",
                "a vCPU that touches such a page stops until the host has brought it back",
            ),
            &[],
        );
        flaw.instead = vec![
            "<memoryBacking><nosharepages/><locked/></memoryBacking>".to_owned(),
            "and a <hard_limit> in <memtune>: without it the limit on locked memory is gone"
                .to_owned(),
        ];
        flaws.push(flaw);
    }
}

/// All memory of a guest with VFIO devices is locked, and `<hard_limit>` limits it.
fn hard_limit(file: &File<'_>, memory: u64, flaws: &mut Vec<Diagnostic>) {
    let Some(node) = file.find(&["memtune", "hard_limit"]) else { return };
    let Ok(limit) = bytes(node) else { return };
    if limit == 0 || limit > memory {
        return;
    }
    let why = if file.vfio { "a device of the host locks" } else { "the file locks" };
    let mut flaw = file.flaw(
        (Severity::Problem, "locked-limit"),
        (
            format!("{why} all of the guest's memory, and hard_limit allows no more than that"),
            "libvirt makes hard_limit the limit on locked pages too: QEMU needs some for itself, and the \
             machine does not start, or is killed when it reaches the limit",
        ),
        &[node],
    );
    let kib = (memory + FOR_DEVICES) >> 10;
    let line = format!("<hard_limit unit='KiB'>{kib}</hard_limit>");
    flaw.repairs = vec![Repair::put(&["memtune"], "hard_limit", line)];
    flaws.push(flaw);
}

/// Memory that is no whole number of the huge pages that the file names.
fn part_of_a_page(file: &File<'_>, memory: u64) -> Option<Diagnostic> {
    let node = file.find(&["memoryBacking", "hugepages", "page"])?;
    let page = page_bytes(file.root).ok().flatten().filter(|page| !memory.is_multiple_of(*page))?;
    let mut flaw = file.flaw(
        (Severity::Warning, "huge-page-multiple"),
        (
            "the guest's memory is no whole number of its huge pages",
            "QEMU does not start with it, or takes one page more",
        ),
        &[node],
    );
    flaw.is_final = true;
    flaw.instead = vec![whole_pages(memory, page)];
    Some(flaw)
}

fn small_pages(file: &File<'_>, memory: u64) -> Diagnostic {
    let mut flaw = file.flaw(
        (Severity::Note, "no-huge-pages"),
        (
            "the memory of a guest with a device of the host is made of small pages",
            "the device's DMA and the guest's page tables need an entry for every 4 KiB, unless the \
             kernel finds large pages (THP); the machine starts slowly, and misses of the TLB cost more",
        ),
        &[],
    );
    flaw.instead = vec![
        "<memoryBacking><hugepages/></memoryBacking>".to_owned(),
        format!(
            "and on the host before it starts: `sysctl vm.nr_hugepages={}` (more if others use them)",
            memory.div_ceil(HUGE)
        ),
    ];
    flaw
}
