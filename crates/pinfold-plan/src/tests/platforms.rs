//! Platform files, their command line syntax, and their result on a host.

use pinfold_config::platforms::{self, from_toml, load, parse_vnode_spec, profile, speed, to_csv};
use pinfold_model::{
    Attach, CpuSet, DiskLimit, EmulationPlan, Method, NodeId, Platform, PlatformVnode, PuId, Speed,
    SpeedRequest, Topology, Variant,
};
use pinfold_samples::machine::{Machine, dual_l5420, dual_x5540, i7_4790k, plain};
use pinfold_samples::set;

use crate::{resolve_platform, speed_on, validate};

const PAGE: &str = include_str!("../../../../docs/platforms.md");

/// The code blocks of a language in the documentation.
fn examples(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let rest = PAGE.split(fence.as_str()).skip(1);
    rest.map(|rest| rest.split_once("```").unwrap().0).collect()
}

fn share(percent: u32) -> SpeedRequest {
    SpeedRequest::Share(Speed::from_millionths(percent * 10_000).unwrap())
}

/// `a: 0 at 75%, 1 at 75%`.
fn places(plan: &EmulationPlan) -> Vec<String> {
    let pus = |pus: &[(PuId, Speed)]| {
        pus.iter().map(|(pu, speed)| format!("{pu} at {speed}")).collect::<Vec<_>>().join(", ")
    };
    plan.vnodes.iter().map(|vnode| format!("{}: {}", vnode.name, pus(&vnode.pus))).collect()
}

#[test]
fn the_documented_examples_are_read() {
    let [example] = examples("toml").try_into().unwrap();
    let platform = from_toml(example).unwrap();
    let web = PlatformVnode {
        like: None,
        name: "web".to_owned(),
        cores: 2,
        speeds: vec![share(40)],
        memory_node: Some(NodeId(0)),
        method: Some(Method::Stall),
        variant: Variant::Corrected,
        period_ns: Some(200_000),
        calibrate: false,
        attach: Some(Attach::Group("/system.slice/web.service".to_owned())),
        profile: Some("speeds.csv".to_owned()),
        disk: Some(DiskLimit {
            bytes: Some(50_000_000),
            operations: Some(500),
            path: "/var/lib".to_owned(),
        }),
    };
    let uneven = PlatformVnode {
        like: None,
        name: "uneven".to_owned(),
        cores: 2,
        speeds: vec![share(75), share(25)],
        memory_node: None,
        method: Some(Method::Hogs),
        variant: Variant::AsPublished,
        period_ns: None,
        calibrate: false,
        attach: None,
        profile: None,
        disk: None,
    };
    assert_eq!(
        platform,
        Platform {
            vnodes: vec![web, uneven.clone()],
            share_housekeeping: false,
            avoid: CpuSet::new()
        }
    );
    let words = PAGE.split("one vnode is `").nth(1).unwrap().split('`').next().unwrap();
    assert_eq!(parse_vnode_spec(words), Ok(uneven));
    let plan = resolve_platform(&platform, &dual_x5540().build()).unwrap();
    assert_eq!(places(&plan), ["web: 1 at 40%, 2 at 40%", "uneven: 4 at 75%, 5 at 25%"]);
    let [speeds, recorded] = examples("csv").try_into().unwrap();
    let speeds = profile(speeds).unwrap();
    let speed_requests: Vec<_> = speeds.changes.iter().map(|one| (one.at_ns, one.speed)).collect();
    let expected = [
        (500_000_000, share(40)),
        (10_000_000_000, SpeedRequest::Frequency { hertz: 2_100_000_000 }),
        (12_250_000_000, share(75)),
    ];
    assert_eq!(speed_requests, expected);
    assert_eq!(to_csv(&load(recorded).unwrap()), recorded);
}

