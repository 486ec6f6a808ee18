//! Lines of the cards.

use std::collections::VecDeque;

use gpushare_proto::follow::{CardFigures, CardHandoff, CardResidence, LockState};
use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Sparkline, Widget};

use super::super::model::{Card, HISTORY, Model};
use super::super::screen::Screen;
use super::Theme;
use super::sessions::MOVING;
use super::style::{Part, cut, fit};
use crate::table::{count, harmless, list, short, whole_percent};

/// Longest name of a card, in columns.
const NAME: usize = 24;
/// Largest number of waiting sessions that are named.
const NAMED: usize = 4;
/// Columns before the lines of a card.
const INDENT: u16 = 2;

pub(super) fn draw(
    model: &Model,
    screen: &Screen,
    theme: Theme,
    lines: u16,
    (area, buffer): (Rect, &mut Buffer),
) {
    if model.cards.is_empty() {
        let text = "no cards yet; without NVML a card appears with its first process";
        return Line::styled(cut(text, usize::from(area.width)), theme.quiet()).render(area, buffer);
    }
    let room = usize::from(area.height / lines.max(1));
    let selected = screen.selected_card(model);
    let place = model.cards.keys().position(|gpu| Some(*gpu) == selected).unwrap_or(0);
    let first = (place + 1).saturating_sub(room);
    for (at, (gpu, card)) in model.cards.iter().skip(first).take(room).enumerate() {
        let y = area.y + u16::try_from(at).unwrap_or(0) * lines;
        let line = |offset: u16| Rect { y: y + offset, height: 1, ..area };
        let mark = match model.cards.len() {
            1 => "",
            _ if Some(*gpu) == selected => "▸",
            _ => " ",
        };
        let mut first = memory(*gpu, card, mark, theme);
        if let (1, Some(figures)) = (lines, &card.figures) {
            first.push(holder(model, card, figures, 1, theme));
        }
        fit(first, area.width).render(line(0), buffer);
        if lines > 1 {
            let indented = |offset| Rect { x: area.x + INDENT, width: area.width - INDENT, ..line(offset) };
            turns(model, card, theme, area.width - INDENT).render(indented(1), buffer);
            histories(card, theme, (indented(2), buffer));
        }
    }
}

/// Returns the first line: what the card is, its load and its memory.
fn memory(gpu: GpuId, card: &Card, mark: &str, theme: Theme) -> Vec<Part> {
    let name = cut(&harmless(&card.facts.name), NAME);
    let mut parts = vec![
        Part::new(0, vec![Span::styled(format!("{mark}{gpu}"), theme.title())]),
        Part::new(5, vec![Span::raw(name)]),
    ];
    let sensors = card.sensors;
    let busy = sensors.and_then(|sensors| sensors.busy_percent);
    let load = match busy {
        Some(percent) => Span::styled(format!("{percent:>3}%"), theme.part(percent.into())),
        None => Span::raw("   -"),
    };
    parts.push(Part::new(1, vec![Span::styled("util ", theme.quiet()), load]));
    if let Some(figures) = &card.figures {
        let CardFigures { allocated_bytes: allocated, capacity_bytes: capacity, .. } = *figures;
        let percent = u128::from(allocated.0) * 100 / u128::from(capacity.0.max(1));
        let style = theme.part(u64::try_from(percent).unwrap_or(u64::MAX));
        parts.push(Part::new(
            0,
            vec![
                Span::styled("mem ", theme.quiet()),
                Span::styled(allocated.to_string(), style),
                Span::raw(format!(" of {capacity}")),
            ],
        ));
        parts.push(Part::new(
            2,
            vec![Span::styled("free ", theme.quiet()), Span::raw((capacity - allocated).to_string())],
        ));
    }
    let used: Option<Bytes> = sensors.and_then(|sensors| sensors.used_bytes);
    if let Some(used) = used {
        parts.push(Part::new(6, vec![Span::styled("used ", theme.quiet()), Span::raw(used.to_string())]));
    }
    if let Some(celsius) = sensors.and_then(|sensors| sensors.celsius) {
        parts.push(Part::new(3, vec![Span::raw(format!("{celsius}°C"))]));
    }
    if let Some(milliwatts) = sensors.and_then(|sensors| sensors.milliwatts) {
        parts.push(Part::new(4, vec![Span::raw(format!("{}W", milliwatts / 1000))]));
    }
    parts
}

