//! `reload`: the daemon reads its configuration again, and what that changed is printed.

use gpushare_proto::admin::{AdminReply, AdminRequest, ConfigChange};

use crate::cli::ReloadArgs;
use crate::client::{Admin, Client};
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::table::harmless;

/// Prints `quantum of gpu0: 9s → computed`, a line for each key that is another one.
pub(crate) fn reload(args: &ReloadArgs, places: &Places) -> Result<(), CtlError> {
    let mut client = Client::<Admin>::connect(places.administered())?;
    let AdminReply::Reloaded(changes) = client.ask(&AdminRequest::Reload)? else {
        return Err(client.unexpected().into());
    };
    match args.json {
        true => output::print_json(&changes)?,
        false => output::print(&page(&changes))?,
    }
    Ok(())
}

fn page(changes: &[ConfigChange]) -> String {
    if changes.is_empty() {
        return "nothing changed: the daemon runs with what its configuration says\n".to_owned();
    }
    let line = |ConfigChange { key, old, new, live }: &ConfigChange| {
        let when = if *live { "" } else { " (takes effect at the next start)" };
        format!("{}: {} → {}{when}\n", harmless(key), harmless(old), harmless(new))
    };
    changes.iter().map(line).collect()
}
