//! Containers and mininet hosts become part of a vnode and go on when it ends: with the real runc
//! and mininet of the distribution.

use crate::common::{
    Checked as _, PINFOLD, Sandbox, WITHOUT_CLAIMS, assert_parts, is_missing, run, skip, take_turn,
    until,
};
use pinfold_emulate::Facts;
use pinfold_host::process::{self, Child, Output, Signaled, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, mountinfo, paths};
use pinfold_model::{Method, Tid};

/// A platform with one vnode at 50 %.
struct Platform {
    sandbox: Sandbox,
    vnode: String,
    supervisor: Child,
}

impl Platform {
    fn up(test: &str) -> Option<Self> {
        Self::up_with(test, "")
    }

    /// With these lines in the platform file.
    fn up_with(test: &str, lines: &str) -> Option<Self> {
        let host = LiveHost::new().expect("a host");
        let facts = Facts::find(&host).expect("facts");
        if let Some(why) = pinfold_emulate::refusal(Method::Stall, &facts) {
            skip(format!("stall: {why}"));
            return None;
        }
        let sandbox = Sandbox::new();
        let vnode = format!("{test}-{}", process::own_pid());
        let supervisor = start(&sandbox, &vnode, lines);
        let up = Self { sandbox, vnode, supervisor };
        assert!(until(|| up.emulate(&["status"]).status.success()), "it is not up");
        Some(up)
    }

    fn emulate(&self, words: &[&str]) -> Output {
        self.sandbox.run(&[&["emulate"], words].concat())
    }

    fn attach(&self, words: &[&str]) -> Output {
        self.emulate(&[&["attach", &self.vnode], words].concat())
    }

    fn reports(&self, part: &str) -> bool {
        self.emulate(&["status"]).stdout_text().contains(part)
    }

    fn kill(&mut self) {
        self.supervisor.signal(Signaled::Kill).expect("it runs");
        self.supervisor.wait().expect("it ends");
    }
}

fn start(sandbox: &Sandbox, vnode: &str, lines: &str) -> Child {
    let text = format!("[[vnode]]\nname = {vnode:?}\ncores = 1\nspeed = \"50%\"\n{lines}");
    start_platform(sandbox, &text)
}

/// Starts the vnodes of a platform file.
pub fn start_platform(sandbox: &Sandbox, text: &str) -> Child {
    let file = sandbox.write("platform.toml", text);
    let state = sandbox.path("state");
    let words = ["--state-dir", &state, "emulate", "up", "--foreground", &file];
    let spawn = Spawn::new(PINFOLD).args(words).env(WITHOUT_CLAIMS, "true").stdin(Stdio::Null);
    spawn.die_with_parent(true).own_group().start().expect("pinfold starts")
}

/// Where each process of a container is: its groups and its CPUs.
fn places(pids: &[Tid]) -> Vec<(String, String)> {
    let host = LiveHost::new().expect("a host");
    let mut places = Vec::new();
    for pid in pids {
        let groups = host.read_text(&format!("/proc/{pid}/cgroup")).expect("its groups");
        places.push((groups, host.affinity(*pid).expect("a mask").to_string()));
    }
    places
}

/// A container of runc that sleeps; it ends when this is dropped.
struct Container {
    name: String,
    _bundle: Sandbox,
}

impl Container {
    fn run(test: &str) -> Self {
        let bundle = Sandbox::new();
        let name = format!("{test}-{}", process::own_pid());
        let binds = ["bin", "lib", "lib64", "usr"].map(|folder| {
            let place = bundle.path(&format!("rootfs/{folder}"));
            run("mkdir", ["-p", &place]).expect_success();
            format!(
                r#"{{"destination":"/{folder}","type":"none","source":"/{folder}","options":["rbind","ro"]}}"#
            )
        });
        run("mkdir", ["-p", &bundle.path("rootfs/proc")]).expect_success();
        let config = format!(
            r#"{{"ociVersion":"1.0.2","process":{{"user":{{"uid":0,"gid":0}},"cwd":"/",
            "args":["/bin/sh","-c","sleep 300 & sleep 300"],"env":["PATH=/usr/bin:/bin"]}},
            "root":{{"path":"rootfs"}},
            "mounts":[{{"destination":"/proc","type":"proc","source":"proc"}},{}],
            "linux":{{"cgroupsPath":"/{name}","namespaces":[{{"type":"pid"}},{{"type":"mount"}}]}}}}"#,
            binds.join(",")
        );
        bundle.write("config.json", config);
        let words = ["run", "--detach", "--bundle", &bundle.path(""), &name];
        // Its output goes to files: a pipe would be open as long as the container runs.
        let mut child = Spawn::new("runc").args(words).stdin(Stdio::Null).stdout(Stdio::Null);
        child = child.stderr(Stdio::Null);
        let status = child.start().expect("runc").wait().expect("an end");
        assert!(status.success(), "runc: {status}");
        Self { name, _bundle: bundle }
    }

    fn pids(&self) -> Vec<Tid> {
        let output = run("runc", ["ps", "--format", "json", &self.name]).expect_success();
        let text = output.stdout_text();
        let numbers = text.trim().trim_matches(['[', ']']).split(',');
        numbers.filter_map(|pid| pid.trim().parse().ok().map(Tid)).collect()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        run("runc", ["delete", "--force", &self.name]);
    }
}

