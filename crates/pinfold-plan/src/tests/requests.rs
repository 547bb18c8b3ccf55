//! Request files and their command line syntax.

use pinfold_config::requests::{
    device, free_share, from_toml, parse_emulator_request, parse_group_spec, parse_vm_spec,
    set_tunable, vnode_name,
};
use pinfold_model::tunables::{CpuQuota, Value, cpu_quota, cpu_weight, new_irqs};
use pinfold_model::{
    Device, EmulatorRequest, FreeCpus, IsolationScope, MemoryRequest, NodeId, Plan, SmtRequest,
    VcpuCount, VmRequest, VnodeRequest, Work,
};
use pinfold_samples::machine::dual_x5540;
use pinfold_samples::set;

use crate::plan;

/// The code block with the example in the documentation.
fn example() -> &'static str {
    let docs = include_str!("../../../../docs/requests.md");
    docs.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0
}

#[test]
fn the_documented_example_is_read_and_planned() {
    let request = from_toml(example()).unwrap();
    let vm = VmRequest {
        iothreads: vec!["disk".to_owned(), "net".to_owned()],
        vhosts: 1,
        smt: SmtRequest::Auto,
        ..VmRequest::from_vcpus(VcpuCount::Exactly(4))
    };
    let web = &request.vnodes[0];
    assert_eq!((web.name.as_str(), &web.work), ("web", &Work::Vm(vm)));
    let memory = MemoryRequest { bytes: 4 << 30, page_bytes: Some(2 << 20) };
    assert_eq!((web.memory, web.priority), (Some(memory), 10));
    assert_eq!(web.devices, [Device::Node(NodeId(1))]);
    let Work::Processes { cores, speed } = request.vnodes[1].work else { panic!("a group") };
    assert_eq!((cores, speed.to_string().as_str()), (1, "40%"));
    assert_eq!((request.avoid.clone(), request.free.clone()), (set("7"), Some(FreeCpus::Pus(2))));
    assert_eq!(request.isolation, IsolationScope::Host);
    assert_eq!(request.interrupts, [Device::Node(NodeId(1))]);
    // The machines of these tests have too little memory for it, which gives an error.
    let error = plan("multi-vm", &dual_x5540().build(), &request).unwrap_err();
    assert!(error.to_string().contains("needs 4 GiB of memory"), "{error}");
}

#[test]
fn words_say_the_same() {
    let request = from_toml(example()).unwrap();
    let words = "name=web,vcpus=4,iothreads=disk+net,vhosts=1,smt=auto,memory=4GiB,huge-pages=2MiB,\
                 devices=node:1,priority=10";
    assert_eq!(parse_vm_spec(words).as_ref(), Ok(&request.vnodes[0]));
    assert_eq!(parse_group_spec("name=slow,cores=1,speed=40%").as_ref(), Ok(&request.vnodes[1]));
    assert_eq!(parse_group_spec("name=slow,cores=1,speed=0.4").as_ref(), Ok(&request.vnodes[1]));
    assert_eq!(free_share("25%"), Ok(FreeCpus::Percent(25)));
    assert_eq!(free_share("4"), Ok(FreeCpus::Pus(4)));
    assert_eq!(device("05:00.0"), Ok(Device::Pci("0000:05:00.0".to_owned())));
    assert_eq!(parse_emulator_request("apart"), Ok(EmulatorRequest::Apart));
    let numbered = VnodeRequest::vm("7", VmRequest::from_vcpus(VcpuCount::Auto));
    assert_eq!(parse_vm_spec("name=7"), Ok(numbered));
    check("web", "expected key=value, got \"web\"");
    check("name=a,name=b", "name is given twice");
    check("vcpus=4", "vm needs the key \"name\"");
    check("name=a,cores=2", "vm has no key \"cores\"");
}

fn check(words: &str, why: &str) {
    assert_eq!(parse_vm_spec(words).unwrap_err().to_string(), why);
}

