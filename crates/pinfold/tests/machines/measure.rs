//! `pinfold measure` and `pinfold compare` as they are typed: what comes out, and what is said
//! where nothing can.

use std::io::Read as _;
use std::path::Path;

use crate::common::{Checked as _, PINFOLD, Sandbox, TIMEOUT_NS, assert_parts, is_missing, skip};
use pinfold_host::process::{Output, Signaled, Spawn, Stdio, find_program};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files, process};
use pinfold_model::{CpuSet, Tid};
use serde_json::Value;

/// The first CPU that this test may use.
fn first_pu() -> String {
    let host = LiveHost::new().expect("a host");
    let mask = host.affinity(Tid(0)).expect("a mask");
    mask.iter().take(1).collect::<CpuSet>().to_string()
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn the_list_names_what_unit_family_and_reference_tools() {
    let home = Sandbox::with_cache();
    let list = home.print_json(&["measure", "--list", "--json"]);
    let probes = list["probes"].as_array().expect("probes");
    let wakeup = probes.iter().find(|probe| probe["name"] == "wakeup").expect("wakeup");
    assert_eq!((&wakeup["unit"], &wakeup["family"]), (&"ns".into(), &"tail".into()));
    assert_eq!(wakeup["anchors"][0]["name"], "cyclictest");
    let text = home.run(&["measure", "--list"]).stdout_text();
    assert!(probes.iter().all(|probe| text.contains(probe["name"].as_str().expect("a name"))));
    assert!(widest(&text) <= 110, "{text}");
}

#[test]
fn eighty_columns_are_enough() {
    let home = Sandbox::with_cache();
    let (pu, file) = (first_pu(), home.path("a.json"));
    let narrow = |words: &[&str]| {
        let output = home.spawn(words).env("COLUMNS", "80").capture(TIMEOUT_NS).expect("runs");
        let text = output.stdout_text();
        assert!(output.status.success(), "{}", output.stderr_text());
        assert!(widest(&text) <= 80, "{words:?}:\n{text}");
        text
    };
    assert_parts(&narrow(&["measure", "--list"]), &["bytes-per-second, capacity; likwid-bench"]);
    let words = ["measure", "wakeup", "--cpus", &pu, "--seconds", "0.1"];
    narrow(&[&words[..], &["--blocks", "2", "--save", &file]].concat());
    narrow(&["measure", "compute", "--cpus", &pu, "--seconds", "0.1"]);
    let compared = narrow(&["compare", &file, &file]);
    assert!(compared.contains("1.00 [1.00, 1.00]"), "a ratio is never broken:\n{compared}");
    let sweep = ["measure", "bandwidth", "--cpus", &pu, "--", "--from", "16K", "--to", "32K"];
    let text = narrow(&[&sweep[..], &["--windows", "30", "--window-us", "100"]].concat());
    assert!(text.lines().any(|line| line.ends_with("read, 16 KiB")), "{text}");
}

#[test]
fn a_probe_lists_the_options_that_it_takes_behind_two_dashes() {
    let home = Sandbox::with_cache();
    let known =
        [("bandwidth", "--from"), ("context-switch", "--processes"), ("parallel", "--threads")];
    for (probe, option) in known {
        let output = home.run(&["measure", probe, "--", "--help"]);
        assert!(output.status.success(), "{probe}: {}", output.stderr_text());
        assert!(output.stdout_text().contains(option), "{probe}: {}", output.stdout_text());
    }
    let output = home.run(&["measure", "wakeup", "--", "--help"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stderr_text().contains("no options of its own"), "{}", output.stderr_text());
}

#[test]
fn a_probe_reports_table_picture_origin_and_is_saved_whole() {
    let home = Sandbox::with_cache();
    let (pu, file) = (first_pu(), home.path("a.json"));
    let words = ["measure", "wakeup", "--cpus", &pu, "--seconds", "0.3", "--save", &file];
    let text = home.print(&words);
    for word in
        ["median", "max", "skipped", ">1 ms", "percentiles", "█", "Linux", "seed", "p99.9 needs"]
    {
        assert!(text.contains(word), "{word}:\n{text}");
    }
    assert!(!text.contains("NaN") && widest(&text) <= 110, "{text}");
    let saved: Value =
        serde_json::from_str(&files::read_text(&file).expect("saved")).expect("JSON");
    assert_eq!(saved["format"], "pinfold-measure/1");
    let figure = &saved["blocks"][0]["figures"][0];
    assert!(figure["samples"].as_array().is_some_and(|samples| samples.len() >= 50));
    assert_eq!(saved["origin"]["accelerator"], "native");
    assert!(saved["blocks"][0]["steal_ticks"].is_u64());
}

/// The `pinload` that this process has started, if it runs already.
fn pinload_of(parent: Tid) -> Option<Tid> {
    let pids = files::list("/proc").ok()?.into_iter().filter_map(|name| name.parse().ok());
    pids.map(Tid).find(|pid| {
        let stat = files::read_text(&format!("/proc/{}/stat", pid.0)).unwrap_or_default();
        let of_parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        stat.contains("(pinload") && of_parent == Some(parent.0.to_string().as_str())
    })
}

#[test]
fn periods_that_a_late_thread_skipped_are_counted_and_distinguished() {
    let home = Sandbox::with_cache();
    let pu = first_pu();
    let words = ["measure", "wakeup", "--cpus", &pu, "--seconds", "1.5", "--json"];
    // What it prints has room in the pipe.
    let child = home.spawn(&words).stdout(Stdio::Pipe).stderr(Stdio::Null).start();
    let mut child = child.expect("it starts");
    let parent = child.task().tid;
    let mut stops = 0;
    // Again and again: one of the stops falls into the time of measuring.
    while child.try_wait().expect("a child").is_none() {
        SystemClock.sleep_ns(50_000_000);
        let Some(pinload) = pinload_of(parent) else { continue };
        let report = |signal| process::signal(pinload, signal).is_ok();
        if report(Signaled::Stop) {
            stops += 1;
            SystemClock.sleep_ns(50_000_000);
            report(Signaled::Continue);
        }
    }
    assert!(stops > 0, "the ruler was never stopped");
    let mut text = String::new();
    child.stdout().expect("a pipe").read_to_string(&mut text).expect("what it printed");
    let reported: Value = serde_json::from_str(&text).expect("JSON");
    let summary = &reported["summary"][0];
    let number = |key: &str| summary["open_loop"][key].as_u64().expect("a number");
    assert!(number("skipped") > 0, "a stop of many periods skips some: {summary}");
    assert_eq!(Some(number("woken") + number("skipped")), summary["n"].as_u64());
    assert_eq!(summary["open_loop"]["woken_max_ns"], summary["max_ns"]);
}

#[test]
fn json_keeps_missing_apart_from_zero() {
    let home = Sandbox::with_cache();
    let pu = first_pu();
    let reported =
        home.print_json(&["measure", "wakeup", "--cpus", &pu, "--seconds", "0.1", "--json"]);
    let summary = &reported["summary"][0];
    assert!(summary["n"].as_u64().is_some_and(|n| n < 10_000));
    assert!(summary["p999_ns"].is_null(), "a hundred samples carry no such quantile: {summary}");
    assert!(summary["max_ns"].is_f64());
    let over = &summary["exceedances"][2];
    assert_eq!(over["limit_ns"], 1e6);
    // Of nothing seen the share is bounded, not zero.
    assert_eq!(over["count"] == 0, over["share_at_most"].is_f64(), "{over}");
}

#[test]
fn gaps_have_a_duty_cycle_and_the_view_of_arrivals() {
    let home = Sandbox::with_cache();
    let pu = first_pu();
    let words = ["measure", "spin-gap", "--cpus", &pu, "--seconds", "0.3", "--duty", "20"];
    let text = home.run(&words).stdout_text();
    assert!(text.contains("duty-percent 20"), "{text}");
    assert!(text.contains("time taken") && text.contains("arrivals at random moments"), "{text}");
    let reported = home.print_json(&[&words[..], &["--json"]].concat());
    assert_eq!(reported["summary"][0]["labels"]["duty-percent"], "20", "{reported}");
}

#[test]
fn a_switch_is_measured_by_number_of_processes_and_drawn_so() {
    let home = Sandbox::with_cache();
    let pu = first_pu();
    let words = ["measure", "context-switch", "--cpus", &pu, "--seconds", "0.02"];
    let text = home.print(&words);
    assert_parts(
        &text,
        &["net", "processes 96", "median by processes, part net", "● kib 0   ○ kib 4"],
    );
    assert!(widest(&text) <= 110, "{text}");
    // Words of the user's own are all that is measured.
    let more = ["--json", "--", "--processes", "3", "--kib", "0"];
    let reported = home.print_json(&[&words[..], &more].concat());
    assert_eq!(reported["summary"].as_array().map(Vec::len), Some(4), "{reported}");
}

#[test]
fn a_capacity_reports_what_was_left_out() {
    let home = Sandbox::with_cache();
    let pu = first_pu();
    let words = ["measure", "compute", "--cpus", &pu, "--seconds", "0.5", "--json"];
    let reported = home.print_json(&words);
    let summary = &reported["summary"][0];
    let number = |key: &str| summary[key].as_f64().expect("a number");
    assert!(number("best") >= number("p10") && number("p10") >= number("median"));
    assert!(summary["contended"].is_boolean());
    let micro =
        home.print_json(&["measure", "micro-cpu", "--seconds", "0.05", "--blocks", "2", "--json"]);
    assert_eq!(micro["measurement"]["blocks"].as_array().map(Vec::len), Some(2));
}

/// A `/proc/stat` of which the steal of all CPUs is 1000 ticks, and grows if somebody is to steal.
///
/// It lies over the real one for a process and its children alone, in a mount namespace.
struct Thief<'h> {
    home: &'h Sandbox,
    script: String,
}

impl<'h> Thief<'h> {
    fn new(home: &'h Sandbox, steals: &str) -> Self {
        let text = files::read_text("/proc/stat").expect("the real one");
        let (pus, rest): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with("cpu"));
        let names: Vec<&str> = pus.iter().filter_map(|line| line.split(' ').next()).collect();
        let format: String =
            names.iter().map(|name: &&str| format!("{name} 1 1 1 1 1 1 1 %08d 0 0\\n")).collect();
        let numbers = "$n ".repeat(names.len());
        let file = home.path("stat");
        home.write("rest", rest.join("\n"));
        // In place, and never shorter: a reader always finds every line.
        let script = format!(
            "n=1000; printf '{format}' {numbers} > {file}; cat {rest} >> {file}
             mount --bind {file} /proc/stat || exit 77
             (while {steals} && [ $n -lt 20000 ]; do
                n=$((n+1)); printf '{format}' {numbers} 1<> {file}; sleep 0.002
              done) &
             \"$@\"; code=$?; kill $! 2> /dev/null; exit $code",
            rest = home.path("rest"),
        );
        Self { home, script }
    }

    fn run(&self, words: &[&str]) -> Output {
        let all = [&["-m", "sh", "-c", &self.script, "sh", PINFOLD], words].concat();
        let cache = self.home.path("cache");
        let spawn = Spawn::new("unshare").args(all).env("XDG_CACHE_HOME", &cache);
        spawn.capture(TIMEOUT_NS).expect("runs")
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", output.stderr_text());
        output.json()
    }
}

