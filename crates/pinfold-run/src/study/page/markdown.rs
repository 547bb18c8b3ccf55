//! A study's results as Markdown, with its charts as files.

use pinfold_host::files;
use pinfold_report::{StudyMarkdown, StudyPage};
use sha2::{Digest as _, Sha256};

use crate::{Failure, inputs};

/// Writes the results as Markdown, and its charts in the directory `NAME-charts` next to it.
/// Returns the path of that directory.
///
/// # Errors
/// [`Failure`] if they cannot be written, or the store cannot be read.
pub fn write_markdown(page: &StudyPage, store: &str, path: &str) -> Result<String, Failure> {
    let folder = format!("{}-charts", path.trim_end_matches(".md"));
    let name = folder.rsplit('/').next().unwrap_or(&folder);
    let bytes = files::read(store).map_err(|error| inputs::input_failure(&error))?;
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let facts = [("store".to_owned(), format!("SHA-256 `{digest}`, {} bytes", bytes.len()))];
    let StudyMarkdown { text, charts } = pinfold_report::study_markdown(page, name, &facts);
    files::make_dirs(&folder)?;
    for (file, drawing) in charts {
        files::write_atomic(&format!("{folder}/{file}"), drawing.as_bytes())?;
    }
    files::write_atomic(path, text.as_bytes())?;
    Ok(folder)
}
