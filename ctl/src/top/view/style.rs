//! Styles of the picture, and lines whose less important parts are left out where room is short.

use gpushare_proto::follow::LockState;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// Choice of styles: with colours, or with bold and dim letters only.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Theme {
    pub(in super::super) has_colours: bool,
}

impl Theme {
    fn colour(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn alarm(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn warning(self) -> Style {
        self.colour(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(super) fn column(self) -> Style {
        self.colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn figure(self) -> Style {
        self.colour(Color::Cyan)
    }

    /// Returns the style of a part in percent: calm, high, or at the limit.
    pub(super) fn part(self, percent: u64) -> Style {
        match percent {
            0..=69 => self.colour(Color::Green),
            70..=94 => self.colour(Color::Yellow),
            _ => self.colour(Color::Red),
        }
    }

    pub(super) fn lock(self, lock: LockState) -> Style {
        match lock {
            LockState::Idle | LockState::Frozen => self.quiet(),
            LockState::Waiting => self.colour(Color::Yellow),
            LockState::Moving | LockState::Holding => self.colour(Color::Green),
            LockState::Dropping => self.colour(Color::Magenta),
            LockState::Stuck => self.alarm(),
        }
    }
}

/// Part of a line, with its rank: the parts of the highest ranks are left out first.
#[derive(Clone, Debug)]
pub(super) struct Part {
    rank: u8,
    spans: Vec<Span<'static>>,
}

impl Part {
    pub(super) fn new(rank: u8, spans: Vec<Span<'static>>) -> Self {
        Self { rank, spans }
    }

    fn width(&self) -> usize {
        self.spans.iter().map(Span::width).sum()
    }
}

/// Columns between two parts of a line.
const GAP: usize = 2;

/// Returns a line of the parts that fit into a width.
pub(super) fn fit(mut parts: Vec<Part>, width: u16) -> Line<'static> {
    let needed =
        |parts: &[Part]| parts.iter().map(|part| part.width() + GAP).sum::<usize>().saturating_sub(GAP);
    while parts.len() > 1 && needed(&parts) > usize::from(width) {
        let last = parts.iter().enumerate().max_by_key(|(at, part)| (part.rank, *at));
        let Some((at, _)) = last else { break };
        parts.remove(at);
    }
    let mut line = Line::default();
    for part in parts {
        if !line.spans.is_empty() {
            line.push_span(Span::raw(" ".repeat(GAP)));
        }
        part.spans.into_iter().for_each(|span| line.push_span(span));
    }
    line
}

/// Returns a text of at most this many columns; a cut one ends with `…`.
pub(super) fn cut(text: &str, width: usize) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for letter in text.chars() {
        short.push(letter);
        if Span::raw(&short).width() + 1 > width {
            short.pop();
            break;
        }
    }
    short.push('…');
    short
}