/// The documented limits are those of the methods.
#[test]
fn the_documented_bounds_are_those_of_the_methods() {
    let table = PAGE.split("| method | period |").nth(1).unwrap();
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    for method in Method::ALL {
        let row = rows.iter().find(|row| row.contains(&format!("`{method}`"))).unwrap();
        let bounds = row.trim_end_matches('|').rsplit('|').next().unwrap();
        for (text, over) in bounds.trim().split(" to ").zip(["0.999", "1.001"]) {
            let words = |period: &str| {
                let profile = if method == Method::Inject { ",profile=load.csv" } else { "" };
                format!("name=a,cores=1,method={method},period={period}{profile}")
            };
            let vnode = parse_vnode_spec(&words(text));
            assert!(vnode.is_ok(), "{method} {text}: {vnode:?}");
            let (number, unit) = text.split_once(' ').unwrap();
            let beyond = match over {
                "0.999" => format!("{}.999{unit}", number.parse::<u32>().unwrap() - 1),
                _ => format!("{number}.001{unit}"),
            };
            let error = parse_vnode_spec(&words(&beyond)).unwrap_err().to_string();
            assert!(error.contains("is not within the bounds of"), "{method} {beyond}: {error}");
        }
    }
}

#[test]
fn speeds_in_all_their_forms() {
    check("40%", share(40));
    check("0.4", share(40));
    check("1", share(100));
    check("100%", share(100));
    check(" 40 % ", share(40));
    check("0.0001%", SpeedRequest::Share(Speed::from_millionths(1).unwrap()));
    check("2.1 GHz", hertz(2_100_000_000));
    check("2.1GHz", hertz(2_100_000_000));
    check("800 MHz", hertz(800_000_000));
    check("1.5 kHz", hertz(1_500));
    check("7 Hz", hertz(7));
    assert_eq!(words("0.4").speeds, [share(40)]);
    assert_eq!(words("40%+0.6").speeds, [share(40), share(60)]);
    assert_eq!(parse_vnode_spec("name=7,cores=1").unwrap().speeds, [share(100)]);
}

fn hertz(hertz: u64) -> SpeedRequest {
    SpeedRequest::Frequency { hertz }
}

fn check(text: &str, speed_request: SpeedRequest) {
    assert_eq!(speed(text), Ok(speed_request), "{text}");
}

fn words(speed: &str) -> PlatformVnode {
    parse_vnode_spec(&format!("name=a,cores=2,speed={speed}")).unwrap()
}

#[track_caller]
fn refused(text: &str, why: &str, hint: &str) {
    let error = from_toml(text).unwrap_err();
    assert_eq!(error.to_string(), why);
    let reported = error.hint().unwrap_or_default();
    assert!(reported.contains(hint), "{reported}");
    assert!(!reported.is_empty(), "{why}: no way out");
}

/// A line of a vnode, which is the third line of its file.
#[track_caller]
fn in_vnode(line: &str, why: &str, hint: &str) {
    refused(&format!("[[vnode]]\nname = \"a\"\n{line}\ncores = 2\n"), why, hint);
}

#[test]
fn bad_speeds_are_reported_with_line_column_value_and_way_out() {
    fn wrong(value: &str, shown: &str, hint: &str) {
        let why = "is not a speed above 0 and at most full speed";
        in_vnode(
            &format!("speed = {value}"),
            &format!("line 3, column 9: speed: {shown} {why}"),
            hint,
        );
    }

    wrong("0", "0", "does nothing: use more than 0");
    wrong("\"0%\"", "\"0%\"", "use more than 0");
    wrong("\"0 GHz\"", "\"0 GHz\"", "use more than 0");
    wrong("\"100.1%\"", "\"100.1%\"", "use at most \"100%\"");
    wrong("1.1", "1.1", "only slower CPUs can be emulated");
    wrong("40", "40", "write \"40%\" if you mean percent");
    wrong("-5", "-5", "write a share such as \"40%\"");
    wrong("-0.5", "-0.5", "write a share such as");
    wrong("nan", "nan", "write a share such as");
    wrong("inf", "inf", "write a share such as");
    wrong("\"NaN\"", "\"NaN\"", "write a share such as");
    wrong("\"\"", "\"\"", "write a share such as");
    wrong("\"%\"", "\"%\"", "write a share such as");
    wrong("\"fast\"", "\"fast\"", "write a share such as");
    wrong("\"-5 GHz\"", "\"-5 GHz\"", "such as \"2.1 GHz\"");
    wrong("\"2.1 ghz\"", "\"2.1 ghz\"", "such as \"2.1 GHz\"");
    wrong("1e-3", "1e-3", "write a share such as");
    wrong("\"12.34567%\"", "\"12.34567%\"", "at most four digits");
    wrong("true", "true", "write a share such as");
    wrong("\"99999999999999999999 GHz\"", "\"99999999999999999999 GHz\"", "");
    in_vnode(
        "speed = [\"40%\"]",
        "line 3, column 9: speed: the list has 1 speed for 2 cores",
        "a list of one for each",
    );
    in_vnode(
        "speed = [\"40%\", 0]",
        "line 3, column 17: speed: 0 is not a speed above 0 and at most full speed",
        "use more than 0",
    );
    in_vnode(
        "method = \"inject\"\nspeed = 0.4\nprofile = \"load.csv\"",
        "line 4, column 9: speed: 0.4 is not possible with inject: the recorded load determines \
         what is left of each core",
        "omit the speed",
    );
}

