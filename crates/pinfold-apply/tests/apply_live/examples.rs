//! The example of this crate pins its child, restores it and leaves nothing behind.

use pinfold_host::{Host as _, LiveHost, proc_stat};
use pinfold_model::Tid;

#[test]
fn apply_and_undo_pins_a_child_and_restores_its_mask() {
    let _turn = crate::take_turn();
    let host = LiveHost::new().unwrap();
    let mask = host.affinity(Tid(0)).unwrap();
    if mask.len() < 2 {
        return eprintln!("skipped: only one CPU is available");
    }
    let text = crate::example::run("apply_and_undo", &[]);
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    assert_eq!(value("before: "), mask.to_string(), "{text}");
    assert!(!value("applied: ").is_empty(), "{text}");
    assert_ne!(value("pinned: "), mask.to_string(), "{text}");
    assert_eq!(value("after: "), mask.to_string(), "{text}");
    assert!(value("undone: ").ends_with("failed: 0"), "{text}");
    let child = value("applied: set affinity of task ").split(' ').next().unwrap();
    let child = proc_stat::read(&host, Tid(child.parse().unwrap())).unwrap();
    assert!(child.is_none_or(|stat| stat.comm != "sleep"), "{text}");
}
