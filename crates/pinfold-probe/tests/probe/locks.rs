//! Locks of a program of our own, which counts its calls itself.

use crate::common::known::KnownProgram;
use pinfold_host::{FutexKind, LiveHost};
use pinfold_model::Role;
use pinfold_probe::locks::{FramePointers, Locks, LocksError, start};
use pinfold_probe::symbols::Table;

/// Four threads that take one lock a hundred times each, watched; with what the program says:
/// waits, wakes, address of the word.
fn fight(stacks: bool) -> Result<(Locks, [u64; 3]), String> {
    let host = LiveHost::new().unwrap();
    let mut known = KnownProgram::start(&["locks", "4", "100"]);
    let threads = [(known.child.task(), Role::Emulator)];
    let watching = match start(&host, &threads, stacks) {
        Ok(watching) => watching,
        Err(LocksError::Unavailable { why }) => return Err(why),
        Err(error) => panic!("{error}"),
    };
    let mut input = known.child.stdin().unwrap();
    let said = known.go(&mut input);
    let found = watching.stop(&host).unwrap();
    let words: Vec<&str> = said.split(' ').collect();
    let [waits, wakes, address] = words[..] else { panic!("{said}") };
    let address = u64::from_str_radix(address, 16).unwrap();
    Ok((found, [waits.parse().unwrap(), wakes.parse().unwrap(), address]))
}

#[test]
fn each_call_for_a_known_lock_is_counted() {
    let (found, [waits, wakes, address]) = match fight(false) {
        Ok(found) => found,
        Err(why) => return println!("skipped: {why}"),
    };
    assert!(waits > 0, "nobody had to wait");
    // The threads of the fight were born while it was watched.
    let [emulator] = &found.roles[..] else { panic!("{found:?}") };
    assert_eq!(emulator.threads, 5);
    let word = found.words.iter().find(|one| one.address == address).unwrap();
    assert_eq!((word.kind, word.spent.count), (FutexKind::Lock, waits));
    assert_eq!(word.spent.open, 0);
    assert_eq!(word.name.as_deref(), Some("contended_word"));
    assert_eq!(emulator.spent[&FutexKind::Lock].count, waits);
    // The C library wakes whoever joins a thread, too, through its own calls.
    assert!(emulator.spent[&FutexKind::Wake].count >= wakes);
    assert!(word.spent.max_ns <= word.spent.sum_ns && word.spent.sum_ns > 0);
    assert!(found.sites.is_none());
    let figures = found.figures();
    let calls = figures
        .iter()
        .find(|one| one.labels["quantity"] == "calls" && one.labels["kind"] == "lock");
    assert_eq!(calls.unwrap().samples[0], waits as f64);
}

#[test]
fn the_call_site_of_a_known_lock_has_its_functions_names() {
    let (found, [waits, _, _]) = match fight(true) {
        Ok(found) => found,
        Err(why) => return println!("skipped: {why}"),
    };
    let sites = found.sites.unwrap();
    assert_eq!(sites.missing, 0);
    let of_lock: Vec<_> = sites.sites.iter().filter(|one| one.kind == FutexKind::Lock).collect();
    assert_eq!(of_lock.iter().map(|one| one.spent.count).sum::<u64>(), waits);
    // Where the system call is the C library's, its function comes first and hides its caller.
    let expected = ["take_the_lock", "fight_for_the_lock", "fighter"];
    for site in of_lock {
        let names: Vec<&str> = site.frames.iter().map(String::as_str).collect();
        if cfg!(target_arch = "x86_64") {
            assert_eq!(names[..2], ["futex_call", "wait_for_the_lock"]);
        }
        let first = names.iter().position(|name| *name == expected[0]);
        let first = first.unwrap_or_else(|| panic!("{names:?}"));
        assert_eq!(names[first..first + 3], expected, "{names:?}");
    }
    let verdict = sites.frame_pointers;
    assert_eq!(verdict, Some(FramePointers::Kept));
    let own = sites.tables.iter().find(|(file, _)| file.ends_with("/known")).unwrap();
    assert_eq!(*own.1, Table::Whole);
}

#[test]
fn a_program_that_dies_meanwhile_keeps_its_account() {
    let host = LiveHost::new().unwrap();
    let mut known = KnownProgram::start(&["locks", "2", "1000000"]);
    let threads = [(known.child.task(), Role::Emulator)];
    let watching = match start(&host, &threads, true) {
        Ok(watching) => watching,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut input = known.child.stdin().unwrap();
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    assert!(crate::common::eventually(|| crate::common::further_threads(&host, known.child.pid())
        .len()
        == 2));
    // Both have had the lock by now: one of them had to wait.
    assert!(crate::common::eventually(
        || crate::common::work_ns(&host, known.child.pid()) > 10 * crate::common::MS
    ));
    known.child.kill().unwrap();
    let found = watching.stop(&host).unwrap();
    let spent = found.roles[0].spent[&FutexKind::Lock];
    assert!(spent.count > 0, "{found:?}");
}
