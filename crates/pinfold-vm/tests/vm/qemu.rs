//! Real QEMU processes under TCG, stopped before their first instruction: they cost no CPU time.

use std::os::unix::net::UnixStream;

use pinfold_host::files::StateDir;
use pinfold_host::process::{self, Signaled, Spawn, Stdio, find_program};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock};
use pinfold_model::{Accelerator, CpuSet, Role, Tid};
use pinfold_qemu as argv;
use pinfold_vm::launch::{self, LaunchOptions, Resumed, RunningVm, StderrEcho};
use pinfold_vm::qemu::{CommandError, Qmp, QmpError, QmpTransport as _};
use pinfold_vm::{DiscoveredVm, Monitor as _, VmError, discover, threads};
use serde_json::json;

const QEMU: &str = "qemu-system-x86_64";
const SECOND: u64 = 1_000_000_000;

/// A folder for sockets, or `None` (said aloud) without QEMU.
fn folder() -> Option<tempfile::TempDir> {
    if find_program(QEMU).is_none() {
        eprintln!("skipped: {QEMU} is not installed");
        return None;
    }
    Some(tempfile::tempdir().unwrap())
}

fn words(line: &str) -> Vec<String> {
    let base = format!("{QEMU} -M q35 -m 32 -display none -nodefaults -no-user-config");
    format!("{base} {line}").split_whitespace().map(str::to_owned).collect()
}

fn options(folder: &tempfile::TempDir) -> LaunchOptions {
    LaunchOptions {
        echo: StderrEcho::Off,
        stdin: Stdio::Null,
        stdout: Stdio::Null,
        runtime_dir: Some(folder.path().join("run").to_str().unwrap().to_owned()),
        ..LaunchOptions::default()
    }
}

fn start(folder: &tempfile::TempDir, line: &str) -> RunningVm {
    launch::start_stopped(&argv::parse(&words(line)), &options(folder)).unwrap()
}

fn qmp(vm: &mut RunningVm) -> &mut Qmp {
    Qmp::downcast_monitor(&mut *vm.monitor).unwrap()
}

fn tid_of(found: &DiscoveredVm, role: &Role) -> Option<Tid> {
    found.threads.iter().find(|thread| thread.role == *role).map(|thread| thread.task.tid)
}

fn iothread(id: &str) -> Role {
    Role::Iothread(id.to_owned())
}

/// Looks again until it holds what is asked for: the monitor answers before a thread is up.
fn found_with(vm: &mut RunningVm, role: &Role) -> DiscoveredVm {
    let host = LiveHost::new().unwrap();
    for _ in 0..100 {
        let found = discover(&host, vm.pid(), Some(&mut *vm.monitor)).unwrap();
        if tid_of(&found, role).is_some() {
            return found;
        }
        SystemClock.sleep_ns(SECOND / 50);
    }
    panic!("no thread became {role}");
}

#[test]
fn finds_every_role() {
    let Some(folder) = folder() else { return };
    let long = "io-disk-with-long-name";
    let line = format!(
        "-accel tcg,thread=multi -smp 3 -name guest=one,debug-threads=off \
         -object iothread,id=io0 -object iothread,id={long}"
    );
    let mut vm = start(&folder, &line);
    assert_eq!((vm.found.accelerator, vm.found.vcpus), (Some(Accelerator::TcgMulti), 3));
    vm.found.require_own_threads().unwrap();
    for (role, name) in [
        (Role::Vcpu(0), "CPU 0/TCG"),
        (Role::Vcpu(2), "CPU 2/TCG"),
        (iothread("io0"), "IO io0"),
        (iothread(long), "qemu-system-x86"),
    ] {
        let thread = vm.found.threads.iter().find(|thread| thread.role == role).unwrap();
        assert_eq!(thread.name, name, "{role}");
    }
    let main = vm.found.threads.iter().find(|thread| thread.task.tid == vm.pid()).unwrap();
    assert_eq!(main.role, Role::Emulator);
    assert_eq!(vm.pid(), vm.child().pid());
    // Our -name option did not take the user's name away.
    assert_eq!(qmp(&mut vm).execute("query-name", None).unwrap(), json!({"name": "one"}));

    // The names alone give the same roles, but for the nameless iothread.
    let by_names = discover(&LiveHost::new().unwrap(), vm.pid(), None).unwrap();
    for role in [Role::Vcpu(0), Role::Vcpu(1), Role::Vcpu(2), iothread("io0")] {
        assert_eq!(tid_of(&by_names, &role), tid_of(&vm.found, &role), "{role}");
    }
    assert_eq!(tid_of(&by_names, &iothread(long)), None);
    assert_eq!(by_names.accelerator, Some(Accelerator::TcgMulti));
}

