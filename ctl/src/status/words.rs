//! Handoffs of remapped memory as rows of a table and in one line, and shared host copies in one line.

use gpushare_proto::admin::{CopiesView, ResidenceView};
use gpushare_proto::handoff::{CardHandoffs, Direction, Handoff};
use gpushare_proto::{Bytes, GpuId};

use crate::table::{Column, list, short, whole_percent};

/// Handoff of a card, with the words for the time of its end.
pub(super) struct Row {
    handoff: Handoff,
    ended: String,
}

/// Columns of the table of handoffs.
pub(super) const COLUMNS: [Column<Row>; 7] = [
    ("HANDOFF OF", |row| row.handoff.gpu.to_string()),
    ("ENDED", |row| row.ended.clone()),
    ("TOOK", |row| short(row.handoff.took_ns)),
    ("OUT", |row| moved(&row.handoff.out)),
    ("IN", |row| moved(&row.handoff.into)),
    ("BOTH WAYS", |row| whole_percent(row.handoff.overlap)),
    ("SESSIONS", |row| {
        let Handoff { out, into, .. } = &row.handoff;
        list(out.sessions.iter().chain(&into.sessions).map(|of| of.session))
    }),
];

/// Returns the running and the last handoff of a card.
pub(super) fn rows(of: &CardHandoffs) -> Vec<Row> {
    let running = of
        .running
        .iter()
        .map(|handoff| Row { handoff: handoff.clone(), ended: "is running".to_owned() });
    let last = of
        .last
        .iter()
        .map(|last| Row { handoff: last.handoff.clone(), ended: format!("{} ago", short(last.ago_ns)) });
    running.chain(last).collect()
}

/// Returns how much has moved in one direction, of how much, and at which rate.
fn moved(way: &Direction) -> String {
    let Direction { bytes, rest_bytes, bytes_per_second, .. } = *way;
    let of = if rest_bytes.is_zero() {
        String::new()
    } else {
        format!(" of {}", bytes + rest_bytes)
    };
    match bytes.is_zero() {
        true => format!("{bytes}{of}"),
        false => format!("{bytes}{of} at {bytes_per_second}/s"),
    }
}

/// Returns where the remapped memory of a card is, and how its last handoff went; none without such memory.
pub(super) fn line(gpu: GpuId, residences: &[ResidenceView], handoffs: &[CardHandoffs]) -> Option<String> {
    let here = || residences.iter().filter(|place| place.gpu == gpu);
    here().next()?;
    let sum = |of: fn(&ResidenceView) -> Bytes| here().map(of).sum::<Bytes>();
    let mut line = format!(
        "remapped memory: {} on the card, {} in host memory",
        sum(|place| place.resident_bytes),
        sum(|place| place.hosted_bytes)
    );
    let mapped = sum(|place| place.mapped_bytes);
    if !mapped.is_zero() {
        line += &format!(", {mapped} of it mapped from the host");
    }
    let moving = sum(|place| place.moving_bytes);
    if !moving.is_zero() {
        line += &format!(", {moving} moving");
    }
    let of_card = handoffs.iter().find(|card| card.gpu == gpu);
    let shown = of_card.and_then(|card| {
        let ended = card.last.as_ref().map(|last| (&last.handoff, "last handoff"));
        card.running.as_ref().map(|running| (running, "handoff so far")).or(ended)
    });
    if let Some((handoff, which)) = shown {
        line += &format!("; {which}: {}", course(handoff));
    }
    Some(line)
}

/// Returns how a handoff went: bytes and rate of each direction, duration, and overlap of the directions.
pub(crate) fn course(handoff: &Handoff) -> String {
    let Handoff { out, into, took_ns, overlap, .. } = handoff;
    format!(
        "{} out, {} in, {}, {} of it both ways at once",
        moved(out),
        moved(into),
        short(*took_ns),
        whole_percent(*overlap)
    )
}

/// Returns a line with the number of host copies that processes share; none without copies.
pub(super) fn copies(view: &CopiesView) -> Option<String> {
    let CopiesView { copies, bytes, users } = *view;
    let of = if users == 1 { "user" } else { "users" };
    (copies > 0)
        .then(|| format!("host copies that processes share: {copies}, {bytes} in all, of {users} {of}\n"))
}
