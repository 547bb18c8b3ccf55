//! A file of the kernel that takes a value in one `write(2)`.
//!
//! Four kinds are compared differently. Lists of CPUs or nodes compare as sets; `cpuset.cpus` has
//! a second file that shows the granted CPUs (version 2 drops without an error what the parent
//! lacks). `cgroup.subtree_control` takes `+name` and shows names. Limits of disks
//! compare as those of the disk that a value names. All others compare as text without surrounding
//! blanks.

use std::io::ErrorKind;

use pinfold_host::mountinfo::Version;
use pinfold_host::{Host, HostError, HostMut, paths};
use pinfold_model::tunables::{Shape, TUNABLES};
use pinfold_model::{CpuSet, Finding};

use super::controllers::{CPU, DISABLE, IO, MEMORY, controller, has_controller, has_cpuset};
use super::group::PREFIX;
use super::{
    ChangeOutcome, ReadBack, Reverted, UndoContext, affinity, cpuset_reset, partition, resctrl,
    write_error,
};
use crate::cpusets::{self, Hierarchy};
use crate::tasks;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    GrantedList,
    List,
    Controllers,
    Partition,
    /// Text in a file of a group.
    Text,
    /// An interrupt's list of CPUs, which the kernel may manage itself.
    Irq,
    /// A hexadecimal mask of CPUs.
    Mask,
    /// One of several words, shown as `always [madvise] never`.
    Choice,
    /// A number that the kernel may round or not reach.
    Number,
    /// Limits of disks: takes those of one disk, and shows a line for each disk that has some.
    Disks,
    /// A tunable of the host.
    Tunable,
    /// A value that a method of emulated speed switches continuously while it works. Any present
    /// value counts as Pinfold's.
    Switched,
}

/// True for a file that is not a group's membership or cpuset. A missing or refused one is a
/// finding.
pub(crate) fn is_tunable(path: &str) -> bool {
    if resctrl::is_inside(path) {
        return false;
    }
    match kind(path) {
        Kind::Irq | Kind::Mask | Kind::Choice | Kind::Number | Kind::Tunable => true,
        Kind::GrantedList
        | Kind::List
        | Kind::Controllers
        | Kind::Partition
        | Kind::Text
        | Kind::Disks
        | Kind::Switched => false,
    }
}

fn kind(path: &str) -> Kind {
    match path.rsplit('/').next() {
        Some("cpuset.cpus") => Kind::GrantedList,
        Some("cpuset.mems") => Kind::List,
        Some("cgroup.subtree_control") => Kind::Controllers,
        Some("cpuset.cpus.partition") => Kind::Partition,
        Some("smp_affinity_list") => Kind::Irq,
        Some("cpu.shares") => Kind::Number,
        Some("io.max") => Kind::Disks,
        Some(name) if name.starts_with("blkio.throttle.") => Kind::Disks,
        Some("cgroup.freeze" | "scaling_setspeed") => Kind::Switched,
        Some(name) if name.starts_with("cpuset.") || name.starts_with("cgroup.") => Kind::Text,
        Some(_) => of_tunable(path),
        None => Kind::Text,
    }
}

/// How the file of a tunable compares.
fn of_tunable(path: &str) -> Kind {
    let mut files = TUNABLES.iter().filter_map(|one| one.kernel);
    match files.find(|file| file.is_at(path)).map(|file| file.shape) {
        Some(Shape::Mask) => Kind::Mask,
        // Compares as CPUs, like the list of an interrupt.
        Some(Shape::List) => Kind::Irq,
        Some(Shape::Choice) => Kind::Choice,
        Some(Shape::Rounded) => Kind::Number,
        Some(Shape::Text | Shape::Integer) | None => Kind::Tunable,
    }
}

/// Maximum number of reads of a file that changes shortly after the write, and the pause between
/// them: a fifth of a second in all.
pub(crate) const READ_BACK_ATTEMPTS: usize = 50;
pub(crate) const LATE_PAUSE_NS: u64 = 4_000_000;

/// True for frequency limits. Newer kernels set them in a worker, so that the file shows the old
/// value for a moment (`drivers/cpufreq/cpufreq.c`, `cpufreq_notifier_max`).
pub(super) fn is_applied_asynchronously(path: &str) -> bool {
    matches!(path.rsplit('/').next(), Some("scaling_min_freq" | "scaling_max_freq"))
}

