//! Sets of CPUs by OS index: the kernel's list and mask formats, and set algebra.
//!
//! The text formats are those of the kernel (`Documentation/core-api/printk-formats.rst`
//! `%*pbl`, `admin-guide/kernel-parameters.rst`) and of libvirt:
//! `0-3,8`, `0-31:2/8`, `0-7,^2`; masks are 32-bit hex words, high word first: `ff,00000001`.

mod bits;
mod work;

use std::fmt;

use bits::Words;
pub use work::set_operations;

use crate::PuId;

/// Upper bound of OS indexes in a set (exclusive); the kernel's own limit is 8192.
pub const MAX_PUS: u32 = 65_536;

/// Number of 64-bit words of the largest set.
pub const MAX_WORDS: usize = MAX_PUS as usize / 64;

/// A set of CPUs by OS index.
///
/// ```
/// use pinfold_model::{CpuSet, PuId};
///
/// let cpus = CpuSet::parse_list("0-3,8")?;
/// assert!(cpus.contains(PuId(8)));
/// assert_eq!(cpus.difference(&CpuSet::parse_list("1")?).to_string(), "0,2-3,8");
/// # Ok::<(), pinfold_model::CpuSetError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet {
    // Number of leading zero words, which are not stored. A set of one CPU of thousands is then one
    // word long, and a plan of thousands of such sets stays in the cache.
    skipped: usize,
    // No zero words at either end, so that derived equality is set equality; `skipped` is zero if
    // there are no words.
    words: Words,
}

/// Error: a text is not a set of CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuSetError {
    /// The whole text.
    pub text: String,
    /// The invalid part.
    pub part: String,
    /// What is wrong with that part.
    pub why: &'static str,
    /// What the text should be: a list or a mask.
    pub expected: &'static str,
}

impl fmt::Display for CpuSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, part, why, expected } = self;
        write!(f, "{text:?} is not a {expected} of CPUs")?;
        if !part.is_empty() {
            write!(f, ": {part:?}")?;
        }
        write!(f, ": {why}")
    }
}

