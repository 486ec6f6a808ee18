//! The administrator's requests.

use gpushare_core::Event;
use gpushare_proto::Nanos;
use gpushare_proto::admin::{AdminReply, AdminRequest, Knob, LEAST_MEMORY, LEAST_QUANTUM, Setting};
use gpushare_proto::tenant::{Failure, FailureCode};

use super::{ConnectionRole, Shell, failure};
use crate::input::ConnectionId;

/// What a launch or two take,
const LEAST_TARGET: Nanos = Nanos(100_000);
/// and what nobody at a notebook would want to wait for.
const MOST_TARGET: Nanos = Nanos::from_secs(10);

impl Shell {
    pub(super) fn admin(&mut self, connection: ConnectionId, request: &AdminRequest) {
        let Some(open) = self.connections.get(&connection) else {
            return;
        };
        if open.role == ConnectionRole::Ending {
            return;
        }
        let peer = open.peer.clone();
        match *request {
            AdminRequest::Session(ref request) => {
                let intent = self.intent(request);
                let answer = self.session_request(&peer, request);
                let act = self.acted(&peer, intent, &answer);
                match answer {
                    Ok(done) => self.reply_when_kept(connection, &done, Some(act)),
                    Err(failure) => {
                        self.write_act(act);
                        self.reply(connection, &AdminReply::Error(failure));
                    }
                }
            }
            AdminRequest::Explain { ref which } => {
                let answer = self.explain(which).map(Box::new);
                let answer = answer.map_or_else(AdminReply::Error, AdminReply::Explained);
                self.reply(connection, &answer);
            }
            AdminRequest::Status => {
                let status = self.status();
                self.reply(connection, &AdminReply::Status(Box::new(status)));
            }
            AdminRequest::Set(setting) => {
                let answer = self.set(setting);
                self.was_set(&peer, setting, &answer);
                self.reply(connection, &answer.unwrap_or_else(AdminReply::Error));
            }
            AdminRequest::Watch => self.start_watch(connection),
            AdminRequest::Usage { since } => self.ask_usage(connection, since),
            AdminRequest::Hello(_) => {
                let failure = failure(
                    FailureCode::BadRequest,
                    "the connection has had its hello; send a hello once, first",
                );
                self.refuse(connection, failure, AdminReply::Error);
            }
        }
    }

    fn set(&mut self, setting: Setting) -> Result<AdminReply, Failure> {
        if let Some(gpu) = setting.gpu.filter(|gpu| self.cards.get(*gpu).is_none()) {
            let message = format!("there is no {gpu}; `gpushare-ctl status` lists the cards");
            return Err(failure(FailureCode::NotFound, message));
        }
        check(setting.knob).map_err(|message| failure(FailureCode::BadRequest, message))?;
        let (old, new) = self.cards.set(setting);
        for client in self.clients.values() {
            self.cards.aim(&client.page);
        }
        self.feed(Event::Set(setting));
        Ok(AdminReply::Changed { old, new })
    }
}

/// Refuses what nobody can mean.
fn check(knob: Knob) -> Result<(), String> {
    match knob {
        Knob::Quantum(Some(quantum)) if quantum < LEAST_QUANTUM => Err(format!(
            "a quantum of {quantum} lets nobody run; use {LEAST_QUANTUM} or more"
        )),
        Knob::Capacity(Some(bytes)) | Knob::ManagedLimit(bytes) if bytes < LEAST_MEMORY => Err(format!(
            "{bytes} leaves nothing to share; use {LEAST_MEMORY} or more"
        )),
        Knob::WindowTarget(target) if target < LEAST_TARGET || target > MOST_TARGET => Err(format!(
            "a window target of {target} is no time for work in flight; use {LEAST_TARGET} to {MOST_TARGET}"
        )),
        Knob::Epsilon(share) if share.0 == 0 || share.0 >= 10_000 => {
            Err("epsilon is a share of time to lose: more than 0% and less than 100%".to_owned())
        }
        _ => Ok(()),
    }
}