#[test]
fn starts_stopped_continues_and_leaves_nothing_behind() {
    let Some(folder) = folder() else { return };
    // Left by a process that was killed; no kernel gives out such a number.
    let run = StateDir::open(folder.path().join("run").to_str().unwrap()).unwrap();
    StateDir::open(&run.path_of("vm-4999999-1-0")).unwrap().create_new("qmp", b"").unwrap();
    let mut vm = start(&folder, "-accel tcg");
    assert_eq!(vm.monitor.version().unwrap(), vm.version);
    assert_eq!(vm.monitor.status().unwrap().name, "prelaunch");
    assert_eq!(vm.cont().unwrap(), Resumed::Running);
    assert!(qmp(&mut vm).wait_event(&["RESUME"], 60 * SECOND).unwrap().is_some());
    assert!(vm.monitor.status().unwrap().running);
    vm.monitor.stop().unwrap();
    assert!(vm.quit(60 * SECOND).unwrap().success());
    drop(vm);
    let left = pinfold_host::files::list(run.path()).unwrap();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn recognises_single_threaded_tcg() {
    let Some(folder) = folder() else { return };
    let vm = start(&folder, "-accel tcg,thread=single -smp 2");
    assert_eq!((vm.found.accelerator, vm.found.vcpus), (Some(Accelerator::TcgSingle), 2));
    let error = vm.found.require_own_threads().unwrap_err();
    assert!(error.hint().unwrap().contains("thread=multi"));
    assert!(tid_of(&vm.found, &Role::Vcpu(0)).is_some());
    assert!(tid_of(&vm.found, &Role::Vcpu(1)).is_none());
    let by_names = discover(&LiveHost::new().unwrap(), vm.pid(), None).unwrap();
    assert_eq!((by_names.accelerator, by_names.vcpus), (Some(Accelerator::TcgSingle), 2));
}

#[test]
fn recognises_kvm() {
    let Some(folder) = folder() else { return };
    let started =
        launch::start_stopped(&argv::parse(&words("-accel kvm -smp 2")), &options(&folder));
    let vm = match started {
        Err(VmError::StartFailed { message, .. }) => {
            eprintln!("skipped: KVM cannot be used here: {message}");
            return;
        }
        started => started.unwrap(),
    };
    assert_eq!((vm.found.accelerator, vm.found.vcpus), (Some(Accelerator::Kvm), 2));
    let by_names = discover(&LiveHost::new().unwrap(), vm.pid(), None).unwrap();
    assert_eq!((by_names.accelerator, by_names.vcpus), (Some(Accelerator::Kvm), 2));
    // The kernel's timer thread of a PC lies outside the process; process numbers of a
    // container hide it.
    let timer = format!("kvm-pit/{}", vm.pid());
    for thread in vm.found.threads.iter().filter(|thread| thread.name == timer) {
        assert_eq!(thread.role, Role::Emulator);
    }
}

#[test]
fn sees_hot_added_threads() {
    let Some(folder) = folder() else { return };
    let mut vm = start(&folder, "-accel tcg,thread=multi -smp 1,maxcpus=2");
    let late = json!({"qom-type": "iothread", "id": "late-iothread"});
    qmp(&mut vm).execute("object-add", Some(late)).unwrap();
    found_with(&mut vm, &iothread("late-iothread"));

    let slots = qmp(&mut vm).execute("query-hotpluggable-cpus", None).unwrap();
    let free = slots.as_array().unwrap().iter().find(|slot| slot.get("qom-path").is_none());
    let mut device = free.unwrap()["props"].clone();
    device["driver"] = free.unwrap()["type"].clone();
    device["id"] = json!("late-cpu");
    qmp(&mut vm).execute("device_add", Some(device)).unwrap();
    let found = found_with(&mut vm, &Role::Vcpu(1));
    assert_eq!(found.vcpus, 2);
    assert_ne!(tid_of(&found, &Role::Vcpu(0)), tid_of(&found, &Role::Vcpu(1)));
}

#[test]
fn is_created_where_it_is_asked_for() {
    let Some(folder) = folder() else { return };
    let host = LiveHost::new().unwrap();
    let own = host.affinity(pinfold_host::process::own_tid()).unwrap();
    let last = CpuSet::single(own.iter().last().unwrap());
    let reported = LaunchOptions { affinity: Some(last.clone()), ..options(&folder) };
    let vm = launch::start_stopped(&argv::parse(&words("-accel tcg -smp 2")), &reported).unwrap();
    for thread in &vm.found.threads {
        assert_eq!(host.affinity(thread.task.tid).unwrap(), last, "{}", thread.role);
    }
}

#[test]
fn respects_the_users_stop() {
    let Some(folder) = folder() else { return };
    let mut vm = start(&folder, "-accel tcg -S");
    assert_eq!(vm.cont().unwrap(), Resumed::LeftStopped);
    assert!(!vm.monitor.status().unwrap().running);
}

#[test]
fn shows_why_qemu_did_not_start() {
    let Some(folder) = folder() else { return };
    let check = |line: &str, expected: &str| {
        let error =
            launch::start_stopped(&argv::parse(&words(line)), &options(&folder)).err().unwrap();
        assert!(matches!(error, VmError::StartFailed { .. }), "{line}: {error:?}");
        assert!(error.to_string().contains(expected), "{line}: {error}");
    };
    check("-nonsense", "(exit code 1); it printed:\nqemu-system-x86_64: -nonsense: invalid option");
    check("-device nonsense", "'nonsense' is not a valid device model name");
    check("-kernel /absent", "/absent");
    check("-version", "(exit code 0)");

    let fail = |argv: &[&str]| {
        let argv: Vec<String> = argv.iter().map(|&word| word.to_owned()).collect();
        launch::start_stopped(&argv::parse(&argv), &options(&folder)).err().unwrap()
    };
    assert!(matches!(fail(&[]), VmError::NoCommand));
    assert!(matches!(fail(&[QEMU, "-daemonize"]).downcast_driver(), Some(CommandError::Daemonize)));
    assert!(fail(&["/absent/qemu"]).hint().unwrap().contains("install QEMU"));
    let mut hasty = options(&folder);
    hasty.start_timeout_ns = SECOND / 5;
    let script = folder.path().join("sleeper").to_string_lossy().into_owned();
    let text = b"echo waiting >&2; exec sleep 60\n";
    pinfold_host::files::write_atomic(&script, text).unwrap();
    let sleeper = ["sh".to_owned(), script];
    let error = launch::start_stopped(&argv::parse(&sleeper), &hasty).err().unwrap();
    assert!(
        error.to_string().contains("its QMP socket within 1 s; it printed:\nwaiting"),
        "{error}"
    );
}

/// What starts QEMU keeps its options, QEMU gets Pinfold's, and no guest is left stopped.
#[test]
fn starts_below_other_programs() {
    let Some(folder) = folder() else { return };
    let script = |name: &str, text: &str| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        pinfold_host::files::write_atomic(&path, text.as_bytes()).unwrap();
        format!("sh {path}")
    };
    // As numactl and sudo take their options: the one becomes its command, the other waits for it.
    let becomes = script(
        "becomes",
        "while :; do case $1 in -m|-N) shift 2;; -*) shift;; *) break;; esac; done\nexec \"$@\"\n",
    );
    let waits =
        script("waits", "while :; do case $1 in -S) shift;; *) break;; esac; done\n\"$@\"\n");
    let check = |line: &str, inner: bool| {
        let line = format!("{line} {QEMU} -M q35 -m 32 -display none -nodefaults -accel tcg");
        let argv: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut vm = launch::start_stopped(&argv::parse(&argv), &options(&folder)).unwrap();
        assert_eq!(vm.pid() != vm.child().pid(), inner, "{line}");
        assert_eq!(vm.cont().unwrap(), Resumed::Running, "{line}");
        assert!(qmp(&mut vm).wait_event(&["RESUME"], 60 * SECOND).unwrap().is_some(), "{line}");
        // A wrapper that is killed leaves no QEMU.
        let pid = vm.pid();
        drop(vm);
        assert!(ends(pid), "{line}");
    };
    check(&format!("{becomes} -m 0 -S"), false);
    check(&format!("{waits} -S"), true);
    check("env A=1 nice -n 1", false);
    let line = format!("env|-S|{QEMU} -M q35 -m 32 -display none -nodefaults -accel tcg");
    let argv: Vec<String> = line.split('|').map(str::to_owned).collect();
    let mut vm = launch::start_stopped(&argv::parse(&argv), &options(&folder)).unwrap();
    assert_eq!(vm.cont().unwrap(), Resumed::Running);
    let argv = ["sh", "-ec", &format!("{QEMU} -m 32")].map(str::to_owned);
    let refused = launch::start_stopped(&argv::parse(&argv), &options(&folder)).err().unwrap();
    assert!(matches!(refused.downcast_driver(), Some(CommandError::ShellText { .. })), "{refused}");
    let argv = ["systemd-run", "--user", QEMU].map(str::to_owned);
    let refused = launch::start_stopped(&argv::parse(&argv), &options(&folder)).err().unwrap();
    assert!(matches!(refused.downcast_driver(), Some(CommandError::HandedOver)), "{refused}");
}

