//! Parts, documents, output of Slurm, and a simulated cluster of any size.

mod cluster;
mod documents;
mod parts;
mod room;
#[path = "../../pinfold-study/src/study/tests/world.rs"]
#[allow(dead_code, reason = "the tests of pinfold-study use more of it")]
mod world;
