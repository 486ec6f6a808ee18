//! Bug 14: three hundred processes that start within seconds: every one gets its context and its memory,
//! and the daemon loses track of none.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_tests::{Artifacts, Process, Sharing, World, foreign};

const CROWD: usize = 300;

#[test]
fn three_hundred_processes_start_within_seconds_and_each_is_served() -> anyhow::Result<()> {
    let (world, daemon) = World::for_crowds(Artifacts::of_tests()?)?.with_daemon(&["--mode", "parallel"])?;
    let program = foreign::program(&world, "one_of_many")?;
    let mut crowd = (0..CROWD)
        .map(|number| {
            let mut command = world.sharing(&Sharing::Preload, &program);
            // Remapped memory takes a chunk for each, and a goal must come to each before.
            command.env(gpushare_proto::names::BACKEND, "managed");
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            Process::start(command, world.folder(), &format!("p{number}"))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;

    let mut conversations = Vec::new();
    for process in &mut crowd {
        let stdin = process.take_stdin().context("no stdin")?;
        let mut said = BufReader::new(process.take_stdout().context("no stdout")?).lines();
        let word = said.next().with_context(|| format!("it ended: {}", process.stderr()))??;
        assert_eq!(word, "21");
        conversations.push((stdin, said));
    }
    let status = daemon.status()?;
    let clients: usize = status.sessions.iter().map(|session| session.clients.len()).sum();
    assert_eq!(clients, CROWD);
    assert_eq!(status.gpus[0].allocated_bytes, Bytes(CROWD as u64 * 4096));

    // They end as they came, all at once.
    for (stdin, mut said) in conversations {
        drop(stdin);
        assert_eq!(said.next().context("it ended early")??, "21");
    }
    for process in &mut crowd {
        process.succeed()?;
        // On a busy machine some of them wait for the card while others start.
        let said = process.stderr();
        let said: Vec<_> = said.lines().filter(|line| !line.contains("waiting for the GPU")).collect();
        assert_eq!(said, [""; 0]);
    }
    daemon.until("nobody is left", |status| {
        status.sessions.is_empty() && status.gpus[0].allocated_bytes.is_zero()
    })?;
    Ok(())
}
