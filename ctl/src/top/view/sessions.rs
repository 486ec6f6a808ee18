//! Table of the sessions. Columns that do not fit are left out, the least important first.

use gpushare_proto::{Bytes, Nanos};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::super::model::Model;
use super::super::rows::{Row, RowKey, Sort};
use super::super::screen::Screen;
use super::Theme;
use super::style::cut;
use crate::table::short;

/// Column of the table.
struct Column {
    title: &'static str,
    /// Order that this column shows.
    sort: Option<Sort>,
    /// The columns of the highest ranks are left out first.
    rank: u8,
    /// Largest width.
    most: usize,
    is_number: bool,
    cell: fn(&Row) -> String,
}

/// Title of the column that is shown only where some session has remapped memory.
const ON_CARD: &str = "ON CARD";
/// Mark of memory that moves.
pub(super) const MOVING: &str = "⇅";

const COLUMNS: [Column; 13] = [
    Column {
        title: "ID",
        sort: Some(Sort::Number),
        rank: 3,
        most: 8,
        is_number: false,
        cell: number,
    },
    Column {
        title: "NAME",
        sort: Some(Sort::Name),
        rank: 0,
        most: 20,
        is_number: false,
        cell: |row| named(&row.name),
    },
    Column {
        title: "USER",
        sort: Some(Sort::User),
        rank: 5,
        most: 16,
        is_number: false,
        cell: |row| named(&row.user),
    },
    Column {
        title: "STATE",
        sort: Some(Sort::State),
        rank: 0,
        most: 12,
        is_number: false,
        cell: |row| row.state.clone(),
    },
    Column {
        title: "MEMORY",
        sort: Some(Sort::Memory),
        rank: 1,
        most: 9,
        is_number: true,
        cell: |row| shown(row.memory),
    },
    Column {
        title: ON_CARD,
        sort: None,
        rank: 4,
        most: 10,
        is_number: true,
        cell: |row| shown(row.resident.map(on_card)),
    },
    Column {
        title: "QUOTA",
        sort: None,
        rank: 4,
        most: 9,
        is_number: true,
        cell: |row| shown(row.limit),
    },
    Column {
        title: "TIME",
        sort: Some(Sort::Time),
        rank: 2,
        most: 6,
        is_number: true,
        cell: time,
    },
    Column {
        title: "P50",
        sort: None,
        rank: 7,
        most: 7,
        is_number: true,
        cell: |row| wait(row.p50),
    },
    Column {
        title: "P99",
        sort: Some(Sort::Wait),
        rank: 6,
        most: 7,
        is_number: true,
        cell: |row| wait(row.p99),
    },
    Column {
        title: "QUANTUM",
        sort: None,
        rank: 9,
        most: 7,
        is_number: true,
        cell: |row| wait(row.quantum),
    },
    Column { title: "WEIGHT", sort: None, rank: 10, most: 6, is_number: true, cell: weight },
    Column {
        title: "COMMAND",
        sort: None,
        rank: 8,
        most: usize::MAX,
        is_number: false,
        cell: |row| named(&row.command),
    },
];

/// Returns the titles of all columns.
#[cfg(test)]
pub(super) fn titles() -> impl Iterator<Item = &'static str> {
    COLUMNS.iter().map(|column| column.title)
}

/// Columns between two columns.
const GAP: usize = 2;

fn number(row: &Row) -> String {
    match &row.key {
        RowKey::Session(id) => id.to_string(),
        RowKey::User(_) => "▾".to_owned(),
    }
}

