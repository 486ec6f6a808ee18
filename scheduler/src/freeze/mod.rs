//! Freezes and thaws processes for the decision machine, by helpers (`gpushare-checkpoint`).
//!
//! ```text
//!   Effect::Thaw ─▶ memory/creations.rs, room.rs ─▶ thread ─▶ helper process ─▶ driver
//!   Effect::Freeze ─▶ thread ─▶ trial, before the first freeze on a card
//!                       └─────▶ helper process ─▶ driver
//!   Event::FreezeEnded ◀── Input::Tried, Input::Moved ◀── thread
//! ```
//!
//! An operation lasts as long as the driver takes, so each has a thread of its own. The decision machine asks
//! for one at a time on each card.

pub(crate) mod restores;
pub(crate) mod trial;
pub(crate) mod tried;

use std::path::Path;
use std::thread;

use gpushare_checkpoint::{FreezeError, Limits, Target, ThawError, freeze, thaw, thaw_in_place};
use gpushare_core::{Event, FreezeEnd, ThawEnd};
use gpushare_proto::admin::FrostStage;
use gpushare_proto::{ClientId, GpuId, GpuUuid, SessionId};
use tokio::sync::mpsc::Sender;
use tracing::warn;

use self::trial::HELPER;
use crate::engine::Engine;
use crate::input::{End, Input};

/// Operation of the driver about a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    Freeze,
    Thaw,
    /// Thaw of a process that may not be in its checkpoint, while its cards have no memory for it.
    ThawInPlace,
}

impl Move {
    /// End of an operation that could not begin.
    const fn not_begun(self) -> End {
        match self {
            Self::Freeze => End::Freeze(FreezeEnd::Busy),
            Self::Thaw | Self::ThawInPlace => End::Thaw(ThawEnd::BrokeOff),
        }
    }

    /// Carries the operation out, and blocks meanwhile.
    fn carry_out(self, target: Target) -> End {
        let (helper, limits) = (Path::new(HELPER), Limits::default());
        match self {
            Self::Freeze => End::Freeze(match freeze(helper, target, &limits) {
                Ok(()) => FreezeEnd::Frozen,
                Err(error) => {
                    warn!("pid {} is not frozen: {error}", target.pid);
                    freeze_end(&error)
                }
            }),
            Self::Thaw => End::Thaw(thaw_ended(target, thaw(helper, target, &limits))),
            Self::ThawInPlace => End::Thaw(thaw_ended(target, thaw_in_place(helper, target, &limits))),
        }
    }
}

fn thaw_ended(target: Target, ended: Result<(), ThawError>) -> ThawEnd {
    match ended {
        Ok(()) => ThawEnd::Thawed,
        Err(error) => {
            warn!("pid {} is not thawed: {error}", target.pid);
            thaw_end(&error)
        }
    }
}

/// Returns the end that a failed freeze is for the decision machine. It hears of a dead process by its pidfd.
fn freeze_end(error: &FreezeError) -> FreezeEnd {
    match error {
        FreezeError::Gone | FreezeError::Unknown(_) => FreezeEnd::BrokeOff,
        FreezeError::Unready(_) | FreezeError::Busy(_) => FreezeEnd::Busy,
        FreezeError::Refused(_) => FreezeEnd::Refused,
    }
}

/// Returns the end that a failed thaw is for the decision machine.
fn thaw_end(error: &ThawError) -> ThawEnd {
    match error {
        // Also a card without memory: the attempt may have taken seconds, so others come first.
        ThawError::Gone | ThawError::NoRoom(_) | ThawError::Unknown(_) => ThawEnd::BrokeOff,
        ThawError::Away => ThawEnd::NoRoom,
        ThawError::Lost(_) => ThawEnd::Lost,
    }
}

/// Sends an input from the task that receives it, which must not wait for room in the queue.
fn deliver(inputs: Sender<Input>, input: Input) {
    tokio::spawn(async move {
        // The receiver is gone only when the daemon ends.
        let _ = inputs.send(input).await;
    });
}

