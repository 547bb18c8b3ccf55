//! Tests of the readers of anchors, on what the real ones wrote.

use super::*;
