//! Placement strategies: pure functions from topology and request to plan.