#[test]
fn bad_vnodes_are_reported_with_line_and_column() {
    refused("", "line 1, column 1: the platform names no [[vnode]]", "write [[vnode]]");
    refused(
        "[vnode]\nname = \"a\"\n",
        "line 1, column 1: vnode: a table is not a list of tables",
        "",
    );
    refused(
        "shared-housekeeping = true\n",
        "line 1, column 1: the platform has no key \"shared-housekeeping\"",
        "did you mean share-housekeeping?",
    );
    in_vnode("core = 2", "line 3, column 1: vnode has no key \"core\"", "did you mean cores?");
    in_vnode(
        "memory_node = 2",
        "line 3, column 1: vnode has no key \"memory_node\"",
        "did you mean memory-node?",
    );
    in_vnode(
        "method = \"hog\"",
        "line 3, column 10: method: \"hog\" is not one of \"stall\", \"hogs\", \"fracas\", \"quota\", \
         \"gov\", \"freq\", \"lim\", \"inject\"",
        "did you mean hogs?",
    );
    in_vnode(
        "variant = \"published\"",
        "line 3, column 11: variant: \"published\" is not one of \"corrected\", \"as-published\", \
         \"unsynchronised\", \"common-burner-group\"",
        "did you mean as-published?",
    );
    in_vnode(
        "method = \"stall\"\nvariant = \"as-published\"",
        "line 4, column 11: variant: stall has no variant as-published",
        "variants of stall: corrected",
    );
    in_vnode(
        "method = \"fracas\"\nvariant = \"unsynchronised\"",
        "line 4, column 11: variant: fracas has no variant unsynchronised",
        "variants of fracas: corrected, as-published, common-burner-group",
    );
    in_vnode(
        "method = \"hogs\"\ncalibrate = true",
        "line 4, column 13: calibrate: only gov and freq set hardware frequencies",
        "omit it",
    );
    in_vnode(
        "method = \"gov\"\ncalibrate = 1",
        "line 4, column 13: calibrate: 1 is not true or false",
        "",
    );
    in_vnode(
        "method = \"inject\"",
        "line 2, column 8: inject needs the key \"profile\": the load to replay",
        "pinfold emulate record",
    );
    in_vnode("profile = \"\"", "line 3, column 11: profile: \"\" is not a file name", "CSV");
    refused(
        "[[vnode]]\nname = \"a\"\ncores = 1\n[[vnode]]\nname = \"a\"\ncores = 1\n",
        "line 4, column 1: the name \"a\" is given twice",
        "a name of its own",
    );
}