impl std::error::Error for CpuSetError {}

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of one CPU.
    #[must_use]
    pub fn single(pu: PuId) -> Self {
        [pu].into_iter().collect()
    }

    /// The CPUs `0..count`.
    pub fn first_n(count: u32) -> Self {
        (0..count).map(PuId).collect()
    }

    /// Parses a list such as `0-3,8`, `0-31:2/8` or `0-7,^2`, or a mask with `0x`. Blanks at the
    /// ends are ignored; an empty text is the empty set.
    ///
    /// # Errors
    /// [`CpuSetError`] with the invalid part: a reversed range, an exclusion without a range that
    /// contains it, a number at or above [`MAX_PUS`].
    pub fn parse_list(text: &str) -> Result<Self, CpuSetError> {
        let mut set = Self::new();
        let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\0');
        if trimmed.is_empty() {
            return Ok(set);
        }
        if trimmed.starts_with("0x") || trimmed.starts_with("0X") {
            return Self::parse_mask(trimmed);
        }
        for part in trimmed.split(',') {
            let part = part.trim();
            let fail = |why| CpuSetError {
                text: text.to_owned(),
                part: part.to_owned(),
                why,
                expected: "list",
            };
            if let Some(excluded) = part.strip_prefix('^') {
                let excluded = parse_range(excluded).map_err(fail)?;
                if set.intersection(&excluded).is_empty() {
                    return Err(fail("an exclusion must follow a range that contains it"));
                }
                set = set.difference(&excluded);
            } else {
                set = set.union(&parse_range(part).map_err(fail)?);
            }
        }
        Ok(set)
    }

    /// Parses a hexadecimal mask such as `ff,00000001` (also with `0x` and without commas).
    ///
    /// # Errors
    /// [`CpuSetError`] if a character is not hexadecimal or the mask exceeds [`MAX_PUS`].
    pub fn parse_mask(text: &str) -> Result<Self, CpuSetError> {
        let trimmed = text.trim();
        let fail = |part: &str, why| CpuSetError {
            text: text.to_owned(),
            part: part.to_owned(),
            why,
            expected: "hexadecimal mask",
        };
        let digits: String = without_0x(trimmed).replace(',', "");
        if digits.is_empty() {
            return Err(fail(trimmed, "a mask needs at least one digit"));
        }
        if digits.len() > (MAX_PUS / 4) as usize {
            return Err(fail("", "the mask is too long"));
        }
        let mut set = Self::new();
        for (position, digit) in (0_u32..).zip(digits.chars().rev()) {
            let value = digit
                .to_digit(16)
                .ok_or_else(|| fail(&digit.to_string(), "is not a hexadecimal digit"))?;
            for bit in 0..4 {
                if value & (1 << bit) != 0 {
                    set.insert(PuId(position * 4 + bit));
                }
            }
        }
        Ok(set)
    }

    /// The set in the kernel's mask format: 32-bit hex words, high first, separated by commas.
    pub fn to_mask(&self) -> String {
        let mut halves: Vec<u32> = self
            .words()
            .iter()
            .flat_map(|word| [(word & 0xffff_ffff) as u32, (word >> 32) as u32])
            .collect();
        while halves.len() > 1 && halves.last() == Some(&0) {
            halves.pop();
        }
        match halves.split_last() {
            None => "0".to_owned(),
            Some((top, rest)) => rest
                .iter()
                .rev()
                .fold(format!("{top:x}"), |text, word| format!("{text},{word:08x}")),
        }
    }

    /// The set as 64-bit words, low CPUs first.
    pub fn words(&self) -> Vec<u64> {
        let mut words = vec![0; self.skipped];
        words.extend_from_slice(&self.words);
        words
    }

    /// Writes the words to a buffer, for `sched_setaffinity(2)`, and returns the used part. Does
    /// not allocate.
    pub fn write_words<'b>(&self, buffer: &'b mut [u64; MAX_WORDS]) -> &'b [u64] {
        buffer[..self.skipped].fill(0);
        buffer[self.skipped..self.end()].copy_from_slice(&self.words);
        &buffer[..self.end()]
    }

    /// The set from 64-bit words, low CPUs first.
    pub fn from_words(words: &[u64]) -> Self {
        Self::from_parts(0, words.to_vec())
    }

    /// Adds a CPU.
    ///
    /// # Panics
    /// If its index is [`MAX_PUS`] or above, which is beyond the limit of any kernel.
    pub fn insert(&mut self, pu: PuId) {
        self.add_word(pu.index() / 64, bit(pu));
    }

    /// Adds the CPUs of one word; `bits` are not zero.
    fn add_word(&mut self, word: usize, bits: u64) {
        self.cover(word, word + 1);
        self.words.of_own()[word - self.skipped] |= bits;
    }

    /// Removes a CPU.
    pub fn remove(&mut self, pu: PuId) {
        let word = (pu.index() / 64).checked_sub(self.skipped);
        let bit = 1 << (pu.0 % 64);
        let Some(word) = word.filter(|word| self.words.get(*word).is_some_and(|w| w & bit != 0))
        else {
            return;
        };
        let mut words = std::mem::take(&mut self.words).into_vec();
        words[word] &= !bit;
        *self = Self::from_parts(self.skipped, words);
    }

    /// True if the CPU is in the set.
    pub fn contains(&self, pu: PuId) -> bool {
        work::count();
        self.word(pu.index() / 64) & (1 << (pu.0 % 64)) != 0
    }

    /// True if the set has no CPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Number of CPUs.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// True if the set has one CPU. Faster than [`Self::len`], as is [`Self::has_at_most`].
    #[must_use]
    pub fn is_single(&self) -> bool {
        matches!(*self.words, [word] if word.is_power_of_two())
    }

    /// True if the set has no more CPUs than this.
    #[must_use]
    pub fn has_at_most(&self, count: usize) -> bool {
        let mut left = count;
        self.words.iter().all(|word| {
            let cpus = word.count_ones() as usize;
            let fits = cpus <= left;
            left = left.saturating_sub(cpus);
            fits
        })
    }

    /// The CPU with the lowest OS index; `None` for the empty set.
    #[must_use]
    pub fn first(&self) -> Option<PuId> {
        self.iter().next()
    }

    /// The CPUs in ascending order of OS index.
    pub fn iter(&self) -> impl Iterator<Item = PuId> + '_ {
        let indexes = (0_u32..).skip(self.skipped);
        indexes.zip(self.words.iter()).filter(|(_, word)| **word != 0).flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                work::count();
                let bit = left.trailing_zeros();
                // Clears the lowest bit.
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(PuId(index * 64 + bit))
            })
        })
    }

    /// Adds the CPUs of another set.
    pub fn add(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        self.cover(other.skipped, other.end());
        let from = other.skipped - self.skipped;
        for (word, more) in self.words.of_own()[from..].iter_mut().zip(other.words.iter()) {
            *word |= more;
        }
    }

    /// CPUs in either set.
    pub fn union(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.add(other);
        both
    }

    /// CPUs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (from, own, others) = self.shared_words(other);
        Self::from_words_at(from, own.iter().zip(others).map(|(own, other)| own & other))
    }

    /// CPUs in `self` but not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        if self.is_disjoint(other) {
            return self.clone();
        }
        let words = (self.skipped..).zip(self.words.iter());
        Self::from_words_at(self.skipped, words.map(|(at, word)| word & !other.word(at)))
    }

    /// True if every CPU of `self` is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        // The first and the last word have a CPU.
        if !self.is_empty() && (self.skipped < other.skipped || other.end() < self.end()) {
            return false;
        }
        let (_, own, others) = self.shared_words(other);
        own.iter().zip(others).all(|(own, other)| own & !other == 0)
    }

    /// True if the sets share no CPU.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let (_, own, others) = self.shared_words(other);
        own.iter().zip(others).all(|(own, other)| own & other == 0)
    }

    /// The words that both sets store: the index of the first, those of `self`, those of `other`.
    fn shared_words<'s>(&'s self, other: &'s Self) -> (usize, &'s [u64], &'s [u64]) {
        work::count();
        let from = self.skipped.max(other.skipped);
        let to = self.end().min(other.end()).max(from);
        let of = |set: &'s Self| set.words.get(from - set.skipped..to - set.skipped).unwrap_or(&[]);
        (from, of(self), of(other))
    }

    /// The word with this index (CPUs `64 * index` to `64 * index + 63`).
    fn word(&self, index: usize) -> u64 {
        let kept = index.checked_sub(self.skipped);
        kept.and_then(|kept| self.words.get(kept)).copied().unwrap_or(0)
    }

    /// Index after the last stored word.
    fn end(&self) -> usize {
        self.skipped + self.words.len()
    }

    /// Extends the storage to the words `from..to`; the caller then sets at least one bit in them.
    fn cover(&mut self, from: usize, to: usize) {
        work::count();
        if self.words.is_empty() {
            (self.skipped, self.words) = (from, Words::zeros(to - from));
            return;
        }
        let (missing, behind) = (self.skipped.saturating_sub(from), to.saturating_sub(self.end()));
        if missing + behind > 0 {
            self.words.extend(missing, behind);
            self.skipped -= missing;
        }
    }

    /// The set with these words, starting at index `from`. Allocates only for several words.
    fn from_words_at(from: usize, words: impl Iterator<Item = u64> + Clone) -> Self {
        let mut used = (from..).zip(words.clone()).filter(|(_, word)| *word != 0);
        let Some((first, word)) = used.next() else { return Self::new() };
        if used.next().is_none() {
            return Self { skipped: first, words: Words::One(word) };
        }
        Self::from_parts(first, words.skip(first - from).collect())
    }

    /// The set with these words, starting at index `skipped`.
    fn from_parts(skipped: usize, mut words: Vec<u64>) -> Self {
        let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        words.truncate(used);
        let zeros = words.iter().take_while(|word| **word == 0).count();
        words.drain(..zeros);
        let skipped = if words.is_empty() { 0 } else { skipped + zeros };
        Self { skipped, words: words.into() }
    }

    /// First and last CPU of each run of consecutive CPUs, ascending.
    fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let first = self.next_with(from, false)?;
            // A run always ends, because there are zero bits after the last word.
            let behind = self.next_with(first, true)?;
            from = behind;
            Some((first, behind - 1))
        })
    }

    /// The first index from `from` on that is in the set (or, if `absent`, not in the set). Skips
    /// whole words.
    fn next_with(&self, from: u32, absent: bool) -> Option<u32> {
        let mut at = from;
        loop {
            let index = (at / 64) as usize;
            if index >= self.end() {
                return absent.then_some(at);
            }
            let word = if absent { !self.word(index) } else { self.word(index) };
            let left = word & (u64::MAX << (at % 64));
            if left != 0 {
                return Some(at / 64 * 64 + left.trailing_zeros());
            }
            at = (at / 64 + 1) * 64;
        }
    }
}

