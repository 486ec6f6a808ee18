//! Keys: what each one does on the screen, in a prompt and in a question.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Wish of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Up(usize),
    Down(usize),
    First,
    Last,
    /// Select the next card.
    NextCard,
    /// Sort by the next column, or by the one before.
    Sort {
        forward: bool,
    },
    Reverse,
    Filter,
    /// Fold the cards to a line each, or unfold them.
    FoldCards,
    /// Fold the sessions to a line for each user, or unfold them.
    FoldUsers,
    /// Unfold or fold the selected user.
    Toggle,
    Pause,
    SetWeight,
    SetPriority,
    SetQuantum,
    Help,
    /// Leave a prompt, a question, the help or the filter.
    Cancel,
    /// Text of a prompt.
    Type(char),
    Erase,
    EraseAll,
    Accept,
    Yes,
    No,
}

/// Part of the screen that gets the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Focus {
    Table,
    Prompt,
    Question,
    Help,
}

/// Keys of the table with their meaning, for the help.
pub(super) const HELP: [(&str, &str); 14] = [
    ("↑ ↓ k j", "select a session"),
    ("PgUp PgDn g G", "move by ten, to the first, to the last"),
    ("Tab", "select the next card"),
    ("/", "show only sessions with a text in name, user, state or command"),
    ("s S", "sort by the next or the former column"),
    ("r", "reverse the order"),
    ("f", "fold the cards to a line each"),
    ("u", "fold the sessions to a line for each user"),
    ("Enter", "unfold the selected user"),
    ("Space", "pause the picture"),
    ("w", "set the weight of the selected session"),
    ("p", "set the priority of the selected session"),
    ("t", "set the quantum of the selected card"),
    ("q", "quit"),
];

/// Returns the wish that a key means, if it means one.
pub(super) fn action(key: KeyEvent, focus: Focus) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Action::Quit),
            KeyCode::Char('u') if focus == Focus::Prompt => Some(Action::EraseAll),
            _ => None,
        };
    }
    match focus {
        Focus::Table => table(key.code),
        Focus::Prompt => prompt(key.code),
        Focus::Question => match key.code {
            KeyCode::Char('y' | 'Y') => Some(Action::Yes),
            KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc | KeyCode::Enter => Some(Action::No),
            _ => None,
        },
        Focus::Help => match key.code {
            KeyCode::Char('?' | 'q') | KeyCode::Esc | KeyCode::Enter => Some(Action::Cancel),
            _ => None,
        },
    }
}

fn table(code: KeyCode) -> Option<Action> {
    let action = match code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Up | KeyCode::Char('k') => Action::Up(1),
        KeyCode::Down | KeyCode::Char('j') => Action::Down(1),
        KeyCode::PageUp => Action::Up(10),
        KeyCode::PageDown => Action::Down(10),
        KeyCode::Home | KeyCode::Char('g') => Action::First,
        KeyCode::End | KeyCode::Char('G') => Action::Last,
        KeyCode::Tab => Action::NextCard,
        KeyCode::Char('s') => Action::Sort { forward: true },
        KeyCode::Char('S') => Action::Sort { forward: false },
        KeyCode::Char('r') => Action::Reverse,
        KeyCode::Char('/') => Action::Filter,
        KeyCode::Char('f') => Action::FoldCards,
        KeyCode::Char('u') => Action::FoldUsers,
        KeyCode::Enter => Action::Toggle,
        KeyCode::Char(' ') => Action::Pause,
        KeyCode::Char('w') => Action::SetWeight,
        KeyCode::Char('p') => Action::SetPriority,
        KeyCode::Char('t') => Action::SetQuantum,
        KeyCode::Char('?' | 'h') => Action::Help,
        KeyCode::Esc => Action::Cancel,
        _ => return None,
    };
    Some(action)
}

fn prompt(code: KeyCode) -> Option<Action> {
    match code {
        KeyCode::Char(typed) => Some(Action::Type(typed)),
        KeyCode::Backspace => Some(Action::Erase),
        KeyCode::Enter => Some(Action::Accept),
        KeyCode::Esc => Some(Action::Cancel),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode, focus: Focus) -> Option<Action> {
        action(KeyEvent::from(code), focus)
    }

    #[test]
    fn a_letter_is_a_command_in_the_table_and_a_letter_in_a_prompt() {
        assert_eq!(key(KeyCode::Char('q'), Focus::Table), Some(Action::Quit));
        assert_eq!(key(KeyCode::Char('q'), Focus::Prompt), Some(Action::Type('q')));
        assert_eq!(key(KeyCode::Char('y'), Focus::Table), None);
    }

    #[test]
    fn only_y_confirms_and_enter_does_not() {
        assert_eq!(key(KeyCode::Char('y'), Focus::Question), Some(Action::Yes));
        for code in [KeyCode::Enter, KeyCode::Esc, KeyCode::Char('n')] {
            assert_eq!(key(code, Focus::Question), Some(Action::No));
        }
        assert_eq!(key(KeyCode::Char('w'), Focus::Question), None);
    }

    #[test]
    fn control_c_quits_everywhere() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for focus in [Focus::Table, Focus::Prompt, Focus::Question, Focus::Help] {
            assert_eq!(action(control_c, focus), Some(Action::Quit));
        }
    }

    #[test]
    fn the_help_names_every_key_of_the_table() {
        let named: String = HELP.iter().map(|(keys, _)| format!("{keys} ")).collect();
        let named: Vec<&str> = named.split_whitespace().collect();
        for letter in (' '..='~').filter(|&letter| table(KeyCode::Char(letter)).is_some()) {
            let is_named = named.contains(&letter.to_string().as_str()) || "? h".contains(letter);
            assert!(is_named, "the key `{letter}` is not in the help");
        }
    }
}