#[test]
fn names_are_safe_in_directories() {
    fn name(name: &str, why: &str) {
        let shown = format!("{name:?}");
        refused(
            &format!("[[vnode]]\nname = {shown}\ncores = 1\n"),
            &format!("line 2, column 8: name: {shown} cannot be part of a cgroup's name: {why}"),
            "letters (a-z, A-Z), digits, - _ and ., at most 64",
        );
    }

    name("", "it is empty");
    name(".", "every directory has this entry");
    name("..", "every directory has this entry");
    name("a/b", "it contains other characters");
    name("a b", "it contains other characters");
    name("ä", "it contains other characters");
    name(&"a".repeat(65), "it is longer than 64 characters");
    for fits in ["a", "A-1_b.c", "...", &"a".repeat(64)] {
        assert_eq!(parse_vnode_spec(&format!("name={fits},cores=1")).unwrap().name, fits);
    }
}

#[test]
fn bad_periods_and_attachments() {
    fn attach(value: &str, why: &str) {
        let why = format!("line 3, column 10: attach: {value:?} cannot be a vnode: {why}");
        in_vnode(&format!("attach = {value:?}"), &why, "group:/system.slice/web.service, or pid:");
    }

    period("\"20us\"", "within the bounds of stall, 50µs to 1ms", "omit it");
    period("\"100 ms\"", "within the bounds of stall, 50µs to 1ms", "omit it");
    period("200", "a time with its unit", "200us");
    period("\"200\"", "a time with its unit", "200us");
    period("\"-1ms\"", "a time with its unit", "200us");
    period("\"\"", "a time with its unit", "200us");
    attach("web", "it is neither a group nor a process");
    attach("group:web", "the path of a group starts with /, at the mount of cgroup");
    attach("group:/", "the root group contains all tasks of the host");
    attach("group:/a/../b", "a part of its path is empty, . or ..");
    attach("group:/a//b", "a part of its path is empty, . or ..");
    attach("group:", "the path of a group starts with /, at the mount of cgroup");
    attach("pid:1", "that is the whole host");
    attach("pid:0", "that is the whole host");
    attach("pid:-3", "the ID of a process is a number");
    attach("pid:4194304", "no process has such a high ID");
    let error = two_vnodes("group:/a", "group:/a/b").unwrap_err();
    let why = "line 5, column 1: group:/a/b cannot be \"b\": it overlaps with \"a\"";
    assert_eq!(error.to_string(), why);
    assert!(two_vnodes("group:/a/b", "group:/a").is_err() && two_vnodes("pid:9", "pid:9").is_err());
    assert!(two_vnodes("group:/a", "group:/ab").is_ok() && two_vnodes("pid:9", "pid:8").is_ok());
}

fn two_vnodes(one: &str, other: &str) -> Result<Platform, pinfold_config::ConfigError> {
    from_toml(&format!("{}{}", vnode("a", one), vnode("b", other)))
}

fn period(value: &str, why: &str, hint: &str) {
    let why = format!("line 4, column 10: period: {value} is not {why}");
    in_vnode(&format!("method = \"stall\"\nperiod = {value}"), &why, hint);
}

fn vnode(name: &str, attach: &str) -> String {
    format!("[[vnode]]\nname = \"{name}\"\ncores = 1\nattach = \"{attach}\"\n")
}

fn platform(vnodes: &[&str]) -> Platform {
    let vnodes = vnodes.iter().map(|words| parse_vnode_spec(words).unwrap()).collect();
    Platform { vnodes, share_housekeeping: false, avoid: CpuSet::new() }
}

#[track_caller]
fn impossible(vnodes: &[&str], topology: &Topology, why: &str, hint: &str) {
    let error = resolve_platform(&platform(vnodes), topology).unwrap_err();
    assert_eq!(error.to_string(), why);
    assert_eq!(error.hint().as_deref(), Some(hint));
}

