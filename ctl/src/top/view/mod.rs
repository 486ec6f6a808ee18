//! Picture of the model: a pure function of model, rows, screen and size into a buffer of cells.
//!
//! ```text
//!   header                     version, uptime, counts, what is unusual
//!   cards                      three lines each, or one if folded or if there is little room
//!   sessions                   a table; narrow terminals have fewer columns
//!   message or prompt
//!   keys
//! ```

mod cards;
mod footer;
mod sessions;
mod style;

use gpushare_proto::follow::LockState;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget, Wrap};

use super::keys::HELP;
use super::model::Model;
use super::rows::Row;
use super::screen::{Access, Mode, Screen};
use crate::table::{count, harmless, short};

pub(super) use style::Theme;
use style::{Part, fit};

/// Least columns and lines of the picture.
pub(super) const LEAST: (u16, u16) = (40, 8);

/// Areas of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Areas {
    header: Rect,
    cards: Rect,
    table: Rect,
    message: Rect,
    keys: Rect,
    /// Lines of each card.
    card_lines: u16,
}

/// Returns the sentence for a terminal that is too small.
pub(super) fn too_small(width: u16, height: u16) -> String {
    let (columns, lines) = LEAST;
    format!(
        "top needs {columns} columns and {lines} lines, and this terminal has {width} and {height}; enlarge it, or \
         use `gpushare-ctl top --json`"
    )
}

/// Returns whether a terminal of this size has room for the picture.
pub(super) fn has_room(width: u16, height: u16) -> bool {
    width >= LEAST.0 && height >= LEAST.1
}

/// Returns the number of rows of sessions in the picture.
pub(super) fn table_rows(model: &Model, screen: &Screen, area: Rect) -> usize {
    usize::from(areas(model, screen, area).table.height.saturating_sub(1))
}

/// Returns the lines that show everything.
pub(super) fn height_for(model: &Model, screen: &Screen, rows: usize) -> u16 {
    let each = if screen.cards_folded { 1 } else { CARD };
    let lines = model.cards.len() * usize::from(each) + rows.max(1) + 4;
    u16::try_from(lines).unwrap_or(u16::MAX).max(LEAST.1)
}

/// Lines of a card that is not folded.
const CARD: u16 = 3;

fn areas(model: &Model, screen: &Screen, area: Rect) -> Areas {
    let number = u16::try_from(model.cards.len().max(1)).unwrap_or(u16::MAX);
    // The table has at least as many lines as the cards, unless there is but one.
    let half = (area.height / 2).max(1);
    let is_folded = screen.cards_folded || number.saturating_mul(CARD) > half;
    let card_lines = if is_folded { 1 } else { CARD };
    let cards = number.saturating_mul(card_lines).min(half);
    let line = |y: u16, height: u16| Rect { y: area.y + y, height, ..area };
    let table = area.height.saturating_sub(3 + cards);
    Areas {
        header: line(0, 1),
        cards: line(1, cards),
        table: line(1 + cards, table),
        message: line(area.height - 2, 1),
        keys: line(area.height - 1, 1),
        card_lines,
    }
}

/// Draws the picture.
pub(super) fn draw(
    model: &Model,
    rows: &[Row],
    screen: &Screen,
    theme: Theme,
    (area, buffer): (Rect, &mut Buffer),
) {
    if !has_room(area.width, area.height) {
        let sentence = Paragraph::new(too_small(area.width, area.height)).wrap(Wrap { trim: true });
        return sentence.render(area, buffer);
    }
    let areas = areas(model, screen, area);
    header(model, screen, theme, areas.header.width).render(areas.header, buffer);
    cards::draw(model, screen, theme, areas.card_lines, (areas.cards, buffer));
    match screen.mode {
        Mode::Help => help(theme).render(areas.table, buffer),
        _ => sessions::draw(model, rows, screen, theme, (areas.table, buffer)),
    }
    footer::message(screen, theme, areas.message.width).render(areas.message, buffer);
    footer::keys(screen, theme, areas.keys.width).render(areas.keys, buffer);
}

fn header(model: &Model, screen: &Screen, theme: Theme, width: u16) -> Line<'static> {
    let of = |lock: LockState| model.sessions.values().filter(|session| session.lock() == lock).count();
    let stuck = of(LockState::Stuck);
    let strangers = model.strangers().len();
    let mut parts = Vec::new();
    let mut part = |rank, span: Span<'static>| parts.push(Part::new(rank, vec![span]));
    if let Some(why) = &screen.lost {
        part(0, Span::styled(harmless(why), theme.alarm()));
    }
    if screen.is_paused {
        part(0, Span::styled("paused", theme.warning()));
    }
    match screen.access {
        Access::Full => {}
        Access::ReadOnly => part(1, Span::styled("read-only", theme.quiet())),
        Access::Own => part(1, Span::styled("own sessions", theme.quiet())),
    }
    if stuck > 0 {
        part(0, Span::styled(format!("{stuck} stuck"), theme.alarm()));
    }
    if model.daemon.recovering > 0 {
        part(1, Span::styled(format!("waits for {} processes", model.daemon.recovering), theme.warning()));
    }
    part(2, Span::raw(format!("up {}", short(model.at))));
    part(3, Span::raw(count(model.cards.len(), "card")));
    let sessions = count(model.sessions.len(), "session");
    part(2, Span::raw(format!("{sessions}, {} waiting", of(LockState::Waiting))));
    if strangers > 0 {
        part(4, Span::raw(format!("{strangers} of others")));
    }
    let version = harmless(&model.daemon.version);
    parts.insert(0, Part::new(5, vec![Span::styled(format!("gpushare {version}"), theme.title())]));
    fit(parts, width)
}

fn help(theme: Theme) -> Paragraph<'static> {
    let line = |(keys, meaning): &(&'static str, &'static str)| {
        Line::from(vec![Span::styled(format!("{keys:<16}"), theme.title()), Span::raw(*meaning)])
    };
    Paragraph::new(HELP.iter().map(line).collect::<Vec<Line<'_>>>())
}

#[cfg(test)]
pub(super) mod tests;
