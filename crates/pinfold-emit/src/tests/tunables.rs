//! Tunables: each one in each format, as a setting or in a comment, and none that a host refuses.

use std::collections::BTreeSet;

use pinfold_config::requests::set_tunable;
use pinfold_host::{files, paths, process};
use pinfold_model::tunables::{self, TUNABLES, Value, governor, settings};
use pinfold_model::{NodeId, Plan, PuId, Severity, Topology};
use pinfold_plan::{plan, validate};
use pinfold_samples::machine::{Machine, dual_e5_2670, i7_4790k};
use pinfold_samples::{auto, exactly};

use super::golden;
use crate::{self as emit, Merged};

const SECOND: u64 = 1_000_000_000;

/// One of each, in command line syntax.
const ALL: [&str; 27] = [
    "policy:vcpu=fifo:1",
    "irq:0000:81:00.0=0,4",
    "new-irqs=0,4",
    "workqueues=0,4",
    "writeback=0,4",
    "watchdog-cpus=0,4",
    "timer-migration=off",
    "stat-interval=10",
    "numa-balancing=off",
    "llc-balancing=off",
    "thp=never",
    "khugepaged-defrag=off",
    "ksm=unmerge",
    "halt-poll-ns=400000",
    "wake-up-us=20",
    "rt-throttle=off",
    "governor=performance",
    "max-khz=4400000",
    "min-khz=4000000",
    "huge-pages=0:2048:512",
    "share=L3:0=ff0",
    "cpu-weight=200",
    "cpu-quota=150000/100000",
    "partition=isolated",
    "smt=on",
    "offline=7",
    "required=yes",
];

#[track_caller]
fn plan_with(strategy: &str, vcpus: u32, topology: &Topology, words: &[&str]) -> Plan {
    let mut request = exactly(vcpus);
    request.vnodes[0].name = "win-10 'x'".to_owned();
    let mut layout = plan(strategy, topology, &request).unwrap();
    words.iter().for_each(|words| set_tunable(&mut layout, words).unwrap());
    layout
}

pub fn everything() -> (Plan, Topology) {
    let mut topology = i7_4790k().build();
    topology.nodes[0].memory_bytes = 32 << 30;
    let more = ["share=MB:0=50", "huge-pages=0:1048576:4"];
    (plan_with("low-latency", 2, &topology, &[&ALL[..], &more].concat()), topology)
}

/// The text of each format, with its file name.
fn texts(layout: &Plan, topology: &Topology) -> Vec<(String, String)> {
    let command = pinfold_qemu::QemuCommand::default();
    emit::FORMATS
        .iter()
        .map(|format| (file_name(format.name), format.text(layout, topology, &command).unwrap()))
        .collect()
}

/// The name of the golden text of a format.
pub fn file_name(name: &str) -> String {
    match name {
        "libvirt" => "libvirt.xml".to_owned(),
        "tuned" => "tuned.conf".to_owned(),
        "kubevirt" => "kubevirt.yaml".to_owned(),
        "cmdline" | "systemd" => name.to_owned(),
        script => format!("{script}.sh"),
    }
}

#[test]
fn one_of_each_is_every_key_and_comes_back_from_its_text() {
    let (layout, topology) = everything();
    let known: BTreeSet<&str> = TUNABLES.iter().map(|one| one.key).collect();
    let found: BTreeSet<&str> = settings(&layout).iter().map(|one| one.tunable.key).collect();
    assert_eq!(found, known);
    let mut again = plan_with("low-latency", 2, &topology, &[]);
    for setting in settings(&layout) {
        set_tunable(&mut again, &setting.to_string()).unwrap();
    }
    assert_eq!(words(&again), words(&layout));
    assert!(validate(&layout, &topology).is_empty(), "{:?}", validate(&layout, &topology));
}

fn words(layout: &Plan) -> Vec<String> {
    settings(layout).iter().map(ToString::to_string).collect()
}

