//! A study whose factor is the affinity of all interrupts, on a host with a disk whose interrupts
//! the kernel manages.
//!
//! Each trial reads the lists of all interrupts itself. Those of the whole host are compared before
//! and after the study, byte for byte.

use std::collections::BTreeMap;

use super::study;
use crate::error::{LabError, expect_none};
use crate::guest::Guest;

/// The program of a trial: its level, and the CPUs of each interrupt.
const LISTS: &str = r#"
for f in /proc/irq/*/smp_affinity_list; do
    n=${f#/proc/irq/}
    echo "$1 ${n%/*} $(cat $f)" >> /tmp/lists.txt
done
echo looked 1
"#;
const INTERRUPTS: &str = r#"
name = "interrupts"
repetitions = 2

[baseline]
interrupts = "as-is"

[[factor]]
name = "interrupts"
knob = "irq:all"
levels = ["as-is", "5"]

[[workload]]
name = "look"
command = ["/bin/busybox", "sh", "/tmp/lists.sh", "{interrupts}"]
lasts = "1s"

[[workload.figure]]
name = "looked"
unit = "count"
regex = "looked (\\d+)"
"#;
/// Two cells and the baseline's twin, in two blocks.
const TRIALS: u64 = 6;
const NOW: &str = "for f in /proc/irq/*/smp_affinity_list; do \
    n=${f#/proc/irq/}; echo as-is ${n%/*} $(cat $f); done";

type Lists = BTreeMap<u32, String>;

/// Movable interrupts are on the CPU of the cell, the others stay and are named, all are restored.
pub(super) fn move_interrupts(guest: &mut Guest) -> Result<String, LabError> {
    study::write(guest, "/tmp/lists.sh", LISTS)?;
    let before = guest.shell(NOW)?;
    study::run(guest, "interrupts", INTERRUPTS, TRIALS)?;
    let after = guest.shell(NOW)?;
    let mut wrong = Vec::new();
    if after != before {
        wrong.push(format!("not restored: {before} is now {after}"));
    }
    let text = guest.shell("cat /tmp/lists.txt")?;
    let usual = of_level(&before, "as-is");
    let as_is = of_level(&text, "as-is");
    if as_is != usual {
        wrong.push(format!("moved without being asked: {as_is:?}, not {usual:?}"));
    }
    let cell = of_level(&text, "5");
    let stay: Vec<&u32> = cell.iter().filter(|(_, list)| *list != "5").map(|(n, _)| n).collect();
    if !stay.iter().all(|number| cell.get(number) == usual.get(number)) {
        wrong.push(format!("neither moved nor left: {cell:?}"));
    }
    if stay.is_empty() || stay.len() >= usual.len() {
        wrong.push(format!("{} of {} interrupts stay", stay.len(), usual.len()));
    }
    let named: Vec<String> = stay.iter().map(ToString::to_string).collect();
    let named = format!("interrupts; not moved: {}", named.join(", "));
    guest.shell("cd /tmp; pinfold study report interrupts.sqlite")?;
    let page =
        guest.shell("grep -o 'interrupts; not moved: [0-9, ]*' /tmp/interrupts.html || true")?;
    if !page.lines().any(|line| line.trim_end() == named) {
        wrong.push(format!("the page does not say {named:?}: {page}"));
    }
    expect_none("interrupts in a study", wrong)?;
    let unmoved = stay.len();
    let count = usual.len() - unmoved;
    Ok(format!(
        "{TRIALS} trials; {count} interrupts on the CPU of their cell, {unmoved} that the kernel \
         manages stay and are named on the page; all lists as before"
    ))
}

/// The CPUs of each interrupt in lines `LEVEL NUMBER LIST` of a level.
fn of_level(text: &str, level: &str) -> Lists {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let is_own = words.next() == Some(level);
            let number = words.next()?.parse().ok()?;
            is_own.then(|| (number, words.next().unwrap_or_default().to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_level_are_read() {
        let text = "as-is 1 0-7\n5 1 5\n5 33 2-3\n";
        assert_eq!(of_level(text, "5"), Lists::from([(1, "5".to_owned()), (33, "2-3".to_owned())]));
        assert_eq!(of_level(text, "as-is"), Lists::from([(1, "0-7".to_owned())]));
    }
}
