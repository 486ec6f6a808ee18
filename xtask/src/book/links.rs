//! Tests of links: each one leads to a file and a heading, and each page of docs/ is in the book.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use gpushare_tests::cargo;

use super::pages::{self, Page};

/// Folder of the book's pages.
const BOOK: &str = "docs";

/// Returns a path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// Says what is wrong with a link of a page; nothing if it leads somewhere.
fn wrong(page: &Page, link: &str) -> Option<String> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = page.path.parent().unwrap_or(Path::new(""));
    let target = match file {
        "" => page.path.clone(),
        file => plain(&folder.join(file)),
    };
    if !file.is_empty() && !cargo::workspace().join(&target).exists() {
        return Some("there is no such file".to_owned());
    }
    // The book has nothing of what is outside of its folder.
    if page.path.starts_with(BOOK) && !target.starts_with(BOOK) {
        return Some("it leads out of the book".to_owned());
    }
    let is_known = || match target == page.path {
        true => page.anchors().iter().any(|known| known == anchor),
        false => Page::read(&target).anchors().iter().any(|known| known == anchor),
    };
    (!anchor.is_empty() && !is_known()).then(|| "there is no such heading".to_owned())
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut links = 0;
    let mut dead = Vec::new();
    for page in pages::all() {
        for link in page.links().into_iter().filter(|link| !link.contains("://")) {
            links += 1;
            dead.extend(wrong(&page, &link).map(|why| format!("{}: {link}: {why}", page.path.display())));
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
    assert!(links > 100, "only {links} links were found");
}

#[test]
fn every_page_of_the_documentation_is_in_the_summary_once() {
    let summary = Page::read(Path::new("docs/SUMMARY.md"));
    let listed: Vec<PathBuf> = summary.links().iter().map(|link| Path::new(BOOK).join(link)).collect();
    let unique: BTreeSet<PathBuf> = listed.iter().cloned().collect();
    assert_eq!(unique.len(), listed.len(), "a page is listed twice");
    let pages = pages::all().into_iter().map(|page| page.path);
    let pages: BTreeSet<PathBuf> =
        pages.filter(|path| path.starts_with(BOOK) && *path != summary.path).collect();
    assert_eq!(unique, pages);
}

#[test]
fn a_dead_link_is_found() {
    let page = Page::of("docs/x.md", "# A title, and `code`\n[a](#a-title-and-code) [b](#b) [c](none.md)\n");
    assert_eq!(page.anchors(), ["a-title-and-code"]);
    let found: Vec<_> = page.links().iter().map(|link| wrong(&page, link).is_some()).collect();
    assert_eq!(found, [false, true, true]);
    assert!(wrong(&page, "../README.md").unwrap().contains("out of the book"));
    assert_eq!(wrong(&page, "install.md#python-wheel"), None);
}
