//! Draws the medians of a table as horizontal bars, with the spread as a line over each bar.

use std::fmt::Debug;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::ground::report::Row;

const WIDTH: i32 = 1100;
const ROW_HEIGHT: i32 = 22;
const NAMES_WIDTH: i32 = 460;
const NUMBERS_WIDTH: i32 = 90;
const TITLE_HEIGHT: i32 = 40;
const UNIT_HEIGHT: i32 = 30;
const BAR: RGBColor = RGBColor(60, 110, 170);

/// Writes an SVG with one block for each unit, because bars of different units have no common
/// scale.
///
/// # Errors
/// The file can't be written.
pub(crate) fn bars(path: &Path, title: &str, rows: &[Row]) -> Result<()> {
    let mut units: Vec<&str> = Vec::new();
    for row in rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    let height = TITLE_HEIGHT + UNIT_HEIGHT * units.len() as i32 + ROW_HEIGHT * rows.len() as i32;
    let canvas = SVGBackend::new(path, (WIDTH as u32, height as u32 + 10)).into_drawing_area();
    let failed = |error: &dyn Debug| anyhow!("drawing {}: {error:?}", path.display());
    canvas.fill(&WHITE).map_err(|e| failed(&e))?;
    let text = |size: i32| ("sans-serif", size).into_font();
    canvas.draw(&Text::new(title.to_owned(), (10, 10), text(20))).map_err(|e| failed(&e))?;
    let mut y = TITLE_HEIGHT;
    for unit in units {
        let block: Vec<&Row> = rows.iter().filter(|row| row.unit == unit).collect();
        let most = block.iter().map(|row| row.max).fold(f64::MIN_POSITIVE, f64::max);
        let bar_width = f64::from(WIDTH - NAMES_WIDTH - NUMBERS_WIDTH);
        let x = |value: f64| NAMES_WIDTH + (value / most * bar_width) as i32;
        canvas
            .draw(&Text::new(unit.to_owned(), (NAMES_WIDTH, y + 8), text(15)))
            .map_err(|e| failed(&e))?;
        y += UNIT_HEIGHT;
        for row in block {
            let (top, middle) = (y + 3, y + ROW_HEIGHT / 2);
            let bottom = y + ROW_HEIGHT - 3;
            let bar = Rectangle::new([(NAMES_WIDTH, top), (x(row.value), bottom)], BAR.filled());
            let spread = [(x(row.min), middle), (x(row.max), middle)];
            canvas.draw(&bar).map_err(|e| failed(&e))?;
            canvas.draw(&PathElement::new(spread, BLACK)).map_err(|e| failed(&e))?;
            canvas
                .draw(&Text::new(row.name.clone(), (10, y + 4), text(13)))
                .map_err(|e| failed(&e))?;
            let number = format!("{:.3}", row.value);
            canvas
                .draw(&Text::new(number, (WIDTH - NUMBERS_WIDTH + 10, y + 4), text(13)))
                .map_err(|e| failed(&e))?;
            y += ROW_HEIGHT;
        }
    }
    canvas.present().map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::rounds::Spread;

    #[test]
    fn every_row_and_unit_is_in_the_picture() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plot.svg");
        let spread = Spread { median: 2.0, min: 1.0, max: 3.0 };
        let rows =
            [Row::of("first", "apples", spread, 1.0), Row::of("second", "pears", spread, 1.0)];
        bars(&path, "Fruit", &rows).unwrap();
        let picture = std::fs::read_to_string(&path).unwrap();
        for word in ["Fruit", "first", "second", "apples", "pears"] {
            assert!(picture.contains(word), "{word} is missing");
        }
    }
}