impl Engine {
    /// Returns the cards of a process on which no trial has succeeded.
    fn untried_cards(&self, client: ClientId) -> Vec<(GpuId, GpuUuid)> {
        let gpus = self.clients.get(client).into_iter().flat_map(|client| client.page.gpus());
        let untried = gpus.filter(|&gpu| !self.trials.has_succeeded(gpu));
        untried.filter_map(|gpu| Some((gpu, self.cards.get(gpu)?.info.uuid))).collect()
    }

    /// Begins an operation of the driver about a process.
    pub(crate) fn move_by_driver(&self, client: ClientId, what: Move) {
        let id = self.clients.get(client).and_then(|client| client.peer.id);
        let untried = match what {
            Move::Freeze => self.untried_cards(client),
            Move::Thaw | Move::ThawInPlace => Vec::new(),
        };
        let inputs = self.inputs.clone();
        let run = move || {
            let tell = |gpu, outcome| _ = inputs.blocking_send(Input::Tried { gpu, outcome });
            let end = match id {
                Some(id) => trial::failure(&untried, tell)
                    .map_or_else(|| what.carry_out(Target { pid: id.pid, start: id.start }), End::Freeze),
                None => what.not_begun(),
            };
            // The receiver is gone only when the daemon ends.
            let _ = inputs.blocking_send(Input::Moved { client, end });
        };
        if let Err(cause) = thread::Builder::new().name("freeze".to_owned()).spawn(run) {
            warn!("no thread for a helper: {cause}");
            deliver(self.inputs.clone(), Input::Moved { client, end: what.not_begun() });
        }
    }

    /// Lets all frozen processes come back, since the daemon ends. Returns whether any is left.
    pub(crate) fn thaw_all(&mut self) -> bool {
        self.is_stopping = true;
        let cold: Vec<SessionId> = self.machine.cold_sessions().collect();
        for &session in &cold {
            if self.machine.frost_stage(session) != FrostStage::Thawing {
                self.feed(Event::Freeze { session, wanted: false });
            }
        }
        self.machine.cold_sessions().next().is_some()
    }

    /// Reports the end of an operation to the decision machine.
    pub(crate) fn moved_by_driver(&mut self, client: ClientId, end: End) {
        self.persistence.client_changed(client);
        self.feed(match end {
            End::Freeze(end) => Event::FreezeEnded { client, end },
            End::Thaw(end) => Event::ThawEnded { client, end },
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_a_refusal_of_the_restore_gives_a_process_up() {
        assert_eq!(thaw_end(&ThawError::Lost(None)), ThawEnd::Lost);
        assert_eq!(
            [ThawError::Gone, ThawError::Unknown("hung".to_owned())].map(|error| thaw_end(&error)),
            [ThawEnd::BrokeOff; 2]
        );
    }

    #[tokio::test]
    async fn an_end_is_not_lost_in_a_full_queue() {
        let (inputs, mut arriving) = tokio::sync::mpsc::channel(1);
        inputs.try_send(Input::Measured(None)).unwrap();
        deliver(inputs, Input::Moved { client: ClientId(1), end: Move::Thaw.not_begun() });
        assert!(matches!(arriving.recv().await, Some(Input::Measured(None))));
        let end = End::Thaw(ThawEnd::BrokeOff);
        assert!(matches!(arriving.recv().await, Some(Input::Moved { end: of, .. }) if of == end));
    }

    #[test]
    fn what_may_have_begun_is_repaired() {
        let unknown = FreezeError::Unknown("hung".to_owned());
        assert_eq!(freeze_end(&unknown), FreezeEnd::BrokeOff);
    }

    #[test]
    fn a_busy_process_and_a_machine_without_helper_are_no_refusal() {
        assert_eq!(freeze_end(&FreezeError::Busy(Duration::ZERO)), FreezeEnd::Busy);
        assert_eq!(freeze_end(&FreezeError::Unready("no driver".to_owned())), FreezeEnd::Busy);
    }
}
