//! Contradictions between NVML's figures and what processes report of their remapped memory, of which the decision
//! machine is told.
//!
//! Pids in NVML's lists are those of the machine. So only a daemon in the machine's first PID namespace looks for
//! contradictions: elsewhere a number may be that of another process.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use gpushare_core::{Event, Reported};
use gpushare_proto::{Bytes, ClientId, GpuId};
use gpushare_sys::process;

use super::unreported::Reading;
use crate::engine::Engine;
use crate::nvml::Usages;

/// Part of a card by which NVML's figure must be above what a process explains.
const MARGIN: u64 = 8;
/// Whether the daemon's PID namespace is the first one of the machine.
static SEES_ALL_PIDS: LazyLock<bool> = LazyLock::new(process::is_in_first_namespace);

/// Notes the claim of a process on a card, which the next event may lower.
pub(crate) fn note_claim(engine: &mut Engine, id: ClientId, gpu: GpuId) {
    let claim = engine.machine.reported(id, gpu).unwrap_or_default().claim;
    if let Some(unreported) = engine.clients.get_mut(id).and_then(|client| client.unreported.get_mut(&gpu)) {
        unreported.note(claim);
    }
}

/// Notes the claims of all processes when NVML is asked.
pub(super) fn note_question(engine: &mut Engine) {
    let ids: Vec<ClientId> = engine.clients.iter().map(|(id, _)| id).collect();
    for id in ids {
        let Some(client) = engine.clients.get_mut(id) else { continue };
        for gpu in client.page.gpus() {
            let claim = engine.machine.reported(id, gpu).unwrap_or_default().claim;
            let fixed = engine.machine.fixed_bytes(id, gpu).unwrap_or_default();
            client.unreported.entry(gpu).or_default().ask(claim, fixed);
        }
    }
}

/// Tells the decision machine how much remapped memory each process has at least, where that has changed.
pub(super) fn book(engine: &mut Engine, usages: &Usages) {
    if *SEES_ALL_PIDS {
        compare(engine, usages);
    }
}

/// Compares NVML's figures with the reports, and tells the decision machine what has changed.
fn compare(engine: &mut Engine, usages: &Usages) {
    let mut processes = BTreeMap::<(u32, GpuId), Vec<ClientId>>::new();
    for (id, client) in engine.clients.iter().filter(|(_, client)| client.peer.id.is_some()) {
        for gpu in client.page.gpus() {
            processes.entry((client.peer.pid, gpu)).or_default().push(id);
        }
    }
    let mut events = Vec::new();
    for ((pid, gpu), ids) in processes {
        let first = ids.iter().copied().find(|&id| engine.machine.reported(id, gpu).is_some());
        let (Some(first), Some(card)) = (first, engine.cards.get(gpu)) else { continue };
        let on_card = usages.get(&card.info.uuid);
        // A frozen process is not listed, and a list that could not be read says nothing.
        let is_frozen = ids.iter().any(|&id| engine.machine.is_frozen(id));
        if is_frozen || on_card.is_some_and(Option::is_none) {
            continue;
        }
        let used = on_card
            .and_then(Option::as_ref)
            .and_then(|listed| listed.get(&pid).copied().flatten());
        let margin = Bytes(card.info.total.0 / MARGIN);
        let reading = used.map(|used| reading(engine, (&ids, first), gpu, used, margin));
        for id in ids {
            let unreported = engine.clients.get_mut(id).and_then(|client| client.unreported.get_mut(&gpu));
            let bytes = unreported.and_then(|unreported| unreported.read(reading.filter(|_| id == first)));
            events.extend(bytes.map(|bytes| Event::Measured { client: id, gpu, bytes }));
        }
    }
    engine.feed_all(events);
}

/// Returns NVML's figure of a process on a card, with all that its clients `ids` may explain of it. What is left is of
/// the client `first`.
fn reading(
    engine: &Engine,
    (ids, first): (&[ClientId], ClientId),
    gpu: GpuId,
    used: Bytes,
    margin: Bytes,
) -> Reading {
    let mut reading = Reading { margin, ..Reading::default() };
    let mut all_fixed = Bytes::ZERO;
    for &id in ids {
        let Reported { resident, claim, whole } = engine.machine.reported(id, gpu).unwrap_or_default();
        let fixed = engine.machine.fixed_bytes(id, gpu).unwrap_or_default();
        let unreported = engine.clients.get(id).and_then(|client| client.unreported.get(&gpu));
        let (most, before) = unreported
            .map(|unreported| (unreported.most(), unreported.fixed()))
            .unwrap_or_default();
        let most = most.max(claim);
        all_fixed += fixed.max(before);
        reading.resident += resident;
        reading.claim += most;
        reading.whole += whole;
        if id != first {
            reading.of_others += most;
        }
    }
    reading.beside_fixed = used - all_fixed;
    reading
}

