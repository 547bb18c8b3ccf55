//! Machines of hypervisors that are known by their names: processes with the names of their
//! programs and threads, not the real programs.

use pinfold_host::LiveHost;
use pinfold_host::process::Spawn;

use crate::common::machine::{find_thread, list_masks, start_quietly};
use crate::common::{Checked as _, Sandbox, is_missing, run, until};

/// Names itself like a hypervisor's first thread and starts threads with the given names.
const PROGRAM: &str = "
import ctypes, sys, threading, time
libc = ctypes.CDLL(None)
def named(name):
    libc.prctl(15, name.encode(), 0, 0, 0)
    time.sleep(600)
for name in sys.argv[2:]:
    threading.Thread(target=named, args=(name,), daemon=True).start()
named(sys.argv[1])
";

/// Python itself, where `python3` may be a script that finds it.
const COPY: &str =
    "cp \"$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')\" \"$0\"";

/// Its vCPUs are found, placed, and get their masks back.
#[test]
fn machines_of_other_hypervisors_are_placed_and_reverted() {
    if is_missing(&["python3"]) {
        return;
    }
    for (program, threads) in [
        ("cloud-hypervisor", ["vcpu0", "vcpu1", "vmm"]),
        ("crosvm", ["crosvm_vcpu0", "crosvm_vcpu1", "v_disk"]),
        ("firecracker", ["fc_vcpu 0", "fc_vcpu 1", "fc_api"]),
    ] {
        let sandbox = Sandbox::new();
        let path = sandbox.path(program);
        run("sh", ["-c", COPY, &path]).expect_success();
        let words = ["-c", PROGRAM, program].into_iter().chain(threads);
        let child = start_quietly(Spawn::new(&path).args(words));
        let host = LiveHost::new().expect("a host");
        assert!(
            until(|| threads
                .iter()
                .all(|name: &&str| find_thread(&host, child.pid(), name).is_some())),
            "{program} has its threads"
        );
        let before = list_masks(&host, child.pid());
        let pid = child.pid().to_string();
        sandbox.print(&["apply", "--pid", &pid, "--strategy", "compact"]);
        let status = sandbox.print(&["status"]);
        assert!(status.contains("vCPU 1") || status.contains("vcpu(1)"), "{status}");
        sandbox.print(&["undo", "--all"]);
        assert_eq!(list_masks(&host, child.pid()), before, "{program}");
    }
    let own = std::process::id().to_string();
    Sandbox::new().refuse(&["apply", "--pid", &own, "-s", "compact"], 4, "measure sched --process");
}