#[test]
fn every_format_names_every_tunable() {
    let (layout, topology) = everything();
    for (name, text) in texts(&layout, &topology) {
        golden(&format!("tunables.{name}"), &text);
        for setting in settings(&layout) {
            let said = match (setting.tunable.key, name.as_str()) {
                ("policy", "libvirt.xml") => "<vcpusched vcpus='0' scheduler='fifo' priority='1'/>",
                ("policy", "virsh.sh") => "# vcpu(0) under the policy fifo 1",
                ("policy", "qemu.sh" | "proxmox.sh") => "schedule 'CPU 0/' -f -p 1",
                _ => &setting.to_string(),
            };
            assert!(text.contains(said), "{name} does not say {said}:\n{text}");
        }
    }
}

/// A plan that shares all its CPUs with the host still has its tunables.
#[test]
fn a_plan_that_keeps_nothing_apart_says_its_tunables() {
    let topology = i7_4790k().build();
    let mut layout = plan("max-performance", &topology, &auto()).unwrap();
    set_tunable(&mut layout, "thp=never").unwrap();
    assert!(emit::cmdline(&layout, &topology).contains("\ntransparent_hugepage=never\n"));
    let tuned = emit::tuned_profile(&layout, &topology);
    assert!(tuned.contains("[main]\n") && tuned.contains("[vm]\n# thp=never\n"), "{tuned}");
    assert!(!tuned.contains("isolated_cores"), "{tuned}");
    let units = emit::systemd(&layout).unwrap();
    assert!(units.contains("w /sys/kernel/mm/transparent_hugepage/enabled - - - - never\n"));
}

