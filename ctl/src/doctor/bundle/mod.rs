//! Archive of `doctor --bundle` for a bug report, without private text.
//!
//! ```text
//!   parts (name, text or reason) ─▶ Redactor ─▶ tar ─▶ gzip ─▶ FILE, 0600, never over another file
//! ```
//!
//! All parts go through one redactor, so a card has the same pseudonym in the log and in the status. The file is
//! written only when the archive is complete.

mod parts;
mod redact;

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;

use self::parts::Part;
use self::redact::Redactor;
use super::facts::Facts;
use super::model::Report;
use crate::cli::DoctorArgs;

/// Name of the folder in the archive that has all files.
const FOLDER: &str = "gpushare-doctor";

/// Reason why `doctor --bundle` wrote no archive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("{0} exists already; choose another name for --bundle")]
    Exists(PathBuf),
    #[error("cannot write the archive {path}: {cause}; choose another place for --bundle")]
    Unwritten { path: PathBuf, cause: io::Error },
}

/// Writes the archive for a bug report, and lists the included and missing files on stderr.
pub(super) fn write(
    file: &Path,
    facts: &Facts,
    report: &Report,
    args: &DoctorArgs,
) -> Result<(), BundleError> {
    let unwritten = |cause: io::Error| match cause.kind() {
        ErrorKind::AlreadyExists => BundleError::Exists(file.to_owned()),
        _ => BundleError::Unwritten { path: file.to_owned(), cause },
    };
    let mut redactor = Redactor::of_this_machine(facts);
    let parts = parts::collect(facts, report, args, &mut redactor);
    let archive = archive(&parts).map_err(unwritten)?;
    let mut target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map_err(unwritten)?;
    if let Err(cause) = target.write_all(&archive).and_then(|()| target.sync_all()) {
        // An incomplete archive is of no use.
        let _ = std::fs::remove_file(file);
        return Err(unwritten(cause));
    }
    // The archive is written; a closed stderr is ignored.
    let _ = tell(&mut io::stderr().lock(), file, &parts, &redactor);
    Ok(())
}

fn archive(parts: &[Part]) -> io::Result<Vec<u8>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for part in parts {
        let Ok(text) = &part.text else { continue };
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        tar.append_data(&mut header, format!("{FOLDER}/{}", part.name), text.as_bytes())?;
    }
    tar.into_inner()?.finish()
}

fn tell(stderr: &mut impl io::Write, file: &Path, parts: &[Part], redactor: &Redactor) -> io::Result<()> {
    writeln!(stderr, "gpushare-ctl: wrote {} (mode 0600)", file.display())?;
    for part in parts {
        match &part.text {
            Ok(text) => writeln!(stderr, "  in   {:<18} {} bytes", part.name, text.len())?,
            Err(why) => writeln!(stderr, "  out  {:<18} {why}", part.name)?,
        }
    }
    writeln!(stderr, "  redacted: {}; look through it before you send it", redactor.summary())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn an_archive_holds_the_parts_that_there_are() {
        let parts =
            [Part::new("a.txt", Ok("hello".to_owned())), Part::new("b.txt", Err("not here".to_owned()))];
        let bytes = archive(&parts).unwrap();
        let mut tar = tar::Archive::new(GzDecoder::new(&bytes[..]));
        let mut found = Vec::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            found.push((entry.path().unwrap().display().to_string(), text, entry.header().mode().unwrap()));
        }
        assert_eq!(found, [("gpushare-doctor/a.txt".to_owned(), "hello".to_owned(), 0o600)]);
        let mut said = Vec::new();
        tell(&mut said, "/x".as_ref(), &parts, &Redactor::default()).unwrap();
        let said = String::from_utf8(said).unwrap();
        assert!(
            said.contains("  in   a.txt              5 bytes\n  out  b.txt              not here\n"),
            "{said}"
        );
    }
}
