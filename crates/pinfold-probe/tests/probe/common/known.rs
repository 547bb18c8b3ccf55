//! The program of `tests/programs/known.c`, which says what it did.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::ChildStdout;

use pinfold_host::process::{Child, Spawn, Stdio, capture};

use super::PATIENCE;

/// The program, waiting at its gate.
pub struct KnownProgram {
    pub child: Child,
    answers: BufReader<ChildStdout>,
    _folder: tempfile::TempDir,
}

impl KnownProgram {
    /// Compiles and starts it.
    pub fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("known").to_str().unwrap().to_owned();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/known.c");
        let flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"];
        let frames = ["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
        let words = [&flags[..], &frames[..], &["-o", &program, source]].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let compiled = capture("cc", &words, PATIENCE).unwrap();
        let why = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{why}");
        let mut child = Spawn::new(&program)
            .args(arguments)
            .stdin(Stdio::Pipe)
            .stdout(Stdio::Pipe)
            .start()
            .unwrap();
        let answers = BufReader::new(child.stdout().unwrap());
        let mut known = Self { child, answers, _folder: folder };
        assert_eq!(known.answer(), "ready");
        known
    }

    /// Opens the gate and takes what it says at the next.
    pub fn go(&mut self, input: &mut std::process::ChildStdin) -> String {
        input.write_all(b"\n").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}
