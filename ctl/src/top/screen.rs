//! State of the screen: selection, prompt, message; and what each wish of the user changes.
//!
//! ```text
//!   table ── w p t ──▶ prompt ── Enter ──▶ question ── y ──▶ order to the daemon
//!     ▲ ◀── Esc ─────────┘ ◀── bad value ──┘ └── n ──▶ table
//! ```

use gpushare_proto::admin::{AdminRequest, Change, Knob, SessionRequest, Setting};
use gpushare_proto::session::Priority;
use gpushare_proto::{GpuId, SessionId};

use super::keys::{Action, Focus};
use super::model::Model;
use super::rows::{Row, RowKey, Selection};
use crate::cli::{Auto, Quantum, Weight};
use crate::table::{harmless, short};

/// State of the screen beside the daemon's state.
#[derive(Clone, Debug, Default)]
pub(super) struct Screen {
    pub(super) selection: Selection,
    /// Row under the cursor.
    pub(super) cursor: Option<RowKey>,
    /// First row that is shown; follows the cursor.
    pub(super) top: usize,
    pub(super) card: Option<GpuId>,
    pub(super) cards_folded: bool,
    pub(super) is_paused: bool,
    pub(super) access: Access,
    pub(super) mode: Mode,
    /// Answer to the last order, or why a wish cannot be met.
    pub(super) message: Option<String>,
    /// Reason why the daemon sends nothing, while that is so.
    pub(super) lost: Option<String>,
}

/// Rights of the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Access {
    /// See and change everything.
    #[default]
    Full,
    /// See everything; `--readonly` was given.
    ReadOnly,
    /// See the own sessions; the user is no administrator.
    Own,
}

/// Part of the screen that the user works with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Table,
    Help,
    Prompt(Prompt),
    Question(Order),
}

/// Line in which the user types a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) wanted: Wanted,
    pub(super) text: String,
}

/// Meaning of the text in a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Filter,
    Weight { session: SessionId, name: String, now: u32 },
    Priority { session: SessionId, name: String, now: Priority },
    Quantum { gpu: GpuId, now: String },
}

/// Change that the daemon is to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// Change in words, like `weight of train (s3)`.
    pub(super) what: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) request: Box<AdminRequest>,
}

/// Rest of a wish that the screen cannot do by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    Send(Order),
}

impl Screen {
    pub(super) fn focus(&self) -> Focus {
        match self.mode {
            Mode::Table => Focus::Table,
            Mode::Help => Focus::Help,
            Mode::Prompt(_) => Focus::Prompt,
            Mode::Question(_) => Focus::Question,
        }
    }

    /// Carries out a wish of the user. `rows` are those that are shown.
    pub(super) fn act(&mut self, action: Action, model: &Model, rows: &[Row]) -> Option<Effect> {
        if action == Action::Quit {
            return Some(Effect::Quit);
        }
        match std::mem::take(&mut self.mode) {
            Mode::Table => self.act_on_table(action, model, rows),
            // Every key that gets here ends the help.
            Mode::Help => {}
            Mode::Prompt(prompt) => self.act_on_prompt(action, prompt),
            Mode::Question(order) => {
                if action == Action::Yes {
                    self.message = Some(format!("{}: asking the daemon", order.what));
                    return Some(Effect::Send(order));
                }
                self.message = Some(format!("{} stays {}", order.what, order.from));
            }
        }
        None
    }

    fn act_on_table(&mut self, action: Action, model: &Model, rows: &[Row]) {
        self.message = None;
        match action {
            Action::Up(by) => {
                self.select(rows, self.position(rows).map_or(0, |at| at.saturating_sub(by)));
            }
            Action::Down(by) => self.select(rows, self.position(rows).map_or(0, |at| at + by)),
            Action::First => self.select(rows, 0),
            Action::Last => self.select(rows, usize::MAX),
            Action::NextCard => {
                let current = self.selected_card(model);
                let mut after = model.cards.keys().filter(|&&gpu| current.is_some_and(|now| gpu > now));
                self.card = after.next().or_else(|| model.cards.keys().next()).copied();
            }
            Action::Sort { forward } => self.selection.sort = self.selection.sort.step(forward),
            Action::Reverse => self.selection.is_reversed = !self.selection.is_reversed,
            Action::Filter => {
                let text = self.selection.filter.clone();
                self.mode = Mode::Prompt(Prompt { wanted: Wanted::Filter, text });
            }
            Action::FoldCards => self.cards_folded = !self.cards_folded,
            Action::FoldUsers => {
                self.selection.by_user = !self.selection.by_user;
                self.selection.unfolded.clear();
            }
            Action::Toggle => {
                if let Some(RowKey::User(user)) = &self.cursor
                    && !self.selection.unfolded.remove(user)
                {
                    self.selection.unfolded.insert(user.clone());
                }
            }
            Action::Pause => self.is_paused = !self.is_paused,
            Action::SetWeight | Action::SetPriority | Action::SetQuantum => {
                match self.wanted(action, model, rows) {
                    Ok(wanted) => self.mode = Mode::Prompt(Prompt { wanted, text: String::new() }),
                    Err(why) => self.message = Some(why.to_owned()),
                }
            }
            Action::Help => self.mode = Mode::Help,
            Action::Cancel => self.selection.filter.clear(),
            _ => {}
        }
    }

