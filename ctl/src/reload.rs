//! `reload`: makes the daemon read its configuration again and prints the changes.

use gpushare_proto::admin::{AdminReply, AdminRequest, ConfigChange};

use crate::cli::ReloadArgs;
use crate::client::{Admin, Client};
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::table::harmless;

/// Prints a line like `quantum of gpu0: 9s → computed` for each changed key.
pub(crate) fn reload(args: &ReloadArgs, places: &Places) -> Result<(), CtlError> {
    let mut client = Client::<Admin>::connect(places.administered())?;
    let AdminReply::Reloaded(changes) = client.ask(&AdminRequest::Reload)? else {
        return Err(client.unexpected().into());
    };
    output::show(args.json, &changes, || page(&changes))?;
    Ok(())
}

fn page(changes: &[ConfigChange]) -> String {
    if changes.is_empty() {
        return "nothing changed: the daemon already runs with the values of its configuration\n".to_owned();
    }
    let line = |ConfigChange { key, old, new, live }: &ConfigChange| {
        let when = if *live { "" } else { " (takes effect at the next start)" };
        format!("{}: {} → {}{when}\n", harmless(key), harmless(old), harmless(new))
    };
    changes.iter().map(line).collect()
}
