use gpushare_proto::{Bytes, Nanos};
use gpushare_tests::cargo;

use super::placement::Placement;
use super::pods::Pods;
use super::report::{Row, whole};
use super::run::{End, Outcome, run};
use super::*;

const HEAD: &str = "name,arrives_s,runs_s,memory_mib,compute_milli,burst_s\n";

/// One node with one card of 10 GiB and four shares.
const ONE: Cluster = Cluster { nodes: 1, cards: 1, memory: Bytes::gib(10), shares: 4, ..USUAL };

fn pods(lines: &str) -> Pods {
    Pods::parse("test", &format!("{HEAD}{lines}"), ONE.memory).unwrap()
}

/// Three pods of 4 GiB that always compute for 100 s each, and come 10 s after each other.
fn three() -> Pods {
    pods("a,0,100,4096,1000,\nb,10,100,4096,1000,\nc,20,100,4096,1000,\n")
}

fn seconds(outcome: &Outcome) -> Vec<(Option<f64>, f64)> {
    // In thousandths: the model rounds times up to whole nanoseconds.
    let of = |time: Nanos| (time.0 as f64 / 1e6).round() / 1e3;
    outcome
        .ends
        .iter()
        .map(|&End { started, ended }| (started.map(of), of(ended)))
        .collect()
}

#[test]
fn with_whole_cards_three_pods_run_one_after_the_other() {
    let outcome = run(&ONE, Placement::Whole, &three());
    assert_eq!(seconds(&outcome), [(Some(0.0), 100.0), (Some(100.0), 200.0), (Some(200.0), 300.0)]);
    let row = Row::of(Placement::Whole, &ONE, &three(), &outcome);
    assert_eq!((row.queue_p50_s, row.queue_p99_s), (90.0, 180.0));
    assert_eq!((row.slowdown_p50, row.slowdown_p99), (1.0, 1.0));
    assert_eq!(row.turnaround_mean_s, 190.0, "100, 190 and 280");
    assert_eq!((row.makespan_s, row.utilisation_percent, row.occupied_percent), (300.0, 100.0, 100.0));
}

#[test]
fn where_two_fit_the_third_waits_for_the_first_that_ends() {
    // Alone to 10 s, half each until the first has done the other 90 s of its work, at 190 s. Then the third
    // beside the second, which has 10 s left: to 210 s. The third has done 10 s and ends 90 s later.
    for placement in [Placement::FittingSpread, Placement::FittingPacked] {
        let outcome = run(&ONE, placement, &three());
        assert_eq!(seconds(&outcome), [(Some(0.0), 190.0), (Some(10.0), 210.0), (Some(190.0), 300.0)]);
        assert_eq!((outcome.most_memory, outcome.out_of_memory), (Bytes::gib(8), 0));
    }
}

#[test]
fn with_time_slicing_the_third_is_out_of_memory_until_one_has_ended() {
    let outcome = run(&ONE, Placement::Sliced, &three());
    // Starts at 20, 30, 50, 90 and 170 s fail; the one at 330 s finds an empty card.
    assert_eq!(seconds(&outcome), [(Some(0.0), 190.0), (Some(10.0), 200.0), (Some(330.0), 430.0)]);
    assert_eq!(outcome.out_of_memory, 5);
}

#[test]
fn a_pod_that_is_out_of_memory_seven_times_has_failed() {
    let pods = pods("long,0,10000,8192,1000,\nlate,5,100,4096,1000,\n");
    let outcome = run(&ONE, Placement::Sliced, &pods);
    // At 5 s, and after 10, 20, 40, 80, 160 and 320 s.
    assert_eq!(seconds(&outcome), [(Some(0.0), 10_000.0), (None, 635.0)]);
    assert_eq!(outcome.out_of_memory, 7);
    let row = Row::of(Placement::Sliced, &ONE, &pods, &outcome);
    assert_eq!((row.done, row.failed), (1, 1));
}

#[test]
fn with_turns_all_start_at_once_and_pay_for_the_moves() {
    let outcome = run(&ONE, Placement::SharesSpread, &three());
    let seconds = seconds(&outcome);
    assert_eq!(
        seconds.iter().map(|(started, _)| *started).collect::<Vec<_>>(),
        [Some(0.0), Some(10.0), Some(20.0)]
    );
    // A move costs 5% of a turn and its cost: with three on the card all takes 1/0.95 as long. The first has
    // 85 s left at 20 s, and a third of the card.
    assert_eq!(seconds[0].1, 288.421, "20 + 85 · 3 ÷ 0.95");
    assert_eq!(outcome.most_memory, Bytes::gib(12));
    assert_eq!((outcome.done / 1e9).round(), 300.0);
}

#[test]
fn pods_that_need_little_run_beside_each_other_as_fast_as_alone() {
    let pods = pods("a,0,100,1024,250,\nb,0,100,1024,250,\nc,0,100,1024,500,\n");
    let outcome = run(&ONE, Placement::FittingSpread, &pods);
    assert_eq!(seconds(&outcome), [(Some(0.0), 100.0); 3]);
    assert_eq!((outcome.done / 1e9).round(), 100.0);
}

