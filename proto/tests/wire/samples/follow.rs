//! Increments for followers.

use gpushare_proto::admin::{Mode, ResidenceView};
use gpushare_proto::follow::{
    CardFacts, CardFigures, CardHandoff, CardResidence, CardUse, DaemonFacts, Increment, Increments,
    LockState, Sensors, SessionFacts, SessionFigures,
};
use gpushare_proto::session::{Priority, SessionPhase};
use gpushare_proto::{Bytes, GpuId, Nanos, Percent, SessionId};

use super::values::{card, terms};

const GPU: GpuId = GpuId(1);
const SESSION: SessionId = SessionId(3);

/// One increment of each kind, and a session in each state of its lock.
pub(crate) fn increments() -> Box<Increments> {
    let locks = [
        LockState::Idle,
        LockState::Waiting,
        LockState::Moving,
        LockState::Holding,
        LockState::Dropping,
        LockState::Stuck,
    ];
    let mut changes = vec![
        Increment::Daemon(DaemonFacts { version: "0.1.0".into(), pid: 4242, recovering: 2 }),
        Increment::Card(CardFacts {
            gpu: GPU,
            uuid: card().uuid,
            name: card().name,
            total_bytes: card().total,
        }),
        Increment::CardFigures(CardFigures {
            gpu: GPU,
            capacity_bytes: Bytes::gib(79),
            allocated_bytes: Bytes::gib(90),
            mode: Mode::Serialized,
            reason: "90GiB do not fit 79GiB".into(),
            holding: 1,
            holders: vec![SESSION],
            waiting: 2,
            queue: vec![SessionId(4), SessionId(5)],
            quantum_ns: Nanos::from_secs(3),
            turn_ends_ns: Some(Nanos::from_secs(61)),
            handoffs: 17,
        }),
        Increment::Sensors(Sensors {
            gpu: GPU,
            busy_percent: Some(87),
            used_bytes: Some(Bytes::gib(78)),
            celsius: Some(61),
            milliwatts: Some(412_000),
        }),
        Increment::Session(SessionFacts {
            session: SESSION,
            name: "train".into(),
            user: Some("1001".into()),
            memory: terms().memory,
            weight: 200,
            priority: Priority::High,
            phase: SessionPhase::Paused,
            pids: vec![5000, 5001],
        }),
        Increment::Granted {
            session: SESSION,
            waits_ns: vec![Nanos::from_millis(12), Nanos::from_secs(2)],
            quantum_ns: Nanos::from_secs(3),
        },
        Increment::SessionEnded { session: SessionId(2) },
    ];
    changes.extend(locks.map(|lock| Increment::SessionFigures(figures(lock))));
    Box::new(Increments { at_ns: Nanos::from_secs(60), whole: true, changes })
}

/// Increments about remapped memory.
pub(crate) fn remapped() -> Box<Increments> {
    let place = ResidenceView {
        session: SESSION,
        gpu: GPU,
        resident_bytes: Bytes::gib(20),
        hosted_bytes: Bytes::gib(10),
        mapped_bytes: Bytes::ZERO,
        moving_bytes: Bytes::mib(128),
    };
    let changes = vec![
        Increment::CardResidence(CardResidence {
            gpu: GPU,
            resident_bytes: Bytes::gib(79),
            hosted_bytes: Bytes::gib(11),
            moving_bytes: Bytes::mib(256),
        }),
        Increment::Residence { session: SESSION, places: vec![place] },
    ];
    Box::new(Increments { at_ns: Nanos::from_secs(61), whole: false, changes })
}

/// Increments about handoffs of remapped memory.
pub(crate) fn card_handoffs() -> Box<Increments> {
    let ended = CardHandoff {
        gpu: GPU,
        running: false,
        took_ns: Nanos::from_millis(920),
        out_bytes: Bytes::gib(32),
        out_bytes_per_second: Bytes::gib(47),
        in_bytes: Bytes::gib(31),
        in_bytes_per_second: Bytes::gib(38),
        overlap: Percent(8049),
    };
    let changes =
        vec![Increment::CardHandoff(ended), Increment::CardHandoff(CardHandoff { running: true, ..ended })];
    Box::new(Increments { at_ns: Nanos::from_secs(62), whole: false, changes })
}

/// The figures of a frozen session.
pub(crate) fn increments_of_frozen() -> Box<Increments> {
    let changes = vec![Increment::SessionFigures(figures(LockState::Frozen))];
    Box::new(Increments { at_ns: Nanos::from_secs(63), whole: false, changes })
}

fn figures(lock: LockState) -> SessionFigures {
    SessionFigures {
        session: SESSION,
        lock,
        memory: vec![CardUse {
            gpu: GPU,
            allocated_bytes: Bytes::gib(30),
            limit_bytes: Some(Bytes::gib(40)),
        }],
        gpu_time_ns: Nanos::from_secs(12),
        refusals: 1,
    }
}
