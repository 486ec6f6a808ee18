//! Tests of the notice that work in flight is about to end, after the gate was closed.

use gpushare_proto::Nanos;
use gpushare_proto::tenant::NEARLY_DRAINED;

use super::card::{MICRO, MILLI, Model, Step};
use crate::window::aimd::DRAIN_TARGET;
use crate::window::launch_window::{Launch, Window};

const LEAD: Nanos = NEARLY_DRAINED;
/// Time between two looks of the drainer.
const LOOK: u64 = 20 * MICRO;

/// Work in flight of a program when its gate closes, and at the notice.
fn stopped_after(launches: usize, step: impl Fn(usize) -> Step) -> (Nanos, Nanos) {
    let (model, window) = (Model::default(), Window::default());
    model.run(&window, (0..launches).map(step));
    close(&model, &window)
}

fn close(model: &Model, window: &Window) -> (Nanos, Nanos) {
    let drain = model.left();
    while model.left() > Nanos::ZERO && !window.ends_within(LEAD, DRAIN_TARGET, model) {
        model.pass_time(LOOK);
    }
    (drain, model.left())
}

#[test]
fn equal_kernels_are_announced_two_milliseconds_before_their_end() {
    for cost in [5 * MICRO, 100 * MICRO, 1_600 * MICRO, 50 * MILLI] {
        for launches in [500, 501, 507] {
            let (drain, left) = stopped_after(launches, |_| Step::new(cost));
            let expected = drain.min(LEAD);
            let off = Nanos(left.0.abs_diff(expected.0));
            assert!(off <= Nanos(200 * MICRO), "{left} of {drain}, of kernels of {}", Nanos(cost));
        }
    }
}

/// A thread that launches ahead passes the window once more, and then waits at the closed gate.
#[test]
fn a_launch_that_waits_at_the_gate_delays_no_notice() {
    for cost in [100 * MICRO, 1_600 * MICRO, 3 * MILLI] {
        let (model, window, step) = (Model::default(), Window::default(), Step::new(cost));
        model.run(&window, (0..500).map(|_| step));
        let launch = Launch { stream: step.stream, kernel: step.kernel(), size: 1, programmatic: false };
        window.admit(launch, DRAIN_TARGET, &model);
        let _waiting = window.wait_at_gate(step.kernel(), 1);
        let (drain, left) = close(&model, &window);
        let off = Nanos(left.0.abs_diff(drain.min(LEAD).0));
        assert!(off <= Nanos(200 * MICRO), "{left} of {drain}, of kernels of {}", Nanos(cost));
    }
}

/// As a training is stopped that waits for the end of each step.
#[test]
fn a_mixture_is_foreseen_better_than_by_its_usual_length() {
    let mixed = |number: usize| Step::new(if number.is_multiple_of(10) { 3 * MILLI } else { 50 * MICRO });
    let stops: Vec<(Nanos, Nanos)> = (1..80)
        .map(|launches| {
            let (model, window) = (Model::default(), Window::default());
            model.run(&window, (0..1_000).map(mixed));
            model.pass_time(model.left().0);
            (0..launches).for_each(|number| model.launch(&window, mixed(number)));
            close(&model, &window)
        })
        .collect();
    let usual = Nanos(stops.iter().map(|(drain, _)| drain.0).sum::<u64>() / stops.len() as u64);
    let by_usual: u64 = stops.iter().map(|(drain, _)| drain.0.abs_diff(usual.0)).sum();
    let by_notice: u64 = stops.iter().map(|(drain, left)| left.0.abs_diff(LEAD.0.min(drain.0))).sum();
    assert!(3 * by_notice < 2 * by_usual, "{by_notice} ns, {by_usual} ns by the usual drain of {usual}");
}

/// Work whose end was expected long ago says nothing about its end.
#[test]
fn the_end_of_a_kernel_that_is_overdue_is_not_announced_early() {
    let (model, window) = (Model::default(), Window::default());
    model.run(&window, (0..1_000).map(|_| Step::new(10 * MICRO)));
    model.pass_time(model.left().0);
    model.launch(&window, Step::new(50 * MILLI));
    // The gate closes while the kernel runs.
    model.pass_time(10 * MILLI);
    let (drain, left) = close(&model, &window);
    assert!(left <= LEAD, "{left} of {drain}");
}

#[test]
fn nothing_is_announced_of_work_that_is_not_known() {
    let (model, window) = (Model::default(), Window::default());
    assert!(!window.ends_within(LEAD, DRAIN_TARGET, &model), "nothing was launched");
    model.launch(&window, Step::new(5 * MICRO));
    assert!(!window.ends_within(LEAD, DRAIN_TARGET, &model), "the cost is not known");
}

/// One step of a training: forward and backward passes of large products between short kernels, and an optimizer.
fn training_step() -> Vec<Step> {
    let micros = |costs: &[u64]| costs.iter().map(|cost| Step::new(cost * MICRO)).collect::<Vec<_>>();
    let layer = |short: &[u64], products: usize| -> Vec<Step> {
        let parts = [1_160, 390, 1_550, 1_550]
            .map(|product| [micros(short), vec![Step::new(product * MICRO); products]]);
        parts.into_iter().flatten().flatten().collect()
    };
    let forward = layer(&[12, 25, 50], 1).repeat(2);
    let backward = layer(&[12, 25, 50, 18], 2).repeat(2);
    let optimizer = [micros(&[60, 110, 15, 90]).repeat(5), micros(&[5]).repeat(60)].concat();
    [forward, backward, optimizer].concat()
}

/// A late notice leaves the card idle. After an early one two programs share the card for a while.
#[test]
fn the_end_of_a_training_that_is_stopped_anywhere_is_noticed_in_time() {
    let (model, window, step) = (Model::default(), Window::default(), training_step());
    let mut launches = step.iter().cycle().enumerate();
    let mut stops: Vec<u64> = (0..500)
        .map(|turn: u64| {
            let until = model.now_nanos() + 12 * MILLI + turn.wrapping_mul(7_919) % 16_000 * MICRO;
            while model.now_nanos() < until {
                let Some((number, kernel)) = launches.next() else { break };
                model.launch(&window, *kernel);
                if number % step.len() == step.len() - 1 {
                    // The program waits for its step.
                    model.pass_time(model.left().0.min(until.saturating_sub(model.now_nanos())));
                }
            }
            let (_, left) = close(&model, &window);
            model.pass_time(left.0 + 20 * MILLI);
            left.0
        })
        .collect();
    stops.sort_unstable();
    let [late, early] = [stops[stops.len() / 20], stops[19 * stops.len() / 20]];
    assert!(late >= 1_600 * MICRO && early <= 2_300 * MICRO, "{late} to {early} ns left");
}
