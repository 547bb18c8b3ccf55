//! `pinfold doctor`: the capabilities of this host, and suggested changes.

use pinfold_host::{LiveHost, SnapshotHost};
use pinfold_run::emulate::capability;
use pinfold_run::{Exit, Failure, host};
use pinfold_topology::{
    Capability, NOT_IN_CAPTURE, TopologyError, Verdict, capabilities, captured_capabilities,
    has_required_capabilities, schema,
};

use crate::cli::DoctorArgs;
use crate::output::{self, Tone};
use crate::screen;

/// Prints each capability; fails if `pinfold tune` cannot run.
pub fn doctor(arguments: &DoctorArgs) -> Result<(), Failure> {
    let host = host::live()?;
    let found = match &arguments.input {
        Some(path) => captured_capabilities(&capture(&host, path)?),
        None => read_host_capabilities(&host),
    };
    if arguments.json {
        output::print_data(&schema::capabilities_to_json(&found))
    } else {
        report(&found, arguments.input.is_some())
    }
    if has_required_capabilities(&found) {
        return Ok(());
    }
    let missing: Vec<&str> = found
        .iter()
        .filter(|one| one.required && one.verdict == Verdict::No)
        .map(|one| one.name)
        .collect();
    Err(Failure::new(Exit::No, format!("pinfold tune cannot run here: {}", missing.join(", ")))
        .with_hint("see the lines that begin with \"no\" above"))
}

/// The capabilities of this host.
pub fn read_host_capabilities(host: &LiveHost) -> Vec<Capability> {
    let mut found = capabilities(host);
    found.push(capability::slower_cpus(host));
    found
}

/// The files of a captured machine.
fn capture(host: &LiveHost, path: &str) -> Result<SnapshotHost, Failure> {
    pinfold_topology::read_capture(host, path).map_err(|error: TopologyError| {
        let hint = error.hint();
        Failure::from_error(Exit::Input, &error, hint)
    })
}

/// Prints the answer, then each capability.
fn report(found: &[Capability], is_capture: bool) {
    let (tone, text) = if is_capture { of_capture(found) } else { answer(found) };
    output::answer(tone, &text);
    let mut lines = vec![String::new()];
    for one in found {
        let verdict = match one.verdict {
            _ if one.why == NOT_IN_CAPTURE => "unknown",
            Verdict::Yes => "yes",
            Verdict::Partly => "partly",
            Verdict::No => "no",
        };
        let mark = if one.required { " *" } else { "" };
        let words = format!("{}{mark}: {}", one.name, one.why);
        lines.push(screen::label_text(&format!("{verdict:<8}"), &words));
        lines.extend(one.hint.iter().map(|hint| screen::label_text("          → ", hint)));
    }
    lines.push("* pinfold tune needs it".to_owned());
    output::print_data(&lines.join("\n"));
}

/// The answer for a capture. Whether `pinfold tune` can run can only be determined on the machine
/// itself.
fn of_capture(found: &[Capability]) -> (Tone, String) {
    let decided = || found.iter().filter(|one| one.why != NOT_IN_CAPTURE);
    let of = |verdict: Verdict| decided().filter(|one| one.verdict == verdict).count();
    let text = format!(
        "the capture does not show whether pinfold tune can run; it decides {} of {} capabilities: \
         {} are available, {} partly, {} not",
        decided().count(),
        found.len(),
        of(Verdict::Yes),
        of(Verdict::Partly),
        of(Verdict::No)
    );
    (Tone::Mixed, text)
}

/// Whether `pinfold tune` can run, and how many other capabilities there are.
pub fn answer(found: &[Capability]) -> (Tone, String) {
    let counts = format!(
        "of {} capabilities {} are available, {} partly, {} not",
        found.len(),
        count_of(Verdict::Yes, found),
        count_of(Verdict::Partly, found),
        count_of(Verdict::No, found)
    );
    if !has_required_capabilities(found) {
        return (Tone::Bad, format!("pinfold tune cannot run here; {counts}"));
    }
    let tone = if count_of(Verdict::Yes, found) == found.len() { Tone::Good } else { Tone::Mixed };
    (tone, format!("pinfold tune can run here; {counts}"))
}

fn count_of(verdict: Verdict, found: &[Capability]) -> usize {
    found.iter().filter(|one| one.verdict == verdict).count()
}