#[test]
fn a_container_is_slowed_in_its_own_group_and_goes_on() {
    let _turn = take_turn();
    if is_missing(&["runc"]) {
        return;
    }
    let Some(mut up) = Platform::up("boxes") else { return };
    let container = Container::run("boxes");
    assert!(until(|| container.pids().len() >= 2), "its processes start");
    let pids = container.pids();
    let before = places(&pids);
    let unknown = up.attach(&["--container", "no-such-container"]);
    assert_parts(&unknown.stderr_text(), &["is not known to a container runtime", &container.name]);
    let said = up.attach(&["--container", &container.name]).expect_success().stderr_text();
    assert_parts(&said, &[&format!("container {} is part of vnode", container.name)]);
    let twice = up.attach(&["--container", &container.name]).stderr_text();
    assert_parts(&twice, &["is part of vnode"]);
    let during = places(&pids);
    assert!(during.iter().all(|(_, cpus)| cpus.len() == 1), "one CPU: {during:?}");
    let status = up.emulate(&["status"]).stdout_text();
    assert_parts(&status, &[&format!("container {}", container.name)]);
    // A failed attachment leaves the platform and the earlier one.
    up.attach(&["--pid", "1"]);
    assert_eq!(places(&pids), during);
    up.emulate(&["down"]).expect_success();
    assert_eq!(places(&pids), before, "as before");
    // A supervisor that is killed at any moment leaves nothing after `undo --left`.
    let is_full = std::env::var("PINFOLD_TEST_SIZE").is_ok_and(|size| size == "full");
    for at in 0..if is_full { 100 } else { 4 } {
        up.supervisor = start(&up.sandbox, &up.vnode, "");
        assert!(until(|| up.emulate(&["status"]).status.success()), "it is not up");
        let words = ["emulate", "attach", &up.vnode, "--container", &container.name];
        let mut client = up.sandbox.spawn(&words).stderr(Stdio::Null).start().expect("a client");
        SystemClock.sleep_ns(at * 7_000_000 % 60_000_000);
        up.kill();
        client.wait().expect("an end");
        up.sandbox.run(&["undo", "--left"]).expect_success();
        assert_eq!(places(&pids), before, "after kill {at}");
    }
    drop(container);
}

/// A group of version 2 as a runtime makes it for a container, with a process that sleeps.
struct RuntimeGroup {
    path: String,
    directory: String,
    sleeper: Child,
}

impl RuntimeGroup {
    fn run(test: &str) -> Option<Self> {
        let host = LiveHost::new().expect("a host");
        let table = host.read_text(&paths::own_mountinfo()).expect("mounts");
        let mounts = mountinfo::parse(&table).expect("mounts");
        let Some(found) = mountinfo::v2_mount(&mounts) else {
            skip("cgroup version 2 is not mounted");
            return None;
        };
        let path = format!("/pinfold-test-{test}-{}", process::own_pid());
        let directory = format!("{}{path}", found.mount.path);
        if let Err(error) = host.make_dir(&directory) {
            skip(error);
            return None;
        }
        let sleeper = Self::sleep_in(&directory);
        Some(Self { path, directory, sleeper })
    }

    fn sleep_in(directory: &str) -> Child {
        let spawn = Spawn::new("sleep").args(["300"]).die_with_parent(true);
        spawn.cgroup_files(vec![paths::cgroup_procs(directory)]).start().expect("sleep")
    }

    fn end(&mut self) {
        self.sleeper.kill().expect("killed");
        let host = LiveHost::new().expect("a host");
        let is_removed = until(|| host.remove_dir(&self.directory).is_ok());
        assert!(is_removed || std::thread::panicking(), "{} is empty", self.directory);
    }

