//! Memory of other processes that the program has opened (`cuIpcOpenMemHandle`).
//!
//! ```text
//!   handle ──▶ daemon ──▶ exporter ──▶ descriptors ──▶ mapped at addresses of this process
//!                            │ socket
//!                            └── ends when the exporter frees the memory or dies ──▶ charged to this process
//! ```
//!
//! While the exporter has the memory, it pays for it. The driver keeps the memory until the last process has
//! unmapped it. So a process that keeps memory beyond its exporter's end pays for it from then on. The end of a
//! socket tells that, which the kernel closes with the exporter. A thread watches the sockets of all open memory.
//!
//! The memory is mapped as long as it is open, so it never moves.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::without_provenance_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use gpushare_proto::page::{FEATURE_IMPORTS, MAX_GPUS};
use gpushare_proto::sharing::ExportName;
use gpushare_proto::{Bytes, GpuUuid};
use gpushare_sys::{fd, socket};

use super::allocations::{Block, Origin};
use super::{Memory, Table};
use crate::daemon::MemoryKind;
use crate::daemon::link::{AskError, Link};
use crate::driver::types::{
    ACCESS_READ_WRITE, Access, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_MAP_FAILED,
    CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OPERATING_SYSTEM, CUDA_SUCCESS, CUcontext, CUdevice, CUdeviceptr,
    CUmemHandle, CUresult, HANDLE_DESCRIPTOR, LOCATION_DEVICE, REFUSED_FOR_CAPTURE,
};
use crate::driver::{Driver, ImportCalls, try_answer};
use crate::gate::page;
use crate::process::{lock, spawn, stderr};
use crate::remap::vmm::Span;
use crate::sharing::handle::Handle;
use crate::sharing::meeting::Waiting;
use crate::sharing::transfer::{self, Piece, TransferError};

/// Longest wait for an exporter that the daemon has told.
const PATIENCE: Duration = Duration::from_secs(10);
/// Alignment of the addresses.
const HUGE_PAGE: usize = 2 << 20;

/// Open memory of other processes.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    open: Mutex<Open>,
    /// Held by the thread that opens memory, so that no memory is opened twice.
    opening: Mutex<Option<Watch>>,
    /// Whether anything was ever opened.
    is_used: AtomicBool,
}

impl Imports {
    /// Returns whether any memory of another process was ever opened.
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct Open {
    /// Number of imports so far.
    made: u64,
    /// Imports by the beginning of their addresses.
    imports: BTreeMap<CUdeviceptr, Import>,
}

/// Memory of one export that is mapped in one context.
#[derive(Debug)]
struct Import {
    number: u64,
    export: ExportName,
    /// Address of the context.
    context: usize,
    /// Device whose memory it is.
    owner: CUdevice,
    /// Bytes on that device.
    on_card: Bytes,
    pieces: Vec<Span>,
    /// How often each address is open.
    opened: BTreeMap<CUdeviceptr, u32>,
    /// Connection to the exporter, which lasts as long as the export.
    stream: UnixStream,
    payer: Payer,
}

/// Process that pays for an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payer {
    Exporter,
    /// The exporter is gone, and a thread is charging this process.
    Charging,
    Own,
}

/// Way to the thread that watches exporters.
#[derive(Debug)]
struct Watch {
    new: Sender<(u64, UnixStream)>,
    /// A byte here wakes the thread.
    bell: UnixStream,
}

