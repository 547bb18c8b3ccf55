//! Configuration files of irqbalance.

use super::*;
use crate::Exclusivity;
use crate::owners::tests::{claims_of, host};

#[test]
fn banned_cpus_are_a_list_or_a_mask() {
    check("# IRQBALANCE_BANNED_CPULIST=1\nIRQBALANCE_ONESHOT=0\n", None);
    check("IRQBALANCE_BANNED_CPULIST=2-3,5\n", Some(("2-3,5", 1)));
    check("\nexport IRQBALANCE_BANNED_CPUS=\"00000001,00000082\"\n", Some(("1,7,32", 2)));
    check("IRQBALANCE_BANNED_CPULIST=\nIRQBALANCE_BANNED_CPUS=f0\n", Some(("4-7", 2)));
    check("IRQBALANCE_BANNED_CPUS=f\nIRQBALANCE_BANNED_CPULIST=0x30\n", Some(("4-5", 2)));
}

fn check(text: &str, expected: Option<(&str, u32)>) {
    let found = parse(text).map(|banned| (banned.cpus.unwrap().to_string(), banned.line));
    assert_eq!(found, expected.map(|(cpus, line)| (cpus.to_owned(), line)), "{text:?}");
}

#[test]
fn they_have_no_owner() {
    let text = "IRQBALANCE_BANNED_CPULIST=2-99\n".to_owned();
    let claims = claims_of(&host(8, &[("/etc/default/irqbalance", text)]));
    assert_eq!(claims.all()[0].exclusivity, Exclusivity::Preferred);
    assert_eq!(claims.all()[0].cpus.to_string(), "2-7");
    assert_eq!(
        claims.findings()[0].text,
        "/etc/default/irqbalance, line 1: IRQBALANCE_BANNED_CPULIST=2-99: the value for irqbalance's \
         banned CPUs names CPUs that this host does not have: 8-99"
    );
    let usage = claims.usage(&CpuSet::first_n(8));
    assert_eq!((usage.free.to_string(), usage.preferred.to_string()), ("0-7".into(), "2-7".into()));
}
