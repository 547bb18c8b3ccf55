//! The JSON documents in the store, version 1. The formats are stable.
//!
//! The types of the model and the settings are not serialisable themselves: each has a counterpart
//! here, with units in the keys. A change of meaning needs a new store version; the golden texts in
//! the tests below must not change.

use std::collections::BTreeMap;

use pinfold_model::{Accelerator, LoadState, Metric, Origin, Role};
use serde::{Deserialize, Serialize};

use crate::tune::{BlockRange, Costs, Goal, ObservationRange, TuneConfig};

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

#[derive(Serialize, Deserialize)]
struct ConfigV1 {
    goal: String,
    max_gap_ns: Option<u64>,
    budget_s: f64,
    observation_min_s: f64,
    observation_max_s: f64,
    screening_blocks: u32,
    confirm_blocks_min: u32,
    confirm_blocks_max: u32,
    keep: u32,
    seed: u64,
    load_states: Vec<LoadV1>,
    start_cost_s: f64,
    state_cost_s: f64,
    cost_per_observed_s: f64,
    alpha: f64,
    margin: f64,
    /// Missing in runs that were started before races existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    race: Option<f64>,
    gap_metric: String,
    context: String,
}

#[derive(Serialize, Deserialize)]
struct LoadV1 {
    host: bool,
    guest: bool,
}

