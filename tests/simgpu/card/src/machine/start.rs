//! Work that may start: to the engine that does it, or done on the spot.

use std::sync::atomic::Ordering::Relaxed;

use crate::ids::{ClientId, ContextId, GpuIndex, HostCallId, StreamKey, Time};
use crate::kernel::Kernel;
use crate::machine::client::ValueWait;
use crate::machine::{Card, Timer};
use crate::queue::Task;
use crate::walk::{Job, Spinner, Walk};
use crate::wire::{Kind, Message, Op, Sticky, Test};

impl Card {
    pub(super) fn start(&mut self, key: StreamKey, task: Task) {
        let raced = self.races.begin(key, &task.op);
        self.memory.counters.entry(key.client).or_default().raced_copies += raced;
        let gpu = self.gpu_of(key);
        let engines = &mut self.gpus[gpu.0 as usize];
        engines.compute.renew_slice(self.now, self.memory.constants.slice);
        let walk = |job| Walk::new(key, gpu, job);
        match task.op {
            Op::Kernel(Kernel::Spin { flag, nanoseconds }) => {
                engines.compute.spin(Spinner::new(key, flag, Time::from_nanos(nanoseconds)));
            }
            Op::Kernel(kernel) => engines.compute.push(walk(Job::Kernel(kernel))),
            Op::Set { to, shape, value, element } => {
                engines.compute.push(walk(Job::Set { to, shape, value, element }));
            }
            Op::Copy { to, from, shape } => {
                let pinned = |address| self.memory.kind_at(key.client, address) == Some(Kind::Pinned);
                let copy = walk(Job::Copy { to, from, shape });
                let between = self.memory.between_gpus(key.client, from.address, to.address);
                match (pinned(from.address), pinned(to.address)) {
                    (false, false) if between => engines.link_out.push(copy),
                    (false, false) => engines.compute.push(copy),
                    (_, true) => engines.link_out.push(copy),
                    (true, false) => engines.link_in.push(copy),
                }
            }
            Op::Upload { to, shape, registered } => {
                engines
                    .link_in
                    .push(walk(Job::Upload { to, shape, data: task.payload, registered }));
            }
            Op::Download { from, shape, registered } => {
                let (data, token) = (Vec::new(), task.token.unwrap_or(0));
                engines
                    .link_out
                    .push(walk(Job::Download { from, shape, data, token, registered }));
            }
            Op::Prefetch { address, len, to } => {
                let link = if to.is_some() { &mut engines.link_in } else { &mut engines.link_out };
                link.push(walk(Job::Prefetch { address, len, to }));
            }
            Op::HostCall(call) => self.call_host(key, call),
            Op::WaitValue { address, value, test, wide } => {
                let wait = ValueWait { stream: key.stream, address, value, test, wide };
                self.wait_for_value(key, wait);
            }
            Op::WriteValue { address, value, wide } => {
                match self.write_value(key.client, address, value, wide) {
                    Some(()) => self.complete_quietly(key),
                    None => self.poison(key.client, Sticky::IllegalAddress),
                }
            }
            Op::Record(_) | Op::RecordContext(_) | Op::WaitEvent(_) => self.complete_quietly(key),
            Op::Allocate { address, len, pool } => {
                let context = self.context_of(key);
                let made =
                    context.map(|context| self.memory.make_block(key.client, (address, len), pool, context));
                match made {
                    Some(Ok(())) => self.complete_quietly(key),
                    _ => self.poison(key.client, Sticky::IllegalAddress),
                }
            }
            Op::Release(address) => {
                self.memory.end_block(key.client, address);
                self.complete_quietly(key);
            }
            Op::Pause(time) => self.set_timer(self.now + time, Timer::PauseOver(key)),
            Op::Fail(error) => self.poison(key.client, error),
        }
    }

    /// Completes without pumping, for use inside the pump.
    pub(super) fn complete_quietly(&mut self, key: StreamKey) {
        self.races.end(key);
        if let Some(client) = self.clients.get_mut(&key.client) {
            client.complete(key.stream, self.now);
        }
    }

    pub(super) fn context_of(&self, key: StreamKey) -> Option<ContextId> {
        self.clients.get(&key.client)?.queues.context_of(key.stream)
    }

    pub(super) fn gpu_of(&self, key: StreamKey) -> GpuIndex {
        let context = self.context_of(key);
        let client = self.clients.get(&key.client);
        let gpu = context.and_then(|context| client.and_then(|client| client.contexts.get(&context)));
        gpu.copied().unwrap_or(GpuIndex(0))
    }

    pub(super) fn call_host(&mut self, key: StreamKey, call: HostCallId) {
        let Some(client) = self.clients.get_mut(&key.client) else {
            return;
        };
        self.calls_made += 1;
        client.host_calls.insert(self.calls_made, key.stream);
        if let Some(connection) = client.callbacks {
            self.say(connection, Message::Call(call, self.calls_made), Vec::new(), None);
        }
    }

    pub(super) fn wait_for_value(&mut self, key: StreamKey, wait: ValueWait) {
        match self.passes(key.client, wait) {
            None => self.poison(key.client, Sticky::IllegalAddress),
            Some(true) => self.complete_quietly(key),
            Some(false) => {
                if let Some(client) = self.clients.get_mut(&key.client) {
                    client.value_waits.push(wait);
                }
                if !std::mem::replace(&mut self.polling, true) {
                    self.set_timer(self.now + self.memory.constants.poll, Timer::Poll);
                }
            }
        }
    }

    pub(super) fn poll_values(&mut self) {
        self.polling = false;
        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        for id in ids {
            let waits = self.clients.get_mut(&id).map(|client| std::mem::take(&mut client.value_waits));
            for wait in waits.into_iter().flatten() {
                self.wait_for_value(StreamKey { client: id, stream: wait.stream }, wait);
            }
            self.pump(id);
        }
    }

    pub(super) fn passes(&self, client: ClientId, wait: ValueWait) -> Option<bool> {
        let size = if wait.wide { 8 } else { 4 };
        let (bytes, offset) = self.memory.bytes(client, wait.address, size).ok()?;
        // Both widths are compared in the upper bits, so that the sign is where a signed comparison wants it.
        let shift = 64 - 8 * size;
        let word = if wait.wide {
            bytes.wide_word(offset)?.load(Relaxed)
        } else {
            u64::from(bytes.words(offset, 1)?[0].load(Relaxed)) << shift
        };
        let value = wait.value << shift;
        Some(match wait.test {
            Test::GreaterOrEqual => (word.wrapping_sub(value)).cast_signed() >= 0,
            Test::Equal => word == value,
            Test::And => word & value != 0,
            Test::Nor => (!(word | value)) >> shift != 0,
        })
    }

    pub(super) fn write_value(&self, client: ClientId, address: u64, value: u64, wide: bool) -> Option<()> {
        let (bytes, offset) = self.memory.bytes(client, address, if wide { 8 } else { 4 }).ok()?;
        if wide {
            bytes.wide_word(offset)?.store(value, Relaxed);
        } else {
            bytes.words(offset, 1)?[0].store(u32::try_from(value & 0xffff_ffff).ok()?, Relaxed);
        }
        Some(())
    }
}
