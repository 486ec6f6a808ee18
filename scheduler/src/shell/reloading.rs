//! The configuration is read again: all of it is followed, or none.
//!
//! What was read comes back as an input and is put into force in one go: no event of anybody's comes between.

use gpushare_core::Event;
use gpushare_proto::admin::{AdminReply, ConfigChange, Setting};
use gpushare_proto::tenant::{Failure, FailureCode};
use tracing::{info, warn};

use super::{Shell, failure};
use crate::config::{ConfigError, Reader, Settings};
use crate::input::{Asker, Input};

impl Shell {
    /// Gets settings from there when it is told to read them again.
    pub(crate) fn read_from(&mut self, reader: Reader) {
        self.reader = Some(reader);
    }

    /// Has the configuration read again; `None` asks by a signal.
    pub(crate) fn read_again(&mut self, asker: Option<Asker>) {
        if let Some(reader) = &self.reader {
            let inputs = self.inputs.clone();
            reader.start(move |settings| {
                // The receiver is gone only when the daemon ends.
                let _ = inputs.blocking_send(Input::Configured { settings, asker });
            });
        }
    }

    /// It was read.
    pub(super) fn configured(&mut self, settings: Result<Box<Settings>, ConfigError>, asker: Option<&Asker>) {
        let answer = settings.map(|settings| self.follow(*settings)).map_err(|error| {
            let code = match error.is_denied() {
                true => FailureCode::Permission,
                false => FailureCode::BadRequest,
            };
            failure(code, format!("nothing was changed: {error}"))
        });
        let peer = asker.map(|(_, peer)| peer);
        match &answer {
            Ok(changes) => {
                say(changes);
                self.was_reconfigured(peer, changes);
            }
            Err(Failure { message, .. }) => {
                warn!("the configuration was read again, and {message}");
                self.was_not_reconfigured(peer, message);
            }
        }
        if let Some((connection, _)) = asker {
            let reply = answer.map_or_else(AdminReply::Error, AdminReply::Reloaded);
            self.reply(*connection, &reply);
        }
    }

    fn follow(&mut self, new: Settings) -> Vec<ConfigChange> {
        let (settings, mut changes) = self.cards.reload(&new);
        for client in self.clients.values() {
            self.cards.aim(&client.page);
        }
        let (tunings, others) = self.settings.follow(new);
        changes.extend(others);
        // First what is so for all cards: a card's own quantum must not be looked at under bounds that are over.
        tunings.into_iter().for_each(|tuning| self.feed(Event::Tune(tuning)));
        let set = |(gpu, knob)| Event::Set(Setting { gpu: Some(gpu), knob });
        settings.into_iter().map(set).for_each(|event| self.feed(event));
        changes
    }
}

fn say(changes: &[ConfigChange]) {
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
