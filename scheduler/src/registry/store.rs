//! Reads and writes the rows of the registry file. A write changes only the rows that differ.
//!
//! ```text
//!   meta      format, boot, ended, next session, next client, users as JSON
//!   sessions  number ──▶ entry as JSON          clients  number ──▶ entry as JSON
//!   usage     hour, session ──▶ name, GPU time, waited, held, moved, peak
//!   owners    session ──▶ user, for sessions with usage; older daemons know no such table
//! ```
//!
//! Every commit is fsynced. A commit without fsync (`Durability::None`) is lost with the daemon, and the next
//! daemon would not wait for a client without an entry. `Durability::Eventual` is fsynced on Linux too. So
//! the engine collects changes that are not urgent.

use gpushare_proto::admin::{UsageView, UserUsageView};
use gpushare_proto::{Bytes, Nanos, SessionId};
use redb::{
    Database, ReadableTable as _, ReadableTableMetadata as _, Table, TableDefinition, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use tracing::{debug, info, warn};

use self::owners::{OWNERS, add_owners, read_owners};
use super::file::{Identity, Opened, StoreError, StoreFile, catch_panics};
use super::usage::{self, Figures, Hour, Hours, Spent, Usage};
use super::{Book, ClientEntry, SessionEntry};
use crate::state::At;

/// Version of the format of the registry file's rows.
const FORMAT: &str = "3";
/// Largest number of usage rows. With so many rows the registry file has about 20 MB.
const MOST_USAGE: u64 = 100_000;
/// Largest number of sessions in one answer about usage, which must fit one message.
const MOST_ANSWERED: usize = 10_000;

const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
const SESSIONS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("sessions");
const CLIENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("clients");
const USAGE: TableDefinition<'_, (u64, u64), Row<'static>> = TableDefinition::new("usage");

type Row<'a> = (&'a str, u64, u64, u64, u64, u64);

#[derive(Debug)]
pub(crate) struct Store {
    file: StoreFile,
    /// Place where older releases kept the registry file.
    before: Option<StoreFile>,
    /// Whether the registry names every client that may reconnect. This is so if the last daemon ended in
    /// order, or none ran on this boot.
    pub(crate) complete: bool,
    open: Option<Open>,
    /// Usage that is not in the registry file yet.
    pending: Usage,
    /// Hour of the last removal of old usage.
    pruned: Option<Hour>,
}

#[derive(Debug)]
struct Open {
    database: Opened,
    identity: Identity,
    stored: Book,
}

impl Store {
    /// Opens the registry file `at` an open folder. Also returns the contents that the last daemon left.
    ///
    /// Moves a file that exists only at the place `before`, where older releases kept it. Fails if a file may
    /// be intact and cannot be opened now: without the file, sessions would be forgotten.
    pub(crate) fn open(at: At, before: Option<At>) -> Result<(Self, Book), std::io::Error> {
        let file = |(folder, path)| StoreFile::new(folder, path);
        let mut store = Self {
            file: file(at),
            before: before.map(file),
            complete: true,
            open: None,
            pending: Usage::new(),
            pruned: None,
        };
        let there = store.file.identity().is_some();
        let left = match store.attach() {
            Ok(left) => left,
            Err(StoreError::System(cause)) if there => return Err(cause),
            Err(StoreError::Busy) if there => {
                return Err(std::io::Error::other(StoreError::Busy.to_string()));
            }
            // The first write reports the error, and takes over the old store if it can then.
            Err(error) => match store.before.as_ref().filter(|before| before.identity().is_some()) {
                Some(before) => {
                    let left = load(before).map_err(|_| std::io::Error::other(error.to_string()))?;
                    Some(left.stored)
                }
                None => None,
            },
        };
        if let (true, Some(before)) = (there, &store.before)
            && before.identity().is_some()
        {
            let aside = before.set_aside("old");
            warn!("an old registry at {} is not used; it is now {}", before.path.display(), aside.display());
        }
        let Some(book) = left else {
            return Ok((store, Book::new(1, 1)));
        };
        let same_boot = book.is_of_this_boot();
        store.complete &= book.ended || !same_boot;
        Ok((store, if same_boot { book } else { book.over_a_boot() }))
    }

