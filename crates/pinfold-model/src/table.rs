//! Tables of data, as they leave Pinfold: CSV, Parquet, a page.

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Texts.
    Text,
    /// Numbers.
    Number,
    /// Whole numbers.
    Whole,
    /// True or false.
    Truth,
}

/// One value; nothing where there is none.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    /// There is none.
    Nothing,
    /// A text.
    Text(String),
    /// A number.
    Number(f64),
    /// A whole number.
    Whole(i64),
    /// True or false.
    Truth(bool),
}

impl Datum {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Datum::Text(text.into())
    }

    /// A number, or nothing.
    #[must_use]
    pub fn number(number: Option<f64>) -> Self {
        number.map_or(Datum::Nothing, Datum::Number)
    }

    /// A whole number that fits; else nothing.
    #[must_use]
    pub fn whole(number: u64) -> Self {
        i64::try_from(number).map_or(Datum::Nothing, Datum::Whole)
    }
}

/// A table: its rows have as many values as it has columns, of their columns' kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct DataTable {
    /// Its name, in names of files too.
    pub name: String,
    /// Names of the columns with their units (`t_full_ns`), and what they hold.
    pub columns: Vec<(String, ColumnKind)>,
    /// Its rows.
    pub rows: Vec<Vec<Datum>>,
}
