//! Measures the disk of a vnode: `dd` with direct I/O in the vnode, and once outside it.
//!
//! The file is in the folder of the limit and has no name: nothing is left if this process is
//! killed.

use std::os::fd::{AsRawFd as _, OwnedFd};

use pinfold_host::process::{self, Spawn};
use pinfold_host::{Clock as _, SystemClock, files, paths};
use pinfold_probe::loads::Placement;
use pinfold_stats::median;
use serde_json::Value;

use crate::{Exit, Failure, interrupt};

/// Direct I/O needs a multiple of the disk's block, which is rarely larger.
const LEAST_BLOCK: u64 = 4096;
const LARGEST_BLOCK: u64 = 1 << 20;
const LARGEST_FILE: u64 = 32 << 20;
const RUN_NS: u64 = 2_000_000_000;
const TIMEOUT_NS: u64 = 120_000_000_000;

/// One limit in one direction, with its pairs of rates: in the vnode, outside.
pub struct DiskRow {
    /// True for writing, false for reading.
    pub is_write: bool,
    /// Bytes of an operation.
    pub block: u64,
    /// True if the limit is in bytes per second, false if it is in operations per second.
    pub is_bytes: bool,
    /// The limit.
    pub requested: u64,
    /// Bytes or operations per second.
    pub pairs: Vec<(f64, f64)>,
}

/// The measurement of a vnode's disk.
pub(super) struct DiskTest {
    pub(super) rows: Vec<DiskRow>,
    file: OwnedFd,
    run_ns: u64,
}

impl DiskTest {
    /// The measurement for the limit in a status; `None` if the vnode has none.
    pub(super) fn new(status: &Value, name: &str, is_quick: bool) -> Result<Option<Self>, Failure> {
        let vnodes = status.get("vnodes").and_then(Value::as_array);
        let mut vnodes = vnodes.into_iter().flatten();
        let vnode = vnodes.find(|vnode| vnode.get("vnode").and_then(Value::as_str) == Some(name));
        let Some(disk) = vnode.and_then(|vnode| vnode.get("disk")) else { return Ok(None) };
        let Some(path) = disk.get("path").and_then(Value::as_str) else { return Ok(None) };
        let rows = [("bytes_per_second", true), ("operations_per_second", false)];
        let rows = rows
            .into_iter()
            .filter_map(|(key, is_bytes)| Some((disk.get(key)?.as_u64()?, is_bytes)));
        let rows = rows.flat_map(|(limit, is_bytes)| DiskRow::both(limit, is_bytes)).collect();
        let file = files::create_unnamed(path)?;
        let run_ns = if is_quick { RUN_NS / 2 } else { RUN_NS };
        Ok(Some(Self { rows, file, run_ns }))
    }

    /// Measures each row once more. The first run outside writes the file.
    pub(super) fn measure(
        &mut self,
        inside: &Placement,
        outside: &Placement,
    ) -> Result<(), Failure> {
        for row in &mut self.rows {
            let full = row.rate(&self.file, outside, 0)?;
            // The kernel lets the first tenth of a second pass at once.
            row.rate(&self.file, inside, 0)?;
            row.pairs.push((row.rate(&self.file, inside, self.run_ns)?, full));
        }
        Ok(())
    }
}

impl DiskRow {
    fn both(requested: u64, is_bytes: bool) -> [Self; 2] {
        let blocks = requested / 10 / LEAST_BLOCK * LEAST_BLOCK;
        let block = if is_bytes { blocks.clamp(LEAST_BLOCK, LARGEST_BLOCK) } else { LEAST_BLOCK };
        [true, false].map(|is_write| Self { is_write, block, is_bytes, requested, pairs: vec![] })
    }

    /// Blocks of a run of `dd`: a quarter of a second at the limit, as far as the file allows.
    fn count(&self) -> u64 {
        let per_second = if self.is_bytes { self.requested / self.block } else { self.requested };
        (per_second / 4).clamp(1, LARGEST_FILE / self.block)
    }

