//! Timeline of the card as an SVG: one panel without gpushare, one with it, on the same axis of time.
//!
//! A slot is as wide as one unit of the picture; how dark it is says for how much of it the program had
//! the GPU. Slots of the same shade are drawn as one rectangle.

use std::fmt::Write;
use std::time::Duration;

use crate::contention::measure::{Measured, NAMES};
use crate::contention::plan::Plan;
use crate::contention::timeline::Timeline;

const WIDTH: u32 = 900;
const LEFT: u32 = 50;
const LANE: u32 = 36;
const PANEL: u32 = 150;
const TOP: u32 = 60;
const COLORS: [&str; 2] = ["#2f6db3", "#d9822b"];
/// Shades from nothing to all of a slot.
const SHADES: u64 = 5;

/// The whole picture.
pub(crate) fn draw(plan: &Plan, without: &Measured, with: &Measured) -> String {
    let length = without.elapsed.max(with.elapsed);
    let height = TOP + 2 * PANEL;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" \
         font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        WIDTH + LEFT + 30,
    );
    let title = format!(
        "Who had the GPU: two programs of {} on {} with room for {}",
        plan.memory, plan.gpu, plan.room
    );
    text(&mut svg, 16, 28, "font-size=\"17\" font-weight=\"bold\"", &title);
    panel(&mut svg, TOP, "without gpushare", without, length);
    panel(&mut svg, TOP + PANEL, "with gpushare", with, length);
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, top: u32, name: &str, run: &Measured, length: Duration) {
    let faults = run.faults.map_or(String::new(), |faults| format!(", {faults} page faults"));
    let title = format!("{name}: {:.1} s{faults}", run.elapsed.as_secs_f64());
    text(svg, 16, top, "font-weight=\"bold\"", &title);
    for ((lane, name), color) in (0..).zip(NAMES).zip(COLORS) {
        let y = top + 12 + lane * LANE;
        text(svg, 24, y + 20, "", name);
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{}\" fill=\"#f2f2f2\"/>",
            LANE - 6
        );
        match &run.timeline {
            Some(timeline) => lane_of(svg, timeline, lane as usize, y, color, length),
            None => text(svg, LEFT + 12, y + 20, "fill=\"#777\"", "the driver's own time slices do not show"),
        }
    }
    axis(svg, top + 12 + 2 * LANE, length);
}

fn lane_of(svg: &mut String, timeline: &Timeline, who: usize, y: u32, color: &str, length: Duration) {
    let shares = timeline.shares(who, length / WIDTH, WIDTH);
    let shades: Vec<u64> = shares.iter().map(|share| (share * SHADES).div_ceil(100)).collect();
    let mut x = LEFT as usize;
    for run in shades.chunk_by(|a, b| a == b) {
        if run[0] > 0 {
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{color}\" opacity=\"0.{}\"/>",
                run.len(),
                LANE - 6,
                run[0] * 99 / SHADES
            );
        }
        x += run.len();
    }
}

/// A mark at every second, or every five where they would be crowded.
fn axis(svg: &mut String, y: u32, length: Duration) {
    let seconds = length.as_secs_f64();
    let every = if seconds > 20.0 { 5 } else { 1 };
    for second in (0..=length.as_secs()).step_by(every) {
        let x = LEFT + (second as f64 / seconds * f64::from(WIDTH)) as u32;
        let _ = writeln!(svg, "<line x1=\"{x}\" y1=\"{y}\" x2=\"{x}\" y2=\"{}\" stroke=\"#777\"/>", y + 5);
        text(svg, x, y + 20, "fill=\"#777\" font-size=\"12\" text-anchor=\"middle\"", &format!("{second} s"));
    }
}

fn text(svg: &mut String, x: u32, y: u32, style: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" {style}>{words}</text>");
}
