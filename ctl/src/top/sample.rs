//! Daemon for tests and for the picture: two cards and four sessions, with a minute of history.

use gpushare_proto::admin::{Mode, ResidenceView};
use gpushare_proto::follow::{
    CardFacts, CardFigures, CardHandoff, CardResidence, CardUse, DaemonFacts, Increment, Increments,
    LockState, Sensors, SessionFacts, SessionFigures,
};
use gpushare_proto::session::{Amount, Priority, Quota, SessionPhase};
use gpushare_proto::{Bytes, GpuId, GpuUuid, Nanos, Percent, SessionId};

use super::model::Model;
use super::names::Names;

/// Returns the first message of the daemon.
pub(super) fn whole() -> Increments {
    let mut changes =
        vec![Increment::Daemon(DaemonFacts { version: "0.1.0".into(), pid: 4242, recovering: 0 })];
    for (gpu, busy) in [(0, 87), (1, 12)] {
        changes.push(Increment::Card(CardFacts {
            gpu: GpuId(gpu),
            uuid: GpuUuid::gpu([gpu; 16]),
            name: "Simulated Card".into(),
            total_bytes: Bytes::gib(80),
        }));
        changes.push(Increment::CardFigures(figures(gpu)));
        changes.push(Increment::Sensors(sensors(gpu, busy)));
    }
    changes.push(Increment::CardResidence(CardResidence {
        gpu: GpuId(0),
        resident_bytes: Bytes::gib(79),
        hosted_bytes: Bytes::gib(19),
        moving_bytes: Bytes::gib(3),
    }));
    changes.push(Increment::CardHandoff(CardHandoff {
        gpu: GpuId(0),
        running: true,
        took_ns: Nanos::from_millis(920),
        out_bytes: Bytes::gib(19),
        out_bytes_per_second: Bytes::gib(47),
        in_bytes: Bytes::gib(16),
        in_bytes_per_second: Bytes::gib(38),
        overlap: Percent(8049),
    }));
    let gib = Bytes::gib;
    let sessions = [
        (3, "train", "1001", LockState::Holding, 0, gib(60), Some(gib(64)), vec![5000, 5001]),
        (4, "notebook", "1002", LockState::Waiting, 0, gib(38), Some(gib(40)), vec![5100]),
        (5, "eval", "1001", LockState::Holding, 1, gib(12), None, vec![5200]),
        (
            6,
            "idle",
            "/kubepods.slice/kubepods-pod7f3a.slice",
            LockState::Idle,
            1,
            gib(0),
            Some(gib(20)),
            vec![],
        ),
    ];
    for (id, name, user, lock, gpu, allocated, limit, pids) in sessions {
        let session = SessionId(id);
        let remapped = match id {
            3 => Some((allocated, gib(0))),
            4 => Some((gib(19), gib(3))),
            _ => None,
        };
        changes.push(Increment::Session(SessionFacts {
            session,
            name: name.into(),
            user: Some(user.into()),
            memory: limit.map(|limit| Quota::every(Amount::Bytes(limit))).unwrap_or_default(),
            weight: if id == 3 { 300 } else { 100 },
            priority: if id == 6 { Priority::Low } else { Priority::Normal },
            phase: if id == 6 { SessionPhase::Paused } else { SessionPhase::Good },
            pids,
        }));
        changes.push(Increment::SessionFigures(SessionFigures {
            session,
            lock,
            memory: vec![CardUse { gpu: GpuId(gpu), allocated_bytes: allocated, limit_bytes: limit }],
            gpu_time_ns: Nanos::from_secs(10),
            refusals: 0,
        }));
        if let Some((resident_bytes, moving_bytes)) = remapped {
            let hosted_bytes = allocated - resident_bytes;
            let gpu = GpuId(gpu);
            let mapped_bytes = Bytes::ZERO;
            let place =
                ResidenceView { session, gpu, resident_bytes, hosted_bytes, mapped_bytes, moving_bytes };
            changes.push(Increment::Residence { session, places: vec![place] });
        }
        if id < 5 {
            let waits = [2_000, 3_100, 2_600].map(|wait| Nanos::from_millis(wait * (id - 2)));
            changes.push(Increment::Granted {
                session,
                waits_ns: waits.to_vec(),
                quantum_ns: Nanos::from_secs(3),
            });
        }
    }
    Increments { at_ns: Nanos::from_secs(200), whole: true, changes }
}

fn figures(gpu: u8) -> CardFigures {
    let is_first = gpu == 0;
    CardFigures {
        gpu: GpuId(gpu),
        capacity_bytes: Bytes::mib(79 * 1024 + 512),
        allocated_bytes: Bytes::gib(if is_first { 98 } else { 12 }),
        mode: if is_first { Mode::Serialized } else { Mode::Parallel },
        reason: "98GiB do not fit 79.5GiB".into(),
        holding: 1,
        holders: vec![SessionId(if is_first { 3 } else { 5 })],
        waiting: u32::from(is_first),
        queue: if is_first { vec![SessionId(4)] } else { Vec::new() },
        quantum_ns: Nanos::from_secs(3),
        turn_ends_ns: is_first.then_some(Nanos::from_millis(261_200)),
        handoffs: if is_first { 17 } else { 0 },
    }
}

fn sensors(gpu: u8, busy: u32) -> Sensors {
    Sensors {
        gpu: GpuId(gpu),
        busy_percent: Some(busy),
        used_bytes: Some(Bytes::gib(if gpu == 0 { 78 } else { 13 })),
        celsius: Some(61 - 20 * u32::from(gpu)),
        milliwatts: Some(412_000 - 300_000 * u32::from(gpu)),
    }
}

/// Returns the daemon after a minute, in which the first card was more and more busy.
pub(super) fn model() -> Model {
    let mut model = Model::default();
    model.apply(whole());
    for second in 1..=60 {
        let mut changes = vec![
            Increment::Sensors(sensors(0, (27 + second).min(100))),
            Increment::Sensors(sensors(1, 12 + second % 5)),
        ];
        for (id, share) in [(3, 6), (5, 10)] {
            let mut figures = model.sessions[&SessionId(id)].figures.clone().unwrap();
            figures.gpu_time_ns += Nanos::from_millis(100 * share);
            changes.push(Increment::SessionFigures(figures));
        }
        model.apply(Increments { at_ns: Nanos::from_secs(200 + u64::from(second)), whole: false, changes });
    }
    model
}

/// Returns the names of the daemon's users and the commands of its processes.
pub(super) fn names() -> Names {
    let users = [("1001", "ana"), ("1002", "bob")];
    let commands =
        [(5000, "python train.py --epochs 3"), (5100, "python -m ipykernel_launcher"), (5200, "./evaluate")];
    Names::of(users, commands)
}
