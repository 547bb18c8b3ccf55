//! Writes a table as CSV and, with the feature `parquet`, as Parquet files, piece by piece, so that
//! a table with millions of rows need not be in memory as a whole.

use pinfold_model::{DataTable, Datum};

#[cfg(feature = "parquet")]
use crate::parquet::Parquet;
use crate::table_error::TableError;

/// The files of a table that is being written, in memory.
pub struct TableFiles {
    csv: String,
    #[cfg(feature = "parquet")]
    parquet: Parquet,
    rows: usize,
}

/// The files of a complete table.
pub struct WrittenTable {
    /// The CSV file.
    pub csv: String,
    /// The Parquet file; `None` without the feature `parquet`.
    pub parquet: Option<Vec<u8>>,
    /// Number of rows of each file.
    pub rows: usize,
}

impl TableFiles {
    /// Files that start with the rows of this table; others with the same columns may follow.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn from_table(table: &DataTable) -> Result<Self, TableError> {
        let mut csv = head(table);
        push_rows(&mut csv, table);
        Ok(Self {
            csv,
            #[cfg(feature = "parquet")]
            parquet: Parquet::begin_with(table)?,
            rows: table.rows.len(),
        })
    }

    /// Appends the rows of a further piece.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn push(&mut self, piece: &DataTable) -> Result<(), TableError> {
        push_rows(&mut self.csv, piece);
        self.rows += piece.rows.len();
        #[cfg(feature = "parquet")]
        self.parquet.push(piece)?;
        Ok(())
    }

    /// Finishes both files.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn finish(self) -> Result<WrittenTable, TableError> {
        #[cfg(feature = "parquet")]
        let parquet = Some(self.parquet.finish()?);
        #[cfg(not(feature = "parquet"))]
        let parquet = None;
        Ok(WrittenTable { csv: self.csv, parquet, rows: self.rows })
    }
}

/// The header line. RFC 4180: quotes where needed, lines end in CRLF.
fn head(table: &DataTable) -> String {
    let names = table.columns.iter().map(|(name, _)| quote(name));
    format!("{}\r\n", names.collect::<Vec<_>>().join(","))
}

fn push_rows(text: &mut String, table: &DataTable) {
    for row in &table.rows {
        let fields = row.iter().map(|datum| match datum {
            Datum::Nothing => String::new(),
            Datum::Text(text) => quote(text),
            Datum::Number(number) => number.to_string(),
            Datum::Whole(number) => number.to_string(),
            Datum::Truth(truth) => truth.to_string(),
        });
        text.push_str(&fields.collect::<Vec<_>>().join(","));
        text.push_str("\r\n");
    }
}

/// Prefixes an apostrophe to text that a spreadsheet would interpret as a formula.
/// <https://owasp.org/www-community/attacks/CSV_Injection>
fn quote(text: &str) -> String {
    const BEGINS: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];
    let is_formula = text.starts_with(BEGINS) && text.parse::<f64>().is_err();
    if is_formula {
        return format!("\"'{}\"", text.replace('"', "\"\""));
    }
    // Some spreadsheets separate fields at semicolons and tabs: a formula must not start there.
    if text.contains([',', ';', '\t', '"', '\n', '\r']) || text.is_empty() {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use pinfold_model::ColumnKind;

    use super::*;

    #[test]
    fn a_text_that_a_spreadsheet_would_run_is_quoted_as_text() {
        check("=cmd|'/C calc'!A0", "\"'=cmd|'/C calc'!A0\"");
        check("@SUM(1)", "\"'@SUM(1)\"");
        check("+1+1", "\"'+1+1\"");
        check("-2+3\"", "\"'-2+3\"\"\"");
        check("\t=1", "\"'\t=1\"");
        check("-1.5e3", "-1.5e3");
        check("a=b", "a=b");
        check("a;=1", "\"a;=1\"");
        check("＝1", "\"'＝1\"");
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(quote(text), expected, "{text}")
    }

    #[test]
    fn values_are_quoted_where_they_must_be() {
        let table = DataTable {
            name: "t".to_owned(),
            columns: vec![
                ("a,b".to_owned(), ColumnKind::Text),
                ("n".to_owned(), ColumnKind::Number),
                ("w".to_owned(), ColumnKind::Whole),
                ("t".to_owned(), ColumnKind::Truth),
            ],
            rows: vec![
                vec![
                    Datum::text("say \"so\"\nnow"),
                    Datum::Number(1.5e-9),
                    Datum::Whole(-3),
                    Datum::Nothing,
                ],
                vec![Datum::text(""), Datum::Nothing, Datum::Whole(5), Datum::Truth(true)],
            ],
        };
        let lines = "\"say \"\"so\"\"\nnow\",0.0000000015,-3,\r\n\"\",,5,true\r\n";
        let mut files = TableFiles::from_table(&table).unwrap();
        files.push(&table).unwrap();
        let written = files.finish().unwrap();
        assert_eq!((written.csv, written.rows), (format!("\"a,b\",n,w,t\r\n{lines}{lines}"), 4));
        assert_eq!(written.parquet.is_some(), cfg!(feature = "parquet"));
        assert!(written.parquet.is_none_or(|bytes| bytes.starts_with(b"PAR1")));
    }
}
