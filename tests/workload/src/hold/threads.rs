//! The threads that carry the commands out, each in the order of its own lines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::answer;
use super::command::{Command, Header};
use super::desk::Desk;
use crate::clock;

/// All threads by name.
pub(super) struct Threads {
    desk: Arc<Desk>,
    by_name: BTreeMap<String, Thread>,
}

struct Thread {
    orders: Sender<(Header, Command)>,
    handle: JoinHandle<()>,
}

impl Threads {
    pub(super) fn new(desk: Arc<Desk>) -> Self {
        Self { desk, by_name: BTreeMap::new() }
    }

    /// Gives a command to the thread that its line names, which is started if it is new.
    pub(super) fn tell(&mut self, header: Header, command: Command) {
        let desk = &self.desk;
        let thread = self.by_name.entry(header.thread.clone()).or_insert_with(|| {
            let (orders, inbox) = channel();
            let desk = Arc::clone(desk);
            let handle = thread::spawn(move || work(&desk, &inbox));
            Thread { orders, handle }
        });
        // A thread ends only when its orders do.
        let _ = thread.orders.send((header, command));
    }

    /// Waits until every thread has done what it was told.
    pub(super) fn finish(self) {
        for thread in self.by_name.into_values() {
            drop(thread.orders);
            let _ = thread.handle.join();
        }
    }
}

fn work(desk: &Desk, inbox: &Receiver<(Header, Command)>) {
    for (header, command) in inbox {
        let start = clock::now();
        answer(&match desk.execute(&command) {
            Ok(values) => header.done(clock::now() - start, values),
            Err(error) => header.failed(error.report()),
        });
    }
}