#[test]
fn frequencies_are_shares_of_each_core() {
    let two = || plain(4).khz("0-3", 2_000_000);
    let plan =
        resolve_platform(&platform(&["name=a,cores=2,speed=1.5 GHz+0.3"]), &two().build()).unwrap();
    assert_eq!(places(&plan), ["a: 1 at 75%, 2 at 30%"]);
    assert_eq!(plan.plan.vnodes[0].speed.to_string(), "75%");
    impossible(
        &["name=a,cores=1,speed=2.1 GHz"],
        &two().build(),
        "\"a\" requests 2.1 GHz, but CPU 0 reaches 2 GHz at most",
        "request at most 2 GHz, or give a share such as 40%",
    );
    impossible(
        &["name=a,cores=1,speed=2 kHz+"].map(|words| words.trim_end_matches('+')),
        &plain(2).khz("0-1", 4_000_000_000).build(),
        "\"a\" requests 2 kHz, less than a millionth of the 4000 GHz of CPU 0",
        "request more; check the unit",
    );
    impossible(
        &["name=a,cores=1,speed=800 MHz"],
        &plain(4).build(),
        "\"a\" requests 800 MHz, but this host does not report the highest frequency of CPU 0 (no \
         cpufreq)",
        "give a share, such as 40%",
    );
    // The fast cores reach it; the small ones, on which the vnode is, do not.
    let hybrid = Machine::hybrid(2, 4).khz("0-3", 5_000_000).khz("4-7", 4_000_000).build();
    let plan = resolve_platform(&platform(&["name=a,cores=4,speed=3 GHz"]), &hybrid).unwrap();
    let expected = ["a: 4 at 75%, 5 at 75%, 6 at 75%, 7 at 75%"];
    assert_eq!(places(&plan), expected);
    impossible(
        &["name=a,cores=4,speed=4.5 GHz"],
        &hybrid,
        "\"a\" requests 4.5 GHz, but CPU 4 reaches 4 GHz at most",
        "request at most 4 GHz, or give a share such as 40%",
    );
    let rounded = speed_on(PuId(0), SpeedRequest::Frequency { hertz: 1 }, &two().build());
    assert!(rounded.is_err());
}

#[test]
fn cores_that_share_a_frequency_agree() {
    let host = dual_l5420().build();
    let check = |words: &str, why: &str, hint: &str| {
        let all = [words.to_owned(), "name=b,cores=4,speed=60%,method=gov".to_owned()];
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let error = resolve_platform(&platform(&all), &host).unwrap_err();
        assert_eq!(error.to_string(), why);
        assert!(error.hint().unwrap().contains(hint));
    };
    // Each pair of cores has one frequency, and these groups do not fill whole pairs.
    check(
        "name=a,cores=3,speed=40%+40%+50%,method=freq",
        "cannot set both 40% and 50% of \"a\" by frequency: the CPUs 2-3 change it together",
        "use a method that slows by time",
    );
    impossible(
        &["name=a,cores=5,speed=40%,method=gov", "name=b,cores=3,speed=60%,method=gov"],
        &host,
        "cannot set both 40% of \"a\" and 60% of \"b\" by frequency: the CPUs 0-1 change it \
         together",
        "give them the same speed, request fewer cores, or use a method that slows by time, such \
         as stall or hogs",
    );
    impossible(
        &["name=a,cores=5,speed=40%,method=gov", "name=b,cores=3,speed=40%,method=stall"],
        &host,
        "\"b\" would be slowed twice: \"a\" sets the frequency with gov, which applies to all of \
         the CPUs 0-1",
        "give both gov and the same speed, request fewer cores, or use a method that slows by time \
         for both, such as stall or hogs",
    );
    let alike = ["name=a,cores=5,speed=40%,method=gov", "name=b,cores=3,speed=40%,method=freq"];
    assert!(resolve_platform(&platform(&alike), &host).is_ok());
    let by_time = ["name=a,cores=5,speed=40%,method=stall", "name=b,cores=3,speed=60%,method=lim"];
    let plan = resolve_platform(&platform(&by_time), &host).unwrap();
    assert!(!pinfold_samples::finds(&plan.plan, "frequency domains", ""));
    // If the method is not given, a finding names what frequency methods cannot do.
    let open = ["name=a,cores=5,speed=40%", "name=b,cores=3,speed=60%"];
    let plan = resolve_platform(&platform(&open), &host).unwrap();
    assert!(pinfold_samples::finds(&plan.plan, "frequency domains", "change frequency together"));
    // A finding about the host's own tasks on the other half of a pair.
    let half =
        resolve_platform(&platform(&["name=a,cores=7,speed=40%,method=gov"]), &host).unwrap();
    assert!(pinfold_samples::finds(&half.plan, "frequency domains", "CPU 0 is as slow as a"));
}

