//! Asks the NVIDIA driver what it can do, in a process that may die of it.
//!
//! A broken driver crashes or hangs whoever asks. So `gpushare-ctl doctor` asks in a child with a time limit, and
//! the child says *before each call* what it is about to ask and what it knows so far:
//!
//! ```text
//!   child                                   gpushare-ctl doctor
//!   {"next":"cuInit","facts":{…}} ─────────▶ keeps the last whole line
//!   {"next":"cuDeviceGetCount","facts":{…}} ▶
//!   ✝ or silence                             knows what was found, and in which call it ended
//! ```
//!
//! Nothing here makes a context, allocates on a card or changes anything. This is the only place of the command
//! line with `unsafe` in it: the libraries are loaded by name, never linked.

mod library;

mod cuda;

mod nvml;

use std::io::Write as _;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use cuda::{CudaCard, CudaFacts};
pub use nvml::{NvmlCard, NvmlFacts};

/// The name of NVIDIA's driver library, as its packages install it.
pub const LIBCUDA: &str = "libcuda.so.1";
/// The name of NVIDIA's management library.
pub const LIBNVML: &str = "libnvidia-ml.so.1";

/// What a child prints, a line each time: all that it knows, and what it asks next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress<F> {
    /// The call it is about to make; none at the end.
    pub next: Option<String>,
    /// What it knows.
    pub facts: F,
}

/// How loading a library went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loaded {
    /// From this file.
    From(String),
    /// Not, for the loader's reason.
    Not(String),
}

/// What a child can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// What the driver can do.
    Cuda,
    /// What the management library says.
    Nvml,
    /// Which of its files the loader mapped: whether a preload was taken.
    Mapped,
}

impl Question {
    /// As an argument.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Nvml => "nvml",
            Self::Mapped => "mapped",
        }
    }

    /// The question that an argument means.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Cuda, Self::Nvml, Self::Mapped]
            .into_iter()
            .find(|question| question.name() == name)
    }
}

/// Answers on standard output, line by line. Ends early when nobody reads.
pub fn answer(question: Question) {
    // Dying is an answer too, and needs no file of gigabytes in the user's folder.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    match question {
        Question::Cuda => cuda::ask(&mut Teller::new()),
        Question::Nvml => nvml::ask(&mut Teller::new()),
        Question::Mapped => {
            let mut teller = Teller::new();
            teller.facts = library::mapped();
            teller.tell(None);
        }
    }
}

/// The facts so far and the pipe that they go to.
struct Teller<F> {
    facts: F,
}

impl<F: Default + Serialize + DeserializeOwned> Teller<F> {
    fn new() -> Self {
        Self { facts: F::default() }
    }

    /// Says what is known and what comes next.
    fn tell(&self, next: Option<&str>) {
        let progress = Progress { next: next.map(str::to_owned), facts: &self.facts };
        let Ok(line) = serde_json::to_string(&progress) else {
            return;
        };
        let mut stdout = std::io::stdout().lock();
        if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
            // Nobody is left to hear it.
            std::process::exit(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_found_by_its_name() {
        for question in [Question::Cuda, Question::Nvml, Question::Mapped] {
            assert_eq!(Question::named(question.name()), Some(question));
        }
        assert_eq!(Question::named("rm"), None);
    }

    #[test]
    fn what_is_not_known_yet_stays_unknown_over_the_pipe() {
        let progress = Progress {
            next: Some("cuInit".into()),
            facts: CudaFacts {
                library: Some(Loaded::From("/lib/libcuda.so.1".into())),
                ..CudaFacts::default()
            },
        };
        let line = serde_json::to_string(&progress).unwrap();
        assert_eq!(serde_json::from_str::<Progress<CudaFacts>>(&line).unwrap(), progress);
        assert_eq!(progress.facts.init, None);
    }
}
