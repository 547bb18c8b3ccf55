//! Data tables for export: CSV, Parquet, report pages.

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Text.
    Text,
    /// Floating-point numbers.
    Number,
    /// Integers.
    Whole,
    /// Booleans.
    Truth,
}

/// One value of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    /// No value.
    Nothing,
    /// A text.
    Text(String),
    /// A number.
    Number(f64),
    /// An integer.
    Whole(i64),
    /// A boolean.
    Truth(bool),
}

impl Datum {
    /// A text value.
    pub fn text(text: impl Into<String>) -> Self {
        Datum::Text(text.into())
    }

    /// A number; [`Datum::Nothing`] for `None`.
    pub fn number(number: Option<f64>) -> Self {
        number.map_or(Datum::Nothing, Datum::Number)
    }

    /// An integer; [`Datum::Nothing`] if it does not fit into an `i64`.
    #[must_use]
    pub fn whole(number: u64) -> Self {
        i64::try_from(number).map_or(Datum::Nothing, Datum::Whole)
    }
}

/// A table. Each row has one value per column, of the column's type or [`Datum::Nothing`].
#[derive(Clone, Debug, PartialEq)]
pub struct DataTable {
    /// Its name, also used in file names.
    pub name: String,
    /// Names of the columns with their units (`t_full_ns`), and their types.
    pub columns: Vec<(String, ColumnKind)>,
    /// The rows.
    pub rows: Vec<Vec<Datum>>,
}

/// Kind of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlotKind {
    /// Lines over a factor, with intervals.
    Lines,
    /// Groups of bars, with intervals.
    Bars,
    /// All samples by percentile: shares from 0 to 1 on the x axis, as −log10(1 − p).
    Percentiles,
    /// The samples of one trial by their order, or by time.
    Sequence,
}
