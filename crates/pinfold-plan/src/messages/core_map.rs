//! A map of the cores that carry vCPUs, with the threads pinned to each of their CPUs.
//!
//! ```text
//!   core 0   CPU 0 vCPU 0   CPU 4 emulator
//!   core 1   CPU 1 vCPU 1   CPU 5 –
//! ```
//!
//! Many cores with the same pattern share a line:
//!
//! ```text
//!   cores 0-7   CPU 0-7 vCPU 0,2,…,14   CPU 16-23 vCPU 1,3,…,15
//! ```

use pinfold_model::text::{count_noun, select_verb};
use pinfold_model::{Core, CpuSet, PuId, Role, Topology};

use crate::layout::Layout;
use crate::text::narrow;

/// Maximum number of lines.
const MOST_LINES: usize = 24;
/// Minimum number of cores with the same pattern that share a line.
const SHARED: usize = 5;

/// A thread that is pinned to a CPU.
#[derive(Clone, PartialEq, Eq)]
enum PinnedThread {
    /// A vCPU: the machine's name if there are several, and the vCPU's number.
    Vcpu(String, u32),
    Other(String),
}

/// A CPU with its threads.
struct Cell {
    cpu: u32,
    occupants: Vec<PinnedThread>,
    is_isolated: bool,
}

/// A core's line.
struct CoreRow {
    number: u32,
    cells: Vec<Cell>,
}

/// The map of `layouts` on the machine of `topology`, in lines of at most `columns` if possible;
/// empty if no vCPU is restricted to a part of the machine's CPUs.
#[must_use]
pub fn picture(layouts: &[Layout], topology: &Topology, columns: usize) -> String {
    let bound: CpuSet = layouts
        .iter()
        .flat_map(|layout| &layout.pins)
        .filter(|pin| pin.role.runs_work())
        .filter_map(|pin| pin.pus.as_ref())
        .filter(|pus| pus.len() < topology.pus.len())
        .collect::<CpuSet>();
    let used: Vec<CoreRow> = topology
        .cores
        .iter()
        .filter(|core| !core.pus.is_disjoint(&bound))
        .map(|core| core_row(layouts, core, topology))
        .collect();
    if used.is_empty() {
        return String::new();
    }
    let mut lines: Vec<(usize, String, Vec<String>)> = Vec::new();
    let mut rest = used.as_slice();
    while !rest.is_empty() {
        let alike = count_alike(rest);
        let shared = if alike < SHARED { 1 } else { alike };
        let (group, after) = rest.split_at(shared);
        lines.push((shared, label(group), cells(group)));
        rest = after;
    }
    let shown = &lines[..lines.len().min(MOST_LINES)];
    let mut text = align(shown, columns);
    let drawn: usize = shown.iter().map(|(cores, ..)| cores).sum();
    let what = if layouts.iter().flat_map(|layout| &layout.pins).any(|pin| pin.role == Role::Task) {
        "task"
    } else {
        "vCPU"
    };
    if used.len() > drawn {
        let more = used.len() - drawn;
        let cores = select_verb(more, "core", "cores");
        text.push_str(&format!("  … and {more} more {cores} with {what}s\n"));
    } else if topology.cores.len() > drawn {
        let idle = count_noun(topology.cores.len() - drawn, "core");
        text.push_str(&format!("  … and {idle} without a {what}\n"));
    }
    text
}

fn core_row(layouts: &[Layout], core: &Core, topology: &Topology) -> CoreRow {
    let number = u32::try_from(core.id.index()).unwrap_or(u32::MAX);
    CoreRow {
        number,
        cells: core
            .pus
            .iter()
            .map(|cpu| Cell {
                cpu: cpu.0,
                occupants: occupants(layouts, cpu, topology),
                is_isolated: topology.isolated.contains(cpu),
            })
            .collect(),
    }
}

/// The threads pinned to a CPU, in the order of the pins.
fn occupants(layouts: &[Layout], cpu: PuId, topology: &Topology) -> Vec<PinnedThread> {
    let mut found = Vec::new();
    for layout in layouts {
        let name = if layouts.len() > 1 { format!("{}/", layout.name) } else { String::new() };
        let here = layout.pins.iter().filter(|pin| {
            pin.pus.as_ref().is_some_and(|pus| pus.contains(cpu) && pus.len() < topology.pus.len())
        });
        found.extend(here.map(|pin| match pin.role.vcpu() {
            Some(index) => PinnedThread::Vcpu(name.clone(), index),
            None => PinnedThread::Other(format!("{name}{}", pin.role.short())),
        }));
    }
    found
}

/// Number of rows, from the first on, that have the same pattern: each number grows by the same
/// amount from core to core.
fn count_alike(rows: &[CoreRow]) -> usize {
    let [first, second, ..] = rows else { return rows.len() };
    let Some(steps) = steps(first, second) else { return 1 };
    let holds = |pair: &[CoreRow]| match pair {
        [a, b] => self::steps(a, b).is_some_and(|found| found == steps),
        _ => false,
    };
    1 + rows.windows(2).take_while(|pair| holds(pair)).count()
}

