//! The page of the daemon in headless Chromium: programs take turns on the simulated card, and the page shows
//! them in light, dark and on a phone, changes a setting by keyboard, and outlives a restart of the daemon.
//!
//! The pictures are in `target/dashboard/`. With `GPUSHARE_REGENERATE=1` the programs run for a minute first,
//! and the pictures become those of docs/figures.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, ensure};
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::cargo;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::training::Training;
use gpushare_tests::world::{Sharing, World};
use serde_json::{Value, json};

use crate::chromium::{Chromium, Look, Tab};

/// Programs that take turns: session, memory and more flags of `gpushare-ctl run`.
const PROGRAMS: [(&str, u64, &[&str]); 4] = [
    ("ana-notebook", 60, &["--memory", "96MiB"]),
    ("bob-train", 96, &["--weight", "200"]),
    ("ci-eval", 40, &[]),
    ("dan-render", 72, &["--priority", "low"]),
];
/// Handoffs before the pictures are made, for the check and for those of docs/figures.
const HANDOFFS: [u64; 2] = [8, 140];
/// Longest wait for the handoffs.
const PATIENCE: Duration = Duration::from_secs(180);
/// Largest size of a picture in docs/figures.
const MOST_BYTES: usize = 150_000;

const WIDE: Look = Look { width: 1100, height: 680, scale: 1.0, dark: false };
const PHONE: Look = Look { width: 360, height: 1380, scale: 1.0, dark: false };

pub(super) fn check() -> anyhow::Result<()> {
    let is_for_docs = env::var_os("GPUSHARE_REGENERATE").is_some();
    let folder = match is_for_docs {
        true => cargo::workspace().join("docs/figures"),
        false => cargo::workspace().join("target/dashboard"),
    };
    fs::create_dir_all(&folder)?;
    let world = World::simulated(Artifacts::of_tests()?, Bytes::mib(256))?;
    // A fixed port, so that a page finds the next daemon. A free one now is most likely free then too.
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let flags = ["--capacity", "0=160MiB", "--quantum", "800ms", "--dashboard", &address];
    let mut daemon = Daemon::start(&world, &flags)?;
    let mut programs = Vec::new();
    for (name, memory, flags) in PROGRAMS {
        let sharing = Sharing::session(name).and(flags);
        let work = ["--steps", "100000", "--compute", "20ms"];
        programs.push(Training::start(&world, &sharing, name, Bytes::mib(memory), &work)?);
    }
    let mut browser = Chromium::start(world.folder())?;

    let guest = browser.open(&format!("http://{address}/"), WIDE)?;
    browser.until(&guest, "document.querySelectorAll('#sessions tr').length === 4")?;
    let text = browser
        .value(&guest, "document.body.innerText + document.body.innerHTML")?
        .to_string();
    let named = PROGRAMS.iter().find(|(name, ..)| text.contains(name));
    ensure!(named.is_none(), "a page without a key names {named:?}");
    ensure!(browser.value(&guest, CHANGES)? == 0, "a page without a key has something to change");

    let tab = browser.open(&link(&daemon)?, WIDE)?;
    browser.until(&tab, "document.getElementById('role').textContent === 'you may change settings'")?;
    ensure!(
        browser.value(&tab, "location.href")? == format!("http://{address}/"),
        "the secret is in the bar"
    );
    for (name, ..) in PROGRAMS {
        browser.until(&tab, &format!("document.getElementById('sessions').innerText.includes('{name}')"))?;
    }
    let handoffs = HANDOFFS[usize::from(is_for_docs)];
    browser.until_within(&tab, &format!("state.cards.get(0).handoffs >= {handoffs}"), PATIENCE)?;
    browser.until(&tab, DRAWN)?;
    pictures(&mut browser, &tab, &folder)?;
    change_by_keyboard(&mut browser, &tab, &daemon)?;
    let complaints = browser.complaints();
    ensure!(complaints.is_empty(), "the browser complains: {complaints:?}");

    // The daemon goes away and comes back.
    daemon.kill()?;
    browser.until(&tab, "document.getElementById('connection').textContent.includes('no answer')")?;
    daemon.restart()?;
    browser.until(&tab, "document.getElementById('connection').textContent === 'live'")?;
    browser
        .until(&tab, "document.getElementById('notice').textContent.includes('gpushare-ctl dashboard')")?;
    programs.iter_mut().try_for_each(Training::kill)
}

/// Number of visible buttons that change something.
const CHANGES: &str = "[...document.querySelectorAll('main button')].filter((button) => \
                       button.offsetParent && button.textContent.includes('Change')).length";
