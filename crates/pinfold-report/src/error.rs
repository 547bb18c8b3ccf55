//! What can go wrong when a page is made.

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The template engine stopped.
    #[error("the report page could not be put together: {0}")]
    Template(#[from] askama::Error),
}

impl ReportError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            ReportError::Template(_) => Some(
                "the results are safe in the store; this is a defect of Pinfold, please report it"
                    .to_owned(),
            ),
        }
    }
}