impl Memory {
    /// Opens memory of another process in the current context. `device_of` finds a device of this process.
    ///
    /// # Errors
    /// Result for the application.
    pub(crate) fn open_import(
        &'static self,
        link: &Link,
        handle: &Handle,
        device: CUdevice,
        device_of: impl Fn(GpuUuid) -> Option<CUdevice>,
    ) -> Result<CUdeviceptr, CUresult> {
        let calls = ImportCalls::of(&self.driver).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        if handle.export.exporter == link.identity().client {
            // As the driver answers for memory of the process itself.
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        if page().features.load(Ordering::Relaxed) & FEATURE_IMPORTS == 0 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        self.imports.is_used.store(true, Ordering::SeqCst);
        let mut watch = lock(&self.imports.opening);
        let context = self.driver.current_context().addr();
        if let Some((address, is_first)) = lock(&self.imports.open).open_again(handle, context)? {
            if is_first {
                self.record_import(address, handle.size, device, context);
            }
            return Ok(address);
        }
        let (memory, stream) = fetch(&self.driver, calls, link, handle)?;
        if handle
            .offset
            .0
            .checked_add(handle.size.0)
            .is_none_or(|end| end > memory.size().0)
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let watched = self.watch(&mut watch).and_then(|watch| Ok((watch, stream.try_clone()?)));
        let (watch, watched) = watched.map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        let pieces = self.driver.relaxed(|| map(calls, &memory, device, self.peers(device)))?;
        let start = pieces[0].address;
        let address = start + handle.offset.0;
        let owner = device_of(GpuUuid::gpu(memory.card)).unwrap_or(device);
        let mut open = lock(&self.imports.open);
        open.made += 1;
        let import = Import {
            number: open.made,
            export: handle.export,
            context,
            owner,
            on_card: memory.on_card(),
            pieces,
            opened: BTreeMap::from([(address, 1)]),
            stream,
            payer: Payer::Exporter,
        };
        // The thread lasts as long as the process.
        let _ = watch.new.send((import.number, fd::move_high(watched.into()).into()));
        open.imports.insert(start, import);
        drop(open);
        let _ = socket::send_at_once(&watch.bell, &[1]);
        self.record_import(address, handle.size, device, context);
        Ok(address)
    }

    /// Returns whether an address is open memory of another process.
    #[inline]
    pub(super) fn is_import(&self, address: CUdeviceptr) -> bool {
        // The thread that frees an address knows it from the thread that opened it.
        self.imports.is_used.load(Ordering::Relaxed) && lock(&self.imports.open).around(address).is_some()
    }

    /// Closes memory of another process, after the work of its context. `None` for other memory.
    pub(crate) fn close_import(&self, address: CUdeviceptr) -> Option<CUresult> {
        if !self.imports.is_used.load(Ordering::SeqCst) {
            return None;
        }
        let context = lock(&self.imports.open).around(address)?.context;
        let waited = self.wait_for_work_of(context);
        if REFUSED_FOR_CAPTURE.contains(&waited) {
            return Some(waited);
        }
        let mut open = lock(&self.imports.open);
        let closed = open.close(address)?;
        if closed.is_last {
            // Under the lock, since another thread may open the address again. The import was never charged as a
            // block.
            let _ = self.blocks.remove(address);
        }
        drop(open);
        closed.import.iter().for_each(|import| self.end_import(import));
        Some(CUDA_SUCCESS)
    }

    /// Closes the memory that was opened in a context which has ended.
    pub(super) fn end_imports(&self, context: CUcontext) {
        if self.imports.is_used.load(Ordering::SeqCst) {
            let ended = lock(&self.imports.open).remove_context(context.addr());
            ended.iter().for_each(|import| self.end_import(import));
        }
    }

    /// Assigns what was opened in one context to another.
    pub(super) fn move_imports(&self, from: CUcontext, to: CUcontext) {
        for import in lock(&self.imports.open).imports.values_mut() {
            if import.context == from.addr() {
                import.context = to.addr();
            }
        }
    }

    fn record_import(&self, address: CUdeviceptr, size: Bytes, device: CUdevice, context: usize) {
        let block = Block { size, device, context, origin: Origin::Imported };
        self.record(Table::Blocks, address, block);
    }

    fn end_import(&self, import: &Import) {
        if let Some(calls) = ImportCalls::of(&self.driver) {
            self.driver.relaxed(|| unmap(calls, &import.pieces));
        }
        // The watching thread hears of it, and closes its own descriptor.
        let _ = import.stream.shutdown(Shutdown::Both);
        if import.payer == Payer::Own {
            self.give_back(import.owner, import.on_card, MemoryKind::Fixed);
        }
    }

    /// Returns the way to the thread that watches exporters, which starts with the first import.
    fn watch<'a>(&'static self, watch: &'a mut Option<Watch>) -> std::io::Result<&'a Watch> {
        if watch.is_none() {
            let (bell, ringing) = UnixStream::pair()?;
            let move_high = |stream: UnixStream| UnixStream::from(fd::move_high(stream.into()));
            let (bell, ringing) = (move_high(bell), move_high(ringing));
            let (new, exporters) = channel();
            spawn("gpushare-import", move || self.watch_exporters(&ringing, &exporters))?;
            *watch = Some(Watch { new, bell });
        }
        watch.as_ref().ok_or(std::io::ErrorKind::Other.into())
    }

    /// Runs in a thread: charges this process for memory whose exporter has freed it or is dead.
    fn watch_exporters(&self, ringing: &UnixStream, new: &Receiver<(u64, UnixStream)>) {
        let mut watched: Vec<(u64, UnixStream)> = Vec::new();
        loop {
            let exporters = watched.iter().map(|(_, stream)| stream.as_fd());
            let sockets: Vec<_> = std::iter::once(ringing.as_fd()).chain(exporters).collect();
            let heard = socket::await_any(&sockets, None);
            if heard.first() == Some(&true) && socket::recv_with_fd(ringing, &mut [0; 64]).is_err() {
                return;
            }
            let mut ended = heard.iter().skip(1);
            let mut gone = Vec::new();
            watched.retain(|(number, _)| {
                let is_gone = ended.next() == Some(&true);
                gone.extend(is_gone.then_some(*number));
                !is_gone
            });
            watched.extend(new.try_iter());
            gone.into_iter().for_each(|number| self.pay_for(number));
        }
    }

    /// Charges this process for an import whose exporter is gone.
    fn pay_for(&self, number: u64) {
        let charged = lock(&self.imports.open).change_payer(number, Payer::Charging);
        let Some((device, bytes)) = charged else { return };
        // The lock is not held while the daemon is asked, which may not answer.
        self.charge(device, bytes, MemoryKind::Fixed);
        if lock(&self.imports.open).change_payer(number, Payer::Own).is_none() {
            self.give_back(device, bytes, MemoryKind::Fixed);
        }
    }
}

/// End of one use of an address.
#[derive(Debug)]
struct Closed {
    /// Whether the address is no longer open.
    is_last: bool,
    /// Import of which no address is open any more.
    import: Option<Import>,
}

impl Open {
    /// Opens an address of memory that is open in a context. Also returns whether that address was not open yet.
    fn open_again(
        &mut self,
        handle: &Handle,
        context: usize,
    ) -> Result<Option<(CUdeviceptr, bool)>, CUresult> {
        let mut imports = self.imports.iter_mut();
        let is_same = |import: &Import| import.export == handle.export && import.context == context;
        let Some((start, import)) = imports.find(|(_, import)| is_same(import)) else {
            return Ok(None);
        };
        let end = handle.offset.0.checked_add(handle.size.0);
        if end.is_none_or(|end| end > import.size().0) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let address = start + handle.offset.0;
        let count = import.opened.entry(address).or_default();
        *count += 1;
        Ok(Some((address, *count == 1)))
    }

