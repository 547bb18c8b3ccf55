//! Why a table of a study cannot be written.

/// Why a table cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A value has another type than its column.
    #[error("the table {table}: the column {column} holds a value of another kind")]
    Kind {
        /// Name of the table.
        table: String,
        /// Name of the column.
        column: String,
    },
    /// The Parquet library failed.
    #[cfg(feature = "parquet")]
    #[error("the table {table} cannot be written as Parquet")]
    Parquet {
        /// Name of the table.
        table: String,
        /// The error of the library.
        source: parquet::errors::ParquetError,
    },
}
