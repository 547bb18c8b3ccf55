//! Names of the temporary files through which a file is replaced.

use pinfold_model::Tid;

use crate::process;

/// Name of the temporary file that replaces `name` when it is complete.
pub(super) fn name(name: &str) -> String {
    format!(".{name}.{}.tmp", process::own_tid())
}

/// The thread that wrote such a file, from its name.
pub(super) fn writer_of(temporary: &str) -> Option<Tid> {
    let (_, tid) = temporary.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?;
    tid.parse().ok().map(Tid)
}