pub(super) fn apply(
    host: &dyn HostMut,
    path: &str,
    value: &[u8],
) -> Result<ChangeOutcome, HostError> {
    if kind(path) == Kind::Partition {
        return partition::apply(host, path, value);
    }
    match host.write(path, value) {
        Ok(()) => Ok(ChangeOutcome::Done(Vec::new())),
        Err(error) => match report_refusal(&error) {
            Some(finding) => Ok(ChangeOutcome::Refused { error, finding }),
            None => Err(error),
        },
    }
}

fn report_refusal(error: &HostError) -> Option<Finding> {
    let HostError::File { path, .. } = error else { return None };
    if is_nodes_of_others(path) {
        return write_error::of_nodes(error);
    }
    is_tunable(path).then(|| write_error::finding(error)).flatten()
}

/// True for the memory nodes of the machine's own group. A group that Pinfold made accepts no task
/// without them.
fn is_nodes_of_others(path: &str) -> bool {
    let mut parts = path.rsplit('/').skip(1);
    kind(path) == Kind::List && !parts.next().is_some_and(|group| group.starts_with(PREFIX))
}

/// True if a tunable still has the value that was set, or the part of it that the kernel granted.
pub(crate) fn still_holds(
    path: &str,
    now: &[u8],
    value: &[u8],
    original: &[u8],
) -> Result<bool, HostError> {
    if same(kind(path), path, now, value)? {
        return Ok(true);
    }
    Ok(match (kind(path), number(now), number(value), number(original)) {
        (Kind::Number, Some(now), Some(value), Some(original)) => {
            now != original && (value.min(original)..=value.max(original)).contains(&now)
        }
        _ => false,
    })
}

/// What the user can do about a refused tunable; `None` for other files and errors.
pub(crate) fn tunable_hint(error: &HostError) -> Option<String> {
    report_refusal(error)?.hint
}

pub(super) fn verify(
    host: &dyn Host,
    hierarchy: &Hierarchy<'_>,
    path: &str,
    value: &[u8],
) -> Result<ReadBack, HostError> {
    if kind(path) == Kind::Partition {
        return partition::verify(host, path, value);
    }
    let found = host.read(path)?;
    if !same(kind(path), path, &found, value)? {
        // The hardware may have rounded a frequency.
        if kind(path) == Kind::Switched && number(&found).is_some() {
            return Ok(ReadBack::AsAsked);
        }
        if kind(path) == Kind::Number {
            let text = format!(
                "{path} is {}, not the requested {}",
                content_text(&found),
                content_text(value)
            );
            let hint = "reserve huge pages at boot, or before memory is fragmented; the driver \
                        rounds a frequency and keeps it within its limits";
            let finding = Finding::warning("kernel file", text).with_hint(hint);
            return Ok(ReadBack::Given { value: content_text(&found), finding });
        }
        return Ok(ReadBack::Other { wanted: content_text(value), found: content_text(&found) });
    }
    if kind(path) != Kind::GrantedList {
        return Ok(ReadBack::AsAsked);
    }
    let Some(cpusets) = hierarchy.get()? else { return Ok(ReadBack::AsAsked) };
    let group = path.rsplit_once('/').map_or(path, |(group, _)| group);
    let asked = cpusets::parse(path, value)?;
    let got = cpusets::list(host, &cpusets.effective_path(group))?;
    Ok(if got.is_subset(&asked) {
        ReadBack::AsAsked
    } else {
        ReadBack::Other { wanted: asked.to_string(), found: format!("{got} in effect") }
    })
}