#[test]
fn scripts_are_shell_and_quote_what_is_not_theirs() {
    let (mut layout, topology) = everything();
    let governor = Value::Name("a'; reboot; '\n#".to_owned());
    layout.tuning.set(&governor::TUNABLE, governor);
    layout.irqs[0].device = "$(reboot)`reboot`\nreboot".to_owned();
    let Some(shell) = process::find_program("sh") else {
        eprintln!("skipped: sh is not installed");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in texts(&layout, &topology) {
        assert_eq!(
            text.lines().find(|line| line.trim_start().starts_with("reboot")),
            None,
            "{name}:\n{text}"
        );
        if name.ends_with(".sh") {
            let file = format!("{}/{name}", folder.path().display());
            files::write_atomic(&file, text.as_bytes()).unwrap();
            let output = process::capture(&shell, ["-n", file.as_str()], 5 * SECOND).unwrap();
            assert!(output.status.success(), "{}\n{text}", output.stderr_text());
        }
    }
}

/// systemd's own program writes the files, below a directory.
#[test]
fn systemd_writes_what_tmpfiles_says() {
    let Some(program) = process::find_program("systemd-tmpfiles") else {
        eprintln!("skipped: systemd-tmpfiles is not installed");
        return;
    };
    let (layout, _) = everything();
    let text = emit::systemd(&layout).unwrap();
    let file = text.split("# FILE: /etc/tmpfiles.d/").nth(1).unwrap();
    let (name, rest) = file.split_once('\n').unwrap();
    let content = rest.split("# FILE: ").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().display().to_string();
    let lines: Vec<Vec<&str>> = content
        .lines()
        .filter(|line| line.starts_with("w "))
        .map(|line| line.split(' ').collect())
        .collect();
    for line in &lines {
        files::make_dirs(&format!("{root}{}", line[1].rsplit_once('/').unwrap().0)).unwrap();
        files::write_atomic(&format!("{root}{}", line[1]), b"before").unwrap();
    }
    let config = format!("{root}/{name}");
    files::write_atomic(&config, content.as_bytes()).unwrap();
    let words = ["--create", &format!("--root={root}"), &config];
    let output = process::capture(&program, words, 30 * SECOND).unwrap();
    assert!(output.status.success(), "{}", output.stderr_text());
    for line in &lines {
        // It overwrites the old content in place; a kernel file takes each write as a new value.
        let written = files::read_text(&format!("{root}{}", line[1])).unwrap();
        assert!(written.starts_with(line[6]), "{line:?}: {written:?}");
    }
    assert_eq!(lines.len(), 28, "{content}");
}

/// The same files as `pinfold apply` writes.
#[test]
fn files_are_those_of_apply() {
    let (layout, _) = everything();
    let pus = layout.pus();
    let found: BTreeSet<String> = settings(&layout)
        .into_iter()
        .flat_map(|one: tunables::Setting| one.tunable.files(&one.value, &pus))
        .map(|(path, _)| path)
        .collect();
    let mut expected: BTreeSet<String> = [
        paths::default_smp_affinity(),
        paths::workqueue_cpumask(),
        paths::sysctl_kernel("numa_balancing"),
        paths::debug_sched("llc_balancing/enabled"),
        paths::sysctl_kernel("sched_rt_runtime_us"),
        paths::sysctl_kernel("timer_migration"),
        paths::sysctl_kernel("watchdog_cpumask"),
        "/proc/sys/vm/stat_interval".to_owned(),
        "/sys/devices/virtual/workqueue/writeback/cpumask".to_owned(),
        "/sys/module/kvm/parameters/halt_poll_ns".to_owned(),
        paths::thp_file("enabled"),
        paths::thp_file("khugepaged/defrag"),
        paths::ksm_run(),
        paths::smt_control(),
        paths::cpu_is_online(PuId(7)),
        paths::node_huge_pages(NodeId(0), 2 << 20),
        paths::node_huge_pages(NodeId(0), 1 << 30),
    ]
    .into();
    for pu in layout.pus().iter() {
        expected.insert(paths::cpu_resume_latency(pu));
        for file in ["scaling_governor", "scaling_min_freq", "scaling_max_freq"] {
            expected.insert(paths::cpufreq_file(pu, file));
        }
    }
    assert_eq!(found, expected);
}

/// The exact lines, if a value or the rest of the plan matters.
#[test]
fn values_become_the_words_of_each_tool() {
    let topology = dual_e5_2670().build();
    check(
        &topology,
        &["cpu-quota=33333/100000"],
        "systemd",
        "CPUQuota=33.33%\nCPUQuotaPeriodSec=100000us\n",
    );
    check(&topology, &["cpu-quota=33333/100000"], "proxmox", "--cpulimit 0.34\n");
    check(&topology, &["cpu-quota=200000/100000"], "nova", "--property quota:cpu_quota=50000\n");
    check(&topology, &["cpu-quota=50000/100000"], "libvirt", "<global_quota>50000</global_quota>");
    check(&topology, &["cpu-quota=50000/100000"], "virsh", "--set global_quota=50000 \"$@\"\n");
    check(
        &topology,
        &["wake-up-us=0"],
        "systemd",
        "cpu8/power/pm_qos_resume_latency_us - - - - n/a\n",
    );
    check(&topology, &["wake-up-us=0"], "tuned", "cpu8/power/pm_qos_resume_latency_us=n/a\n");
    check(&topology, &["wake-up-us=0"], "kubevirt", "    cpu-c-states.crio.io: \"disable\"\n");
    check(&topology, &["rt-throttle=off"], "cmdline", " sysctl.kernel.sched_rt_runtime_us=-1\n");
    check(&topology, &["smt=off"], "cmdline", " nosmt\n");
    check(&topology, &["irq:*=0,16"], "cmdline", " irqaffinity=0,16\n");
    check(
        &topology,
        &["irq:all=0,16"],
        "systemd",
        "w /proc/irq/*/smp_affinity_list - - - - 0,16\n",
    );
    check(&topology, &["new-irqs=0"], "tuned", "default_irq_smp_affinity=0\n");
    check(
        &topology,
        &["huge-pages=0:2048:512", "huge-pages=1:2048:256", "huge-pages=1:1048576:4"],
        "cmdline",
        " hugepagesz=2M hugepages=0:512,1:256 hugepagesz=1G hugepages=1:4\n",
    );
    // The test machine has 8 MiB and 16 ways: 512 KiB per way.
    check(
        &topology,
        &["share=L3:0=ff0", "share=MB:0=50", "share=L3:1=3"],
        "libvirt",
        "<cachetune vcpus='0-3'><cache id='0' level='3' type='both' size='4096' unit='KiB'/>\
         <cache id='1' level='3' type='both' size='1024' unit='KiB'/></cachetune>",
    );
    check(
        &topology,
        &["share=MB:0=50"],
        "libvirt",
        "<memorytune vcpus='0-3'><node id='0' bandwidth='50'/></memorytune>",
    );
}

fn check(topology: &Topology, words: &[&str], format: &str, expected: &str) {
    let layout = plan_with("balanced", 4, topology, words);
    let texts = texts(&layout, topology);
    let (_, text) = texts.iter().find(|(name, _)| name.starts_with(format)).unwrap();
    assert!(text.contains(expected), "{words:?} has no {expected:?} in {format}:\n{text}");
}

#[test]
fn a_domain_file_gives_way_where_the_plan_has_a_tunable() {
    let file = "<domain type='kvm'>\n  <name>x</name>\n  <vcpu>2</vcpu>\n  <cputune>\n    <shares>2048</shares>\n    \
                <quota>9000</quota>\n    <cachetune vcpus='0'>\n      <cache id='0' level='3' type='both' size='3' unit='MiB'/>\n    \
                </cachetune>\n    <memorytune vcpus='0'>\n      <node id='0' bandwidth='20'/>\n    </memorytune>\n  </cputune>\n</domain>\n";
    let topology = i7_4790k().build();
    let plain = merge(&topology, file, &[]).text;
    assert!(plain.contains("<shares>2048</shares>") && plain.contains("bandwidth='20'"), "{plain}");
    let tuned = merge(&topology, file, &["cpu-weight=300", "share=L3:0=f", "thp=never"]);
    assert!(tuned.text.contains("<shares>300</shares>"), "{}", tuned.text);
    assert!(tuned.text.contains("<quota>9000</quota>"), "{}", tuned.text);
    let lines = tuned.text.lines().filter(|line| !line.contains("<!--"));
    let elements = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(elements.matches("<cachetune").count(), 1, "{}", tuned.text);
    assert!(tuned.text.contains("size='2048' unit='KiB'"), "{}", tuned.text);
    assert!(!elements.contains("<memorytune"), "its vCPUs overlap: {}", tuned.text);
    let notes = tuned.notes.join("\n");
    for old in ["<shares>2048</shares>", "<cachetune vcpus='0'>", "<memorytune vcpus='0'>"] {
        assert!(notes.contains(old), "{old}: {notes}");
        assert!(tuned.text.contains(&format!("tunable; before: {old}")), "{}", tuned.text);
    }
    assert!(notes.contains("thp=never"), "{notes}");
}

fn merge(topology: &Topology, file: &str, words: &[&str]) -> Merged {
    let layout = plan_with("low-latency", 2, topology, words);
    let first = emit::merge_libvirt_domain(file, &layout, layout.single_vnode().unwrap(), topology)
        .unwrap();
    let again =
        emit::merge_libvirt_domain(&first.text, &layout, layout.single_vnode().unwrap(), topology)
            .unwrap();
    assert_eq!(again.text, first.text, "merging twice is merging once");
    first
}

/// Tunables that this host lacks are reported when the plan is made.
#[test]
fn what_a_host_does_not_have_is_refused_by_the_plan() {
    let topology = dual_e5_2670().khz("0-31", 3_300_000).build();
    refuse(&topology, &["irq:0000:99:00.0=0"], "no device 0000:99:00.0");
    refuse(&topology, &["irq:node:7=0"], "no device node 7");
    refuse(&topology, &["huge-pages=5:2048:10"], "no node 5");
    // Its nodes have 1 GiB each.
    refuse(
        &topology,
        &["huge-pages=0:2048:513"],
        "do not fit into node 0, which has 1024 MiB of memory",
    );
    refuse(&topology, &["huge-pages=0:2048:10", "huge-pages=0:2048:20"], "0:2048 is set twice");
    refuse(&topology, &["share=L3:0=f", "share=L3:0=ff"], "L3:0 is set twice");
    refuse(&topology, &["share=L3:0=fffff"], "the cache has 16");
    refuse(&topology, &["offline=99"], "this host has no CPU 99");
    let first = plan_with("low-latency", 2, &topology, &[]).vnodes[0].threads[0].pus.clone();
    refuse(&topology, &[&format!("offline={first}")], "would go offline");
    refuse(&topology, &["smt=off"], "threads of the plan run there");
    refuse(&topology, &["min-khz=5000000"], "3300000 kHz, the highest");
    refuse(&topology, &["wake-up-us=2147483647"], "out of range (0 to 2147483646)");
    refuse(&topology, &["new-irqs=77"], "CPU 77");
    let mut shared = plan(
        "compact",
        &topology,
        &pinfold_model::Request::vm("x", pinfold_model::VcpuCount::Exactly(2)),
    )
    .unwrap();
    set_tunable(&mut shared, "partition=root").unwrap();
    assert!(validate(&shared, &topology).iter().any(|one| one.text.contains("partition")));
    let fine = ["irq:81:00.0=0", "irq:node:1=0", "irq:all=0", "offline=3", "share=L3:0=ffff"];
    let layout = plan_with("low-latency", 2, &topology, &fine);
    assert_eq!(validate(&layout, &topology), []);
    assert_eq!(layout.irqs[0].device, "0000:81:00.0");
    for words in ["irq:eth0=0", "irq:=0", "irq:node:x=0", "irq:../x=0"] {
        let error = set_tunable(&mut layout.clone(), words).unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("irq:all")), "{words}: {error}");
    }
}

