//! Ends of processes: what a kill leaves on the card, and for how long.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::memory::{DEVICE, HOST_NUMA, on};
use crate::program::Program;
use crate::registered::Pages;
use crate::{CardProcess, MIB};

#[test]
fn a_killed_process_leaves_no_memory_on_the_card() {
    let card = CardProcess::start(&[]);
    let mut command = card.program("deaths::dies");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.by_ref().any(|line| line.unwrap().contains("allocated")));
    let observer = card.observer();
    let before = observer.stats().unwrap();
    assert!(before.gpus[0].free < before.gpus[0].total - 108 * MIB as u64);
    assert_eq!(before.host_bytes, 12 * MIB as u64);
    child.kill().unwrap();
    child.wait().unwrap();
    // The card knows by the hang-up; its memory is back after the time that a real one takes. Every question lets
    // the card go on, so this ends when it does.
    let free = || observer.stats().unwrap().gpus[0].free;
    while free() < before.gpus[0].total {
        std::thread::yield_now();
    }
    let after = observer.stats().unwrap();
    assert!(!after.processes[0].alive);
    assert_eq!(after.host_bytes, 0);
    card.end();
}

pub(crate) fn dies() {
    let program = Program::start();
    let kernels = program.kernels();
    let mut memory = 0;
    assert_eq!(program.cuMemAlloc_v2(&mut memory, 100 * MIB), 0);
    // Half of the physical memory is mapped, and no handle of it is released.
    let (mut start, mut handle) = (0, 0);
    assert_eq!(program.cuMemAddressReserve(&mut start, 8 * MIB, 0, 0, 0), 0);
    for (place, half) in [(DEVICE, 0), (HOST_NUMA, 1)] {
        for _ in 0..2 {
            assert_eq!(program.cuMemCreate(&mut handle, 4 * MIB, &on(place), 0), 0);
        }
        assert_eq!(program.cuMemMap(start + half * 4 * MIB as u64, 4 * MIB, 0, handle, 0), 0);
    }
    let own = Pages::new(4 * MIB);
    assert_eq!(program.cuMemHostRegister_v2(own.address(), 4 * MIB, 0), 0);
    assert_eq!(program.launch(kernels, "spin", 0, &[0, u64::MAX]), 0);
    println!("allocated");
    let _ = std::io::stdin().read(&mut [0]);
    std::thread::park();
}

#[test]
fn a_killed_process_leaves_its_memory_on_the_card_while_a_child_of_it_lives() {
    let card = CardProcess::start(&[]);
    let mut command = card.program("deaths::dies_with_a_child");
    let mut parent = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let said = lines.map_while(Result::ok);
    let child = said.filter_map(|line| line.strip_prefix("child ")?.parse::<i32>().ok()).next();
    let child = child.and_then(rustix::process::Pid::from_raw).unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    let observer = card.observer();
    let stats = observer.stats().unwrap();
    assert!(stats.processes[0].alive);
    assert!(stats.gpus[0].free < stats.gpus[0].total - 100 * MIB as u64);
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    while observer.stats().unwrap().gpus[0].free < stats.gpus[0].total {
        std::thread::yield_now();
    }
    card.end();
}

pub(crate) fn dies_with_a_child() {
    let program = Program::start();
    let mut memory = 0;
    assert_eq!(program.cuMemAlloc_v2(&mut memory, 100 * MIB), 0);
    // SAFETY: the child calls nothing but these, each of which may be called after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; nobody waits for its output, and it ends by itself.
        unsafe {
            (0..3).for_each(|stream| _ = libc::close(stream));
            libc::alarm(60);
            libc::pause();
            libc::_exit(0);
        }
    }
    println!("child {child}");
    std::thread::park();
}