    /// Returns the import of which an address is open.
    fn around(&self, address: CUdeviceptr) -> Option<&Import> {
        let (_, import) = self.imports.range(..=address).next_back()?;
        import.opened.contains_key(&address).then_some(import)
    }

    fn close(&mut self, address: CUdeviceptr) -> Option<Closed> {
        let (&start, import) = self.imports.range_mut(..=address).next_back()?;
        let count = import.opened.get_mut(&address)?;
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            import.opened.remove(&address);
        }
        let is_unused = import.opened.is_empty();
        Some(Closed { is_last, import: is_unused.then(|| self.imports.remove(&start)).flatten() })
    }

    fn remove_context(&mut self, context: usize) -> Vec<Import> {
        let imports = std::mem::take(&mut self.imports).into_iter();
        let (ended, kept): (BTreeMap<_, _>, _) = imports.partition(|(_, import)| import.context == context);
        self.imports = kept;
        ended.into_values().collect()
    }

    /// Changes who pays for an import. Returns the device and the bytes, if it is still open.
    fn change_payer(&mut self, number: u64, payer: Payer) -> Option<(CUdevice, Bytes)> {
        let import = self.imports.values_mut().find(|import| import.number == number)?;
        import.payer = payer;
        Some((import.owner, import.on_card))
    }
}

