//! Command `dashboard`: prints a link to the daemon's page, and opens it in a browser.
//!
//! The secret of a link must not stand on a browser's command line, which every local user can read. So the
//! browser gets a private file that leads on to the link, in the user's own runtime folder.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gpushare_proto::Nanos;
use gpushare_proto::admin::{AdminReply, AdminRequest};
use serde::Serialize;

use crate::cli::DashboardArgs;
use crate::exit::{self, CtlError};
use crate::output;
use crate::places::Places;
use gpushare_connection::{Admin, Client};

/// File that leads a browser to the link. The next link replaces it, and each link works once.
const FILE: &str = "gpushare-dashboard.html";

/// Link as JSON.
#[derive(Debug, Serialize)]
struct LinkView {
    url: String,
    /// Duration for which the link can be opened.
    valid_ns: Nanos,
    read_only: bool,
}

/// Prints a link to the page, and opens a browser if there is one and the output is a terminal.
pub(crate) fn dashboard(args: &DashboardArgs, places: &Places) -> Result<(), CtlError> {
    let mut client = Client::<Admin>::connect(places.administered())?;
    let request = AdminRequest::Dashboard { read_only: args.read_only };
    let AdminReply::Dashboard { address, link, valid_ns } = client.ask(&request)? else {
        return Err(client.unexpected().into());
    };
    let Ok(address) = address.parse().map(reachable) else {
        return Err(client.unexpected().into());
    };
    let url = format!("http://{address}/#link={}", link.to_hex());
    let lines = || {
        format!(
            "{url}\nThe link works once, within {valid_ns}. From another machine, run there first: \
             ssh -L {port}:{address} HOST\n",
            port = address.port()
        )
    };
    let view = LinkView { url: url.clone(), valid_ns, read_only: args.read_only };
    output::show(args.json, &view, lines)?;
    if let Some(folder) = folder_for_browser(args)
        && let Err(cause) = open(&url, &folder, OsStr::new("xdg-open"))
    {
        // There is still the link.
        exit::warn(&format_args!("cannot open a browser ({cause}); open the link"));
    }
    Ok(())
}

/// Returns an address at which this machine reaches a daemon that listens at all of its addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Returns the folder for the file that leads a browser to the link; none if no browser is wanted or likely.
fn folder_for_browser(args: &DashboardArgs) -> Option<PathBuf> {
    let has = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let wanted = !args.no_open && !args.json && io::stdout().is_terminal();
    let display = has("DISPLAY").or_else(|| has("WAYLAND_DISPLAY"));
    has("XDG_RUNTIME_DIR")
        .filter(|_| wanted && display.is_some())
        .map(PathBuf::from)
}

/// Opens a browser with `opener`, which is not waited for.
fn open(url: &str, folder: &Path, opener: &OsStr) -> io::Result<()> {
    let path = folder.join(FILE);
    match fs::remove_file(&path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    write!(
        file,
        "<!doctype html>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"refresh\" content=\"0; url={url}\">\n\
         <title>gpushare</title>\n<a href=\"{url}\">gpushare</a>\n"
    )?;
    let mut browser = Command::new(opener);
    browser
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    browser.spawn().map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use gpushare_tests::process::write_executable;

    use super::*;

    #[test]
    fn a_browser_gets_a_private_file_and_no_secret_in_its_arguments() {
        let folder = tempfile::tempdir().unwrap();
        let (opener, told) = (folder.path().join("opener"), folder.path().join("told"));
        let script = format!("#!/bin/sh\necho \"$@\" >{0}.new && mv {0}.new {0}\n", told.display());
        write_executable(&opener, &script).unwrap();
        let url = "http://127.0.0.1:9403/#link=5ec4e7";
        fs::write(folder.path().join(FILE), "old").unwrap();
        open(url, folder.path(), opener.as_os_str()).unwrap();
        let path = folder.path().join(FILE);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(fs::read_to_string(&path).unwrap().contains(&format!("url={url}\"")));
        let arguments = std::iter::from_fn(|| Some(fs::read_to_string(&told)))
            .find_map(Result::ok)
            .unwrap();
        assert_eq!(arguments.trim(), path.to_str().unwrap());
        assert!(open(url, folder.path(), OsStr::new("/nonexistent/opener")).is_err());
    }

    #[test]
    fn a_daemon_at_all_addresses_is_reached_at_this_machine() {
        let reached = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:9403"), "127.0.0.1:9403");
        assert_eq!(reached("[::]:9403"), "[::1]:9403");
        assert_eq!(reached("10.1.2.3:80"), "10.1.2.3:80");
    }
}
