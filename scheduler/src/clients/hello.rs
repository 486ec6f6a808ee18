//! First message of a process that will use a card.

use gpushare_proto::Token;
use gpushare_proto::tenant::Returning;

/// Hello of a process that will use a card.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientHello {
    pub(crate) token: Option<Token>,
    pub(crate) returning: Option<Returning>,
    /// Whether the process's memory is remapped and moves by goals.
    pub(crate) remaps: bool,
}
