//! Files on the host that containers mount, and the CDI spec that names them.
//!
//! ```text
//!   image:  libgpushare.so, gpushare-ctl ── copied if they differ ──▶ host: FILES/{libgpushare.so, gpushare-ctl}
//!                                                                        FILES/ld.so.preload
//!   NVIDIA's spec, device nodes, driver ─────────────────────────────▶ host: CDI-DIR/gpushare.dev-share.json
//! ```
//!
//! Files are replaced by renaming: a running container keeps the library that it has mounted.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::{fs, io};

use gpushare_inject::{AccessError, Card, CardEdits, FilesError, Injection, Machine, Share, write_file};
use gpushare_proto::GpuUuid;
use gpushare_proto::names::RuntimeDir;
use object::{Architecture, Object as _};
use tracing::info;

use crate::args::{PluginArgs, Way};

const LIBRARY: &str = "libgpushare.so";
const CTL: &str = "gpushare-ctl";
const PRELOAD: &str = "ld.so.preload";

/// Reason why containers cannot be supplied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SupplyError {
    #[error("{path}, which containers need, cannot be read: {cause}; name its place with {flag}")]
    Unread { path: PathBuf, cause: io::Error, flag: &'static str },
    #[error(
        "{path} is no library for this node's processor ({ARCH}), so no container could load it; use the image of \
         gpushare for {ARCH}, or name another library with --library"
    )]
    OtherProcessor { path: PathBuf },
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Files(#[from] FilesError),
}

/// Cards of the node with what a container gets for a share of them.
#[derive(Debug)]
pub(crate) struct Supply {
    args: PluginArgs,
    cards: Vec<Card>,
    share: Share,
    injection: RwLock<Arc<Injection>>,
    /// Text of the CDI spec that was written last.
    written: Mutex<String>,
}

impl Supply {
    /// Copies the files to the host and writes the spec.
    pub(crate) fn new(args: &PluginArgs, cards: Vec<Card>) -> Result<Self, SupplyError> {
        let share = install(args)?;
        let injection = Injection::new(&share, edits(args, &cards)?);
        let supply = Self {
            args: args.clone(),
            cards,
            share,
            injection: RwLock::new(Arc::new(injection)),
            written: Mutex::default(),
        };
        supply.write()?;
        Ok(supply)
    }

    /// Returns the UUIDs of the cards.
    pub(crate) fn cards(&self) -> Vec<GpuUuid> {
        self.cards.iter().map(|card| card.uuid).collect()
    }

    /// Returns what containers get now.
    pub(crate) fn injection(&self) -> Arc<Injection> {
        Arc::clone(&self.injection.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the driver and NVIDIA's spec again, and writes the spec if it is another or is gone. After an error,
    /// containers get what they got before.
    pub(crate) fn renew(&self) -> Result<(), SupplyError> {
        let new = Injection::new(&self.share, edits(&self.args, &self.cards)?);
        *self.injection.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        self.write()
    }

    fn write(&self) -> Result<(), SupplyError> {
        if self.args.inject != Way::Cdi {
            return Ok(());
        }
        let injection = self.injection();
        let spec = injection.spec();
        let json = spec.json();
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let path = gpushare_inject::Written::in_folder(&self.args.cdi_dir).spec;
        if *written != json || !path.exists() {
            gpushare_inject::write(&self.args.cdi_dir, &spec)?;
            info!("wrote {}, with the cards by {}", path.display(), injection.source());
            *written = json;
        }
        Ok(())
    }
}

fn edits(args: &PluginArgs, cards: &[Card]) -> Result<CardEdits, AccessError> {
    let machine = Machine::at(&args.host_root);
    match args.inject {
        Way::Cdi => CardEdits::for_spec(&machine, cards),
        Way::Mounts => CardEdits::of_nodes(&machine, cards),
        Way::NvidiaRuntime => Ok(CardEdits::of_runtime(cards)),
    }
}

/// Copies the files that containers mount.
fn install(args: &PluginArgs) -> Result<Share, SupplyError> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("/usr/bin"));
    let found = |named: &Option<PathBuf>, guesses: &[PathBuf]| {
        let guess = guesses.iter().find(|path| path.exists()).or(guesses.first());
        named.clone().or(guess.cloned()).unwrap_or_default()
    };
    let lib = beside.parent().unwrap_or(beside).join("lib");
    let libraries = [beside.join(LIBRARY), lib.join("gpushare").join(LIBRARY), lib.join(LIBRARY)];
    let share = Share {
        library: args.files.join(LIBRARY),
        ctl: args.files.join(CTL),
        preload: args.files.join(PRELOAD),
        tenant: RuntimeDir::new(&args.runtime_dir).tenant_dir(),
    };
    let made = fs::create_dir_all(&args.files);
    made.map_err(|cause| FilesError::Unwritten { path: args.files.clone(), cause })?;
    let library = found(&args.library, &libraries);
    let content = read(&library, "--library")?;
    // With another one, the loader would only warn, and programs would use the card unshared.
    if !is_for_this_processor(&content) {
        return Err(SupplyError::OtherProcessor { path: library });
    }
    put(&content, &share.library, 0o755)?;
    put(&read(&found(&args.ctl, &[beside.join(CTL)]), "--ctl")?, &share.ctl, 0o755)?;
    put(Share::PRELOAD.as_bytes(), &share.preload, 0o644)?;
    Ok(share)
}

fn read(path: &Path, flag: &'static str) -> Result<Vec<u8>, SupplyError> {
    fs::read(path).map_err(|cause| SupplyError::Unread { path: path.to_owned(), cause, flag })
}

/// Returns whether programs of this machine can load a library.
fn is_for_this_processor(library: &[u8]) -> bool {
    let architecture = object::File::parse(library).map(|file| file.architecture());
    match ARCH {
        "aarch64" => matches!(architecture, Ok(Architecture::Aarch64)),
        _ => matches!(architecture, Ok(Architecture::X86_64)),
    }
}

/// Writes a file unless it has this content.
fn put(content: &[u8], to: &Path, mode: u32) -> Result<(), FilesError> {
    match fs::read(to) {
        Ok(present) if present == content => Ok(()),
        _ => write_file(to, content, mode),
    }
}
