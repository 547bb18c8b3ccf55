//! Storage of a CPU set.
//!
//! A plan has thousands of sets of one CPU, and thousands of copies of the set of all CPUs. A set
//! of one word therefore needs no allocation, and copies of larger sets share one allocation until
//! one of them is changed. The cost of a plan then grows with its threads, not with threads times
//! CPUs.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// 64-bit words, low CPUs first.
#[derive(Clone, Default)]
pub(super) enum Words {
    /// No words.
    #[default]
    Empty,
    /// One word, stored in place.
    One(u64),
    /// Several words, shared between copies.
    Many(Arc<Vec<u64>>),
}

impl Words {
    /// `count` words of zero.
    pub fn zeros(count: usize) -> Self {
        match count {
            0 => Words::Empty,
            1 => Words::One(0),
            _ => Words::Many(Arc::new(vec![0; count])),
        }
    }

    /// True for copies that share their words.
    fn is_same(&self, other: &Self) -> bool {
        matches!((self, other), (Words::Many(one), Words::Many(two)) if Arc::ptr_eq(one, two))
    }

    /// The words for writing; shared words are copied first.
    pub fn of_own(&mut self) -> &mut [u64] {
        match self {
            Words::Empty => &mut [],
            Words::One(word) => std::slice::from_mut(word),
            Words::Many(words) => Arc::make_mut(words).as_mut_slice(),
        }
    }

    /// Adds words of zero before and behind.
    pub fn extend(&mut self, before: usize, behind: usize) {
        if !matches!(self, Words::Many(_)) {
            *self = Words::Many(Arc::new(std::mem::take(self).into_vec()));
        }
        if let Words::Many(words) = self {
            let words = Arc::make_mut(words);
            words.splice(0..0, std::iter::repeat_n(0, before));
            words.resize(words.len() + behind, 0);
        }
    }

    /// The words as a vector; shared words are copied.
    pub fn into_vec(self) -> Vec<u64> {
        match self {
            Words::Empty => Vec::new(),
            Words::One(word) => vec![word],
            Words::Many(words) => Arc::unwrap_or_clone(words),
        }
    }
}

impl From<Vec<u64>> for Words {
    fn from(words: Vec<u64>) -> Self {
        match words.as_slice() {
            [] => Words::Empty,
            [word] => Words::One(*word),
            _ => Words::Many(Arc::new(words)),
        }
    }
}

impl Deref for Words {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            Words::Empty => &[],
            Words::One(word) => std::slice::from_ref(word),
            Words::Many(words) => words,
        }
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) || **self == **other
    }
}

impl Eq for Words {}

impl PartialOrd for Words {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Words {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.is_same(other) { Ordering::Equal } else { (**self).cmp(&**other) }
    }
}

impl Hash for Words {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}
