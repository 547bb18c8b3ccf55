//! `cargo xtask bpf`: compiles the BPF programs, whose objects are in the repository.
//!
//! Building Pinfold needs no C compiler for BPF; this command is for changing a program. The stamp
//! next to each object records the source from which it was compiled; `tidy` compares it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::packages::{ensure, Purpose};
use crate::run::run;

const FOLDER: &str = "crates/pinfold-host/bpf";
/// The header that every program includes.
const SHARED: &str = "kernel.h";

/// Installs the compiler, compiles every program, writes the stamps.
pub fn bpf(root: &Path) -> Result<(), String> {
    ensure(&Purpose::Bpf);
    for source in sources(root)? {
        let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let object = name.replace(".bpf.c", ".bpf.o");
        // With a path relative to its own folder, and without the folder in the object's debug
        // information, so that the object is the same in any location.
        let folder = root.join(FOLDER);
        let unnamed = format!("-ffile-prefix-map={}=.", folder.display());
        let options =
            ["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", unnamed.as_str()];
        run(
            &folder,
            "clang-14",
            &[&options[..], &["-c", name.as_str(), "-o", object.as_str()]].concat(),
        )?;
        run(&folder, "llvm-strip-14", &["-g", &object])?;
        let text = stamp(&source)?;
        let path = folder.join(name.replace(".bpf.c", ".bpf.stamp"));
        fs::write(&path, text).map_err(|error| format!("{}: {}", path.display(), error))?;
    }
    Ok(())
}

/// Programs whose source or object differs from the stamp.
pub fn stale(root: &Path) -> Vec<String> {
    let sources = match sources(root) {
        Ok(sources) => sources,
        Err(why) => return vec![why],
    };
    let mut stale = Vec::new();
    for source in sources {
        let name = source.to_string_lossy().into_owned();
        let kept = fs::read_to_string(name.replace(".bpf.c", ".bpf.stamp")).unwrap_or_default();
        if stamp(&source).map_or(true, |now| now != kept) {
            stale.push(format!("{}: its object is of another source: run `cargo xtask bpf`", name));
        }
    }
    stale
}

fn sources(root: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = root.join(FOLDER);
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {}", folder.display(), e))?;
    let all = entries.flatten().map(|entry| entry.path());
    let mut sources: Vec<PathBuf> =
        all.filter(|path| path.to_string_lossy().ends_with(".bpf.c")).collect();
    sources.sort();
    Ok(sources)
}

fn stamp(source: &Path) -> Result<String, String> {
    let object = source.to_string_lossy().replace(".bpf.c", ".bpf.o");
    let mut text = String::new();
    // Types of the kernel may be in a header of the program's own.
    let own = source.to_string_lossy().replace(".bpf.c", ".h");
    let own = Some(Path::new(&own)).filter(|path| path.exists());
    let shared = source.with_file_name(SHARED);
    for path in [Some(source), Some(&shared), own, Some(Path::new(&object))].into_iter().flatten() {
        let bytes = fs::read(path).map_err(|error| format!("{}: {}", path.display(), error))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        text.push_str(&format!("{:016x} {}\n", fnv1a(&bytes), name));
    }
    Ok(text)
}

/// <https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>, 64 bits, variant 1a.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