#[test]
fn stolen_ticks_contaminate_and_their_windows_are_left_out() {
    let home = Sandbox::with_cache();
    if !process::is_root() || find_program("unshare").is_none() {
        return skip("only root can lay another /proc/stat over the real one, with unshare");
    }
    let (pu, one, other) = (first_pu(), home.path("a.json"), home.path("b.json"));
    let compute = |save| ["measure", "compute", "--cpus", &pu, "--seconds", "0.5", "--save", save];
    let wakeup = ["measure", "wakeup", "--cpus", &pu, "--seconds", "0.3", "--json"];
    let (honest, thief) = (Thief::new(&home, "false"), Thief::new(&home, "true"));
    if honest.run(&["measure", "--list"]).status.code() == Some(77) {
        return skip("mounting over /proc/stat is not allowed here");
    }
    let reported = thief.json(&[&compute(&one)[..], &["--json"]].concat());
    let (stolen, summary) = (&reported["stolen"], &reported["summary"][0]);
    assert_eq!((&stolen["contaminated_blocks"], &stolen["blocks"]), (&1.into(), &1.into()));
    assert!(stolen["ticks"].as_u64() > Some(0), "{stolen}");
    let windows = stolen["windows_left_out"].as_u64().expect("a count");
    let figure = &reported["measurement"]["blocks"][0]["figures"][0];
    let is_hopeless = figure["flags"].to_string().contains("every-window-disturbed");
    assert!(windows > 0 && (is_hopeless || figure["disturbed"].as_u64() >= Some(windows)));
    assert!(is_hopeless || summary["left_out"].as_f64() > Some(0.0), "{summary}");
    // A tail keeps what the hypervisor did.
    let reported = thief.json(&wakeup);
    let figure = &reported["measurement"]["blocks"][0]["figures"][0];
    assert!(figure["flags"].to_string().contains("\"stolen "), "{}", figure["flags"]);
    assert!(reported["summary"][0]["n"].as_u64() > Some(0), "{}", reported["summary"]);
    assert_eq!(reported["stolen"]["windows_left_out"], 0);
    // An instrument that prints figures.
    let words = ["measure", "bandwidth", "--cpus", &pu, "--"];
    let more = ["--from", "16K", "--to", "16K", "--operations", "read"];
    let output = thief.run(&[&words[..], &more].concat());
    let (text, said) = (output.stdout_text(), output.stderr_text());
    assert!(said.contains("warning: stolen time"), "{said}");
    assert!(text.contains("windows excluded for a stolen tick") && text.contains("stolen time: "));
    // Who steals nothing contaminates nothing.
    let reported = honest.json(&[&compute(&other)[..], &["--json"]].concat());
    let stolen = &reported["stolen"];
    assert_eq!((&stolen["ticks"], &stolen["contaminated_blocks"]), (&0.into(), &0.into()));
    assert!(!reported["measurement"]["blocks"].to_string().contains("stolen"), "{reported}");
    let compared = home.print_json(&["compare", &one, &other, "--json"]);
    assert_eq!(compared["stolen"][0]["contaminated_blocks"], 1);
    assert_eq!(compared["stolen"][1]["contaminated_blocks"], 0);
    assert_parts(&home.run(&["compare", &one, &other]).stdout_text(), &["stolen time: first "]);
}

