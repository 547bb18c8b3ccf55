//! Boot parameters.

use super::*;
use crate::owners::tests::{claims_of, found, host};

#[test]
fn the_last_parameter_counts() {
    let check = |text: &str, expected| assert_eq!(parameter(text, "isolcpus"), expected, "{text}");
    check("quiet isolcpus=1 isolcpus=nohz,domain,2-N\n", Some("nohz,domain,2-N"));
    check("quiet xisolcpus=1", None);
    check("", None);
}

#[test]
fn the_kernel_reads_the_parameters() {
    let of = |isolated: &str, full: &str| {
        let files = [
            ("/proc/cmdline", "isolcpus=nohz,domain,2-N nohz_full=2-N\n".to_owned()),
            ("/sys/devices/system/cpu/isolated", isolated.to_owned()),
            ("/sys/devices/system/cpu/nohz_full", full.to_owned()),
        ];
        claims_of(&host(8, &files))
    };
    let claims = of("2-7\n", "  (null)\n");
    assert_eq!(found(&claims), ["isolcpus 2-7 preferred"]);
    assert!(claims.all()[0].source.to_string().ends_with("isolcpus=nohz,domain,2-N"));
    assert_eq!(of("2-7\n", "2-7\n").all().len(), 2);
    assert_eq!(of("7-2\n", "2-7\n").findings().len(), 1);
}
