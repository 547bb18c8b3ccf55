//! The guest's clocks and timers.
//!
//! Sources: QEMU's `docs/system/i386/hyperv.rst` (hv-time, hv-stimer), libvirt's formatdomain
//! ("Time keeping"), the kernel's `Documentation/virt/kvm/x86/timekeeping.rst`.

use pinfold_model::Severity;

use super::Diagnostic;
use super::properties::File;
use super::repair::Repair;
use super::text::timers::TimerFault;
use pinfold_plan::domain_file::Windows;

const CLOCK: &[&str] = &["clock offset='utc'"];

pub(super) fn check(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    if !file.x86 {
        return;
    }
    hpet(file, diagnostics);
    hypervclock(file, diagnostics);
    ticks(file, diagnostics);
    invariant_tsc(file, diagnostics);
}

fn hpet(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let timer = file.timer("hpet");
    let asked = timer.and_then(|timer| timer.attribute("present"));
    let (severity, written) = match (asked, file.windows) {
        (Some("yes"), _) => (Severity::Warning, true),
        (None, Windows::Yes) => (Severity::Note, false),
        (Some(_), _) | (None, Windows::No | Windows::Likely) => return,
    };
    let nodes: Vec<_> = timer.or(file.find(&["clock"])).into_iter().collect();
    let mut diagnostic = file.diagnostic(severity, &TimerFault::Hpet { written }, &nodes);
    let line = "<timer name='hpet' present='no'/>";
    diagnostic.repairs = vec![Repair::put_named(CLOCK, "timer", "hpet", line)];
    diagnostics.push(diagnostic);
}

fn hypervclock(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let timer = file.timer("hypervclock");
    let passed = file.find(&["features", "hyperv"]).and_then(|node| node.attribute("mode"));
    if timer.is_some_and(|timer| timer.attribute("present") != Some("no"))
        || (timer.is_none() && passed == Some("passthrough"))
    {
        return;
    }
    let severity = match file.windows {
        Windows::Yes => Severity::Warning,
        Windows::Likely => Severity::Note,
        Windows::No => return,
    };
    let nodes: Vec<_> = timer.or(file.find(&["clock"])).into_iter().collect();
    let fault = TimerFault::Hypervclock { guest: file.guest() };
    let mut diagnostic = file.diagnostic(severity, &fault, &nodes);
    let line = "<timer name='hypervclock' present='yes'/>";
    diagnostic.repairs = vec![Repair::put_named(CLOCK, "timer", "hypervclock", line)];
    diagnostics.push(diagnostic);
}

/// Windows without synthetic timers counts the ticks of the RTC.
fn ticks(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let rtc = file.timer("rtc");
    let caught_up = rtc.and_then(|timer| timer.attribute("tickpolicy")) == Some("catchup");
    let hyperv = file.find(&["features", "hyperv"]);
    let synthetic = hyperv.is_some_and(|hyperv| {
        hyperv.attribute("mode") == Some("passthrough")
            || super::enlightenments::has(hyperv, "stimer")
    });
    if file.windows != Windows::Yes || caught_up || synthetic {
        return;
    }
    let nodes: Vec<_> = rtc.or(file.find(&["clock"])).into_iter().collect();
    let mut diagnostic = file.diagnostic(Severity::Note, &TimerFault::Ticks, &nodes);
    diagnostic.repairs = vec![
        Repair::put_named(CLOCK, "timer", "rtc", "<timer name='rtc' tickpolicy='catchup'/>"),
        Repair::put_named(CLOCK, "timer", "pit", "<timer name='pit' tickpolicy='delay'/>"),
    ];
    diagnostics.push(diagnostic);
}

/// A guest with host devices cannot be migrated, so an invariant TSC loses nothing.
fn invariant_tsc(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let Some(cpu) = file.find(&["cpu"]) else { return };
    let said = file
        .all(&["cpu"], "feature")
        .into_iter()
        .any(|feature| feature.attribute("name") == Some("invtsc"));
    let passthrough = cpu.attribute("mode") == Some("host-passthrough");
    if !file.vfio || !passthrough || said || cpu.attribute("migratable") == Some("off") {
        return;
    }
    let mut diagnostic = file.diagnostic(Severity::Note, &TimerFault::InvariantTsc, &[cpu]);
    diagnostic.repairs = vec![Repair::put_named(
        &["cpu"],
        "feature",
        "invtsc",
        "<feature policy='require' name='invtsc'/>",
    )];
    diagnostics.push(diagnostic);
}
