//! Serialised form of the host's tunables in a plan; see [`super::v1`].
//!
//! One field per tunable that the plan sets, named and ordered by the table of the model.

use std::fmt;

use pinfold_model::tunables::{
    CpuQuota, HugePagePool, ResourceShare, TUNABLES, Tunable, Value, Values,
};
use pinfold_model::{CpuSet, Tuning};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::SchemaError;

/// The field that is always there.
const REQUIRED: &str = "required";

pub(super) struct TuningV1 {
    values: Vec<(&'static Tunable, Json)>,
    required: bool,
}

/// A value as JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Json {
    Text(String),
    Flag(bool),
    Number(u64),
    Texts(Vec<String>),
    Pools(Vec<HugePagePool>),
    Quota(CpuQuota),
}

impl Json {
    /// All values of a tunable; `None` if there is none.
    fn from_values(values: &[Value]) -> Option<Self> {
        Some(match values.first()? {
            Value::Switch(on) => Self::Flag(*on),
            Value::Number(number) => Self::Number(*number),
            Value::Quota(quota) => Self::Quota(*quota),
            Value::Share(_) => Self::Texts(values.iter().map(ToString::to_string).collect()),
            Value::Pool(_) => Self::Pools(values.iter().filter_map(pool).collect()),
            text @ (Value::Cpus(_) | Value::Word(_) | Value::Name(_) | Value::Policy(_)) => {
                Self::Text(text.to_string())
            }
        })
    }

    /// Reads what a tunable with such values has; `None` for `null`.
    fn read<'de, A: MapAccess<'de>>(values: Values, map: &mut A) -> Result<Option<Self>, A::Error> {
        Ok(match values {
            Values::Switch { .. } => map.next_value::<Option<bool>>()?.map(Self::Flag),
            Values::Number { .. } => map.next_value::<Option<u64>>()?.map(Self::Number),
            Values::Share => Some(Self::Texts(map.next_value()?)),
            Values::Pool => Some(Self::Pools(map.next_value()?)),
            Values::Quota => map.next_value::<Option<CpuQuota>>()?.map(Self::Quota),
            Values::HostCpus
            | Values::Cpus { .. }
            | Values::Words(_)
            | Values::Name(_)
            | Values::Policy => map.next_value::<Option<String>>()?.map(Self::Text),
        })
    }

    fn into_values(self, tunable: &Tunable) -> Result<Vec<Value>, SchemaError> {
        let field = format!("tuning.{}", tunable.field);
        Ok(match self {
            Self::Flag(on) => vec![Value::Switch(on)],
            Self::Number(number) => vec![Value::Number(number)],
            Self::Quota(quota) => vec![Value::Quota(quota)],
            Self::Pools(pools) => pools.into_iter().map(Value::Pool).collect(),
            Self::Texts(texts) => {
                texts.iter().map(|text| share(&field, text)).collect::<Result<_, _>>()?
            }
            Self::Text(text) => {
                vec![match (tunable.values, tunable.values.word(&text)) {
                    (Values::Name(_), _) => Value::Name(text),
                    (_, Some(word)) => Value::Word(word),
                    (Values::Words(_), None) => {
                        let names = tunable.values.syntax().replace('|', ", ");
                        let why = format!("{text:?} is not one of {names}");
                        return Err(SchemaError::Field { field, why });
                    }
                    _ => {
                        Value::Cpus(CpuSet::parse_list(&text).map_err(|error| {
                            SchemaError::Field { field, why: error.to_string() }
                        })?)
                    }
                }]
            }
        })
    }
}

fn pool(value: &Value) -> Option<HugePagePool> {
    if let Value::Pool(pool) = value { Some(*pool) } else { None }
}

fn share(field: &str, text: &str) -> Result<Value, SchemaError> {
    ResourceShare::parse(text).map(Value::Share).ok_or_else(|| SchemaError::Field {
        field: field.to_owned(),
        why: format!("{text:?} is not a share, such as L3:0=ff0 or MB:0=50"),
    })
}

impl TuningV1 {
    /// `None` if no tunable is set.
    pub(super) fn from_tuning(tuning: &Tuning) -> Option<Self> {
        let values =
            TUNABLES.into_iter().filter_map(|one| Some((one, Json::from_values(tuning.all(one))?)));
        let document = Self { values: values.collect(), required: tuning.required };
        (*tuning != Tuning::default()).then_some(document)
    }

    pub(super) fn into_tuning(self) -> Result<Tuning, SchemaError> {
        let mut tuning = Tuning::default();
        tuning.required = self.required;
        for (tunable, json) in self.values {
            for value in json.into_values(tunable)? {
                tuning.set(tunable, value);
            }
        }
        Ok(tuning)
    }
}

impl Serialize for TuningV1 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.values.len() + 1))?;
        for (tunable, json) in &self.values {
            map.serialize_entry(tunable.field, json)?;
        }
        map.serialize_entry(REQUIRED, &self.required)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for TuningV1 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = TuningV1;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the tunables of a plan")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TuningV1, A::Error> {
                let (mut values, mut required) = (Vec::new(), None);
                let mut seen: Vec<String> = Vec::new();
                while let Some(field) = map.next_key::<String>()? {
                    if seen.contains(&field) {
                        return Err(A::Error::custom(format!("duplicate field `{field}`")));
                    }
                    let mut known = TUNABLES.into_iter().filter(|one| !one.field.is_empty());
                    match known.find(|one| one.field == field) {
                        Some(one) => {
                            values
                                .extend(Json::read(one.values, &mut map)?.map(|json| (one, json)));
                        }
                        None if field == REQUIRED => required = Some(map.next_value()?),
                        None => return Err(A::Error::custom(format!("unknown field `{field}`"))),
                    }
                    seen.push(field);
                }
                let required = required.ok_or_else(|| A::Error::missing_field(REQUIRED))?;
                Ok(TuningV1 { values, required })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}
