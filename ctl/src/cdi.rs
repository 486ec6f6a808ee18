//! Command `cdi`: writes, lists and removes the CDI spec by which containers share the cards.
//!
//! ```text
//!   NVML, /dev, NVIDIA's spec ─┐
//!   libgpushare.so, this file ─┼▶ gpushare_inject ─▶ /etc/cdi/gpushare.dev-share.json ─▶ Docker, Podman
//!   folder tenant/ ────────────┘
//! ```

use std::path::PathBuf;

use gpushare_inject::{
    AccessError, CardEdits, CardsError, FilesError, Found, Injection, Machine, Share, Source, Written,
};
use serde::Serialize;
use serde_json::json;

use crate::cli::{CdiCommand, CdiPlace, GenerateArgs};
use crate::exit::{self, CommandError, CtlError};
use crate::output;
use crate::places::Places;
use crate::run::library;
use crate::table::{harmless, list, table};

/// Reason why the spec cannot be written or removed.
#[derive(Debug, thiserror::Error)]
enum CdiError {
    #[error(transparent)]
    Cards(#[from] CardsError),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("{0}; another folder is named with --output")]
    Files(#[from] FilesError),
    #[error(
        "there is no folder {0} to mount; start the daemon first (`systemctl start gpushare-scheduler.socket`), or name \
         the folder of another one with --runtime-dir"
    )]
    NoDaemon(PathBuf),
    #[error("the path of gpushare-ctl is not known: {0}; call it by its path")]
    NoProgram(std::io::Error),
}

impl CommandError for CdiError {
    fn code(&self) -> u8 {
        match self {
            Self::Files(files) if files.is_permission() => exit::PERMISSION,
            Self::NoDaemon(_) => exit::DAEMON_DOWN,
            _ => exit::ERROR,
        }
    }
}

pub(crate) fn cdi(command: &CdiCommand, places: &Places) -> Result<(), CtlError> {
    match command {
        CdiCommand::Generate(args) => generate(args, places),
        CdiCommand::List { place, json } => show(place, *json),
        CdiCommand::Remove { output, json } => remove(output, *json),
    }
}

fn generate(args: &GenerateArgs, places: &Places) -> Result<(), CtlError> {
    let folder = std::path::absolute(&args.output).unwrap_or_else(|_| args.output.clone());
    let tenant = places.administered().tenant_dir();
    if !tenant.is_dir() {
        return Err(CdiError::NoDaemon(tenant).into());
    }
    let share = Share {
        library: library::find()?,
        ctl: std::env::current_exe().map_err(CdiError::NoProgram)?,
        preload: Written::in_folder(&folder).preload,
        tenant,
    };
    let (_, cards) = gpushare_inject::load().map_err(CdiError::Cards)?;
    let edits = CardEdits::for_spec(&Machine::at(&args.place.root), &cards).map_err(CdiError::Access)?;
    let injection = Injection::new(&share, edits);
    let spec = injection.spec();
    let written = gpushare_inject::write(&folder, &spec).map_err(CdiError::Files)?;
    let devices: Vec<String> = spec.devices.iter().map(|device| spec.full_name(device)).collect();
    let source = match injection.source() {
        Source::Spec => "nvidia_spec",
        Source::Nodes | Source::Runtime => "device_nodes",
    };
    let model = json!({
        "spec": written.spec,
        "preload": written.preload,
        "tenant": share.tenant,
        "cards": source,
        "devices": devices,
    });
    Ok(output::show(args.json, &model, || {
        format!(
            "wrote {}: {}\nthe cards come by {}, and the daemon is the one in {}\n",
            written.spec.display(),
            list(&devices),
            injection.source(),
            share.tenant.display(),
        )
    })?)
}

/// Device in a list.
#[derive(Serialize)]
struct Row {
    device: String,
    spec: PathBuf,
    /// First file that the device mounts and that is gone.
    missing: Option<PathBuf>,
}

fn show(place: &CdiPlace, json: bool) -> Result<(), CtlError> {
    let folders = match &place.output {
        Some(folder) => vec![folder.clone()],
        None => Machine::at(&place.place.root).spec_folders(),
    };
    let rows: Vec<Row> = gpushare_inject::find(&folders).iter().flat_map(rows).collect();
    Ok(output::show(json, &rows, || match rows.is_empty() {
        true => format!(
            "{} has no spec of gpushare; `gpushare-ctl cdi generate` writes one\n",
            list(folders.iter().map(|folder| folder.display()))
        ),
        false => table(
            &rows,
            &[
                ("DEVICE", |row| row.device.clone()),
                ("SPEC", |row| row.spec.display().to_string()),
                ("STATE", |row| match &row.missing {
                    Some(path) => format!("{} is missing; generate it again", path.display()),
                    None => "ready".to_owned(),
                }),
            ],
        ),
    })?)
}

fn rows(found: &Found) -> Vec<Row> {
    let row = |device| Row {
        device: found.spec.full_name(device),
        spec: found.path.clone(),
        missing: found.missing().map(PathBuf::from),
    };
    found.spec.devices.iter().map(row).collect()
}

fn remove(folder: &std::path::Path, json: bool) -> Result<(), CtlError> {
    let removed = gpushare_inject::remove(folder).map_err(CdiError::Files)?;
    if removed.is_empty() {
        return Err(CtlError::NotFound {
            kind: "spec of gpushare in",
            name: harmless(&folder.display().to_string()),
            known: "`gpushare-ctl cdi list` shows where there is one".to_owned(),
        });
    }
    let model = json!({ "removed": removed });
    Ok(output::show(json, &model, || {
        format!("removed {}\n", list(removed.iter().map(|path| path.display())))
    })?)
}
