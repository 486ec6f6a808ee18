//! Whole screens as text, compared with the files in `screens/`, and the picture for docs/top.md.
//!
//! After a change of the view, `GPUSHARE_REGENERATE=1 cargo test -p gpushare-ctl top::view` writes them again.

use std::fs;
use std::path::{Path, PathBuf};

use gpushare_proto::follow::LockState;
use gpushare_proto::{Nanos, SessionId};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

use super::super::keys::Action;
use super::super::rows;
use super::super::screen::Effect;
use super::super::{picture, sample};
use super::*;

/// Model and screen that a test draws.
struct Rig {
    model: Model,
    screen: Screen,
    theme: Theme,
}

impl Rig {
    fn new() -> Self {
        Self {
            model: sample::model(),
            screen: Screen::default(),
            theme: Theme { has_colours: true },
        }
    }

    fn act(&mut self, actions: &[Action]) -> Option<Effect> {
        let mut last = None;
        for &action in actions {
            let rows = rows::rows(&self.model, &sample::names(), &self.screen.selection);
            last = self.screen.act(action, &self.model, &rows);
        }
        last
    }

    fn types(&mut self, text: &str) -> Option<Effect> {
        let typed: Vec<Action> = text.chars().map(Action::Type).collect();
        self.act(&typed);
        self.act(&[Action::Accept])
    }

    fn draw(&mut self, (width, height): (u16, u16)) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let rows = rows::rows(&self.model, &sample::names(), &self.screen.selection);
        let area = Rect::new(0, 0, width, height);
        if has_room(width, height) {
            self.screen.scroll(&rows, table_rows(&self.model, &self.screen, area));
        }
        terminal
            .draw(|frame| {
                let shown = (frame.area(), frame.buffer_mut());
                draw(&self.model, &rows, &self.screen, self.theme, shown);
            })
            .unwrap();
        terminal.backend().buffer().clone()
    }

    /// Compares the picture with the file of this name.
    #[track_caller]
    fn shows(&mut self, name: &str, size: (u16, u16)) {
        let cells = self.draw(size);
        let line = |y: u16| {
            let line: String = (0..size.0).map(|x| cells[(x, y)].symbol()).collect();
            line.trim_end().to_owned() + "\n"
        };
        let text: String = (0..size.1).map(line).collect();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/view/screens");
        same(&text, &folder.join(name).with_extension("txt"));
    }
}

/// Compares a text with a file, or writes the file.
#[track_caller]
fn same(text: &str, file: &PathBuf) {
    if std::env::var_os("GPUSHARE_REGENERATE").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let kept = fs::read_to_string(file).unwrap_or_default();
    let hint = "GPUSHARE_REGENERATE=1 cargo test -p gpushare-ctl top::view writes it";
    assert!(text == kept, "{} differs ({hint}):\n{text}", file.display());
}

#[test]
fn a_wide_terminal_shows_everything() {
    Rig::new().shows("wide", (132, 14));
}

#[test]
fn eighty_columns_show_what_matters() {
    Rig::new().shows("eighty", (80, 14));
}

#[test]
fn forty_columns_show_who_uses_what() {
    Rig::new().shows("narrow", (40, 8));
}

#[test]
fn twenty_columns_get_a_sentence() {
    Rig::new().shows("tiny", (20, 6));
}

#[test]
fn a_terminal_of_one_cell_is_no_panic() {
    for size in [(1, 1), (40, 1), (1, 40), (40, 7), (39, 8)] {
        Rig::new().draw(size);
    }
}

#[test]
fn cards_and_users_fold() {
    let mut rig = Rig::new();
    rig.act(&[Action::FoldCards, Action::FoldUsers, Action::Down(1), Action::Down(1), Action::Toggle]);
    rig.shows("folded", (80, 12));
}

#[test]
fn a_change_is_asked_for_before_it_is_made() {
    let mut rig = Rig::new();
    rig.act(&[Action::Down(1), Action::SetWeight, Action::Type('2'), Action::Type('0')]);
    rig.shows("prompt", (80, 12));
    rig.types("0");
    rig.shows("question", (80, 12));
}

