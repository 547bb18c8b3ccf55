//! The JSON documents in the store, version 1. The formats are stable.
//!
//! The types of the model are serialised by its feature `serde`. A change of meaning needs a new
//! store version; the golden texts in the tests below must not change.

use pinfold_model::{Role, RoleArgument};

/// Why a document of the store cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// It is not the JSON of this version.
    #[error("is not a document of this version")]
    Json(#[from] serde_json::Error),
    /// It contains an unknown word.
    #[error("{what} {word:?} is unknown")]
    Word {
        /// What the word stands for.
        what: &'static str,
        /// The unknown word.
        word: String,
    },
}

/// `vcpu:0`, `emulator`, `iothread:disk`, `vhost:1`, `worker`, `task`.
pub fn role_to_word(role: &Role) -> String {
    match role.parts() {
        (kind, RoleArgument::None) => kind.name.to_owned(),
        (kind, argument) => format!("{}:{argument}", kind.name),
    }
}

pub fn role_from_word(word: &str) -> Result<Role, SchemaError> {
    let role = match word.split_once(':') {
        Some((name, argument)) => Role::from_name(name, Some(argument)),
        None => Role::from_name(word, None),
    };
    role.ok_or_else(|| SchemaError::Word { what: "role", word: word.to_owned() })
}

#[cfg(test)]
mod tests {
    use pinfold_model::Accelerator;

    use super::*;

    const ORIGIN: &str = r#"{"fingerprint":"f00d","kernel":"6.12.1","cmdline":"quiet","cpu_model":"Zen","hypervisor":null,"qemu":"9.2.0","accelerator":"tcg-multi","guest_kernel":"6.1 ab12","pinfold":"0.1.0","seed":18446744073709551615}"#;

    fn read_origin(text: &str) -> Result<pinfold_model::Origin, SchemaError> {
        Ok(serde_json::from_str(text)?)
    }

    #[test]
    fn golden_documents_are_read_and_written_unchanged() {
        let origin = read_origin(ORIGIN).unwrap();
        assert_eq!(origin.accelerator, Accelerator::TcgMulti);
        assert_eq!(serde_json::to_string(&origin).unwrap(), ORIGIN);
    }

    #[test]
    fn roles_survive() {
        let roles = [
            (Role::Vcpu(12), "vcpu:12"),
            (Role::Emulator, "emulator"),
            (Role::Iothread("a:b".to_owned()), "iothread:a:b"),
            (Role::Vhost(0), "vhost:0"),
            (Role::Worker, "worker"),
            (Role::Task, "task"),
        ];
        for (role, word) in roles {
            assert_eq!(role_to_word(&role), word);
            assert_eq!(role_from_word(word).unwrap(), role);
        }
    }

    #[test]
    fn unknown_words_are_named() {
        check(role_from_word("vcpu:x").map(drop), r#"role "vcpu:x" is unknown"#);
        check(role_from_word("driver").map(drop), r#"role "driver" is unknown"#);
        let tin = ORIGIN.replace("tcg-multi", "tin");
        let error = read_origin(&tin).unwrap_err();
        check(Err(error), "is not a document of this version");
        let cause =
            std::error::Error::source(&read_origin(&tin).unwrap_err()).map(ToString::to_string);
        assert!(cause.is_some_and(|cause| cause.starts_with("unknown variant `tin`")));
    }

    fn check(found: Result<(), SchemaError>, expected: &str) {
        assert_eq!(found.unwrap_err().to_string(), expected);
    }
}
