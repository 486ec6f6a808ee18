//! Requests of clients, one by one.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::board::Board;
use crate::ids::{ClientId, StreamKey, Time};
use crate::machine::client::{Then, Waiter};
use crate::machine::{Card, Effect, Timer};
use crate::memory::IllegalAddress;
use crate::memory::physical::Physical;
use crate::queue::Task;
use crate::wire::{Advice, Answer, Description, Failure, Kind, Message, Op, Question, Request, Role, Work};

impl Card {
    pub(super) fn obey(
        &mut self,
        id: ClientId,
        question: Question,
        payload: Vec<u8>,
    ) -> Result<Option<Answer>, Failure> {
        let Question { token, request } = question;
        if let Some(error) = self.clients.get(&id).and_then(|client| client.poisoned)
            && needs_health(&request)
        {
            return Err(Failure::Sticky(error));
        }
        if self.refuses(id, &request) {
            return Err(Failure::OutOfMemory);
        }
        let (constants, now) = (self.memory.constants.clone(), self.now);
        let client = self.clients.get_mut(&id).ok_or(Failure::Unknown)?;
        match request {
            Request::Hello(role) => {
                client.role = role;
                if let Role::Callbacks(driver) = role
                    && let Some(driver) = self.clients.get_mut(&driver)
                {
                    driver.callbacks = Some(id);
                }
                return self.welcome(id, token);
            }
            Request::CreateContext(context, gpu) => {
                if self.gpus.get(gpu.0 as usize).is_some_and(|gpu| gpu.lost) {
                    return Err(Failure::Lost);
                }
                self.memory.take(gpu, constants.context_memory)?;
                client.contexts.insert(context, gpu);
                self.set_timer(now + constants.context_create, Timer::Done { client: id, token, fd: None });
                return Ok(None);
            }
            Request::DestroyContext(context) => {
                let fences = client.queues.fences(Work::Context(context))?;
                client
                    .waiters
                    .push(Waiter { fences, token, then: Then::DestroyContext(context) });
                return Ok(None);
            }
            Request::CreateStream(stream, context, kind) => client.queues.create(stream, context, kind),
            Request::DestroyStream(stream) => client.queues.destroy(stream),
            Request::Allocate { address, len, kind, context } => {
                let gpu = *client.contexts.get(&context).ok_or(Failure::Unknown)?;
                let fd = self.memory.allocate(id, address, len, kind, (context, gpu))?;
                return self.hand_over(id, token, fd);
            }
            Request::Free(address) => {
                let fences = client.queues.all_fences();
                client.waiters.push(Waiter { fences, token, then: Then::Free(address) });
                return Ok(None);
            }
            Request::Register { address, len, untouched, context } => {
                let gpu = *client.contexts.get(&context).ok_or(Failure::Unknown)?;
                let fd = self.memory.allocate(id, address, len, Kind::Pinned, (context, gpu))?;
                let time = constants.registration(len, untouched);
                return Ok(self.answer_after(id, token, time, fd));
            }
            Request::PriceRegistration { len, untouched } => {
                let time = constants.registration(len, untouched);
                return Ok(self.answer_after(id, token, time, None));
            }
            Request::PriceUnregistration(len) => {
                return Ok(self.answer_after(id, token, constants.unregister.time_for(len), None));
            }
            Request::Unregister(address) => {
                let len = self.memory.left(id, address).map_err(|IllegalAddress| Failure::Unknown)?;
                self.memory.free(id, address)?;
                return Ok(self.answer_after(id, token, constants.unregister.time_for(len), None));
            }
            Request::Submit(stream, op) => {
                let answered_later = matches!(op, Op::Download { .. });
                self.memory.note_blocks(id, stream, std::slice::from_ref(&op))?;
                client.queues.submit(stream, Task { op, payload, token })?;
                return Ok((!answered_later).then_some(Answer::Done));
            }
            Request::DefineGraph(graph, ops) => {
                client.graphs.insert(graph, ops);
            }
            Request::LaunchGraph(stream, graph) => {
                let ops = client.graphs.get(&graph).ok_or(Failure::Unknown)?;
                self.memory.note_blocks(id, stream, ops)?;
                for op in ops {
                    let task = Task { op: op.clone(), payload: Vec::new(), token: None };
                    client.queues.submit(stream, task)?;
                }
            }
            Request::DropGraph(graph) => {
                client.graphs.remove(&graph);
            }
            Request::DropEvent(event) => client.queues.drop_event(event),
            Request::Synchronize(work) => {
                let fences = client.queues.fences(work)?;
                client.waiters.push(Waiter { fences, token, then: Then::Answer });
                return Ok(None);
            }
            Request::Query(work) => {
                let fences = client.queues.fences(work)?;
                let ready = fences.into_iter().all(|fence| client.queues.done(fence));
                return Ok(Some(Answer::Ready(ready)));
            }
            Request::Elapsed(from, to) => {
                let (from, to) = (client.queues.time_of(from)?, client.queues.time_of(to)?);
                return Ok(Some(Answer::Elapsed(to.saturating_sub(from))));
            }
            Request::HostDone(call) => {
                // It comes on the callback connection and is about the driver's stream.
                let driver = if let Role::Callbacks(driver) = client.role { driver } else { id };
                let found = self.clients.get_mut(&driver).and_then(|driver| driver.host_calls.remove(&call));
                if let Some(stream) = found {
                    self.complete(StreamKey { client: driver, stream });
                }
            }
            Request::MemoryInfo(gpu) => {
                if self.gpus.get(gpu.0 as usize).is_some_and(|gpu| gpu.lost) {
                    return Err(Failure::Lost);
                }
                let (free, total) = self.memory.room(gpu).ok_or(Failure::Unknown)?;
                return Ok(Some(Answer::Memory { free, total }));
            }
            Request::WhereIs { address, len } => {
                let place = self.memory.whereabouts(id, address, len).map_err(|_| Failure::Unknown)?;
                return Ok(Some(Answer::Resident(place)));
            }
            Request::Describe => {
                let gpus = self.gpus.iter().map(|gpu| gpu.description.clone()).collect();
                return Ok(Some(Answer::Description(Box::new(Description { gpus, constants }))));
            }
            Request::CreateHandle { handle, len, place, shareable } => {
                let time = self.memory.handle_rates(place).create.time_for(len);
                self.memory.create_handle(id, handle, len, place, shareable)?;
                return Ok(self.answer_after(id, token, time, None));
            }
            Request::ReleaseHandle(handle) => {
                let taken = vec![self.memory.release_handle(id, handle)?];
                return Ok(self.answer_after_release(id, token, Time::ZERO, taken));
            }
            Request::ShareHandle(handle) => {
                let fd = self.memory.share_handle(id, handle)?;
                return self.hand_over(id, token, Some(fd));
            }
            Request::ImportHandle { handle, inode } => {
                let (len, place) = self.memory.import_handle(id, handle, inode)?;
                return Ok(Some(Answer::Imported { len, place }));
            }
            Request::Map { address, len, handle } => {
                let (place, fd) = self.memory.map(id, address, len, handle)?;
                let time = self.memory.handle_rates(place).map.time_for(len);
                return Ok(self.answer_after(id, token, time, fd));
            }
            Request::Unmap { address, len } => {
                let taken = self.memory.unmap(id, address, len)?;
                let unmap = |piece: &Rc<Physical>| self.memory.handle_rates(piece.place).unmap;
                let time = taken.iter().map(|piece| unmap(piece).time_for(piece.len)).sum();
                return Ok(self.answer_after_release(id, token, time, taken));
            }
            Request::SetAccess { address, len, gpu, allowed } => {
                self.memory.set_access(id, address, len, gpu, allowed)?;
            }
            Request::CreatePool { pool, gpu, limit } => self.memory.create_pool(id, pool, gpu, limit)?,
            Request::DestroyPool(pool) => self.memory.destroy_pool(id, pool)?,
            Request::TrimPool(pool, keep) => self.memory.trim_pool(id, pool, keep)?,
            Request::SetPoolThreshold(pool, bytes) => self.memory.pool(id, pool)?.threshold = bytes,
            Request::SetPoolAccess { pool, gpu, allowed } => {
                let gpus = &mut self.memory.pool(id, pool)?.reached_from;
                if allowed {
                    gpus.insert(gpu)
                } else {
                    gpus.remove(&gpu)
                };
            }
            Request::PoolInfo(pool) => return Ok(Some(Answer::Pool(self.memory.pool_use(id, pool)?))),
            Request::ResetPool(pool) => self.memory.pool(id, pool)?.reset_high(),
            Request::Peer { from, to, allowed } => self.memory.set_peer(id, from, to, allowed),
            Request::Advise(advice) => {
                let counters = self.memory.counters.entry(id).or_default();
                match advice {
                    Advice::Location => counters.advised_location += 1,
                    Advice::Access => counters.advised_access += 1,
                }
            }
            Request::FallOff(gpu) => self.fall_off(gpu)?,
            Request::Reset(gpu) => self.reset(gpu)?,
            Request::Xid(gpu, xid) => self.xid(gpu, xid)?,
            Request::SetPersistence(gpu, is_on) => self.set_persistence(gpu, is_on)?,
            Request::Checkpoint { pid, step } => return self.checkpoint(id, token, pid, step),
            Request::Refuse { pid, call, count } => self.refuse(pid, call, count)?,
            // The shell answers it: the machine does not know the clock.
            Request::Stats => return Err(Failure::Unknown),
            Request::Goodbye => {
                self.stop_work(id);
                self.drop_checkpoint(id);
                self.memory.forget(id);
                self.destroy_contexts(id);
            }
            Request::Shutdown => self.effects.push_back(Effect::Stop),
        }
        Ok(Some(Answer::Done))
    }
}