#[test]
fn burners_keep_off_the_last_housekeeping_pu() {
    let host = plain(4).build();
    for method in ["stall", "quota", "fracas", "lim", "gov"] {
        let plan = resolve_platform(&all(method), &host).unwrap();
        assert_eq!(plan.plan.housekeeping, set("0"));
        assert_eq!(plan.vnodes.iter().filter(|vnode| vnode.on_last_housekeeping).count(), 1);
        assert!(pinfold_samples::finds(&plan.plan, "housekeeping", "share CPU 0 with one of them"));
    }
    let mut hogs = all("hogs");
    let error = resolve_platform(&hogs, &host).unwrap_err();
    let why = "the real-time burners of \"a\" (hogs) would run on CPU 0, and the host's own tasks \
               have no other CPU that no vnode uses";
    assert_eq!(error.to_string(), why);
    assert!(error.hint().unwrap().contains("--share-housekeeping"));
    hogs.share_housekeeping = true;
    let plan = resolve_platform(&hogs, &host).unwrap();
    assert!(plan.share_housekeeping && plan.vnodes[0].on_last_housekeeping);
    // With a spare core, or with the sibling of the host's core, the host has its own CPU.
    let plan = resolve_platform(&all("hogs"), &plain(5).build()).unwrap();
    assert_eq!(plan.plan.housekeeping, set("0"));
    assert!(plan.vnodes.iter().all(|vnode| !vnode.on_last_housekeeping));
    let plan = resolve_platform(&all("hogs"), &i7_4790k().build()).unwrap();
    assert_eq!(plan.plan.housekeeping, set("0,4"));
    assert!(plan.vnodes.iter().all(|vnode| !vnode.on_last_housekeeping));
    let replay = ["name=a,cores=4,method=inject,profile=load.csv"];
    assert!(
        resolve_platform(&platform(&replay), &host).unwrap_err().to_string().contains("(inject)")
    );
}

fn all(method: &str) -> Platform {
    let first = format!("name=a,cores=3,speed=40%,method={method}");
    platform(&[&first, "name=b,cores=1,speed=60%,method=stall"])
}

#[test]
fn more_than_the_host_gives() {
    impossible(
        &["name=a,cores=5", "name=b,cores=4"],
        &plain(8).build(),
        "vnodes gives at most 8 cores on this host, the request asks for 9: each core of a group \
         is a separate core of the host",
        "request at most 8 cores",
    );
    let huge = ["name=a,cores=4294967295"];
    assert!(resolve_platform(&platform(&huge), &plain(8).build()).is_err());
    let host = dual_x5540().memoryless(1).build();
    let hint = "choose another node (`pinfold topo` shows them), or remove memory-node";
    impossible(
        &[&node(2)],
        &host,
        "cannot put the memory of \"a\" on node 2: this host has the nodes 0, 1",
        hint,
    );
    impossible(
        &[&node(1)],
        &host,
        "cannot put the memory of \"a\" on node 1: it has no memory",
        hint,
    );
    // Its cores are on that node while it has room.
    let host = dual_x5540().build();
    let plan =
        resolve_platform(&platform(&[&node(0), "name=b,cores=1,memory-node=1"]), &host).unwrap();
    assert_eq!(places(&plan), ["a: 1 at 100%", "b: 4 at 100%"]);
    assert_eq!(plan.vnodes[0].memory_node, Some(NodeId(0)));
    assert_eq!(plan.plan.vnodes[0].memory.as_ref().unwrap().nodes, [NodeId(0)]);
    assert!(
        !pinfold_samples::finds(&plan.plan, "memory", "")
            && !pinfold_samples::finds(&plan.plan, "devices", "")
    );
    assert_eq!(validate(&plan.plan, &host), vec![]);
    let plan = resolve_platform(&platform(&["name=b,cores=4", &node(1)]), &host).unwrap();
    assert_eq!(places(&plan)[1], "a: 1 at 100%");
    assert!(pinfold_samples::finds(&plan.plan, "memory", "on node 1, remote from CPU 1"));
    let mut odd = platform(&["name=a,cores=3"]);
    odd.vnodes[0].speeds = vec![share(10), share(20)];
    let error = resolve_platform(&odd, &plain(8).build()).unwrap_err();
    assert_eq!(error.to_string(), "\"a\" has 2 speeds for 3 cores");
}

