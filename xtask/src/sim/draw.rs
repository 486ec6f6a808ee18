//! Figures for the documentation. The same numbers give the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{Curves, Report, Row};

const SIZE: (u32, u32) = (720, 400);
/// Told apart by those who see no red and green, too (Okabe and Ito).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];
/// The shortest time that has a place: an axis of powers of ten has no zero.
const SHORTEST: f64 = 1e-3;

/// Draws what there is to see of a trace into `folder`; the files.
pub(super) fn figures(report: &Report, curves: &[Curves], folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let waits = |curves: &Curves| curves.waits.clone();
    let delays = |curves: &Curves| curves.delays.clone();
    let all = [
        ("waits", shares(&format!("{}: waits at the gate", report.trace), curves, waits)?),
        ("delays", shares(&format!("{}: delays of bursts", report.trace), curves, delays)?),
        ("bars", Some(bars(report)?)),
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
        (times[rank - 1].max(SHORTEST), 100.0 * rank as f64 / times.len() as f64)
    };
    (0..=count).map(point).collect()
}

/// Panel with one number for each scheduler: its title, and the number of a row.
type Panel = (&'static str, fn(&Row) -> Option<f64>);

const PANELS: [Panel; 4] = [
    ("makespan, s", |row| row.makespan_s),
    ("Jain's index", |row| Some(row.jain)),
    ("greatest lag, s", |row| Some(row.greatest_lag_s)),
    ("time lost, %", |row| Some(row.lost_percent)),
];

/// Makespan, fairness and loss of all schedulers, side by side. One that was not done has no makespan, and
/// no bar.
fn bars(report: &Report) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let area = area.titled(&report.trace, ("sans-serif", 18)).map_err(failed)?;
        let (names, panels) = area.split_vertically(28);
        legend(&names, report)?;
        for (area, (what, figure)) in panels.split_evenly((2, 2)).iter().zip(PANELS) {
            panel(area, what, &report.rows.iter().map(figure).collect::<Vec<_>>())?;
        }
        names.present().map_err(failed)?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn legend(area: &Area<'_>, report: &Report) -> anyhow::Result<()> {
    for ((x, row), colour) in (60..).step_by(150).zip(&report.rows).zip(COLOURS) {
        let square = Rectangle::new([(x, 8), (x + 12, 20)], colour.filled());
        area.draw(&square).map_err(failed)?;
        let name = Text::new(row.policy, (x + 18, 8), ("sans-serif", 13));
        area.draw(&name).map_err(failed)?;
    }
    Ok(())
}

fn panel(area: &Area<'_>, what: &str, values: &[Option<f64>]) -> anyhow::Result<()> {
    let most = values.iter().flatten().fold(1e-3, |most: f64, value| most.max(*value));
    let mut chart = ChartBuilder::on(area)
        .caption(what, ("sans-serif", 14))
        .margin(8)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..values.len() as f64, 0.0..most * 1.15)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_labels(5)
        .light_line_style(WHITE)
        .draw()
        .map_err(failed)?;
    for ((nth, value), colour) in values.iter().enumerate().zip(COLOURS) {
        let Some(value) = *value else { continue };
        let (left, right) = (nth as f64 + 0.2, nth as f64 + 0.8);
        let bar = Rectangle::new([(left, 0.0), (right, value)], colour.filled());
        let number = Text::new(format!("{value}"), (left, value + most * 0.1), ("sans-serif", 12));
        chart.draw_series([bar]).map_err(failed)?;
        chart.draw_series([number]).map_err(failed)?;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}
