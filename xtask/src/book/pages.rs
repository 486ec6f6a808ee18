//! Markdown of the repository, as the tests read it.

use std::fs;
use std::path::{Path, PathBuf};

use gpushare_tests::cargo;

use crate::promises::listed;

/// One page.
#[derive(Clone, Debug)]
pub(super) struct Page {
    /// Path below the repository's folder.
    pub(super) path: PathBuf,
    text: String,
}

/// Returns all pages of the repository.
pub(super) fn all() -> Vec<Page> {
    let paths = listed("*.md").unwrap();
    paths.into_iter().map(|path| Page::read(Path::new(&path))).collect()
}

impl Page {
    pub(super) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(cargo::workspace().join(path)).unwrap();
        Self { path: path.to_owned(), text }
    }

    #[cfg(test)]
    pub(super) fn of(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.to_owned() }
    }

    /// Returns the lines with their numbers and the language of their code block; none outside of one.
    fn lines(&self) -> impl Iterator<Item = (usize, Option<&str>, &str)> {
        let mut block = None;
        (1..).zip(self.text.lines()).filter_map(move |(number, line)| {
            match (line.trim_start().strip_prefix("```"), block) {
                (Some(language), None) => block = Some(language),
                (Some(_), Some(_)) => block = None,
                (None, _) => return Some((number, block, line)),
            }
            None
        })
    }

    /// Returns the lines of blocks with commands, with their numbers.
    pub(super) fn commands(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_shell = |block: Option<&str>| matches!(block, Some("" | "console" | "sh"));
        self.lines()
            .filter(move |(_, block, _)| is_shell(*block))
            .map(|(number, _, line)| (number, line))
    }

    /// Returns the text outside of code blocks.
    pub(super) fn prose(&self) -> String {
        let lines = self.lines().filter(|(_, block, _)| block.is_none());
        lines.map(|(_, _, line)| format!("{line}\n")).collect()
    }

    /// Returns what stands between single backticks outside of code blocks.
    pub(super) fn spans(&self) -> Vec<String> {
        self.prose().split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// Returns the targets of links and pictures.
    pub(super) fn links(&self) -> Vec<String> {
        // Links stand outside of backticks.
        let prose: Vec<String> = self.prose().split('`').step_by(2).map(str::to_owned).collect();
        let prose = prose.join("`");
        let ends = prose.split("](").skip(1);
        ends.filter_map(|rest| rest.split_once(')'))
            .map(|(target, _)| target.to_owned())
            .collect()
    }

    /// Returns the anchors of the headings, as mdbook and GitHub make them.
    pub(super) fn anchors(&self) -> Vec<String> {
        let mut anchors: Vec<String> = Vec::new();
        let prose = self.prose();
        let titles = prose.lines().filter(|line| line.starts_with('#'));
        for title in titles.map(|line| line.trim_start_matches('#').trim()) {
            let letters = title.to_lowercase().replace(' ', "-");
            let anchor: String = letters
                .chars()
                .filter(|&c| c.is_alphanumeric() || c == '-' || c == '_')
                .collect();
            let same = anchors.iter().filter(|known| **known == anchor).count();
            anchors.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
        }
        anchors
    }
}