/// Parses `3`, `0-7` or `0-31:2/8` (two of each eight).
fn parse_range(part: &str) -> Result<CpuSet, &'static str> {
    let (range, stride) = match part.split_once(':') {
        None => (part, None),
        Some((range, stride)) => {
            let (used, group) = stride.split_once('/').ok_or("a stride is written used/group")?;
            (range, Some((parse_number(used)?, parse_number(group)?)))
        }
    };
    let (first, last) = match range.split_once('-') {
        None => (parse_number(range)?, parse_number(range)?),
        Some((first, last)) => (parse_number(first)?, parse_number(last)?),
    };
    if first > last {
        return Err("the range runs backwards");
    }
    let (used, group) = stride.unwrap_or((1, 1));
    if used == 0 || used > group {
        return Err("a stride uses at least one CPU and at most its group");
    }
    Ok((first..=last).filter(|pu| (pu - first) % group < used).map(PuId).collect())
}

/// A mask without the `0x` in front, if it has one.
fn without_0x(mask: &str) -> &str {
    mask.strip_prefix("0x").or_else(|| mask.strip_prefix("0X")).unwrap_or(mask)
}

fn parse_number(text: &str) -> Result<u32, &'static str> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("is not a number");
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("is not a number; write a hexadecimal mask with 0x in front");
    }
    text.parse().ok().filter(|number| *number < MAX_PUS).ok_or(
        "the number is beyond every kernel's limit of CPUs; write a hexadecimal mask with 0x in \
             front",
    )
}

