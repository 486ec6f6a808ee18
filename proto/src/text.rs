//! The printable characters: those of a tenant's text that terminals, logs and labels may show unchanged.
//!
//! Control characters could command the terminal. Invisible characters and changes of direction would let two
//! sessions have names that look alike, or make a line read as another one.

/// Ranges of invisible characters in ascending order: Unicode's categories Cf, Zl and Zp, fillers that look
/// like white space, and private use.
const INVISIBLE: [(u32, u32); 30] = [
    (0x00ad, 0x00ad),
    (0x034f, 0x034f),
    (0x0600, 0x0605),
    (0x061c, 0x061c),
    (0x06dd, 0x06dd),
    (0x070f, 0x070f),
    (0x0890, 0x0891),
    (0x08e2, 0x08e2),
    (0x115f, 0x1160),
    (0x17b4, 0x17b5),
    (0x180b, 0x180f),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x206f),
    (0x3164, 0x3164),
    (0xe000, 0xf8ff),
    (0xfe00, 0xfe0f),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff0, 0xfffb),
    (0xfffe, 0xffff),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0x1fffe, 0x1ffff),
    (0x2fffe, 0x2ffff),
    (0xe0000, 0xe0fff),
    (0xefffe, 0x10ffff),
];

/// Returns whether a character is visible and controls nothing.
pub fn is_printable(character: char) -> bool {
    let code = u32::from(character);
    let invisible = INVISIBLE.iter().any(|(first, last)| (*first..=*last).contains(&code));
    !(character.is_control() || invisible)
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

    #[test]
    fn the_ranges_are_in_order() {
        assert!(INVISIBLE.iter().all(|(first, last)| first <= last));
        assert!(INVISIBLE.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }
}
