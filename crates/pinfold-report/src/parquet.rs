//! Tables as Parquet files: one row group for each piece, typed columns, null for missing values.

use std::sync::Arc;

use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use pinfold_model::{ColumnKind, DataTable, Datum};

use crate::table_error::TableError;

/// A Parquet file that is being written, in memory.
pub(crate) struct Parquet {
    table: String,
    writer: SerializedFileWriter<Vec<u8>>,
}

impl Parquet {
    /// A file with the columns of this table, and no row.
    fn begin(table: &DataTable) -> Result<Self, TableError> {
        let failed = |source| TableError::Parquet { table: table.name.clone(), source };
        let schema = Arc::new(schema(table).map_err(failed)?);
        let properties = WriterProperties::builder()
            .set_compression(parquet::basic::Compression::SNAPPY)
            .set_created_by(concat!("pinfold ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties));
        Ok(Self { table: table.name.clone(), writer: writer.map_err(failed)? })
    }

    /// A file that starts with the rows of this table.
    pub(crate) fn begin_with(table: &DataTable) -> Result<Self, TableError> {
        let mut begun = Self::begin(table)?;
        begun.push(table)?;
        Ok(begun)
    }

    /// Appends the rows of this piece, as a row group.
    pub(crate) fn push(&mut self, piece: &DataTable) -> Result<(), TableError> {
        let table = &self.table;
        let failed = |source| TableError::Parquet { table: table.clone(), source };
        let mut group = self.writer.next_row_group().map_err(failed)?;
        for (index, (name, kind)) in piece.columns.iter().enumerate() {
            let Some(mut column) = group.next_column().map_err(failed)? else { break };
            let data = piece.rows.iter().map(|row| row.get(index).unwrap_or(&Datum::Nothing));
            if !write(&mut column, *kind, data).map_err(failed)? {
                return Err(TableError::Kind { table: table.clone(), column: name.clone() });
            }
            column.close().map_err(failed)?;
        }
        group.close().map(drop).map_err(failed)
    }

    /// Finishes the file.
    pub(crate) fn finish(self) -> Result<Vec<u8>, TableError> {
        let Self { table, writer } = self;
        writer.into_inner().map_err(|source| TableError::Parquet { table, source })
    }
}

fn schema(table: &DataTable) -> Result<Type, parquet::errors::ParquetError> {
    use parquet::basic::{LogicalType, Repetition, Type as Physical};
    let fields = table
        .columns
        .iter()
        .map(|(name, kind)| {
            let (physical, logical) = match kind {
                ColumnKind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                ColumnKind::Number => (Physical::DOUBLE, None),
                ColumnKind::Whole => (Physical::INT64, None),
                ColumnKind::Truth => (Physical::BOOLEAN, None),
            };
            Type::primitive_type_builder(name, physical)
                .with_logical_type(logical)
                .with_repetition(Repetition::OPTIONAL)
                .build()
                .map(Arc::new)
        })
        .collect::<Result<_, _>>()?;
    Type::group_type_builder("table").with_fields(fields).build()
}

/// Writes one column; false if a value has another type.
fn write<'d>(
    column: &mut SerializedColumnWriter<'_>,
    kind: ColumnKind,
    data: impl Iterator<Item = &'d Datum>,
) -> Result<bool, parquet::errors::ParquetError> {
    let mut texts: Vec<ByteArray> = Vec::new();
    let mut numbers: Vec<f64> = Vec::new();
    let mut wholes: Vec<i64> = Vec::new();
    let mut truths: Vec<bool> = Vec::new();
    let mut levels: Vec<i16> = Vec::new();
    for datum in data {
        levels.push(i16::from(*datum != Datum::Nothing));
        match (kind, datum) {
            (_, Datum::Nothing) => {}
            (ColumnKind::Text, Datum::Text(text)) => texts.push(text.as_str().into()),
            (ColumnKind::Number, Datum::Number(number)) => numbers.push(*number),
            (ColumnKind::Whole, Datum::Whole(number)) => wholes.push(*number),
            (ColumnKind::Truth, Datum::Truth(truth)) => truths.push(*truth),
            (_, Datum::Text(_) | Datum::Number(_) | Datum::Whole(_) | Datum::Truth(_)) => {
                return Ok(false);
            }
        }
    }
    let levels = Some(levels.as_slice());
    match kind {
        ColumnKind::Text => column.typed::<ByteArrayType>().write_batch(&texts, levels, None)?,
        ColumnKind::Number => column.typed::<DoubleType>().write_batch(&numbers, levels, None)?,
        ColumnKind::Whole => column.typed::<Int64Type>().write_batch(&wholes, levels, None)?,
        ColumnKind::Truth => column.typed::<BoolType>().write_batch(&truths, levels, None)?,
    };
    Ok(true)
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;

    use super::*;

    fn table() -> DataTable {
        let columns = [
            ("name", ColumnKind::Text),
            ("value", ColumnKind::Number),
            ("count", ColumnKind::Whole),
            ("ok", ColumnKind::Truth),
        ];
        DataTable {
            name: "t".to_owned(),
            columns: columns.map(|(name, kind)| (name.to_owned(), kind)).to_vec(),
            rows: vec![
                vec![Datum::text("größe"), Datum::Number(0.25), Datum::Nothing, Datum::Truth(true)],
                vec![Datum::Nothing, Datum::Number(-1.0), Datum::Whole(7), Datum::Truth(false)],
            ],
        }
    }

    #[test]
    fn what_is_written_is_read_by_the_format_s_own_reader() {
        let bytes = whole(&[table()]).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].get_string(0).unwrap(), "größe");
        assert_eq!((rows[0].get_double(1).unwrap(), rows[0].get_bool(3).unwrap()), (0.25, true));
        assert!(rows[0].get_long(2).is_err(), "nothing stands there");
        assert_eq!((rows[1].get_long(2).unwrap(), rows[1].get_double(1).unwrap()), (7, -1.0));
    }

    fn whole(pieces: &[DataTable]) -> Result<Vec<u8>, TableError> {
        let mut file = Parquet::begin(&pieces[0])?;
        pieces.iter().try_for_each(|piece| file.push(piece))?;
        file.finish()
    }

    #[test]
    fn pieces_are_one_table() {
        let empty = DataTable { rows: Vec::new(), ..table() };
        let bytes = whole(&[table(), empty, table()]).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[2].get_string(0).unwrap(), "größe");
        assert_eq!(rows[3].get_long(2).unwrap(), 7);
    }

    #[test]
    fn a_value_of_another_kind_is_refused() {
        let mut table = table();
        table.rows[1][1] = Datum::text("x");
        let reported = whole(&[table]).unwrap_err().to_string();
        assert_eq!(reported, "the table t: the column value holds a value of another kind");
    }
}
