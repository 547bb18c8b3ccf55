//! Reading and setting the tunables of a plan.

use super::{Invalid, TUNABLES, Tunable, Value, required};
use crate::{CpuSet, Tuning};

impl Tuning {
    /// Sets tunables from arguments of the command line: `thp=never`.
    ///
    /// # Errors
    /// [`Invalid`] for the first that is no tunable or has no valid value.
    pub fn from_words(words: &[&str]) -> Result<Self, Invalid> {
        let mut tuning = Self::default();
        words.iter().try_for_each(|word| tuning.add(word))?;
        Ok(tuning)
    }

    /// Sets one tunable from an argument of the command line.
    ///
    /// # Errors
    /// [`Invalid`] if it is no tunable of this part of a plan, or has no valid value.
    pub fn add(&mut self, word: &str) -> Result<(), Invalid> {
        let (key, text) = word.split_once('=').unwrap_or((word, ""));
        let tunable = Tunable::by_key(key)
            .filter(|one| one.of.is_empty())
            .ok_or_else(|| Invalid { why: format!("there is no tunable {key:?}"), hint: None })?;
        self.set(tunable, tunable.values.parse(key, text, &CpuSet::new())?);
        Ok(())
    }

    /// Sets a value, and adds it if the tunable takes several.
    pub fn set(&mut self, tunable: &'static Tunable, value: Value) {
        if tunable.key == required::TUNABLE.key {
            self.required = value == Value::Word("yes");
            return;
        }
        let values = self.values.entry(tunable.key).or_default();
        if !tunable.values.are_several() {
            values.clear();
        }
        values.push(value);
    }

    /// Leaves a tunable unchanged.
    pub fn unset(&mut self, tunable: &Tunable) {
        self.values.remove(tunable.key);
    }

    /// The values in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Tunable, &Value)> {
        TUNABLES.into_iter().flat_map(|one| self.all(one).iter().map(move |value| (one, value)))
    }

    /// All values of a tunable.
    pub fn all(&self, tunable: &Tunable) -> &[Value] {
        self.values.get(tunable.key).map_or(&[], Vec::as_slice)
    }

    /// The value of a tunable that takes one.
    #[must_use]
    pub fn get(&self, tunable: &Tunable) -> Option<&Value> {
        self.all(tunable).first()
    }

    /// True if the plan sets the tunable.
    pub fn has(&self, tunable: &Tunable) -> bool {
        self.get(tunable).is_some()
    }

    /// The position of a switch.
    #[must_use]
    pub fn switch(&self, tunable: &Tunable) -> Option<bool> {
        self.get(tunable).map(Value::is_on)
    }

    /// The number of a tunable that has one.
    pub fn number(&self, tunable: &Tunable) -> Option<u64> {
        let Some(Value::Number(number)) = self.get(tunable) else { return None };
        Some(*number)
    }

    /// The CPUs of a tunable that has such.
    pub fn cpus(&self, tunable: &Tunable) -> Option<&CpuSet> {
        let Some(Value::Cpus(pus)) = self.get(tunable) else { return None };
        Some(pus)
    }

    /// The word of a tunable that has one.
    pub fn word(&self, tunable: &Tunable) -> Option<&'static str> {
        let Some(Value::Word(word)) = self.get(tunable) else { return None };
        Some(word)
    }
}