fn named(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

fn shown<T: std::fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Returns the remapped bytes on the card, with a mark while some move.
fn on_card((resident, moving): (Bytes, Bytes)) -> String {
    format!("{}{resident}", if moving.is_zero() { "" } else { MOVING })
}

fn wait(time: Option<Nanos>) -> String {
    shown(time.map(short))
}

fn time(row: &Row) -> String {
    shown(row.share.map(|share| format!("{}%", share.div_ceil(100))))
}

/// Returns the weight, with `+` for a high priority and `-` for a low one.
fn weight(row: &Row) -> String {
    use gpushare_proto::session::Priority;
    let class = match row.priority {
        Some(Priority::High) => "+",
        Some(Priority::Low) => "-",
        Some(Priority::Normal) | None => "",
    };
    shown(row.weight.map(|weight| format!("{weight}{class}")))
}

pub(super) fn draw(
    model: &Model,
    rows: &[Row],
    screen: &Screen,
    theme: Theme,
    (area, buffer): (Rect, &mut Buffer),
) {
    if rows.is_empty() {
        let text = match (model.sessions.is_empty(), screen.selection.filter.is_empty()) {
            (false, false) => {
                format!("no session with `{}`; Esc removes the filter", screen.selection.filter)
            }
            _ => "no sessions; start one with `gpushare-ctl run -- CMD`".to_owned(),
        };
        return Line::styled(cut(&text, usize::from(area.width)), theme.quiet()).render(area, buffer);
    }
    let columns = chosen(rows, usize::from(area.width));
    heading(&columns, screen, theme).render(Rect { height: 1, ..area }, buffer);
    let room = usize::from(area.height.saturating_sub(1));
    let cursor = screen.position(rows);
    for (at, row) in rows.iter().enumerate().skip(screen.top).take(room) {
        let y = area.y + 1 + u16::try_from(at - screen.top).unwrap_or(0);
        let line = Rect { y, height: 1, ..area };
        of(&columns, row, theme).render(line, buffer);
        if cursor == Some(at) {
            buffer.set_style(line, theme.selected());
        }
    }
}

/// Returns the columns that fit, with their widths.
fn chosen(rows: &[Row], width: usize) -> Vec<(&'static Column, usize)> {
    let widest = |column: &Column| {
        let cells = rows.iter().map(|row| Span::raw((column.cell)(row)).width());
        // The title of a column may have a mark for the order behind it.
        cells.max().unwrap_or(0).max(column.title.len() + 1).min(column.most)
    };
    let is_remapped = rows.iter().any(|row| row.resident.is_some());
    let used = COLUMNS.iter().filter(|column| is_remapped || column.title != ON_CARD);
    let mut columns: Vec<(&Column, usize)> = used.map(|column| (column, widest(column))).collect();
    let needed = |columns: &[(&Column, usize)]| {
        let widths = columns
            .iter()
            .map(|&(column, width)| if column.most == usize::MAX { column.title.len() + 8 } else { width });
        widths.map(|width| width + GAP).sum::<usize>() - GAP
    };
    while columns.len() > 1 && needed(&columns) > width {
        let last = columns.iter().enumerate().max_by_key(|(_, (column, _))| column.rank);
        let Some((at, _)) = last else { break };
        columns.remove(at);
    }
    let fixed: usize = columns
        .iter()
        .filter(|(column, _)| column.most != usize::MAX)
        .map(|(_, width)| width + GAP)
        .sum();
    for (column, own) in &mut columns {
        if column.most == usize::MAX {
            *own = (*own).min(width.saturating_sub(fixed));
        }
    }
    columns
}

fn heading(columns: &[(&Column, usize)], screen: &Screen, theme: Theme) -> Line<'static> {
    let mark = if screen.selection.is_reversed { '▴' } else { '▾' };
    let title = |column: &Column| match column.sort == Some(screen.selection.sort) {
        true => format!("{}{mark}", column.title),
        false => column.title.to_owned(),
    };
    let cells = columns
        .iter()
        .map(|(column, width)| (aligned(&title(column), *width, column.is_number), theme.column()));
    joined(cells)
}

fn of(columns: &[(&Column, usize)], row: &Row, theme: Theme) -> Line<'static> {
    let cells = columns.iter().map(|(column, width)| {
        let style = match column.title {
            "STATE" => theme.lock(row.lock),
            _ => Style::new(),
        };
        (aligned(&(column.cell)(row), *width, column.is_number), style)
    });
    joined(cells)
}

fn joined(cells: impl Iterator<Item = (String, Style)>) -> Line<'static> {
    let mut line = Line::default();
    for (text, style) in cells {
        if !line.spans.is_empty() {
            line.push_span(Span::raw(" ".repeat(GAP)));
        }
        line.push_span(Span::styled(text, style));
    }
    line
}

fn aligned(text: &str, width: usize, is_number: bool) -> String {
    let text = cut(text, width);
    let rest = " ".repeat(width.saturating_sub(Span::raw(text.as_str()).width()));
    if is_number { rest + &text } else { text + &rest }
}
