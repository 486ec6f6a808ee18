//! Command `watch`: prints the daemon's events as they happen, as lines or JSON, and writes a trace.

mod trace;
mod words;

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use gpushare_proto::admin::{AdminReply, AdminRequest, WatchEvent};

use crate::cli::WatchArgs;
use crate::exit::CtlError;
use crate::places::Places;
use gpushare_connection::{Admin, Client};
use trace::Trace;
use words::Words;

/// Prints the daemon's events until the daemon ends or standard output is closed.
pub(crate) fn watch(args: &WatchArgs, places: &Places) -> Result<(), CtlError> {
    let mut client = Client::<Admin>::connect(places.administered())?;
    let mut trace = args.trace.as_deref().map(open).transpose()?;
    let mut words = Words::default();
    let mut reply = client.ask(&AdminRequest::Watch)?;
    client.wait_forever()?;
    loop {
        let AdminReply::Events(happenings) = reply else {
            return Err(client.unexpected().into());
        };
        if let (Some(trace), Some(path)) = (&mut trace, &args.trace) {
            trace.add(&happenings).map_err(|cause| failed(path, cause))?;
        }
        match tell(&happenings, args.json, &mut words) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            result => result?,
        }
        reply = client.listen()?;
    }
}

fn tell(happenings: &[WatchEvent], json: bool, words: &mut Words) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for happening in happenings {
        match json {
            true => writeln!(stdout, "{}", serde_json::to_string(happening)?)?,
            false => writeln!(stdout, "{}", words.line(happening))?,
        }
    }
    stdout.flush()
}

fn open(path: &Path) -> Result<Trace<std::fs::File>, CtlError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    file.and_then(Trace::new).map_err(|cause| failed(path, cause))
}

fn failed(path: &Path, cause: io::Error) -> CtlError {
    let path = path.to_owned();
    CtlError::Trace { path, cause }
}
