//! The Debian metapackage that names a guest kernel.

use pinfold_model::Isa;

/// A metapackage that names a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flavour {
    /// Its name, such as `linux-image-amd64`.
    pub package: &'static str,
    /// The Debian suite of the package; `None` for the machine's own sources.
    pub suite: Option<&'static str>,
    /// The instruction set, if it is not the machine's own; requires a suite.
    pub isa: Option<Isa>,
}

impl std::fmt::Display for Flavour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.package)?;
        self.suite.map_or(Ok(()), |suite| write!(f, "-{suite}"))?;
        self.isa.map_or(Ok(()), |isa| write!(f, "-{isa}"))
    }
}