fn refuse(topology: &Topology, words: &[&str], said: &str) {
    let layout = plan_with("low-latency", 2, topology, words);
    let found = validate(&layout, topology);
    let problem = found.iter().find(|one| one.severity == Severity::Problem);
    assert!(problem.is_some_and(|one| one.text.contains(said)), "{words:?}: {found:?}");
    assert!(
        problem.is_some_and(|one| one.hint.is_some()) || said.contains("out of range"),
        "{words:?}"
    );
}

/// The documentation page contains this table; `PINFOLD_BLESS=1` writes it there.
#[test]
fn the_page_has_the_table_of_tunables() {
    let topology = i7_4790k().build();
    let (full, _) = everything();
    let variants = [
        "policy:vcpu=rr:1",
        "irq:all=0",
        "thp=always",
        "thp=madvise",
        "ksm=stop",
        "ksm=run",
        "wake-up-us=0",
        "share=L2:0=f",
        "share=SMBA:0=8",
        "partition=root",
        "smt=off",
        "rt-throttle=on",
        "numa-balancing=on",
    ];
    let mut plans = vec![full];
    plans.extend(variants.iter().map(|words| plan_with("low-latency", 2, &topology, &[words])));
    let mut pages = plan_with("low-latency", 2, &topology, &["policy:vcpu=fifo:1"]);
    pages.vnodes[0].memory = Some(pinfold_model::MemoryPlan {
        nodes: vec![NodeId(0)],
        bytes: Some(4 << 30),
        page_bytes: Some(1 << 30),
        is_preferred: false,
        reason: String::new(),
    });
    plans.push(pages);
    plans.push({
        let mut floating = plan("none", &topology, &exactly(2)).unwrap();
        set_tunable(&mut floating, "cpu-quota=50000/100000").unwrap();
        floating
    });
    let table = emit::table(&emit::FORMATS, &plans, &topology);
    let path = format!("{}/../../docs/emit.md", env!("CARGO_MANIFEST_DIR"));
    let page = files::read_text(&path).unwrap();
    let (before, rest) = page.split_once("<!-- tunables -->\n").unwrap();
    let (found, after) = rest.split_once("<!-- end of tunables -->").unwrap();
    if std::env::var_os("PINFOLD_BLESS").is_some() {
        let text = format!("{before}<!-- tunables -->\n{table}<!-- end of tunables -->{after}");
        files::write_atomic(&path, text.as_bytes()).unwrap();
    } else {
        assert_eq!(found, table, "docs/emit.md: `cargo xtask golden` rewrites it");
    }
}