fn node(node: u32) -> String {
    format!("name=a,cores=1,memory-node={node}")
}

/// Where in its file the value of a platform stands that a host refuses.
fn refused_at(text: &str, host: &Topology) -> Option<(usize, usize)> {
    let platform = platforms::from_toml(text).unwrap();
    platforms::place_of(text, &resolve_platform(&platform, host).unwrap_err().field()?)
}

#[test]
fn what_a_host_refuses_has_its_place_in_the_file() {
    let host = dual_x5540().build();
    let first = "[[vnode]]\nname = \"a\"\ncores = 1\n[[vnode]]\nname = \"b\"\n";
    let at = |keys: &str| refused_at(&format!("{first}{keys}\n"), &host);
    assert_eq!(at("cores = 2\nmemory-node = 7"), Some((7, 15)));
    assert_eq!(at("cores = 9"), Some((6, 9)));
    assert_eq!(at("cores = 2\nspeed = \"2.1 GHz\""), Some((7, 9)));
    let text = format!("{first}cores = 2\nprofile = \"no.csv\"\n");
    assert_eq!(platforms::place_of_key(&text, "b", "profile"), Some((7, 11)));
    // What is not written is at its vnode.
    assert_eq!(platforms::place_of_key(&text, "a", "method"), Some((1, 1)));
    assert_eq!(platforms::place_of_key(&text, "c", "method"), None);
}

#[test]
fn a_row_knows_its_line() {
    let changes = profile("seconds,speed\n\n1,40%\r\n2,50%\n").unwrap().changes;
    assert_eq!(changes.iter().map(|one| one.line).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn bad_tables_are_reported_with_line_and_column() {
    wrong_profile("", "line 1, column 1: the header seconds,speed is missing");
    wrong_profile("\nspeed,seconds\n", "line 2, column 1: the header seconds,speed is missing");
    wrong_profile("seconds,speed\n", "line 2, column 1: the profile has no row");
    wrong_profile(
        "seconds,speed\n1,40%\n 1,50%\n",
        "line 3, column 2: the time 1 is not later than that of the row before",
    );
    wrong_profile("seconds,speed\n-1,40%\n", "line 2, column 1: \"-1\" is not a number of seconds");
    wrong_profile("seconds,speed\n1\n", "line 2, column 1: the row has 1 fields, not 2");
    wrong_profile(
        "seconds,speed\r\n1,40%\r\n\r\n2,  0%\r\n",
        "line 4, column 5: speed: \"0%\" is not a speed above 0 and at most full speed",
    );
    wrong_load("ms\n", "line 1, column 1: the header ms,pu0,pu1,… is missing");
    wrong_load("ms,cpu0\n", "line 1, column 4: \"cpu0\" is not a CPU");
    wrong_load("ms,pu0,pu00\n", "line 1, column 8: CPU 0 has two columns");
    wrong_load("ms,pu4294967296\n", "line 1, column 4: \"pu4294967296\" is not a CPU");
    wrong_load("ms,pu0\n", "line 2, column 1: the recorded load has no row");
    wrong_load(
        "ms,pu0\n0,1\n",
        "line 2, column 1: the time 0 is not later than that of the row before",
    );
    wrong_load("ms,pu0\n1,1,1\n", "line 2, column 1: the row has 3 fields, not 2");
    wrong_load("ms,pu0\n1,1.1\n", "line 2, column 3: \"1.1\" is not a share from 0 to 1");
    wrong_load(
        "ms,pu0\n1.5,1\n",
        "line 2, column 1: \"1.5\" is not a whole number of milliseconds",
    );
}

fn wrong_profile(text: &str, why: &str) {
    let error = profile(text).unwrap_err();
    assert_eq!(error.to_string(), why);
    assert!(error.hint().is_some(), "{why}: no way out");
}

fn wrong_load(text: &str, why: &str) {
    assert_eq!(load(text).unwrap_err().to_string(), why);
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,64}", cut in 0_usize..1200) {
        let example = examples("toml")[0];
        let broken: String = example.chars().take(cut).chain(text.chars()).collect();
        for text in [&text, &broken] {
            if let Err(error) = from_toml(text) {
                proptest::prop_assert!(error.place.is_some());
            }
        }
        if let Ok(vnode) = parse_vnode_spec(&text) {
            proptest::prop_assert!(!vnode.name.is_empty());
        }
        drop((speed(&text), profile(&text), load(&text)));
    }

    #[test]
    fn a_load_is_read_as_it_was_written(
        rows in proptest::collection::vec((1_u64..1000, [0_u32..=1_000_000, 0..=1_000_000]), 1..20)
    ) {
        let mut at_ms = 0;
        let rows = rows.into_iter().map(|(wait, busy)| {
            at_ms += wait;
            pinfold_model::LoadRow { at_ms, busy_millionths: busy.to_vec() }
        });
        let recorded =
            pinfold_model::RecordedLoad { pus: vec![PuId(3), PuId(0)], rows: rows.collect() };
        proptest::prop_assert_eq!(load(&to_csv(&recorded)), Ok(recorded));
    }
}

