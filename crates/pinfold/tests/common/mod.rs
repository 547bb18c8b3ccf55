//! What the test programs share: a directory in which a test runs this binary, what is asserted of
//! its answers, and QEMUs of a test's own.

#![allow(dead_code, reason = "each test program uses its own part")]

pub mod machine;

use std::sync::{Mutex, MutexGuard, PoisonError};

use pinfold_host::process::{Child, Output, Spawn, Stdio, is_root};
use pinfold_host::{Clock as _, SystemClock, files};
use serde_json::Value;

pub const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
pub const RYZEN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts/ryzen-7950x3d.xml");
pub const SECOND_NS: u64 = 1_000_000_000;
pub const MINUTE_NS: u64 = 60 * SECOND_NS;
/// More than any command of these tests takes, on a machine where others work too.
pub const TIMEOUT_NS: u64 = 400 * SECOND_NS;

/// Set to true, because placements of other tests are claims, whatever state directory they have.
pub const WITHOUT_CLAIMS: &str = "PINFOLD_IGNORE_CLAIMS";

static TURN: Mutex<()> = Mutex::new(());

/// Waits until no other test of this program has its turn.
pub fn take_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks every 20 ms until the answer is yes. False if that does not happen within a minute.
pub fn until(so: impl FnMut() -> bool) -> bool {
    until_every(SECOND_NS / 50, so)
}

/// The same every 100 ms: for questions that take the time of many reads.
pub fn until_rarely(so: impl FnMut() -> bool) -> bool {
    until_every(SECOND_NS / 10, so)
}

fn until_every(period_ns: u64, mut so: impl FnMut() -> bool) -> bool {
    let end = SystemClock.now_ns() + MINUTE_NS;
    while SystemClock.now_ns() < end {
        if so() {
            return true;
        }
        SystemClock.sleep_ns(period_ns);
    }
    false
}

/// Runs a program that is not Pinfold, or leads to it.
pub fn run<A: AsRef<std::ffi::OsStr>>(program: &str, words: impl IntoIterator<Item = A>) -> Output {
    let spawn = Spawn::new(program).args(words).stdin(Stdio::Null).env(WITHOUT_CLAIMS, "true");
    spawn.capture(TIMEOUT_NS).expect("it runs")
}

/// Runs this binary, without a state directory of its own.
pub fn pinfold<A: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = A>) -> Output {
    run(PINFOLD, words)
}

/// A directory of a test's own, with the state of the binary that is run in it.
pub struct Sandbox {
    folder: tempfile::TempDir,
    has_cache: bool,
    has_claims: bool,
}