#[test]
fn packing_fills_a_node_and_spreading_takes_the_next() {
    let cluster = Cluster { nodes: 2, cards: 2, ..ONE };
    let three = three();
    let slowest = |placement| {
        let outcome = run(&cluster, placement, &three);
        Row::of(placement, &cluster, &three, &outcome).slowdown_p99
    };
    assert_eq!(slowest(Placement::SharesSpread), 1.0, "three cards");
    // The first and the third share a card of the first node from 20 s on: to 180 s and to 200 s.
    assert_eq!(slowest(Placement::SharesPacked), 1.8, "two cards");
}

#[test]
fn every_pod_ends_once_no_card_is_too_full_and_all_work_is_done() {
    let cluster = Cluster { nodes: 12, pods: 400, ..USUAL };
    let pods = generator::pods(&cluster);
    for placement in Placement::ALL {
        let outcome = run(&cluster, placement, &pods);
        assert_eq!(outcome.ends.len(), pods.pods.len());
        let (mut asked, mut failed) = (0.0, 0);
        for (pod, end) in pods.pods.iter().zip(&outcome.ends) {
            match end.started {
                Some(started) => {
                    asked += pod.work();
                    assert!(started >= pod.arrives);
                    assert!(
                        end.ended - started + Nanos(1000) >= pod.runs,
                        "faster than alone: {placement:?}"
                    );
                }
                None => failed += 1,
            }
        }
        assert!((outcome.done / asked - 1.0).abs() < 1e-6, "{placement:?}: {} of {asked}", outcome.done);
        assert!(failed == 0 || placement == Placement::Sliced, "{placement:?}: {failed}");
        if placement.requires_fit() {
            assert!(outcome.most_memory <= cluster.memory, "{placement:?}");
        } else {
            assert!(outcome.most_memory > cluster.memory, "no turns: the test shows nothing");
        }
        assert!(outcome.done_in_window <= outcome.done);
        assert_eq!(outcome, run(&cluster, placement, &pods), "the same again");
    }
}

#[test]
fn a_line_that_cannot_be_is_refused_with_its_number() {
    for (line, reason) in [
        ("a,0,100,99999,1000,", "it fits on none"),
        ("a,0,100,1,0,", "compute_milli is 0"),
        ("a,0,0,1,1,", "runs_s is 0"),
        ("a,0,1,1,1,0", "burst_s is 0"),
        ("a,soon,1,1,1,", "does not read"),
    ] {
        let error = Pods::parse("test", &format!("{HEAD}{line}\n"), ONE.memory).unwrap_err();
        assert!(format!("{error:#}").contains(reason), "{error:#}");
    }
    assert!(
        Pods::parse("test", HEAD, ONE.memory)
            .unwrap_err()
            .to_string()
            .contains("no pods")
    );
}

/// Row of one placement in the generated trace.
fn of_trace(nodes: u16, shares: u16, placement: Placement) -> Row {
    let cluster = Cluster { nodes, shares, ..USUAL };
    let pods = generator::pods(&cluster);
    Row::of(placement, &cluster, &pods, &run(&cluster, placement, &pods))
}

#[test]
fn the_page_has_the_figures_of_the_simulator() {
    let page = std::fs::read_to_string(cargo::workspace().join("docs/results/cluster.md")).unwrap();
    let report = |nodes| {
        let cluster = Cluster { nodes, ..USUAL };
        compare(&cluster, &generator::pods(&cluster))
    };
    let scarce = report(100);
    for table in [report(200).markdown(), scarce.markdown()] {
        assert!(page.contains(&table), "the page lacks the table\n\n{table}");
    }
    let turnaround = |placement| whole(scarce.row(placement).unwrap().turnaround_mean_s);
    let (ten, two) = (of_trace(100, 10, Placement::SharesPacked), of_trace(200, 2, Placement::SharesPacked));
    let errors = agreement::greatest_errors().unwrap();
    let prose = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        format!(
            "shares end pods after {} s on average instead of {} s",
            turnaround(Placement::SharesSpread),
            turnaround(Placement::Whole)
        ),
        format!(
            "on 100 nodes a mean turnaround of {} s, and a median slowdown of {:.2}",
            whole(ten.turnaround_mean_s),
            ten.slowdown_p50
        ),
        format!(
            "With two shares on 200 nodes it is {} s, with a pod on {:.0}% of the cards",
            whole(two.turnaround_mean_s),
            two.occupied_percent
        ),
        format!("| memory fits (3) | off by at most {:.1}% |", errors.fitting),
        format!("| turns (9) | at most {:.1}% too early |", errors.early),
        format!("| turns (9) | at most {:.1}% too late |", errors.late),
    ] {
        assert!(prose.contains(&words), "the page does not say: {words}");
    }
}
