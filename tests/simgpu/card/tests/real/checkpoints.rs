//! Checkpoints of a process, asked for by another one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use simgpu_card::connection::Observer;
use simgpu_card::stats::ProcessStats;
use simgpu_card::wire::{ProcessState, Sticky};

use crate::memory::{DEVICE, HOST_NUMA, READ_WRITE, on};
use crate::program::Program;
use crate::registered::Pages;
use crate::{CardProcess, MIB, NOT_READY};

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const ILLEGAL_STATE: u32 = 401;
const NOT_SUPPORTED: u32 = 801;
const UNKNOWN: u32 = 999;

/// A program with some memory, which looks at it and ends when told.
struct Holder {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Holder {
    fn start(card: &CardProcess, holds: &str) -> Self {
        let mut command = card.program("checkpoints::holds_memory");
        command.env("HOLDS", holds).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut holder = Self { child, out };
        holder.hears("ready");
        holder
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn says(&mut self, line: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{line}").unwrap();
    }

    fn hears(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim_end() != word {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "no {word}");
        }
    }

    /// Whether it has said nothing since.
    fn is_silent(&self) -> bool {
        let mut readable = [PollFd::new(self.out.get_ref(), PollFlags::IN)];
        self.out.buffer().is_empty() && poll(&mut readable, Some(&Timespec::default())).unwrap() == 0
    }

