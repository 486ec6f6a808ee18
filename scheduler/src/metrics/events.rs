//! Histograms and counters of each card, updated at each event: waits, drains, handoffs, refusals.

use std::collections::BTreeMap;

use gpushare_core::{GpuSet, Notice};
use gpushare_proto::handoff::Handoff;
use gpushare_proto::page::LimitKind;
use gpushare_proto::{GpuId, GpuUuid, Nanos};
use metrics::{Counter, Histogram, Key, KeyName, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::table::{self, FAMILIES, Family, Kind};

/// Origin of the metrics. The recorder requires it, and the exporter does not show it.
const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

pub(crate) struct Events {
    recorder: PrometheusRecorder,
    cards: BTreeMap<GpuId, CardEvents>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

struct CardEvents {
    grants: Histogram,
    waits: Histogram,
    drains: Histogram,
    handoffs: Histogram,
    remapped: RemappedEvents,
    refused: [(LimitKind, Counter); 4],
}

/// Handoffs of remapped memory on one card.
struct RemappedEvents {
    handoffs: Histogram,
    /// Bytes out and in.
    bytes: [Counter; 2],
    /// Bytes that were copied out.
    copied_out: Counter,
    /// Times of the way out, of the way in, and of both at once.
    times: [Histogram; 3],
}

impl Events {
    pub(super) fn new() -> Self {
        let builder = PrometheusBuilder::new();
        let builder = builder.set_buckets(&table::BUCKETS).expect("the table has buckets");
        let recorder = builder.build_recorder();
        for family in FAMILIES.iter().filter(|family| family.is_counted()) {
            let (name, help) = (KeyName::from_const_str(family.name), family.help.into());
            match family.kind {
                Kind::Histogram => recorder.describe_histogram(name, None, help),
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
            }
        }
        Self { recorder, cards: BTreeMap::new() }
    }

    pub(super) fn handle(&self) -> PrometheusHandle {
        self.recorder.handle()
    }

    /// Adds a card, whose counters begin at zero.
    pub(crate) fn card(&mut self, gpu: GpuId, uuid: GpuUuid) {
        let new = || CardEvents::new(&self.recorder, gpu, uuid);
        self.cards.entry(gpu).or_insert_with(new);
    }

    /// Counts a notice of the decision machine. Ignores cards that were not added.
    pub(crate) fn note(&self, notice: &Notice) {
        match notice {
            Notice::Granted { gpus, waited, .. } => self.record(*gpus, |card| &card.grants, *waited),
            Notice::Entered { gpus, waited, handoff, .. } => {
                self.record(*gpus, |card| &card.waits, *waited);
                self.record(*gpus, |card| &card.handoffs, *handoff);
            }
            Notice::Dropped { gpus, drain: Some(drain), .. } => {
                self.record(*gpus, |card| &card.drains, *drain);
            }
            Notice::HandedOver(handoff) => {
                let card = self.cards.get(&handoff.gpu);
                card.into_iter().for_each(|card| card.remapped.note(handoff));
            }
            Notice::Refused { gpu, refusal, times, .. } => {
                let refused = self.cards.get(gpu).into_iter().flat_map(|card| &card.refused);
                refused
                    .filter(|(by, _)| *by == refusal.by)
                    .for_each(|(_, count)| count.increment(*times));
            }
            _ => {}
        }
    }

    fn record(&self, gpus: GpuSet, histogram: impl Fn(&CardEvents) -> &Histogram, time: Nanos) {
        for card in gpus.into_iter().filter_map(|gpu| self.cards.get(&gpu)) {
            histogram(card).record(table::seconds(time));
        }
    }
}

impl CardEvents {
    fn new(recorder: &PrometheusRecorder, gpu: GpuId, uuid: GpuUuid) -> Self {
        let labels = || vec![Label::new("gpu", gpu.0.to_string()), Label::new("uuid", uuid.to_string())];
        let key = |family: &Family| Key::from_parts(family.name, labels());
        let histogram = |family| recorder.register_histogram(&key(family), &METADATA);
        let refusals = |limit| {
            let mut labels = labels();
            labels.push(Label::from_static_parts("limit", limit));
            recorder.register_counter(&Key::from_parts(table::REFUSALS.name, labels), &METADATA)
        };
        let directed = |family: &Family, direction| {
            let mut labels = labels();
            labels.push(Label::from_static_parts("direction", direction));
            Key::from_parts(family.name, labels)
        };
        let moves = |way| recorder.register_histogram(&directed(&table::REMAPPED_MOVES, way), &METADATA);
        let moved = |way| recorder.register_counter(&directed(&table::REMAPPED_BYTES, way), &METADATA);
        Self {
            remapped: RemappedEvents {
                handoffs: histogram(&table::REMAPPED_HANDOFFS),
                bytes: ["out", "in"].map(moved),
                copied_out: recorder.register_counter(&key(&table::REMAPPED_COPIED), &METADATA),
                times: ["out", "in", "both"].map(moves),
            },
            grants: histogram(&table::GRANTS),
            waits: histogram(&table::WAITS),
            drains: histogram(&table::DRAINS),
            handoffs: histogram(&table::HANDOFFS),
            refused: [
                (LimitKind::Session, refusals("quota")),
                (LimitKind::Capacity, refusals("capacity")),
                (LimitKind::ManagedLimit, refusals("managed_limit")),
                (LimitKind::HostMemory, refusals("host_memory")),
            ],
        }
    }
}

impl RemappedEvents {
    fn note(&self, Handoff { took_ns, out, copied_out_bytes, into, both_ns, .. }: &Handoff) {
        self.copied_out.increment(copied_out_bytes.0);
        self.handoffs.record(table::seconds(*took_ns));
        for (counter, way) in self.bytes.iter().zip([out, into]) {
            counter.increment(way.bytes.0);
        }
        for (histogram, time) in self.times.iter().zip([out.took_ns, into.took_ns, *both_ns]) {
            histogram.record(table::seconds(time));
        }
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Percent;
    use gpushare_proto::handoff::Direction;
    use gpushare_proto::page::MemoryRefusal;
    use gpushare_proto::{Bytes, ClientId, Epoch, SessionId};

    use super::*;

    const GPU: GpuId = GpuId(0);
    const CARD: GpuUuid = GpuUuid::gpu([0xca; 16]);

    fn has(events: &Events, line: &str) -> bool {
        let line = line.replace('@', &format!("gpu=\"0\",uuid=\"{CARD}\""));
        events.handle().render().lines().any(|said| said == line)
    }

    #[test]
    fn the_series_of_a_card_begin_at_zero() {
        let mut events = Events::new();
        assert_eq!(events.handle().render(), "");
        events.card(GPU, CARD);
        assert!(has(&events, "gpushare_gpu_grant_seconds_count{@} 0"));
        assert!(has(&events, "gpushare_gpu_refusals_total{@,limit=\"capacity\"} 0"));
    }

    #[test]
    fn times_are_seconds() {
        let mut events = Events::new();
        events.card(GPU, CARD);
        events.note(&Notice::Entered {
            session: SessionId(1),
            gpus: [GPU, GpuId(7)].into_iter().collect(),
            waited: Nanos::from_millis(1500),
            handoff: Nanos::from_millis(20),
        });
        let drop = |drain| Notice::Dropped {
            session: SessionId(1),
            epoch: Epoch { generation: 1, counter: 1 },
            gpus: GPU.into(),
            drain,
        };
        events.note(&drop(Some(Nanos::from_millis(3))));
        events.note(&drop(None));
        assert!(has(&events, "gpushare_gpu_wait_seconds_sum{@} 1.5"));
        assert!(has(&events, "gpushare_gpu_handoff_seconds_bucket{@,le=\"0.025\"} 1"));
        assert!(has(&events, "gpushare_gpu_handoff_seconds_bucket{@,le=\"0.01\"} 0"));
        assert!(has(&events, "gpushare_gpu_drain_seconds_count{@} 1"));
    }

    #[test]
    fn refusals_are_counted_by_the_limit_that_refused() {
        let mut events = Events::new();
        events.card(GPU, CARD);
        events.note(&Notice::Refused {
            client: ClientId(1),
            session: SessionId(1),
            gpu: GPU,
            refusal: MemoryRefusal {
                requested: Bytes(1),
                limit: Bytes(1),
                used: Bytes(1),
                by: LimitKind::Capacity,
            },
            times: 5,
        });
        assert!(has(&events, "gpushare_gpu_refusals_total{@,limit=\"capacity\"} 5"));
        assert!(has(&events, "gpushare_gpu_refusals_total{@,limit=\"quota\"} 0"));
    }

    #[test]
    fn a_handoff_counts_bytes_and_times_of_both_directions() {
        let mut events = Events::new();
        events.card(GPU, CARD);
        assert!(has(&events, "gpushare_gpu_remapped_moved_bytes_total{@,direction=\"out\"} 0"));
        let way = |bytes, millis| Direction {
            bytes: Bytes(bytes),
            took_ns: Nanos::from_millis(millis),
            ..Direction::default()
        };
        let handoff = Handoff {
            gpu: GPU,
            took_ns: Nanos::from_millis(1000),
            out: way(5, 750),
            copied_out_bytes: Bytes(3),
            into: way(7, 500),
            both_ns: Nanos::from_millis(250),
            overlap: Percent(2500),
        };
        for _ in 0..2 {
            events.note(&Notice::HandedOver(Box::new(handoff.clone())));
        }
        for line in [
            "gpushare_gpu_remapped_moved_bytes_total{@,direction=\"out\"} 10",
            "gpushare_gpu_remapped_moved_bytes_total{@,direction=\"in\"} 14",
            "gpushare_gpu_remapped_copied_bytes_total{@} 6",
            "gpushare_gpu_remapped_handoff_seconds_sum{@} 2",
            "gpushare_gpu_remapped_move_seconds_sum{@,direction=\"out\"} 1.5",
            "gpushare_gpu_remapped_move_seconds_sum{@,direction=\"in\"} 1",
            "gpushare_gpu_remapped_move_seconds_sum{@,direction=\"both\"} 0.5",
            "gpushare_gpu_remapped_move_seconds_count{@,direction=\"both\"} 2",
        ] {
            assert!(has(&events, line), "no {line} in {}", events.handle().render());
        }
    }
}
