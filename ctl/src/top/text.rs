//! Picture as lines of text, for `--once`: without the keys, and without colours where none are wanted.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use super::model::Model;
use super::rows::Row;
use super::screen::Screen;
use super::view::{self, Theme};

/// Lines at the end of the picture that only a live one needs: the message and the keys.
const FOOTER: u16 = 2;

/// Returns the picture as text.
pub(super) fn page(
    model: &Model,
    rows: &[Row],
    screen: &Screen,
    theme: Theme,
    (width, height): (u16, u16),
) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    view::draw(model, rows, screen, theme, (area, &mut buffer));
    let lines: Vec<String> = (0..height - FOOTER)
        .map(|line| text_of(&buffer, line, theme.has_colours))
        .collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

/// Returns a line of the picture, without spaces at its end.
fn text_of(buffer: &Buffer, line: u16, has_colours: bool) -> String {
    let cells: Vec<&Cell> = (0..buffer.area.width).map(|column| &buffer[(column, line)]).collect();
    let end = cells.iter().rposition(|cell| cell.symbol() != " ").map_or(0, |last| last + 1);
    let mut text = String::new();
    let mut style = String::new();
    for cell in &cells[..end] {
        let codes = if has_colours { codes(cell) } else { String::new() };
        if codes != style {
            let _ = write!(text, "\x1b[0{codes}m");
            style = codes;
        }
        text.push_str(cell.symbol());
    }
    if !style.is_empty() {
        text.push_str("\x1b[0m");
    }
    text
}

/// Returns the codes of a cell's style, each with a `;` before it.
fn codes(cell: &Cell) -> String {
    let mut codes = String::new();
    for (modifier, code) in [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")] {
        if cell.modifier.contains(modifier) {
            codes.push_str(code);
        }
    }
    codes.push_str(match cell.fg {
        Color::Red => ";31",
        Color::Green => ";32",
        Color::Yellow => ";33",
        Color::Magenta => ";35",
        Color::Cyan => ";36",
        _ => "",
    });
    codes
}

#[cfg(test)]
mod tests {
    use super::super::{rows, sample};
    use super::*;

    fn shown(has_colours: bool) -> String {
        let model = sample::model();
        let rows = rows::rows(&model, &sample::names(), &rows::Selection::default());
        let screen = Screen::default();
        let size = (132, view::height_for(&model, &screen, rows.len()));
        page(&model, &rows, &screen, Theme { has_colours }, size)
    }

    #[test]
    fn colours_change_no_letter() {
        let plain = shown(false);
        assert!(!plain.contains('\x1b'));
        assert!(plain.contains("\x20s3") || plain.contains("s3"), "{plain}");
        let coloured = shown(true);
        let mut bare = String::new();
        for (at, piece) in coloured.split("\x1b[").enumerate() {
            bare.push_str(if at == 0 { piece } else { piece.split_once('m').unwrap().1 });
        }
        assert_eq!(bare, plain);
        assert!(coloured.contains("\x1b[0;32mholding"));
    }

    #[test]
    fn every_session_is_in_it_and_no_key() {
        let page = shown(false);
        for name in ["train", "notebook", "eval", "idle"] {
            assert!(page.contains(name), "{page}");
        }
        assert!(!page.contains("quit"));
        assert!(page.lines().all(|line| line.trim_end() == line));
    }
}
