//! The thread that asks NVML what each process has on each card. The driver may take its time, or never answer again when a
//! card falls off, so the core's task asks, goes on, and hears the answer as any other input.
//!
//! The library is loaded at the first question, once for the daemon's life: on an H200 (driver 580.159.04) each loading and
//! letting go leaves a descriptor open. Without clients there are no questions.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use tokio::sync::mpsc;

use super::Usages;
use crate::input::Input;

/// Whom to ask.
#[derive(Debug)]
pub(crate) struct Meter {
    ask: SyncSender<()>,
}

impl Meter {
    /// Starts the thread, which answers on `inputs`, and ends where there is no NVML.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub(crate) fn start(inputs: mpsc::Sender<Input>) -> io::Result<Self> {
        Self::reading(inputs, || {
            let nvml = super::load().ok()?;
            Some(move || super::usages(&nvml))
        })
    }

    fn reading<R: FnMut() -> Usages>(
        inputs: mpsc::Sender<Input>,
        open: impl FnOnce() -> Option<R> + Send + 'static,
    ) -> io::Result<Self> {
        let (ask, asked) = sync_channel(1);
        thread::Builder::new()
            .name("meter".to_owned())
            .spawn(move || answer(open, &asked, &inputs))?;
        Ok(Self { ask })
    }

    /// Asks; false where nobody will ever answer.
    pub(crate) fn ask(&self) -> bool {
        !matches!(self.ask.try_send(()), Err(TrySendError::Disconnected(())))
    }
}

fn answer<R: FnMut() -> Usages>(
    open: impl FnOnce() -> Option<R>,
    asked: &Receiver<()>,
    inputs: &mpsc::Sender<Input>,
) {
    if asked.recv().is_err() {
        return;
    }
    let Some(mut read) = open() else {
        // Nobody listens only when the daemon ends.
        let _ = inputs.blocking_send(Input::Measured(None));
        return;
    };
    loop {
        let usages = Some(read());
        if inputs.blocking_send(Input::Measured(usages)).is_err() || asked.recv().is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpushare_proto::{Bytes, GpuUuid};

    use super::*;

    #[test]
    fn each_question_has_one_answer() {
        let (inputs, mut answers) = mpsc::channel(4);
        let mut count = 0;
        let read = move || {
            count += 1;
            let on_card = BTreeMap::from([(7, Some(Bytes(count)))]);
            BTreeMap::from([(GpuUuid::gpu([1; 16]), Some(on_card))])
        };
        let meter = Meter::reading(inputs, move || Some(read)).unwrap();
        for expected in [1, 2] {
            assert!(meter.ask());
            let Some(Input::Measured(Some(usages))) = answers.blocking_recv() else {
                panic!("no answer")
            };
            let on_card = usages[&GpuUuid::gpu([1; 16])].as_ref().unwrap();
            assert_eq!(on_card[&7], Some(Bytes(expected)));
        }
        drop(meter);
        assert!(answers.blocking_recv().is_none(), "the thread is gone with it");
    }

    #[test]
    fn without_nvml_that_is_the_answer_and_the_last() {
        let (inputs, mut answers) = mpsc::channel(4);
        let meter = Meter::reading(inputs, || None::<fn() -> Usages>).unwrap();
        meter.ask();
        assert!(matches!(answers.blocking_recv(), Some(Input::Measured(None))));
        assert!(answers.blocking_recv().is_none());
        assert!(!meter.ask());
    }
}
