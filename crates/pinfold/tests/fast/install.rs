//! `install.sh` and `uninstall.sh` in a directory of the test, and the packages of other
//! distributions, which use them.

use crate::common::{Checked as _, PINFOLD, ROOT, Sandbox, assert_parts, run};
use pinfold_host::files;
use pinfold_host::process::Output;

/// A root of a file system in which Pinfold is installed.
struct Root {
    sandbox: Sandbox,
    prefix: &'static str,
}

impl Root {
    fn new(prefix: &'static str) -> Self {
        let root = Self { sandbox: Sandbox::new(), prefix };
        root.run("install.sh", "UNINSTALLER=yes");
        root
    }

    fn path(&self, below: &str) -> String {
        format!("{}{}/{below}", self.sandbox.root(), self.prefix)
    }

    fn run(&self, script: &str, more: &str) -> Output {
        let script = format!("{ROOT}/packaging/{script}");
        let destdir = format!("DESTDIR={}", self.sandbox.root());
        let (prefix, binary) = (format!("PREFIX={}", self.prefix), format!("BINARY={PINFOLD}"));
        let words = [&destdir, &prefix, &binary, more, "sh", &script];
        run("env", words).expect_success()
    }

    /// Everything below the root.
    fn everything(&self) -> Vec<String> {
        let folder = self.sandbox.root();
        let words = [folder.as_str(), "-mindepth", "1", "-printf", "/%P\n"];
        let found = run("find", words).expect_success();
        found.stdout_text().lines().map(str::to_owned).collect()
    }
}

#[test]
fn what_is_installed_is_removed() {
    let root = Root::new("/opt/pinfold");
    let first = root.everything();
    for file in [
        "bin/pinfold",
        "lib/systemd/system/pinfold@.service",
        "libexec/pinfold/libvirt-hooks/qemu",
        "share/man/man1/pinfold-plan.1",
        "share/bash-completion/completions/pinfold",
        "share/doc/pinfold/docs/how-to/install.md",
        "share/licenses/pinfold/LICENSE-MIT",
    ] {
        assert!(first.contains(&format!("/opt/pinfold/{file}")), "{file} is not in {first:?}");
    }
    // The program itself runs, and completes the studies that were installed with it.
    let program = root.path("bin/pinfold");
    let words = ["PINFOLD_COMPLETE=fish", &program, "--", "pinfold", "study"];
    let begun = root.path("share/pinfold/studies/n");
    let words = [&words[..], &["run", &begun]].concat();
    assert_parts(&run("env", &words).stdout_text(), &["numa-interference.toml\tincluded study"]);

    // A second installation replaces the first, with what only an older version had.
    let old = root.path("share/pinfold/old");
    files::write_atomic(&old, b"").expect("written");
    let list = root.path("share/pinfold/installed");
    let text = files::read_text(&list).expect("a list");
    files::write_atomic(&list, format!("{text}/opt/pinfold/share/pinfold/old\n").as_bytes())
        .expect("written");
    root.run("install.sh", "UNINSTALLER=yes");
    assert_eq!(root.everything(), first);

    root.run("uninstall.sh", "UNINSTALLER=yes");
    assert_eq!(root.everything(), Vec::<String>::new());
}

#[test]
fn files_of_others_stay() {
    let root = Root::new("/usr/local");
    let other = root.path("bin/other");
    files::write_atomic(&other, b"").expect("written");
    root.run("uninstall.sh", "UNINSTALLER=yes");
    assert_eq!(root.everything(), ["/usr", "/usr/local", "/usr/local/bin", "/usr/local/bin/other"]);
}

#[test]
fn units_and_hook_run_the_installed_program() {
    let root = Root::new("/opt/pinfold");
    let units = ["pinfold.service", "pinfold@.service", "pinfold-recover.service"];
    let units = units.map(|unit| format!("lib/systemd/system/{unit}"));
    for file in units.iter().map(String::as_str).chain(["libexec/pinfold/libvirt-hooks/qemu"]) {
        let text = files::read_text(&root.path(file)).expect("text");
        assert!(text.contains("/opt/pinfold/bin/pinfold "), "{file}: {text}");
        assert!(!text.contains("/usr/bin/pinfold"), "{file}: {text}");
    }
    // Nor does any other file, except pages that speak of packages.
    let others = root.everything().into_iter().filter(|path| !path.contains("/share/doc/"));
    let folder = root.sandbox.root();
    for path in others.map(|path| format!("{folder}{path}")).filter(|path| !files::is_dir(path)) {
        let is_text = !path.ends_with("/bin/pinfold");
        let text = if is_text { files::read_text(&path).expect("text") } else { String::new() };
        assert!(!text.contains("/usr/bin/pinfold"), "{path}: name it in the `case` of install.sh");
    }
    let removal = files::read_text(&format!("{ROOT}/packaging/scripts/prerm")).expect("text");
    for unit in files::list(&format!("{ROOT}/packaging/systemd")).expect("units") {
        let named = removal.contains(&unit.replace("@.", "@*."));
        assert!(named, "packaging/scripts/prerm does not stop {unit}");
    }
    // Without the program the hook must not fail: libvirt would end the domain.
    let hook = root.path("libexec/pinfold/libvirt-hooks/qemu");
    run(&hook, ["vm", "started", "begin", "-"]).expect_success();
}

/// The packages that are built elsewhere: they run `install.sh`, and have this version.
#[test]
fn recipes_of_other_distributions_use_the_same_list() {
    for file in ["arch/PKGBUILD", "nix/flake.nix", "oci/Containerfile"] {
        let text = files::read_text(&format!("{ROOT}/packaging/{file}")).expect("text");
        assert!(
            text.contains("UNINSTALLER=no") && text.contains("sh packaging/install.sh"),
            "{file}"
        );
    }
    let sandbox = Sandbox::new();
    let package = sandbox.root();
    // As makepkg: the functions and variables of the file, in bash.
    let script = "cd \"$0/packaging/arch\" && startdir=$PWD pkgdir=$1 && . ./PKGBUILD \
        && package && echo $pkgname $pkgver";
    let binary = format!("BINARY={PINFOLD}");
    let words = [&binary, "bash", "-euc", script, ROOT, &package];
    let made = run("env", words).expect_success();
    assert_eq!(made.stdout_text(), concat!("pinfold ", env!("CARGO_PKG_VERSION"), "\n"));
    assert!(files::exists(&format!("{package}/usr/bin/pinfold")));
    assert!(!files::exists(&format!("{package}/usr/share/pinfold/uninstall.sh")));
}