/// The growth of each number from one core to the next; `None` if they differ in more than numbers.
fn steps(a: &CoreRow, b: &CoreRow) -> Option<Vec<i64>> {
    if step(a.number, b.number) != 1 || a.cells.len() != b.cells.len() {
        return None;
    }
    let mut steps = Vec::new();
    for (a, b) in a.cells.iter().zip(&b.cells) {
        if a.occupants.len() != b.occupants.len() || a.is_isolated != b.is_isolated {
            return None;
        }
        steps.push(step(a.cpu, b.cpu));
        for pair in a.occupants.iter().zip(&b.occupants) {
            match pair {
                (PinnedThread::Vcpu(of, from), PinnedThread::Vcpu(also, to)) if of == also => {
                    steps.push(step(*from, *to));
                }
                (a, b) if a == b => {}
                _ => return None,
            }
        }
    }
    Some(steps)
}

fn step(from: u32, to: u32) -> i64 {
    i64::from(to) - i64::from(from)
}

fn label(group: &[CoreRow]) -> String {
    let noun = select_verb(group.len(), "core", "cores");
    format!("{noun} {}", numbers(&group.iter().map(|row| row.number).collect::<Vec<_>>()))
}

/// A text for each CPU of the cores of a group.
fn cells(group: &[CoreRow]) -> Vec<String> {
    let Some(first) = group.first() else { return Vec::new() };
    first
        .cells
        .iter()
        .enumerate()
        .map(|(at, cell)| {
            let here: Vec<&Cell> = group.iter().filter_map(|row| row.cells.get(at)).collect();
            let cpus: Vec<u32> = here.iter().map(|cell| cell.cpu).collect();
            let names = names(cell, &here);
            let who = match (names.len(), cell.is_isolated) {
                (0, true) => "(isolated)".to_owned(),
                (0, false) => "–".to_owned(),
                (1..=3, _) => names.join(" + "),
                (count, _) => format!("{} + {} more", names[..2].join(" + "), count - 2),
            };
            format!("CPU {} {who}", numbers(&cpus))
        })
        .collect()
}

/// What is on a CPU of each core of a group, where `first` is that of the first core. Where the
/// cores have the same vCPUs, as those that float have, neighbours by number are one part.
fn names(first: &Cell, group: &[&Cell]) -> Vec<String> {
    fn is_same(at: usize, first: &Cell, group: &[&Cell]) -> bool {
        group.iter().all(|cell| vcpu(cell, at) == vcpu(first, at))
    }
    let mut names: Vec<String> = Vec::new();
    let mut at = 0;
    while let Some(occupant) = first.occupants.get(at) {
        let mut end = at + 1;
        match occupant {
            PinnedThread::Vcpu(name, number) => {
                let follows = |end: usize| {
                    let next = PinnedThread::Vcpu(name.clone(), number + narrow(end - at));
                    is_same(at, first, group)
                        && is_same(end, first, group)
                        && first.occupants.get(end) == Some(&next)
                };
                while follows(end) {
                    end += 1;
                }
                let all: Vec<u32> = match end - at {
                    1 => group.iter().filter_map(|cell| vcpu(cell, at)).collect(),
                    _ => (at..end).filter_map(|at| vcpu(first, at)).collect(),
                };
                names.push(format!("{name}vCPU {}", numbers(&all)));
            }
            PinnedThread::Other(name) => names.push(name.clone()),
        }
        at = end;
    }
    names
}

fn vcpu(cell: &Cell, at: usize) -> Option<u32> {
    match cell.occupants.get(at) {
        Some(PinnedThread::Vcpu(_, vcpu)) => Some(*vcpu),
        Some(PinnedThread::Other(_)) | None => None,
    }
}

/// Numbers that grow by the same each time: `7`, `0-7`, `0,2,…,14`.
fn numbers(values: &[u32]) -> String {
    match values {
        [] => String::new(),
        [only] => only.to_string(),
        [first, .., last] if first == last => first.to_string(),
        [first, second, .., last] if first.checked_add(1) == Some(*second) => {
            format!("{first}-{last}")
        }
        [first, second] => format!("{first},{second}"),
        [first, second, .., last] => format!("{first},{second},…,{last}"),
    }
}

/// Lines with aligned cells; a core with more cells than fit takes several lines.
fn align(lines: &[(usize, String, Vec<String>)], columns: usize) -> String {
    const BETWEEN: usize = 3;
    let cells = lines.iter().flat_map(|(.., cells)| cells);
    let width = cells.map(|cell| length(cell)).max().unwrap_or(0);
    let label = lines.iter().map(|(_, label, _)| length(label)).max().unwrap_or(0);
    let room = columns.saturating_sub(2 + label);
    let fit = (room / (width + BETWEEN)).max(1);
    // A cell that does not fit next to its label is below it.
    let is_stacked = width + BETWEEN > room;
    let mut text = String::new();
    for (_, name, cells) in lines {
        if is_stacked {
            text.push_str(&format!("  {name}\n"));
        }
        for (index, part) in cells.chunks(fit).enumerate() {
            let name = if index == 0 { name.as_str() } else { "" };
            let part: Vec<String> = part.iter().map(|cell| format!("{cell:width$}")).collect();
            let line = if is_stacked {
                format!("    {}", part.join("   "))
            } else {
                format!("  {name:label$}   {}", part.join("   "))
            };
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

fn length(text: &str) -> usize {
    text.chars().count()
}
