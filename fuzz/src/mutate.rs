//! Bytes that are almost a message: the golden bytes of every release, changed as one who knows the
//! encoding would.

use std::fs;
use std::path::Path;

use anyhow::Context;
use gpushare_tests::dice::Dice;

/// Bytes that mark lengths and numbers of more than one byte, and the ends of the range of one byte.
const MARKS: [u8; 11] = [0, 1, 2, 0x7f, 0x80, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff];

/// The bodies in the golden files of one enum, of every release.
///
/// # Errors
/// There are none, or one is no line of `Name hex`.
pub fn golden(name: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/tests/golden");
    let mut releases = fs::read_dir(&folder)?
        .map(|release| Ok(release?.path()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    releases.sort();
    let mut bodies = Vec::new();
    for release in releases {
        // A release may be older than the enum.
        let text = fs::read_to_string(release.join(name).with_extension("txt")).unwrap_or_default();
        for line in text.lines() {
            let (_, hex) = line.split_once(' ').context("a golden line is `Name hex`")?;
            let byte = |at: usize| Ok(u8::from_str_radix(hex.get(at..at + 2).context("half a byte")?, 16)?);
            bodies.push((0..hex.len()).step_by(2).map(byte).collect::<anyhow::Result<_>>()?);
        }
    }
    Ok(bodies)
}

/// One of these, changed a little or a lot.
#[must_use]
pub fn almost(of: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let Some(mut body) = of.get(dice.index(of.len())).cloned() else {
        return Vec::new();
    };
    for _ in 0..=dice.below(6) {
        change(&mut body, of, dice);
    }
    body
}

fn change(body: &mut Vec<u8>, of: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.index(body.len() + 1);
    let byte = body.get_mut(at);
    match (dice.below(10), byte) {
        (0..2, Some(byte)) => *byte ^= 1 << dice.below(8),
        (2..4, Some(byte)) => *byte = MARKS[dice.index(MARKS.len())],
        (4, Some(_)) => drop(body.remove(at)),
        (5, _) => body.truncate(at),
        (6, _) => {
            // A length or a number: its mark, and as many bytes as follow it.
            let wide = dice.below(3);
            let mark = 0xfb + u8::try_from(wide).unwrap_or(0);
            let value = dice.throw() >> dice.below(64);
            let bytes = value.to_le_bytes();
            body.splice(at..at, [&[mark], &bytes[..2 << wide]].concat());
        }
        (7, _) => {
            let end = at + dice.index(body.len() - at + 1);
            let again = body[at..end].to_vec();
            body.splice(at..at, again);
        }
        (8, _) => {
            let other = &of[dice.index(of.len())];
            let from = dice.index(other.len() + 1);
            body.truncate(at);
            body.extend(&other[from..]);
        }
        _ => {
            let length = dice.index(9);
            body.splice(at..at, dice.bytes(length));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_changes_the_same() {
        let of = [vec![1, 2, 3], vec![4; 40]];
        let some = |seed| {
            let mut dice = Dice::new(seed);
            (0..50).map(|_| almost(&of, &mut dice)).collect::<Vec<_>>()
        };
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
    }
}