/// True if the process ends.
fn ends(pid: Tid) -> bool {
    let host = LiveHost::new().unwrap();
    (0..100).any(|_| {
        SystemClock.sleep_ns(SECOND / 50);
        let stat = pinfold_host::proc_stat::read(&host, pid).unwrap();
        stat.is_none_or(|stat| stat.has_ended())
    })
}

/// A script that does not hand its arguments on: the message says so, and its QEMU is ended.
#[test]
fn says_that_a_script_drops_its_arguments() {
    let Some(folder) = folder() else { return };
    let path = folder.path().join("start-vm").to_str().unwrap().to_owned();
    let check = |last_line: &str| {
        pinfold_host::files::write_atomic(&path, format!("{last_line}\n").as_bytes()).unwrap();
        let argv = ["sh", &path, "-smp", "2"].map(str::to_owned);
        let mut hasty = options(&folder);
        hasty.start_timeout_ns = SECOND;
        let error = launch::start_stopped(&argv::parse(&argv), &hasty).err().unwrap();
        let VmError::StartTimeout { deaf: Some(pid), .. } = error else { panic!("{error}") };
        assert!(error.to_string().contains("without the arguments that Pinfold adds"), "{error}");
        assert!(error.hint().unwrap().contains("\"$@\""), "{error}");
        assert!(ends(pid), "{last_line}");
    };
    let qemu = format!("{QEMU} -M none -display none -nodefaults");
    check(&format!("exec {qemu}"));
    check(&format!("{qemu}; true"));
}

