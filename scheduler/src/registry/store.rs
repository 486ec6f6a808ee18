//! The rows of the store, and the difference that is written of a book.
//!
//! ```text
//!   meta      format, boot, ended, next session, next client
//!   sessions  number ──▶ entry as JSON          clients  number ──▶ entry as JSON
//!   usage     hour, session ──▶ name, GPU time, waited, held, moved, peak
//! ```
//!
//! Every commit is fsynced. The library could do without (`Durability::None`), but such a commit is lost with
//! the process, and a client that the next daemon does not know of is one that it does not wait for; and what
//! it calls `Eventual` is fsynced on Linux all the same. The shell gathers what is in no hurry instead.

use gpushare_proto::admin::UsageView;
use gpushare_proto::{Bytes, Nanos, SessionId};
use redb::{
    Database, ReadableTable as _, ReadableTableMetadata as _, Table, TableDefinition, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use tracing::{debug, info, warn};

use super::file::{Identity, Opened, Place, Trouble, careful};
use super::usage::{self, Figures, Hour, Spent, Usage};
use super::{Book, ClientEntry, SessionEntry};
use crate::state::At;

/// The form of the rows.
const FORMAT: &str = "3";
/// Rows of usage, whatever their age: with this many the file has some twenty megabytes.
const MOST_USAGE: u64 = 100_000;
/// Sessions that one answer names, the newest: more is no message.
const MOST_ANSWERED: usize = 10_000;

const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
const SESSIONS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("sessions");
const CLIENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("clients");
const USAGE: TableDefinition<'_, (u64, u64), Row<'static>> = TableDefinition::new("usage");

type Row<'a> = (&'a str, u64, u64, u64, u64, u64);

/// The store of one folder.
#[derive(Debug)]
pub(crate) struct Store {
    place: Place,
    /// Where a daemon without a state folder kept it.
    before: Option<Place>,
    /// Whether nobody may come back whom the book does not know.
    complete: bool,
    open: Option<Open>,
    /// Usage that is not in it yet.
    pending: Usage,
    /// When old usage was last taken out.
    pruned: Option<Hour>,
}

/// A file that was opened, and what is in it.
#[derive(Debug)]
struct Open {
    database: Opened,
    identity: Identity,
    stored: Book,
}

impl Store {
    /// Opens the store in a folder that is held open: should another daemon's be at its path by now, its
    /// registry stays as it is. With it comes what the last daemon left; an empty book if there is none. What
    /// is only where it was kept `before` is taken over.
    ///
    /// # Errors
    /// If there is one that may be fine and cannot be opened now: to go on without it would forget sessions.
    pub(crate) fn open(at: At, before: Option<At>) -> Result<(Self, Book), std::io::Error> {
        let place = |(folder, path)| Place::new(folder, path);
        let mut store = Self {
            place: place(at),
            before: before.map(place),
            complete: true,
            open: None,
            pending: Usage::new(),
            pruned: None,
        };
        let there = store.place.identity().is_some();
        let left = match store.attach() {
            Ok(left) => left,
            Err(Trouble::System(cause)) if there => return Err(cause),
            // The first write says it, and takes over what cannot be taken over now.
            Err(trouble) => match store.before.as_ref().filter(|before| before.identity().is_some()) {
                Some(before) => {
                    let left = load(before).map_err(|_| std::io::Error::other(trouble.to_string()))?;
                    Some(left.stored)
                }
                None => None,
            },
        };
        if let (true, Some(before)) = (there, &store.before)
            && before.identity().is_some()
        {
            let aside = before.set_aside("old");
            warn!(
                "there is a registry at {} too, of a daemon that kept it there; it is now {}, and what is in it stays there",
                before.path.display(),
                aside.display()
            );
        }
        let Some(book) = left else {
            return Ok((store, Book::new(1, 1)));
        };
        let same_boot = book.is_of_this_boot();
        store.complete &= book.ended || !same_boot;
        Ok((store, if same_boot { book } else { book.over_a_boot() }))
    }

