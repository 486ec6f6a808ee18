//! Printable characters, which terminals, logs and labels may show unchanged in a tenant's text.
//!
//! Control characters could command the terminal. Invisible characters and changes of direction would let two
//! sessions have names that look alike, or make a line read as another one.

/// Returns whether a character is visible and does not control the terminal.
pub fn is_printable(character: char) -> bool {
    !character.is_control() && !is_invisible(character)
}

/// Whether a character is of Unicode's categories Cf, Zl or Zp, a filler that looks like white space, or for
/// private use.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{e000}'..='\u{f8ff}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}' | '\u{110bd}'
            | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{1fffe}'..='\u{1ffff}' | '\u{2fffe}'..='\u{2ffff}'
            | '\u{e0000}'..='\u{e0fff}' | '\u{efffe}'..='\u{10ffff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_text_of_any_script_is_printable() {
        for text in ["train-7 (b)", "Öl", "学習", "обучение", "تدريب", "🚀"] {
            assert!(text.chars().all(is_printable), "{text}");
        }
    }

    #[test]
    fn controls_and_invisible_characters_are_not() {
        for character in [
            '\0',
            '\n',
            '\x1b',
            '\x7f',
            '\u{85}',
            '\u{ad}',
            '\u{200b}',
            '\u{200d}',
            '\u{200e}',
            '\u{2028}',
            '\u{202a}',
            '\u{202e}',
            '\u{2066}',
            '\u{2069}',
            '\u{3164}',
            '\u{feff}',
            '\u{fff9}',
            '\u{e0041}',
        ] {
            assert!(!is_printable(character), "{character:?}");
        }
    }
}
