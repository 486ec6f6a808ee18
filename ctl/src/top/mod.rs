//! Command `top`: shows cards and sessions live, and changes weights, priorities and quanta by keys.
//!
//! ```text
//!   daemon ── increments ──▶ feed ──▶ model ──▶ rows ──▶ view ──▶ terminal, text
//!     ▲                               screen ──┴──────────▲        └▶ JSON from the model
//!     └──── orders ◀── confirmed ──────┴── keys ◀── terminal
//! ```
//!
//! Model, rows, screen and view are pure. Only `feed`, `names` and `run` read and write anything.

mod model;
mod names;
mod rows;
mod keys;
mod screen;
mod view;
mod text;
mod json;
mod feed;
mod run;
#[cfg(test)]
mod picture;
#[cfg(test)]
mod sample;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use crate::cli::TopArgs;
use crate::exit::{CommandError, CtlError};
use crate::output;
use crate::places::Places;
use feed::Feed;
use model::Model;
use names::Names;
use rows::Selection;
use screen::{Access, Screen};
use view::Theme;

/// Columns of `--once` where the output is no terminal.
const COLUMNS: u16 = 132;

/// Reason why the terminal cannot be used.
#[derive(Debug, thiserror::Error)]
enum TopError {
    #[error("standard output is no terminal; use `gpushare-ctl top --once` or `gpushare-ctl top --json`")]
    NoTerminal,
    #[error("{}", view::too_small(*.0, *.1))]
    TooSmall(u16, u16),
    #[error("the terminal cannot be used: {0}; use `gpushare-ctl top --once`")]
    Terminal(io::Error),
}

impl CommandError for TopError {}

pub(crate) fn top(args: &TopArgs, places: Places) -> Result<ExitCode, CtlError> {
    let is_live = !(args.once || args.json);
    if is_live && !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal.into());
    }
    let size = size()?;
    if let Some((width, height)) = size.filter(|_| !args.json)
        && !view::has_room(width, if is_live { height } else { view::LEAST.1 })
    {
        return Err(TopError::TooSmall(width, height).into());
    }
    let (mut feed, first) = Feed::open(&places)?;
    let access = match (feed.is_admin(), args.readonly) {
        (false, _) => Access::Own,
        (true, true) => Access::ReadOnly,
        (true, false) => Access::Full,
    };
    let mut model = Model::default();
    let mut names = Names::default();
    names.connected(feed.shares_pids(&first));
    model.apply(first);
    let screen = Screen { access, ..Screen::default() };
    if is_live {
        return run::run((model, names, screen), feed, places);
    }
    // The parts of the time, and the sensors, need a second message.
    model.apply(feed.next()?);
    names.look_up_all(&model);
    if args.json {
        output::print_json(&json::document(&model, &names))?;
        return Ok(ExitCode::SUCCESS);
    }
    let theme = Theme { has_colours: output::has_colours() };
    let rows = rows::rows(&model, &names, &Selection::default());
    let width = size.map_or(COLUMNS, |(width, _)| width);
    let height = view::height_for(&model, &screen, rows.len());
    output::print(&text::page(&model, &rows, &screen, theme, (width, height)))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns columns and lines of the terminal, if the output is one.
fn size() -> Result<Option<(u16, u16)>, CtlError> {
    if !io::stdout().is_terminal() {
        return Ok(None);
    }
    let size = ratatui::crossterm::terminal::size().map_err(TopError::Terminal)?;
    // A terminal without a size, such as a serial line, says 0.
    Ok(Some(size).filter(|&(width, height)| width > 0 && height > 0))
}
