//! Plans in text: explanation, picture, table, hints and commands.

pub mod command;
pub(crate) mod core_map;
pub(crate) mod explain;
pub(crate) mod group_words;
pub(crate) mod hints;
pub(crate) mod prefer;
pub(crate) mod rows;
pub(crate) mod sheet;
