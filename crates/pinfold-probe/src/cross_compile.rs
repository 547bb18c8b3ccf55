//! `pinload` for guests of another instruction set, compiled on this machine on demand.
//!
//! The sources are embedded in this program. A cross compiler (such as Debian's
//! `gcc-riscv64-linux-gnu`) builds a static program from them once. The result is cached in a
//! folder, under a name that changes with the sources.

use pinfold_host::{HostError, files, process};
use pinfold_model::Isa;

use crate::pinload::BINARY;

/// Name and text of each source file.
static SOURCES: &[(&str, &[u8])] = &include!(concat!(env!("OUT_DIR"), "/sources.rs"));
/// The compiler flags of `build.rs`.
const FLAGS: &str = env!("PINLOAD_FLAGS");
const SOURCES_HASH: &str = env!("PINLOAD_SOURCES");
const TIMEOUT_NS: u64 = 300_000_000_000;

/// Why there is no `pinload` for an instruction set.
#[derive(Debug, thiserror::Error)]
pub enum CrossError {
    /// The compiler is not installed.
    #[error("{compiler} is not installed, which compiles what runs in {isa} guests")]
    NoCompiler {
        /// Name of the compiler.
        compiler: String,
        /// The instruction set.
        isa: Isa,
    },
    /// The compiler failed.
    #[error("{compiler} cannot compile pinload: {message}")]
    Failed {
        /// Name of the compiler.
        compiler: String,
        /// The end of its error output.
        message: String,
        /// The instruction set.
        isa: Isa,
    },
    /// A file or process operation failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl CrossError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            CrossError::NoCompiler { isa, .. } | CrossError::Failed { isa, .. } => Some(format!(
                "apt-get install gcc-{}-linux-gnu libc6-dev-{}-cross",
                isa.gnu_name().replace('_', "-"),
                isa.debian_name()
            )),
            CrossError::Host(_) => None,
        }
    }
}

fn compiler(isa: Isa) -> String {
    format!("{}-linux-gnu-gcc", isa.gnu_name())
}

/// What is missing on this machine to build the program for an instruction set; `None` if nothing
/// is.
pub fn missing(isa: Isa) -> Option<CrossError> {
    let compiler = compiler(isa);
    let is_there = Isa::of_host() == Some(isa) || process::find_program(&compiler).is_some();
    (!is_there).then_some(CrossError::NoCompiler { compiler, isa })
}

/// The program for an instruction set: the embedded one for that of this host, else one that is
/// compiled into `folder` if it is not there yet.
///
/// # Errors
/// [`CrossError`].
pub fn program(isa: Isa, folder: &str) -> Result<Vec<u8>, CrossError> {
    if Isa::of_host() == Some(isa) {
        return Ok(BINARY.to_vec());
    }
    if let Some(error) = missing(isa) {
        return Err(error);
    }
    let kept = format!("{folder}/pinload-{isa}-{SOURCES_HASH}");
    if !files::exists(&kept) {
        let scratch = format!("{kept}.partial-{}", process::own_pid());
        let compiled = compile(isa, &scratch);
        let moved = compiled.and_then(|path| Ok(files::rename(&path, &kept)?));
        files::remove_tree(&scratch)?;
        moved?;
    }
    Ok(files::read(&kept)?)
}

/// Compiles the program and returns its path.
fn compile(isa: Isa, scratch: &str) -> Result<String, CrossError> {
    files::make_dirs(scratch)?;
    let mut words: Vec<String> = FLAGS.split(' ').map(str::to_owned).collect();
    let output = format!("{scratch}/pinload");
    words.extend(["-o".to_owned(), output.clone()]);
    for (name, text) in SOURCES {
        let path = format!("{scratch}/{name}");
        if let Some((parent, _)) = path.rsplit_once('/') {
            files::make_dirs(parent)?;
        }
        files::write_atomic(&path, text)?;
        if name.ends_with(".c") {
            words.push(path);
        }
    }
    words.push("-lm".to_owned());
    let compiler = compiler(isa);
    let answer = process::capture(&compiler, &words, TIMEOUT_NS)?;
    if answer.status.success() {
        return Ok(output);
    }
    let said = answer.stderr_text();
    let message = said.trim().lines().next_back().unwrap_or("").to_owned();
    Err(CrossError::Failed { compiler, message, isa })
}