#[test]
fn words_are_divided_by_blanks_too_and_names_are_checked() {
    fn check(words: &str, why: &str) {
        assert_eq!(parse_vm_spec(words).unwrap_err().to_string(), why, "{words:?}");
    }

    let du = parse_vm_spec("name=du,vcpus=6,memory=16GiB").unwrap();
    for words in [
        "name=du vcpus=6 memory=16G",
        " name=du,  vcpus=6\tmemory=16g ",
        "name=du, vcpus=6, memory=16GiB",
    ] {
        assert_eq!(parse_vm_spec(words).as_ref(), Ok(&du), "{words:?}");
    }
    let group = parse_group_spec("name=slow,cores=1,speed=40%");
    assert_eq!(parse_group_spec("name=slow cores=1 speed=40%"), group);
    check("name=du vcpus=6 vcpus=7", "vcpus is given twice");
    check("name=du,,vcpus=6", "expected key=value, got \"\"");
    check("name=my vm vcpus=2", "invalid name \"my vm\": it contains white space");
    check("name=a=b", "invalid name \"a=b\": it has the character '='");
    for (name, why) in [
        ("", "it is empty"),
        ("my vm", "it contains white space"),
        ("a\u{a0}b", "it contains white space"),
        ("a\nb", "it contains a control character"),
        ("a=b", "it has the character '='"),
        ("a,b", "it has the character ','"),
        ("a/b", "it has the character '/'"),
    ] {
        let reported = format!("invalid name {name:?}: {why}");
        assert_eq!(vnode_name(name).unwrap_err().to_string(), reported);
        let toml = format!("[[group]]\nname = {name:?}\ncores = 1\n").replace("\\u{a0}", "\u{a0}");
        let error = from_toml(&toml).unwrap_err();
        assert_eq!(error.to_string(), format!("line 2, column 8: {reported}"));
    }
    assert_eq!(vnode_name("win11-b.2_é").as_deref(), Ok("win11-b.2_é"));
}

#[test]
fn sizes_are_read_as_libvirt_and_qemu_do() {
    for (text, bytes) in [
        ("\"4096\"", None),
        ("4096", Some(4096)),
        ("\"4096B\"", Some(4096)),
        ("\"512 bytes\"", Some(512)),
        ("\"2k\"", Some(2 << 10)),
        ("\"2KB\"", Some(2000)),
        ("\"3 MiB\"", Some(3 << 20)),
        ("\"3mb\"", Some(3_000_000)),
        ("\"16G\"", Some(16 << 30)),
        ("\"16GiB\"", Some(16 << 30)),
        ("\"16GB\"", Some(16_000_000_000)),
        ("\"1T\"", Some(1 << 40)),
        ("\"1P\"", None),
        ("\"0G\"", None),
        ("\"G\"", None),
        ("\"99999999T\"", None),
    ] {
        let read = from_toml(&format!("[[vm]]\nname = \"a\"\nmemory = {text}\n"));
        let read = read.ok().and_then(|request| Some(request.vnodes[0].memory?.bytes));
        assert_eq!(read, bytes, "{text}");
    }
}

#[track_caller]
fn refused(text: &str, why: &str, hint: &str) {
    let error = from_toml(text).unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.hint().unwrap_or_default().as_str()),
        (why, hint)
    );
}

