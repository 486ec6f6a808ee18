//! Table of the users of sessions with usage. It outlives the sessions' own entries.

use std::collections::{BTreeMap, BTreeSet};

use redb::{ReadTransaction, ReadableTable as _, Table, TableDefinition, TableError};

use super::Row;
use crate::registry::file::StoreError;
use crate::registry::usage::Usage;

pub(super) const OWNERS: TableDefinition<'_, u64, &str> = TableDefinition::new("owners");

/// Returns the users of sessions with usage, by session number. A registry of an older release has none.
pub(super) fn read_owners(read: &ReadTransaction) -> Result<BTreeMap<u64, String>, StoreError> {
    let table = match read.open_table(OWNERS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
        table => table?,
    };
    let mut owners = BTreeMap::new();
    for row in table.iter()? {
        let (session, user) = row?;
        owners.insert(session.value(), user.value().to_owned());
    }
    Ok(owners)
}

/// Adds the users of sessions with usage to come. With `prune`, removes those of sessions without usage.
pub(super) fn add_owners(
    owners: &mut Table<'_, u64, &'static str>,
    usage: &Table<'_, (u64, u64), Row<'static>>,
    pending: &Usage,
    prune: bool,
) -> Result<(), StoreError> {
    for (&(_, session), spent) in pending {
        let Some(user) = spent.user.as_deref() else { continue };
        if owners.get(session.0)?.is_none_or(|known| known.value() != user) {
            owners.insert(session.0, user)?;
        }
    }
    if prune {
        let mut used = BTreeSet::new();
        for row in usage.iter()? {
            used.insert(row?.0.value().1);
        }
        owners.retain(|session, _| used.contains(&session))?;
    }
    Ok(())
}
