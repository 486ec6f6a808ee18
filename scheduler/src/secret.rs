//! Hash of a token. The daemon keeps only hashes, so its registry and its memory contain no tokens.

use gpushare_proto::Token;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// SHA-256 of a token. No salt is needed, because tokens are 256 random bits and cannot be guessed.
#[derive(Clone, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TokenHash([u8; 32]);

impl TokenHash {
    pub(crate) fn of(token: &Token) -> Self {
        Self(Sha256::digest(token.0).into())
    }

    /// Returns whether both values are hashes of one token. Takes the same time in each case.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenHash")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_matches_its_token_and_hides_it() {
        let hash = TokenHash::of(&Token([7; 32]));
        assert!(hash.matches(&TokenHash::of(&Token([7; 32]))));
        assert!(!hash.matches(&TokenHash::of(&Token([8; 32]))));
        assert_ne!(hash.0, [7; 32]);
        assert_eq!(format!("{hash:?}"), "TokenHash");
    }
}
