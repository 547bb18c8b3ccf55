//! The meaning of brackets and whiskers: intervals, or ranges where there are too few blocks.

/// The smallest number of blocks with a 95 % interval. Below it the percentile bootstrap covers the
/// median far less often (two blocks: in half of the cases), so brackets are the range.
pub const INTERVAL_BLOCKS: u32 = 6;

/// What the brackets and whiskers of a chart or table enclose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brackets {
    /// 95 % intervals.
    Intervals,
    /// The smallest and the largest of the blocks.
    Ranges,
    /// Intervals, and ranges where there are too few blocks.
    Both,
}

impl Brackets {
    /// The brackets of numbers with these numbers of blocks.
    pub fn from_blocks(blocks: impl IntoIterator<Item = u32>) -> Self {
        let (mut few, mut enough) = (false, false);
        for blocks in blocks {
            few |= blocks < INTERVAL_BLOCKS;
            enough |= blocks >= INTERVAL_BLOCKS;
        }
        match (few, enough) {
            (true, true) => Self::Both,
            (true, false) => Self::Ranges,
            (false, _) => Self::Intervals,
        }
    }

    /// Their name in the header of a column.
    #[must_use]
    pub fn header(self) -> &'static str {
        match self {
            Self::Intervals => "95 %",
            Self::Ranges => "range",
            Self::Both => "95 %, below 6 blocks the range",
        }
    }

    /// What they are, in a sentence.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Intervals => "95 % intervals",
            Self::Ranges => "the ranges of the blocks: fewer than 6 have no 95 % interval",
            Self::Both => "95 % intervals, below 6 blocks the ranges of the blocks",
        }
    }
}
