//! The package `pinfold-numad`, which apt and dpkg install in place of the package `numad` and the
//! other way round, in a root directory of the test.

use crate::common::{Checked as _, ROOT, Sandbox, assert_parts, is_missing, run, skip};
use pinfold_host::files;
use pinfold_host::process::{Output, find_program, is_root};

/// A root of a file system with a shell for the scripts of packages, and a package `pinfold`.
struct Root {
    sandbox: Sandbox,
    real: String,
    ours: String,
}

impl Root {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        for made in [
            "root/bin",
            "root/usr/sbin",
            "root/dev",
            "root/tmp",
            "root/etc/apt",
            "root/var/lib/dpkg/info",
            "root/var/lib/dpkg/updates",
            "root/var/lib/apt/lists/partial",
            "root/var/cache/apt/archives/partial",
            "root/var/log/apt",
            "debs",
        ] {
            files::make_dirs(&sandbox.path(made)).expect("a folder");
        }
        sandbox.write("root/var/lib/dpkg/status", "");
        let busybox = find_program("busybox").expect("it was found before");
        run("cp", [&busybox, &sandbox.path("root/bin/busybox")]).expect_success();
        for applet in ["sh", "rm", "grep", "sed", "cat", "chmod", "true"] {
            std::os::unix::fs::symlink("busybox", sandbox.path(&format!("root/bin/{applet}")))
                .expect("a link");
        }
        let script = sandbox.write("root/usr/sbin/update-rc.d", "#!/bin/sh\nexit 0\n");
        run("chmod", ["755", &script]).expect_success();
        // apt's settings of the host, such as its hooks, are not read.
        let place = sandbox.path("root");
        sandbox.write(
            "apt.conf",
            format!(
                "Dir \"{place}\";\nDir::State::status \"{place}/var/lib/dpkg/status\";\n\
                 DPkg::Options {{ \"--root={place}\"; }};\nAPT::Sandbox::User \"root\";\n\
                 DPkg::Path \"/usr/sbin:/usr/bin:/sbin:/bin\";\n"
            ),
        );
        let folder = sandbox.path("debs");
        let script = format!("{ROOT}/packaging/numad/make-deb.sh");
        let ours = run("sh", [&script, &folder]).expect_success().stdout_text();
        let real = numad(&sandbox);
        let root = Self { sandbox, real, ours: ours.trim().to_owned() };
        // What the real numad needs is "there".
        let version = env!("CARGO_PKG_VERSION");
        let pinfold = build(
            &root.sandbox,
            "pinfold",
            &format!("{version}\nProvides: libc6 (= 99), lsb-base (= 99)"),
            "usr/bin/pinfold",
        );
        root.dpkg(&["--install", &pinfold]).expect_success();
        root
    }

    fn dpkg(&self, words: &[&str]) -> Output {
        let place = format!("--root={}", self.sandbox.path("root"));
        let own = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "dpkg", &place];
        run("env", [&own, words].concat())
    }

    fn apt(&self, words: &[&str]) -> Output {
        let settings = format!("APT_CONFIG={}", self.sandbox.path("apt.conf"));
        let own = [settings.as_str(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"];
        run("env", [&own, &["apt-get", "--yes"][..], words].concat())
    }

    /// The name of the program that `/usr/bin/numad` leads to; `None` if it is a program itself.
    fn link(&self) -> Option<String> {
        let found = run("readlink", [self.sandbox.path("root/usr/bin/numad")]);
        found.status.success().then(|| found.stdout_text().trim().to_owned())
    }

    /// True if there is a program, or a link that leads to none.
    fn has_program(&self) -> bool {
        files::exists(&self.sandbox.path("root/usr/bin/numad")) || self.link().is_some()
    }

    /// Fails unless exactly one of the two packages is installed, without a fault, with its file.
    #[track_caller]
    fn has_only(&self, name: &str, how: &str) {
        let place = format!("--admindir={}", self.sandbox.path("root/var/lib/dpkg"));
        let format = "--showformat=${db:Status-Abbrev}${Package}\n";
        let list = run("dpkg-query", [place.as_str(), "--show", format, "*numad"]).stdout_text();
        let installed: Vec<&str> = list.lines().filter(|line| line.starts_with("ii")).collect();
        assert_eq!(installed, [format!("ii {name}")], "{how}: {list}");
        assert_eq!(self.dpkg(&["--audit"]).expect_success().stdout_text(), "", "{how}");
        let verified = self.dpkg(&["--verify"]).expect_success().stdout_text();
        assert_eq!(verified, "", "{how}: all files of the packages are there");
        let expected = (name == "pinfold-numad").then(|| "pinfold".to_owned());
        assert_eq!(self.link(), expected, "{how}");
    }
}

/// The real package, or one with its name, its program and a settings file.
fn numad(sandbox: &Sandbox) -> String {
    let folder = sandbox.path("debs");
    let fetch = "cd \"$0\" && apt-get -q -o APT::Sandbox::User=root -o Acquire::Retries=0 \
        -o Acquire::http::Timeout=10 download numad >/dev/null 2>&1 && echo \"$0\"/numad_*.deb";
    let fetched = run("sh", ["-c", fetch, &folder]);
    if fetched.status.success() {
        return fetched.stdout_text().trim().to_owned();
    }
    skip("apt cannot fetch the package numad: one with its name takes its place");
    build(sandbox, "numad", "0.5", "usr/bin/numad")
}

/// A package with one file.
fn build(sandbox: &Sandbox, name: &str, version: &str, file: &str) -> String {
    let control = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: A test <a@test>\n\
         Description: of a test\n"
    );
    let folder = sandbox.path(&format!("build/{name}"));
    for inside in ["DEBIAN", "usr/bin"] {
        files::make_dirs(&format!("{folder}/{inside}")).expect("a folder");
    }
    sandbox.write(&format!("build/{name}/DEBIAN/control"), control);
    sandbox.write(&format!("build/{name}/{file}"), "#!/bin/sh\n");
    let deb = sandbox.path(&format!("debs/{name}.deb"));
    run("dpkg-deb", ["--root-owner-group", "--build", &folder, &deb]).expect_success();
    deb
}