impl Import {
    fn size(&self) -> Bytes {
        self.pieces.iter().map(|piece| piece.size).sum()
    }
}

/// Handle of memory of another process.
#[derive(Debug)]
struct Imported {
    calls: ImportCalls,
    handle: CUmemHandle,
}

impl Imported {
    /// Imports the memory of a descriptor.
    fn of(calls: ImportCalls, descriptor: &OwnedFd) -> Result<Self, CUresult> {
        let number = usize::try_from(descriptor.as_raw_fd()).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let import = |handle: &mut _| {
            // SAFETY: writes one handle. The descriptor is passed as a pointer, and the driver only looks at it.
            unsafe { (calls.import)(handle, without_provenance_mut(number), HANDLE_DESCRIPTOR) }
        };
        try_answer(0, import).map(|handle| Self { calls, handle })
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: the handle is gpushare's own. A mapping keeps the memory.
        unsafe { (self.calls.release)(self.handle) };
    }
}

/// Gets the handles of exported memory, and the connection that lasts as long as the export.
fn fetch(
    driver: &Driver,
    calls: ImportCalls,
    link: &Link,
    handle: &Handle,
) -> Result<(transfer::Memory<Imported>, UnixStream), CUresult> {
    let waiting = Waiting::begin().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    link.ask_import(handle.export, waiting.meeting()).map_err(|error| match error {
        // As the driver answers for a handle of memory that it does not know.
        AskError::NoExporter => CUDA_ERROR_INVALID_VALUE,
        _ => CUDA_ERROR_MAP_FAILED,
    })?;
    let received = waiting.accept(PATIENCE).map_err(TransferError::from);
    let import = |descriptor: OwnedFd| driver.relaxed(|| Imported::of(calls, &descriptor));
    let received = received.and_then(|stream| Ok((transfer::receive(&stream, import)?, stream)));
    received.map_err(|error| match error {
        TransferError::Refused(result) | TransferError::NotTaken(result) => result,
        error => {
            static PRINTED: AtomicBool = AtomicBool::new(false);
            stderr::print_once(&PRINTED, format_args!("memory of another process was not opened: {error}"));
            CUDA_ERROR_MAP_FAILED
        }
    })
}

/// Maps all pieces at addresses of their own, one behind the other.
fn map(
    calls: ImportCalls,
    memory: &transfer::Memory<Imported>,
    device: CUdevice,
    peers: u32,
) -> Result<Vec<Span>, CUresult> {
    let size = usize::try_from(memory.size().0).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: writes one address; the driver chooses it.
    let reserve = |address: &mut _| unsafe { (calls.address_reserve)(address, size, HUGE_PAGE, 0, 0) };
    let start = try_answer(0, reserve)?;
    let (mut mapped, mut address) = (Vec::new(), start);
    for piece in &memory.pieces {
        let span = Span { address, size: piece.size };
        if let Err(error) = map_piece(calls, piece, span, device, peers) {
            unmap_pieces(calls, &mapped);
            // SAFETY: the range was reserved here, and nothing is mapped there.
            unsafe { (calls.address_free)(start, size) };
            return Err(error);
        }
        mapped.push(span);
        address = span.end();
    }
    Ok(mapped)
}

fn map_piece(
    calls: ImportCalls,
    piece: &Piece<Imported>,
    span: Span,
    device: CUdevice,
    peers: u32,
) -> Result<(), CUresult> {
    let check = |result| if result == CUDA_SUCCESS { Ok(()) } else { Err(result) };
    let size = span.size.0 as usize;
    // SAFETY: the range is reserved by `map`, and nothing is mapped there.
    check(unsafe { (calls.map)(span.address, size, 0, piece.memory.handle, 0) })?;
    let is_user = |of: &c_int| *of == device || peers & (1 << *of) != 0;
    let access = |device| Access { location: [LOCATION_DEVICE, device], flags: ACCESS_READ_WRITE };
    let access: Vec<_> = (0..MAX_GPUS as c_int).filter(is_user).map(access).collect();
    // SAFETY: reads as many structures of the driver's layout as it is told.
    check(unsafe { (calls.set_access)(span.address, size, access.as_ptr(), access.len()) })
        .inspect_err(|_| unmap_pieces(calls, &[span]))
}

