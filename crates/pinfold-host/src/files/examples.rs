//! The files of the documentation's examples, which the program contains: each option that takes a
//! file also takes `example:NAME`.

use crate::HostError;

/// Prefix of the name of an example.
pub const PREFIX: &str = "example:";

/// Reads the files below as the table of names and contents.
macro_rules! table {
    ($($name:literal: $path:literal,)*) => {
        [$(($name, include_bytes!(concat!("../../../../", $path)).as_slice()),)*]
    };
}

/// Name and content; each file is in the repository, and its name is that of the file.
pub(super) const EXAMPLES: [(&str, &[u8]); 12] = table! {
    "e5-2670-dual": "fixtures/hosts/e5-2670-dual.synthetic",
    "e7-four": "fixtures/hosts/e7-four.capture",
    "epyc-7702p": "fixtures/hosts/epyc-7702p.synthetic",
    "i7-4790k": "fixtures/hosts/i7-4790k.synthetic",
    "i9-13900k": "fixtures/hosts/i9-13900k.xml",
    "isolated-realtime": "fixtures/hosts/isolated-realtime.capture",
    "ryzen-7950x3d": "fixtures/hosts/ryzen-7950x3d.xml",
    "buchert-fig2": "docs/examples/buchert-fig2.toml",
    "desktop": "docs/examples/desktop.xml",
    "isolated-cpus": "docs/examples/isolated-cpus.xml",
    "two-vnodes": "docs/examples/two-vnodes.toml",
    "windows-gpu": "docs/examples/windows-gpu.xml",
};

/// The content of an example, if the path is `example:NAME`.
///
/// # Errors
/// [`HostError::Unexpected`] with all names, if there is none of this name.
pub(super) fn read(path: &str) -> Option<Result<Vec<u8>, HostError>> {
    let name = path.strip_prefix(PREFIX)?;
    let found = EXAMPLES.iter().find(|(known, _)| *known == name);
    Some(found.map(|(_, content)| content.to_vec()).ok_or_else(|| {
        let names = EXAMPLES.map(|(known, _)| known).join(", ");
        let why = format!("there is no such example; the examples are {names}");
        HostError::Unexpected { path: path.to_owned(), why }
    }))
}
