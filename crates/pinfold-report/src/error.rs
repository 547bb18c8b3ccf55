//! Errors of rendering a page.

/// Why a page could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The template engine failed.
    #[error("cannot create the report page: {0}")]
    Template(#[from] askama::Error),
}

impl ReportError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            ReportError::Template(_) => Some(
                "the results are safe in the store; this is a bug in Pinfold, please report it"
                    .to_owned(),
            ),
        }
    }
}