    /// Ends by itself.
    fn ends(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    fn stats(&self, observer: &Observer) -> ProcessStats {
        let stats = observer.stats().unwrap();
        stats.processes.into_iter().find(|process| process.pid == self.pid()).unwrap()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Codes of these steps about a process, by a process that does nothing else.
fn steps(card: &CardProcess, pid: u32, steps: &str) -> Vec<u32> {
    let mut command = card.program("checkpoints::takes_steps");
    let output = command.env("TARGET", pid.to_string()).env("STEPS", steps).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("code ")?.parse().ok())
        .collect()
}

pub(crate) fn takes_steps() {
    let (target, steps) = (std::env::var("TARGET").unwrap(), std::env::var("STEPS").unwrap());
    let pid: i32 = target.parse().unwrap();
    let program = Program::load();
    assert_eq!(program.cuInit(0), 0);
    let none = [0; 16];
    println!();
    for step in steps.split_whitespace() {
        let mut patience = none;
        let code = match step {
            "lock" => program.cuCheckpointProcessLock(pid, &none),
            "lock-soon" => {
                patience[0] = 50;
                program.cuCheckpointProcessLock(pid, &patience)
            }
            "checkpoint" => program.cuCheckpointProcessCheckpoint(pid, &none),
            "restore" => program.cuCheckpointProcessRestore(pid, &none),
            "unlock" => program.cuCheckpointProcessUnlock(pid, &none),
            "state" => {
                let mut state = 9;
                match program.cuCheckpointProcessGetState(pid, &mut state) {
                    0 => state,
                    code => code,
                }
            }
            "thread" => {
                let mut thread = 0;
                let code = program.cuCheckpointProcessGetRestoreThreadId(pid, &mut thread);
                assert_eq!((code, thread), (0, pid));
                code
            }
            other => panic!("no step {other}"),
        };
        println!("code {code}");
    }
}

pub(crate) fn holds_memory() {
    let program = Program::start();
    let kernels = program.kernels();
    let words = 4 * MIB / 4;
    let holds = std::env::var("HOLDS").unwrap();
    let mut ranges = Vec::new();
    let own = Pages::new(4 * MIB);
    for kind in holds.split_whitespace() {
        let (mut address, mut handle) = (0, 0);
        match kind {
            "device" => assert_eq!(program.cuMemAlloc_v2(&mut address, 4 * MIB), 0),
            "managed" => assert_eq!(program.cuMemAllocManaged(&mut address, 4 * MIB, 1), 0),
            "registered" => {
                assert_eq!(program.cuMemHostRegister_v2(own.address(), 4 * MIB, 0), 0);
                assert_eq!(program.cuMemHostGetDevicePointer_v2(&mut address, own.address(), 0), 0);
            }
            "physical" | "host-numa" => {
                let place = if kind == "physical" { DEVICE } else { HOST_NUMA };
                assert_eq!(program.cuMemAddressReserve(&mut address, 4 * MIB, 0, 0, 0), 0);
                assert_eq!(program.cuMemCreate(&mut handle, 4 * MIB, &on(place), 0), 0);
                assert_eq!(program.cuMemMap(address, 4 * MIB, 0, handle, 0), 0);
                assert_eq!(
                    program.cuMemSetAccess(address, 4 * MIB, &[DEVICE[0], DEVICE[1], READ_WRITE], 1),
                    0
                );
            }
            "work" => {
                let flag = Pages::new(4096);
                assert_eq!(program.cuMemHostRegister_v2(flag.address(), 4096, 0), 0);
                assert_eq!(program.launch(kernels, "spin", 0, &[flag.address(), u64::MAX]), 0);
                std::mem::forget(flag);
                continue;
            }
            other => panic!("nothing is called {other}"),
        }
        let value = 7 + u64::try_from(ranges.len()).unwrap();
        assert_eq!(program.launch(kernels, "fill", 0, &[address, words as u64, value]), 0);
        ranges.push((address, u32::try_from(value).unwrap()));
    }
    if !holds.contains("work") {
        assert_eq!(program.cuCtxSynchronize(), 0);
    }
    println!("\nready");
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "look" => {
                println!("looks");
                let right = |&(address, value): &(u64, u32)| {
                    let words = program.words(address, words);
                    words.iter().all(|word| *word == value)
                };
                println!("{}", if ranges.iter().all(right) { "right" } else { "wrong" });
            }
            "ask" => println!("code {}", program.cuCtxSynchronize()),
            other => panic!("what is {other}?"),
        }
    }
}

#[test]
fn a_checkpointed_process_leaves_the_card_and_its_bytes_come_back() {
    let card = CardProcess::start(&[]);
    let observer = card.observer();
    let mut holder = Holder::start(&card, "device physical registered");
    let before = observer.stats().unwrap();
    assert_eq!(holder.stats(&observer).device_bytes, 8 * MIB as u64);

    assert_eq!(steps(&card, holder.pid(), "lock thread checkpoint state"), [0, 0, 0, 2]);
    let frozen = observer.stats().unwrap();
    assert_eq!(frozen.gpus[0].total - frozen.gpus[0].free, frozen.constants.checkpoint_left);
    assert_eq!(frozen.host_bytes - before.host_bytes, before.gpus[0].total - before.gpus[0].free);
    let process = holder.stats(&observer);
    assert_eq!(
        (process.state, process.gpus, process.gpu_bytes),
        (ProcessState::Checkpointed, vec![], vec![])
    );

    assert_eq!(steps(&card, holder.pid(), "restore unlock state"), [0, 0, 0]);
    let after = observer.stats().unwrap();
    assert_eq!((after.gpus[0].free, after.host_bytes), (before.gpus[0].free, before.host_bytes));
    holder.says("look");
    holder.hears("right");
    holder.ends();
    assert_eq!(observer.stats().unwrap().host_bytes, 0);
    card.end();
}

#[test]
fn calls_of_a_locked_process_wait_for_the_end_of_the_lock() {
    let card = CardProcess::start(&[]);
    let mut holder = Holder::start(&card, "device");
    assert_eq!(steps(&card, holder.pid(), "lock"), [0]);
    holder.says("look");
    holder.hears("looks");
    assert_eq!(steps(&card, holder.pid(), "checkpoint restore state"), [0, 0, 1]);
    assert!(holder.is_silent());
    assert_eq!(steps(&card, holder.pid(), "unlock"), [0]);
    holder.hears("right");
    holder.ends();
    card.end();
}

#[test]
fn a_process_that_ends_by_itself_waits_too() {
    let card = CardProcess::start(&[]);
    let mut holder = Holder::start(&card, "device");
    assert_eq!(steps(&card, holder.pid(), "lock checkpoint"), [0, 0]);
    drop(holder.child.stdin.take());
    assert_eq!(steps(&card, holder.pid(), "state restore"), [2, 0]);
    assert_eq!(holder.child.try_wait().unwrap(), None);
    assert_eq!(steps(&card, holder.pid(), "unlock"), [0]);
    holder.ends();
    let stats = card.observer().stats().unwrap();
    assert_eq!((stats.gpus[0].free, stats.host_bytes), (stats.gpus[0].total, 0));
    card.end();
}

#[test]
fn steps_out_of_order_and_about_nobody_are_refused() {
    let card = CardProcess::start(&[]);
    let holder = Holder::start(&card, "device");
    let refused = steps(&card, holder.pid(), "checkpoint restore unlock lock lock restore state");
    assert_eq!(refused, [ILLEGAL_STATE, ILLEGAL_STATE, ILLEGAL_STATE, 0, ILLEGAL_STATE, ILLEGAL_STATE, 1]);
    assert_eq!(steps(&card, holder.pid(), "unlock"), [0]);
    let pid = holder.pid();
    holder.ends();
    assert_eq!(steps(&card, pid, "state lock"), [INVALID_VALUE, INVALID_VALUE]);
    card.end();
}

#[test]
fn managed_memory_is_refused_and_the_process_goes_on() {
    let card = CardProcess::start(&[]);
    let mut holder = Holder::start(&card, "device managed");
    assert_eq!(steps(&card, holder.pid(), "lock checkpoint state unlock"), [0, NOT_SUPPORTED, 1, 0]);
    holder.says("look");
    holder.hears("right");
    holder.ends();
    card.end();
}

#[test]
fn a_handle_of_host_memory_loses_the_process_at_the_restore() {
    let card = CardProcess::start(&[]);
    let mut holder = Holder::start(&card, "device host-numa");
    assert_eq!(steps(&card, holder.pid(), "lock checkpoint restore state"), [0, 0, UNKNOWN, 3]);
    assert_eq!(holder.stats(&card.observer()).lost, Some(Sticky::NotRestored));
    holder.says("ask");
    holder.hears("code 999");
    holder.ends();
    let stats = card.observer().stats().unwrap();
    assert_eq!((stats.gpus[0].free, stats.host_bytes), (stats.gpus[0].total, 0));
    card.end();
}

#[test]
fn a_restore_without_room_for_it_loses_the_process() {
    let card = CardProcess::start(&["--memory", "16MiB"]);
    let holder = Holder::start(&card, "device physical");
    assert_eq!(steps(&card, holder.pid(), "lock checkpoint"), [0, 0]);
    let other = Holder::start(&card, "device physical");
    assert_eq!(steps(&card, holder.pid(), "restore state"), [OUT_OF_MEMORY, 3]);
    other.ends();
    card.end();
}

#[test]
fn a_process_that_works_is_not_locked_within_its_patience() {
    let card = CardProcess::start(&[]);
    let holder = Holder::start(&card, "device work");
    assert_eq!(steps(&card, holder.pid(), "lock-soon state"), [NOT_READY, 0]);
    card.end();
}

#[test]
fn a_checkpointed_process_that_is_killed_leaves_nothing() {
    let card = CardProcess::start(&[]);
    let observer = card.observer();
    let holder = Holder::start(&card, "device physical registered");
    assert_eq!(steps(&card, holder.pid(), "lock checkpoint"), [0, 0]);
    drop(holder);
    let is_back = || {
        let stats = observer.stats().unwrap();
        stats.gpus[0].free == stats.gpus[0].total && stats.host_bytes == 0
    };
    while !is_back() {
        std::thread::yield_now();
    }
    card.end();
}
