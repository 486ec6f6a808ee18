//! Figures for the documentation. The same numbers give the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use plotters::prelude::*;

use super::report::{Curves, Report};

const SIZE: (u32, u32) = (720, 400);
/// Told apart by those who see no red and green, too (Okabe and Ito).
const COLOURS: [RGBColor; 4] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];
/// The shortest time that has a place: an axis of powers of ten has no zero.
const SHORTEST: f64 = 1e-3;

/// Draws what there is to see of a trace into `folder`; the files.
pub(super) fn figures(report: &Report, curves: &[Curves], folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let waits = |curves: &Curves| curves.waits.clone();
    let delays = |curves: &Curves| curves.delays.clone();
    let all = [
        (
            "waits",
            shares(&format!("{}: waits at the gate", report.trace), curves, waits)?,
        ),
        (
            "delays",
            shares(&format!("{}: delays of bursts", report.trace), curves, delays)?,
        ),
        ("lost", Some(lost(report)?)),
    ];
    let mut files = Vec::new();
    for (what, figure) in all {
        if let Some(figure) = figure {
            let path = folder.join(format!("sim-{}-{what}.svg", report.trace));
            fs::write(&path, figure).with_context(|| format!("cannot write {}", path.display()))?;
            files.push(path);
        }
    }
    Ok(files)
}

/// Which share of all times is at most so long; none if there is none.
fn shares(
    caption: &str,
    curves: &[Curves],
    times: impl Fn(&Curves) -> Vec<f64>,
) -> anyhow::Result<Option<String>> {
    let curves: Vec<(&str, Vec<f64>)> = curves.iter().map(|curve| (curve.policy, times(curve))).collect();
    let longest = curves
        .iter()
        .filter_map(|(_, times)| times.last())
        .fold(0.0, |a: f64, b| a.max(*b));
    if longest <= SHORTEST {
        return Ok(None);
    }
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(caption, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d((SHORTEST..longest).log_scale(), 0.0..100.0)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc("seconds")
            .y_desc("% of all, at most so long")
            .x_label_formatter(&|seconds| format!("{seconds}"))
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        for ((policy, times), colour) in curves.iter().zip(COLOURS) {
            if times.is_empty() {
                continue;
            }
            let line = LineSeries::new(steps(times), colour.stroke_width(2));
            chart
                .draw_series(line)
                .map_err(failed)?
                .label(*policy)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()
            .map_err(failed)?;
        area.present().map_err(failed)?;
    }
    Ok(Some(svg))
}

/// At most 200 points of a curve.
fn steps(times: &[f64]) -> Vec<(f64, f64)> {
    let count = times.len().min(200);
    let point = |n: usize| {
        let rank = (times.len() * n).div_ceil(count).max(1);
        (
            times[rank - 1].max(SHORTEST),
            100.0 * rank as f64 / times.len() as f64,
        )
    };
    (0..=count).map(point).collect()
}

/// The time that each scheduler loses.
fn lost(report: &Report) -> anyhow::Result<String> {
    let most = report
        .rows
        .iter()
        .fold(1.0, |most: f64, row| most.max(row.lost_percent));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let count = report.rows.len();
        let mut chart = ChartBuilder::on(&area)
            .caption(
                format!("{}: the cards' time that is lost", report.trace),
                ("sans-serif", 18),
            )
            .margin(12)
            .x_label_area_size(30)
            .y_label_area_size(50)
            .build_cartesian_2d(0.0..count as f64, 0.0..(most * 1.1).min(100.0))
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc("% of the time in which anybody wanted them")
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        for ((nth, row), colour) in report.rows.iter().enumerate().zip(COLOURS) {
            let (left, right) = (nth as f64 + 0.2, nth as f64 + 0.8);
            let bar = Rectangle::new([(left, 0.0), (right, row.lost_percent)], colour.filled());
            let name = format!("{} ({}%)", row.policy, row.lost_percent);
            chart
                .draw_series([bar])
                .map_err(failed)?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()
            .map_err(failed)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}