#[test]
fn io_says_who_read() {
    let home = Sandbox::with_cache();
    let output = home.run(&["measure", "io", "--seconds", "1"]);
    let (text, said) = (output.stdout_text(), output.stderr_text());
    assert!(output.status.success(), "{said}");
    // fio reads past the page cache or not at all.
    let is_fio = find_program("fio").is_some() && !text.contains("buffered");
    let tool = if is_fio { "by fio-" } else { "by pinload" };
    assert!(text.contains(tool), "{text}");
    // Its file went with it.
    let left = files::list(&home.path("cache/pinfold/measure")).unwrap_or_default();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn io_is_read_and_flagged_where_the_page_cache_cannot_be_passed() {
    let home = Sandbox::with_cache();
    if !process::is_root() || find_program("unshare").is_none() {
        return skip("only root can mount a file system without O_DIRECT, with unshare");
    }
    // In a mount namespace of its own; ramfs refuses O_DIRECT.
    let (folder, file) = (home.path("ram"), home.path("ram/blocks"));
    files::make_dirs(&folder).expect("a folder");
    let script = format!(
        "mount -t ramfs none {folder} || exit 77; head -c 1048576 /dev/urandom > {file}; exec \"$@\""
    );
    let run = |more: &[&str]| {
        let words = ["-m", "sh", "-c", &script, "sh", PINFOLD, "measure", "io", "--file", &file];
        let spawn = Spawn::new("unshare").args([&words[..], &["--seconds", "0.1"], more].concat());
        spawn.env("XDG_CACHE_HOME", &home.path("cache")).capture(TIMEOUT_NS).expect("runs")
    };
    let output = run(&[]);
    if output.status.code() == Some(77) {
        return skip("mounting is not allowed here");
    }
    let (text, said) = (output.stdout_text(), output.stderr_text());
    assert!(output.status.success(), "{said}");
    assert!(text.contains("by pinload") && text.contains("buffered"), "{text}");
    assert_eq!(said.contains("O_DIRECT"), find_program("fio").is_some(), "{said}");
    if find_program("fio").is_some() {
        let said = run(&["--against", "fio", "--blocks", "1"]).expect_code(2);
        assert!(said.contains("page cache") && said.contains("--file"), "{said}");
    }
}

#[test]
fn a_reference_tool_runs_where_ours_does_and_under_its_policy() {
    let home = Sandbox::with_cache();
    let host = LiveHost::new().expect("a host");
    let mask = host.affinity(Tid(0)).expect("a mask");
    if mask.len() < 2 {
        return skip("one CPU is all there is");
    }
    // A perf that tells where and how it runs, and a time that perf could tell.
    let (bin, reported) = (home.path("bin"), home.path("told"));
    files::make_dirs(&bin).expect("a folder");
    let script = format!(
        "#!/bin/sh\n\
         grep Cpus_allowed_list /proc/self/status > {reported}\n\
         cut -d' ' -f40,41 /proc/self/stat >> {reported}\n\
         echo 1.126\n"
    );
    files::write_program(&format!("{bin}/perf"), script.as_bytes()).expect("written");
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    let run = |policy: &str| {
        let words = ["measure", "context-switch", "--seconds", "0.05", "--against", "perf"];
        let more = ["--blocks", "1", "--policy", policy];
        let spawn = home.spawn(&[&words[..], &more].concat()).env("PATH", &path);
        spawn.capture(TIMEOUT_NS).expect("runs").expect_success();
        files::read_text(&reported).expect("what it told")
    };
    // Without --cpus ours holds its ring on the first of all.
    let expected = format!("Cpus_allowed_list:\t{}\n", first_pu());
    assert_eq!(run("other"), format!("{expected}0 0\n"));
    if process::is_root() {
        assert_eq!(run("fifo:5"), format!("{expected}5 1\n"));
    }
    let io = ["measure", "io", "--against", "fio", "--policy", "fifo:5", "--seconds", "0.1"];
    if find_program("fio").is_some() {
        home.refuse_silently(&io, 2, "--policy other");
    }
}

#[test]
fn what_cannot_be_measured_is_reported_with_a_hint() {
    let home = Sandbox::with_cache();
    home.refuse_silently(&["measure", "wakup"], 2, "did you mean wakeup?");
    home.refuse_silently(&["measure", "wakeup", "--cpus", "60000"], 2, "has no CPU 60000");
    home.refuse_silently(&["measure", "wakeup", "--cpus", "3-1"], 2, "backwards");
    home.refuse_silently(&["measure", "wakeup", "--node", "900"], 2, "no node 900");
    home.refuse_silently(&["measure", "wakeup", "--policy", "rr:3"], 2, "is not a policy");
    home.refuse_silently(&["measure", "wakeup", "--policy", "fifo:99"], 2, "out of range");
    home.refuse_silently(&["measure", "wakeup", "--seconds", "0"], 2, "--seconds 0");
    home.refuse_silently(&["measure", "wakeup", "--seconds", "NaN"], 2, "out of range");
    home.refuse_silently(&["measure", "compute", "--period", "1ms"], 2, "compute has no period");
    home.refuse_silently(&["measure", "wakeup", "--period", "1ns"], 2, "out of range");
    home.refuse_silently(&["measure", "io", "--file", "/nonexistent/disk"], 2, "/nonexistent/disk");
    home.refuse_silently(&["measure", "wakeup", "--vnode", "a"], 1, "no platform is up");
    home.refuse_silently(&["measure", "wakeup", "--plan", "/nonexistent/p"], 2, "/nonexistent/p");
    home.refuse_silently(&["measure", "wakeup", "--guest", "/nonexistent/s"], 2, "no such socket");
    home.refuse_silently(
        &["measure", "micro-cpu", "--policy", "fifo:3"],
        2,
        "only under the policy other",
    );
    home.refuse_silently(&["measure", "compute", "--keep-awake"], 2, "does not keep CPUs awake");
    home.refuse_silently(&["measure", "compute", "--duty", "30"], 2, "compute has no duty cycle");
    home.refuse_silently(
        &["measure", "counters", "--process", "1", "--duty", "30"],
        2,
        "--duty has no effect",
    );
    home.refuse_silently(&["measure", "spin-gap", "--duty", "0"], 2, "--duty");
    home.refuse_silently(
        &["measure", "wakeup", "--quantities", "cycles"],
        2,
        "threads of other processes",
    );
    let wrong = ["measure", "counters", "--process", "1", "--quantities", "cycles,flops"];
    home.refuse_silently(&wrong, 2, "there is no \"flops\"");
    home.refuse_silently(&wrong, 2, "quantities are run-time, migrations");
    let sched = ["measure", "sched", "--process", "1", "--quantities", "cycles"];
    home.refuse_silently(&sched, 2, "--quantities has no effect on sched");
    home.refuse_silently(
        &["measure", "wakeup", "--against", "cyclic"],
        2,
        "reference tools are cyclictest",
    );
    home.refuse_silently(&["measure", "wakeup", "--against", "fio"], 2, "there is cyclictest");
    home.refuse_silently(
        &["measure", "compute", "--against", "fio"],
        2,
        "no reference tool measures exactly",
    );
    // Shorter than a period: there would be no sample.
    home.refuse_silently(
        &["measure", "wakeup", "--seconds", "0.01", "--period", "1s"],
        2,
        "longer than",
    );
}

#[test]
fn an_offline_pu_is_reported() {
    let host = LiveHost::new().expect("a host");
    let offline = pinfold_topology::discover(&host).expect("a topology").offline;
    let Some(first) = offline.iter().next() else {
        return skip("no CPU of this machine is offline (the lab has one)");
    };
    let pu = first.0.to_string();
    Sandbox::with_cache().refuse_silently(&["measure", "wakeup", "--cpus", &pu], 3, "is offline");
}

#[test]
fn a_refused_real_time_policy_is_flagged() {
    let home = Sandbox::with_cache();
    let pu = first_pu();
    let words = ["measure", "wakeup", "--cpus", &pu, "--seconds", "0.1", "--policy", "fifo:50"];
    // Without the right (RLIMIT_RTPRIO is 0 and CAP_SYS_NICE is gone) the ruler goes on as other.
    let Some(setpriv) = find_program("setpriv").filter(|_| process::is_root()) else {
        return skip("only root can take the right away here, with setpriv");
    };
    let mut all = vec!["--bounding-set=-sys_nice", "--inh-caps=-sys_nice", PINFOLD];
    all.extend(words);
    let output = Spawn::new(&setpriv)
        .args(all)
        .env("XDG_CACHE_HOME", &home.path("cache"))
        .capture(TIMEOUT_NS)
        .expect("runs");
    let said = [output.stdout_text(), output.stderr_text()].concat();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("fifo refused"), "{said}");
}

