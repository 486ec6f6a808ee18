//! Picture of cells as SVG. Each run of cells has its place and its length, so it looks the same in any font.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// Width and height of a cell, in pixels.
const CELL: (u32, u32) = (8, 17);
/// Space around the cells, in pixels.
const MARGIN: u32 = 12;
const PAPER: &str = "#1f2430";
const INK: &str = "#d8dee9";
/// Bars of a history, from one eighth of a cell to the whole.
const BARS: &str = "▁▂▃▄▅▆▇█";

/// Returns the picture.
pub(super) fn svg(cells: &Buffer) -> String {
    let (columns, lines) = (u32::from(cells.area.width), u32::from(cells.area.height));
    let (width, height) = (columns * CELL.0 + 2 * MARGIN, lines * CELL.1 + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{PAPER}\"/>\n"
    );
    for line in 0..cells.area.height {
        let mut column = 0;
        while column < cells.area.width {
            let first = &cells[(column, line)];
            let same = |&at: &u16| looks(&cells[(at, line)]) == looks(first);
            let end = (column..cells.area.width).take_while(same).last().unwrap_or(column) + 1;
            let text: String = (column..end).map(|at| cells[(at, line)].symbol()).collect();
            run(&mut svg, first, &text, (u32::from(column), u32::from(line), u32::from(end - column)));
            column = end;
        }
    }
    svg + "</svg>\n"
}

/// Returns what makes cells look alike: style, and whether the cell is a bar.
fn looks(cell: &Cell) -> (Color, Modifier, bool) {
    (cell.fg, cell.modifier, BARS.contains(cell.symbol()))
}

fn run(svg: &mut String, style: &Cell, text: &str, (column, line, length): (u32, u32, u32)) {
    let (x, y) = (MARGIN + column * CELL.0, MARGIN + line * CELL.1);
    let is_reversed = style.modifier.contains(Modifier::REVERSED);
    let ink = if is_reversed { PAPER } else { colour(style.fg) };
    let dim = if style.modifier.contains(Modifier::DIM) { " opacity=\"0.6\"" } else { "" };
    if is_reversed {
        let (width, height, paper) = (length * CELL.0, CELL.1, colour(style.fg));
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{paper}\"/>"
        );
    }
    if BARS.contains(style.symbol()) {
        for (at, bar) in (0..).zip(text.chars()) {
            let eighths = (1..)
                .zip(BARS.chars())
                .find(|&(_, known)| known == bar)
                .map_or(0, |(eighths, _)| eighths);
            let height = CELL.1 * eighths / 8;
            let (x, y) = (x + at * CELL.0, y + CELL.1 - height);
            let width = CELL.0;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{ink}\"/>"
            );
        }
    } else if !text.trim().is_empty() {
        let bold = if style.modifier.contains(Modifier::BOLD) {
            " font-weight=\"bold\""
        } else {
            ""
        };
        // Viewers disagree about the width of spaces at the ends.
        let before = u32::try_from(text.len() - text.trim_start().len()).unwrap_or(0);
        let text = text.trim();
        let width = u32::try_from(text.chars().count()).unwrap_or(0) * CELL.0;
        let (x, y) = (x + before * CELL.0, y + 13);
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" textLength=\"{width}\" xml:space=\"preserve\" fill=\"{ink}\"{bold}{dim}>{text}</text>"
        );
    }
}

fn colour(colour: Color) -> &'static str {
    match colour {
        Color::Red => "#ff6b6b",
        Color::Green => "#8fd16a",
        Color::Yellow => "#ffd166",
        Color::Magenta => "#c792ea",
        Color::Cyan => "#6fc3df",
        _ => INK,
    }
}
