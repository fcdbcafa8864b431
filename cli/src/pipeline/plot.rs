//! The plot of `pipeline explain`: an SVG with two blocks of bars.

use std::fmt::Write;

use super::explain::Report;

const WIDTH: f64 = 760.0;
const ROW: f64 = 26.0;
const NAMES: f64 = 150.0;
const NUMBERS: f64 = 190.0;
const BARS: f64 = WIDTH - NAMES - NUMBERS;
const BAR: &str = "#3c6eaa";
const SLOWEST: &str = "#c0392b";
const PREDICTED: &str = "#9bb7d4";

/// Returns the plot. The upper block has a bar for the rate of each stage per core. Its scale is
/// logarithmic, because the rates differ by powers of ten. The lower block has the traced,
/// predicted and measured speed on a linear scale from 0.
pub(super) fn svg(title: &str, report: &Report) -> String {
    let rates: Vec<f64> =
        report.stages.iter().filter_map(|stage| stage.rows_per_second_per_core).collect();
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min).max(1.0);
    let most = rates.iter().copied().fold(1.0, f64::max);
    // The axis spans whole powers of ten. It starts one power below the slowest rate, so that the
    // slowest stage has a visible bar.
    let low = if least.is_finite() { least.log10().floor() - 1.0 } else { 0.0 };
    let high = most.log10().ceil().max(low + 1.0);
    let x = |rate: f64| BARS * (rate.log10() - low) / (high - low);
    let mut picture = Picture::default();
    picture.text(10.0, 17, title);
    picture.y += 8.0;
    let stages = format!(
        "million rows/s that one core does, logarithmic; bound by: {}, with {} cores",
        report.bound, report.cores
    );
    picture.text(10.0, 12, &stages);
    for stage in &report.stages {
        let slowest = stage.stage == report.bottleneck;
        let color = if slowest { SLOWEST } else { BAR };
        let number = match stage.rows_per_second_per_core {
            Some(rate) => millions(rate),
            None => "takes no time".to_owned(),
        };
        let number = if slowest { format!("{number} <- slowest") } else { number };
        let width = stage.rows_per_second_per_core.map_or(0.0, x);
        picture.bar(stage.stage, width, color, &number);
    }
    picture.y += 12.0;
    picture.text(10.0, 12, "million rows/s of the whole pipeline, linear");
    let speeds = [
        ("traced", &report.traced, BAR),
        ("predicted", &report.predicted, PREDICTED),
        ("measured", &report.measured, BAR),
    ];
    let most = speeds.iter().map(|of| of.1.rows_per_second).fold(1e-9, f64::max);
    for (what, speed, color) in speeds {
        let number = format!("{}, {} threads", millions(speed.rows_per_second), speed.threads);
        picture.bar(what, BARS * speed.rows_per_second / most, color, &number);
    }
    picture.finish()
}

fn millions(rate: f64) -> String {
    format!("{:.3}", rate / 1e6)
}

#[derive(Default)]
struct Picture {
    shapes: String,
    y: f64,
}

impl Picture {
    /// Adds a line of text.
    fn text(&mut self, x: f64, size: u32, text: &str) {
        self.y += ROW;
        self.place(x, size, text);
    }

    fn place(&mut self, x: f64, size: u32, text: &str) {
        let (y, text) = (self.y, escaped(text));
        let shape = format!("<text x=\"{x:.0}\" y=\"{y:.0}\" font-size=\"{size}\">{text}</text>");
        self.shapes += &shape;
        self.shapes.push('\n');
    }

    /// Draws a bar with its name on the left and its number on the right.
    fn bar(&mut self, name: &str, width: f64, color: &str, number: &str) {
        self.y += ROW;
        self.place(10.0, 13, name);
        let (y, height) = (self.y - 14.0, ROW - 8.0);
        // Writing to a string does not fail.
        let _ = writeln!(
            self.shapes,
            "<rect x=\"{NAMES}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{height}\" fill=\"{color}\"/>",
            width.max(1.0)
        );
        self.place(NAMES + width.max(1.0) + 8.0, 13, number);
    }

    fn finish(self) -> String {
        let height = self.y + ROW;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.shapes
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