#[test]
fn a_reference_tool_that_is_missing_or_prints_garbage_is_reported() {
    let home = Sandbox::with_cache();
    let (pu, bin) = (first_pu(), home.path("bin"));
    let words =
        ["measure", "wakeup", "--cpus", &pu, "--seconds", "0.05", "--against", "cyclictest"];
    let run = |path: &str| home.spawn(&words).env("PATH", path).capture(TIMEOUT_NS).expect("runs");
    let said = run("/nonexistent").expect_code(3);
    assert!(said.contains("not installed") && said.contains("apt-get install rt-tests"), "{said}");
    files::make_dirs(&bin).expect("a folder");
    // A program of that name which says yes to everything and writes nothing.
    let truth = find_program("true").expect("true");
    std::os::unix::fs::symlink(truth, Path::new(&bin).join("cyclictest")).expect("a link");
    let silent = run(&bin);
    let said = silent.expect_code(3);
    assert!(said.contains("cyclictest") && silent.stdout.is_empty(), "{said}");
}

#[test]
fn a_cross_check_reports_ratio_and_interval() {
    let home = Sandbox::with_cache();
    if is_missing(&["cyclictest"]) {
        return;
    }
    let pu = first_pu();
    let words = ["measure", "wakeup", "--cpus", &pu, "--seconds", "0.2", "--blocks", "2"];
    let reported = home.print_json(&[&words[..], &["--against", "cyclictest", "--json"]].concat());
    assert_eq!((&reported["anchor"], &reported["blocks"]), (&"cyclictest".into(), &2.into()));
    for row in reported["rows"].as_array().expect("rows") {
        assert!(row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
        assert_eq!(row["interval"].as_array().map(Vec::len), Some(2));
        assert_eq!(row["ours"].as_array().map(Vec::len), Some(2));
    }
    let said = home.run(&[&words[..], &["--against", "cyclictest"]].concat());
    assert!(said.stdout_text().contains("ours / theirs [95 %]"), "{}", said.stdout_text());
}

#[test]
fn two_files_are_compared_and_what_does_not_match_is_reported() {
    let home = Sandbox::with_cache();
    let pu = first_pu();
    let measure = |name: &str, period: &str| {
        let file = home.path(name);
        let words = ["measure", "wakeup", "--cpus", &pu, "--seconds", "0.1", "--blocks", "2"];
        let more = ["--period", period, "--save", &file];
        home.run(&[&words[..], &more].concat()).expect_success();
        file
    };
    let (one, other, slow) =
        (measure("a.json", "1ms"), measure("b.json", "1ms"), measure("c.json", "2ms"));
    let reported = home.print_json(&["compare", &one, &other, "--json"]);
    assert_eq!(reported["blocks"], 2);
    let row = &reported["rows"][0];
    assert!(row["ratio"].is_f64() && row["interval"].is_array());
    assert_eq!(row["outcome"], "unknown: 2 blocks, 8 needed");
    let text = home.run(&["compare", &one, &other]).stdout_text();
    assert!(text.contains("not measured in the same blocks"), "{text}");
    home.refuse_silently(&["compare", &one, &slow], 2, "only the first has wakeup period-us=1000");
    home.refuse_silently(&["compare", &one], 2, "compare needs two sides");
    home.refuse_silently(&["compare", &one, "/nonexistent/x"], 2, "/nonexistent/x");
    let broken = home.write("broken.json", b"{\"format\":\"pinfold-measure/9\"}");
    home.refuse_silently(&["compare", &one, &broken], 2, "pinfold-measure/9");
}

#[test]
fn gaps_are_compared_by_what_arrivals_meet_and_unequal_times_are_reported() {
    let home = Sandbox::with_cache();
    let pu = first_pu();
    let measure = |name: &str, seconds: &str| {
        let file = home.path(name);
        let words = ["measure", "spin-gap", "--cpus", &pu, "--seconds", seconds, "--save", &file];
        home.run(&words).expect_success();
        file
    };
    let (short, long) = (measure("a.json", "0.1"), measure("b.json", "1"));
    let reported = home.print_json(&["compare", &short, &long, "--json"]);
    let names: Vec<_> = reported["rows"].as_array().expect("rows").iter().collect();
    let row = |name: &str| names.iter().find(|row| row["statistic"] == name).expect("a row");
    assert_eq!((row("taken")["unit"].as_str(), names.len()), (Some("share"), 5), "{reported}");
    assert!(row("waits-over-1000us")["floor"].as_f64() > Some(0.0), "{reported}");
    let longest = row("max")["outcome"].to_string();
    assert!(longest.contains("no verdict: ") && row("max")["verdict"].is_null(), "{longest}");
    assert!(reported["remarks"].to_string().contains("grows with the duration"), "{reported}");
    let text = home.run(&["compare", &short, &long]).stdout_text();
    assert!(text.contains("time taken") && text.contains("waits > 10 µs"), "{text}");
}

#[test]
fn two_plans_are_compared_block_by_block() {
    let home = Sandbox::with_cache();
    let host = LiveHost::new().expect("a host");
    let mask = host.affinity(Tid(0)).expect("a mask");
    let mut files = Vec::new();
    for (index, strategy) in ["none", "compact"].into_iter().enumerate() {
        let plan = home.print(&["plan", "-s", strategy, "--vcpus", "1", "--json"]);
        files.push(home.write(&format!("{index}.json"), plan));
    }
    let words = ["compare", "--plan", &files[0], "--plan", &files[1], "--blocks", "2", "--json"];
    let probe = ["--", "wakeup", "--seconds", "0.1"];
    let output = home.run(&[&words[..], &probe].concat());
    let said = output.stderr_text();
    if mask.len() < 2 && output.status.code() == Some(2) {
        return skip("one CPU has one placement");
    }
    assert!(output.status.success(), "{said}");
    let reported: Value = output.json();
    assert_eq!(reported["blocks"], 2);
    assert!(reported["remarks"].to_string().contains("under compact"), "{reported}");
    home.refuse_silently(&words[..7], 2, "no probe was given");
    home.refuse_silently(&[&words[..7], &["--", "wakup"]].concat(), 2, "did you mean wakeup?");
    home.refuse_silently(&[&words[..7], &["--", "wakeup", "--wrong"]].concat(), 2, "--wrong");
    // A place in a plan.
    let measured = ["measure", "wakeup", "--plan", &files[1], "--seconds", "0.1", "--json"];
    let place = home.print_json(&measured)["measurement"]["place"].to_string();
    assert!(place.contains("as vcpu of vm under compact"), "{place}");
    let role = ["measure", "wakeup", "--plan", &files[1], "--role", "vcpu(9)"];
    home.refuse_silently(&role, 2, "its roles are");
}
