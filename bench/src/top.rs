//! `top`: what one sample of `pinfold top` costs, by BPF and from `/proc`, in the same rounds.
//!
//! The machines are real: QEMUs that are paused, with 500 vCPUs together, and QEMUs whose vCPU jumps
//! to itself from its first instruction on, ten together. Both samplers observe the same threads at
//! the same time. `strace` counts the system calls of a sample, in samples whose time does not
//! count.

use pinfold_host::process::{self, Child, Signaled, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files, paths};
use pinfold_stats::{median, quantile};
use pinfold_top::{Machine, Method, Sampler, Thread};
use pinfold_vm::launch::{self, RunningVm};
use pinfold_vm::qemu::{Qmp, QmpTransport as _};
use serde_json::Value;

use crate::arguments::{Arguments, Failure};
use crate::page::{Figures, Table};
use crate::pairs::{self, Contender, milliseconds, ratio};
use crate::scratch::Scratch;
use crate::{guest, origin};

const GUESTS: u32 = 10;
const ROUNDS: u32 = 60;
const SECOND_NS: u64 = 1_000_000_000;
/// Samples whose system calls are counted.
const COUNTED: usize = 5;
const PATIENCE_NS: u64 = 10 * SECOND_NS;
/// Seconds for which the whole command is observed: with some searches for new machines.
const COMMAND_SECONDS: u64 = 31;
/// `jmp` to itself, also at the first instruction.
const BIOS: [u8; 2] = [0xeb, 0xfe];

/// Machines to observe.
struct Scene {
    name: &'static str,
    vcpus_of_guest: u32,
    is_paused: bool,
    /// Goals for the share of a CPU: by BPF, from `/proc`.
    goals: [f64; 2],
}

const SCENES: [Scene; 2] = [
    Scene { name: "500 vCPUs, paused", vcpus_of_guest: 50, is_paused: true, goals: [0.001, 0.005] },
    Scene { name: "10 vCPUs that run", vcpus_of_guest: 1, is_paused: false, goals: [0.001, 0.005] },
];

/// Measures all scenes.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let (host, scratch) = (LiveHost::new()?, Scratch::in_memory()?);
    let topology = pinfold_topology::discover(&host)?;
    let machine = origin::of_host(&host, &topology)?;
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let pinfold = pairs::program_beside(arguments)?;
    let bios = scratch.file("bios");
    files::write_atomic(&bios, &BIOS.repeat(1 << 15))?;
    let mut samples = Table { head: HEAD.map(str::to_owned).to_vec(), rows: Vec::new() };
    let head = ["`pinfold top`, the whole command", "share of a CPU", "of it in the kernel by BPF"];
    let mut commands = Table { head: head.map(str::to_owned).to_vec(), rows: Vec::new() };
    let mut version = String::new();
    for scene in &SCENES {
        let guests: Vec<RunningVm> =
            (0..GUESTS).map(|number| start(number, scene, &bios)).collect::<Result<_, _>>()?;
        version = guests.first().ok_or("no guest")?.version.to_string();
        let machines: Vec<Machine> = guests.iter().map(machine_of).collect();
        samples.rows.extend(sample_rows(&host, &scratch, scene, &machines, arguments)?);
        commands.rows.push(command_row(&scratch, scene, &pinfold)?);
    }
    Ok(Figures {
        name: "top".to_owned(),
        title: "the cost of a sample of `pinfold top`".to_owned(),
        origin: format!(
            "{machine}; {GUESTS} machines of QEMU {version} under TCG, all threads observed; Pinfold {}; {rounds} rounds, each with one sample of both samplers in random order, a second apart, seed {}",
            env!("CARGO_PKG_VERSION"), arguments.seed
        ),
        tables: vec![samples, commands],
        notes: vec![
            "The time is that of the thread that samples, by its CPU clock; the share is that of one sample per second. Both begin when the machines are known.".to_owned(),
            format!("System calls are those of {COUNTED} samples under strace, a second apart, divided by {COUNTED}. The program in the kernel runs at each switch of the host, whatever is observed; its share is of one CPU, over all CPUs."),
            format!("The whole command also searches for machines every five seconds and reads the claims every thirty: the mean of {COMMAND_SECONDS} seconds without the first, as it reports them."),
        ],
    })
}

