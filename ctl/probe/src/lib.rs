//! Probe of the NVIDIA driver's abilities, in a process that the driver may crash.
//!
//! A broken driver can crash or hang its caller. So `gpushare-ctl doctor` runs the probe in a child process
//! with a time limit. Before each driver call the child prints the name of the call and the facts so far:
//!
//! ```text
//!   child                                   gpushare-ctl doctor
//!   {"next":"cuInit","facts":{…}} ─────────▶ keeps the last whole line
//!   {"next":"cuDeviceGetCount","facts":{…}} ▶
//!   ✝ or silence                             knows the facts so far, and the call in which the child ended
//! ```
//!
//! The probe creates no CUDA context, allocates nothing on a card and changes nothing. No other part of the
//! command line has `unsafe` code: the driver's libraries are loaded by name, not linked.

mod library;
mod cuda;
mod nvml;

use std::io::Write as _;

use serde::{Deserialize, Serialize};

pub use cuda::{CudaCard, CudaFacts};
pub use nvml::{NvmlCard, NvmlFacts};

/// File name of the library of NVIDIA's CUDA driver.
pub const LIBCUDA: &str = "libcuda.so.1";
/// File name of NVIDIA's management library (NVML).
pub const LIBNVML: &str = "libnvidia-ml.so.1";

/// Line that a probe prints before each driver call: the gathered facts and the name of the call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress<F> {
    /// Name of the next driver call; none after the last one.
    pub next: Option<String>,
    /// Facts that the probe has gathered.
    pub facts: F,
}

/// Result of loading a library of NVIDIA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loaded {
    /// The library was loaded from this file.
    From(String),
    /// The library was not loaded, for this reason of the loader.
    Not(String),
}

/// Question that a probe answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Question about the abilities of the CUDA driver and its cards.
    Cuda,
    /// Question about the facts of NVIDIA's management library (NVML).
    Nvml,
    /// Question about the files mapped into the probe, which show whether a library was preloaded.
    Mapped,
}

impl Question {
    /// Returns the question's name as a command-line argument.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Nvml => "nvml",
            Self::Mapped => "mapped",
        }
    }

    /// Returns the question with this name as a command-line argument.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Cuda, Self::Nvml, Self::Mapped]
            .into_iter()
            .find(|question| question.name() == name)
    }
}

/// Answers a question on standard output, with a line before each driver call, until the output is closed.
pub fn answer(question: Question) {
    // A crash is an expected answer and must not write a core file of gigabytes.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    match question {
        Question::Cuda => tell_all(cuda::ask),
        Question::Nvml => tell_all(nvml::ask),
        Question::Mapped => tell_all(|teller| teller.facts = library::mapped()),
    }
}

/// Facts that the probe has gathered, and the pipe to which the probe writes them.
struct Teller<F> {
    facts: F,
}

fn tell_all<F: Default + Serialize>(ask: impl FnOnce(&mut Teller<F>)) {
    let mut teller = Teller { facts: F::default() };
    ask(&mut teller);
    teller.tell(None);
}

impl<F: Serialize> Teller<F> {
    /// Writes a line with the gathered facts and the name of the next driver call.
    fn tell(&self, next: Option<&str>) {
        let progress = Progress { next: next.map(str::to_owned), facts: &self.facts };
        let Ok(line) = serde_json::to_string(&progress) else {
            return;
        };
        let mut stdout = std::io::stdout().lock();
        if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
            // The parent has closed the pipe.
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