#[test]
fn a_host_without_a_cache_has_none_to_share() {
    let topology = Machine::new([1, 1, 1, 4, 1], |place| place.core).without_l3_and_nodes().build();
    let layout = plan_with("low-latency", 2, &topology, &["share=L3:0=f"]);
    assert!(validate(&layout, &topology).iter().any(|one| one.text.contains("no level-3 cache")));
}

#[test]
fn each_tunable_has_its_row_in_the_documentation() {
    let page = include_str!("../../../../docs/tunables.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    for tunable in TUNABLES.iter().filter(|one| one.key != "required") {
        let end = if tunable.of.is_empty() { "=" } else { ":" };
        let key = format!("`{}{end}", tunable.key);
        assert!(rows.iter().any(|row| row.contains(&key)), "docs/tunables.md has no row for {key}");
    }
    assert!(page.contains("`--tunable required=yes`"));
}

/// Names in the table that the compiler does not check.
#[test]
fn the_table_names_formats_that_there_are_and_no_key_twice() {
    let keys: BTreeSet<&str> = TUNABLES.iter().map(|one| one.key).collect();
    assert_eq!(keys.len(), TUNABLES.len());
    let fields: Vec<&str> =
        TUNABLES.iter().map(|one| one.field).filter(|it| !it.is_empty()).collect();
    assert_eq!(fields.iter().collect::<BTreeSet<_>>().len(), fields.len());
    for tunable in TUNABLES {
        assert!(!tunable.name.is_empty() && !tunable.meaning.is_empty(), "{}", tunable.key);
        for (format, _) in tunable.said {
            assert!(emit::format(format).is_some(), "{}: {format}", tunable.key);
        }
    }
}