/// Says why the packages cannot be installed here.
fn is_impossible() -> bool {
    if is_missing(&["dpkg", "dpkg-deb", "apt-get", "busybox"]) {
        return true;
    }
    if !is_root() {
        skip("dpkg runs the scripts of packages with chroot, which needs root");
        return true;
    }
    false
}

#[test]
fn each_package_takes_the_place_of_the_other() {
    if is_impossible() {
        return;
    }
    let root = Root::new();
    root.apt(&["install", &root.real]).expect_success();
    root.has_only("numad", "first");
    for round in ["once", "again"] {
        let said = root.apt(&["install", &root.ours]).expect_success().stdout_text();
        assert_parts(&said, &["will be REMOVED:\n  numad\n"]);
        root.has_only("pinfold-numad", round);
        let said = root.apt(&["install", &root.real]).expect_success().stdout_text();
        assert_parts(&said, &["will be REMOVED:\n  pinfold-numad\n"]);
        root.has_only("numad", round);
    }
    // dpkg alone removes what this package replaces, and refuses the other direction.
    let said = root.dpkg(&["--install", &root.ours]).expect_success().stdout_text();
    assert!(said.contains("Removing numad"), "{said}");
    root.has_only("pinfold-numad", "by dpkg");
    let refused = root.dpkg(&["--install", &root.real]);
    assert!(!refused.status.success(), "{}", refused.stdout_text());
    assert_parts(&refused.stderr_text(), &["pinfold-numad conflicts with numad"]);
    root.has_only("pinfold-numad", "after the refusal");
    // A second version in place of the first, and the end.
    root.dpkg(&["--install", &root.ours]).expect_success();
    root.has_only("pinfold-numad", "again by dpkg");
    root.dpkg(&["--remove", "pinfold-numad"]).expect_success();
    assert!(!root.has_program());
    root.dpkg(&["--purge", "pinfold-numad", "numad"]);
    let words = [root.sandbox.path("root"), "-name".to_owned(), "*numad*".to_owned()];
    assert_eq!(run("find", words).expect_success().stdout_text(), "", "nothing is left");
}

/// Without the program the link would lead to nothing, and libvirt would start no such domain.
#[test]
fn the_program_must_be_there() {
    if is_impossible() {
        return;
    }
    let root = Root::new();
    root.dpkg(&["--install", &root.ours]).expect_success();
    let refused = root.dpkg(&["--remove", "pinfold"]);
    assert!(!refused.status.success(), "{}", refused.stdout_text());
    assert_parts(&refused.stderr_text(), &["pinfold-numad depends on pinfold"]);
    let said = root.apt(&["remove", "pinfold"]).expect_success().stdout_text();
    assert_parts(&said, &["pinfold-numad"]);
    assert!(!root.has_program());
}