    /// Returns what a prompt asks for, or why nothing can be changed.
    fn wanted(&self, action: Action, model: &Model, rows: &[Row]) -> Result<Wanted, &'static str> {
        match self.access {
            Access::Full => {}
            Access::ReadOnly => return Err("nothing can be changed with --readonly; start top without it"),
            Access::Own => {
                return Err("only an administrator may change that; run top as the daemon's owner");
            }
        }
        if action == Action::SetQuantum {
            let gpu = self.selected_card(model).ok_or("there is no card to set the quantum of")?;
            let figures = model.cards.get(&gpu).and_then(|card| card.figures.as_ref());
            let now = figures.map_or_else(String::new, |figures| short(figures.quantum_ns));
            return Ok(Wanted::Quantum { gpu, now });
        }
        let selected = self.position(rows).and_then(|at| rows.get(at));
        let session = selected.and_then(|row| match row.key {
            RowKey::Session(id) => model.sessions.get(&id),
            RowKey::User(_) => None,
        });
        let facts = &session
            .ok_or("select a session first: with the arrow keys, or Enter on a user")?
            .facts;
        let (session, name) = (facts.session, harmless(&facts.name));
        Ok(match action {
            Action::SetWeight => Wanted::Weight { session, name, now: facts.weight },
            _ => Wanted::Priority { session, name, now: facts.priority },
        })
    }

    fn act_on_prompt(&mut self, action: Action, mut prompt: Prompt) {
        match action {
            Action::Cancel => {
                self.message = None;
                if prompt.wanted == Wanted::Filter {
                    self.selection.filter.clear();
                }
                return;
            }
            Action::Type(typed) => prompt.text.push(typed),
            Action::Erase => drop(prompt.text.pop()),
            Action::EraseAll => prompt.text.clear(),
            Action::Accept if prompt.wanted == Wanted::Filter => return,
            Action::Accept => match prompt.wanted.order(prompt.text.trim()) {
                Ok(order) => {
                    self.message = None;
                    self.mode = Mode::Question(order);
                    return;
                }
                Err(why) => self.message = Some(why),
            },
            _ => {}
        }
        if prompt.wanted == Wanted::Filter {
            self.selection.filter.clone_from(&prompt.text);
        }
        self.mode = Mode::Prompt(prompt);
    }

    /// Moves the cursor to a row, or to the last one if there are fewer.
    fn select(&mut self, rows: &[Row], at: usize) {
        let at = at.min(rows.len().saturating_sub(1));
        self.cursor = rows.get(at).map(|row| row.key.clone());
    }

    /// Returns the place of the cursor among the rows.
    pub(super) fn position(&self, rows: &[Row]) -> Option<usize> {
        let cursor = self.cursor.as_ref()?;
        rows.iter().position(|row| row.key == *cursor)
    }

    /// Returns the selected card, the first one without a choice.
    pub(super) fn selected_card(&self, model: &Model) -> Option<GpuId> {
        let chosen = self.card.filter(|gpu| model.cards.contains_key(gpu));
        chosen.or_else(|| model.cards.keys().next().copied())
    }

    /// Scrolls so that the cursor is among `height` rows.
    pub(super) fn scroll(&mut self, rows: &[Row], height: usize) {
        if self.cursor.is_some() && self.position(rows).is_none() {
            // Its session has ended or is filtered out.
            self.cursor = None;
        }
        let at = self.position(rows).unwrap_or(self.top);
        self.top = self.top.min(at).max((at + 1).saturating_sub(height));
        self.top = self.top.min(rows.len().saturating_sub(height));
    }
}

