//! Platforms on a host: the CPUs of each vnode, and the speed of each CPU.

mod error;
mod resolve;

pub use error::{FrequencyError, PlatformError};
pub use resolve::{resolve_platform, speed_on};
