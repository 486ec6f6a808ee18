//! Calls that fail when a test says so.
//!
//! A test that counts calls of a program it did not write (`SIMGPU_FAULTS`) cannot hit a moment. An observer
//! can: from now on, the next so many calls of this kind find no memory.

use crate::ids::ClientId;
use crate::machine::Card;
use crate::wire::{Failure, Kind, Place, Refusable, Request, Role};

impl Card {
    /// Lets the next calls of a process fail.
    pub(super) fn refuse(&mut self, pid: u32, call: Refusable, count: u32) -> Result<(), Failure> {
        let mut found = false;
        for client in self.clients.values_mut() {
            if client.pid == pid && client.role == Role::Driver && !client.dead {
                client.refusals.insert(call, count);
                found = true;
            }
        }
        if found { Ok(()) } else { Err(Failure::Unknown) }
    }

    /// Whether this request is one that fails. It is counted if so.
    pub(super) fn refuses(&mut self, id: ClientId, request: &Request) -> bool {
        let (Some(call), Some(client)) = (refusable(request), self.clients.get_mut(&id)) else {
            return false;
        };
        let Some(left) = client.refusals.get_mut(&call).filter(|left| **left > 0) else {
            return false;
        };
        *left -= 1;
        *self.memory.counters.entry(id).or_default().refused.of(call) += 1;
        true
    }
}

fn refusable(request: &Request) -> Option<Refusable> {
    match request {
        Request::CreateHandle { place: Place::Gpu(_), .. } => Some(Refusable::CreateOnGpu),
        Request::CreateHandle { place: Place::Host, .. } => Some(Refusable::CreateOnHost),
        Request::Map { .. } => Some(Refusable::Map),
        Request::Register { .. } | Request::PriceRegistration { .. } => Some(Refusable::Register),
        Request::Allocate { kind: Kind::Managed, .. } => Some(Refusable::AllocateManaged),
        _ => None,
    }
}