#[test]
fn the_plan_and_its_explanation_list_the_tunables() {
    let topology = i7_4790k().build();
    let layout =
        plan_with("low-latency", 2, &topology, &["thp=never", "irq:all=0", "cpu-weight=200"]);
    let outline = pinfold_plan::outline(&layout, &topology, 80);
    assert!(outline.contains("  tunables"), "{outline}");
    assert!(outline.contains("thp=never, cpu-weight=200\n"), "{outline}");
    let explained = pinfold_plan::explain(&layout, &topology, 120);
    let section =
        "\nTunables\n  - thp=never: transparent huge pages\n  - cpu-weight=200: CPU weight";
    assert!(explained.contains(section), "{explained}");
    let plain = plan_with("low-latency", 2, &topology, &[]);
    assert!(!pinfold_plan::outline(&plain, &topology, 80).contains("tunables"));
    assert!(!pinfold_plan::explain(&plain, &topology, 80).contains("Tunables"));
}

/// Without isolation the host keeps all CPUs, so `housekeeping` moves nothing.
#[test]
fn interrupts_that_may_go_everywhere_are_reported() {
    let topology = i7_4790k().build();
    for key in ["irq:all", "irq:node:0", "new-irqs", "workqueues"] {
        let words = format!("{key}=housekeeping");
        let mut shared = plan("compact", &topology, &auto()).unwrap();
        set_tunable(&mut shared, &words).unwrap();
        assert_eq!(shared.housekeeping, topology.online());
        let found = validate(&shared, &topology);
        let finding = found.iter().find(|one| one.text.contains("nothing is moved")).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.hint.as_ref().unwrap().contains("--isolate host"), "{finding}");
        let isolated = plan_with("low-latency", 2, &topology, &[&words]);
        assert_eq!(validate(&isolated, &topology), [], "{words}");
    }
}

#[test]
fn formats_state_that_they_do_not_isolate_and_lack_page_sizes() {
    let topology = i7_4790k().build();
    let mut layout = plan_with("low-latency", 2, &topology, &[]);
    layout.vnodes[0].memory = Some(pinfold_model::MemoryPlan {
        nodes: vec![NodeId(0)],
        bytes: Some(1 << 30),
        page_bytes: Some(16 << 20),
        is_preferred: false,
        reason: String::new(),
    });
    for format in ["virsh", "proxmox", "kubevirt", "nova"] {
        let found = text(&topology, &layout, format);
        assert!(found.contains("The plan excludes other tasks from 1-2,5-6"), "{found}");
        let mut shared = layout.clone();
        shared.exclusive = pinfold_model::CpuSet::new();
        assert!(
            !text(&topology, &shared, format).contains("excludes other tasks from"),
            "{format}"
        );
    }
    assert!(text(&topology, &layout, "virsh").contains("the memory in huge pages of 16 MiB"));
    assert!(
        text(&topology, &layout, "proxmox")
            .contains("huge pages of 16 MiB; qm has those of 2 and 1024")
    );
    assert!(text(&topology, &layout, "kubevirt").contains("pageSize: 16Mi"));
    assert!(text(&topology, &layout, "nova").contains("hw:mem_page_size=16384"));
}

fn text(topology: &Topology, layout: &Plan, format: &str) -> String {
    let command = pinfold_qemu::QemuCommand::default();
    let text = emit::format(format).unwrap().text(layout, topology, &command).unwrap();
    text.replace("\n# ", " ")
}
