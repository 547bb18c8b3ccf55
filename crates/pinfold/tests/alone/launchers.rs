//! The launchers of the page about emulation run their programs in the vnodes, with the agent that
//! the page has: the real Open MPI, MPICH and GNU parallel of the distribution.

use crate::attach::start_platform;
use crate::common::{
    Checked as _, PINFOLD, SECOND_NS, Sandbox, is_missing, run, skip, take_turn, until,
};
use pinfold_emulate::Facts;
use pinfold_host::LiveHost;
use pinfold_host::process::{self, Signaled, Spawn, Stdio};
use pinfold_model::Method;

const PAGE: &str = include_str!("../../../../docs/emulation.md");
/// What each launcher of the page is called on Debian, its arguments before the hosts, and after
/// them.
const LAUNCHERS: [[&str; 3]; 3] = [
    [
        "mpirun.openmpi",
        "--allow-run-as-root --oversubscribe --mca plm_rsh_agent in-vnode --mca btl tcp,self -H",
        "sh -c",
    ],
    ["mpiexec.mpich", "-launcher ssh -launcher-exec in-vnode -hosts", "-n 2 sh -c"],
    ["parallel", "--ssh in-vnode -j 1 -S", ""],
];

/// The agent of the page, with the binary and the directories of this test.
fn agent(sandbox: &Sandbox) -> String {
    let (_, rest) = PAGE.split_once("#!/bin/sh\n").expect("a script");
    let (script, _) = rest.split_once("```").expect("its end");
    let command = format!("exec '{PINFOLD}' --state-dir '{}' ", sandbox.path("state"));
    let replaced = [("exec pinfold ", command), ("/run/in-vnode", sandbox.path("temporary"))];
    let mut script = format!("#!/bin/sh\n{script}");
    for (of_page, own) in replaced {
        assert_eq!(script.matches(of_page).count(), 1, "{script}");
        script = script.replace(of_page, &own);
    }
    script
}

#[test]
fn launchers_run_their_programs_in_the_vnodes() {
    if is_missing(&LAUNCHERS.map(|[program, ..]| program)) {
        return;
    }
    let host = LiveHost::new().expect("a host");
    if let Some(why) = pinfold_emulate::refusal(Method::Quota, &Facts::find(&host).expect("facts"))
    {
        skip(format_args!("quota: {why}"));
        return;
    }
    let _turn = take_turn();
    let sandbox = Sandbox::new();
    let nodes = ["slow", "fast"].map(|name| format!("{name}-{}", process::own_pid()));
    let vnodes = nodes.iter().zip(["50%", "100%"]).map(|(name, speed)| {
        format!("[[vnode]]\nname = {name:?}\ncores = 1\nspeed = {speed:?}\nmethod = \"quota\"\n")
    });
    let mut supervisor = start_platform(&sandbox, &vnodes.collect::<String>());
    assert!(until(|| sandbox.run(&["emulate", "status"]).status.success()), "it is not up");
    let file = sandbox.write("in-vnode", agent(&sandbox));
    run("chmod", ["755", &file]).expect_success();
    let path = format!("{}:{}", sandbox.root(), std::env::var("PATH").expect("a path"));
    for [program, before, after] in LAUNCHERS {
        let mut words: Vec<String> = before.split(' ').map(str::to_owned).collect();
        words.push(nodes.join(","));
        words.extend(after.split_whitespace().map(str::to_owned));
        words.push("echo ran in $PINFOLD_VNODE".to_owned());
        if program == "parallel" {
            words.extend([":::", "1", "2", "3", "4"].map(str::to_owned));
        }
        let launcher = Spawn::new("env").args(["-u", "SHELL", program]).args(words);
        let launcher = launcher.env("PATH", &path).stdin(Stdio::Null);
        let output = launcher.die_with_parent(true).capture(60 * SECOND_NS).expect("it runs");
        let text = output.expect_success().stdout_text();
        for node in &nodes {
            assert!(text.contains(&format!("ran in {node}")), "{program}: {text}");
        }
    }
    supervisor.signal(Signaled::Terminate).expect("it runs");
    assert!(supervisor.wait().expect("it ends").success());
}
