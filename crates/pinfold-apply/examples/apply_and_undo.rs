//! Pins a process that it starts, as a plan says, with a journal, and undoes that.
//!
//! `cargo run -p pinfold-apply --example apply_and_undo`

#![expect(clippy::print_stdout, reason = "the example prints its result")]

use pinfold_apply::{Journals, NewJournal, Target, apply, no_observer, undo};
use pinfold_host::{Host as _, LiveHost, SystemClock, files::StateDir, process::Spawn};
use pinfold_model::{Request, Role, Speed, VnodeRequest};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let request = Request::from_vnodes(vec![VnodeRequest::processes("sleep", 1, Speed::FULL)]);
    let plan = pinfold_plan::plan("compact", &topology, &request)?;
    let plan_json = pinfold_plan::schema::to_json(&plan);

    // Dropping the child kills it, also after an error.
    let child = Spawn::new("sleep").args(["60"]).die_with_parent(true).start()?;
    let target = Target::new(child.pid(), vec![(child.task(), Role::Task)]);
    println!("before: {}", host.affinity(child.pid())?);

    let folder = tempfile::tempdir()?;
    let state = StateDir::open(&folder.path().to_string_lossy())?;
    let journals = Journals::open(&state, &SystemClock)?;
    let new = NewJournal { vm_name: "sleep", plan: &plan_json, target: &target, supervised: false };
    let mut journal = journals.begin(&host, &new)?;
    for step in apply(&host, &plan, &target, &mut journal, &mut no_observer())?.steps {
        println!("applied: {}", step.change);
    }
    println!("pinned: {}", host.affinity(child.pid())?);

    let report = undo(&host, &mut journal);
    println!("undone: {}, failed: {}", report.restored, report.failed.len());
    println!("after: {}", host.affinity(child.pid())?);
    Ok(())
}
