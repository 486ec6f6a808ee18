//! The administrator's requests.

use gpushare_core::Event;
use gpushare_proto::admin::{AdminReply, AdminRequest, Setting};
use gpushare_proto::tenant::{Failure, FailureCode};

use super::{ConnectionRole, Shell, failure};
use crate::connections::ConnectionId;
use crate::knob::check;

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
            AdminRequest::Orphaned { ref which } => {
                let answer = self.orphaned_of(which);
                self.reply(connection, &answer.map_or_else(AdminReply::Error, AdminReply::Orphaned));
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
            AdminRequest::Reload => self.read_again(Some((connection, peer))),
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
