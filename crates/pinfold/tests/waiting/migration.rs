//! A domain that migrates between two libvirt daemons, each with the hook.

use crate::common::{Checked as _, Sandbox, run, until};
use crate::libvirt::{NAME, count_active, daemon_with_hook, masks, pid, root, start_domain};
use pinfold_host::process::own_pid;
use pinfold_host::{Host as _, LiveHost, files};
use pinfold_model::CpuSet;

/// It is placed where it arrives, by the file of that host, and reverted where it was; the way back
/// is the same.
#[test]
fn a_domain_that_migrates_is_placed_where_it_arrives() {
    let (hooks, others) = (Sandbox::new(), Sandbox::new());
    let Some(from) = daemon_with_hook(&hooks) else { return };
    let Some(to) = daemon_with_hook(&others) else { return };
    let own = LiveHost::new().expect("a host").affinity(own_pid()).expect("a mask");
    let first = CpuSet::single(own.iter().next().expect("a CPU"));
    let last = CpuSet::single(own.iter().last().expect("a CPU"));
    for (daemon, left) in [(&from, &first), (&to, &last)] {
        let avoid = own.difference(left);
        let text = format!("[default]\nstrategy = \"compact\"\navoid = \"{avoid}\"\n");
        let file = format!("{}/domains.toml", root(daemon));
        files::write_atomic(&file, text.as_bytes()).expect("written");
        run("chown", ["--reference", &format!("{}/libvirt", root(daemon)), &file]).expect_success();
    }
    let metadata = "<metadata><p:placement xmlns:p='urn:pinfold:placement'/></metadata>";
    start_domain(&from, metadata);
    for (source, destination, cpu) in [(&from, &to, &last), (&to, &from, &first)] {
        let log = |end| files::read_text(&format!("{}/hook.log", root(end)));
        assert_eq!(count_active(source), 1, "{:?}", log(source));
        let (uri, socket) = (destination.uri(), format!("unix://{}/migration", root(destination)));
        let options = ["--migrateuri", &socket, "--persistent", "--undefinesource"];
        let words = [&["migrate", NAME, uri.as_str()][..], &options].concat();
        source.virsh(&words).expect("it migrates");
        assert!(
            until(|| masks(pid(destination)).values().all(|mask| mask == cpu)),
            "{:?}\n{:?}",
            masks(pid(destination)),
            log(destination)
        );
        assert!(until(|| count_active(source) == 0), "{:?}", log(source));
        assert_eq!(count_active(destination), 1, "{:?}", log(destination));
    }
    from.virsh(&["destroy", NAME]).expect("it ends");
    assert!(until(|| count_active(&from) == 0), "its end");
}
