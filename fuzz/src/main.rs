//! The targets on any compiler: for a fixed time, by a seed. What breaks a promise is kept as a file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use gpushare_fuzz::{codec, events, mutate};
use gpushare_tests::dice::Dice;
use serde::Serialize;

/// More than this a decode never takes beyond what its bytes can stand for: the decoder's first guess at a
/// sequence is at most a mebibyte, and sequences lie in each other three deep.
const ALLOWANCE: usize = 4 << 20;
/// Most bytes of memory that one byte of any message can stand for.
const PER_BYTE: usize = 256;

/// Counts what is taken, and how much at most.
struct Counting;

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does all of it; the counters beside it are atomic and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let taken = TAKEN.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(taken, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract that this function has too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Gives random bytes to the codec and random events to the core
#[derive(Parser)]
struct Arguments {
    /// How long, all targets together
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Number of rounds instead of a time: each gives some hundreds of inputs
    #[arg(long, conflicts_with = "seconds")]
    rounds: Option<u64>,
    /// Which bytes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End with one line of JSON on stdout
    #[arg(long)]
    json: bool,
    /// Where inputs go that break a promise
    #[arg(long, default_value = "target/fuzz")]
    keep: PathBuf,
    /// Give one target (`core`, or an enum like `tenant_request`) the bytes of this file, and nothing else
    #[arg(long, num_args = 2, value_names = ["TARGET", "FILE"])]
    replay: Option<Vec<String>>,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    seed: u64,
    /// Inputs, and those among them that were messages, per target.
    inputs: BTreeMap<&'static str, u64>,
    messages: BTreeMap<&'static str, u64>,
    /// Number of events that the core was given, and of effects that it returned.
    events: u64,
    effects: u64,
    /// The most memory that a decode took, in bytes beyond its input.
    most_memory: usize,
    /// Inputs that broke a promise: file and sentence.
    found: BTreeMap<String, String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some([target, file]) = arguments.replay.as_deref() {
        let input = fs::read(file)?;
        let mut report = Report::default();
        give(target, &input, &mut report);
        println!("{report:#?}");
        return Ok(ExitCode::SUCCESS);
    }
    let report = run(&arguments)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{report:#?}");
    }
    Ok(if report.found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let golden = codec::ENUMS
        .iter()
        .map(|name| mutate::golden(name))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut report = Report { seed: arguments.seed, ..Report::default() };
    let mut dice = Dice::new(arguments.seed);
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut rounds = 0;
    let more = |rounds| arguments.rounds.map_or_else(|| Instant::now() < end, |wanted| rounds < wanted);
    let mut core = Vec::new();
    while more(rounds) && report.found.len() < 10 {
        rounds += 1;
        for (name, golden) in codec::ENUMS.into_iter().zip(&golden) {
            for _ in 0..50 {
                let input = mutate::almost(golden, &mut dice);
                hold(name, &input, &mut report, arguments)?;
            }
        }
        for _ in 0..10 {
            let length = dice.index(2000);
            let input = match core.is_empty() || dice.one_in(2) {
                true => dice.bytes(length),
                false => mutate::almost(&core, &mut dice),
            };
            hold("core", &input, &mut report, arguments)?;
            // An input that was played is changed next.
            if core.len() < 64 {
                core.push(input);
            } else {
                let instead = dice.index(core.len());
                core[instead] = input;
            }
        }
    }
    Ok(report)
}

/// Gives it to the target, and keeps it if a promise is broken.
fn hold(
    target: &'static str,
    input: &[u8],
    report: &mut Report,
    arguments: &Arguments,
) -> anyhow::Result<()> {
    *report.inputs.entry(target).or_default() += 1;
    let outcome = catch_unwind(AssertUnwindSafe(|| give(target, input, report)));
    let broken = match outcome {
        Ok(None) => return Ok(()),
        Ok(Some(is_message)) => {
            *report.messages.entry(target).or_default() += u64::from(is_message);
            return Ok(());
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            text.unwrap_or("it panicked").to_owned()
        }
    };
    fs::create_dir_all(&arguments.keep)?;
    let file = arguments
        .keep
        .join(format!("{target}-{}-{}", arguments.seed, report.found.len()));
    fs::write(&file, input)?;
    eprintln!(
        "BROKEN: {broken}; again: cargo run -p gpushare-fuzz --bin gpushare-fuzz -- --replay {target} {}",
        file.display()
    );
    report.found.insert(file.display().to_string(), broken);
    Ok(())
}

/// Whether it was a message, for the targets of the codec.
fn give(target: &str, input: &[u8], report: &mut Report) -> Option<bool> {
    let Some(which) = codec::ENUMS.iter().position(|name| *name == target) else {
        let played = events::play(input);
        report.events += played.events;
        report.effects += played.effects;
        return None;
    };
    let before = TAKEN.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let is_message = codec::message(which, input);
    let took = MOST.load(Ordering::Relaxed).saturating_sub(before);
    report.most_memory = report.most_memory.max(took);
    let may = ALLOWANCE + PER_BYTE * input.len();
    assert!(took <= may, "{} bytes took {took} bytes of memory", input.len());
    Some(is_message)
}
