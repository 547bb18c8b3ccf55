//! Machines and process groups that Pinfold has placed, and platforms of slowed vnodes.
//!
//! Their journals are not read here: the caller adds these claims before those of other owners.

use crate::claim::{Kind, OwnerCategory};
use crate::claim_set::Claims;
use crate::context::Context;

/// A placed machine or process group.
pub const PLACEMENT: Kind =
    Kind { name: "placement", noun: "placement", sort: OwnerCategory::Machine };

/// A platform of slowed vnodes.
pub const PLATFORM: Kind =
    Kind { name: "platform", noun: "emulated platform", sort: OwnerCategory::Machine };

/// Both.
pub const KINDS: &[&Kind] = &[&PLACEMENT, &PLATFORM];

/// Nothing: see above.
pub fn read(_: &Context<'_>, _: &mut Claims) {}
