//! `run`: registers or joins a session and becomes the program.
//!
//! ```text
//!   library, program               checked first: a command that cannot run starts nothing
//!   daemon                         the first that answers, else the user's own is started
//!   Register ──▶ Session           the daemon binds the new session to our pid, which exec keeps
//!   or Join  ──▶ SessionMemory     an existing session: all descendants of our pid belong to it
//!   token file, environment        with these the program and its children join
//!   exec
//! ```

mod detach;
pub(crate) mod dry;
mod elf;
pub(crate) mod library;
pub(crate) mod preload;
pub(crate) mod program;
pub(crate) mod reach;
pub(crate) mod start;
pub(crate) mod token;

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use gpushare_proto::names::{BACKEND, PARANOID, RUNTIME_DIR, RuntimeDir, TOKEN_FILE};
use gpushare_proto::tenant::{GpuChoice, NewSession, TenantReply, TenantRequest};
use gpushare_proto::{Backend, GpuUuid};

pub(crate) use self::detach::detach;
use self::reach::Reach;
use crate::cli::{EnvironmentError, RunArgs};
use crate::exit::{self, CommandError};
use crate::places::Places;
use crate::table::harmless;
use gpushare_connection::{Client, ClientError, Tenant};

const PRELOAD: &str = "LD_PRELOAD";
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// Reason why the program was not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Library(#[from] library::LibraryError),
    #[error(transparent)]
    Program(#[from] program::ProgramError),
    #[error(transparent)]
    Start(#[from] start::StartError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Token(#[from] token::TokenError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(
        "the token of {0} is invalid: its session was deleted or revoked, or has another token; see `gpushare-ctl session list`"
    )]
    Unknown(String),
    #[error("the daemon does not know card {0} yet; name the card by its UUID (`nvidia-smi -L`)")]
    UnknownCard(String),
    #[error(
        "--paranoid checks memory that moves by --backend remap; name that backend, or leave --paranoid out"
    )]
    NothingToCheck,
    #[error(
        "`{program}` cannot be executed: {cause}; check the interpreter in its first line, and that it is built for this machine"
    )]
    Exec { program: String, cause: io::Error },
}

impl CommandError for RunError {
    fn code(&self) -> u8 {
        match self {
            Self::Program(program::ProgramError::NotFound(_)) => exit::PROGRAM_NOT_FOUND,
            Self::Program(program::ProgramError::NotExecutable { .. }) => exit::NOT_EXECUTABLE,
            Self::Exec { cause, .. } if cause.kind() == ErrorKind::NotFound => exit::PROGRAM_NOT_FOUND,
            Self::Exec { .. } => exit::NOT_EXECUTABLE,
            _ => exit::RUN_FAILED,
        }
    }
}

/// Path of the token file of the session that the program will belong to, and the session's card.
type Registered = (PathBuf, Option<GpuUuid>);

/// Registers or joins a session and replaces this process by the program; returns only on failure.
pub(crate) fn run(args: &RunArgs, places: &Places) -> Result<Infallible, RunError> {
    if args.paranoid && backend(args) != Some(Backend::Remap) {
        return Err(RunError::NothingToCheck);
    }
    let missing = || program::ProgramError::NotFound(String::new());
    let (name, arguments) = args.command.split_first().ok_or_else(missing)?;
    let library = library::find()?;
    let program = program::find(name)?;
    let (daemon, mut client) = start::reach(places)?;
    let (token, placed) = match &args.session {
        Some(which) => join(&mut client, places.secrets(&daemon), which)?,
        None => register(&mut client, args, places.secrets(&daemon))?,
    };
    let restricted = std::env::var_os(VISIBLE_DEVICES).is_some();
    let card = visible(&args.gpu, placed, restricted)?;

    let present = std::env::var_os(PRELOAD);
    let reach = Reach::of(&program);
    let preload = match reach.is_harmless() {
        true => preload::with(&library, present, false),
        false => preload::without(&library, present),
    };
    if reach != Reach::Loaded {
        exit::warn(&reach);
    }
    let mut command = Command::new(&program);
    command
        .arg0(name)
        .args(arguments)
        .env(TOKEN_FILE, token)
        .env(RUNTIME_DIR, daemon.root());
    match preload.is_empty() {
        true => command.env_remove(PRELOAD),
        false => command.env(PRELOAD, preload),
    };
    if let Some(backend) = args.backend {
        command.env(BACKEND, backend.to_string());
    }
    if args.paranoid {
        command.env(PARANOID, "1");
    }
    if let Some(card) = card {
        command.env(VISIBLE_DEVICES, card.to_string());
    }
    Err(RunError::Exec { program: name.to_string_lossy().into_owned(), cause: command.exec() })
}

/// Kind of the program's memory, if it is chosen.
fn backend(args: &RunArgs) -> Option<Backend> {
    let variable = || std::env::var_os(BACKEND)?.to_string_lossy().parse().ok();
    args.backend.or_else(variable)
}