/// Removes mappings, and gives their addresses back.
fn unmap(calls: ImportCalls, pieces: &[Span]) {
    unmap_pieces(calls, pieces);
    let size: Bytes = pieces.iter().map(|piece| piece.size).sum();
    if let Some(first) = pieces.first() {
        // SAFETY: the range was reserved by `map` in one piece, and nothing is mapped there.
        unsafe { (calls.address_free)(first.address, size.0 as usize) };
    }
}

fn unmap_pieces(calls: ImportCalls, pieces: &[Span]) {
    for piece in pieces {
        // SAFETY: the mapping is gpushare's own. The application has closed it, so no work uses it.
        unsafe { (calls.unmap)(piece.address, piece.size.0 as usize) };
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::ClientId;
    use gpushare_proto::sharing::Secret;

    use super::*;

    const CONTEXT: usize = 0x500;
    const START: CUdeviceptr = 1 << 40;

    fn handle(number: u64, offset: Bytes) -> Handle {
        let export = ExportName { exporter: ClientId(1), number, secret: Secret([1; 16]) };
        Handle { export, offset, size: Bytes::mib(1) }
    }

    fn open() -> Open {
        let handle = handle(7, Bytes::ZERO);
        let import = Import {
            number: 1,
            export: handle.export,
            context: CONTEXT,
            owner: 0,
            on_card: Bytes::mib(4),
            pieces: vec![
                Span { address: START, size: Bytes::mib(2) },
                Span { address: START + (2 << 20), size: Bytes::mib(2) },
            ],
            opened: BTreeMap::from([(START, 1)]),
            stream: UnixStream::pair().unwrap().0,
            payer: Payer::Exporter,
        };
        Open { made: 1, imports: BTreeMap::from([(START, import)]) }
    }

    #[test]
    fn memory_is_mapped_until_each_open_address_is_closed_as_often() {
        let mut open = open();
        assert_eq!(open.open_again(&handle(7, Bytes::ZERO), CONTEXT), Ok(Some((START, false))));
        let inside = START + (3 << 20);
        assert_eq!(open.open_again(&handle(7, Bytes::mib(3)), CONTEXT), Ok(Some((inside, true))));
        let mut close = |address| {
            let closed = open.close(address)?;
            Some((closed.is_last, closed.import.is_some()))
        };
        assert_eq!(close(START), Some((false, false)));
        assert_eq!(close(inside), Some((true, false)));
        assert_eq!(close(inside), None, "it is not open");
        assert_eq!(close(START), Some((true, true)));
        assert_eq!(close(START), None);
    }

    #[test]
    fn only_the_same_export_in_the_same_context_is_opened_again() {
        let mut open = open();
        assert_eq!(open.open_again(&handle(8, Bytes::ZERO), CONTEXT), Ok(None));
        assert_eq!(open.open_again(&handle(7, Bytes::ZERO), CONTEXT + 1), Ok(None));
        let beyond = [Bytes(3 << 20 | 1), Bytes::MAX];
        for offset in beyond {
            assert_eq!(open.open_again(&handle(7, offset), CONTEXT), Err(CUDA_ERROR_INVALID_VALUE));
        }
    }

    #[test]
    fn memory_that_was_closed_is_charged_to_nobody() {
        let mut open = open();
        assert_eq!(open.change_payer(1, Payer::Charging), Some((0, Bytes::mib(4))));
        assert_eq!(open.remove_context(CONTEXT + 1).len(), 0);
        let ended = open.remove_context(CONTEXT);
        assert_eq!(ended.iter().map(|import| import.payer).collect::<Vec<_>>(), [Payer::Charging]);
        assert_eq!(open.change_payer(1, Payer::Own), None);
    }
}