#[test]
fn bad_files_are_reported_with_line_and_column() {
    refused("", "line 1, column 1: the request names neither a [[vm]] nor a [[group]]", "");
    refused(
        "[[vm]]\nname = \"a\"\n[vm]\n",
        "line 3, column 2: the text is not TOML: duplicate key",
        "",
    );
    refused(
        "[[vm]]\nname = \"a\"\nvpcus = 4\n",
        "line 3, column 1: vm has no key \"vpcus\"",
        "did you mean vcpus?",
    );
    refused(
        "[[vm]]\nname = \"a\"\n[[group]]\nname = \"a\"\ncores = 1\n",
        "line 3, column 1: the name \"a\" is given twice",
        "",
    );
    in_vm("vcpus = 0", "line 3, column 9: vcpus: 0 is not a number of at least 1 or \"auto\"");
    in_vm("vcpus = -1", "line 3, column 9: vcpus: -1 is not a number from 0 to 4294967295");
    in_vm("vcpus = \"many\"", "line 3, column 9: vcpus: \"many\" is not a whole number");
    in_vm("vcpus = 99999999999999999999", "line 3, column 9: 99999999999999999999 is too large");
    in_vm("smt = \"yes\"", "line 3, column 7: smt: \"yes\" is not true, false or \"auto\"");
    in_vm("iothreads = [\"x\", \"x\"]", "line 3, column 19: the iothread \"x\" is given twice");
    in_vm(
        "memory = \"4X\"",
        "line 3, column 10: memory: \"4X\" is not a size with its unit, such as \"16GiB\" or \
         \"16G\" (B, K, M, G, T)",
    );
    in_vm(
        "memory = 16",
        "line 3, column 10: memory: 16 is not a size with its unit, such as \"16GiB\" or \"16G\" \
         (B, K, M, G, T)",
    );
    in_vm(
        "memory = 1073741824\nhuge-pages = 3000",
        "line 4, column 14: huge-pages: 3000 is not a size of pages such as \"2MiB\" or \"1GiB\"",
    );
    in_vm(
        "huge-pages = \"2MiB\"",
        "line 3, column 14: huge-pages is the page size, memory the amount, which is missing",
    );
    refused(
        "[[group]]\nname = \"a\"\ncores = 1\nspeed = \"140%\"",
        "line 4, column 9: speed: \"140%\" is not a part of full speed such as \"40%\" or 0.4, above 0 \
         and at most 1",
        "",
    );
    refused("[[group]]\nname = \"a\"", "line 1, column 1: group needs the key \"cores\"", "");
    refused(
        "[[vm]]\nname = \"a\"\ndevices = [\"eth0\"]",
        "line 3, column 12: \"eth0\" is neither a PCI address nor a node",
        "write 0000:05:00.0 or node:1",
    );
}

fn in_vm(line: &str, why: &str) {
    refused(&format!("[[vm]]\nname = \"a\"\n{line}\n"), why, "")
}

#[test]
fn bad_lists_of_pus() {
    let hint = "write OS indexes, such as 0-3,8; `pinfold topo` shows them as P#";
    let check = |list: &str, part: &str, why: &str| {
        let text = format!("avoid = \"{list}\"\n[[vm]]\nname = \"a\"\n");
        let reported =
            format!("line 1, column 9: avoid: {list:?} is not a list of CPUs: {part:?}: {why}");
        refused(&text, &reported, hint);
    };
    check("8-3", "8-3", "the range runs backwards");
    check("^2", "^2", "an exclusion must follow a range that contains it");
    let why = "the number is beyond every kernel's limit of CPUs; write a hexadecimal mask with 0x \
               in front";
    check("2147483648", "2147483648", why);
    refused(
        "[[vm]]\nname = \"a\"\n[host]\nfree = 100\npus = \"0\"\n",
        "line 5, column 7: host.pus and host.free exclude each other: give a list or a number of \
         CPUs",
        "",
    );
    refused(
        "[[vm]]\nname = \"a\"\n[host]\nfree = \"100%\"\n",
        "line 4, column 8: free: \"100%\" is not a number of CPUs such as 4, or a part such as \
         \"25%\", 1 to 99",
        "",
    );
}

#[test]
fn words_are_quoted_and_the_strategy_is_an_option() {
    refused(
        "isolate = \"hots\"\n[[vm]]\nname = \"a\"\n",
        "line 1, column 11: isolate: \"hots\" is not one of \"none\", \"own\", \"host\"",
        "did you mean host?",
    );
    let option = "name the strategy on the command line: --strategy NAME";
    refused(
        "strategy = \"balanced\"\n[[vm]]\nname = \"a\"\n",
        "line 1, column 1: the request has no key \"strategy\"",
        option,
    );
    refused(
        "[[vm]]\nname = \"a\"\nstrategy = \"balanced\"\n",
        "line 3, column 1: vm has no key \"strategy\"",
        option,
    );
    let error = parse_vm_spec("name=a,strategy=balanced").unwrap_err();
    assert_eq!(error.hint().as_deref(), Some(option));
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,64}", cut in 0_usize..1200) {
        let broken: String = example().chars().take(cut).chain(text.chars()).collect();
        for text in [&text, &broken] {
            if let Err(error) = from_toml(text) {
                proptest::prop_assert!(error.place.is_some());
            }
        }
        if let Ok(vnode) = parse_vm_spec(&text) {
            proptest::prop_assert!(!vnode.name.is_empty());
        }
    }
}

