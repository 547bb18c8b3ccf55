//! A command that a hint names repeats the user's options: run as it stands, it gives what the
//! hint promises.

use crate::common::{Answer, PINFOLD, ROOT, RYZEN, Sandbox, assert_parts, run};
use pinfold_host::files;

fn pinfold(arguments: &str) -> Answer {
    shell(&format!("pinfold {arguments}"))
}

/// Runs a command line as a person would type it.
fn shell(line: &str) -> Answer {
    let line = line.replacen("pinfold ", &format!("{PINFOLD} "), 1);
    run("sh", ["-c", &line]).into()
}

/// The commands that a text names: between backticks, or on lines of their own.
fn named(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.replace("\\\n", " ").lines() {
        if line.trim().starts_with("pinfold ") {
            found.push(line.trim().to_owned())
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned))
        }
    }
    found
}

/// Those that plan, without where their output is to go.
fn commands(text: &str) -> Vec<String> {
    let plans = named(text).into_iter().filter(|line| line.starts_with("pinfold plan --"));
    plans.map(|line| line.split(" > NEW").next().unwrap_or_default().to_owned()).collect()
}

/// The words of a command as the shell takes them.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (letter, quote) {
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (_, Some(open)) if open == letter => quote = None,
            (' ', None) => words.extend(word.take()),
            (_, _) => word.get_or_insert_default().push(letter),
        }
    }
    assert_eq!(quote, None, "an open quote in {line}");
    words.extend(word);
    words
}

/// Asserts that the first command that `answer` names has these options, and runs it.
fn follow(answer: &Answer, options: &[&str]) -> (String, Answer) {
    let said = format!("{}\n{}", answer.stderr, answer.stdout);
    let named = commands(&said);
    let command = named.first().unwrap_or_else(|| panic!("no command in {said}")).clone();
    for option in options {
        assert!(command.contains(option), "{option} is not in {command}");
    }
    let followed = shell(&command);
    assert_eq!(followed.code, Some(0), "{command}: {}", followed.stderr);
    (command, followed)
}

#[test]
fn a_preference_that_would_change_the_plan_is_planned_by_its_hint() {
    let asked = format!("plan -s balanced --vcpus 8 --input {RYZEN} --avoid 3 --pin emulator=1");
    let answer = pinfold(&asked);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    let options = ["--strategy balanced", "--vcpus 8", "--avoid 3", "--pin emulator=1", "--prefer"];
    let (command, followed) = follow(&answer, &options);
    let there = "with a preference for ";
    assert!(
        (answer.stdout.split_whitespace().collect::<Vec<_>>().join(" ")).contains(there),
        "{}",
        answer.stdout
    );
    assert_ne!(followed.stdout, answer.stdout, "{command}");
}

#[test]
fn a_plan_with_warnings_is_made_again_without_them() {
    let sandbox = Sandbox::new();
    // The vCPUs of this plan are on both L3 caches, and its strategy is not defined to do that.
    let conditions = format!("--input {RYZEN} --avoid 5 --prefer frequency");
    let made =
        pinfold(&format!("plan -s scatter --vcpus 8 --name du --iothread io1 {conditions} --json"));
    let plan = sandbox.write("plan.json", made.stdout.replace("\"scatter\"", "\"balanced\""));
    let found = pinfold(&format!("plan --check {plan} {conditions}"));
    assert_eq!(found.code, Some(1), "{}", found.stdout);
    let hint = Answer { stdout: String::new(), ..found };
    let options = ["--vcpus 8", "--name du", "--iothread io1", "--avoid 5", "--prefer frequency"];
    let (_, again) = follow(&hint, &options);
    let again = sandbox.write("again.json", &again.stdout);
    let passes = pinfold(&format!("plan --check {again} {conditions}"));
    assert_eq!(passes.code, Some(0), "{}", passes.stdout);
}

#[test]
fn a_plan_is_no_domain_file_and_the_hint_plans_it_again() {
    let sandbox = Sandbox::new();
    let made =
        pinfold(&format!("plan -s balanced --vcpus 4 --isolate host --input {RYZEN} --json"));
    let plan = sandbox.write("plan.json", &made.stdout);
    let found = pinfold(&format!("plan --check {plan} --fix --input {RYZEN} --isolate host"));
    assert_eq!(found.code, Some(2), "{}", found.stderr);
    let (_, again) = follow(&found, &["--strategy balanced", "--vcpus 4", "--isolate host"]);
    assert_eq!(again.stdout, made.stdout);
}

