//! A real virtiofsd, which serves a machine from a process of its own.

use pinfold_host::process::{Child, Spawn, find_program, own_pid};
use pinfold_host::{Host as _, LiveHost, files, paths};
use pinfold_model::Tid;

use crate::common::machine::{Machine, QEMU, list_masks, start_quietly};
use crate::common::{Sandbox, is_missing, skip, until};

/// Where distributions have the program; it is in no search path.
const PLACES: [&str; 3] =
    ["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd", "/usr/lib/virtiofsd"];

/// Starts virtiofsd for a folder and waits for its socket; `None` if it is not installed, or may not
/// make its namespaces.
fn start(sandbox: &Sandbox) -> Option<Child> {
    let program = PLACES.into_iter().find(|path| files::exists(path));
    let Some(program) = program.map(str::to_owned).or_else(|| find_program("virtiofsd")) else {
        skip("virtiofsd is not installed");
        return None;
    };
    let socket = sandbox.path("fs.sock");
    let share = sandbox.path("share");
    files::make_dirs(&share).expect("a folder");
    let words = [format!("--socket-path={socket}"), "-o".to_owned(), format!("source={share}")];
    let mut child = start_quietly(Spawn::new(&program).args(words));
    assert!(
        until(|| files::exists(&socket) || child.try_wait().is_ok_and(|end| end.is_some())),
        "it starts"
    );
    if !files::exists(&socket) {
        skip("virtiofsd cannot share a folder here");
        return None;
    }
    Some(child)
}

/// The process and those that it started.
fn processes(host: &LiveHost, pid: Tid) -> Vec<Tid> {
    let children = host.read_text(&paths::task_file(pid, pid, "children")).unwrap_or_default();
    let children = children.split_ascii_whitespace().filter_map(|word| word.parse().ok().map(Tid));
    std::iter::once(pid).chain(children).collect()
}

#[test]
fn a_back_end_goes_where_its_machine_goes_and_back() {
    if is_missing(&[QEMU]) {
        return;
    }
    let sandbox = Sandbox::new();
    let Some(daemon) = start(&sandbox) else { return };
    let options = format!(
        "-object memory-backend-memfd,id=m,size=64M,share=on -machine memory-backend=m \
         -chardev socket,id=c,path={} -device vhost-user-fs-pci,chardev=c,tag=t",
        sandbox.path("fs.sock")
    );
    let Some(machine) = Machine::new_in(sandbox, &options) else { return };
    let host = &machine.host;
    let all = host.affinity(own_pid()).expect("a mask");
    let Some(first) = all.first().filter(|_| all.len() > 1) else {
        skip("with one CPU nothing can be moved");
        return;
    };
    let masks = || {
        let all = processes(host, daemon.pid()).into_iter().map(|pid| list_masks(host, pid));
        all.reduce(|mut all, more| {
            all.extend(more);
            all
        })
    };
    let before = masks().expect("it runs");
    let pin = format!("worker={first}");
    let plan = ["plan", "--strategy", "compact", "--vcpus", "1", "--pin", &pin, "--json", "--name"];
    let plan = machine.print(&[&plan[..], &[&machine.name]].concat());
    let plan = machine.write("plan.json", plan);
    machine.print(&["apply", "--qmp", &machine.qmp(), "--plan", &plan]);
    let placed = masks().expect("it runs");
    assert!(placed.values().all(|mask| mask.iter().eq([first])), "{placed:?}");
    let shown = machine.print(&["status"]);
    assert!(shown.contains("1 placement is active, as planned"), "{shown}");
    machine.print(&["undo"]);
    assert_eq!(masks().expect("it runs"), before);
}
