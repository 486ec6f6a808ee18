//! Tables and short forms of values for people.
//!
//! Names and reasons come from other users' processes, so control characters and invisible ones are replaced.

use gpushare_proto::text::is_printable;
use gpushare_proto::{Nanos, Percent};

/// Column of a table: the heading, and a function from an item to the text of the cell.
pub(crate) type Column<T> = (&'static str, fn(&T) -> String);

/// Returns a table with one line per item. Columns are as wide as their widest cells; an empty cell is `-`.
pub(crate) fn table<T>(items: &[T], columns: &[Column<T>]) -> String {
    let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { harmless(&cell) };
    let mut lines = vec![String::new(); items.len() + 1];
    for (name, cell) in columns {
        let rows = items.iter().map(|item| shown(cell(item)));
        let cells: Vec<String> = std::iter::once((*name).to_owned()).chain(rows).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        for (line, cell) in lines.iter_mut().zip(cells) {
            *line += &format!("{cell:width$}  ");
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Returns `text` with `?` for each character that is invisible or controls the terminal.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { '?' }).collect()
}

pub(crate) fn list<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}

/// Returns a number and a noun, in singular or plural: `1 card`, `2 cards`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Formats a share in whole percent, rounded to the nearest.
pub(crate) fn whole_percent(share: Percent) -> String {
    format!("{}%", (share.0 + 50) / 100)
}

/// Formats a duration with about three digits: `850us`, `12.3ms`, `4.2s`, `3m20s`, `2h05m`, `4d03h`.
pub(crate) fn short(time: Nanos) -> String {
    let (us, seconds) = (time.0 / 1_000, time.0 / 1_000_000_000);
    match us {
        0 if time.is_zero() => "0s".to_owned(),
        0 => format!("{}ns", time.0),
        1..1_000 => format!("{us}us"),
        1_000..1_000_000 => tenths(us / 100, "ms"),
        1_000_000..60_000_000 => tenths(us / 100_000, "s"),
        _ if seconds < 3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ if seconds < 86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

fn tenths(tenths: u64, unit: &str) -> String {
    match tenths % 10 {
        0 => format!("{}{unit}", tenths / 10),
        rest => format!("{}.{rest}{unit}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let columns: [Column<&str>; 3] =
            [("A", |item| item.to_string()), ("LONGER", |_| String::new()), ("C", |_| "x".to_owned())];
        assert_eq!(table(&["first"], &columns), "A      LONGER  C\nfirst  -       x\n");
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        let name: Column<&str> = ("NAME", |item| item.to_string());
        assert_eq!(table(&["\u{1b}[2Jgone\n"], &[name]), "NAME\n?[2Jgone?\n");
    }

    #[test]
    fn times_are_short() {
        for (nanos, text) in [
            (0, "0s"),
            (900, "900ns"),
            (850_000, "850us"),
            (12_345_678, "12.3ms"),
            (3_000_000_000, "3s"),
            (59_990_000_000, "59.9s"),
            (200_000_000_000, "3m20s"),
            (7_500_000_000_000, "2h05m"),
            (356_400_000_000_000, "4d03h"),
        ] {
            assert_eq!(short(Nanos(nanos)), text);
        }
    }
}