/// Whether the timeline has pixels of a colour, and not only grey ones.
const DRAWN: &str = "(() => { const canvas = document.querySelector('canvas'); draw(); \
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height); \
    let coloured = 0; \
    for (let at = 0; at < data.length; at += 4) \
      if (data[at + 3] > 200 && Math.max(data[at], data[at + 1], data[at + 2]) \
        - Math.min(data[at], data[at + 1], data[at + 2]) > 60) coloured += 1; \
    return coloured > 500; })()";

/// Asks for a link to the page.
fn link(daemon: &Daemon) -> anyhow::Result<String> {
    let view: Value = serde_json::from_str(&daemon.ctl(&["dashboard", "--json"])?)?;
    Ok(view["url"].as_str().context("no link")?.to_owned())
}

/// Makes the pictures, and checks that nothing is wider than the window. A picture that is too wide is written, too.
fn pictures(browser: &mut Chromium, tab: &Tab, folder: &Path) -> anyhow::Result<()> {
    for (name, look) in [
        ("dashboard-light", WIDE),
        ("dashboard-dark", Look { dark: true, ..WIDE }),
        ("dashboard-narrow", PHONE),
    ] {
        browser.show(tab, look)?;
        browser.until(tab, &format!("innerWidth === {}", look.width))?;
        browser.until(tab, DRAWN)?;
        let wide = browser.value(tab, "document.documentElement.scrollWidth - innerWidth")?;
        let page = browser.value(tab, "getComputedStyle(document.body).backgroundColor")?;
        let is_dark = page == "rgb(20, 23, 27)";
        ensure!(is_dark == look.dark, "{name} has the background {page}");
        let picture = browser.picture(tab)?;
        ensure!(picture.len() < MOST_BYTES, "{name} has {} bytes", picture.len());
        let path: PathBuf = folder.join(format!("{name}.png"));
        fs::write(&path, picture).with_context(|| format!("cannot write {}", path.display()))?;
        ensure!(wide.as_i64().is_some_and(|wide| wide <= 0), "{name} is {wide} pixels too wide");
    }
    browser.show(tab, WIDE)
}

/// Changes the weight of a session with the keyboard alone.
fn change_by_keyboard(browser: &mut Chromium, tab: &Tab, daemon: &Daemon) -> anyhow::Result<()> {
    let (name, weight) = ("ci-eval", 300);
    let focused = "document.activeElement.getAttribute('aria-label')";
    browser.value(tab, "document.getElementById('filter').focus()")?;
    for _ in 0..20 {
        browser.press(tab, "Tab", 9)?;
        if browser.value(tab, focused)? == format!("Change {name}") {
            break;
        }
    }
    ensure!(browser.value(tab, focused)? == format!("Change {name}"), "the Tab key does not reach {name}");
    browser.press(tab, "Enter", 13)?;
    browser.until(tab, "document.getElementById('change').open")?;
    browser.value(tab, "document.getElementById('value').select()")?;
    browser.value(tab, "document.getElementById('value').focus()")?;
    browser.write(tab, &weight.to_string())?;
    browser.press(tab, "Enter", 13)?;
    let question = format!("Really set weight of {name} to {weight}?");
    browser.until(tab, &format!("document.getElementById('question').textContent === '{question}'"))?;
    ensure!(daemon.session(name)?.state.terms.weight == 100, "it changed before it was confirmed");
    browser.press(tab, "Enter", 13)?;
    browser.until(tab, "!document.getElementById('change').open")?;
    ensure!(daemon.session(name)?.state.terms.weight == weight, "the weight did not change");
    let row = format!(
        "[...state.sessions.values()].some((row) => row.name === '{name}' && row.weight === {weight})"
    );
    browser.until(tab, &row)?;
    // A wrong value is answered in the dialog, and Escape leaves it.
    let refused = browser.value(
        tab,
        "fetch('/api/change', { method: 'POST', headers: headers({ 'Content-Type': 'application/json' }), \
         body: JSON.stringify({ set: 'mode', gpu: 9, value: 'auto' }) }).then((answer) => answer.status)",
    )?;
    ensure!(refused == json!(404), "a card that does not exist was changed: {refused}");
    // That answer is in the browser's log, and is no complaint about the page.
    browser.complaints();
    browser.press(tab, "Enter", 13)?;
    browser.until(tab, "document.getElementById('change').open")?;
    browser.press(tab, "Escape", 27)?;
    browser.until(tab, "!document.getElementById('change').open")
}