#[cfg(test)]
mod tests {
    use gpushare_proto::page::GoalNumber;
    use gpushare_proto::tenant::Residence;

    use super::*;
    use crate::engine::bench::{Bench, GPU, usages};

    const PID: u32 = 70;
    const GIB: fn(u64) -> Bytes = Bytes::gib;

    /// Asks NVML, which answers with so many bytes for the process.
    fn measure(bench: &mut Bench, used: Bytes) {
        note_question(&mut bench.engine);
        compare(&mut bench.engine, &usages(&[(PID, used)]));
    }

    #[tokio::test]
    async fn a_process_that_says_too_little_counts_with_what_nvml_shows() {
        let mut bench = Bench::new();
        let client = bench.client(PID, GIB(40));
        let resident = |bench: &Bench| bench.engine.machine.resident_bytes(client, GPU);
        measure(&mut bench, GIB(39));
        assert_eq!(resident(&bench), Bytes::ZERO, "one answer may be older than a move");
        measure(&mut bench, GIB(39));
        assert_eq!(resident(&bench), GIB(38), "less a gibibyte of the driver's");
        measure(&mut bench, GIB(1));
        assert_eq!(resident(&bench), Bytes::ZERO);
    }

    #[tokio::test]
    async fn what_a_process_has_reported_since_the_question_contradicts_nobody() {
        let mut bench = Bench::new();
        let client = bench.client(PID, GIB(40));
        let reports = |bench: &mut Bench, resident, hosted| {
            note_claim(&mut bench.engine, client, GPU);
            let residence = Residence { resident, hosted, ..Residence::default() };
            let seen = GoalNumber::default();
            bench.engine.feed(Event::Resides { client, gpu: GPU, seen, residence });
        };
        for _ in 0..3 {
            note_question(&mut bench.engine);
            reports(&mut bench, GIB(40), Bytes::ZERO);
            reports(&mut bench, Bytes::ZERO, GIB(40));
            compare(&mut bench.engine, &usages(&[(PID, GIB(41))]));
            assert_eq!(bench.engine.machine.resident_bytes(client, GPU), Bytes::ZERO);
        }
    }

    #[tokio::test]
    async fn clients_of_one_process_explain_its_figure_together() {
        let mut bench = Bench::new();
        let [first, second] = [GIB(10), GIB(20)].map(|bytes| bench.client(PID, bytes));
        for _ in 0..2 {
            measure(&mut bench, GIB(29));
        }
        let resident = [first, second].map(|client| bench.engine.machine.resident_bytes(client, GPU));
        assert_eq!(resident, [GIB(28), Bytes::ZERO]);
    }

    #[tokio::test]
    async fn nvml_contradicts_no_process_that_the_driver_freezes_or_thaws() {
        let mut bench = Bench::new();
        let client = bench.client(PID, GIB(40));
        let resident = |bench: &Bench| bench.engine.machine.resident_bytes(client, GPU);
        bench.freeze(client);
        for _ in 0..3 {
            measure(&mut bench, GIB(39));
            assert_eq!(resident(&bench), Bytes::ZERO, "its checkpoint is on the way");
        }
        bench.thaw(client);
        measure(&mut bench, GIB(39));
        assert_eq!(resident(&bench), Bytes::ZERO, "answers of before do not count");
        measure(&mut bench, GIB(39));
        assert_eq!(resident(&bench), GIB(38));
    }

    #[tokio::test]
    async fn a_list_that_could_not_be_read_changes_nothing() {
        let mut bench = Bench::new();
        let client = bench.client(PID, GIB(40));
        for _ in 0..2 {
            measure(&mut bench, GIB(39));
        }
        let mut unread = usages(&[]);
        unread.values_mut().for_each(|on_card| *on_card = None);
        note_question(&mut bench.engine);
        compare(&mut bench.engine, &unread);
        assert_eq!(bench.engine.machine.resident_bytes(client, GPU), GIB(38));
        compare(&mut bench.engine, &usages(&[]));
        assert_eq!(bench.engine.machine.resident_bytes(client, GPU), Bytes::ZERO, "it is not listed");
    }
}