    /// Whether the last daemon had time for its last word, or there was none on this boot: else somebody may
    /// come back whom the book does not know.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Opens the file that is there by now, or makes one; what was in it, if there was one. One that does not
    /// read is set aside.
    fn attach(&mut self) -> Result<Option<Book>, Trouble> {
        self.open = None;
        if let Some(open) = found(&self.place, &mut self.complete)? {
            let stored = open.stored.clone();
            // On a full disk the old file must do.
            let copy = self.make(&stored, Some(&open.database));
            self.open = Some(copy.unwrap_or(open));
            return Ok(Some(stored));
        }
        let before = match &self.before {
            Some(before) => found(before, &mut self.complete)?.map(|open| (before, open)),
            None => None,
        };
        let Some((before, old)) = before else {
            self.open = Some(self.make(&Book::new(1, 1), None)?);
            return Ok(None);
        };
        let stored = old.stored.clone();
        let open = self.make(&stored, Some(&old.database))?;
        drop(old);
        // It is on the disk elsewhere by now.
        before.remove();
        info!(
            "the registry {} was taken over; it is {} from now on",
            before.path.display(),
            self.place.path.display()
        );
        self.open = Some(open);
        Ok(Some(stored))
    }

    /// Makes a file with this book, and with the usage that is in another one.
    ///
    /// What is on a file's first page about its own layout has no checksum: a bit of it may go unnoticed on
    /// reading and spoil what is written later. So a file is written by the process that made it and only
    /// read by the next, which makes its own; that also gives back what the old one had grown to.
    fn make(&self, stored: &Book, old: Option<&Database>) -> Result<Open, Trouble> {
        // From now on somebody may join.
        let stored = &Book { ended: false, ..stored.clone() };
        let (database, identity) = self.place.create(|database| {
            careful(|| {
                let write = database.begin_write()?;
                write_book(&write, &Book::default(), stored)?;
                let mut usage = write.open_table(USAGE)?;
                if let Some(old) = old {
                    for row in old.begin_read()?.open_table(USAGE)?.iter()? {
                        let (key, row) = row?;
                        usage.insert(key.value(), row.value())?;
                    }
                }
                drop(usage);
                Ok::<_, Trouble>(write.commit()?)
            })
        })?;
        Ok(Open { database, identity, stored: stored.clone() })
    }

    /// Brings the file to what `book` says, and adds `spent`. When it returns, that is on the disk.
    pub(super) fn write(&mut self, book: &Book, spent: Usage) -> Result<(), String> {
        usage::add(&mut self.pending, spent);
        // Somebody may have taken the file away: what is written into it then, nobody finds again.
        let named = self.place.identity();
        if self.open.as_ref().is_none_or(|open| Some(open.identity) != named) {
            self.attach().map_err(|trouble| trouble.to_string())?;
        }
        let Some(open) = &mut self.open else {
            return Err("it is not open".to_owned());
        };
        if open.stored == *book && self.pending.is_empty() {
            return Ok(());
        }
        let hour = Hour::now();
        let prune = self.pruned != Some(hour);
        let written = careful(|| {
            let write = open.database.begin_write()?;
            write_book(&write, &open.stored, book)?;
            add_usage(&mut write.open_table(USAGE)?, &self.pending, prune)?;
            Ok::<_, Trouble>(write.commit()?)
        });
        match written {
            Ok(()) => {
                debug!(
                    "the registry has {} sessions and {} clients",
                    book.sessions.len(),
                    book.clients.len()
                );
                open.stored.clone_from(book);
                // A commit that failed and is there all the same counts its second twice, which is the worst
                // of it.
                self.pending.clear();
                self.pruned = Some(hour);
                Ok(())
            }
            Err(trouble) => {
                // After a failure the library wants the file opened anew.
                self.open = None;
                Err(trouble.to_string())
            }
        }
    }

    /// What each session used since the beginning of an hour, by number; all of them count as ended.
    pub(super) fn usage(&self, since: Hour) -> Result<Vec<UsageView>, String> {
        let mut sums: BTreeMap<SessionId, (Hour, Spent)> = BTreeMap::new();
        let mut count = |hour: Hour, session, name: &str, figures: Figures| {
            let (_, sum) = sums.entry(session).or_insert((hour, Spent::default()));
            sum.figures = sum.figures.plus(figures);
            name.clone_into(&mut sum.name);
        };
        if let Some(open) = &self.open {
            careful(|| {
                let read = open.database.begin_read()?;
                for row in read.open_table(USAGE)?.range((since.0, 0)..)? {
                    let (key, row) = row?;
                    let ((hour, session), row) = (key.value(), row.value());
                    count(Hour(hour), SessionId(session), row.0, figures(row));
                }
                Ok::<_, Trouble>(())
            })
            .map_err(|trouble| trouble.to_string())?;
        }
        for (&(hour, session), spent) in self.pending.range((since, SessionId(0))..) {
            count(hour, session, &spent.name, spent.figures);
        }
        let too_many = sums.len().saturating_sub(MOST_ANSWERED);
        // As in the file: those stay that used most.
        let weight = |(session, (_, spent)): (&SessionId, &(Hour, Spent))| {
            let Figures { gpu_time, waited, .. } = spent.figures;
            (gpu_time.0.saturating_add(waited.0), *session)
        };
        let mut least: Vec<_> = sums.iter().map(weight).collect();
        least.sort_unstable();
        for (_, session) in &least[..too_many] {
            sums.remove(session);
        }
        Ok(sums
            .into_iter()
            .map(|(session, (hour, spent))| view(session, hour, spent))
            .collect())
    }

