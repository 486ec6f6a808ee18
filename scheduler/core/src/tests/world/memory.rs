//! Memory of the processes of a world: allocated, freed, and fixed on a card.

use super::*;

impl World {
    /// Allocates bytes, and returns whether they were granted, from the page or by the machine.
    pub(in crate::tests) fn allocate(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) -> bool {
        if self.take_free(client, gpu, bytes) {
            return true;
        }
        let before = self.used(client, gpu);
        self.next_id += 1;
        self.send(Event::Reserve { client, gpu, request: RequestId(self.next_id), bytes });
        self.used(client, gpu) == before + bytes
    }

    /// Asks the machine for a piece of the chunks that a process has beyond its bytes, and returns whether it was
    /// granted.
    pub(in crate::tests) fn allocate_piece(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) -> bool {
        let before = self.used(client, gpu);
        let memory = self.memory(client, gpu).unwrap();
        let rounding = memory.rounding;
        // The bytes are used from the moment on in which they are granted.
        memory.rounding = rounding - bytes;
        self.next_id += 1;
        self.send(Event::ReservePiece { client, gpu, request: RequestId(self.next_id), bytes });
        let is_granted = self.used(client, gpu) == before + bytes;
        if !is_granted {
            self.rounds_up(client, gpu, rounding);
        }
        is_granted
    }

    /// Takes bytes out of the page, if it has so many, and lets the shell look at it.
    pub(super) fn take_free(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) -> bool {
        let memory = self.memory(client, gpu).unwrap();
        let fits = memory.free >= bytes;
        if fits {
            memory.free -= bytes;
            memory.used += bytes;
        }
        self.look(client, gpu);
        self.moves_soon(client, gpu);
        fits
    }

    pub(in crate::tests) fn free(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let memory = self.memory(client, gpu).unwrap();
        memory.used -= bytes;
        memory.free += bytes;
        self.frees(client, gpu);
    }

    /// Allocates bytes that never move, and returns whether they were granted.
    pub(in crate::tests) fn allocate_fixed(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) -> bool {
        let memory = self.memory(client, gpu).unwrap();
        let fixed = memory.fixed;
        if memory.free >= bytes {
            memory.fixed += bytes;
        } else if std::mem::replace(&mut memory.told, fixed) != fixed {
            self.send(Event::Fixed { client, gpu, bytes: fixed });
        }
        if self.take_free(client, gpu, bytes) {
            return true;
        }
        self.process(client).asks_fixed = true;
        self.next_id += 1;
        self.send(Event::ReserveFixed { client, gpu, request: RequestId(self.next_id), bytes });
        self.process(client).asks_fixed = false;
        self.fixed(client, gpu) == fixed + bytes
    }

    /// Frees fixed bytes. Those that the machine counts as fixed go back to it, the others into the page.
    pub(in crate::tests) fn free_fixed(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let memory = self.memory(client, gpu).unwrap();
        memory.fixed -= bytes;
        memory.used -= bytes;
        let back = memory.told - memory.fixed;
        memory.told -= back;
        memory.free += bytes - back;
        self.look(client, gpu);
        if !back.is_zero() {
            let bytes = back;
            self.send(Event::Returned { client, gpu, bytes });
        }
    }

    /// Lets the shell look at the free lease in a page.
    pub(in crate::tests) fn look(&mut self, client: ClientId, gpu: GpuId) {
        let free = self.free_lease(client, gpu);
        self.send(Event::LeaseSeen { client, gpu, free });
    }
}
