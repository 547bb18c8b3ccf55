//! Keeping a plan true until the machine ends or the user asks to stop.

use pinfold_apply::{Journal, Target, WatchEvent, WatchOptions, Watcher};
use pinfold_host::{Clock, LiveHost};
use pinfold_model::Plan;
use pinfold_vm::Monitor;

use crate::failure::Failure;
use crate::interrupt;
use crate::output::say;
use crate::place::apply_failure;
use crate::target::Asking;

/// A new thread is seen within this time; all threads are looked at once a second.
const TICK_NS: u64 = 20_000_000;

/// Watches; returns when the machine has ended or the user asked to stop.
pub fn watch(
    host: &LiveHost,
    clock: &dyn Clock,
    (plan, target): (&Plan, &Target),
    journal: &mut Journal<'_>,
    monitor: Option<&mut dyn Monitor>,
) -> Result<(), Failure> {
    let mut watcher =
        Watcher::new(host, plan, target, WatchOptions::default()).map_err(|e| apply_failure(&e))?;
    let mut asking = Asking { monitor };
    while !interrupt::requested() {
        let events = watcher.tick(host, journal, &mut asking).map_err(|e| apply_failure(&e))?;
        for event in events {
            if event == WatchEvent::Ended {
                return Ok(());
            }
            say(&sentence(&event));
        }
        clock.sleep_ns(TICK_NS);
    }
    Ok(())
}

/// What happened, for a person.
pub fn sentence(event: &WatchEvent) -> String {
    match event {
        WatchEvent::Placed { task, role, pus } => {
            format!("new thread {} ({role}) placed on {pus}", task.tid)
        }
        WatchEvent::Repaired { task, role, change } => {
            format!("thread {} ({role}) had moved: {change}", task.tid)
        }
        WatchEvent::Contested { task, role, .. } => format!(
            "thread {} ({role}) is moved again and again by somebody else; it is left alone",
            task.tid
        ),
        WatchEvent::Finding(finding) => finding.to_string(),
        WatchEvent::Ended => "the virtual machine has ended".to_owned(),
    }
}
