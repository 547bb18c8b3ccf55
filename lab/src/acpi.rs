//! ACPI tables for hosts under test, for processors with several frequencies.
//!
//! QEMU's own tables do not define any. A second description table (SSDT) adds the objects that the
//! kernel's `acpi-cpufreq` needs to each processor: `_PSS`, the states; `_PCT`, the port to which a
//! state is written (no device is connected to it); `_PSD`, the processors that change together.
//! The bytes are AML, ACPI 6.4 chapter 20:
//! <https://uefi.org/specs/ACPI/6.4/20_AML_Specification/AML_Specification.html>

/// Frequencies in MHz, the highest first.
pub(crate) const MHZ: [u32; 3] = [2400, 2000, 1600];
/// Port without a device, in QEMU's q35 machine.
const PORT: u32 = 0x5f0;
/// Software sets the state on each of the processors that change together.
const SOFTWARE_ALL: u32 = 0xfc;

/// The body of the table for this number of processors, of which `together` adjacent ones each
/// share a frequency.
pub(crate) fn frequencies(processors: u32, together: u32) -> Vec<u8> {
    (0..processors).flat_map(|number| processor(number, number / together, together)).collect()
}

/// `Scope (\_SB.CPUS.Cnnn) { _PCT _PSS _PPC _PSD }`, the path of processors in QEMU.
fn processor(number: u32, domain: u32, together: u32) -> Vec<u8> {
    let states = (0_u32..).zip(MHZ).map(|(state, mhz)| {
        let milliwatts = mhz * 10;
        package(&[mhz, milliwatts, 10, 10, state, state].map(integer))
    });
    let states: Vec<Vec<u8>> = states.collect();
    let domain = package(&[5, 0, domain, SOFTWARE_ALL, together].map(integer));
    let body = [
        name("_PCT", &package(&[register(PORT), register(PORT + 1)])),
        name("_PSS", &package(&states)),
        name("_PPC", &integer(0)),
        name("_PSD", &package(&[domain])),
    ];
    let path = format!("_SB_CPUSC{number:03X}");
    let content = [b"\\\x2f\x03".as_slice(), path.as_bytes(), &body.concat()].concat();
    [&[0x10], add_length(&content).as_slice()].concat()
}

fn name(segment: &str, value: &[u8]) -> Vec<u8> {
    [&[0x08], segment.as_bytes(), value].concat()
}

fn integer(value: u32) -> Vec<u8> {
    match value {
        0 | 1 => vec![u8::from(value == 1)],
        _ => [&[0x0c], value.to_le_bytes().as_slice()].concat(),
    }
}

fn package(items: &[Vec<u8>]) -> Vec<u8> {
    let count = u8::try_from(items.len()).unwrap_or(u8::MAX);
    [&[0x12], add_length(&[&[count], items.concat().as_slice()].concat()).as_slice()].concat()
}

/// A buffer with an 8-bit register in the I/O space, and the end of a template.
fn register(port: u32) -> Vec<u8> {
    let [a, b, c, d] = port.to_le_bytes();
    let resource = [0x82, 12, 0, 1, 8, 0, 1, a, b, c, d, 0, 0, 0, 0, 0x79, 0];
    let size = integer(u32::try_from(resource.len()).unwrap_or(u32::MAX));
    [&[0x11], add_length(&[size.as_slice(), &resource].concat()).as_slice()].concat()
}

/// The content after its length, which includes its own bytes: one, or the low half of the first
/// and the second.
fn add_length(content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = match length + 1 {
        short @ ..0x40 => vec![low_byte(short)],
        _ => vec![0x40 | low_byte((length + 2) & 0xf), low_byte((length + 2) >> 4)],
    };
    [head.as_slice(), content].concat()
}

fn low_byte(number: usize) -> u8 {
    number.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::{add_length, frequencies, integer, package};

    #[test]
    fn lengths_count_themselves() {
        assert_eq!(add_length(&[7; 3]), [4, 7, 7, 7]);
        assert_eq!(add_length(&[7; 0x3e])[..2], [0x3f, 7]);
        assert_eq!(add_length(&[7; 0x3f])[..3], [0x41, 4, 7]);
        assert_eq!(add_length(&[7; 0x100])[..3], [0x42, 0x10, 7]);
        assert_eq!(package(&[integer(0), integer(258)]), [0x12, 8, 2, 0, 0x0c, 2, 1, 0, 0]);
    }

    #[test]
    fn each_processor_has_its_scope() {
        let table = frequencies(4, 2);
        for number in 0..4 {
            let path = format!("_SB_CPUSC{number:03X}");
            assert!(table.windows(path.len()).any(|part| part == path.as_bytes()), "{path}");
        }
    }
}