#[test]
fn what_isolates_repeats_the_conditions_and_is_for_the_very_cores() {
    let sandbox = Sandbox::new();
    let conditions = format!("--input {RYZEN} --host-cpus 0-1,16-17");
    let made = pinfold(&format!("plan -s balanced --vcpus 4 {conditions} --json"));
    let plan = sandbox.write("plan.json", &made.stdout);
    let found = pinfold(&format!("plan --check {plan} {conditions} --json"));
    assert_eq!(found.code, Some(0), "{}", found.stdout);
    let named = commands(&found.stdout);
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(named[0].contains("--isolate host --host-cpus 0-1,16-17"), "{named:?}");
    let followed = shell(&named[0]);
    assert_eq!(followed.code, Some(0), "{named:?}: {}", followed.stderr);
    assert!(followed.stdout.contains("\"exclusive_pus\": \"2"), "{}", followed.stdout);
    let boot = "`isolcpus=managed_irq,domain,2-3,18-19 nohz_full=2-3,18-19 rcu_nocbs=2-3,18-19 \
                irqaffinity=0-1,4-17,20-31`";
    assert!(found.stdout.contains(boot), "{}", found.stdout);
}

#[test]
fn a_plan_of_another_machine_is_made_again_here_and_of_several_one_is_chosen() {
    let sandbox = Sandbox::new();
    let made = pinfold(&format!("plan --group name=job,cores=1 --input {RYZEN} --json"));
    let foreign = sandbox.write("foreign.json", &made.stdout);
    let state = format!("--state-dir {}", sandbox.path("state"));
    let found = pinfold(&format!("run {state} --plan {foreign} -- true"));
    assert_eq!(found.code, Some(2), "{}", found.stderr);
    let (_, again) = follow(&found, &["--group name=job,cores=1"]);
    let here = sandbox.write("here.json", &again.stdout);
    let checked = pinfold(&format!("plan --check {here}"));
    assert!(!checked.stderr.contains("another machine"), "{}", checked.stderr);

    let made = pinfold("plan -s none --vm name=a,vcpus=1 --vm name=b,vcpus=1 --json");
    let both = sandbox.write("both.json", &made.stdout);
    let found = pinfold(&format!("run {state} --plan {both} -- qemu-system-x86_64 -S"));
    assert_eq!(found.code, Some(2), "{}", found.stderr);
    assert!(found.stderr.contains("choose one of a, b, as in `--vnode a`"), "{}", found.stderr);
}

/// What is printed in 80 columns can be copied line by line into a shell.
#[test]
fn commands_in_80_columns_are_the_same_as_in_wide_lines() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("my  guests");
    files::make_dirs(&folder).expect("a folder");
    let pins: String = (0..4).map(|n| format!("<vcpupin vcpu='{n}' cpuset='{n}'/>")).collect();
    let xml = format!(
        "<domain type='kvm'><name>win 11</name><memory unit='GiB'>8</memory><vcpu>4</vcpu><cputune>{pins}\
         </cputune><cpu><topology sockets='1' cores='2' threads='2'/></cpu></domain>"
    );
    let domain = sandbox.write("my  guests/old -v1.xml", xml);
    let made = pinfold(&format!("plan -s scatter --vcpus 8 --input {RYZEN} --json"));
    let plan = sandbox.write("my  guests/plan.json", &made.stdout);
    let (domain, plan) = (format!("'{domain}'"), format!("'{plan}'"));
    let capture = format!("{ROOT}/fixtures/hosts/isolated-realtime.capture");
    let state = sandbox.path("state");
    let mut compared = 0;
    for line in [
        format!("plan --check {domain} --input {RYZEN} --host-cpus 0,16 --prefer frequency"),
        format!("plan --check {plan} --input {RYZEN} --avoid 5 --prefer frequency"),
        format!("plan --check {domain} {plan} --input {RYZEN} --avoid 5"),
        format!("plan --check {plan} --input {RYZEN} --fix --isolate host"),
        format!("plan -s balanced --vcpus 8 --input {RYZEN} --avoid 3 --pin emulator=1"),
        "plan -s balancd --vcpus 8".to_owned(),
        "doctor".to_owned(),
        format!("doctor --input {capture}"),
        format!("--state-dir {state} status"),
        format!("--state-dir {state} undo 7-1"),
    ] {
        let [wide, narrow] = [1000, 80].map(|columns: u32| {
            let answer = shell(&format!("COLUMNS={columns} pinfold {line}"));
            format!("{}\n{}", answer.stdout, answer.stderr)
        });
        let narrow_words: Vec<Vec<String>> = {
            let joined = narrow.replace("\\\n", " ");
            let lines = joined.lines().map(|line| words_of(line.trim()));
            let inline = joined.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
            lines.chain(inline.map(words_of)).flatten().collect()
        };
        for command in wide.lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let expected = words(command);
            assert!(narrow_words.contains(&expected), "{line}: {command}\n{narrow}");
            compared += 1;
        }
        let broken = narrow.lines().find(|line| line.matches('`').count() % 2 == 1);
        assert_eq!(broken, None, "{line}");
    }
    assert!(compared > 12, "{compared}");
}