#[test]
fn disk_limits_are_read_with_their_units() {
    disk("disk=50 MB/s", Some(50_000_000), None);
    disk("disk=50 MiB/s", Some(52_428_800), None);
    disk("disk=1.5 GB/s,iops=500", Some(1_500_000_000), Some(500));
    disk("disk=4096 B/s", Some(4096), None);
    disk("iops=1", None, Some(1));
    let vnode = parse_vnode_spec("name=a,cores=2,iops=9,disk-path=/var/lib").unwrap();
    assert_eq!(vnode.disk.unwrap().path, "/var/lib");
    assert_eq!(parse_vnode_spec("name=a,cores=2").unwrap().disk, None);
}

fn disk(words: &str, bytes: Option<u64>, operations: Option<u32>) {
    let vnode = parse_vnode_spec(&format!("name=a,cores=2,{words}")).unwrap();
    assert_eq!(vnode.disk, Some(DiskLimit { bytes, operations, path: ".".to_owned() }), "{words}");
}

#[test]
fn bad_disk_limits_are_reported_with_line_column_value_and_way_out() {
    let wrong = [
        "\"0 MB/s\"",
        "\"-5 MB/s\"",
        "\"fast\"",
        "\"50\"",
        "50",
        "\"50 MB\"",
        "\"50 Mb/s\"",
        "\"1 kB/s\"",
        "\"2 TB/s\"",
        "\"1e3 MB/s\"",
        "\"99999999999999999999 MB/s\"",
        "\" MB/s\"",
    ];
    for value in wrong {
        let why =
            format!("line 3, column 8: disk: {value} is not a disk speed from 4 KiB/s to 1 TB/s");
        in_vnode(&format!("disk = {value}"), &why, "\"50 MiB/s\" (MiB: 2^20");
    }
    for value in ["0", "-1", "\"500\"", "1.5", "1000000001"] {
        let why = format!(
            "line 3, column 8: iops: {value} is not a number of operations per second from 1 to \
             1000000000"
        );
        in_vnode(&format!("iops = {value}"), &why, "iops = 500");
    }
    in_vnode(
        "iops = 5\ndisk-path = \"tmp\"",
        "line 4, column 13: disk-path: \"tmp\" is not an absolute path",
        "/var/lib",
    );
    in_vnode(
        "disk-path = \"/tmp\"",
        "line 3, column 13: disk-path needs the key \"disk\" or \"iops\"",
        "disk = ",
    );
}
