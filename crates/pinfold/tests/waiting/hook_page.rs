//! The commands and files of the page about the libvirt hook, on a real libvirt.

use crate::common::{Checked as _, ROOT, Sandbox, run, split_words};
use crate::libvirt::{NAME, count_active, daemon_with_hook, root, start_domain};
use pinfold_host::files;

/// The blocks of the page that are in this language.
fn blocks(language: &str) -> Vec<String> {
    let page = files::read_text(&format!("{ROOT}/docs/how-to/libvirt-hook.md")).expect("the page");
    let parts = page.split("```").skip(1).step_by(2);
    let own = parts.filter_map(|block| block.strip_prefix(&format!("{language}\n")));
    own.map(str::to_owned).collect()
}

/// The only block with these words.
fn block(language: &str, part: &str) -> String {
    let mut all = blocks(language);
    all.retain(|block| block.contains(part));
    assert_eq!(all.len(), 1, "{part}");
    all.remove(0)
}

#[test]
fn the_installation_of_the_page_puts_the_hook_where_libvirt_runs_it() {
    let sandbox = Sandbox::new();
    let text = block("sh", "install -D");
    let line = text.lines().next().expect("a line");
    let line = line
        .replace("/usr/libexec/pinfold/libvirt-hooks", &format!("{ROOT}/packaging/libvirt"))
        .replace("/etc/libvirt", &sandbox.path("libvirt"));
    run("sh", ["-c", &line]).expect_success();
    let hook = sandbox.path("libvirt/hooks/qemu.d/pinfold");
    // Without Pinfold at its place it lets every domain start, and prints no XML.
    let output = run(&hook, [NAME, "started", "begin", "-"]).expect_success();
    assert_eq!(output.stdout_text(), "");
}

#[test]
fn the_page_asks_for_a_placement_that_the_next_start_makes() {
    let hooks = Sandbox::new();
    let Some(daemon) = daemon_with_hook(&hooks) else { return };
    // The file of the page, which has no row for this domain.
    let file = format!("{}/domains.toml", root(&daemon));
    files::write_atomic(&file, block("text", "[default]").as_bytes()).expect("written");
    run("chown", ["65534:65534", &file]).expect_success();
    start_domain(&daemon, "");
    let log = || files::read_text(&format!("{}/hook.log", root(&daemon))).unwrap_or_default();
    assert_eq!(log(), "", "nothing asks for a placement");
    let ask = block("text", "virsh metadata db");
    let words = split_words(ask.trim());
    let virsh = |words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let words: Vec<&str> =
            words.iter().map(|word| if *word == "db" { NAME } else { *word }).collect();
        daemon.virsh(&words[1..]).expect("virsh")
    };
    virsh(&words);
    let xml = daemon.virsh(&["dumpxml", NAME, "--inactive"]).expect("XML");
    let shown = block("text", "<pinfold:placement");
    for line in shown.lines() {
        assert!(
            xml.replace(['\'', '"', ' '], "").contains(&line.replace(['\'', '"', ' '], "")),
            "{line} is not in {xml}"
        );
    }
    daemon.virsh(&["destroy", NAME]).expect("it ends");
    daemon.virsh(&["start", NAME, "--paused"]).expect("it starts");
    assert!(log().contains("its metadata, line"), "{}", log());
    assert_eq!(count_active(&daemon), 1, "{}", log());
    // As the user of this test, whose journals are others.
    for line in block("sh", "pinfold claims").lines().filter(|line| line.starts_with("pinfold ")) {
        let sandbox = Sandbox::new();
        let words = split_words(line);
        let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
        sandbox.run(&words).expect_success();
    }
    let page = files::read_text(&format!("{ROOT}/docs/how-to/libvirt-hook.md")).expect("the page");
    let end = page
        .split('`')
        .find(|code| code.starts_with("virsh metadata") && code.contains("--remove"));
    virsh(&split_words(end.expect("a command")));
    daemon.virsh(&["destroy", NAME]).expect("it ends");
    daemon.virsh(&["start", NAME, "--paused"]).expect("it starts");
    assert_eq!(count_active(&daemon), 0, "{}", log());
}