    /// Bytes or operations per second of runs that last this long together; of one run at least.
    fn rate(&self, file: &OwnedFd, place: &Placement, ns: u64) -> Result<f64, Failure> {
        let begin = SystemClock.now_ns();
        let mut blocks = 0;
        loop {
            if interrupt::is_requested() {
                return Err(Failure::new(Exit::Interrupted, "interrupted"));
            }
            self.transfer(file, place)?;
            blocks += self.count();
            let elapsed_ns = SystemClock.now_ns().saturating_sub(begin);
            if elapsed_ns >= ns.max(1) {
                let units = if self.is_bytes { blocks * self.block } else { blocks };
                return Ok(units as f64 * 1e9 / elapsed_ns as f64);
            }
        }
    }

    fn transfer(&self, file: &OwnedFd, place: &Placement) -> Result<(), Failure> {
        let path = paths::open_file(process::own_pid(), file.as_raw_fd());
        let mut arguments = if self.is_write {
            let (from, to) = (format!("if={}", paths::zeros()), format!("of={path}"));
            vec![from, to, "oflag=direct".to_owned(), "conv=notrunc".to_owned()]
        } else {
            let (from, to) = (format!("if={path}"), format!("of={}", paths::discarded()));
            vec![from, to, "iflag=direct".to_owned()]
        };
        arguments.extend([format!("bs={}", self.block), format!("count={}", self.count())]);
        let mut spawn = Spawn::new("dd").args(arguments).cgroup_files(place.cgroup_files.clone());
        if let Some(mask) = &place.affinity {
            spawn = spawn.affinity(mask.clone());
        }
        let output = spawn.capture(TIMEOUT_NS)?;
        if output.status.success() {
            return Ok(());
        }
        let (how, why) = (process::describe(output.status), output.stderr_text());
        Err(Failure::new(Exit::Host, format!("cannot measure the disk: dd {how}: {}", why.trim())))
    }

    /// Achieved rate: the median, the smallest and the largest; `None` without a run.
    pub fn achieved_rate(&self) -> Option<(f64, f64, f64)> {
        let inside: Vec<f64> = self.pairs.iter().map(|(inside, _)| *inside).collect();
        let least = inside.iter().copied().reduce(f64::min)?;
        Some((median(&inside)?, least, inside.iter().copied().reduce(f64::max)?))
    }

    /// The rate outside the vnode, the median.
    pub fn full(&self) -> Option<f64> {
        median(&self.pairs.iter().map(|(_, full)| *full).collect::<Vec<f64>>())
    }

    /// `write` or `read`, with the size of an operation.
    pub fn name(&self) -> String {
        let what = if self.is_write { "write" } else { "read" };
        format!("{what}, {} KiB", self.block / 1024)
    }

    /// What limits the result.
    pub(super) fn remark(&self) -> Option<String> {
        let is_slow = self.full()? < self.requested as f64;
        is_slow
            .then(|| format!("{}: the disk itself is slower than the requested limit", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_a_quarter_of_a_second_within_the_file() {
        check(50_000_000, true, (1 << 20, 11));
        check(1_000_000_000_000, true, (1 << 20, 32));
        check(4096, true, (4096, 1));
        check(100_000, true, (8192, 3));
        check(500, false, (4096, 125));
        check(1, false, (4096, 1));
    }

    fn check(requested: u64, is_bytes: bool, expected: (u64, u64)) {
        let [write, read] = DiskRow::both(requested, is_bytes);
        assert_eq!((write.block, write.count()), expected);
        assert!(write.is_write && !read.is_write);
    }

    #[test]
    fn a_disk_that_is_slower_than_its_limit_is_reported() {
        let [row, _] = DiskRow::both(500, false);
        assert_eq!((row.achieved_rate(), row.remark()), (None, None));
        let row = DiskRow { pairs: vec![(499.0, 9000.0), (501.0, 8000.0)], ..row };
        assert_eq!(row.achieved_rate(), Some((500.0, 499.0, 501.0)));
        assert_eq!(row.remark(), None);
        let slow = DiskRow { pairs: vec![(100.0, 120.0)], ..row };
        let text = "write, 4 KiB: the disk itself is slower than the requested limit";
        assert_eq!(slow.remark().as_deref(), Some(text));
    }
}