    /// Where it was opened, for people.
    pub(super) fn path(&self) -> &std::path::Path {
        &self.place.path
    }

    /// Whether somebody may ask for what is in it when all sessions are over.
    pub(super) fn has_usage(&self) -> bool {
        let has = |open: &Open| {
            careful(|| Ok::<_, Trouble>(!open.database.begin_read()?.open_table(USAGE)?.is_empty()?))
        };
        self.open.as_ref().is_some_and(|open| has(open).unwrap_or(true))
    }
}

pub(crate) fn view(session: SessionId, hour: Hour, spent: Spent) -> UsageView {
    let Figures { gpu_time, waited, held, moved, peak, .. } = spent.figures;
    UsageView {
        session,
        name: spent.name,
        alive: false,
        from_unix_s: hour.began(),
        gpu_time_ns: gpu_time,
        waited_ns: waited,
        held_ns: held,
        moved_bytes: moved,
        peak_bytes: peak,
    }
}

fn figures((_, gpu_time, waited, held, moved, peak): Row<'_>) -> Figures {
    Figures {
        gpu_time: Nanos(gpu_time),
        waited: Nanos(waited),
        held: Nanos(held),
        moved: Bytes(moved),
        peak: Bytes(peak),
        refusals: 0,
    }
}

/// What is at a place, if it reads. What does not may have known of somebody.
fn found(place: &Place, complete: &mut bool) -> Result<Option<Open>, Trouble> {
    if place.identity().is_none() {
        return Ok(None);
    }
    match load(place) {
        Ok(open) => Ok(Some(open)),
        Err(Trouble::Corrupt(cause)) => {
            let aside = place.set_aside("corrupt");
            warn!(
                "the registry {} does not read ({cause}); it is now {}, and sessions start anew",
                place.path.display(),
                aside.display()
            );
            *complete = false;
            Ok(None)
        }
        Err(trouble) => Err(trouble),
    }
}

fn load(place: &Place) -> Result<Open, Trouble> {
    let (database, identity) = place.open()?;
    let stored = careful(|| read(&database))?;
    if stored.is_impossible() {
        return Err(Trouble::corrupt(&"its numbers are none that a daemon writes"));
    }
    Ok(Open { database, identity, stored })
}

fn read(database: &Database) -> Result<Book, Trouble> {
    let read = database.begin_read()?;
    let meta = read.open_table(META)?;
    let word = |name: &str| {
        let found = meta.get(name)?.ok_or_else(|| Trouble::corrupt(&format!("it has no {name}")))?;
        Ok::<_, Trouble>(found.value().to_owned())
    };
    let number = |name: &str| word(name)?.parse::<u64>().map_err(|cause| Trouble::corrupt(&cause));
    match word("format")? {
        format if format == FORMAT => {}
        other => return Err(Trouble::corrupt(&format!("it has format {other}"))),
    }
    let (sessions, clients) = (read.open_table(SESSIONS)?, read.open_table(CLIENTS)?);
    let usage = read.open_table(USAGE)?;
    // Rows that are of use later only are read once too: what is damaged must be found now.
    for row in usage.iter()? {
        let (key, row) = row?;
        let _ = (key.value(), row.value());
    }
    Ok(Book {
        boot: word("boot")?,
        // One of before there was this word has none.
        ended: meta.get("ended")?.is_some_and(|ended| ended.value() == "yes"),
        next_session: number("next_session")?,
        next_client: number("next_client")?,
        sessions: rows(&sessions, |entry: &SessionEntry| entry.session.0)?,
        clients: rows(&clients, |entry: &ClientEntry| entry.client.0)?,
    })
}