impl Sandbox {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, has_cache: false, has_claims: false }
    }

    /// One in which no file of the user's cache is read or written either.
    pub fn with_cache() -> Self {
        Self { has_cache: true, ..Self::new() }
    }

    /// One in which plans avoid the CPUs of others, as they do for users.
    pub fn with_claims() -> Self {
        Self { has_claims: true, ..Self::new() }
    }

    /// The path of the directory.
    pub fn root(&self) -> String {
        self.folder.path().to_string_lossy().into_owned()
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder.path().display())
    }

    /// Writes a file, and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        files::write_atomic(&path, content.as_ref()).expect("the file is written");
        path
    }

    /// The text of a file that is there.
    pub fn read(&self, name: &str) -> String {
        files::read_text(&self.path(name)).expect("the file is there")
    }

    /// The binary with its state in this directory.
    pub fn spawn(&self, words: &[&str]) -> Spawn {
        let state = self.path("state");
        let words = [&["--state-dir", &state], words].concat();
        let spawn = Spawn::new(PINFOLD).args(words).stdin(Stdio::Null);
        let spawn = spawn.env(WITHOUT_CLAIMS, &(!self.has_claims).to_string()).env("COLUMNS", "");
        if self.has_cache { spawn.env("XDG_CACHE_HOME", &self.path("cache")) } else { spawn }
    }

    /// Starts it in the background; it ends with the test.
    pub fn start(&self, words: &[&str]) -> Child {
        let spawn = self.spawn(words).stdout(Stdio::Null).die_with_parent(true);
        spawn.start().expect("pinfold starts")
    }

    /// The same with its messages in the file `said`.
    pub fn start_logged(&self, words: &[&str]) -> Child {
        self.start_by_shell(&["sh"], "", words)
    }

    /// The same where root can hide `/dev/kvm`: its trial takes a minute where it boots no guest.
    pub fn start_without_kvm(&self, words: &[&str]) -> Child {
        if !is_root() {
            return self.start_logged(words);
        }
        let hide = "test ! -e /dev/kvm || mount --bind /dev/null /dev/kvm; ";
        self.start_by_shell(&["unshare", "--mount", "sh"], hide, words)
    }

    /// Starts it by a shell that does something before.
    fn start_by_shell(&self, shell: &[&str], before: &str, words: &[&str]) -> Child {
        let (said, state) = (self.path("said"), self.path("state"));
        let script = format!("{before}exec \"$@\" >>\"$0\" 2>&1");
        let own = ["-c", &script, &said, PINFOLD, "--state-dir", &state];
        let spawn = Spawn::new(shell[0]).args([&shell[1..], &own, words].concat());
        let spawn = spawn.env(WITHOUT_CLAIMS, &(!self.has_claims).to_string());
        spawn.stdin(Stdio::Null).die_with_parent(true).start().expect("pinfold starts")
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.spawn(words).capture(TIMEOUT_NS).expect("pinfold runs")
    }

    /// Runs it as a part of another command line, which leads to another view of the host.
    pub fn run_by(&self, wrap: &[&str], words: &[&str]) -> Output {
        let state = self.path("state");
        let own = format!("{WITHOUT_CLAIMS}={}", !self.has_claims);
        run("env", [&[own.as_str()], wrap, &[PINFOLD, "--state-dir", &state], words].concat())
    }

    /// What it prints, if it succeeds.
    #[track_caller]
    pub fn print(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", output.stderr_text());
        output.stdout_text()
    }

    /// The same as JSON.
    #[track_caller]
    pub fn print_json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.print(words)).expect("JSON")
    }

    /// Asserts that it ends with this code and a message with this part.
    #[track_caller]
    pub fn refuse(&self, words: &[&str], code: i32, part: &str) {
        let output = self.run(words);
        let said = output.stderr_text();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(part), "{words:?}: {part} is not in {said}");
    }

    /// The same, and asserts that it prints nothing else.
    #[track_caller]
    pub fn refuse_silently(&self, words: &[&str], code: i32, part: &str) {
        let output = self.run(words);
        let (said, printed) = (output.stderr_text(), output.stdout_text());
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(part), "{words:?}: {part} is not in {said}");
        assert_eq!(printed, "", "{words:?} printed something all the same");
    }

    /// Asserts the exit code, and returns output and messages.
    #[track_caller]
    pub fn expect(&self, code: i32, words: &[&str]) -> (String, String) {
        let output = self.run(words);
        (output.stdout_text(), output.expect_code(code))
    }

    /// Exit code, output and messages.
    pub fn answer(&self, words: &[&str]) -> (Option<i32>, String, String) {
        self.run(words).parts()
    }
}

/// What is asserted of the output of a command.
pub trait Checked: Sized {
    /// Asserts that the command succeeded.
    fn expect_success(self) -> Self;
    /// Asserts the exit code, and returns the messages.
    fn expect_code(&self, code: i32) -> String;
    /// What was printed, as JSON.
    fn json(&self) -> Value;
    /// Exit code, output and messages.
    fn parts(&self) -> (Option<i32>, String, String);
}

impl Checked for Output {
    #[track_caller]
    fn expect_success(self) -> Self {
        assert!(self.status.success(), "{}{}", self.stdout_text(), self.stderr_text());
        self
    }

    #[track_caller]
    fn expect_code(&self, code: i32) -> String {
        let said = self.stderr_text();
        assert_eq!(self.status.code(), Some(code), "{}{said}", self.stdout_text());
        said
    }

    #[track_caller]
    fn json(&self) -> Value {
        let text = self.stdout_text();
        let parsed = serde_json::from_str(&text);
        parsed.unwrap_or_else(|error| panic!("{error}: {text}{}", self.stderr_text()))
    }

    fn parts(&self) -> (Option<i32>, String, String) {
        (self.status.code(), self.stdout_text(), self.stderr_text())
    }
}

/// Exit code and texts of a command.
pub struct Answer {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        let (code, stdout, stderr) = output.parts();
        Self { code, stdout, stderr }
    }
}

/// The words of a command line of a page; those in double quotes are one.
pub fn split_words(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate().flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    parts.collect()
}

/// Asserts that a text has all these parts.
#[track_caller]
pub fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// Reports why a test cannot run here; `cargo xtask test` counts such lines.
pub fn skip(why: impl std::fmt::Display) {
    println!("skipped: {why}");
}

/// True, and reported, if one of these programs is not installed.
pub fn is_missing(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|name| pinfold_host::process::find_program(name).is_none());
    if let Some(name) = missing {
        skip(format!("{name} is not installed"));
    }
    missing.is_some()
}
