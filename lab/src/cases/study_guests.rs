//! Figures 2 to 4 of Kuehn and Baum: the bandwidth of near and far memory, a guest next to another
//! on its node and on the other one; and a guest with its memory on the far node.
//!
//! The cells are those of `studies/numa-interference.toml`, with short runs. While a study runs,
//! all QEMU processes are watched: the masks of their threads, and their anonymous pages on each
//! node, as the kernel counts them.

use std::collections::BTreeSet;

use super::nested;
use super::shapes::{self, ROOT};
use super::study::{run, write};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::Snapshot;

/// Prints a line for each QEMU every three seconds: whether it is the neighbour (whose files have a
/// number), its pages on either node, the masks of its threads.
const WATCH: &str = r#"
while [ ! -e /tmp/watched ]; do
    for p in $(pidof qemu-system-x86_64); do
        p=/proc/$p
        grep -aq 'agent.sock' $p/cmdline || continue
        kind=measured; grep -aq '/1-agent.sock' $p/cmdline && kind=neighbour
        pages=$(awk '/anon=/ && !/file=/ { for (i = 1; i <= NF; i++) if ($i ~ /^N[01]=/) n[substr($i, 2, 1)] += substr($i, 4) }
            END { printf "%d %d", n[0], n[1] }' $p/numa_maps)
        masks=$(cat $p/task/*/status | sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' | sort -u | tr '\n' ' ')
        echo "$kind $pages $masks"
    done 2> /dev/null
    usleep 3000000
done
"#;
/// A study of one cell, which has no baseline and therefore no twin.
const STUDY: &str = r#"
name = "guests"
repetitions = 1
time-limit = "5min"
constraints = ["neighbour_kind == 'guest'"]

[baseline]
neighbour_kind = "thread"

[[factor]]
name = "accelerator"
levels = ["kvm"]

[[factor]]
name = "strategy"
levels = ["low-latency"]

[[factor]]
name = "n_vcpu"
levels = [1]

[[factor]]
name = "neighbour"
levels = ["NEIGHBOUR"]

[[factor]]
name = "neighbour_kind"
levels = ["thread", "guest"]

[[factor]]
name = "memory_node"
levels = ["MEMORY"]

[[workload]]
name = "loop64"
pinload = ["loop64", "--seconds", "3"]
lasts = "4s"

[[workload.figure]]
name = "pass"
unit = "ns"
json = "samples"
where = "labels.of == 'pass'"
"#;
/// The bandwidth of near and far memory, a program of the host: two cells, one of them twice.
const FIGURE_2: &str = r#"
name = "bandwidth"
repetitions = 1

[baseline]
memory_node = "near"

[[factor]]
name = "memory_node"
levels = ["near", "far"]

[[factor]]
name = "n_vcpu"
levels = [1]

[[factor]]
name = "accelerator"
levels = ["native"]

[[workload]]
name = "bandwidth"
pinload = ["bandwidth", "--from", "4K", "--to", "1M", "--steps", "1", "--operations", "read", "--width", "128", "--windows", "30", "--window-us", "1000"]
lasts = "1s"

[[workload.figure]]
name = "bandwidth"
unit = "bytes-per-second"
json = "samples"
where = "probe == 'bandwidth'"
labels = ["labels.operation", "labels.bytes", "labels.placement"]
"#;
/// Sizes from 4 KiB to 1 MiB, and trials with each placement.
const SIZES: usize = 9;
const PLACEMENTS: [(&str, usize); 2] = [("local", 2), ("remote", 1)];
/// Figure of the source, level of the neighbour, and of the measured guest's memory.
const CELLS: [[&str; 3]; 3] = [
    ["figure 3", "same-node", "near"],
    ["figure 4", "other-node", "near"],
    ["far memory", "none", "far"],
];
/// A guest has more pages than this when it has booted: those of its kernel and its loop, or of its
/// memory load.
const LEAST_PAGES: u64 = 20_000;
/// Kills a study as soon as two guests run, and prints how many are left.
const KILL: &str = r#"
cd /tmp; qemus() { pidof qemu-system-x86_64 | wc -w; }
pinfold study run guests.toml --store killed.sqlite > /dev/null 2>&1 & pid=$!
for i in $(seq 3000); do [ $(qemus) -ge 2 ] && break; usleep 100000; done
echo $(qemus); kill -9 $pid; wait $pid || true
for i in $(seq 100); do [ $(qemus) -eq 0 ] && break; usleep 100000; done
echo $(qemus); pinfold undo --all > /dev/null 2>&1
"#;

/// The memory and the threads of both guests are on the nodes of the cell; nothing is left.
pub(super) fn check_places(guest: &mut Guest) -> Result<String, LabError> {
    nested::insert(guest)?;
    write(guest, "/tmp/watch.sh", WATCH)?;
    // The first study downloads and builds nothing, but creates folders.
    let before = Snapshot::take(guest, ROOT, false)?;
    let mut wrong = Vec::new();
    let mut pages = Vec::new();
    near_and_far(guest)?;
    for [figure, neighbour, memory] in CELLS {
        guest.shell("rm -f /tmp/watched; sh /tmp/watch.sh > /tmp/watched.txt 2> /dev/null &")?;
        let study = STUDY.replace("NEIGHBOUR", neighbour).replace("MEMORY", memory);
        let store = format!("{neighbour}-{memory}");
        let ran = run(guest, &store, &study, 1);
        guest.shell("touch /tmp/watched; usleep 3500000")?;
        ran?;
        let text = guest.shell("sort -u /tmp/watched.txt")?;
        let seen = Seen::from_text(&text);
        let faults = seen.faults([neighbour, memory]);
        pages.push(format!("{figure}: {:?} and {:?}", seen.measured, seen.neighbour));
        wrong.extend(faults.into_iter().map(|fault| format!("{figure}: {fault}")));
    }
    expect_none("guests are not on the nodes of their cell", wrong)?;
    let study = STUDY.replace("NEIGHBOUR", "same-node").replace("MEMORY", "near");
    write(guest, "/tmp/guests.toml", &study)?;
    let counts = guest.shell(KILL)?;
    if counts.split_ascii_whitespace().ne(["2", "0"]) {
        return Err(LabError::wrong("guests before and after the study was killed", counts));
    }
    let after = Snapshot::take(guest, ROOT, false)?;
    expect_none("a study left a trace", after.differences(&before, &shapes::near(&after)))?;
    Ok(format!(
        "figure 2: {SIZES} sizes of near and of far memory; \
         threads and pages of the measured guest and of its neighbour, by node: {}; of 2 guests 0 \
         are left when Pinfold is killed",
        pages.join("; ")
    ))
}

/// Each trial of the bandwidth has its memory on the node of its cell, by its own account.
fn near_and_far(guest: &mut Guest) -> Result<(), LabError> {
    run(guest, "bandwidth", FIGURE_2, 3)?;
    guest.shell("cd /tmp; pinfold study export bandwidth.sqlite --out bandwidth > /dev/null")?;
    let rows = guest.shell("grep ',bandwidth,' /tmp/bandwidth/samples.csv")?;
    for (placement, trials) in PLACEMENTS {
        let label = format!("placement={placement}");
        let found: BTreeSet<&str> = rows
            .lines()
            .filter(|row| row.contains(&label))
            .filter_map(|row| Some(row.split_once(&label)?.0))
            .collect();
        if found.len() != trials * SIZES {
            return Err(LabError::wrong("bandwidth of near and far memory", rows));
        }
    }
    Ok(())
}

/// What was seen of the guests of a study.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Most pages on each node.
    measured: [u64; 2],
    neighbour: [u64; 2],
    /// The narrowest masks, each of one CPU, and all of the neighbour's.
    measured_pus: BTreeSet<u32>,
    neighbour_pus: BTreeSet<u32>,
    neighbour_masks: BTreeSet<u32>,
}

impl Seen {
    fn from_text(text: &str) -> Self {
        let mut seen = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [kind, on0, on1, masks @ ..] = words.as_slice() else { continue };
            let (Ok(on0), Ok(on1)) = (on0.parse::<u64>(), on1.parse::<u64>()) else { continue };
            let is_measured = *kind == "measured";
            let most = if is_measured { &mut seen.measured } else { &mut seen.neighbour };
            *most = [on0.max(most[0]), on1.max(most[1])];
            for mask in masks {
                let Ok(pus) = pinfold_model::CpuSet::parse_list(mask) else { continue };
                let single = (pus.len() == 1).then(|| pus.first()).flatten();
                let singles =
                    if is_measured { &mut seen.measured_pus } else { &mut seen.neighbour_pus };
                singles.extend(single.map(|pu| pu.0));
                if !is_measured {
                    seen.neighbour_masks.extend(pus.iter().map(|pu| pu.0));
                }
            }
        }
        seen
    }

    /// What differs from the cell.
    fn faults(&self, [neighbour, memory]: [&str; 2]) -> Vec<String> {
        let homes: BTreeSet<usize> = self.measured_pus.iter().map(node_of).collect();
        let Some(home) = homes.first().copied().filter(|_| homes.len() == 1) else {
            return vec![format!("vCPUs of the measured guest on CPUs {:?}", self.measured_pus)];
        };
        let mut faults = Vec::new();
        let mut check = |what: &str, pages: [u64; 2], wanted: usize| {
            if pages[wanted] < LEAST_PAGES || pages[1 - wanted] > 0 {
                faults.push(format!("{what} has pages {pages:?}, wanted on node {wanted}"));
            }
        };
        check("the measured guest", self.measured, if memory == "far" { 1 - home } else { home });
        if neighbour == "none" {
            return match self.neighbour {
                [0, 0] => faults,
                pages => vec![format!("there is a neighbour, with pages {pages:?}")],
            };
        }
        let there = if neighbour == "same-node" { home } else { 1 - home };
        check("the neighbour", self.neighbour, there);
        let strays = self.neighbour_masks.iter().filter(|pu| node_of(pu) != there);
        faults.extend(strays.map(|pu| format!("a thread of the neighbour may run on CPU {pu}")));
        let shared = self.neighbour_masks.intersection(&self.measured_pus);
        faults.extend(shared.map(|pu| format!("both guests use CPU {pu}")));
        if self.neighbour_pus.len() > 1 {
            faults.push(format!("the neighbour's vCPU was on CPUs {:?}", self.neighbour_pus));
        }
        faults
    }
}

/// Four CPUs per node; the emulator may have a CPU of its own on the same node.
fn node_of(pu: &u32) -> usize {
    usize::from(*pu > 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_held_against_their_cell() {
        fn check(text: &str, cell: [&str; 2], expected: &[&str]) {
            assert_eq!(Seen::from_text(text).faults(cell), expected, "{text} {cell:?}");
        }

        let measured = "measured 100 0 0-1 1 \nmeasured 30000 0 0 1";
        check(measured, ["none", "near"], &[]);
        check(
            measured,
            ["none", "far"],
            &["the measured guest has pages [30000, 0], wanted on node 1"],
        );
        check("measured 0 30000 1", ["none", "far"], &[]);
        check("", ["none", "far"], &["vCPUs of the measured guest on CPUs {}"]);
        let both = |other: &str| format!("{measured}\nneighbour {other}\n");
        check(&both("70000 0 2"), ["same-node", "near"], &[]);
        check(
            &both("70000 0 2"),
            ["none", "near"],
            &["there is a neighbour, with pages [70000, 0]"],
        );
        check(&both("0 70000 4 4-7"), ["other-node", "near"], &[]);
        check(&both("70000 0 1-2"), ["same-node", "near"], &["both guests use CPU 1"]);
        check(
            &both("70000 9 2 4"),
            ["same-node", "near"],
            &[
                "the neighbour has pages [70000, 9], wanted on node 0",
                "a thread of the neighbour may run on CPU 4",
                "the neighbour's vCPU was on CPUs {2, 4}",
            ],
        );
    }
}