/// The words of a line that may be prose; none of one with an open quote.
fn words_of(line: &str) -> Option<Vec<String>> {
    fn quotes(quote: char, line: &str) -> bool {
        line.matches(quote).count().is_multiple_of(2)
    }
    (quotes('\'', line) && quotes('"', line)).then(|| words(line))
}

/// Commands that use no state folder.
const STATELESS: [&str; 5] = ["topo", "doctor", "plan", "report", "exits"];

#[test]
fn commands_in_messages_mean_the_state_folder_of_the_one_that_named_them() {
    let sandbox = Sandbox::new();
    let global = format!("--state-dir '{}/the state'", sandbox.root());
    let refused = ["undo none", "journal none", "emulate status", "emulate down", "run -- ls"];
    for arguments in refused {
        let answer = pinfold(&format!("{global} {arguments}"));
        assert_ne!(answer.code, Some(0), "{arguments}");
        let named: Vec<&str> = answer
            .stderr
            .match_indices("pinfold ")
            .map(|(at, _)| &answer.stderr[at + 8..])
            .collect();
        let named: Vec<&&str> = named
            .iter()
            .filter(|rest: &&&str| !STATELESS.iter().any(|verb| rest.starts_with(verb)))
            .collect();
        assert!(!named.is_empty(), "{arguments}: {}", answer.stderr);
        for rest in named {
            assert!(rest.starts_with(&global), "{arguments}: {}", answer.stderr);
        }
    }
    let silent = pinfold(&format!("{global} status"));
    assert_eq!(silent.stdout.trim(), "no placement is active");
}

/// Each word that newcomers type leads to the command that does it.
#[test]
fn words_for_other_commands_lead_to_them() {
    check("htop", "`pinfold top`");
    check("check vm.xml", "`pinfold plan --check FILE`");
    check("pin win11", "`pinfold apply NAME -s balanced`");
    check("start vm", "`pinfold run -- qemu-system-x86_64 …`");
    check("list", "`pinfold plan --list`");
    check("oslat", "`pinfold measure spin-gap`");
    check("cyclictest -a 1", "`pinfold measure wakeup`");
    check("plan --node 1", "`--avoid CPUS`");
    check("run qemu-system-x86_64 -m 64", "`pinfold run -- qemu-system-x86_64`");
    check("apply alpha beta --plan f.json", "`pinfold apply --plan f.json` applies the plan to");
    check("apply alpha beta --plan=f.json", "`pinfold apply --plan f.json` applies the plan to");
    check("run ./bench", "`pinfold run -- ./bench`");
    check("plan --vcpus -4", "-4 is negative");
    check("advise --vcpus 0", "at least 1 vCPU, for example: --vcpus 4");
    check("advise -w 0:512", "`pinfold advise --vcpus N --memory MIB`");
    check("advise -w", "`pinfold advise --vcpus N --memory MIB`");
    check("run --pin-timeout 1s -- qemu-system-x86_64", "--pin-after <CONDITION>");
    check("measure spin-gap --seconds 2s", "write a number without a unit");
    check("apply --pid abc", "write a number without a unit");
    check("balance", "`pinfold plan -s balanced`");
    check("plan --vcpus", "for example: --vcpus 4");
    check("plan -s", "for example: --strategy balanced");
    check("help aply", "did you mean apply? `pinfold help apply`");
    check("help emulate dwn", "did you mean down? `pinfold help emulate down`");
}

