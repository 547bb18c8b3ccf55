//! The seeded generator of designs and bootstraps: PCG XSH-RR 64/32.
//!
//! A design is rebuilt from its seed when an interrupted run is resumed, perhaps by a later version
//! of Pinfold. So the algorithm is part of the store's format, and is implemented here and not in a
//! dependency that may change it. It is O'Neill's `pcg32` (<https://www.pcg-random.org>), checked
//! against her reference output.

/// A small, fast, reproducible generator. Not for cryptography.
#[derive(Clone, Debug)]
pub struct Pcg32 {
    state: u64,
    increment: u64,
}

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

impl Pcg32 {
    /// The generator with this seed; different streams of one seed are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut generator = Self { state: 0, increment: (stream << 1) | 1 };
        generator.next_u32();
        generator.state = generator.state.wrapping_add(seed);
        generator.next_u32();
        generator
    }

    /// The next 32 bits.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the algorithm takes the low 32 bits of the shifted state"
    )]
    pub fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
        let shifted = (((old >> 18) ^ old) >> 27) as u32;
        shifted.rotate_right((old >> 59) as u32)
    }

    /// A uniformly distributed number in `0..bound`; 0 if `bound` is 0.
    pub fn draw_below(&mut self, bound: u32) -> u32 {
        if bound == 0 {
            return 0;
        }
        // Numbers below the threshold would make small results more likely.
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let number = self.next_u32();
            if number >= threshold {
                return number % bound;
            }
        }
    }

    /// An index into a slice of this length; 0 if it is empty.
    ///
    /// # Panics
    /// If the length exceeds 2³².
    pub fn index(&mut self, length: usize) -> usize {
        assert!(length <= u32::MAX as usize, "a slice of {length} is beyond this generator");
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        let bound = length as u32;
        self.draw_below(bound) as usize
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        let high = u64::from(self.next_u32() >> 5);
        let low = u64::from(self.next_u32() >> 6);
        (high * (1 << 26) + low) as f64 / (1_u64 << 53) as f64
    }

    /// Shuffles a slice (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.index(last + 1);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_reference_output() {
        let mut generator = Pcg32::new(42, 54);
        let numbers: Vec<u32> = (0..6).map(|_| generator.next_u32()).collect();
        assert_eq!(
            numbers,
            [0xa15c_02b7, 0x7b47_f409, 0xba1d_3330, 0x83d2_f293, 0xbfa4_784b, 0xcbed_606e]
        );
    }

    #[test]
    fn shuffles_to_every_order_about_equally_often() {
        let mut generator = Pcg32::new(1, 1);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..6_000 {
            let mut items = [0, 1, 2];
            generator.shuffle(&mut items);
            *counts.entry(items).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 6);
        // Binomial(6000, 1/6): mean 1000, standard deviation 29.
        assert!(counts.values().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }

    #[test]
    fn bounds_hold() {
        let mut generator = Pcg32::new(7, 0);
        assert_eq!(generator.draw_below(0), 0);
        assert_eq!(generator.draw_below(1), 0);
        for _ in 0..1_000 {
            assert!(generator.draw_below(3) < 3);
            assert!((0.0..1.0).contains(&generator.unit()));
        }
    }
}
