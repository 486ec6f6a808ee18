//! Writes the metrics page in Prometheus' text format.

use metrics::{Key, Label};
use metrics_exporter_prometheus::LabelSet;
use metrics_exporter_prometheus::formatting::{write_help_line, write_metric_line, write_type_line};

use super::scene::Scene;
use super::table::{FAMILIES, Family, Row};

pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes all metrics that are read at a scrape, each with its HELP and TYPE. Omits metrics without a value.
pub(super) fn text(scene: &Scene) -> String {
    let mut page = String::new();
    for family in FAMILIES {
        let rows = family.rows(scene);
        if rows.is_empty() {
            continue;
        }
        write_help_line(&mut page, family.name, None, None, family.help);
        write_type_line(&mut page, family.name, None, None, family.kind.name());
        rows.into_iter().for_each(|row| line(&mut page, family, row));
        page.push('\n');
    }
    page
}

fn line(page: &mut String, family: &Family, Row { labels, value }: Row) {
    let labels = family.labels().iter().zip(labels);
    // An empty label is the same as none to Prometheus.
    let labels = labels.filter(|(_, value)| !value.is_empty());
    let labels: Vec<Label> = labels.map(|(&name, value)| Label::new(name, value)).collect();
    let labels = LabelSet::from_key_and_global(&Key::from_parts(family.name, labels), &Default::default());
    write_metric_line(page, family.name, None, &labels, None::<(_, &str)>, value, None);
}

#[cfg(test)]
mod tests {
    use gpushare_core::snapshot::{GpuSnapshot, RemappedSnapshot};
    use gpushare_proto::admin::{CopiesView, Mode, ResidenceView};
    use gpushare_proto::tenant::GpuInfo;
    use gpushare_proto::{Bytes, GpuId, GpuUuid, Nanos, SessionId};

    use crate::metrics::picture::{AuditPicture, CardPicture, Picture};
    use crate::metrics::sessions::tests::session;
    use crate::nvml::{Reading, Readings};

    use super::*;

    const CARD: GpuUuid = GpuUuid::gpu([0xca; 16]);

    fn picture() -> Picture {
        Picture {
            uptime: Nanos::from_millis(2500),
            ready: true,
            recovering: 0,
            copies: CopiesView { copies: 3, bytes: Bytes::mib(96), users: 1 },
            cards: vec![CardPicture {
                info: GpuInfo { uuid: CARD, name: "test card".into(), total: Bytes::gib(8) },
                state: GpuSnapshot {
                    gpu: GpuId(0),
                    total_bytes: Bytes::gib(8),
                    capacity_bytes: Bytes::gib(7),
                    allocated_bytes: Bytes::gib(1),
                    fixed_bytes: Bytes::mib(512),
                    remapped: Some(RemappedSnapshot {
                        resident_bytes: Bytes::mib(300),
                        hosted_bytes: Bytes::mib(200),
                        mapped_bytes: Bytes::mib(50),
                        moving_bytes: Bytes::mib(100),
                        prepared_bytes: Bytes::mib(400),
                    }),
                    overhead_bytes: Bytes::mib(700),
                    managed_limit_bytes: Bytes::MAX,
                    mode: Mode::Serialized,
                    reason: String::new(),
                    mode_changes: 1,
                    holders: vec![SessionId(1)],
                    queue: vec![SessionId(2)],
                    quantum_ns: Nanos::from_millis(20),
                    handoffs: 4,
                    aborted_drops: 0,
                    drains_ns: Vec::new(),
                    expected_drain_ns: Nanos::ZERO,
                    moved_bytes: Bytes::mib(1),
                },
            }],
            sessions: vec![session(1), session(2)],
            residences: vec![ResidenceView {
                session: SessionId(1),
                gpu: GpuId(0),
                resident_bytes: Bytes::mib(300),
                hosted_bytes: Bytes::mib(200),
                mapped_bytes: Bytes::ZERO,
                moving_bytes: Bytes::mib(100),
            }],
            audit: AuditPicture { written: 7, lost: 1 },
            lost_log_lines: 3,
            living: 2,
        }
    }

