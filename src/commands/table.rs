//! Tables in text.

/// How the columns after the first one stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Texts, to the left.
    Left,
    /// Numbers, to the right.
    Right,
}

/// Rows with columns of equal width, the first one to the left.
pub fn table(rows: &[impl AsRef<[String]>], align: Align) -> String {
    let rows: Vec<&[String]> = rows.iter().map(AsRef::as_ref).collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, |row| row.len())).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            match align == Align::Right && column > 0 {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}