const HEAD: [&str; 8] = [
    "threads",
    "read",
    "CPU time of a sample: median",
    "5 % – 95 %",
    "share of a CPU (goal)",
    "ratio to /proc [95 %], p",
    "system calls of a sample",
    "program in the kernel, share of a CPU",
];

fn start(number: u32, scene: &Scene, bios: &str) -> Result<RunningVm, Failure> {
    let qemu = process::find_program("qemu-system-x86_64")
        .ok_or("qemu-system-x86_64 is not installed; apt-get install qemu-system-x86")?;
    let vcpus = scene.vcpus_of_guest;
    let line = format!(
        "{qemu} -nodefaults -no-user-config -display none -M q35 -m 64 -bios {bios} -accel tcg,thread=multi,tb-size=16 -smp {vcpus} -name guest=bench{number},debug-threads=on"
    );
    let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let mut vm = launch::start_stopped(&pinfold_qemu::parse(&argv), &guest::quiet())?;
    if !scene.is_paused {
        let qmp = Qmp::downcast_monitor(&mut *vm.monitor).ok_or("the machine has no QMP")?;
        qmp.execute("cont", None)?;
    }
    Ok(vm)
}

fn machine_of(vm: &RunningVm) -> Machine {
    let threads = vm.found.threads.iter().map(|thread| Thread {
        task: thread.task,
        role: thread.role.clone(),
        name: thread.name.clone(),
    });
    Machine {
        name: format!("bench-{}", vm.pid()),
        pid: vm.pid(),
        threads: threads.collect(),
        placement: None,
        exits: None,
    }
}

/// A row for each sampler.
fn sample_rows(
    host: &LiveHost,
    scratch: &Scratch,
    scene: &Scene,
    machines: &[Machine],
    arguments: &Arguments,
) -> Result<Vec<Vec<String>>, Failure> {
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let mut by_bpf = Sampler::new(host, SystemClock.now_ns());
    let mut by_proc = Sampler::from_proc(host, SystemClock.now_ns(), "the benchmark compares");
    for sampler in [&mut by_bpf, &mut by_proc] {
        sampler.set_machines(machines.to_vec(), Vec::new(), &SystemClock);
    }
    if by_bpf.method() != Method::Bpf {
        let notes = by_bpf.sample(SystemClock.now_ns()).notes;
        return Err(format!("the BPF program is not loaded: {}", notes.join("; ")).into());
    }
    let mut contenders = [
        Contender::new("BPF", || Ok(sample(&mut by_bpf))),
        Contender::new("/proc", || Ok(sample(&mut by_proc))),
    ];
    let times = pairs::rounds(&mut contenders, rounds, arguments.seed)?;
    drop(contenders);
    // What the program took until now.
    by_bpf.set_machines(machines.to_vec(), Vec::new(), &SystemClock);
    let kernel = by_bpf.sample(SystemClock.now_ns()).kernel_share;
    let calls = [count_calls(scratch, &mut by_bpf)?, count_calls(scratch, &mut by_proc)?];
    let threads: usize = machines.iter().map(|machine| machine.threads.len()).sum();
    let rival = times.get(1).ok_or("no times of /proc")?.samples.clone();
    let rows = times.iter().zip(calls).zip(scene.goals).enumerate();
    Ok(rows
        .map(|(index, ((one, calls), goal))| {
            let share = median(&one.samples).unwrap_or(f64::NAN) / SECOND_NS as f64;
            let is_bpf = index == 0;
            let kernel = kernel.filter(|_| is_bpf);
            vec![
                format!("{threads} ({})", scene.name),
                one.name.clone(),
                milliseconds(median(&one.samples)),
                format!(
                    "{} – {}",
                    milliseconds(quantile(&one.samples, 0.05)),
                    milliseconds(quantile(&one.samples, 0.95))
                ),
                format!("{} ({})", per_cent(share), per_cent(goal)),
                if is_bpf { ratio(&one.samples, &rival) } else { "1".to_owned() },
                format!("{calls:.1}"),
                kernel.map_or_else(|| "–".to_owned(), per_cent),
            ]
        })
        .collect())
}

