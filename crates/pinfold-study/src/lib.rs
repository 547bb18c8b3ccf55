//! Design, store, statistics and tuning of measurements.