fn rows<T: DeserializeOwned>(
    table: &redb::ReadOnlyTable<u64, &'static [u8]>,
    number: impl Fn(&T) -> u64,
) -> Result<Vec<T>, Trouble> {
    table
        .iter()?
        .map(|row| {
            let (key, row) = row?;
            let entry: T = serde_json::from_slice(row.value()).map_err(|cause| Trouble::corrupt(&cause))?;
            match number(&entry) == key.value() {
                true => Ok(entry),
                false => Err(Trouble::corrupt(&"a row has another one's number")),
            }
        })
        .collect()
}

/// Writes what differs of a book.
fn write_book(write: &WriteTransaction, before: &Book, book: &Book) -> Result<(), Trouble> {
    let mut meta = write.open_table(META)?;
    meta.insert("format", FORMAT)?;
    meta.insert("boot", &*book.boot)?;
    meta.insert("ended", if book.ended { "yes" } else { "no" })?;
    meta.insert("next_session", &*book.next_session.to_string())?;
    meta.insert("next_client", &*book.next_client.to_string())?;
    let number = |entry: &SessionEntry| entry.session.0;
    difference(&mut write.open_table(SESSIONS)?, &before.sessions, &book.sessions, number)?;
    let number = |entry: &ClientEntry| entry.client.0;
    difference(&mut write.open_table(CLIENTS)?, &before.clients, &book.clients, number)
}

/// Writes the rows that differ and takes out those that are no more.
fn difference<T: PartialEq + Serialize>(
    table: &mut Table<'_, u64, &'static [u8]>,
    before: &[T],
    now: &[T],
    number: impl Fn(&T) -> u64,
) -> Result<(), Trouble> {
    let mut gone: BTreeMap<u64, &T> = before.iter().map(|entry| (number(entry), entry)).collect();
    for entry in now {
        if gone.remove(&number(entry)) != Some(entry) {
            let row = serde_json::to_vec(entry).map_err(|cause| Trouble::System(cause.into()))?;
            table.insert(number(entry), &*row)?;
        }
    }
    for number in gone.into_keys() {
        table.remove(number)?;
    }
    Ok(())
}

/// Adds to the rows that are there; `prune` takes out what is too much of one session.
fn add_usage(
    table: &mut Table<'_, (u64, u64), Row<'static>>,
    pending: &Usage,
    prune: bool,
) -> Result<(), Trouble> {
    for (&(hour, session), spent) in pending {
        let key = (hour.0, session.0);
        let before = table.get(key)?.map(|row| figures(row.value())).unwrap_or_default();
        let Figures { gpu_time, waited, held, moved, peak, .. } = before.plus(spent.figures);
        table.insert(key, (&*spent.name, gpu_time.0, waited.0, held.0, moved.0, peak.0))?;
    }
    if prune {
        forget_old_usage(table)?;
    }
    if table.len()? > MOST_USAGE {
        forget_least_usage(table)?;
    }
    Ok(())
}

/// Of each session the latest hours stay. What time it is does not count: a clock that jumps makes nothing
/// old.
fn forget_old_usage(table: &mut Table<'_, (u64, u64), Row<'static>>) -> Result<(), Trouble> {
    let mut kept: BTreeMap<u64, usize> = BTreeMap::new();
    let mut old = Vec::new();
    for row in table.iter()?.rev() {
        let key = row?.0.value();
        let kept = kept.entry(key.1).or_default();
        *kept += 1;
        if *kept > usage::KEPT {
            old.push(key);
        }
    }
    for key in old {
        table.remove(key)?;
    }
    Ok(())
}

/// Those rows go first that say least, the oldest of them before: so whoever makes many sessions that do
/// little pushes out its own.
fn forget_least_usage(table: &mut Table<'_, (u64, u64), Row<'static>>) -> Result<(), Trouble> {
    let mut rows = Vec::new();
    for row in table.iter()? {
        let (key, row) = row?;
        let used = figures(row.value());
        rows.push((used.gpu_time.0.saturating_add(used.waited.0), key.value()));
    }
    // Some more than must be, since each time is a look at all of them.
    let most = usize::try_from(MOST_USAGE - MOST_USAGE / 16).unwrap_or(usize::MAX);
    rows.sort_unstable();
    for &(_, key) in &rows[..rows.len().saturating_sub(most)] {
        table.remove(key)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