impl FromIterator<PuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = PuId>>(pus: I) -> Self {
        let mut set = Self::new();
        // CPUs of one word mostly follow each other.
        let (mut word, mut bits) = (0, 0);
        for pu in pus {
            if word != pu.index() / 64 && bits != 0 {
                set.add_word(word, bits);
                bits = 0;
            }
            word = pu.index() / 64;
            bits |= bit(pu);
        }
        if bits != 0 {
            set.add_word(word, bits);
        }
        set
    }
}

/// The bit of a CPU in its word.
fn bit(pu: PuId) -> u64 {
    assert!(pu.0 < MAX_PUS, "CPU {pu} is beyond every kernel's limit");
    1 << (pu.0 % 64)
}

/// The union of the sets.
impl<'a> FromIterator<&'a Self> for CpuSet {
    fn from_iter<I: IntoIterator<Item = &'a Self>>(sets: I) -> Self {
        let mut all = Self::new();
        sets.into_iter().for_each(|set| all.add(set));
        all
    }
}

/// The kernel's list format: `0-3,8`; the empty set is an empty text.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (first, last) in self.runs() {
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(pus: &[u32]) -> CpuSet {
        pus.iter().copied().map(PuId).collect()
    }

    #[test]
    fn lists_that_the_kernel_and_libvirt_write() {
        check("", &[]);
        check("\n", &[]);
        check("0", &[0]);
        check("0-3,8\n", &[0, 1, 2, 3, 8]);
        check("0-3,^2", &[0, 1, 3]);
        check("0-15:2/8", &[0, 1, 8, 9]);
        check("64-65", &[64, 65]);
        check("0x82082", &[1, 7, 13, 19]);
    }

    fn check(text: &str, pus: &[u32]) {
        assert_eq!(CpuSet::parse_list(text), Ok(set(pus)))
    }

    #[test]
    fn lists_that_are_refused_with_the_part_that_is_wrong() {
        fn check(text: &str, part: &str, why: &str) {
            let error = CpuSet::parse_list(text).unwrap_err();
            assert_eq!((error.part.as_str(), error.why.contains(why)), (part, true), "{error}");
        }

        check("8-3", "8-3", "backwards");
        check("0,^2", "^2", "exclusion");
        check("^2", "^2", "exclusion");
        check("2147483648", "2147483648", "limit");
        check("82082", "82082", "0x in front");
        check("1-3,ff", "ff", "0x in front");
        check("0,,1", "", "not a number");
        check("1-", "1-", "not a number");
        check("+1", "+1", "not a number");
        check("0-7:0/2", "0-7:0/2", "stride");
        check("0-7:2", "0-7:2", "stride");
    }

    #[test]
    fn masks() {
        fn check(text: &str, pus: &[u32]) {
            assert_eq!(CpuSet::parse_mask(text), Ok(set(pus)))
        }

        check("3", &[0, 1]);
        check("0xf0", &[4, 5, 6, 7]);
        check("0XF0", &[4, 5, 6, 7]);
        check("1,00000001", &[0, 32]);
        assert_eq!(set(&[0, 32, 64]).to_mask(), "1,00000001,00000001");
        assert_eq!(CpuSet::new().to_mask(), "0");
        assert!(CpuSet::parse_mask("").is_err());
        assert!(CpuSet::parse_mask("0xg").is_err());
    }

    fn any_set() -> impl Strategy<Value = CpuSet> {
        (0_u32..1000, prop::collection::vec(0_u32..300, 0..40))
            .prop_map(|(from, pus)| pus.iter().map(|pu| PuId(from + pu)).collect())
    }

    proptest! {
        #[test]
        fn text_and_mask_round_trip(a in any_set()) {
            prop_assert_eq!(CpuSet::parse_list(&a.to_string()), Ok(a.clone()));
            prop_assert_eq!(CpuSet::parse_mask(&a.to_mask()), Ok(a.clone()));
            let mut buffer = [7; MAX_WORDS];
            prop_assert_eq!(a.write_words(&mut buffer), a.words());
            prop_assert_eq!(CpuSet::from_words(&a.words()), a);
        }

        #[test]
        fn algebra(a in any_set(), b in any_set()) {
            prop_assert_eq!(a.union(&b).len() + a.intersection(&b).len(), a.len() + b.len());
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert!(a.difference(&b).is_disjoint(&b));
            prop_assert!(a.intersection(&b).is_subset(&a));
            prop_assert_eq!(a.is_subset(&b), a.difference(&b).is_empty());
            prop_assert_eq!(a.is_disjoint(&b), a.intersection(&b).is_empty());
            let mut sum = a.clone();
            sum.add(&b);
            prop_assert_eq!(sum, a.union(&b));
            prop_assert!(a.iter().all(|pu| a.contains(pu)) && a.iter().count() == a.len());
            prop_assert_eq!(a.is_single(), a.len() == 1);
            prop_assert!(a.has_at_most(a.len()) && (a.is_empty() || !a.has_at_most(a.len() - 1)));
            prop_assert_eq!(a.has_at_most(b.len()), a.len() <= b.len());
            // Equal sets compare equal, however they were made.
            let mut fewer = a.union(&b);
            b.iter().for_each(|pu| fewer.remove(pu));
            prop_assert_eq!(&fewer, &a.difference(&b));
            prop_assert_eq!(fewer.iter().collect::<CpuSet>(), fewer);
        }

        #[test]
        fn no_text_panics(text in "[-0-9,^:/ \n]{0,24}") {
            if let Ok(parsed) = CpuSet::parse_list(&text) {
                prop_assert_eq!(CpuSet::parse_list(&parsed.to_string()), Ok(parsed));
            }
        }
    }
}