#[test]
fn distinguishes_a_busy_socket_from_a_dead_one() {
    let Some(folder) = folder() else { return };
    let mut vm = start(&folder, "-accel tcg");
    let socket = vm.socket().to_owned();
    let error = Qmp::connect(&socket, SECOND / 5, SystemClock).err().unwrap();
    assert!(matches!(error.downcast_driver(), Some(QmpError::Silent { .. })), "{error}");
    process::signal(vm.pid(), Signaled::Stop).unwrap();
    let error = Qmp::connect(&socket, SECOND / 2, SystemClock).err().unwrap();
    process::signal(vm.pid(), Signaled::Continue).unwrap();
    assert!(
        matches!(error.downcast_driver(), Some(QmpError::Stopped { pid, .. }) if *pid == vm.pid())
    );
    assert_eq!(error.hint().unwrap(), format!("continue it: kill -CONT {}", vm.pid()));
    // The first client is not harmed by the second.
    assert_eq!(vm.monitor.status().unwrap().name, "prelaunch");

    vm.child().kill().unwrap();
    assert!(vm.monitor.status().unwrap_err().is_gone());
    let error = Qmp::connect(&socket, SECOND, SystemClock).err().unwrap();
    assert!(error.hint().unwrap().contains("has exited"), "{error}");
}

#[test]
fn joins_a_virtual_machine_by_the_users_own_socket() {
    let Some(folder) = folder() else { return };
    let [qmp, human] =
        ["qmp", "human"].map(|name: &str| folder.path().join(name).to_str().unwrap().to_owned());
    let line = format!(
        "-accel tcg,thread=multi -smp 2 -S -qmp unix:{qmp},server=on,wait=off -monitor unix:{human},server=on,wait=off"
    );
    let argv = words(&line);
    let child = Spawn::new(&argv[0]).args(&argv[1..]).stdin(Stdio::Null).stdout(Stdio::Null);
    let child = child.die_with_parent(true).start().unwrap();
    for _ in 0..500 {
        if UnixStream::connect(&human).is_ok() {
            break;
        }
        SystemClock.sleep_ns(SECOND / 100);
    }
    let error = Qmp::connect(&human, SECOND, SystemClock).err().unwrap();
    assert!(error.hint().unwrap().contains("human monitor"), "{error}");

    let host = LiveHost::new().unwrap();
    let mut qmp = Qmp::connect(&qmp, 60 * SECOND, SystemClock).unwrap();
    assert_eq!(qmp.peer(), Some(child.pid()));
    assert_eq!(qmp.peer_user(), Some(pinfold_host::process::own_uid()));
    let found = threads::find(&host, &mut qmp).unwrap();
    let pid = found.pid;
    assert_eq!(pid, child.pid());
    let again = discover(&host, pid, Some(&mut qmp)).unwrap();
    // Whether there is a roll depends on what the rest of the machine does.
    assert_eq!(DiscoveredVm { roll: found.roll.clone(), ..again }, found);
    assert_eq!(found.vcpus, 2);
    // Without debug-threads=on there is nothing to go by.
    let error = discover(&host, pid, None).unwrap_err();
    assert!(matches!(error, VmError::Nameless { .. }), "{error}");
    // A monitor of another process.
    let own = pinfold_host::process::own_pid();
    let error = discover(&host, own, Some(&mut qmp)).unwrap_err();
    assert!(matches!(error, VmError::ForeignThread { .. }), "{error}");
    let error = discover(&host, own, None).unwrap_err();
    assert!(matches!(error, VmError::NotHypervisor { .. }), "{error}");
}

