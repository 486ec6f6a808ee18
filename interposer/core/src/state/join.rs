//! Joining: the process becomes a client of its session before its first context, and attaches to each card
//! before it creates a context there.

use std::fmt;
use std::sync::Mutex;

use gpushare_proto::session::{Quota, QuotaError};
use gpushare_proto::tenant::{GpuInfo, TenantRequest};
use gpushare_proto::{GpuUuid, names};
use gpushare_sys::unwind::uncancelled;

use super::{State, at_exit, in_child, inquiry};
use crate::daemon::Membership;
use crate::daemon::address::{Address, ConnectError};
use crate::daemon::link::{AskError, Link};
use crate::driver::types::{CUDA_ERROR_SYSTEM_NOT_READY, CUdevice, CUresult};
use crate::gate::set_page;
use crate::process::{fork, lock, spawn, stderr};

/// Cards that the process has announced to the daemon.
#[derive(Debug, Default)]
pub(super) struct Cards {
    pub(super) attached: Mutex<Vec<(CUdevice, GpuInfo)>>,
    attaching: Mutex<()>,
}

impl State {
    /// Joins the session, and attaches to `device`. Called before anything that creates a context there.
    pub(crate) fn admit(&'static self, device: CUdevice) -> Result<(), CUresult> {
        // Opens files and sockets, by calls in which a thread must not be cancelled.
        uncancelled(|| match self.daemon.membership(|| self.join()) {
            Membership::Native => Ok(()),
            Membership::Refused => Err(CUDA_ERROR_SYSTEM_NOT_READY),
            Membership::Shared(link) => self.attach(link, device),
        })
    }

    fn join(&'static self) -> Membership {
        fork::register(in_child, at_exit);
        let refuse = |line: fmt::Arguments<'_>| {
            stderr::print(line);
            Membership::Refused
        };
        let address = match Address::from_environment() {
            Ok(address) => address,
            Err(error) => return refuse(format_args!("{error}")),
        };
        let limits = match limits() {
            Ok(limits) => limits.filter(|_| !address.has_token()),
            Err((name, error)) => {
                let consequence = "this process must not use the GPU with a limit that is not understood";
                return refuse(format_args!("{name}: {error}; {consequence}"));
            }
        };
        let error = match address.connect(self.memory.backend(), None) {
            Ok((connection, welcome, page)) => match Link::new(&connection, &welcome) {
                Ok(link) => {
                    if let Some(limits) = &limits {
                        link.send(limits);
                    }
                    let sharing = address.clone();
                    // The thread waits until the membership is decided.
                    let listening = spawn("gpushare-link", move || {
                        self.listen(&address, limits.as_ref(), connection);
                    });
                    if let Err(error) = listening {
                        return refuse(format_args!(
                            "cannot start the thread gpushare-link: {error}; \
                             this process must not use the GPU without it"
                        ));
                    }
                    self.memory.remap.share_by(sharing);
                    self.memory.lease.use_page(page);
                    set_page(page);
                    return Membership::Shared(Box::new(link));
                }
                Err(cause) => ConnectError::Broken("its socket".into(), cause),
            },
            Err(error) => error,
        };
        if let Some(requirement) = address.required {
            return refuse(format_args!(
                "{error}; {requirement}: this process must not use the GPU without it"
            ));
        }
        // A daemon that refuses the process, in whatever way, is there. Only an absent one leaves it to
        // itself.
        if !error.is_absence() {
            return refuse(format_args!("{error}; this process must not use the GPU without it"));
        }
        stderr::print(format_args!("{error}; this process uses the GPU without sharing"));
        Membership::Native
    }

    fn attach(&'static self, link: &Link, device: CUdevice) -> Result<(), CUresult> {
        if self.memory.lease.gpu(device).is_some() {
            return Ok(());
        }
        let Some(info) = self.driver.describe(device) else { return Ok(()) };
        // One thread asks, and the others find the answer.
        let _one_at_a_time = lock(&self.cards.attaching);
        if self.memory.lease.gpu(device).is_some() {
            return Ok(());
        }
        match link.ask_card(info.clone()) {
            Ok(gpu) => {
                lock(&self.cards.attached).push((device, info));
                self.memory.lease.attach(device, gpu);
                self.window.open();
                inquiry::invalidate();
                Ok(())
            }
            Err(error) => {
                let reason = match error {
                    AskError::Card(failure) => failure.message,
                    _ => "the scheduler does not answer".to_owned(),
                };
                let GpuInfo { name, uuid, .. } = info;
                stderr::print(format_args!("this process may not use {name} ({uuid}): {reason}"));
                Err(CUDA_ERROR_SYSTEM_NOT_READY)
            }
        }
    }

    /// Returns the calling thread's device if the process shares that device, so that allocations there are
    /// charged.
    #[inline]
    pub(crate) fn shared_device(&'static self) -> Option<CUdevice> {
        self.daemon.link()?;
        let device = self.driver.current_device()?;
        // A context that was made by an unknown function is noticed here.
        if self.memory.lease.gpu(device).is_none() && self.admit(device).is_err() {
            return None;
        }
        Some(device)
    }

    /// Returns the ordinal of the card `uuid`, if the process attached to that card.
    pub(crate) fn device_of(&self, uuid: GpuUuid) -> Option<CUdevice> {
        let attached = lock(&self.cards.attached);
        attached.iter().find(|(_, info)| info.uuid == uuid).map(|(device, _)| *device)
    }
}

/// Returns the limits from the environment, for a daemon that creates a session for this process.
fn limits() -> Result<Option<TenantRequest>, (&'static str, QuotaError)> {
    let read = |name, parse: fn(&str) -> Result<Quota, QuotaError>| match std::env::var_os(name)
        .filter(|text| !text.is_empty())
    {
        Some(text) => parse(&text.to_string_lossy()).map_err(|error| (name, error)),
        None => Ok(Quota::default()),
    };
    let memory = read(names::MEMORY_LIMIT, Quota::of_memory)?;
    let compute = read(names::COMPUTE_LIMIT, Quota::of_compute)?;
    let is_empty = memory == Quota::default() && compute == Quota::default();
    Ok((!is_empty).then_some(TenantRequest::Limits { memory, compute }))
}