    fn lines(picture: &Picture, readings: &Readings) -> Vec<String> {
        let page = text(&Scene::new(picture, readings, true));
        let card = format!("gpu=\"0\",uuid=\"{CARD}\"");
        page.lines().map(|line| line.replace(&card, "@")).collect()
    }

    #[test]
    fn every_figure_is_in_base_units() {
        let lines = lines(&picture(), &Readings::new());
        for line in [
            "# HELP gpushare_uptime_seconds Time since the daemon started",
            "# TYPE gpushare_uptime_seconds gauge",
            "gpushare_uptime_seconds 2.5",
            "gpushare_ready 1",
            "gpushare_sessions 2",
            "gpushare_audit_lines_total 7",
            "gpushare_audit_lost_lines_total 1",
            "gpushare_log_lost_lines_total 3",
            "gpushare_gpu_info{@,name=\"test card\"} 1",
            "gpushare_gpu_mode{@,mode=\"parallel\"} 0",
            "gpushare_gpu_mode{@,mode=\"serialized\"} 1",
            "gpushare_gpu_holder{@,session=\"1\",name=\"session-1\"} 1",
            "gpushare_gpu_waiters{@} 1",
            "gpushare_gpu_quantum_seconds{@} 0.02",
            "gpushare_gpu_remapped_moving_bytes{@} 104857600",
            "gpushare_gpu_remapped_prepared_bytes{@} 419430400",
            "gpushare_session_remapped_hosted_bytes{session=\"1\",name=\"session-1\",@} 209715200",
            "gpushare_gpu_memory_bytes{@} 8589934592",
            "gpushare_session_quota_bytes{session=\"1\",name=\"session-1\"} 4294967296",
            "gpushare_session_allocated_bytes{session=\"2\",name=\"session-2\",@} 1073741824",
            "gpushare_session_gpu_seconds_total{session=\"1\",name=\"session-1\"} 2.5",
        ] {
            assert!(lines.iter().any(|said| said == line), "no {line}");
        }
    }

    #[test]
    fn an_unknown_value_has_no_series() {
        let lines = lines(&picture(), &Readings::new());
        for name in ["managed_limit", "temperature", "power", "utilization", "memory_used"] {
            assert!(!lines.iter().any(|line| line.contains(name)), "{name}");
        }
    }

    #[test]
    fn sensor_values_are_shown() {
        let reading = Reading {
            used: Some(Bytes::gib(2)),
            busy_percent: Some(75),
            celsius: Some(60),
            milliwatts: Some(312_500),
        };
        let lines = lines(&picture(), &[(CARD, reading)].into());
        for line in [
            "gpushare_gpu_memory_used_bytes{@} 2147483648",
            "gpushare_gpu_utilization_ratio{@} 0.75",
            "gpushare_gpu_temperature_celsius{@} 60",
            "gpushare_gpu_power_watts{@} 312.5",
        ] {
            assert!(lines.iter().any(|said| said == line), "no {line}");
        }
    }

    #[test]
    fn in_parallel_mode_no_session_is_the_holder() {
        let mut picture = picture();
        picture.cards[0].state.mode = Mode::Parallel;
        let lines = lines(&picture, &Readings::new());
        assert!(!lines.iter().any(|line| line.starts_with("gpushare_gpu_holder{")));
        assert!(lines.iter().any(|line| line == "gpushare_gpu_holders{@} 1"));
    }

    #[test]
    fn names_are_shown_only_on_request() {
        let page = text(&Scene::new(&picture(), &Readings::new(), false));
        assert!(page.contains("gpushare_session_processes{session=\"1\"} 0\n"), "{page}");
        assert!(page.contains(",session=\"1\"} 1\n"), "the holder: {page}");
        assert!(!page.contains("session-1"), "{page}");
    }

    #[test]
    fn a_name_cannot_break_the_page() {
        let mut picture = picture();
        picture.sessions[0].name = "a \"b\" \\ c".into();
        let lines = lines(&picture, &Readings::new());
        let line = r#"gpushare_session_processes{session="1",name="a \"b\" \\ c"} 0"#;
        assert!(lines.iter().any(|said| said == line));
    }
}
