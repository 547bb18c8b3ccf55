//! The document of a plan, field by field as in the file; its parts are serialised by the model.

use pinfold_model::{
    CpuSet, Finding, IrqPlan, IsolationScope, Plan, PlannedCpus, TaskId, VnodePlan, serde_formats,
};
use serde::{Deserialize, Serialize};

use super::tuning::TuningV1;
use super::{FORMAT, SchemaError};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanV1 {
    format: String,
    #[serde(deserialize_with = "serde_formats::plain")]
    strategy: String,
    #[serde(deserialize_with = "serde_formats::plain")]
    fingerprint: String,
    vnodes: Vec<VnodePlan>,
    housekeeping_pus: CpuSet,
    #[serde(deserialize_with = "serde_formats::line")]
    housekeeping_reason: String,
    exclusive_pus: CpuSet,
    isolation: IsolationScope,
    /// Missing if the request avoids no CPUs, and in plans of earlier versions.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    avoid_pus: CpuSet,
    /// Missing if the owner moved no thread, and in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "serde_formats::masks")]
    moved: Vec<(TaskId, CpuSet)>,
    irqs: Vec<IrqPlan>,
    /// Missing if the plan sets no tunable of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tuning: Option<TuningV1>,
    /// Missing in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpus: Option<PlannedCpus>,
    findings: Vec<Finding>,
}

impl PlanV1 {
    pub fn from_plan(plan: &Plan) -> Self {
        let plan = plan.clone();
        Self {
            format: FORMAT.to_owned(),
            tuning: TuningV1::from_tuning(&plan.tuning),
            strategy: plan.strategy,
            fingerprint: plan.fingerprint,
            vnodes: plan.vnodes,
            housekeeping_pus: plan.housekeeping,
            housekeeping_reason: plan.housekeeping_reason,
            exclusive_pus: plan.exclusive,
            isolation: plan.isolation,
            avoid_pus: plan.avoid_pus,
            moved: plan.moved,
            irqs: plan.irqs,
            cpus: plan.cpus,
            findings: plan.findings,
        }
    }

    pub fn into_plan(self) -> Result<Plan, SchemaError> {
        Ok(Plan {
            strategy: self.strategy,
            fingerprint: self.fingerprint,
            vnodes: self.vnodes,
            housekeeping: self.housekeeping_pus,
            housekeeping_reason: self.housekeeping_reason,
            exclusive: self.exclusive_pus,
            isolation: self.isolation,
            avoid_pus: self.avoid_pus,
            moved: self.moved,
            irqs: self.irqs,
            tuning: self.tuning.map(TuningV1::into_tuning).transpose()?.unwrap_or_default(),
            cpus: self.cpus,
            findings: self.findings,
        })
    }
}