/// Result of the screening: the candidates of the confirmation, with number of blocks and
/// observation time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfirmPlan {
    /// Indexes of the candidates besides baseline and twin, ascending.
    pub kept: Vec<usize>,
    /// Number of blocks.
    pub blocks: u32,
    /// Observation time per load state (seconds).
    pub observation_s: f64,
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
    pub fn of(origin: &Origin) -> Self {
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

pub fn origin_to_json(origin: &Origin) -> Result<String, SchemaError> {
    Ok(serde_json::to_string(&OriginV1::of(origin))?)
}

pub fn origin_from_json(text: &str) -> Result<Origin, SchemaError> {
    serde_json::from_str::<OriginV1>(text)?.into_origin()
}

pub fn config_to_json(config: &TuneConfig) -> Result<String, SchemaError> {
    let load = |load: &LoadState| LoadV1 { host: load.host, guest: load.guest };
    let twin = ConfigV1 {
        goal: config.goal.name().to_owned(),
        max_gap_ns: config.max_gap_ns,
        budget_s: config.budget_s,
        observation_min_s: config.observation.min_s,
        observation_max_s: config.observation.max_s,
        screening_blocks: config.screening_blocks,
        confirm_blocks_min: config.confirm_blocks.min,
        confirm_blocks_max: config.confirm_blocks.max,
        keep: config.keep,
        seed: config.seed,
        load_states: config.load_states.iter().map(load).collect(),
        start_cost_s: config.costs.start_s,
        state_cost_s: config.costs.state_s,
        cost_per_observed_s: config.costs.per_observed_s,
        alpha: config.alpha,
        margin: config.margin,
        race: config.race,
        gap_metric: config.gap_metric.name().to_owned(),
        context: config.context.clone(),
    };
    Ok(serde_json::to_string(&twin)?)
}

pub fn config_from_json(text: &str) -> Result<TuneConfig, SchemaError> {
    let twin: ConfigV1 = serde_json::from_str(text)?;
    let goal = Goal::from_name(&twin.goal)
        .ok_or_else(|| SchemaError::Word { what: "goal", word: twin.goal.clone() })?;
    let load = |load: LoadV1| LoadState { host: load.host, guest: load.guest };
    Ok(TuneConfig {
        goal,
        max_gap_ns: twin.max_gap_ns,
        budget_s: twin.budget_s,
        observation: ObservationRange {
            min_s: twin.observation_min_s,
            max_s: twin.observation_max_s,
        },
        screening_blocks: twin.screening_blocks,
        confirm_blocks: BlockRange { min: twin.confirm_blocks_min, max: twin.confirm_blocks_max },
        keep: twin.keep,
        seed: twin.seed,
        load_states: twin.load_states.into_iter().map(load).collect(),
        costs: Costs {
            start_s: twin.start_cost_s,
            state_s: twin.state_cost_s,
            per_observed_s: twin.cost_per_observed_s,
        },
        alpha: twin.alpha,
        margin: twin.margin,
        race: twin.race,
        gap_metric: Metric::from_name(&twin.gap_metric)
            .ok_or(SchemaError::Word { what: "metric", word: twin.gap_metric })?,
        context: twin.context,
    })
}

pub fn confirm_to_json(plan: &ConfirmPlan) -> Result<String, SchemaError> {
    Ok(serde_json::to_string(plan)?)
}

pub fn confirm_from_json(text: &str) -> Result<ConfirmPlan, SchemaError> {
    Ok(serde_json::from_str(text)?)
}

pub fn flags_to_json(flags: &[String]) -> Result<String, SchemaError> {
    Ok(serde_json::to_string(flags)?)
}

pub fn flags_from_json(text: &str) -> Result<Vec<String>, SchemaError> {
    Ok(serde_json::from_str(text)?)
}

pub fn words_to_json(words: &BTreeMap<String, String>) -> Result<String, SchemaError> {
    Ok(serde_json::to_string(words)?)
}

pub fn words_from_json(text: &str) -> Result<BTreeMap<String, String>, SchemaError> {
    Ok(serde_json::from_str(text)?)
}

/// `vcpu:0`, `emulator`, `iothread:disk`, `vhost:1`, `worker`, `task`.
pub fn role_to_word(role: &Role) -> String {
    match role {
        Role::Vcpu(index) => format!("vcpu:{index}"),
        Role::Emulator => "emulator".to_owned(),
        Role::Iothread(id) => format!("iothread:{id}"),
        Role::Vhost(index) => format!("vhost:{index}"),
        Role::Worker => "worker".to_owned(),
        Role::Task => "task".to_owned(),
    }
}

pub fn role_from_word(word: &str) -> Result<Role, SchemaError> {
    let unknown = || SchemaError::Word { what: "role", word: word.to_owned() };
    let number = |text: &str| text.parse().map_err(|_| unknown());
    match word.split_once(':') {
        Some(("vcpu", index)) => Ok(Role::Vcpu(number(index)?)),
        Some(("vhost", index)) => Ok(Role::Vhost(number(index)?)),
        Some(("iothread", id)) => Ok(Role::Iothread(id.to_owned())),
        None if word == "emulator" => Ok(Role::Emulator),
        None if word == "worker" => Ok(Role::Worker),
        None if word == "task" => Ok(Role::Task),
        Some(_) | None => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &str = r#"{"fingerprint":"f00d","kernel":"6.12.1","cmdline":"quiet","cpu_model":"Zen","hypervisor":null,"qemu":"9.2.0","accelerator":"tcg-multi","guest_kernel":"6.1 ab12","pinfold":"0.1.0","seed":18446744073709551615}"#;

    const CONFIG: &str = r#"{"goal":"latency","max_gap_ns":1000000,"budget_s":360.0,"observation_min_s":1.0,"observation_max_s":5.0,"screening_blocks":3,"confirm_blocks_min":8,"confirm_blocks_max":16,"keep":3,"seed":7,"load_states":[{"host":false,"guest":false},{"host":true,"guest":false},{"host":false,"guest":true},{"host":true,"guest":true}],"start_cost_s":2.5,"state_cost_s":0.1,"cost_per_observed_s":1.0,"alpha":0.05,"margin":0.02,"gap_metric":"spin-gap","context":""}"#;

    const CONFIRM: &str = r#"{"kept":[1,4],"blocks":9,"observation_s":1.5}"#;

    #[test]
    fn golden_documents_are_read_and_written_unchanged() {
        let origin = origin_from_json(ORIGIN).unwrap();
        assert_eq!(origin.accelerator, Accelerator::TcgMulti);
        assert_eq!(origin_to_json(&origin).unwrap(), ORIGIN);
        let config = config_from_json(CONFIG).unwrap();
        let costs = Costs { start_s: 2.5, state_s: 0.1, per_observed_s: 1.0 };
        let usual = TuneConfig::new(Goal::Latency, 360.0, 7, costs);
        let usual = TuneConfig { max_gap_ns: Some(1_000_000), screening_blocks: 3, ..usual };
        assert_eq!(config, TuneConfig { race: None, ..usual.clone() });
        assert_eq!(config_to_json(&config).unwrap(), CONFIG);
        let racing = CONFIG.replace(r#""gap_metric""#, r#""race":0.05,"gap_metric""#);
        assert_eq!(config_from_json(&racing).unwrap(), usual);
        assert_eq!(config_to_json(&usual).unwrap(), racing);
        assert_eq!(confirm_to_json(&confirm_from_json(CONFIRM).unwrap()).unwrap(), CONFIRM);
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
        check(origin_from_json(&tin).map(drop), r#"accelerator "tin" is unknown"#);
        let fame = CONFIG.replace("latency", "fame");
        check(config_from_json(&fame).map(drop), r#"goal "fame" is unknown"#);
        check(config_from_json("{").map(drop), "is not a document of this version");
    }
}