impl Card {
    /// A driver gets a board, which it can see without asking.
    fn welcome(&mut self, id: ClientId, token: Option<u64>) -> Result<Option<Answer>, Failure> {
        let client = self.clients.get_mut(&id).ok_or(Failure::Unknown)?;
        let mut fd = None;
        if client.role == Role::Driver {
            let (board, shared) = Board::new().map_err(|_| Failure::Host)?;
            (client.board, fd) = (Some(board), shared);
        }
        if let Some(token) = token {
            let message = Message::Answer(token, Ok(Answer::Welcome(id)));
            self.say(id, message, Vec::new(), fd);
        }
        Ok(None)
    }

    /// Answers with a descriptor.
    fn hand_over(
        &mut self,
        id: ClientId,
        token: Option<u64>,
        fd: Option<OwnedFd>,
    ) -> Result<Option<Answer>, Failure> {
        if let Some(token) = token {
            self.say(id, Message::Answer(token, Ok(Answer::Done)), Vec::new(), fd);
        }
        Ok(None)
    }
}

/// Whether a request is refused after an error from which nothing recovers.
fn needs_health(request: &Request) -> bool {
    matches!(
        request,
        Request::Submit(..)
            | Request::LaunchGraph(..)
            | Request::Synchronize(_)
            | Request::Query(_)
            | Request::Allocate { .. }
            | Request::Free(_)
            | Request::CreateContext(..)
            | Request::Register { .. }
            | Request::CreateHandle { .. }
            | Request::Map { .. }
            | Request::CreatePool { .. }
    )
}
