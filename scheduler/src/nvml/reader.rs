//! Thread that asks NVML on demand. A call may take long, or never return when a card falls off the bus. So
//! no other thread calls NVML.
//!
//! The thread loads NVML at the first question and keeps it. On an H200 (driver 580.159.04) each load and
//! unload leaves a descriptor open. Without questions NVML is never loaded.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::{io, thread};

use nvml_wrapper::Nvml;

/// Handle of a thread that asks NVML questions of type `Q`. Dropping the handle ends the thread.
#[derive(Debug)]
pub(crate) struct Reader<Q = ()>(SyncSender<Q>);

impl<Q: Send + 'static> Reader<Q> {
    /// Starts a thread that answers each question with one `read`. Without NVML the thread delivers `None`
    /// once and ends. `deliver` returns whether more answers are wanted.
    pub(crate) fn start<T: 'static>(
        name: &str,
        read: fn(&Nvml, Q) -> T,
        deliver: impl FnMut(Option<T>) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        Self::reading(
            name,
            move || gpushare_nvml::load().ok().map(|nvml| move |question| read(&nvml, question)),
            deliver,
        )
    }

    /// Starts the thread with a source other than NVML. `open` opens the source at the first question.
    pub(crate) fn reading<T, R: FnMut(Q) -> T>(
        name: &str,
        open: impl FnOnce() -> Option<R> + Send + 'static,
        deliver: impl FnMut(Option<T>) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, arriving) = sync_channel(1);
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn(move || answer(open, arriving, deliver))?;
        Ok(Self(questions))
    }

    /// Asks a question, unless another one is waiting. Returns false if no answer will ever come.
    pub(crate) fn ask(&self, question: Q) -> bool {
        !matches!(self.0.try_send(question), Err(TrySendError::Disconnected(_)))
    }
}

fn answer<Q, T, R: FnMut(Q) -> T>(
    open: impl FnOnce() -> Option<R>,
    questions: Receiver<Q>,
    mut deliver: impl FnMut(Option<T>) -> bool,
) {
    let Ok(first) = questions.recv() else { return };
    let Some(mut read) = open() else {
        // Nobody who has this answer can ask another question.
        drop(questions);
        deliver(None);
        return;
    };
    let mut next = Some(first);
    while let Some(question) = next {
        next = if deliver(Some(read(question))) { questions.recv().ok() } else { None };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn each_question_has_one_answer() {
        let (answers, answered) = channel();
        let mut count = 0;
        let read = move |()| {
            count += 1;
            count
        };
        let deliver = move |answer| answers.send(answer).is_ok();
        let reader = Reader::reading("test", move || Some(read), deliver).unwrap();
        for expected in [1, 2] {
            assert!(reader.ask(()));
            assert_eq!(answered.recv(), Ok(Some(expected)));
        }
        drop(reader);
        assert!(answered.recv().is_err(), "the thread ends with its handle");
    }

    #[test]
    fn without_nvml_the_first_answer_is_the_last() {
        let (answers, answered) = channel();
        let deliver = move |answer: Option<()>| answers.send(answer).is_ok();
        let reader = Reader::reading("test", || None::<fn(())>, deliver).unwrap();
        reader.ask(());
        assert_eq!(answered.recv(), Ok(None));
        assert!(!reader.ask(()));
        assert!(answered.recv().is_err());
    }
}