pub(super) fn revert(
    past: &UndoContext<'_>,
    path: &str,
    original: &[u8],
) -> Result<Reverted, HostError> {
    let kind = kind(path);
    if kind == Kind::Partition {
        return partition::revert(past, path, original);
    }
    let group = path.rsplit_once('/').map_or(path, |(group, _)| group);
    let unified = past.cpusets.as_ref().filter(|cpusets| cpusets.version() == Version::V2);
    let list = unified.filter(|_| kind == Kind::GrantedList);
    if let Some(cpusets) = list {
        cpuset_reset::repair(past, cpusets, group)?;
    }
    let Some(now) = tasks::ignore_gone(past.host.read(path))? else { return Ok(Reverted::Gone) };
    if kind == Kind::Controllers {
        return disable_both(past, path, group, &now, original);
    }
    if same(kind, path, &now, original)? {
        return Ok(Reverted::Nothing);
    }
    if kind == Kind::List && is_empty(original) && inherits(past, path, &now)? {
        return Ok(Reverted::Near(report_inherited(path, &now)));
    }
    let ours = past.written_values(path).map(|value| same(kind, path, &now, value));
    let mut ours = ours.collect::<Result<Vec<_>, _>>()?.contains(&true);
    if matches!(kind, Kind::Number | Kind::Switched) && number(&now).is_none() {
        return Ok(Reverted::Changed(unreadable(path, &now, original)));
    }
    if kind == Kind::Number && !ours {
        ours = is_as_given(past, path, &now, original)?;
    }
    ours |= kind == Kind::Switched;
    if let Some(cpusets) = list {
        if is_empty(original) && cpuset_reset::is_all(past, cpusets, path, &now)? {
            return Ok(Reverted::Later);
        }
        // A list is empty after an undo disabled and enabled the controller.
        ours |= is_empty(&now);
        if ours && is_empty(original) {
            return cpuset_reset::restore(past, cpusets, group);
        }
    }
    if !ours {
        let text = format!(
            "{path} holds {:?}, which Pinfold did not write; the original {:?} was not restored",
            content_text(&now),
            content_text(original)
        );
        return Ok(Reverted::Changed(Finding::warning("kernel file", text)));
    }
    restore(past, kind, path, original)
}

