//! Reads the configuration again. Either all of the new settings take effect, or none.
//!
//! The settings arrive as an input of the daemon's task. They take effect together, without an event in
//! between.

use gpushare_core::Event;
use gpushare_proto::SessionId;
use gpushare_proto::admin::{AdminReply, ConfigChange, Setting};
use gpushare_proto::tenant::{Failure, FailureCode};
use tracing::{info, warn};

use crate::clients::pods;
use crate::config::{ConfigError, Settings};
use crate::engine::Engine;
use crate::exit::is_denied;
use crate::input::Asker;
use crate::operation::failure;

/// Applies settings that were read again, or reports why they are refused. `asker` is none after a signal.
pub(crate) fn configured(
    engine: &mut Engine,
    settings: Result<Box<Settings>, ConfigError>,
    asker: Option<&Asker>,
) {
    let answer = settings.map(|settings| follow(engine, *settings)).map_err(|error| {
        let code = match is_denied(&error) {
            true => FailureCode::Permission,
            false => FailureCode::BadRequest,
        };
        failure(code, format!("nothing was changed: {error}"))
    });
    let peer = asker.map(|(_, peer)| peer);
    match &answer {
        Ok(changes) => {
            log(changes);
            engine.audit.reloaded(peer, changes);
            pods::look_again(engine, None);
        }
        Err(Failure { message, .. }) => {
            warn!("the configuration was read again, and {message}");
            engine.audit.reload_failed(peer, message);
        }
    }
    if let Some((connection, _)) = asker {
        let reply = answer.map_or_else(AdminReply::Error, AdminReply::Reloaded);
        engine.peers.reply(*connection, &reply);
    }
}

fn follow(engine: &mut Engine, new: Settings) -> Vec<ConfigChange> {
    let freeze_after = engine.settings.freeze_after;
    let (settings, mut changes) = engine.cards.reload(&new);
    let (tunings, others) = engine.settings.follow(new);
    changes.extend(others);
    // First the settings of all cards: a card's own quantum must be checked against the new bounds.
    engine.feed_all(tunings.into_iter().map(Event::Tune));
    let set = |(gpu, knob)| Event::Set(Setting { gpu: Some(gpu), knob });
    engine.feed_all(settings.into_iter().map(set));
    if engine.settings.freeze_after != freeze_after {
        let sessions: Vec<SessionId> = engine.sessions.iter().map(|(id, _)| id).collect();
        sessions.into_iter().for_each(|id| engine.send_terms(id));
    }
    changes
}

fn log(changes: &[ConfigChange]) {
    if changes.is_empty() {
        info!("the configuration was read again; it says what is in effect already");
    }
    for ConfigChange { key, old, new, live } in changes {
        match live {
            true => info!("the configuration was read again: {key}: {old} → {new}"),
            false => {
                warn!(
                    "the configuration was read again: {key}: {old} → {new} takes effect at the next start"
                );
            }
        }
    }
}