fn check(typed: &str, part: &str) {
    let answer = pinfold(typed);
    assert_eq!(answer.code, Some(2), "{typed}: {}", answer.stderr);
    assert!(answer.stderr.contains(part), "{typed}: {}", answer.stderr);
    assert!(!answer.stderr.contains("tip:"), "{typed}: {}", answer.stderr);
}

/// Each example for an option without a value is one of an option that some command has.
#[test]
fn an_option_without_a_value_has_an_example_that_is_valid() {
    for command in ["plan", "run", "watch", "apply"] {
        let help = pinfold(&format!("{command} --help-all")).stdout;
        let options = help.lines().filter_map(|line| line.trim().strip_prefix("--"));
        let names = options.filter_map(|option| option.split([' ', '=']).next());
        for name in names.filter(|name| ["vcpus", "pid", "metrics", "cores"].contains(name)) {
            let answer = pinfold(&format!("{command} --{name}"));
            let example = format!("for example: --{name} ");
            assert!(answer.stderr.contains(&example), "{command} --{name}: {}", answer.stderr);
        }
    }
}

/// Nothing is started, calibrated or stored for a command that cannot run.
#[test]
fn a_command_that_is_no_machine_or_does_not_exist_is_refused_at_once() {
    let sandbox = Sandbox::new();
    let store = sandbox.path("store");
    let program = sandbox.path("started");
    let tuned = pinfold(&format!("tune --store {store} -- touch {program}"));
    assert_eq!(tuned.code, Some(2), "{}", tuned.stderr);
    let said = tuned.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_parts(&said, &["touch is not QEMU", &format!("run --cores 1 -- touch {program}`")]);
    assert!(!files::exists(&store) && !files::exists(&program));
    for (words, why) in [
        ("run --speed 50% -- no-such-program", "there is no program no-such-program in PATH"),
        ("run --speed 50% -- ./no-such-program", "there is no file ./no-such-program"),
        ("run --cores 1 -- /etc/passwd", "/etc/passwd is not an executable file"),
        ("tune -- no-such-program", "there is no program no-such-program in PATH"),
    ] {
        let answer = pinfold(&format!("--state-dir {store}.d {words}"));
        assert_eq!(answer.code, Some(127), "{words}: {}", answer.stderr);
        assert!(answer.stderr.contains(why), "{words}: {}", answer.stderr);
        assert!(!answer.stderr.contains("alibrat"), "{words}: {}", answer.stderr);
    }
    let near = pinfold(&format!("plan -s balance --vcpus 2 --input {RYZEN}")).stderr;
    assert!(near.contains("balanced") && !near.contains("balanced-shared"), "{near}");
    assert_parts(&pinfold("plan --help").stdout, &["--prefer", "--avoid", "--pin"]);
}

#[test]
fn both_names_of_the_option_set_a_tunable() {
    let plan = |option: &str| {
        let words = format!(
            "plan -s balanced --vcpus 2 {option} thp=never {option} ksm=stop --json --input {RYZEN}"
        );
        let answer = pinfold(&words);
        assert_eq!(answer.code, Some(0), "{}", answer.stderr);
        answer.stdout
    };
    let now = plan("--tunable");
    assert_parts(&now, &["\"tuning\"", "\"never\""]);
    assert_eq!(now, plan("--knob"));
    for command in ["plan", "apply", "run", "quiet"] {
        let help = pinfold(&format!("{command} --help-all")).stdout;
        assert!(help.contains("--tunable") && !help.contains("knob"), "{command}: {help}");
    }
}

#[test]
fn a_tunable_that_is_given_twice_is_refused() {
    let answer = pinfold(&format!(
        "plan -s balanced --vcpus 2 --tunable thp=never --tunable thp=always --input {RYZEN}"
    ));
    assert_eq!(answer.code, Some(2), "{}", answer.stderr);
    assert!(answer.stderr.contains("thp is given twice"), "{}", answer.stderr);
}