/// True for a number that the kernel derived from a requested one: the one that was read back or,
/// because its record may be lost in a crash, any between the original and the requested number.
fn is_as_given(
    past: &UndoContext<'_>,
    path: &str,
    now: &[u8],
    original: &[u8],
) -> Result<bool, HostError> {
    if past.normalized_values(path).any(|value| number(value.as_bytes()) == number(now)) {
        return Ok(true);
    }
    for value in past.written_values(path) {
        if still_holds(path, now, value, original)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes a file's original value and reads it back.
fn restore(
    past: &UndoContext<'_>,
    kind: Kind,
    path: &str,
    original: &[u8],
) -> Result<Reverted, HostError> {
    let value = if kind == Kind::Choice { selected_word(original) } else { original };
    match past.host.write(path, value) {
        Err(error) if kind == Kind::List && is_empty(original) && is_full(&error) => {
            return give_all_nodes(past, path);
        }
        answer => answer?,
    }
    let mut now = past.host.read(path)?;
    let looks = if is_applied_asynchronously(path) { READ_BACK_ATTEMPTS } else { 0 };
    for _ in 0..looks {
        if same(kind, path, &now, original)? {
            break;
        }
        past.clock.sleep_ns(LATE_PAUSE_NS);
        now = past.host.read(path)?;
    }
    if same(kind, path, &now, original)? {
        return Ok(Reverted::Restored);
    }
    if kind == Kind::Switched && number(&now).is_some() {
        let text =
            format!("{path} was {} and is now {}", content_text(original), content_text(&now));
        return Ok(Reverted::Near(Finding::note("kernel file", text)));
    }
    Err(unexpected_content(path, &now, original))
}

/// Files of a group that show whether it uses a controller, each with its values if it does not.
/// The values would be lost with the controller.
const USES: [(&[u8], &str, &[&str]); 10] = [
    (CPU, "cpu.weight", &["100"]),
    (CPU, "cpu.max", &["max"]),
    (IO, "io.max", &[]),
    (IO, "io.weight", &["default 100"]),
    (IO, "io.latency", &[]),
    (MEMORY, "memory.max", &["max"]),
    (MEMORY, "memory.high", &["max"]),
    (MEMORY, "memory.low", &["0"]),
    (MEMORY, "memory.min", &["0"]),
    (MEMORY, "memory.swap.max", &["max"]),
];

/// Disables those controllers for a group's children that a step enabled.
fn disable_both(
    past: &UndoContext<'_>,
    path: &str,
    group: &str,
    now: &[u8],
    original: &[u8],
) -> Result<Reverted, HostError> {
    let mut first = Reverted::Nothing;
    for name in [CPU, IO, MEMORY] {
        if past.written_values(path).any(|value| controller(value) == name) {
            let one = disable_unused(past, path, now, original, name)?;
            if !matches!(one, Reverted::Nothing) && !matches!(first, Reverted::Changed(_)) {
                first = one;
            }
        }
    }
    if !past.has_enabled(group) {
        return Ok(first);
    }
    let second = disable(past, path, group, now, original)?;
    Ok(if matches!(second, Reverted::Nothing) { first } else { second })
}

/// Disables the cpuset controller for a group's children, unless another program uses it now.
fn disable(
    past: &UndoContext<'_>,
    path: &str,
    group: &str,
    now: &[u8],
    original: &[u8],
) -> Result<Reverted, HostError> {
    let Some(cpusets) = &past.cpusets else { return Ok(Reverted::Gone) };
    if has_cpuset(original) || !has_cpuset(now) {
        return Ok(Reverted::Nothing);
    }
    if let Some(why) =
        cpuset_reset::obstacle(past.host, cpusets, group, &|path: &str, value: &[u8]| {
            cpuset_reset::is_ours(past, cpusets, path, value)
        })?
    {
        let text = format!("{path} keeps the cpuset controller, because {why}");
        return Ok(Reverted::Changed(Finding::warning("cgroup cpuset", text)));
    }
    past.host.write(path, DISABLE)?;
    let now = past.host.read(path)?;
    if has_cpuset(&now) {
        return Err(unexpected_content(path, &now, original));
    }
    if group == cpusets.root() {
        affinity::add_offline(past, cpusets)?;
    }
    Ok(Reverted::Restored)
}

/// The same for a controller whose values would be lost with it.
fn disable_unused(
    past: &UndoContext<'_>,
    path: &str,
    now: &[u8],
    original: &[u8],
    name: &[u8],
) -> Result<Reverted, HostError> {
    let Some(cpusets) = &past.cpusets else { return Ok(Reverted::Gone) };
    let group = path.rsplit_once('/').map_or(path, |(group, _)| group);
    if has_controller(original, name) || !has_controller(now, name) {
        return Ok(Reverted::Nothing);
    }
    let shown = String::from_utf8_lossy(name);
    for child in cpusets.children(past.host, group)? {
        if uses(past.host, &child, name)? {
            let text = format!("{path} keeps the {shown} controller, because {child} uses it");
            return Ok(Reverted::Changed(Finding::note(format!("cgroup {shown}"), text)));
        }
    }
    past.host.write(path, format!("-{shown}").as_bytes())?;
    let now = past.host.read(path)?;
    let is_left = has_controller(&now, name);
    if is_left { Err(unexpected_content(path, &now, original)) } else { Ok(Reverted::Restored) }
}

/// True if a group has values of a controller, or enables it for its children.
fn uses(host: &dyn HostMut, group: &str, name: &[u8]) -> Result<bool, HostError> {
    let below = tasks::ignore_gone(host.read(&paths::cgroup_subtree_control(group)))?;
    if below.is_some_and(|bytes| has_controller(&bytes, name)) {
        return Ok(true);
    }
    for (_, file, unused) in USES.iter().filter(|(controller, ..)| *controller == name) {
        let bytes = tasks::ignore_gone(host.read(&paths::cgroup_file(group, file)))?;
        // A file that is gone has no value.
        let text = content_text(&bytes.unwrap_or_default());
        let is_unused = text.is_empty()
            || unused.iter().any(|value| {
                text.strip_prefix(value)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            });
        if !is_unused {
            return Ok(true);
        }
    }
    Ok(false)
}

fn number(bytes: &[u8]) -> Option<i64> {
    std::str::from_utf8(bytes).ok()?.trim().parse().ok()
}

/// Reports a value that is no number: its writer and its effect are unknown.
fn unreadable(path: &str, now: &[u8], original: &[u8]) -> Finding {
    let text = format!(
        "{path} holds {:?}, which is not a number; it was left unchanged",
        content_text(now)
    );
    let hint = format!("check the file; the original value was {:?}", content_text(original));
    Finding::warning("kernel file", text).with_hint(hint)
}

fn is_empty(bytes: &[u8]) -> bool {
    bytes.trim_ascii().is_empty()
}

fn same(kind: Kind, path: &str, found: &[u8], value: &[u8]) -> Result<bool, HostError> {
    match kind {
        Kind::GrantedList | Kind::List | Kind::Irq => {
            Ok(cpusets::parse(path, found)? == cpusets::parse(path, value)?)
        }
        Kind::Mask => Ok(mask(path, found)? == mask(path, value)?),
        Kind::Choice => Ok(selected_word(found) == selected_word(value)),
        Kind::Controllers => Ok(has_controller(found, controller(value))),
        Kind::Disks => Ok(disk_limits(found, value) == disk_limits(value, value)),
        Kind::Partition | Kind::Text | Kind::Number | Kind::Tunable | Kind::Switched => {
            Ok(found.trim_ascii() == value.trim_ascii())
        }
    }
}

/// True if the content of a file means this value.
pub(crate) fn holds(path: &str, found: &[u8], value: &[u8]) -> Result<bool, HostError> {
    same(kind(path), path, found, value)
}

/// The limits, in the lines of a file, of the disk that a written value names. Those without effect
/// are left out, as the kernel does: `rbps=max` of version 2, `0` of version 1.
fn disk_limits(lines: &[u8], value: &[u8]) -> Vec<String> {
    let (lines, value) = (String::from_utf8_lossy(lines), String::from_utf8_lossy(value));
    let disk = value.split_ascii_whitespace().next();
    let mut lines = lines.lines().map(str::split_ascii_whitespace);
    let limits = lines.find_map(|mut words| (words.next() == disk).then_some(words));
    let limits = limits.into_iter().flatten();
    limits.filter(|limit| *limit != "0" && !limit.ends_with("=max")).map(str::to_owned).collect()
}

fn mask(path: &str, bytes: &[u8]) -> Result<CpuSet, HostError> {
    CpuSet::parse_mask(String::from_utf8_lossy(bytes).trim())
        .map_err(|error| HostError::Unexpected { path: path.to_owned(), why: error.to_string() })
}

/// The word in brackets, or the only word.
fn selected_word(bytes: &[u8]) -> &[u8] {
    let mut words = bytes.split(u8::is_ascii_whitespace);
    let inner = words.find_map(|word| word.strip_prefix(b"[")?.strip_suffix(b"]"));
    inner.unwrap_or_else(|| bytes.trim_ascii())
}

fn is_full(error: &HostError) -> bool {
    let HostError::File { source, .. } = error else { return false };
    source.kind() == ErrorKind::StorageFull
}

/// True if a group's nodes are those that it would inherit.
fn inherits(past: &UndoContext<'_>, path: &str, now: &[u8]) -> Result<bool, HostError> {
    Ok(cpusets::parse(path, now)? == parent_nodes(past, path)?)
}

/// Before Linux 7.0 a group with tasks cannot return to inheriting its nodes.
fn give_all_nodes(past: &UndoContext<'_>, path: &str) -> Result<Reverted, HostError> {
    let all = parent_nodes(past, path)?.to_string();
    past.host.write(path, all.as_bytes())?;
    Ok(Reverted::Near(report_inherited(path, all.as_bytes())))
}

fn parent_nodes(past: &UndoContext<'_>, path: &str) -> Result<CpuSet, HostError> {
    let group = path.rsplit_once('/').map_or(path, |(group, _)| group);
    let parent = group.rsplit_once('/').map_or(group, |(parent, _)| parent);
    cpusets::list(past.host, &paths::cpuset_mems_effective(parent))
}

fn report_inherited(path: &str, now: &[u8]) -> Finding {
    let text = format!(
        "{path} was empty and is now {}, which has the same effect: this kernel does not accept an empty value while the group has tasks",
        content_text(now)
    );
    Finding::note("cgroup cpuset", text)
}

fn unexpected_content(path: &str, now: &[u8], original: &[u8]) -> HostError {
    HostError::Unexpected {
        path: path.to_owned(),
        why: format!(
            "holds {:?} after {:?} was written back",
            content_text(now),
            content_text(original)
        ),
    }
}

fn content_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}
