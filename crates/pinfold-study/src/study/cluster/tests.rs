//! Parts, documents, output of Slurm, and a simulated cluster of any size.

mod answers;
mod cluster;
mod documents;
mod parts;
mod room;
