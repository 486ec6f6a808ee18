//! Claims: chunks with certain bytes, as the daemon knows them by one connection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use gpushare_proto::Bytes;
use gpushare_proto::copies::CopyName;

use crate::process::lock;

/// Name and size of bytes.
pub(super) type Key = (CopyName, Bytes);

/// All claims of the process.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Number of the connection by which the daemon knows the claims. The next one knows none of them.
    connection: u64,
    chunks: BTreeMap<Key, u32>,
    /// Bytes that no chunk has any more, which the daemon is still to hear.
    ended: BTreeSet<Key>,
}

/// Claim of one chunk, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    all: Arc<Claims>,
    connection: u64,
    key: Key,
}

impl Claims {
    /// Adds a chunk with the bytes of a key, which the daemon is about to hear.
    pub(super) fn add(self: &Arc<Self>, key: Key) -> Claim {
        let mut inner = lock(&self.0);
        *inner.chunks.entry(key).or_default() += 1;
        inner.ended.remove(&key);
        Claim { all: self.clone(), connection: inner.connection, key }
    }

    /// Returns the number of chunks with the bytes of a key.
    pub(super) fn chunks(&self, key: Key) -> u32 {
        lock(&self.0).chunks.get(&key).copied().unwrap_or(0)
    }

    /// Returns whether there is no claim.
    pub(super) fn are_none(&self) -> bool {
        lock(&self.0).chunks.is_empty()
    }

    /// Returns bytes that no chunk has any more, of which the daemon is to hear.
    pub(super) fn next_ended(&self) -> Option<Key> {
        lock(&self.0).ended.first().copied()
    }

    /// Notes that the daemon has heard that no chunk has these bytes any more.
    pub(super) fn note_told(&self, key: Key) {
        lock(&self.0).ended.remove(&key);
    }

    /// Forgets all claims, since the connection has ended by which the daemon knew them.
    pub(super) fn forget(&self) {
        let mut inner = lock(&self.0);
        let connection = inner.connection + 1;
        *inner = Inner { connection, ..Inner::default() };
    }
}

impl Claim {
    /// Returns whether the daemon knows the claim by the present connection.
    pub(super) fn is_known(&self) -> bool {
        lock(&self.all.0).connection == self.connection
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut inner = lock(&self.all.0);
        if inner.connection != self.connection {
            return;
        }
        let Some(chunks) = inner.chunks.get_mut(&self.key) else { return };
        *chunks -= 1;
        if *chunks == 0 {
            inner.chunks.remove(&self.key);
            inner.ended.insert(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (CopyName([7; 16]), Bytes::mib(2));

    #[test]
    fn the_last_chunk_with_the_bytes_ends_what_the_daemon_knows() {
        let claims = Arc::new(Claims::default());
        let (first, second) = (claims.add(KEY), claims.add(KEY));
        assert_eq!(claims.chunks(KEY), 2);
        drop(first);
        assert_eq!((claims.chunks(KEY), claims.next_ended()), (1, None));
        drop(second);
        assert!(claims.next_ended().is_some() && claims.are_none());
        let again = claims.add(KEY);
        assert_eq!(claims.next_ended(), None, "the daemon has not heard of the end");
        drop(again);
        assert_eq!(claims.next_ended(), Some(KEY));
        claims.note_told(KEY);
        assert_eq!(claims.next_ended(), None);
    }

    #[test]
    fn a_claim_of_an_earlier_connection_ends_none_of_the_present_one() {
        let claims = Arc::new(Claims::default());
        let before = claims.add(KEY);
        claims.forget();
        assert!(claims.are_none());
        let now = claims.add(KEY);
        assert!(now.is_known() && !before.is_known());
        drop(before);
        assert_eq!((claims.chunks(KEY), claims.next_ended()), (1, None));
    }
}
