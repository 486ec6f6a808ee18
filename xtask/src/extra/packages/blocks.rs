//! Commands of docs/install.md: its `console` blocks, by the heading above them.

use std::collections::BTreeMap;
use std::env;

use anyhow::ensure;

use crate::debian;
use crate::dist::VERSION;

const PAGE: &str = include_str!("../../../../docs/install.md");

/// Shell commands by names like `archive`, or `python-wheel-2` for the second block below a heading.
pub(super) struct Blocks(BTreeMap<String, String>);

impl Blocks {
    /// Reads the page, with this machine's architecture in place of x86-64.
    pub(super) fn read() -> anyhow::Result<Self> {
        let page = PAGE
            .replace("x86_64", env::consts::ARCH)
            .replace("_amd64", &format!("_{}", debian::architecture()));
        let blocks = parse(&page);
        for (name, commands) in &blocks {
            let names_files = commands.contains("gpushare-0") || commands.contains("gpushare_0");
            ensure!(
                !names_files
                    || commands.contains(&format!("gpushare-{VERSION}-"))
                    || commands.contains(&format!("_{VERSION}_")),
                "the commands of {name} in docs/install.md are for another version than {VERSION}"
            );
        }
        Ok(Self(blocks))
    }

    /// The commands of a block, one a line; none if there is no such block.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0
            .get(name)
            .map_or("false # docs/install.md has no such block", String::as_str)
    }
}

fn parse(page: &str) -> BTreeMap<String, String> {
    let mut blocks = BTreeMap::new();
    let (mut heading, mut block) = (String::new(), None);
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title.to_lowercase().replace(' ', "-").replace('.', "");
        } else if line == "```console" {
            block = Some(Vec::new());
        } else if line == "```" {
            if let Some(commands) = block.take() {
                let number = (1..).find(|number| !blocks.contains_key(&name(&heading, *number)));
                blocks.insert(name(&heading, number.unwrap_or(1)), commands.join("\n"));
            }
        } else if let (Some(commands), Some(command)) = (&mut block, line.strip_prefix("$ ")) {
            commands.push(command);
        }
    }
    blocks
}

fn name(heading: &str, number: usize) -> String {
    if number == 1 { heading.to_owned() } else { format!("{heading}-{number}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_their_headings() {
        let page =
            "## Two ways.sh\n```console\n$ one\n$ two\n```\ntext\n```sh\nno\n```\n```console\n$ three\n```\n";
        let blocks = parse(page);
        assert_eq!(blocks["two-wayssh"], "one\ntwo");
        assert_eq!(blocks["two-wayssh-2"], "three");
        assert_eq!(blocks.len(), 2);
    }

    #[test]
    fn the_page_names_files_of_this_version() {
        let blocks = Blocks::read().unwrap();
        for name in ["python-wheel", "archive", "archive-with-installsh", "debian-package", "source"] {
            assert!(!blocks.get(name).starts_with("false"), "{name}");
        }
    }
}
