//! How far processes are believed: honest ones, whose memory must come back, and others.

use super::*;

/// Shared block that each process may keep.
const UNUSED: Bytes = Bytes::mib(32);

/// A busy program that had 768 MiB in small pieces and has freed most of them. Each of its shared blocks is partly in
/// use, and its free lease is gone.
fn scattered_program(world: &mut World) -> ClientId {
    let (_, client) = world.busy_remapping_program(Bytes::mib(768));
    world.run_for(ms(100));
    world.scatters(client, GPU, Bytes::mib(768));
    world.free(client, GPU, Bytes::mib(668));
    world.look(client, GPU);
    world.send(Event::Trim { client, gpu: GPU });
    world.run_for(ms(100));
    assert_eq!((world.used(client, GPU), world.free_lease(client, GPU)), (Bytes::mib(100), Bytes::ZERO));
    client
}

#[test]
fn a_program_whose_shared_blocks_are_mostly_free_comes_back_after_an_eviction() {
    let mut world = world();
    let scattered = scattered_program(&mut world);
    let (_, large) = world.busy_remapping_program(gib(8));
    let mut turns = [0; 2];
    for _ in 0..100 {
        world.run_for(ms(50));
        for (turns, open) in turns.iter_mut().zip(world.open(&[scattered, large])) {
            *turns += u32::from(open);
        }
    }
    assert!(turns.iter().all(|&turns| turns > 20), "{turns:?}");
}

#[test]
fn a_scattered_process_that_returns_after_a_restart_is_believed_again() {
    let mut world = World::after_restart(plain(), [501]);
    world.send(Event::HostBudget { bytes: gib(100) });
    let (client, session) = (ClientId(501), world.session());
    world.join_as(client);
    world.send(Event::ClientJoined { client, session, holding: None });
    world.remaps(client);
    world.send(Event::Attached { client, gpu: GPU, used: Bytes::mib(100) });
    world.send(resides(client, GPU, GoalNumber(1), [Bytes::mib(512), Bytes::mib(256), Bytes::ZERO]));
    let figures = world.core.view.figures(client, GPU).unwrap();
    assert_eq!((figures.resident, figures.whole), (Bytes::mib(512), Bytes::mib(768)));
}

#[test]
fn what_a_process_says_beyond_its_lease_counts_against_its_quota() {
    let mut world = world();
    let session = world.session_with(Some(gib(2)), false);
    let clients = [(); 2].map(|()| {
        let client = world.join_remapping(session);
        world.attach(client, GPU);
        client
    });
    world.honest = false;
    let says = |world: &mut World, client, resident| {
        let residence = Residence { resident, ..Residence::default() };
        world.send(Event::Resides { client, gpu: GPU, seen: GoalNumber::NONE, residence });
    };
    // It grows, says much, and gives its lease back.
    let [first, second] = clients;
    assert!(world.allocate(first, GPU, gib(2)));
    says(&mut world, first, Bytes::MAX);
    let most = Bytes::mib(2560 + 128);
    assert_eq!(world.core.resident_bytes(first, GPU), most);
    world.free(first, GPU, gib(2));
    world.look(first, GPU);
    world.send(Event::Trim { client: first, gpu: GPU });
    assert_eq!(
        world.core.resident_bytes(first, GPU),
        most,
        "a lease that is gone takes no memory from the card"
    );
    assert!(!world.allocate(second, GPU, Bytes::mib(1)));
    assert_eq!(world.refusals()[0].used, most - UNUSED, "all of it counts but an unused block");
    says(&mut world, second, Bytes::MAX);
    assert_eq!(world.core.resident_bytes(second, GPU), Bytes::ZERO);
    says(&mut world, first, gib(1));
    assert!(world.allocate(second, GPU, gib(1)));
}

#[test]
fn processes_without_any_lease_keep_no_more_than_their_quota_and_an_unused_block_each() {
    const LIARS: u64 = 16;
    let mut world = world();
    let session = world.session_with(Some(gib(1)), false);
    world.honest = false;
    for _ in 0..LIARS {
        let liar = world.join_remapping(session);
        world.attach(liar, GPU);
        let (seen, bytes) = (GoalNumber::NONE, Bytes::MAX);
        let residence = Residence { resident: bytes, pinned: bytes, prepared: bytes, ..Residence::default() };
        world.send(Event::Resides { client: liar, gpu: GPU, seen, residence });
    }
    let resident = world.card().remapped.unwrap().resident_bytes;
    let host = world.core.host_bytes();
    let most = gib(1) + Bytes(LIARS * UNUSED.0);
    // In host memory each has two regions of 128 MiB besides.
    let most_on_host = most + most + Bytes(LIARS * Bytes::mib(256).0);
    assert!(resident <= most && host <= most_on_host, "{resident} on the card, {host} of the host");
}

#[test]
fn memory_rests_until_it_is_to_move_and_what_goals_allow_is_promised() {
    let (mut world, a, b) = two_programs();
    assert_eq!(world.core.resting_bytes(a, GPU), Some(gib(6)));
    let beyond = world.goal(a, GPU).unwrap().1 - gib(6);
    assert_eq!(world.core.promised_beside(b, GPU), beyond);
    world.habits(a).answers = false;
    world.habits(b).answers = false;
    world.run_for(ms(500));
    world.lets_go(a, ms(2));
    assert_eq!([a, b].map(|client| world.core.resting_bytes(client, GPU)), [None; 2]);
    let (_, credit) = world.goal(b, GPU).unwrap();
    assert_eq!(world.core.promised_beside(a, GPU), credit - world.resident(b, GPU));
    assert!(world.core.promised_beside(a, GPU) > Bytes::ZERO, "it may take them before it says so");
}
