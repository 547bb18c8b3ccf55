//! The IDs of journals: `TID-START` for the first placement of a machine, `TID-START-2` for the
//! second, and so on.

use pinfold_model::{TaskId, Tid};

pub(super) fn of_machine(vm: TaskId) -> String {
    format!("{}-{}", vm.tid, vm.start_time)
}

/// The part of an ID that all journals of a machine share.
pub(super) fn machine(id: &str) -> &str {
    match id.match_indices('-').nth(1) {
        Some((end, _)) => &id[..end],
        None => id,
    }
}

/// The number of a placement among those of its machine, from 1.
fn number(id: &str) -> u64 {
    id.split('-').nth(2).and_then(|number| number.parse().ok()).unwrap_or(1)
}

/// The ID after the existing ones of a machine.
pub(super) fn next(machine: &str, existing: &[String]) -> String {
    match existing.iter().map(|id| number(id)).max() {
        Some(last) => format!("{machine}-{}", last.saturating_add(1)),
        None => machine.to_owned(),
    }
}

/// True if no other of the machine's IDs is later.
pub(super) fn is_latest(id: &str, all: &[String]) -> bool {
    all.iter().all(|other| number(other) <= number(id))
}

/// The process of the machine; `None` if the text is no ID.
pub(super) fn task(id: &str) -> Option<TaskId> {
    let (tid, start_time) = machine(id).split_once('-')?;
    Some(TaskId { tid: Tid(tid.parse().ok()?), start_time: start_time.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_placement_of_a_machine_gets_a_new_id() {
        let vm = TaskId { tid: Tid(812), start_time: 9912 };
        let machine_id = of_machine(vm);
        assert_eq!(next(&machine_id, &[]), "812-9912");
        let all = ["812-9912", "812-9912-9", "812-9912-10"].map(str::to_owned);
        assert_eq!(next(&machine_id, &all), "812-9912-11");
        assert!(is_latest("812-9912-10", &all) && !is_latest("812-9912-9", &all));
        for id in &all {
            assert_eq!(machine(id), "812-9912");
            assert_eq!(task(id), Some(vm));
        }
        assert_eq!(task("calibration"), None);
    }
}