fn join(client: &mut Client<Tenant>, secrets: &RuntimeDir, which: &str) -> Result<Registered, RunError> {
    let (path, token) = token::find(secrets, which)?;
    match client.ask(&TenantRequest::Join(token))? {
        TenantReply::SessionMemory(Some(_)) => Ok((path, None)),
        TenantReply::SessionMemory(None) => Err(RunError::Unknown(which.to_owned())),
        _ => Err(client.unexpected().into()),
    }
}

fn register(
    client: &mut Client<Tenant>,
    args: &RunArgs,
    secrets: &RuntimeDir,
) -> Result<Registered, RunError> {
    match client.ask(&TenantRequest::Register(wish(args)?))? {
        TenantReply::Session { session, name, token, gpu } => {
            if let Some(wished) = args.name.as_ref().filter(|wished| **wished != name) {
                exit::warn(&format_args!(
                    "an administrator's session is named {} (`--session` joins it); this session is named {} ({session})",
                    harmless(wished),
                    harmless(&name)
                ));
            }
            Ok((token::write(secrets, &token)?, gpu))
        }
        _ => Err(client.unexpected().into()),
    }
}

/// Returns the name, terms and card of the session that the arguments describe.
fn wish(args: &RunArgs) -> Result<NewSession, RunError> {
    Ok(NewSession {
        name: args.name.clone(),
        terms: args.terms.terms(|name| std::env::var(name).ok())?,
        oversubscribe: args.oversubscribe,
        gpu: args.gpu.clone(),
    })
}

/// Returns the card for `CUDA_VISIBLE_DEVICES`; none leaves the variable as it is. In order of precedence:
/// `--gpu`, the caller's environment, the daemon's choice.
fn visible(
    asked: &GpuChoice,
    placed: Option<GpuUuid>,
    restricted: bool,
) -> Result<Option<GpuUuid>, RunError> {
    match (asked, placed) {
        (GpuChoice::Auto, _) if restricted => Ok(None),
        (GpuChoice::Auto, placed) => Ok(placed),
        // The daemon's identity before the user's: it knows whether the card is a MIG instance, which CUDA accepts as
        // `MIG-…` only.
        (_, Some(placed)) => Ok(Some(placed)),
        (GpuChoice::Uuid(uuid), None) => Ok(Some(*uuid)),
        (GpuChoice::Prefix(prefix), None) => Err(RunError::UnknownCard(prefix.clone())),
        (GpuChoice::Index(index), None) => Err(RunError::UnknownCard(index.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACED: Option<GpuUuid> = Some(GpuUuid::gpu([7; 16]));

    #[test]
    fn the_callers_own_choice_of_cards_stands_unless_a_card_is_named() {
        let seen = |asked, placed, restricted| visible(&asked, placed, restricted).unwrap();
        assert_eq!(seen(GpuChoice::Auto, PLACED, false), PLACED);
        assert_eq!(seen(GpuChoice::Auto, PLACED, true), None);
        assert_eq!(seen(GpuChoice::Auto, None, false), None);
        assert_eq!(seen(GpuChoice::Index(0), PLACED, true), PLACED);
    }

    #[test]
    fn every_failure_ends_with_what_to_do() {
        let path = || PathBuf::from("/x");
        let cause = || io::Error::from(ErrorKind::PermissionDenied);
        let failures: [RunError; 15] = [
            library::LibraryError::NotFound.into(),
            library::LibraryError::Unreadable { path: path(), cause: cause() }.into(),
            library::LibraryError::NotALibrary(path()).into(),
            library::LibraryError::UnloadablePath(path()).into(),
            program::ProgramError::NotFound("x".into()).into(),
            start::StartError::NoScheduler(path()).into(),
            start::StartError::Unstarted { program: path(), reason: "no".into() }.into(),
            start::StartError::Ended { reason: "it said nothing".into(), log: path() }.into(),
            start::StartError::Slow(path()).into(),
            ClientError::Silent(path()).into(),
            RunError::UnknownCard("3".into()),
            RunError::Unknown("team".into()),
            token::TokenError::None("team".into()).into(),
            token::TokenError::Number("s3".into()).into(),
            RunError::Exec { program: "x".into(), cause: cause() },
        ];
        for failure in failures {
            let sentence = failure.to_string();
            let (_, advice) = sentence.rsplit_once("; ").unwrap_or_else(|| panic!("{sentence}"));
            let begins = ["set", "install", "check", "run", "see", "name", "make"];
            assert!(begins.iter().any(|verb| advice.starts_with(verb)), "{sentence}");
        }
    }

    #[test]
    fn a_card_that_the_daemon_has_not_seen_can_be_named_by_its_uuid_only() {
        let uuid = GpuUuid::gpu([9; 16]);
        assert_eq!(visible(&GpuChoice::Uuid(uuid), None, false).unwrap(), Some(uuid));
        let placed = Some(GpuUuid::mig([9; 16]));
        let seen = visible(&GpuChoice::Uuid(uuid), placed, false).unwrap().unwrap();
        assert!(seen.is_instance(), "CUDA takes an instance by that name only");
        let error = visible(&GpuChoice::Index(3), None, false).unwrap_err();
        assert!(error.to_string().starts_with("the daemon does not know card 3 yet"), "{error}");
        assert_eq!(error.code(), exit::RUN_FAILED);
    }
}
