//! Serialised form of the host's tunables in a plan; see [`super::v1`].

use pinfold_model::{
    CpuQuota, HugePagePool, NodeId, Partition, ResourceShare, SamePageMerging,
    TransparentHugePages, Tuning,
};
use serde::{Deserialize, Serialize};

use super::SchemaError;
use super::cpus::pus;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TuningV1 {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    new_irqs_pus: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workqueues_pus: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    numa_balancing: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transparent_huge_pages: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    same_page_merging: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wake_up_us: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    governor: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_khz: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_khz: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    real_time_throttle: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shares: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    huge_pages: Vec<PoolV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpu_weight: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpu_quota: Option<QuotaV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    smt: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offline_pus: Option<String>,
    required: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolV1 {
    node: u32,
    page_bytes: u64,
    pages: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaV1 {
    quota_us: u64,
    period_us: u64,
}

impl TuningV1 {
    /// `None` if no tunable is set.
    pub(super) fn of(tuning: &Tuning) -> Option<Self> {
        if *tuning == Tuning::default() {
            return None;
        }
        let pool = |pool: &HugePagePool| PoolV1 {
            node: pool.node.0,
            page_bytes: pool.page_bytes,
            pages: pool.pages,
        };
        let quota = |one: CpuQuota| QuotaV1 { quota_us: one.quota_us, period_us: one.period_us };
        Some(Self {
            new_irqs_pus: tuning.new_irqs.as_ref().map(ToString::to_string),
            workqueues_pus: tuning.workqueues.as_ref().map(ToString::to_string),
            numa_balancing: tuning.numa_balancing,
            transparent_huge_pages: tuning.transparent_huge_pages.map(|one| one.word().to_owned()),
            same_page_merging: tuning.same_page_merging.map(|one| one.word().to_owned()),
            wake_up_us: tuning.wake_up_us,
            governor: tuning.governor.clone(),
            min_khz: tuning.min_khz,
            max_khz: tuning.max_khz,
            real_time_throttle: tuning.real_time_throttle,
            shares: tuning.shares.iter().map(ToString::to_string).collect(),
            huge_pages: tuning.huge_pages.iter().map(pool).collect(),
            cpu_weight: tuning.cpu_weight,
            cpu_quota: tuning.cpu_quota.map(quota),
            partition: tuning.partition.map(|one| one.word().to_owned()),
            smt: tuning.smt,
            offline_pus: tuning.offline.as_ref().map(ToString::to_string),
            required: tuning.required,
        })
    }

    pub(super) fn into_tuning(self) -> Result<Tuning, SchemaError> {
        let set = |field: &str, text: Option<String>| {
            text.map(|text| pus(&format!("tuning.{field}"), &text)).transpose()
        };
        let pool = |pool: PoolV1| HugePagePool {
            node: NodeId(pool.node),
            page_bytes: pool.page_bytes,
            pages: pool.pages,
        };
        let quota = |one: QuotaV1| CpuQuota { quota_us: one.quota_us, period_us: one.period_us };
        Ok(Tuning {
            new_irqs: set("new_irqs_pus", self.new_irqs_pus)?,
            workqueues: set("workqueues_pus", self.workqueues_pus)?,
            numa_balancing: self.numa_balancing,
            transparent_huge_pages: word(
                "transparent_huge_pages",
                self.transparent_huge_pages,
                TransparentHugePages::ALL.map(|one| (one.word(), one)),
            )?,
            same_page_merging: word(
                "same_page_merging",
                self.same_page_merging,
                SamePageMerging::ALL.map(|one| (one.word(), one)),
            )?,
            wake_up_us: self.wake_up_us,
            governor: self.governor,
            min_khz: self.min_khz,
            max_khz: self.max_khz,
            real_time_throttle: self.real_time_throttle,
            shares: self.shares.iter().map(|text| share(text)).collect::<Result<_, _>>()?,
            huge_pages: self.huge_pages.into_iter().map(pool).collect(),
            cpu_weight: self.cpu_weight,
            cpu_quota: self.cpu_quota.map(quota),
            partition: word(
                "partition",
                self.partition,
                Partition::ALL.map(|one| (one.word(), one)),
            )?,
            smt: self.smt,
            offline: set("offline_pus", self.offline_pus)?,
            required: self.required,
        })
    }
}

fn share(text: &str) -> Result<ResourceShare, SchemaError> {
    ResourceShare::parse(text).ok_or_else(|| SchemaError::Field {
        field: "tuning.shares".to_owned(),
        why: format!("{text:?} is no share, such as L3:0=ff0 or MB:0=50"),
    })
}

fn word<T: Copy, const N: usize>(
    field: &str,
    text: Option<String>,
    known: [(&'static str, T); N],
) -> Result<Option<T>, SchemaError> {
    let Some(text) = text else { return Ok(None) };
    let names = known.map(|(name, _)| name).join(", ");
    let found = known.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| Some(value)).ok_or_else(|| SchemaError::Field {
        field: format!("tuning.{field}"),
        why: format!("{text:?} is not one of {names}"),
    })
}
