//! Serialised form of what a plan records of its CPUs; see [`super::v1`].

use pinfold_model::{CpuSet, NodeId, PlannedCpus};
use serde::{Deserialize, Serialize};

use super::SchemaError;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CpusV1 {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    online: String,
    nohz_full: String,
    cores: Vec<String>,
    l3: Vec<CacheV1>,
    nodes: Vec<NodeV1>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheV1 {
    cpus: String,
    size_bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeV1 {
    node: u32,
    cpus: String,
}

impl CpusV1 {
    pub fn from_cpus(cpus: &PlannedCpus) -> Self {
        let cache = |(cpus, size_bytes): &(CpuSet, u64)| CacheV1 {
            cpus: cpus.to_string(),
            size_bytes: *size_bytes,
        };
        let node =
            |(node, cpus): &(NodeId, CpuSet)| NodeV1 { node: node.0, cpus: cpus.to_string() };
        Self {
            model: cpus.model.clone(),
            online: cpus.online.to_string(),
            nohz_full: cpus.nohz_full.to_string(),
            cores: cpus.cores.iter().map(CpuSet::to_string).collect(),
            l3: cpus.l3.iter().map(cache).collect(),
            nodes: cpus.nodes.iter().map(node).collect(),
        }
    }

    pub fn into_cpus(self) -> Result<PlannedCpus, SchemaError> {
        let cores = self.cores.iter().enumerate();
        let caches = self.l3.iter().enumerate();
        let nodes = self.nodes.iter().enumerate();
        Ok(PlannedCpus {
            online: pus("cpus.online", &self.online)?,
            nohz_full: pus("cpus.nohz_full", &self.nohz_full)?,
            cores: cores
                .map(|(place, core)| pus(&format!("cpus.cores[{place}]"), core))
                .collect::<Result<_, _>>()?,
            l3: caches
                .map(|(place, one)| {
                    Ok((pus(&format!("cpus.l3[{place}].cpus"), &one.cpus)?, one.size_bytes))
                })
                .collect::<Result<_, SchemaError>>()?,
            nodes: nodes
                .map(|(place, one)| {
                    let cpus = pus(&format!("cpus.nodes[{place}].cpus"), &one.cpus)?;
                    Ok((NodeId(one.node), cpus))
                })
                .collect::<Result<_, SchemaError>>()?,
            model: self.model,
        })
    }
}

/// A list of CPUs in a field.
pub(super) fn pus(field: &str, text: &str) -> Result<CpuSet, SchemaError> {
    CpuSet::parse_list(text)
        .map_err(|error| SchemaError::Field { field: field.to_owned(), why: error.to_string() })
}