#[test]
fn tunables_are_put_into_a_plan_and_what_cannot_be_is_named() {
    let mut layout = crate::schema::from_json(include_str!("golden/plan-1.json")).unwrap();
    let housekeeping = layout.housekeeping.clone();
    for words in [
        "irq:0000:05:00.0=0",
        "new-irqs=housekeeping",
        "workqueues=0-1",
        "numa-balancing=off",
        "thp=never",
        "ksm=unmerge",
        "wake-up-us=0",
        "governor=performance",
        "min-khz=800000",
        "max-khz=900000",
        "huge-pages=1:2048:512",
        "cpu-weight=200",
        "cpu-quota=50000/100000",
        "required=yes",
    ] {
        set_tunable(&mut layout, words).unwrap_or_else(|error| panic!("{words}: {error}"));
    }
    assert_eq!(layout.tuning.cpus(&new_irqs::TUNABLE), Some(&housekeeping));
    assert_eq!(layout.irqs.last().unwrap().device, "0000:05:00.0");
    assert_eq!(crate::schema::from_json(&crate::schema::to_json(&layout)), Ok(layout.clone()));
    wrong_tunable(
        "thp",
        "expected KEY=VALUE, got \"thp\"",
        "tunables are policy:ROLE=",
        &mut layout,
    );
    wrong_tunable(
        "governer=x",
        "no tunable \"governer\"",
        "did you mean governor? tunables are policy:ROLE, ",
        &mut layout,
    );
    wrong_tunable("thp=off", "thp: \"off\" is not one of always, madvise, never", "", &mut layout);
    wrong_tunable("workqueues=", "not at least one CPU", "housekeeping", &mut layout);
    wrong_tunable("new-irqs=x", "new-irqs: ", "OS indexes", &mut layout);
    wrong_tunable("cpu-quota=5", "QUOTA_US/PERIOD_US", "", &mut layout);
    wrong_tunable("huge-pages=1:2048", "NODE:SIZE_KIB:PAGES", "", &mut layout);
    wrong_tunable("wake-up-us=-1", "whole number", "", &mut layout);
    layout.tuning.set(&cpu_weight::TUNABLE, Value::Number(0));
    let error = crate::schema::from_json(&crate::schema::to_json(&layout)).unwrap_err();
    assert_eq!(error.to_string(), "tuning.cpu_weight: 0 is out of range (1 to 10000)");
    layout.tuning.set(&cpu_weight::TUNABLE, Value::Number(100));
    let quota = CpuQuota { quota_us: 1 << 44, period_us: 100_000 };
    layout.tuning.set(&cpu_quota::TUNABLE, Value::Quota(quota));
    let error = crate::schema::from_json(&crate::schema::to_json(&layout)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tuning.cpu_quota.quota_us: 17592186044416 is out of range (1000 to 17592186044415)"
    );
}

fn wrong_tunable(words: &str, part: &str, hint: &str, layout: &mut Plan) {
    let error = set_tunable(layout, words).unwrap_err();
    assert!(error.to_string().contains(part), "{words}: {error}");
    assert!(error.hint().unwrap_or_default().contains(hint), "{words}: {:?}", error.hint());
}

#[test]
fn words_that_are_wrong_have_an_example_and_an_empty_list_frees_nothing() {
    assert!(hint(parse_vm_spec("").unwrap_err()).contains("name=web,vcpus=4"));
    assert!(hint(parse_group_spec("cores=2").unwrap_err()).contains("name=build,cores=2"));
    let error = pinfold_config::requests::free_pus("--host-cpus", "").unwrap_err();
    assert_eq!(error.to_string(), "--host-cpus: the list names no CPU");
    assert!(hint(error).contains("such as 0,8"));
    let file = "[host]\npus = \"\"\n[[vm]]\nname = \"a\"\nvcpus = 1\n";
    let error = from_toml(file).unwrap_err().to_string();
    assert_eq!(error, "line 2, column 7: host.pus: the list names no CPU");
}

fn hint(error: pinfold_config::ConfigError) -> String {
    error.hint().unwrap_or_default()
}
