//! A fault in a file that people write, with its position.

use pinfold_model::tunables::Invalid;

/// A fault with its position in the text.
pub struct Fault {
    /// Byte offset in the text.
    pub at: usize,
    /// The fault.
    pub why: String,
    /// What the user can do, if known.
    pub hint: Option<String>,
}

impl Fault {
    /// A fault without a hint.
    pub fn new(at: usize, why: String) -> Self {
        Self { at, why, hint: None }
    }

    /// The same with this hint if it has none.
    #[must_use]
    pub fn or_hint(self, hint: &str) -> Self {
        if self.hint.is_some() { self } else { self.with_hint(hint) }
    }

    /// The same with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// At the beginning of a text.
impl From<Invalid> for Fault {
    fn from(invalid: Invalid) -> Self {
        let Invalid { why, hint } = invalid;
        Self { at: 0, why, hint }
    }
}