/// Role of the one thread with such a name, once it is there.
fn role_of(vm: &mut RunningVm, name: &str) -> Role {
    let host = LiveHost::new().unwrap();
    for _ in 0..100 {
        let found = discover(&host, vm.pid(), Some(&mut *vm.monitor)).unwrap();
        if let Some(thread) = found.threads.iter().find(|thread| thread.name.starts_with(name)) {
            return thread.role.clone();
        }
        SystemClock.sleep_ns(SECOND / 50);
    }
    panic!("no thread is called {name}");
}

#[test]
fn distinguishes_threads_of_vnc_migration_and_pools_from_vcpus_and_iothreads() {
    let Some(folder) = folder() else { return };
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    pinfold_host::files::write_atomic(&path("disk"), &vec![0; 1 << 20]).unwrap();
    let line = format!(
        "-accel tcg,thread=multi -smp 2 -vnc unix:{} -object iothread,id=io0 \
         -drive file={},format=raw,if=none,id=d0 -device virtio-blk,drive=d0,iothread=io0",
        path("vnc"),
        path("disk")
    );
    let mut vm = start(&folder, &line);
    assert_eq!(role_of(&mut vm, "vnc_worker"), Role::Emulator);
    assert_eq!(role_of(&mut vm, "IO mon_iothread"), Role::Emulator);
    assert_eq!(role_of(&mut vm, "IO io0"), iothread("io0"));
    let write = json!({"command-line": "qemu-io d0 \"aio_write -P 1 0 64k\""});
    qmp(&mut vm).execute("human-monitor-command", Some(write)).unwrap();
    assert_eq!(role_of(&mut vm, "worker"), Role::Worker);
    // So slow that it is there as long as the test.
    qmp(&mut vm).execute("migrate-set-parameters", Some(json!({"max-bandwidth": 1000}))).unwrap();
    qmp(&mut vm).execute("migrate", Some(json!({"uri": "exec:cat >/dev/null"}))).unwrap();
    assert_eq!(role_of(&mut vm, "live_migration"), Role::Emulator);
    qmp(&mut vm).execute("migrate_cancel", None).unwrap();
}

#[test]
fn reports_workers_of_io_uring() {
    let Some(folder) = folder() else { return };
    let disk = folder.path().join("disk").to_str().unwrap().to_owned();
    pinfold_host::files::write_atomic(&disk, &vec![0; 1 << 20]).unwrap();
    let line = format!(
        "-accel tcg -drive file={disk},format=raw,if=none,id=d0,aio=io_uring,cache.direct=on \
         -device virtio-blk,drive=d0"
    );
    let mut vm = match launch::start_stopped(&argv::parse(&words(&line)), &options(&folder)) {
        Ok(vm) => vm,
        Err(VmError::StartFailed { message, .. })
            if message.contains("io_uring") || message.contains("O_DIRECT") =>
        {
            return eprintln!("skipped: {message}");
        }
        Err(error) => panic!("{error}"),
    };
    let write = json!({"command-line": "qemu-io d0 \"aio_write -P 1 0 64k\""});
    qmp(&mut vm).execute("human-monitor-command", Some(write)).unwrap();
    let uring = |vm: &mut RunningVm| {
        let found = discover(&LiveHost::new().unwrap(), vm.pid(), Some(&mut *vm.monitor)).unwrap();
        found.threads.into_iter().find(|thread| thread.name.starts_with("iou-"))
    };
    // The kernel makes one only for what it cannot do at once.
    match (0..20).find_map(|_| uring(&mut vm)) {
        Some(thread) => assert_eq!(thread.role, Role::Worker, "{}", thread.name),
        None => eprintln!("skipped: the kernel made no worker of io_uring for a write"),
    }
}
