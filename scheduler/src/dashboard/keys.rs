//! Links and keys of the page: random secrets in memory, each for a limited time.
//!
//! ```text
//!   gpushare-ctl dashboard ─▶ issue ─▶ link, for two minutes ── exchange, once ─▶ key of a browser tab
//! ```
//!
//! The link stands in a terminal and in the fragment of an address, so it works once and soon ends. Only
//! hashes are kept, and all of them are compared, each in constant time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpushare_proto::{Nanos, Token};

use crate::identity::PeerProcess;
use crate::secret::TokenHash;

/// Duration for which a link can be exchanged for a key.
pub(super) const LINK_LIFETIME: Nanos = Nanos::from_secs(120);
/// Largest number of links and keys together. A further one replaces the one that ends first.
const MOST: usize = 64;

/// Role of the owner of a link or of a key, from the least rights to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// See figures without names. Nobody needs a key for it.
    Guest,
    /// See names too.
    Viewer,
    /// Change settings too.
    Admin,
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Viewer => "viewer",
            Self::Admin => "admin",
        }
    }
}

/// Rights of a link or of a key.
#[derive(Clone, Debug)]
pub(super) struct Rights {
    pub(super) role: Role,
    /// Process that asked for the link. Changes are made and logged in its name.
    pub(super) peer: PeerProcess,
    /// Point in time since boot at which the rights end.
    pub(super) ends: Nanos,
    /// Whether the rights were ended before their time. Open streams look at it.
    revoked: Arc<AtomicBool>,
}

impl Rights {
    pub(super) fn new(role: Role, peer: PeerProcess, ends: Nanos) -> Self {
        Self { role, peer, ends, revoked: Arc::default() }
    }

    /// Whether the rights have ended at a time since boot.
    pub(super) fn are_over(&self, now: Nanos) -> bool {
        self.ends <= now || self.revoked.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Secret {
    hash: TokenHash,
    is_link: bool,
    rights: Rights,
}

/// Valid links and keys.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<Secret>);

impl Keys {
    /// Makes a link for a process that may administrate.
    pub(super) fn issue(&mut self, role: Role, peer: PeerProcess, now: Nanos) -> io::Result<Token> {
        self.add(true, Rights::new(role, peer, now + LINK_LIFETIME), now)
    }

    /// Exchanges a link for a key with the same role; none if the link is wrong, used or over.
    pub(super) fn exchange(
        &mut self,
        link: &Token,
        lifetime: Nanos,
        now: Nanos,
    ) -> io::Result<Option<(Token, Rights)>> {
        let Some(at) = self.find(link, true, now) else { return Ok(None) };
        let Rights { role, peer, .. } = self.0.swap_remove(at).rights;
        let rights = Rights::new(role, peer, now + lifetime);
        let key = self.add(false, rights.clone(), now)?;
        Ok(Some((key, rights)))
    }

    /// Returns the rights of a key; none if it is wrong or over.
    pub(super) fn rights(&self, key: &Token, now: Nanos) -> Option<Rights> {
        self.find(key, false, now).map(|at| self.0[at].rights.clone())
    }

    /// Ends a key before its time.
    pub(super) fn revoke(&mut self, key: &Token, now: Nanos) {
        if let Some(at) = self.find(key, false, now) {
            self.end(at);
        }
    }

    fn end(&mut self, at: usize) {
        self.0.swap_remove(at).rights.revoked.store(true, Ordering::Relaxed);
    }

    fn add(&mut self, is_link: bool, rights: Rights, now: Nanos) -> io::Result<Token> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let token = Token(bytes);
        self.0.retain(|secret| secret.rights.ends > now);
        if self.0.len() >= MOST {
            let first = self.0.iter().enumerate().min_by_key(|(_, secret)| secret.rights.ends);
            first.map(|(at, _)| at).into_iter().for_each(|at| self.end(at));
        }
        self.0.push(Secret { hash: TokenHash::of(&token), is_link, rights });
        Ok(token)
    }

    /// Returns the place of a secret. Compares all of them, so the time says nothing about a match.
    fn find(&self, token: &Token, is_link: bool, now: Nanos) -> Option<usize> {
        let hash = TokenHash::of(token);
        let mut found = None;
        for (at, secret) in self.0.iter().enumerate() {
            let fits = secret.hash.matches(&hash) & (secret.is_link == is_link) & (secret.rights.ends > now);
            if fits {
                found = Some(at);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(1000);
    const HOUR: Nanos = Nanos::from_secs(3600);

    fn own() -> PeerProcess {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        PeerProcess::of(&ours).unwrap()
    }

    #[test]
    fn a_link_is_exchanged_once_for_a_key_of_the_same_role() {
        let mut keys = Keys::default();
        let link = keys.issue(Role::Viewer, own(), NOW).unwrap();
        assert!(keys.rights(&link, NOW).is_none(), "a link is no key");
        let (key, rights) = keys.exchange(&link, HOUR, NOW).unwrap().unwrap();
        assert_eq!((rights.role, rights.ends), (Role::Viewer, NOW + HOUR));
        assert!(keys.exchange(&link, HOUR, NOW).unwrap().is_none(), "used");
        assert!(keys.exchange(&key, HOUR, NOW).unwrap().is_none(), "a key is no link");
        assert_eq!(keys.rights(&key, NOW).unwrap().role, Role::Viewer);
        assert!(keys.rights(&Token([0; 32]), NOW).is_none());
        keys.revoke(&key, NOW);
        assert!(keys.rights(&key, NOW).is_none());
    }

    #[test]
    fn links_and_keys_end() {
        let mut keys = Keys::default();
        let late = keys.issue(Role::Admin, own(), NOW).unwrap();
        assert!(keys.exchange(&late, HOUR, NOW + LINK_LIFETIME).unwrap().is_none());
        let link = keys.issue(Role::Admin, own(), NOW).unwrap();
        let (key, _) = keys.exchange(&link, HOUR, NOW).unwrap().unwrap();
        assert!(keys.rights(&key, NOW + HOUR - Nanos(1)).is_some());
        assert!(keys.rights(&key, NOW + HOUR).is_none());
    }

    #[test]
    fn the_one_that_ends_first_makes_room() {
        let mut keys = Keys::default();
        let link = keys.issue(Role::Admin, own(), NOW).unwrap();
        let (key, _) = keys.exchange(&link, HOUR, NOW).unwrap().unwrap();
        let links: Vec<Token> = (0..MOST as u64)
            .map(|n| keys.issue(Role::Viewer, own(), NOW + Nanos(n)).unwrap())
            .collect();
        assert_eq!(keys.0.len(), MOST);
        assert!(keys.rights(&key, NOW).is_some());
        assert!(keys.exchange(&links[0], HOUR, NOW).unwrap().is_none());
        assert!(keys.exchange(&links[1], HOUR, NOW).unwrap().is_some());
    }
}