    /// Opens or creates the registry file. Returns the contents of an existing file. Renames a damaged one.
    fn attach(&mut self) -> Result<Option<Book>, StoreError> {
        self.open = None;
        if let Some(open) = found(&self.file, &mut self.complete)? {
            let stored = open.stored.clone();
            // On a full disk the old file is used.
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
        // The copy is on the disk.
        before.remove();
        info!(
            "the registry {} was taken over; it is {} from now on",
            before.path.display(),
            self.file.path.display()
        );
        self.open = Some(open);
        Ok(Some(stored))
    }

    /// Creates a registry file with these contents, and with the usage of an `old` file.
    ///
    /// The layout on a file's first page has no checksum. A changed bit there may stay unnoticed during
    /// reads, and damage rows that are written later. So a daemon writes only to a file that it created
    /// itself. A new file also does not occupy the space to which the old one had grown.
    fn make(&self, stored: &Book, old: Option<&Database>) -> Result<Open, StoreError> {
        // Clients may join from now on.
        let stored = &Book { ended: false, ..stored.clone() };
        let (database, identity) = self.file.create(|database| {
            catch_panics(|| {
                let write = database.begin_write()?;
                write_book(&write, &Book::default(), stored)?;
                let (mut usage, mut owners) = (write.open_table(USAGE)?, write.open_table(OWNERS)?);
                if let Some(old) = old {
                    let old = old.begin_read()?;
                    for row in old.open_table(USAGE)?.iter()? {
                        let (key, row) = row?;
                        usage.insert(key.value(), row.value())?;
                    }
                    for (session, user) in read_owners(&old)? {
                        owners.insert(session, &*user)?;
                    }
                }
                drop((usage, owners));
                Ok(write.commit()?)
            })
        })?;
        Ok(Open { database, identity, stored: stored.clone() })
    }

    /// Writes `book` (sessions and clients), and adds `spent` to the usage. Returns once both are on the
    /// disk.
    pub(super) fn write(&mut self, book: &Book, spent: Usage) -> Result<(), String> {
        usage::add(&mut self.pending, spent);
        // If the file was removed or replaced, the next daemon would not find what is written to it.
        let named = self.file.identity();
        if self.open.as_ref().is_none_or(|open| Some(open.identity) != named) {
            self.attach().map_err(|error| error.to_string())?;
        }
        let Some(open) = &mut self.open else {
            return Err("it is not open".to_owned());
        };
        if open.stored == *book && self.pending.is_empty() {
            return Ok(());
        }
        let hour = Hour::now();
        let prune = self.pruned != Some(hour);
        let written = catch_panics(|| {
            let write = open.database.begin_write()?;
            write_book(&write, &open.stored, book)?;
            let mut usage = write.open_table(USAGE)?;
            add_usage(&mut usage, &self.pending, prune)?;
            add_owners(&mut write.open_table(OWNERS)?, &usage, &self.pending, prune)?;
            drop(usage);
            Ok(write.commit()?)
        });
        match written {
            Ok(()) => {
                debug!(
                    "the registry has {} sessions and {} clients",
                    book.sessions.len(),
                    book.clients.len()
                );
                open.stored.clone_from(book);
                // If a failed commit is on the disk after all, its second of usage counts twice.
                self.pending.clear();
                self.pruned = Some(hour);
                Ok(())
            }
            Err(error) => {
                // After a failure the library requires that the file is opened again.
                self.open = None;
                Err(error.to_string())
            }
        }
    }

    /// Returns each session's usage in some hours, by number. Marks all sessions as ended.
    pub(super) fn usage(&self, hours: Hours) -> Result<Vec<UserUsageView>, String> {
        let mut sums: BTreeMap<SessionId, (Hour, Spent)> = BTreeMap::new();
        let mut owners = BTreeMap::new();
        let mut count = |hour: Hour, session, name: &str, figures: Figures| {
            let (_, sum) = sums.entry(session).or_insert((hour, Spent::default()));
            sum.figures = sum.figures.plus(figures);
            name.clone_into(&mut sum.name);
        };
        if let Some(open) = &self.open {
            catch_panics(|| {
                let read = open.database.begin_read()?;
                owners = read_owners(&read)?;
                for row in read.open_table(USAGE)?.range((hours.first.0, 0)..)? {
                    let (key, row) = row?;
                    let ((hour, session), row) = (key.value(), row.value());
                    if !hours.contains(Hour(hour)) {
                        break;
                    }
                    count(Hour(hour), SessionId(session), row.0, figures(row));
                }
                Ok(())
            })
            .map_err(|error| error.to_string())?;
        }
        for (&(hour, session), spent) in self.pending.range((hours.first, SessionId(0))..) {
            if hours.contains(hour) {
                count(hour, session, &spent.name, spent.figures);
            }
            owners.extend(spent.user.clone().map(|user| (session.0, user)));
        }
        let too_many = sums.len().saturating_sub(MOST_ANSWERED);
        // As in the file, the sessions that used most stay.
        let weight = |(session, (_, spent)): (&SessionId, &(Hour, Spent))| (spent.figures.weight(), *session);
        let mut least: Vec<_> = sums.iter().map(weight).collect();
        least.sort_unstable();
        for (_, session) in &least[..too_many] {
            sums.remove(session);
        }
        let views = sums.into_iter().map(|(session, (hour, spent))| {
            let user = owners.remove(&session.0);
            view(session, hour, Spent { user, ..spent })
        });
        Ok(views.collect())
    }

    pub(super) fn path(&self) -> &std::path::Path {
        &self.file.path
    }

    /// Returns whether the registry file contains usage, which tools may ask for after the sessions' end.
    pub(super) fn has_usage(&self) -> bool {
        let has =
            |open: &Open| catch_panics(|| Ok(!open.database.begin_read()?.open_table(USAGE)?.is_empty()?));
        self.open.as_ref().is_some_and(|open| has(open).unwrap_or(true))
    }
}

pub(crate) fn view(session: SessionId, hour: Hour, spent: Spent) -> UserUsageView {
    let Figures { gpu_time, waited, held, moved, peak, .. } = spent.figures;
    let usage = UsageView {
        session,
        name: spent.name,
        alive: false,
        from_unix_s: hour.began(),
        gpu_time_ns: gpu_time,
        waited_ns: waited,
        held_ns: held,
        moved_bytes: moved,
        peak_bytes: peak,
    };
    UserUsageView { user: spent.user, usage }
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

/// Opens the registry file at a place, if there is one. Renames a damaged file and clears `complete`.
fn found(file: &StoreFile, complete: &mut bool) -> Result<Option<Open>, StoreError> {
    if file.identity().is_none() {
        return Ok(None);
    }
    match load(file) {
        Ok(open) => Ok(Some(open)),
        Err(StoreError::Corrupt(cause)) => {
            let aside = file.set_aside("corrupt");
            warn!(
                "the registry {} is damaged ({cause}); it is now {}, and the daemon starts without sessions",
                file.path.display(),
                aside.display()
            );
            *complete = false;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn load(file: &StoreFile) -> Result<Open, StoreError> {
    let (database, identity) = file.open()?;
    let stored = catch_panics(|| read(&database))?;
    if stored.is_impossible() {
        return Err(StoreError::corrupt(&"it has numbers that no daemon writes"));
    }
    Ok(Open { database, identity, stored })
}

fn read(database: &Database) -> Result<Book, StoreError> {
    let read = database.begin_read()?;
    let meta = read.open_table(META)?;
    let word = |name: &str| {
        let missing = || StoreError::corrupt(&format!("it has no {name}"));
        let found = meta.get(name)?.ok_or_else(missing)?;
        Ok::<_, StoreError>(found.value().to_owned())
    };
    let number = |name: &str| word(name)?.parse::<u64>().map_err(|cause| StoreError::corrupt(&cause));
    match word("format")? {
        format if format == FORMAT => {}
        other => return Err(StoreError::corrupt(&format!("it has format {other}"))),
    }
    let (sessions, clients) = (read.open_table(SESSIONS)?, read.open_table(CLIENTS)?);
    let usage = read.open_table(USAGE)?;
    // All rows are read once, so that damage is found now.
    for row in usage.iter()? {
        let (key, row) = row?;
        let _ = (key.value(), row.value());
    }
    read_owners(&read)?;
    Ok(Book {
        boot: word("boot")?,
        // A registry of an older release has no such row.
        ended: meta.get("ended")?.is_some_and(|ended| ended.value() == "yes"),
        next_session: number("next_session")?,
        next_client: number("next_client")?,
        sessions: rows(&sessions, |entry: &SessionEntry| entry.session.0)?,
        // A registry of an older release has no such row either.
        users: match meta.get("users")? {
            Some(users) => {
                serde_json::from_str(users.value()).map_err(|cause| StoreError::corrupt(&cause))?
            }
            None => Vec::new(),
        },
        clients: rows(&clients, |entry: &ClientEntry| entry.client.0)?,
    })
}

fn rows<T: DeserializeOwned>(
    table: &redb::ReadOnlyTable<u64, &'static [u8]>,
    number: impl Fn(&T) -> u64,
) -> Result<Vec<T>, StoreError> {
    table
        .iter()?
        .map(|row| {
            let (key, row) = row?;
            let entry: T =
                serde_json::from_slice(row.value()).map_err(|cause| StoreError::corrupt(&cause))?;
            match number(&entry) == key.value() {
                true => Ok(entry),
                false => Err(StoreError::corrupt(&"a row has another one's number")),
            }
        })
        .collect()
}

/// Writes the differences between two states of sessions and clients.
fn write_book(write: &WriteTransaction, before: &Book, book: &Book) -> Result<(), StoreError> {
    let mut meta = write.open_table(META)?;
    meta.insert("format", FORMAT)?;
    meta.insert("boot", &*book.boot)?;
    meta.insert("ended", if book.ended { "yes" } else { "no" })?;
    meta.insert("next_session", &*book.next_session.to_string())?;
    meta.insert("next_client", &*book.next_client.to_string())?;
    if before.users != book.users {
        let users = serde_json::to_string(&book.users).map_err(|cause| StoreError::System(cause.into()))?;
        meta.insert("users", &*users)?;
    }
    let number = |entry: &SessionEntry| entry.session.0;
    difference(&mut write.open_table(SESSIONS)?, &before.sessions, &book.sessions, number)?;
    let number = |entry: &ClientEntry| entry.client.0;
    difference(&mut write.open_table(CLIENTS)?, &before.clients, &book.clients, number)
}

/// Writes the rows that differ, and removes the rows that no longer exist.
fn difference<T: PartialEq + Serialize>(
    table: &mut Table<'_, u64, &'static [u8]>,
    before: &[T],
    now: &[T],
    number: impl Fn(&T) -> u64,
) -> Result<(), StoreError> {
    let mut gone: BTreeMap<u64, &T> = before.iter().map(|entry| (number(entry), entry)).collect();
    for entry in now {
        if gone.remove(&number(entry)) != Some(entry) {
            let row = serde_json::to_vec(entry).map_err(|cause| StoreError::System(cause.into()))?;
            table.insert(number(entry), &*row)?;
        }
    }
    for number in gone.into_keys() {
        table.remove(number)?;
    }
    Ok(())
}

/// Adds usage to the rows. With `prune`, removes the oldest hours of sessions that have too many.
fn add_usage(
    table: &mut Table<'_, (u64, u64), Row<'static>>,
    pending: &Usage,
    prune: bool,
) -> Result<(), StoreError> {
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

/// Removes all but the latest hours of each session. Ignores the present time, as clocks may jump.
fn forget_old_usage(table: &mut Table<'_, (u64, u64), Row<'static>>) -> Result<(), StoreError> {
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

/// Removes the rows with the least usage, the oldest first. So a user with many small sessions displaces only
/// their own rows.
fn forget_least_usage(table: &mut Table<'_, (u64, u64), Row<'static>>) -> Result<(), StoreError> {
    let mut rows = Vec::new();
    for row in table.iter()? {
        let (key, row) = row?;
        rows.push((figures(row.value()).weight(), key.value()));
    }
    // Removes more than necessary, because each call reads all rows.
    let most = usize::try_from(MOST_USAGE - MOST_USAGE / 16).unwrap_or(usize::MAX);
    rows.sort_unstable();
    for &(_, key) in &rows[..rows.len().saturating_sub(most)] {
        table.remove(key)?;
    }
    Ok(())
}

mod owners;
#[cfg(test)]
mod tests;
