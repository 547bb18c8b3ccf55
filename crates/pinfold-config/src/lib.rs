//! Reads the files that people write, and the same syntax on the command line.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! - [`requests`]: what to place, and the tunables of `--tunable`.
//! - [`domains`]: how domains are placed at their start.
//! - [`platforms`]: a machine divided into virtual nodes, and time series for playback.
//! - [`keys`] and [`value`]: the tables and values of any such file, each with its position, and the
//!   [`fault`] at a position. Study files are read with them too.
//!
//! A [`ConfigError`] names line and column, and the most similar known name. This crate opens no
//! file and plans nothing: text in, values of the model out.

pub mod domains;
mod error;
pub mod fault;
pub mod keys;
pub mod platforms;
pub mod requests;
pub mod value;

pub use error::ConfigError;
