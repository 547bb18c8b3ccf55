//! The limit of a disk: bytes per second such as `50 MB/s`, operations per second, and a folder.

use pinfold_model::DiskLimit;

use crate::fault::Fault;
use crate::keys::Keys;
use crate::value::{Value, ValueKind, decimal};

/// Names of units with their bytes.
const UNITS: [(&str, u64); 9] = [
    ("TiB/s", 1 << 40),
    ("GiB/s", 1 << 30),
    ("MiB/s", 1 << 20),
    ("KiB/s", 1 << 10),
    ("TB/s", 1_000_000_000_000),
    ("GB/s", 1_000_000_000),
    ("MB/s", 1_000_000),
    ("kB/s", 1_000),
    ("B/s", 1),
];
/// One block per second.
const LEAST: u64 = 4096;
const MOST: u64 = 1_000_000_000_000;
/// The kernel takes `u32::MAX` for no limit.
const MOST_OPERATIONS: u32 = 1_000_000_000;

/// The keys `disk`, `iops` and `disk-path`.
pub(super) fn limit(keys: &mut Keys) -> Result<Option<DiskLimit>, Fault> {
    let bytes = keys.take("disk").map(|value| bytes(&value)).transpose()?;
    let operations = keys.take("iops").map(|value| operations(&value)).transpose()?;
    let path = keys.text("disk-path")?;
    if bytes.is_none() && operations.is_none() {
        return match path {
            Some((_, at)) => {
                Err(Fault::new(at, "disk-path needs the key \"disk\" or \"iops\"".to_owned())
                    .with_hint("set a limit: disk = \"50 MB/s\""))
            }
            None => Ok(None),
        };
    }
    let path = match path {
        Some((path, at)) if !path.starts_with('/') || path.contains('\0') => {
            return Err(Fault::new(at, format!("disk-path: {path:?} is not an absolute path"))
                .with_hint("name a folder on the disk, such as \"/var/lib\""));
        }
        Some((path, _)) => path,
        None => ".".to_owned(),
    };
    Ok(Some(DiskLimit { bytes, operations, path }))
}

fn bytes(value: &Value) -> Result<u64, Fault> {
    let ValueKind::Text(text) = &value.what else { return Err(no_speed(value)) };
    let text = text.trim();
    let found = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (digits, unit) = found.ok_or_else(|| no_speed(value))?;
    let thousandths = decimal(digits.trim_end(), 3).ok_or_else(|| no_speed(value))?;
    let bytes = u128::from(thousandths) * u128::from(unit) / 1000;
    u64::try_from(bytes)
        .ok()
        .filter(|bytes| (LEAST..=MOST).contains(bytes))
        .ok_or_else(|| no_speed(value))
}

fn no_speed(value: &Value) -> Fault {
    value.kind_fault("disk", "a disk speed from 4 KiB/s to 1 TB/s").with_hint(
        "write a number with a unit: \"50 MB/s\" (MB: 10^6 bytes) or \"50 MiB/s\" (MiB: 2^20 \
         bytes); omit the key for no limit",
    )
}

fn operations(value: &Value) -> Result<u32, Fault> {
    let number = if let ValueKind::Number(number) = value.what { number } else { 0 };
    u32::try_from(number)
        .ok()
        .filter(|operations| (1..=MOST_OPERATIONS).contains(operations))
        .ok_or_else(|| {
            value
                .kind_fault("iops", "a number of operations per second from 1 to 1000000000")
                .with_hint("write a whole number: iops = 500; omit the key for no limit")
        })
}
