//! Picture of a notebook whose last cell waits: what a kernel showed, drawn as Jupyter draws it.
//!
//! It is in `target/notebook/`. With `GPUSHARE_REGENERATE=1` it becomes that of docs/figures.

use std::path::Path;
use std::{env, fs};

use anyhow::{Context, ensure};
use gpushare_tests::cargo;
use serde::Deserialize;

use crate::chromium::{Chromium, Look};

const LOOK: Look = Look { width: 760, height: 300, scale: 1.0, dark: false };
/// Largest size of a picture in docs/figures.
const MOST_BYTES: usize = 150_000;
const STYLE: &str = "\
body { margin: 0; padding: 12px 16px; font: 14px/1.4 monospace; color: #1f2328; background: #fff; }
.cell { display: grid; grid-template-columns: 56px 1fr; margin-bottom: 8px; }
.prompt { color: #307fc1; padding: 6px 0; }
pre { margin: 0; padding: 6px 8px; white-space: pre-wrap; font: inherit; }
.source { background: #f5f5f5; border: 1px solid #cfcfcf; }
.under { grid-column: 2; }";

/// Cell of a notebook with what is under it.
#[derive(Debug, Deserialize)]
struct Cell {
    /// Number that Jupyter shows; none while the cell runs.
    number: Option<u32>,
    source: String,
    under: String,
}

/// Draws the cells in a file that the script wrote. The last one must wait.
pub(super) fn draw(cells: &Path, folder: &Path) -> anyhow::Result<()> {
    let cells: Vec<Cell> = serde_json::from_slice(&fs::read(cells)?)?;
    let last = cells.last().context("the script wrote no cells")?;
    ensure!(last.number.is_none() && last.under.starts_with("waiting for the GPU for "), "{last:?}");
    let page = folder.join("notebook.html");
    fs::write(&page, html(&cells))?;
    let mut browser = Chromium::start(folder)?;
    let tab = browser.open(&format!("file://{}", page.display()), LOOK)?;
    browser
        .until(&tab, "document.readyState === 'complete' && document.body.innerText.includes('waiting')")?;
    let size = "[document.documentElement.scrollWidth, document.body.offsetHeight]";
    let size: [u32; 2] = serde_json::from_value(browser.value(&tab, size)?)?;
    ensure!(size[0] <= LOOK.width, "the picture is {} pixels too wide", size[0] - LOOK.width);
    browser.show(&tab, Look { height: size[1], ..LOOK })?;
    browser.until(&tab, &format!("innerHeight === {}", size[1]))?;
    let picture = browser.picture(&tab)?;
    ensure!(picture.len() < MOST_BYTES, "the picture has {} bytes", picture.len());
    let target = match env::var_os("GPUSHARE_REGENERATE") {
        Some(_) => cargo::workspace().join("docs/figures"),
        None => cargo::workspace().join("target/notebook"),
    };
    fs::create_dir_all(&target)?;
    Ok(fs::write(target.join("notebook.png"), picture)?)
}

fn html(cells: &[Cell]) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let cell = |cell: &Cell| {
        let number = cell.number.map_or_else(|| "*".to_owned(), |number| number.to_string());
        format!(
            "<div class=cell><div class=prompt>[{number}]:</div><pre class=source>{}</pre><pre class=under>{}</pre></div>\n",
            escaped(&cell.source),
            escaped(cell.under.trim_end())
        )
    };
    let cells: String = cells.iter().map(cell).collect();
    format!("<!doctype html><meta charset=utf-8><title>Notebook</title><style>{STYLE}</style>\n{cells}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_text_and_a_running_one_has_a_star() {
        let cell = Cell { number: None, source: "a < b".into(), under: "waiting\n".into() };
        let page = html(&[cell]);
        assert!(
            page.contains("[*]:</div><pre class=source>a &lt; b</pre><pre class=under>waiting</pre>"),
            "{page}"
        );
    }
}
