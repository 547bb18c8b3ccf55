//! The words of a set: a plan has thousands of sets of one PU, and thousands of copies of the
//! set of all PUs. So one word needs no memory of its own, and copies of many share theirs until
//! one of them is changed; what a plan costs then grows with its threads, not with threads times PUs.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// Words, low PUs first.
#[derive(Clone, Default)]
pub(super) enum Words {
    /// None.
    #[default]
    Empty,
    /// One.
    One(u64),
    /// Several.
    Many(Arc<Vec<u64>>),
}

impl Words {
    /// So many that are zero.
    pub fn zeros(count: usize) -> Self {
        match count {
            0 => Words::Empty,
            1 => Words::One(0),
            _ => Words::Many(Arc::new(vec![0; count])),
        }
    }

    /// To be changed: from here on shared with nobody.
    pub fn of_own(&mut self) -> &mut [u64] {
        match self {
            Words::Empty => &mut [],
            Words::One(word) => std::slice::from_mut(word),
            Words::Many(words) => Arc::make_mut(words).as_mut_slice(),
        }
    }

    /// As a vector, copied if others share it.
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
        **self == **other
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
        (**self).cmp(&**other)
    }
}

impl Hash for Words {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}