fn per_cent(share: f64) -> String {
    format!("{:.3} %", share * 100.0)
}

/// CPU time of one sample; the two of a round are together a second.
fn sample(sampler: &mut Sampler<'_>) -> f64 {
    SystemClock.sleep_ns(SECOND_NS / 2);
    let before = SystemClock.spent_ns();
    let snapshot = sampler.sample(SystemClock.now_ns());
    let after = SystemClock.spent_ns();
    drop(snapshot);
    after.saturating_sub(before) as f64
}

/// System calls of a sample.
fn count_calls(scratch: &Scratch, sampler: &mut Sampler<'_>) -> Result<f64, Failure> {
    let (trace, mark) = (scratch.file("strace"), scratch.file("mark"));
    let own = process::own_tid().to_string();
    let mut strace = Spawn::new("strace")
        .args(["-q", "-s", "200", "-o", &trace, "-p", &own])
        .stdin(Stdio::Null)
        .stderr(Stdio::Null)
        .die_with_parent(true)
        .start()?;
    wait_for_tracer(&strace)?;
    let mut is_there = files::exists(&mark);
    for _ in 0..COUNTED {
        SystemClock.sleep_ns(SECOND_NS);
        drop(sampler.sample(SystemClock.now_ns()));
    }
    is_there |= files::exists(&mark);
    process::signal(strace.pid(), Signaled::Interrupt)?;
    strace.wait_for(&SystemClock, PATIENCE_NS)?;
    if is_there {
        return Err(format!("{mark} is there").into());
    }
    let text = files::read_text(&trace)?;
    let lines: Vec<&str> = text.lines().collect();
    let marks: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].contains(&mark)).collect();
    let [first, second, ..] = marks[..] else {
        return Err(format!("strace has {} marks, not 2: {text}", marks.len()).into());
    };
    let calls = lines[first + 1..second].iter().filter(|line| !line.contains("nanosleep"));
    Ok(calls.count() as f64 / COUNTED as f64)
}

/// Waits until strace has attached to this thread.
fn wait_for_tracer(strace: &Child) -> Result<(), Failure> {
    let (host, end) = (LiveHost::new()?, SystemClock.now_ns() + PATIENCE_NS);
    let own = process::own_tid();
    let expected = format!("TracerPid:\t{}\n", strace.pid());
    while !host.read_text(&paths::task_file(own, own, "status"))?.contains(&expected) {
        if SystemClock.now_ns() > end {
            return Err("strace did not attach within 10 s; is ptrace forbidden?".into());
        }
        SystemClock.sleep_ns(SECOND_NS / 100);
    }
    Ok(())
}

/// The mean shares that the command reports about itself.
fn command_row(scratch: &Scratch, scene: &Scene, pinfold: &str) -> Result<Vec<String>, Failure> {
    let record = scratch.file(&format!("record-{}", scene.vcpus_of_guest));
    let mut command = Spawn::new(pinfold)
        .args(["top", "--json", "--record", &record])
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .die_with_parent(true)
        .start()?;
    SystemClock.sleep_ns(COMMAND_SECONDS * SECOND_NS);
    process::signal(command.pid(), Signaled::Interrupt)?;
    command.wait_for(&SystemClock, PATIENCE_NS)?;
    let text = files::read_text(&record)?;
    // The first sample has the start of the program.
    let lines = text.lines().skip(1);
    let lines: Vec<Value> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok(vec![
        scene.name.to_owned(),
        mean(&lines, "own_share").map_or_else(|| "–".to_owned(), per_cent),
        mean(&lines, "kernel_share").map_or_else(|| "–".to_owned(), per_cent),
    ])
}

/// The mean of a number, over the lines that have it.
fn mean(lines: &[Value], key: &str) -> Option<f64> {
    let values: Vec<f64> = lines.iter().filter_map(|line| line[key].as_f64()).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