    fn freeze(&self, value: &[u8]) {
        let host = LiveHost::new().expect("a host");
        host.write(&paths::cgroup_freeze(&self.directory), value).expect("version 2 freezes");
    }

    fn is_frozen(&self) -> bool {
        let host = LiveHost::new().expect("a host");
        let events = host.read_text(&paths::cgroup_events(&self.directory)).expect("events");
        events.contains("frozen 1")
    }

    /// The same path, another group.
    fn restart(&mut self) {
        self.end();
        LiveHost::new().expect("a host").make_dir(&self.directory).expect("a group");
        self.sleeper = Self::sleep_in(&self.directory);
    }
}

impl Drop for RuntimeGroup {
    fn drop(&mut self) {
        if LiveHost::new().expect("a host").exists(&self.directory) {
            self.end();
        }
    }
}

#[test]
fn a_group_that_is_made_again_is_reported_and_attached_again() {
    let _turn = take_turn();
    let Some(up) = Platform::up("again") else { return };
    let Some(mut group) = RuntimeGroup::run("again") else { return };
    let words = ["--group", &group.path.clone()];
    up.attach(&words).expect_success();
    for _ in 0..2 {
        group.restart();
        assert!(until(|| up.reports("was restarted: attach it again to slow it")), "a restart");
        up.attach(&words).expect_success();
        assert!(until(|| !up.reports("was restarted")), "attached again");
        assert_parts(&up.attach(&words).stderr_text(), &["is part of vnode", "already"]);
    }
    let status = up.emulate(&["status", "--json"]).stdout_text();
    let attached = format!(r#""attached":"group {}""#, group.path);
    assert_eq!(status.matches(&attached).count(), 1, "the earlier ones are forgotten: {status}");
    group.end();
    assert!(until(|| up.reports("has ended")), "an end");
    up.emulate(&["down"]).expect_success();
}

#[test]
fn the_group_of_a_platform_file_that_is_made_again_is_reported() {
    let _turn = take_turn();
    let Some(mut up) = Platform::up("file") else { return };
    let Some(mut group) = RuntimeGroup::run("file") else { return };
    up.emulate(&["down"]).expect_success();
    let text = format!(
        "[[vnode]]\nname = {:?}\ncores = 1\nspeed = \"50%\"\nattach = \"group:{}\"\n",
        up.vnode, group.path
    );
    up.supervisor = start_platform(&up.sandbox, &text);
    assert!(until(|| up.emulate(&["status"]).status.success()), "it is not up");
    group.restart();
    assert!(until(|| up.reports("was restarted: attach it again to slow it")), "a restart");
    up.attach(&["--group", &group.path]).expect_success();
    assert!(until(|| !up.reports("was restarted")), "attached again");
    up.emulate(&["down"]).expect_success();
    assert!(matches!(group.sleeper.try_wait(), Ok(None)), "it goes on");
}

#[test]
fn a_paused_group_is_attached_and_stays_paused() {
    let _turn = take_turn();
    let Some(up) = Platform::up("paused") else { return };
    let Some(group) = RuntimeGroup::run("paused") else { return };
    let host = LiveHost::new().expect("a host");
    group.freeze(b"1");
    assert!(until(|| group.is_frozen()), "frozen");
    let said = up.attach(&["--group", &group.path]).expect_success().stderr_text();
    assert_parts(&said, &["is paused: its speed applies when it continues"]);
    let pid = group.sleeper.pid();
    assert_eq!(host.affinity(pid).expect("a mask").len(), 1);
    up.emulate(&["down"]).expect_success();
    assert!(group.is_frozen(), "the runtime continues it");
    assert!(host.affinity(pid).expect("a mask").len() > 1);
    group.freeze(b"0");
}

/// A named network namespace; its name is removed when this is dropped.
struct Netns(String);

impl Netns {
    fn add(&self) -> bool {
        run("ip", ["netns", "add", &self.0]).status.success()
    }

    fn sleep_in(&self) -> Child {
        let words = ["netns", "exec", &self.0, "sleep", "300"];
        Spawn::new("ip").args(words).die_with_parent(true).start().expect("ip")
    }

    fn delete(&self) {
        run("ip", ["netns", "del", &self.0]);
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.delete();
    }
}

#[test]
fn a_network_namespace_that_is_made_again_is_reported_and_attached_again() {
    let _turn = take_turn();
    if is_missing(&["ip"]) {
        return;
    }
    let Some(up) = Platform::up("netns") else { return };
    let netns = Netns(format!("pf-test-{}", process::own_pid()));
    if !netns.add() {
        return skip("`ip netns add` fails");
    }
    let mut first = netns.sleep_in();
    let words = ["--netns", &netns.0];
    assert!(until(|| up.attach(&words).status.success()), "{}", up.attach(&words).stderr_text());
    netns.delete();
    assert!(until(|| up.reports("has lost its name")), "deleted");
    assert!(netns.add(), "made again");
    assert!(until(|| up.reports("was made again under the same name")), "made again");
    let none = up.attach(&words).stderr_text();
    assert_parts(&none, &["has no process"]);
    let mut second = netns.sleep_in();
    assert!(until(|| up.attach(&words).status.success()), "{}", up.attach(&words).stderr_text());
    assert!(until(|| !up.reports("was made again")), "attached again");
    // A process that starts there later is attached next to the one that is part of the vnode.
    let mut third = netns.sleep_in();
    assert!(until(|| up.attach(&words).status.success()), "{}", up.attach(&words).stderr_text());
    let status = places(&[first.pid(), second.pid(), third.pid()]);
    assert!(status.iter().all(|(groups, _)| groups.contains(&up.vnode)), "{status:?}");
    up.emulate(&["down"]).expect_success();
    for child in [&mut first, &mut second, &mut third] {
        assert!(matches!(child.try_wait(), Ok(None)), "it goes on");
        child.kill().expect("killed");
    }
}

#[test]
fn a_network_namespace_of_a_platform_file_is_slowed_and_goes_on() {
    let _turn = take_turn();
    if is_missing(&["ip"]) {
        return;
    }
    let netns = Netns(format!("pf-file-{}", process::own_pid()));
    if !netns.add() {
        return skip("`ip netns add` fails");
    }
    let mut sleeper = netns.sleep_in();
    let comm = format!("/proc/{}/comm", sleeper.pid());
    let host = LiveHost::new().expect("a host");
    assert!(until(|| host.read_text(&comm).is_ok_and(|comm| comm == "sleep\n")), "it sleeps");
    let before = places(&[sleeper.pid()]);
    let attach = format!("attach = \"netns:{}\"\n", netns.0);
    let Some(up) = Platform::up_with("netns-file", &attach) else { return };
    let (groups, _) = places(&[sleeper.pid()]).remove(0);
    assert!(groups.contains(&up.vnode), "{groups}");
    up.emulate(&["down"]).expect_success();
    assert_eq!(places(&[sleeper.pid()]), before);
    assert!(matches!(sleeper.try_wait(), Ok(None)), "it goes on");
    sleeper.kill().expect("killed");
}

/// The shell of the host h1.
fn shells_of_h1() -> Vec<Tid> {
    let found = run("pgrep", ["-f", "^bash --norc --noediting -is mininet:h1$"]).stdout_text();
    found.lines().filter_map(|pid| pid.parse().ok().map(Tid)).collect()
}

#[test]
fn hosts_of_mininet_are_slowed_and_go_on() {
    let _turn = take_turn();
    if is_missing(&["mn", "brctl"]) {
        return;
    }
    let Some(up) = Platform::up("mn") else { return };
    // The command line of mininet ends when its input does.
    let words = ["--topo", "single,2", "--switch", "lxbr", "--controller", "none"];
    let network = Spawn::new("mn").args(words).stdin(Stdio::Pipe).stdout(Stdio::Null);
    let mut network = network.stderr(Stdio::Null).die_with_parent(true).start().expect("mininet");
    let attached = until(|| up.attach(&["--mininet", "h1"]).status.success());
    assert!(attached, "{}", up.attach(&["--mininet", "h1"]).stderr_text());
    let during = places(&shells_of_h1());
    assert!(during.iter().any(|(groups, _)| groups.contains(&up.vnode)), "{during:?}");
    let gone = up.attach(&["--mininet", "h9"]).stderr_text();
    assert_parts(&gone, &["mininet h9 is not running"]);
    let switch = up.attach(&["--mininet", "s1"]).stderr_text();
    assert_parts(&switch, &["is not running"]);
    up.emulate(&["down"]).expect_success();
    let after = places(&shells_of_h1());
    assert!(after.iter().all(|(groups, _)| !groups.contains(&up.vnode)), "{after:?}");
    drop(network.stdin());
    let ended = until(|| matches!(network.try_wait(), Ok(Some(_))));
    assert!(ended, "mininet ends by itself");
}
