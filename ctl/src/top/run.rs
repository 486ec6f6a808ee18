//! Live picture on a terminal: threads that bring keys, signals and messages, and the loop that draws.
//!
//! The terminal is restored at the end, on an error, on a panic, and on SIGINT, SIGTERM and SIGHUP.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use gpushare_proto::admin::AdminReply;
use gpushare_proto::follow::Increments;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::TopError;
use super::feed::Feed;
use super::keys;
use super::model::Model;
use super::names::Names;
use super::rows::{self, Row, RowKey};
use super::screen::{Access, Effect, Order, Screen};
use super::view::{self, Theme};
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::table::harmless;
use gpushare_connection::{Admin, Client};

/// Something that happened.
#[derive(Debug)]
pub(super) enum Input {
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    News(Increments),
    /// The daemon does not answer, with the reason.
    Lost(String),
    /// A daemon answers again.
    Found {
        is_admin: bool,
        shares_pids: bool,
    },
    /// Answer of the daemon to an order, in words.
    Answered(String),
    Signal(i32),
    /// The terminal is gone, or cannot be read.
    Unreadable(io::Error),
}

/// Picture with its sources.
struct Top {
    model: Model,
    /// Model that is shown while the picture is paused.
    paused: Option<Model>,
    names: Names,
    screen: Screen,
    theme: Theme,
    /// Rows that were shown last.
    rows: Vec<Row>,
    places: Arc<Places>,
    inputs: Sender<Input>,
}

/// Shows the picture until the user quits.
pub(super) fn run(
    (model, names, screen): (Model, Names, Screen),
    feed: Feed,
    places: Places,
) -> Result<ExitCode, CtlError> {
    let (inputs, arriving) = channel();
    let places = Arc::new(places);
    let theme = Theme { has_colours: output::wants_colours() };
    // Before the terminal changes, so that no signal can leave it changed.
    pass_on_signals(&inputs).map_err(TopError::Terminal)?;
    let mut terminal = ratatui::try_init().map_err(TopError::Terminal)?;
    pass_on_keys(&inputs);
    pass_on_news(feed, places.clone(), &inputs);
    let mut top = Top { model, paused: None, names, screen, theme, rows: Vec::new(), places, inputs };
    let ended = top.serve(&mut terminal, &arriving);
    let restored = ratatui::try_restore();
    let code = ended.map_err(TopError::Terminal)?;
    restored.map_err(TopError::Terminal)?;
    Ok(code)
}

impl Top {
    fn serve(&mut self, terminal: &mut DefaultTerminal, arriving: &Receiver<Input>) -> io::Result<ExitCode> {
        loop {
            self.draw(terminal)?;
            // This struct has a sender, so there is always one.
            let Ok(input) = arriving.recv() else { return Ok(ExitCode::SUCCESS) };
            let mut next = Some(input);
            while let Some(input) = next {
                if let Some(code) = self.take(input)? {
                    return Ok(code);
                }
                next = arriving.try_recv().ok();
            }
        }
    }

    /// Takes an input. Returns the exit code if it is the last one.
    fn take(&mut self, input: Input) -> io::Result<Option<ExitCode>> {
        match input {
            Input::Key(key) => return Ok(self.press(key)),
            Input::Resized => {}
            Input::News(increments) => {
                self.model.apply(increments);
                self.screen.lost = None;
            }
            Input::Lost(why) => {
                self.screen.lost = Some("no daemon; trying again".to_owned());
                self.screen.message = Some(harmless(&why));
            }
            Input::Found { is_admin, shares_pids } => {
                self.screen.message = Some("the daemon answers again".to_owned());
                self.names.connected(shares_pids);
                self.screen.access = match (is_admin, self.screen.access) {
                    (false, _) => Access::Own,
                    (true, Access::ReadOnly) => Access::ReadOnly,
                    (true, _) => Access::Full,
                };
            }
            Input::Answered(words) => self.screen.message = Some(words),
            Input::Signal(number) => {
                let code = 128 + u8::try_from(number).unwrap_or(0);
                return Ok(Some(ExitCode::from(code)));
            }
            Input::Unreadable(cause) => return Err(cause),
        }
        Ok(None)
    }

    fn press(&mut self, key: KeyEvent) -> Option<ExitCode> {
        let action = keys::action(key, self.screen.focus())?;
        let shown = self.paused.as_ref().unwrap_or(&self.model);
        // Keys that come together act on what the one before left.
        self.rows = rows::rows(shown, &self.names, &self.screen.selection);
        let effect = self.screen.act(action, shown, &self.rows);
        if self.screen.is_paused != self.paused.is_some() {
            self.paused = self.screen.is_paused.then(|| self.model.clone());
        }
        match effect {
            Some(Effect::Quit) => return Some(ExitCode::SUCCESS),
            Some(Effect::Send(order)) => self.send(order),
            None => {}
        }
        None
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        let size = terminal.size()?;
        let shown = self.paused.as_ref().unwrap_or(&self.model);
        let room = view::table_rows(
            shown,
            &self.screen,
            ratatui::layout::Rect::from((ratatui::layout::Position::ORIGIN, size)),
        );
        self.rows = rows::rows(shown, &self.names, &self.screen.selection);
        self.screen.scroll(&self.rows, room);
        let in_sight = self.rows.iter().skip(self.screen.top).take(room);
        let facts = in_sight.filter_map(|row| match &row.key {
            RowKey::Session(id) => shown.sessions.get(id).map(|session| &session.facts),
            RowKey::User(_) => None,
        });
        if self.names.look_up(facts.map(|facts| (facts.user.as_deref(), &facts.pids[..]))) {
            self.rows = rows::rows(shown, &self.names, &self.screen.selection);
        }
        let Self { rows, screen, theme, .. } = self;
        terminal.draw(|frame| {
            let area = frame.area();
            view::draw(shown, rows, screen, *theme, (area, frame.buffer_mut()));
        })?;
        Ok(())
    }

    /// Sends an order on a connection and a thread of its own, so that a daemon that hangs blocks no key.
    fn send(&self, order: Order) {
        let (places, inputs) = (self.places.clone(), self.inputs.clone());
        thread::spawn(move || {
            let what = &order.what;
            let asked = Client::<Admin>::connect(places.administered())
                .and_then(|mut client| client.ask(&order.request));
            let words = match asked {
                Ok(AdminReply::Changed { old, new }) => {
                    format!("{what}: {} → {}", harmless(&old), harmless(&new))
                }
                Ok(_) => format!("{what}: the daemon gave an unexpected answer"),
                Err(error) => format!("{what}: {}", harmless(&error.to_string())),
            };
            // Nobody waits for the answer if the user has quit.
            let _ = inputs.send(Input::Answered(words));
        });
    }
}

fn pass_on_keys(inputs: &Sender<Input>) {
    let inputs = inputs.clone();
    thread::spawn(move || {
        loop {
            let input = match event::read() {
                Ok(Event::Key(key)) => Input::Key(key),
                Ok(Event::Resize(..)) => Input::Resized,
                Ok(_) => continue,
                Err(cause) => Input::Unreadable(cause),
            };
            let is_last = matches!(input, Input::Unreadable(_));
            if inputs.send(input).is_err() || is_last {
                return;
            }
        }
    });
}

fn pass_on_news(feed: Feed, places: Arc<Places>, inputs: &Sender<Input>) {
    let inputs = inputs.clone();
    thread::spawn(move || feed.pass_on(&places, &inputs));
}

fn pass_on_signals(inputs: &Sender<Input>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let inputs = inputs.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            if inputs.send(Input::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}
