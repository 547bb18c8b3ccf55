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
use super::text::backing::BackingFault;

const HUGE: u64 = 2 << 20;
/// Bytes that libvirt adds to the guest's memory for the limit of locked pages if none is given.
const VFIO_MEMLOCK_EXTRA: u64 = 1 << 30;
/// Guests smaller than this have few small pages.
const LARGE_GUEST: u64 = 2 << 30;

pub(super) fn check(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let Some(memory) = file.find(&["memory"]).and_then(|node| bytes(node).ok()) else { return };
    let huge = file.find(&["memoryBacking", "hugepages"]).is_some();
    let locked = file.find(&["memoryBacking", "locked"]).is_some();
    if file.vfio || locked {
        hard_limit(file, memory, diagnostics);
    }
    diagnostics.extend(part_of_a_page(file, memory));
    if file.vfio && file.x86 && !huge && memory >= LARGE_GUEST {
        let fault = BackingFault::SmallPages { huge: memory.div_ceil(HUGE) };
        diagnostics.push(file.diagnostic(Severity::Note, &fault, &[]));
    }
    if file.real_time && !huge && !locked && !file.vfio {
        diagnostics.push(file.diagnostic(Severity::Note, &BackingFault::NotLocked, &[]));
    }
}

/// All memory of a guest with VFIO devices is locked, and `<hard_limit>` limits it.
fn hard_limit(file: &File<'_>, memory: u64, diagnostics: &mut Vec<Diagnostic>) {
    let Some(node) = file.find(&["memtune", "hard_limit"]) else { return };
    let Ok(limit) = bytes(node) else { return };
    if limit == 0 || limit > memory {
        return;
    }
    let fault = BackingFault::LockedLimit { by_device: file.vfio };
    let mut diagnostic = file.diagnostic(Severity::Problem, &fault, &[node]);
    let kib = (memory + VFIO_MEMLOCK_EXTRA) >> 10;
    let line = format!("<hard_limit unit='KiB'>{kib}</hard_limit>");
    diagnostic.repairs = vec![Repair::set_element(&["memtune"], "hard_limit", line)];
    diagnostics.push(diagnostic);
}

/// Memory that is no whole number of the huge pages that the file names.
fn part_of_a_page(file: &File<'_>, memory: u64) -> Option<Diagnostic> {
    let node = file.find(&["memoryBacking", "hugepages", "page"])?;
    let page = page_bytes(file.root).ok().flatten().filter(|page| !memory.is_multiple_of(*page))?;
    let fault = BackingFault::PartOfAPage { whole: whole_pages(memory, page) };
    let mut diagnostic = file.diagnostic(Severity::Warning, &fault, &[node]);
    diagnostic.is_final = true;
    Some(diagnostic)
}
