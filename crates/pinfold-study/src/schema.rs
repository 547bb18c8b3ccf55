//! The JSON documents in the store, version 1. The formats are stable.
//!
//! The types of the model are not serialisable themselves: each has a counterpart here, with units in
//! the keys. A change of meaning needs a new store version; the golden texts in
//! the tests below must not change.

use pinfold_model::{Accelerator, Origin, Role, RoleArgument};
use serde::{Deserialize, Serialize};

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

/// Host and software in documents.
#[derive(Serialize, Deserialize)]
pub struct OriginV1 {
    fingerprint: String,
    kernel: String,
    cmdline: String,
    cpu_model: String,
    hypervisor: Option<String>,
    qemu: Option<String>,
    accelerator: String,
    guest_kernel: Option<String>,
    pinfold: String,
    seed: u64,
}

fn accelerator_word(accelerator: Accelerator) -> &'static str {
    match accelerator {
        Accelerator::Kvm => "kvm",
        Accelerator::TcgMulti => "tcg-multi",
        Accelerator::TcgSingle => "tcg-single",
        Accelerator::Native => "native",
    }
}

fn accelerator_from(word: &str) -> Result<Accelerator, SchemaError> {
    [Accelerator::Kvm, Accelerator::TcgMulti, Accelerator::TcgSingle, Accelerator::Native]
        .into_iter()
        .find(|accelerator| accelerator_word(*accelerator) == word)
        .ok_or_else(|| SchemaError::Word { what: "accelerator", word: word.to_owned() })
}

impl OriginV1 {
    /// The origin in its stored form.
    #[must_use]
    pub fn from_origin(origin: &Origin) -> Self {
        Self {
            fingerprint: origin.fingerprint.clone(),
            kernel: origin.kernel.clone(),
            cmdline: origin.cmdline.clone(),
            cpu_model: origin.cpu_model.clone(),
            hypervisor: origin.hypervisor.clone(),
            qemu: origin.qemu.clone(),
            accelerator: accelerator_word(origin.accelerator).to_owned(),
            guest_kernel: origin.guest_kernel.clone(),
            pinfold: origin.pinfold.clone(),
            seed: origin.seed,
        }
    }
}

impl OriginV1 {
    /// The origin.
    ///
    /// # Errors
    /// [`SchemaError`] for an unknown accelerator.
    pub fn into_origin(self) -> Result<Origin, SchemaError> {
        Ok(Origin {
            accelerator: accelerator_from(&self.accelerator)?,
            fingerprint: self.fingerprint,
            kernel: self.kernel,
            cmdline: self.cmdline,
            cpu_model: self.cpu_model,
            hypervisor: self.hypervisor,
            qemu: self.qemu,
            guest_kernel: self.guest_kernel,
            pinfold: self.pinfold,
            seed: self.seed,
        })
    }
}

/// Host and software as a field of a document: `#[serde(with = …)]`.
pub mod origin {
    use pinfold_model::Origin;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de};

    use super::OriginV1;

    /// Writes it.
    ///
    /// # Errors
    /// Those of the format.
    pub fn serialize<S: Serializer>(origin: &Origin, serializer: S) -> Result<S::Ok, S::Error> {
        OriginV1::from_origin(origin).serialize(serializer)
    }

    /// Reads it.
    ///
    /// # Errors
    /// Those of the format; an unknown accelerator.
    pub fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Origin, D::Error> {
        OriginV1::deserialize(deserializer)?.into_origin().map_err(de::Error::custom)
    }
}

/// Load states as a field of a document.
pub mod load_states {
    use pinfold_model::LoadState;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct LoadV1 {
        host: bool,
        guest: bool,
    }

    pub fn serialize<S: Serializer>(loads: &[LoadState], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(loads.iter().map(|load| LoadV1 { host: load.host, guest: load.guest }))
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<LoadState>, D::Error> {
        let loads = Vec::<LoadV1>::deserialize(from)?.into_iter();
        Ok(loads.map(|LoadV1 { host, guest }| LoadState { host, guest }).collect())
    }
}

/// A metric as a field of a document: its name.
pub mod metric {
    use pinfold_model::Metric;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    pub fn serialize<S: Serializer>(metric: &Metric, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(metric.name())
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Metric, D::Error> {
        let name = String::deserialize(from)?;
        let unknown = || de::Error::custom(format!("metric {name:?} is unknown"));
        Metric::from_name(&name).ok_or_else(unknown)
    }
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
    use super::*;

    const ORIGIN: &str = r#"{"fingerprint":"f00d","kernel":"6.12.1","cmdline":"quiet","cpu_model":"Zen","hypervisor":null,"qemu":"9.2.0","accelerator":"tcg-multi","guest_kernel":"6.1 ab12","pinfold":"0.1.0","seed":18446744073709551615}"#;

    fn read_origin(text: &str) -> Result<Origin, SchemaError> {
        serde_json::from_str::<OriginV1>(text)?.into_origin()
    }

    #[test]
    fn golden_documents_are_read_and_written_unchanged() {
        let origin = read_origin(ORIGIN).unwrap();
        assert_eq!(origin.accelerator, Accelerator::TcgMulti);
        assert_eq!(serde_json::to_string(&OriginV1::from_origin(&origin)).unwrap(), ORIGIN);
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
        let check = |found: Result<(), SchemaError>, expected: &str| {
            assert_eq!(found.unwrap_err().to_string(), expected);
        };
        check(role_from_word("vcpu:x").map(drop), r#"role "vcpu:x" is unknown"#);
        check(role_from_word("driver").map(drop), r#"role "driver" is unknown"#);
        let tin = ORIGIN.replace("tcg-multi", "tin");
        check(read_origin(&tin).map(drop), r#"accelerator "tin" is unknown"#);
    }
}
