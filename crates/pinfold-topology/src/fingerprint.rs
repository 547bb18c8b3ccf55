//! A short hash of a machine; equal values mean the same machine for placement.
//!
//! It covers properties of the hardware, the firmware and the boot parameters: the model, every
//! online CPU with its core, L2 and L3 domain, NUMA node, package and kind, cache sizes, nodes with
//! memory, SMT, `nohz_full` and frequency domains.
//!
//! It does not cover properties that change while Pinfold runs: this process's cpuset and mask,
//! CPUs in `isolated` partitions, and the exact memory size (balloons). Otherwise applying a plan
//! would invalidate it for the same machine.

use std::fmt::Write;

use pinfold_model::{CoreKind, CpuSet, Smt, Topology};

/// The fingerprint of a topology: 16 hexadecimal digits.
pub(crate) fn fingerprint(topology: &Topology) -> String {
    format!("{:016x}", fnv1a(canonical(topology).as_bytes()))
}

/// All covered properties, in a fixed order and format.
fn canonical(topology: &Topology) -> String {
    let mut text = String::from("pinfold-fingerprint 1\n");
    line(&mut text, format_args!("model {}", topology.model.as_deref().unwrap_or("")));
    line(&mut text, format_args!("smt {}", smt_word(topology.smt)));
    line(&mut text, format_args!("nohz_full {}", topology.nohz_full));
    for pu in &topology.pus {
        let l3 = pu.l3.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let node = pu.node.map_or_else(|| "-".to_owned(), |id| id.to_string());
        line(
            &mut text,
            format_args!(
                "pu {} core {} l3 {l3} node {node} package {} {}",
                pu.os,
                pu.core,
                pu.package,
                kind_word(pu.kind)
            ),
        );
    }
    for domain in &topology.l2_domains {
        line(&mut text, format_args!("l2 {domain}"));
    }
    for cache in &topology.l3 {
        line(&mut text, format_args!("l3 {} {}", cache.id, cache.size_bytes));
    }
    for node in &topology.nodes {
        line(&mut text, format_args!("node {} {} {}", node.id, node.pus, node.memory_bytes > 0));
    }
    let domains: Vec<String> = topology.frequency_domains.iter().map(CpuSet::to_string).collect();
    line(&mut text, format_args!("frequency {}", domains.join(" ")));
    text
}

fn line(text: &mut String, args: std::fmt::Arguments<'_>) {
    // Writing to a String never fails.
    text.write_fmt(args).ok();
    text.push('\n');
}

/// The name of a core kind in formats and on the terminal.
pub(crate) fn kind_word(kind: CoreKind) -> &'static str {
    match kind {
        CoreKind::Uniform => "uniform",
        CoreKind::Performance => "performance",
        CoreKind::Efficiency => "efficiency",
        CoreKind::LowPower => "low-power",
    }
}

/// The name of an SMT state in formats and on the terminal.
pub(crate) fn smt_word(smt: Smt) -> &'static str {
    match smt {
        Smt::On => "on",
        Smt::Off => "off",
        Smt::NotSupported => "not-supported",
        Smt::Unknown => "unknown",
    }
}

/// FNV-1a with 64 bits: not cryptographic, and the same on every machine and in every release.
/// <http://www.isthe.com/chongo/tech/comp/fnv/>
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::fnv1a;

    #[test]
    fn the_published_test_vectors() {
        check("", 0xcbf2_9ce4_8422_2325);
        check("a", 0xaf63_dc4c_8601_ec8c);
        check("foobar", 0x8594_4171_f739_67e8);
    }

    fn check(text: &str, hash: u64) {
        assert_eq!(fnv1a(text.as_bytes()), hash, "{text:?}")
    }
}