/// Returns the second line: who holds the card, for how long, and who waits.
fn turns(model: &Model, card: &Card, theme: Theme, width: u16) -> Line<'static> {
    let Some(figures) = &card.figures else { return Line::default() };
    let part = |rank, label: &'static str, value: String| {
        Part::new(rank, vec![Span::styled(label, theme.quiet()), Span::raw(value)])
    };
    let mut parts = vec![Part::new(0, vec![Span::styled(figures.mode.name(), theme.figure())])];
    parts.push(holder(model, card, figures, 1, theme));
    if figures.waiting > 0 {
        parts.push(part(2, "queue ", queue(model, figures)));
    }
    parts.extend(residence(card, theme));
    parts.extend(card.handoff.as_ref().map(|handoff| moves(handoff, theme)));
    parts.push(part(3, "quantum ", short(figures.quantum_ns)));
    parts.push(part(4, "handoffs ", figures.handoffs.to_string()));
    fit(parts, width)
}

/// Returns where the remapped memory of the card is, and how much of it moves.
fn residence(card: &Card, theme: Theme) -> Vec<Part> {
    let Some(CardResidence { resident_bytes, hosted_bytes, moving_bytes, .. }) = card.residence else {
        return Vec::new();
    };
    let label = |text: &'static str| Span::styled(text, theme.quiet());
    let mut parts = vec![Part::new(
        3,
        vec![
            label("on card "),
            Span::raw(resident_bytes.to_string()),
            label(" host "),
            Span::raw(hosted_bytes.to_string()),
        ],
    )];
    if !moving_bytes.is_zero() {
        let style = theme.lock(LockState::Moving);
        parts.push(Part::new(2, vec![Span::styled(format!("{MOVING} {moving_bytes}"), style)]));
    }
    parts
}

/// Returns the rates of the running or the last handoff, and the part of it in which memory moved both ways.
fn moves(handoff: &CardHandoff, theme: Theme) -> Part {
    let CardHandoff { running, out_bytes_per_second, in_bytes_per_second, overlap, .. } = *handoff;
    let label = |text: &'static str| Span::styled(text, theme.quiet());
    let mut words = vec![label(if running { "now" } else { "last" })];
    for (way, rate) in [(" out ", out_bytes_per_second), (" in ", in_bytes_per_second)] {
        if !rate.is_zero() {
            words.extend([label(way), Span::raw(format!("{rate}/s"))]);
        }
    }
    words.extend([label(" both ways "), Span::raw(whole_percent(overlap))]);
    Part::new(5, words)
}

fn holder(model: &Model, card: &Card, figures: &CardFigures, rank: u8, theme: Theme) -> Part {
    let who = holders(model, figures, card.left(model.at));
    Part::new(rank, vec![Span::styled("holder ", theme.quiet()), Span::raw(who)])
}

fn holders(model: &Model, figures: &CardFigures, left: Option<Nanos>) -> String {
    let named = |id: &SessionId| cut(&harmless(&model.name(*id)), NAME);
    let who = match (&figures.holders[..], figures.holding) {
        ([], _) => "none".to_owned(),
        ([only], 1) => named(only),
        (_, number) => count(number as usize, "session"),
    };
    match left {
        Some(left) if left.is_zero() => format!("{who}, turn over"),
        Some(left) => format!("{who}, {} left", short(left)),
        None => who,
    }
}

fn queue(model: &Model, figures: &CardFigures) -> String {
    let first = figures.queue.iter().take(NAMED);
    let names = list(first.map(|id| cut(&harmless(&model.name(*id)), NAME)));
    let more = if figures.waiting as usize > NAMED { ", …" } else { "" };
    format!("{}: {names}{more}", figures.waiting)
}

/// Draws the third line: utilization and allocated memory over the last two minutes.
fn histories(card: &Card, theme: Theme, (area, buffer): (Rect, &mut Buffer)) {
    let half = area.width / 2;
    let left = Rect { width: half, ..area };
    let right = Rect { x: area.x + half, width: area.width - half, ..area };
    history("util ", &card.busy, theme, (left, buffer));
    history("mem ", &card.allocated, theme, (right, buffer));
}

fn history(
    label: &'static str,
    values: &VecDeque<Option<u8>>,
    theme: Theme,
    (area, buffer): (Rect, &mut Buffer),
) {
    let width = u16::try_from(label.len()).unwrap_or(0);
    Line::styled(label, theme.quiet()).render(area, buffer);
    // A column stays free between the two histories.
    let room = usize::from(area.width.saturating_sub(width + 1)).min(HISTORY);
    let values = values.iter().skip(values.len().saturating_sub(room));
    let values: Vec<Option<u64>> = values.map(|value| value.map(u64::from)).collect();
    let line = Sparkline::default()
        .data(values)
        .max(100)
        .style(theme.figure())
        .absent_value_symbol("·")
        .absent_value_style(theme.quiet());
    let shown = Rect { x: area.x + width, width: u16::try_from(room).unwrap_or(0), ..area };
    line.render(shown, buffer);
}
