//! What the hooks do with quota: reserve before they call the driver, give back after a free, charge what is there
//! already. The counting is in `leases.rs`; here the daemon is asked and told.

use std::sync::atomic::AtomicBool;

use gpushare_proto::Bytes;
use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::tenant::TenantRequest;

use crate::driver::types::{CUDA_ERROR_OUT_OF_MEMORY, CUdevice, CUresult};
use crate::leases::{Figures, Kind, News};
use crate::link::AskError;
use crate::process::State;
use crate::{lock, notice};

impl State {
    /// Takes `bytes` of quota on a shared device, before the driver is called. While anything is owed there is none.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, with a line on stderr the first time.
    pub fn reserve(&self, device: CUdevice, bytes: Bytes, kind: Kind) -> Result<(), CUresult> {
        if self.leases.is_in_debt(device) {
            self.settle(device)?;
        }
        if self.leases.take(device, bytes, kind) {
            return Ok(());
        }
        if self.refuse_here(device, bytes) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        // A pool may have given memory back when a stream was waited for: nobody is refused while that is not seen.
        self.look_at_pools(device);
        if self.leases.take(device, bytes, kind) {
            return Ok(());
        }
        self.ask(device, bytes, kind)
    }

    /// Quota that is free again.
    pub fn give_back(&self, device: CUdevice, bytes: Bytes, kind: Kind) {
        self.leases.give_back(device, bytes, kind, |news| self.tell(news));
    }

    /// Counts memory that is there already, even beyond the limit. What nobody gives is owed.
    pub fn charge(&self, device: CUdevice, bytes: Bytes, kind: Kind) {
        let rest = bytes - self.leases.take_up_to(device, bytes, kind);
        if !rest.is_zero() && self.ask(device, rest, kind).is_err() {
            self.leases.owe(device, rest, kind);
        }
    }

    /// Tells a daemon that has just returned what is fixed.
    pub(crate) fn tell_fixed(&self) {
        for device in self.leases.devices() {
            self.leases.tell_fixed(device, |news| self.tell(news));
        }
    }

    /// Asks for what is owed.
    #[cold]
    fn settle(&self, device: CUdevice) -> Result<(), CUresult> {
        let _one_at_a_time = lock(&self.settling);
        for kind in [Kind::Movable, Kind::Fixed] {
            let owed = self.leases.owed(device, kind);
            let rest = owed - self.leases.take_up_to(device, owed, kind);
            self.pay(device, owed - rest, kind);
            if !rest.is_zero() {
                self.ask(device, rest, kind)?;
                self.pay(device, rest, kind);
            }
        }
        Ok(())
    }

    /// Pays with bytes that were taken for it; what others paid meanwhile is given back.
    fn pay(&self, device: CUdevice, bytes: Bytes, kind: Kind) {
        let left = self.leases.pay(device, bytes, kind);
        if !left.is_zero() {
            self.give_back(device, left, kind);
        }
    }

    /// What is more than the whole quota is refused here: no question could have another answer. The daemon is told,
    /// which counts and logs refusals; where that had to wait, it is asked instead, like for anything else.
    fn refuse_here(&self, device: CUdevice, bytes: Bytes) -> bool {
        // A page that no quota was written into yet has none of zero.
        let beyond = |figures: &Figures| !figures.limit.is_zero() && bytes > figures.limit;
        let Some(figures) = self.leases.figures(device).filter(beyond) else { return false };
        let (Some(link), Some(gpu)) = (self.link(), self.gpu(device)) else { return false };
        if !link.tell_at_once(&TenantRequest::RefusedLocally { gpu, bytes }) {
            return false;
        }
        let refusal = MemoryRefusal {
            requested: bytes,
            limit: figures.limit,
            used: figures.used,
            by: LimitKind::Session,
        };
        explain(&link.identity().name, bytes, &AskError::Memory(refusal));
        true
    }

    fn ask(&self, device: CUdevice, bytes: Bytes, kind: Kind) -> Result<(), CUresult> {
        let (Some(link), Some(gpu)) = (self.link(), self.gpu(device)) else {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        };
        // What it thinks is managed and is not would count against others.
        self.leases.tell_fixed(device, |news| self.tell(news));
        link.ask_memory(device, gpu, bytes, kind).map_err(|error| {
            explain(&link.identity().name, bytes, &error);
            CUDA_ERROR_OUT_OF_MEMORY
        })
    }

    /// Without a daemon nothing is sent: one that returns is told everything.
    fn tell(&self, news: News) -> bool {
        let Some(link) = self.link() else { return false };
        link.tell(&match news {
            News::Trim(gpu) => TenantRequest::Trim { gpu },
            News::Return(gpu, bytes) => TenantRequest::ReturnFixed { gpu, bytes },
            News::Fixed(gpu, bytes) => TenantRequest::Fixed { gpu, bytes },
        })
    }
}

/// Says once in a process why memory was refused. Frameworks probe and retry; the daemon logs each refusal.
fn explain(session: &str, size: Bytes, error: &AskError) {
    static SAID: AtomicBool = AtomicBool::new(false);
    match error {
        AskError::Memory(refusal) if refusal.is_permanent() => notice::say_once(
            &SAID,
            format_args!(
                "{} refused: the time of session {session} is over, or it was revoked, and it gets no new memory; one whose time is \
                 over goes on after `gpushare-ctl session renew {session} --ttl 2h`",
                refusal.requested
            ),
        ),
        AskError::Memory(refusal) => {
            let whose = match refusal.by {
                LimitKind::Session => "this session's memory limit",
                LimitKind::Capacity => "the card's capacity for one session (`--oversubscribe` lifts it)",
                LimitKind::ManagedLimit => "the card's limit for the managed memory of all sessions",
            };
            notice::say_once(
                &SAID,
                format_args!(
                    "{} refused: {} of {whose}, {}, are in use; further refusals are only in the scheduler's log",
                    refusal.requested, refusal.used, refusal.limit,
                ),
            );
        }
        AskError::Silence | AskError::Card(_) => {
            notice::say_once(&SAID, format_args!("{size} refused: the scheduler does not answer"));
        }
    }
}
