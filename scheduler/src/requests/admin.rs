//! Requests on the administrator's socket.

use gpushare_core::Event;
use gpushare_proto::admin::{AdminReply, AdminRequest, Setting, UserView};
use gpushare_proto::session::DEFAULT_WEIGHT;
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_sys::clock;

use super::checks::check_weight;
use super::explain::explain;
use super::frost;
use super::sessions::{named, session_request};
use crate::clients::leave::refuse;
use crate::connections::ConnectionId;
use crate::engine::Engine;
use crate::identity::{PeerProcess, User};
use crate::knob;
use crate::operation::{bad_request, failure, plain};
use crate::peers::PeerRole;
use crate::persist::question::UsageQuestion;
use crate::persist::usage::ask_usage;
use crate::registry::Hours;
use crate::report::audit::{acted, intent};
use crate::report::status::status;

/// Carries out an administrator's request. The answer to an act waits until the act is on the disk.
pub(crate) fn handle(engine: &mut Engine, connection: ConnectionId, request: &AdminRequest) {
    let peer = match engine.peers.get(connection) {
        None | Some((PeerRole::Ending, _)) => return,
        Some((_, peer)) => peer.clone(),
    };
    let answer = match *request {
        AdminRequest::Session(ref request) => {
            let intent = intent(request, &engine.sessions);
            let answer = session_request(engine, &peer, request);
            let line = acted(&peer, intent, &answer, &engine.sessions);
            return engine.reply_to_act(connection, answer, Some(line));
        }
        AdminRequest::Explain { ref which } => {
            explain(engine, which).map(|explanation| AdminReply::Explained(Box::new(explanation)))
        }
        AdminRequest::Orphaned { ref which } => named(&engine.sessions, which)
            .map(|id| AdminReply::Orphaned(engine.orphans.views(id, clock::monotonic(), &engine.cards))),
        AdminRequest::Capacities => Ok(AdminReply::Capacities(engine.machine.capacities())),
        AdminRequest::Residences => Ok(AdminReply::Residences(engine.machine.residences())),
        AdminRequest::Frost { ref which } => {
            named(&engine.sessions, which).map(|id| AdminReply::Frost(frost::view(engine, id)))
        }
        AdminRequest::Freezing => Ok(AdminReply::Freezing(frost::freezing(engine))),
        AdminRequest::Copies => Ok(AdminReply::Copies(engine.copies.view())),
        AdminRequest::Handoffs => Ok(AdminReply::Handoffs(engine.machine.handoffs(clock::monotonic()))),
        AdminRequest::HandoffsOf { ref which } => named(&engine.sessions, which).map(|id| {
            let now = clock::monotonic();
            let of_cards = engine.machine.handoffs(now);
            AdminReply::Handoffs(engine.last_handoffs.of_session(id, now, of_cards))
        }),
        AdminRequest::Users => Ok(AdminReply::Users(users(engine))),
        AdminRequest::Status => Ok(AdminReply::Status(Box::new(status(engine)))),
        AdminRequest::Set(setting) => {
            let answer = set(engine, setting);
            engine.audit.set(&peer, setting, &answer);
            answer
        }
        AdminRequest::UserWeight { ref user, weight } => {
            let answer = set_user_weight(engine, user, weight);
            let line = engine.audit.user_weight(&peer, user, &answer);
            return engine.reply_to_act(connection, answer, Some(line));
        }
        AdminRequest::Dashboard { read_only } => {
            let answer = engine.dashboard.link(&engine.settings.dashboard, &peer, read_only);
            engine.audit.linked(&peer, read_only, &answer);
            answer
        }
        AdminRequest::Reload => return engine.read_settings(Some((connection, PeerProcess::clone(&peer)))),
        AdminRequest::Watch => {
            // The daemon's own page shows no reasons.
            let is_own_page = peer.pid == std::process::id();
            return engine.start_watch(connection, !is_own_page);
        }
        AdminRequest::Follow => return engine.followers.add(connection),
        AdminRequest::Usage { since } => {
            let question = UsageQuestion { connection, hours: Hours::since(since), with_users: false };
            return ask_usage(engine, question);
        }
        AdminRequest::UsageBetween { from_unix_s, until_unix_s } => {
            let hours = Hours::of(from_unix_s, until_unix_s);
            return ask_usage(engine, UsageQuestion { connection, hours, with_users: true });
        }
        AdminRequest::Hello(_) => {
            let failure = bad_request("the connection has had its hello; send a hello once, first");
            return refuse(engine, connection, failure, AdminReply::Error);
        }
    };
    let reply = answer.unwrap_or_else(AdminReply::Error);
    engine.peers.reply(connection, &reply);
}

/// Changes the weight of a user, with or without sessions.
fn set_user_weight(engine: &mut Engine, name: &str, weight: u32) -> Result<AdminReply, Failure> {
    check_weight(weight)?;
    let unknown = || bad_request(format!("{} is no user; give a user id or a control group", plain(name)));
    let user = User::named(name).ok_or_else(unknown)?;
    let old = engine.users.set_weight(&user, weight);
    engine.persistence.write_in_any_case();
    let session = engine.sessions.of_user(&user).next();
    session.into_iter().for_each(|session| engine.send_terms(session));
    Ok(AdminReply::Changed { old: old.to_string(), new: weight.to_string() })
}

/// Returns the users with sessions. The names are those that `gpushare-ctl set weight --user` takes.
fn users(engine: &Engine) -> Vec<UserView> {
    let view = |(user, sessions): (&User, usize)| UserView {
        user: user.given(),
        weight: engine.users.get(user).map_or(DEFAULT_WEIGHT, |(_, weight)| weight),
        sessions: u32::try_from(sessions).unwrap_or(u32::MAX),
    };
    engine.sessions.users().map(view).collect()
}

fn set(engine: &mut Engine, setting: Setting) -> Result<AdminReply, Failure> {
    if let Some(gpu) = setting.gpu.filter(|gpu| engine.cards.get(*gpu).is_none()) {
        let message = format!("there is no {gpu}; `gpushare-ctl status` lists the cards");
        return Err(failure(FailureCode::NotFound, message));
    }
    knob::check(setting.knob).map_err(|error| bad_request(error.to_string()))?;
    let (old, new) = engine.cards.set(setting);
    engine.feed(Event::Set(setting));
    Ok(AdminReply::Changed { old, new })
}
