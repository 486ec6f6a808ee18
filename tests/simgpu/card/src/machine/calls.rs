//! Calls that take time in the driver itself: those about physical memory.
//!
//! ```text
//! process A   | create |   map   |      | unmap + release |
//! process B       | create |                                   beside A's
//! ```
//!
//! The driver does them one after the other for each process: more threads made nothing faster on an H100
//! (driver 580). They wait for no work. All of them returned there while the legacy stream was blocked.
//! Each call takes effect at its beginning. Only the room of memory that it frees comes back at its end.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::ids::{ClientId, Time};
use crate::machine::{Card, Timer};
use crate::memory::physical::Physical;
use crate::wire::Answer;

impl Card {
    /// Answers when the calls of this process before it, and then its own time, are over.
    pub(super) fn answer_after(
        &mut self,
        client: ClientId,
        token: Option<u64>,
        time: Time,
        fd: Option<OwnedFd>,
    ) -> Option<Answer> {
        let end = self.end_of_call(client, time);
        self.set_timer(end, Timer::Done { client, token, fd });
        None
    }

    /// Answers likewise, and then gives back the memory that nobody else refers to.
    pub(super) fn answer_after_release(
        &mut self,
        client: ClientId,
        token: Option<u64>,
        time: Time,
        taken: Vec<Rc<Physical>>,
    ) -> Option<Answer> {
        let end = self.end_of_call(client, time + self.memory.ending(&taken));
        self.set_timer(end, Timer::Release { client, token, taken });
        None
    }

    /// End of a call that takes so long.
    fn end_of_call(&mut self, client: ClientId, time: Time) -> Time {
        let Some(client) = self.clients.get_mut(&client) else {
            return self.now;
        };
        client.calls_end = client.calls_end.max(self.now) + time;
        client.calls_end
    }
}
