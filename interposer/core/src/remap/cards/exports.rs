//! Memory that other processes of the user have opened or may open.
//!
//! ```text
//!   cuIpcGetMemHandle ──▶ export      the memory stays where it is from now on
//!   an importer ────────▶ lend        handles ── export of the driver ──▶ descriptors ──▶ importer
//!                    └──▶ add         its socket, which ends with the memory
//!   the block is freed ─▶ end         the importers hear of it, and pay for what they keep
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpushare_proto::page::MAX_GPUS;
use gpushare_proto::sharing::{ExportName, Secret};
use gpushare_proto::{Bytes, ClientId};
use gpushare_sys::socket;

use super::{Card, Remap};
use crate::driver::types::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OPERATING_SYSTEM, CUdevice, CUdeviceptr,
    CUresult,
};
use crate::process::{lock, random};
use crate::remap::swap::Loan;
use crate::remap::vmm::Tier;
use crate::sharing::transfer::Piece;

/// Longest wait for steps of exported chunks that are under way.
const PATIENCE: Duration = Duration::from_secs(2);

/// Open sockets of importers, by the number of the export.
#[derive(Debug, Default)]
pub(super) struct Importers {
    /// Whether anything was ever exported. Each free asks.
    is_used: AtomicBool,
    sockets: Mutex<BTreeMap<u64, Vec<UnixStream>>>,
}

/// Handles that are lent for a transfer, and taken back at the end of it.
#[derive(Debug)]
pub(crate) struct Lending<'a> {
    card: &'a Card,
    /// Device whose memory they are.
    pub(crate) device: CUdevice,
    loans: Vec<Loan>,
}

impl Lending<'_> {
    /// Returns the pieces of the memory. The driver makes the descriptor of each when its turn comes.
    pub(crate) fn pieces(&self) -> impl ExactSizeIterator<Item = io::Result<Piece<OwnedFd>>> {
        self.loans.iter().map(|loan| {
            let memory = self.card.hardware.export(loan.handle);
            let memory =
                memory.map_err(|result| io::Error::other(format!("error {result} of the driver")))?;
            Ok(Piece { size: loan.chunk.size, is_on_card: loan.tier == Tier::Device, memory })
        })
    }
}

impl Drop for Lending<'_> {
    fn drop(&mut self) {
        self.card.lanes.change(|moving| moving.blocks.engine().take_back(&self.loans));
    }
}

impl Remap {
    /// Keeps the block that contains an address where it is, so that other processes may open it. Returns the name of the
    /// memory, and the block's distance from its beginning. The thread is inside the gate, so the memory is not away.
    ///
    /// # Errors
    /// The card cannot give memory to other processes, or there is no such block.
    pub(crate) fn export(
        &self,
        device: CUdevice,
        block: CUdeviceptr,
        exporter: ClientId,
    ) -> Result<(ExportName, Bytes), CUresult> {
        let card = self.card(device).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if !card.hardware.can_export() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let secret = Secret(random().ok_or(CUDA_ERROR_OPERATING_SYSTEM)?);
        self.importers.is_used.store(true, Ordering::SeqCst);
        let export = card.lanes.change(|moving| moving.blocks.export(block, secret));
        let export = export.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let name = ExportName { exporter, number: number(device, export.number), secret: export.secret };
        Ok((name, Bytes(block - export.range.address)))
    }

    /// Returns whether any block was ever exported.
    pub(crate) fn was_exported(&self) -> bool {
        self.importers.is_used.load(Ordering::Relaxed)
    }

    /// Lends exported memory for the transfer to a process that knows its secret.
    ///
    /// # Errors
    /// There is no such memory any more.
    pub(crate) fn lend(&self, name: &ExportName) -> Result<Lending<'_>, CUresult> {
        let (device, number) = place(name.number);
        let card = self.card(device).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let lend = || {
            card.lanes
                .wait_within(PATIENCE, |moving| match moving.blocks.lend(number, name.secret) {
                    None if moving.blocks.is_exported(number) => None,
                    loans => Some(loans),
                })
        };
        let loans = lend().flatten().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(Lending { card, device, loans })
    }

    /// Keeps the socket of a process that has opened memory, until the memory is freed. An importer of memory that was
    /// freed meanwhile hears so at once.
    pub(crate) fn add_importer(&self, name: &ExportName, stream: UnixStream) {
        let (device, number) = place(name.number);
        let Some(card) = self.card(device) else { return };
        let mut sockets = lock(&self.importers.sockets);
        let of_export = sockets.entry(name.number).or_default();
        // Those that have closed the memory or ended.
        of_export.retain(|stream| !socket::await_any(&[stream.as_fd()], Some(Duration::ZERO))[0]);
        of_export.push(stream);
        // With the lock, so that a thread that ends the export meanwhile finds the socket.
        if !card.lanes.look(|moving| moving.blocks.is_exported(number)) {
            end(sockets.remove(&name.number));
        }
    }

    /// Tells the importers of memory of a card that was freed by now.
    pub(super) fn end_exports(&self, device: CUdevice) {
        if !self.importers.is_used.load(Ordering::SeqCst) {
            return;
        }
        let Some(card) = self.card(device) else { return };
        let ended = card.lanes.look(|moving| moving.blocks.take_ended());
        if !ended.is_empty() {
            let mut sockets = lock(&self.importers.sockets);
            ended.into_iter().for_each(|ended| end(sockets.remove(&number(device, ended))));
        }
    }
}

/// Ends connections, also those that the child of a fork has inherited.
fn end(sockets: Option<Vec<UnixStream>>) {
    for stream in sockets.into_iter().flatten() {
        // Fails only where the importer is gone.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Number of an export of a card, among all cards of the process.
const fn number(device: CUdevice, export: u64) -> u64 {
    export * MAX_GPUS as u64 + device as u64
}

/// Device and number there of an export.
const fn place(number: u64) -> (CUdevice, u64) {
    ((number % MAX_GPUS as u64) as CUdevice, number / MAX_GPUS as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_export_tells_its_card() {
        for device in [0, 7, MAX_GPUS as CUdevice - 1] {
            assert_eq!(place(number(device, 300)), (device, 300));
        }
    }
}
