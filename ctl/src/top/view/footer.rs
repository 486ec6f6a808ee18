//! Last two lines: a message, prompt or question, and the keys.

use ratatui::text::{Line, Span};

use super::super::screen::{Access, Mode, Screen};
use super::Theme;
use super::style::{Part, cut, fit};

/// Returns the line with the prompt, the question, or the last message.
pub(super) fn message(screen: &Screen, theme: Theme, width: u16) -> Line<'static> {
    let width = usize::from(width);
    let message = screen.message.as_deref().map(crate::table::harmless);
    match &screen.mode {
        Mode::Prompt(prompt) => {
            let text = match message {
                // The text that is wrong stays in sight.
                Some(message) => format!("{message} ▸ {}█", prompt.text),
                None => format!("{}{}█", prompt.wanted.words(), prompt.text),
            };
            // The end is what is typed.
            let surplus = text.chars().count().saturating_sub(width);
            Line::styled(text.chars().skip(surplus).collect::<String>(), theme.title())
        }
        Mode::Question(order) => {
            let question = format!("set {} from {} to {}? y or n", order.what, order.from, order.to);
            Line::styled(cut(&question, width), theme.warning())
        }
        Mode::Table | Mode::Help => match (message, screen.selection.filter.as_str()) {
            (Some(message), _) => Line::raw(cut(&message, width)),
            (None, "") => Line::default(),
            (None, filter) => {
                Line::styled(cut(&format!("filter: {filter} (Esc removes it)"), width), theme.quiet())
            }
        },
    }
}

/// Key, what it does, and its rank: where the line is too narrow, the highest ranks are left out first.
type Key = (&'static str, &'static str, u8);

/// Keys that change the view.
const VIEW: [Key; 7] = [
    ("q", "quit", 0),
    ("?", "keys", 0),
    ("/", "filter", 1),
    ("s", "sort", 2),
    ("f", "fold cards", 6),
    ("u", "by user", 5),
    ("space", "pause", 7),
];
/// Keys that change sessions.
const CHANGES: [Key; 3] = [("w", "weight", 3), ("p", "priority", 4), ("t", "quantum", 3)];

/// Returns the line with the keys.
pub(super) fn keys(screen: &Screen, theme: Theme, width: u16) -> Line<'static> {
    let (always, more): (&[Key], &[Key]) = match screen.mode {
        Mode::Prompt(_) => (&[("Enter", "take it", 0), ("Esc", "leave", 0)], &[]),
        Mode::Question(_) => (&[("y", "yes", 0), ("n", "no", 0)], &[]),
        Mode::Help => (&[("Esc", "back", 0)], &[]),
        Mode::Table if screen.access == Access::Full => (&VIEW, &CHANGES),
        Mode::Table => (&VIEW, &[]),
    };
    let part = |&(key, meaning, rank): &Key| {
        Part::new(
            rank,
            vec![Span::styled(key, theme.title()), Span::styled(format!(" {meaning}"), theme.quiet())],
        )
    };
    let mut parts: Vec<Part> = always.iter().chain(more).map(part).collect();
    if screen.mode == Mode::Table {
        let order = screen.selection.sort.word();
        parts.push(Part::new(8, vec![Span::styled(format!("sorted by {order}"), theme.quiet())]));
    }
    fit(parts, width)
}