impl Wanted {
    /// Returns the question of the prompt.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Filter => "filter: ".to_owned(),
            Self::Weight { session, name, now } => {
                format!("weight of {name} ({session}), now {now}, from 1 to 10000: ")
            }
            Self::Priority { session, name, now } => {
                format!("priority of {name} ({session}), now {now}; low, normal or high: ")
            }
            Self::Quantum { gpu, now } => format!("quantum of {gpu}, now {now}; like 100ms, or auto: "),
        }
    }

    fn order(&self, text: &str) -> Result<Order, String> {
        let change = |session: SessionId, change| {
            AdminRequest::Session(SessionRequest::Change { which: session.to_string(), change })
        };
        match self {
            Self::Filter => Err(String::new()),
            Self::Weight { session, name, now } => {
                let Weight(weight) = text.parse().map_err(|error| format!("{error}"))?;
                Ok(Order {
                    what: format!("weight of {name} ({session})"),
                    from: now.to_string(),
                    to: weight.to_string(),
                    request: Box::new(change(*session, Change::Weight(weight))),
                })
            }
            Self::Priority { session, name, now } => {
                let priority: Priority = text.parse().map_err(|error| format!("{error}"))?;
                Ok(Order {
                    what: format!("priority of {name} ({session})"),
                    from: now.to_string(),
                    to: priority.to_string(),
                    request: Box::new(change(*session, Change::Priority(priority))),
                })
            }
            Self::Quantum { gpu, now } => {
                let Auto(quantum): Auto<Quantum> = text.parse().map_err(|error| format!("{error}"))?;
                let knob = Knob::Quantum(quantum.map(|quantum| quantum.0));
                Ok(Order {
                    what: format!("quantum of {gpu}"),
                    from: now.clone(),
                    to: quantum.map_or_else(|| "auto".to_owned(), |quantum| short(quantum.0)),
                    request: Box::new(AdminRequest::Set(Setting { gpu: Some(*gpu), knob })),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Nanos;

    use super::super::{rows, sample};
    use super::*;

    struct Rig {
        model: Model,
        screen: Screen,
    }

    impl Rig {
        fn new(access: Access) -> Self {
            let screen = Screen { access, ..Screen::default() };
            Self { model: sample::model(), screen }
        }

        fn rows(&self) -> Vec<Row> {
            rows::rows(&self.model, &sample::names(), &self.screen.selection)
        }

        fn act(&mut self, actions: &[Action]) -> Option<Effect> {
            let mut last = None;
            for &action in actions {
                let rows = self.rows();
                last = self.screen.act(action, &self.model, &rows);
            }
            last
        }

        fn types(&mut self, text: &str) -> Option<Effect> {
            let typed: Vec<Action> = text.chars().map(Action::Type).collect();
            self.act(&typed);
            self.act(&[Action::Accept])
        }

        fn message(&self) -> &str {
            self.screen.message.as_deref().unwrap_or_default()
        }
    }

    #[test]
    fn a_weight_is_sent_only_after_a_yes() {
        let mut rig = Rig::new(Access::Full);
        rig.act(&[Action::Down(1), Action::Down(1), Action::SetWeight]);
        assert_eq!(rig.types("200"), None);
        let Mode::Question(order) = &rig.screen.mode else { panic!("no question") };
        assert_eq!(
            (order.what.as_str(), order.from.as_str(), order.to.as_str()),
            ("weight of notebook (s4)", "100", "200")
        );
        assert_eq!(rig.act(&[Action::No]), None);
        assert_eq!(rig.message(), "weight of notebook (s4) stays 100");

        rig.act(&[Action::SetWeight]);
        rig.types("200");
        let Some(Effect::Send(order)) = rig.act(&[Action::Yes]) else { panic!("nothing sent") };
        let change = SessionRequest::Change { which: "s4".into(), change: Change::Weight(200) };
        assert_eq!(*order.request, AdminRequest::Session(change));
        assert_eq!(rig.screen.mode, Mode::Table);
    }

    #[test]
    fn the_quantum_is_that_of_the_selected_card() {
        let mut rig = Rig::new(Access::Full);
        rig.act(&[Action::NextCard, Action::SetQuantum]);
        rig.types("100ms");
        let Some(Effect::Send(order)) = rig.act(&[Action::Yes]) else { panic!("nothing sent") };
        let knob = Knob::Quantum(Some(Nanos::from_millis(100)));
        assert_eq!(*order.request, AdminRequest::Set(Setting { gpu: Some(GpuId(1)), knob }));
        rig.act(&[Action::NextCard, Action::SetQuantum]);
        rig.types("auto");
        let Some(Effect::Send(order)) = rig.act(&[Action::Yes]) else { panic!("nothing sent") };
        let setting = Setting { gpu: Some(GpuId(0)), knob: Knob::Quantum(None) };
        assert_eq!(*order.request, AdminRequest::Set(setting), "after the last card comes the first");
    }

    #[test]
    fn a_bad_value_says_what_would_be_right_and_can_be_mended() {
        let mut rig = Rig::new(Access::Full);
        rig.act(&[Action::First, Action::SetWeight]);
        rig.types("lots");
        assert_eq!(rig.message(), "`lots` is no weight; write a whole number from 1 to 10000");
        rig.act(&[Action::EraseAll]);
        rig.types("0");
        assert_eq!(rig.message(), "`0` is no weight; write a whole number from 1 to 10000");
        rig.act(&[Action::Erase]);
        rig.types("7");
        assert!(matches!(rig.screen.mode, Mode::Question(_)));
        rig.act(&[Action::No, Action::SetPriority]);
        rig.types("urgent");
        assert!(rig.message().contains("low, normal or high"), "{}", rig.message());
        rig.act(&[Action::Cancel, Action::SetQuantum]);
        rig.types("1us");
        assert!(rig.message().starts_with("quantum is 1ms to 3600s"), "{}", rig.message());
    }

    #[test]
    fn those_who_may_not_change_anything_are_told_why() {
        let mut rig = Rig::new(Access::ReadOnly);
        rig.act(&[Action::First, Action::SetWeight]);
        assert_eq!(rig.screen.mode, Mode::Table);
        assert_eq!(rig.message(), "nothing can be changed with --readonly; start top without it");
        let mut rig = Rig::new(Access::Own);
        rig.act(&[Action::First, Action::SetQuantum]);
        assert_eq!(rig.message(), "only an administrator may change that; run top as the daemon's owner");
    }

    #[test]
    fn without_a_selected_session_there_is_none_to_change() {
        let mut rig = Rig::new(Access::Full);
        rig.act(&[Action::SetWeight]);
        assert!(rig.message().starts_with("select a session first"));
        rig.act(&[Action::FoldUsers, Action::First, Action::SetPriority]);
        assert!(rig.message().starts_with("select a session first"));
    }

    #[test]
    fn a_filter_works_while_it_is_typed_and_escape_removes_it() {
        let mut rig = Rig::new(Access::Full);
        rig.act(&[Action::Filter, Action::Type('t'), Action::Type('r')]);
        assert_eq!(rig.rows().len(), 1);
        rig.act(&[Action::Accept]);
        assert_eq!((rig.screen.mode.clone(), rig.rows().len()), (Mode::Table, 1));
        rig.act(&[Action::Cancel]);
        assert_eq!(rig.rows().len(), 4);
    }

    #[test]
    fn the_cursor_stays_on_its_session_and_in_sight() {
        let mut rig = Rig::new(Access::Full);
        rig.act(&[Action::Last]);
        let rows = rig.rows();
        rig.screen.scroll(&rows, 2);
        assert_eq!((rig.screen.top, rig.screen.position(&rows)), (2, Some(3)));
        rig.act(&[Action::Reverse]);
        let rows = rig.rows();
        rig.screen.scroll(&rows, 2);
        assert_eq!((rig.screen.top, rig.screen.position(&rows)), (0, Some(0)));
        rig.model.sessions.remove(&SessionId(6));
        let rows = rig.rows();
        rig.screen.scroll(&rows, 2);
        assert_eq!(rig.screen.cursor, None);
    }

    #[test]
    fn enter_unfolds_the_selected_user_and_folds_it_again() {
        let mut rig = Rig::new(Access::Full);
        rig.act(&[Action::FoldUsers, Action::First, Action::Toggle]);
        assert_eq!(rig.rows().len(), 4);
        rig.act(&[Action::Toggle]);
        assert_eq!(rig.rows().len(), 3);
    }
}
