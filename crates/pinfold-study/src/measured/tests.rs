//! Tests of saved measurements: the golden text of version 1 stays readable.

use std::collections::BTreeMap;

use pinfold_model::{Accelerator, Family, Unit};

use super::*;

/// As the first release of version 1 wrote it; must not be changed.
const GOLDEN: &str = concat!(
    r#"{"format":"pinfold-measure/1","probe":"wakeup","command":["pinfold","measure","wakeup"],"#,
    r#""place":"CPU 1, fifo:80","tool":"pinload 0.1.0","origin":{"fingerprint":"f","kernel":"6.12","#,
    r#""cmdline":"quiet","cpu_model":"CPU","hypervisor":"kvm","qemu":null,"accelerator":"native","#,
    r#""guest_kernel":null,"pinfold":"0.1.0","seed":7},"unix_seconds":1795311897,"blocks":[{"#,
    r#""steal_ticks":2,"pressure_us":null,"figures":[{"probe":"wakeup","#,
    r#""labels":{"period-us":"1000"},"unit":"ns","family":"tail","cpu":1,"duration_ns":1000,"#,
    r#""dropped":0,"disturbed":0,"flags":["preempted 2"],"samples":[4310.0,12.5]}]}]}"#,
);

fn golden() -> Measurement {
    Measurement {
        probe: "wakeup".to_owned(),
        command: ["pinfold", "measure", "wakeup"].map(str::to_owned).to_vec(),
        place: "CPU 1, fifo:80".to_owned(),
        tool: "pinload 0.1.0".to_owned(),
        origin: Origin {
            fingerprint: "f".to_owned(),
            kernel: "6.12".to_owned(),
            cmdline: "quiet".to_owned(),
            cpu_model: "CPU".to_owned(),
            hypervisor: Some("kvm".to_owned()),
            qemu: None,
            accelerator: Accelerator::Native,
            guest_kernel: None,
            pinfold: "0.1.0".to_owned(),
            seed: 7,
        },
        unix_seconds: 1_795_311_897,
        blocks: vec![MeasuredBlock {
            figures: vec![Figure {
                probe: "wakeup".to_owned(),
                labels: BTreeMap::from([("period-us".to_owned(), "1000".to_owned())]),
                unit: Unit::Nanoseconds,
                family: Family::Tail,
                cpu: Some(1),
                duration_ns: 1_000,
                samples: vec![4310.0, 12.5],
                dropped: 0,
                disturbed: 0,
                flags: vec!["preempted 2".to_owned()],
            }],
            surroundings: SystemNoise { steal_ticks: Some(2), pressure_us: None },
        }],
    }
}

#[test]
fn version_one_is_written_and_read_as_on_its_first_day() {
    assert_eq!(to_json(&golden()).unwrap(), GOLDEN);
    assert_eq!(from_json(GOLDEN).unwrap(), golden());
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    check("pinfold-measure/1", "pinfold-measure/9", "has the format \"pinfold-measure/9\"");
    check("\"format\"", "\"form\"", "has the format missing");
    check(
        "\"ns\"",
        "\"furlongs\"",
        "blocks[0].figures[0].unit is not valid: unknown variant `furlongs`",
    );
    check("tail", "tale", "blocks[0].figures[0].family is not valid: unknown variant `tale`");
    check("4310.0", "-1", "holds the sample -1");
    check("4310.0", "1e999", "is not a measurement");
    check("native", "nativ", "origin.accelerator is not valid: unknown variant `nativ`");
    check("\"seed\":7", "\"seed\":-7", "origin.seed is not valid: invalid value: integer `-7`");
    let capacity = GOLDEN.replace("tail", "capacity").replace("4310.0,12.5", "");
    assert!(from_json(&capacity).unwrap_err().to_string().contains("holds no sample"));
    let empty = format!("{}\"blocks\":[]}}", GOLDEN.split("\"blocks\"").next().unwrap());
    assert_eq!(from_json(&empty).unwrap_err().to_string(), "blocks is empty");
    assert!(from_json("").is_err());
}

fn check(from: &str, to: &str, expected: &str) {
    assert!(GOLDEN.contains(from), "{from}");
    let reported = from_json(&GOLDEN.replacen(from, to, 1)).unwrap_err().to_string();
    assert!(reported.contains(expected), "{reported}");
}
