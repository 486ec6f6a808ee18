//! Command `run --dry-run`: prints whether the program's memory would fit and how long its waits may be.

use std::process::ExitCode;

use gpushare_proto::Nanos;
use gpushare_proto::dry_run::{CardForecast, DryRunSession, Forecast};
use gpushare_proto::tenant::{TenantReply, TenantRequest};

use super::{RunError, program, start, token, wish};
use crate::cli::RunArgs;
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::table::{harmless, short};

/// Exit code of `run --dry-run` for a program that would take turns with others.
const TURNS: u8 = 1;

/// Prints the forecast. Returns 0 for a program that would run beside others, 1 for one that would take
/// turns.
pub(crate) fn dry_run(args: &RunArgs, places: &Places) -> Result<ExitCode, CtlError> {
    if let Some(name) = args.command.first() {
        program::find(name).map_err(RunError::from)?;
    }
    let Some((daemon, mut client)) = start::running(places).map_err(RunError::from)? else {
        output::show(args.json, &None::<Forecast>, || {
            "no daemon runs, so no card is shared: `run` would start one, and the program would not wait\n"
                .to_owned()
        })?;
        return Ok(ExitCode::SUCCESS);
    };
    let prospect = match &args.session {
        Some(which) => {
            let (_, token) = token::find(places.secrets(&daemon), which).map_err(RunError::from)?;
            DryRunSession::Existing(token)
        }
        None => DryRunSession::New(wish(args)?),
    };
    let answer = client.ask(&TenantRequest::DryRun(prospect)).map_err(RunError::from)?;
    let TenantReply::DryRun(forecast) = answer else {
        return Err(RunError::from(client.unexpected()).into());
    };
    output::show(args.json, &Some(&forecast), || page(&forecast))?;
    let waits = |card: &CardForecast| card.bound_ns != Some(Nanos::ZERO);
    Ok(match forecast.cards.iter().any(waits) {
        true => ExitCode::from(TURNS),
        false => ExitCode::SUCCESS,
    })
}

fn page(forecast: &Forecast) -> String {
    let mut lines = vec![match (&forecast.name, forecast.session) {
        (Some(name), Some(id)) => format!("session {name} ({id}), which is there"),
        (Some(name), None) => format!("a new session {name}"),
        (None, _) => "a new session".to_owned(),
    }];
    if forecast.cards.is_empty() {
        lines.push(
            "the daemon knows no card yet, since no program uses one: the program would not wait".to_owned(),
        );
    }
    for card in &forecast.cards {
        lines.push(String::new());
        lines.extend(on_card(card));
    }
    lines.iter().map(|line| harmless(line) + "\n").collect()
}

fn on_card(card: &CardForecast) -> Vec<String> {
    let CardForecast { gpu, uuid, capacity_bytes, used_bytes, promised_bytes, free_bytes, .. } = card;
    let fit = if card.fits { "fits" } else { "does not fit" };
    let mut lines = vec![
        format!(
            "{gpu} ({uuid}): {free_bytes} of the capacity of {capacity_bytes} are free; other sessions use {used_bytes} and have quotas of {promised_bytes}"
        ),
        match card.asked_bytes {
            Some(asked) if asked > *capacity_bytes => {
                format!(
                    "  {asked} does not fit: it is more than the card's capacity, which needs --oversubscribe"
                )
            }
            Some(asked) => format!("  {asked} {fit} beside them"),
            None => {
                "  no quota is given, so the program's use is not known; state it with --memory".to_owned()
            }
        },
        match card.mode == card.mode_then {
            true => format!("  the card is shared {}, and stays so", card.mode),
            false => format!("  the card is shared {} now, and {} then", card.mode, card.mode_then),
        },
    ];
    if card.bound_ns == Some(Nanos::ZERO) {
        lines.push("  it would run at once, without turns".to_owned());
        return lines;
    }
    for (number, ahead) in (1..).zip(&card.ahead) {
        let name = if ahead.name.is_empty() { "another session" } else { &ahead.name };
        lines.push(format!(
            "  ahead  {number}. {name} ({}): a turn of about {}",
            ahead.session,
            short(ahead.turn_ns)
        ));
    }
    lines.push(format!(
        "  its own turn takes about {}, and a handoff about {}",
        short(card.quantum_ns),
        short(card.switch_ns)
    ));
    lines.push(match card.bound_ns {
        Some(bound) => {
            format!("  it waits at most {} for a turn, as long as the sessions stay these", short(bound))
        }
        None => {
            "  the daemon cannot tell how long it waits; `gpushare-ctl status` shows the reason".to_owned()
        }
    });
    lines
}