#[test]
fn a_wrong_value_is_explained_in_the_prompt() {
    let mut rig = Rig::new();
    rig.act(&[Action::SetQuantum]);
    rig.types("soon");
    rig.shows("mistake", (80, 12));
}

#[test]
fn a_filter_is_named_until_it_is_removed() {
    let mut rig = Rig::new();
    rig.act(&[Action::Filter]);
    rig.types("ana");
    rig.shows("filter", (80, 12));
    rig.act(&[Action::Filter, Action::EraseAll]);
    rig.types("nobody");
    rig.shows("filter-without-sessions", (80, 12));
}

#[test]
fn what_is_unusual_stands_first() {
    let mut rig = Rig::new();
    rig.screen.lost = Some("no daemon; trying again".into());
    rig.screen.message = Some("the daemon at /run/gpushare/admin.sock has ended".into());
    rig.act(&[Action::Pause]);
    rig.model.daemon.recovering = 2;
    let session = rig.model.sessions.get_mut(&SessionId(3)).unwrap();
    session.figures.as_mut().unwrap().lock = LockState::Stuck;
    rig.model.at += Nanos::from_secs(2);
    rig.shows("unusual", (100, 14));
}

#[test]
fn a_user_sees_others_as_numbers() {
    let mut rig = Rig::new();
    rig.screen.access = Access::Own;
    rig.model.sessions.retain(|id, _| *id == SessionId(4));
    rig.act(&[Action::First, Action::SetWeight]);
    rig.shows("own", (80, 14));
}

#[test]
fn an_empty_daemon_says_how_to_begin() {
    let mut rig = Rig::new();
    rig.model.sessions.clear();
    rig.model.cards.clear();
    rig.shows("empty", (80, 8));
}

#[test]
fn the_help_lists_the_keys() {
    let mut rig = Rig::new();
    rig.act(&[Action::FoldCards, Action::Help]);
    rig.shows("help", (80, 20));
}

#[test]
fn without_colours_the_selected_row_and_titles_are_still_marked() {
    let mut rig = Rig::new();
    rig.act(&[Action::Down(1)]);
    rig.theme = Theme { has_colours: false };
    let cells = rig.draw((80, 14));
    assert!(
        cells
            .content
            .iter()
            .all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset)
    );
    let reversed = |cell: &&ratatui::buffer::Cell| cell.modifier.contains(Modifier::REVERSED);
    assert_eq!(cells.content.iter().filter(reversed).count(), 80);
    rig.theme = Theme { has_colours: true };
    assert!(rig.draw((80, 14)).content.iter().any(|cell| cell.fg == Color::Green));
}

#[test]
fn a_name_cannot_steer_the_terminal() {
    let mut rig = Rig::new();
    rig.model.sessions.get_mut(&SessionId(3)).unwrap().facts.name = "\u{1b}[2Jgone\u{202e}".into();
    let cells = rig.draw((132, 14));
    let text: String = cells.content.iter().map(ratatui::buffer::Cell::symbol).collect();
    assert!(text.contains("?[2Jgone?"), "{text}");
}

#[test]
fn the_page_describes_every_key_and_every_column() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/top.md")).unwrap();
    for key in HELP.iter().flat_map(|(keys, _)| keys.split_whitespace()) {
        assert!(page.contains(&format!("`{key}`")), "docs/top.md does not describe the key {key}");
    }
    for title in sessions::titles() {
        assert!(page.contains(&format!("`{title}`")), "docs/top.md does not describe the column {title}");
    }
}

#[test]
fn the_picture_for_the_page_is_up_to_date() {
    let mut rig = Rig::new();
    rig.act(&[Action::Down(1), Action::Down(1)]);
    let figure = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/figures/top.svg");
    same(&picture::svg(&rig.draw((132, 14))), &figure);
}
