//! Tests of programs that launch as far ahead as they may: the drain converges to the target.

use gpushare_proto::Nanos;

use super::card::{MICRO, MILLI, Model, Seen, Step};
use crate::window::aimd::DRAIN_TARGET;
use crate::window::launch_window::Window;
use crate::window::stream::Stream;

/// Upper bound of the drain: the window is known only to one marker, and a pause may end late.
const NEAR: Nanos = Nanos(DRAIN_TARGET.0 + DRAIN_TARGET.0 / 4);

fn run(model: &Model, launches: usize, step: impl Fn(usize) -> Step) -> (Window, Seen) {
    let window = Window::default();
    let seen = model.run(&window, (0..launches).map(step));
    (window, seen)
}

fn counted(window: &Window) -> (u64, u64) {
    use std::sync::atomic::Ordering::Relaxed;
    let counters = &window.counters;
    (counters.launches.load(Relaxed), counters.let_through.load(Relaxed))
}

/// The card was never idle for long.
fn assert_never_dry(seen: &Seen) {
    assert!(seen.idle * 100 <= seen.span, "the card was idle: {seen:?}");
}

#[test]
fn kernels_of_5_us() {
    let (window, seen) = run(&Model::default(), 100_000, |_| Step::new(5 * MICRO));
    assert!((1_500..=2_100).contains(&window.aimd().window()), "{:?}", window.aimd());
    assert!(seen.drain <= NEAR, "{seen:?}");
    assert_eq!(counted(&window), (100_000, 0));
    assert_never_dry(&seen);
}

#[test]
fn kernels_of_500_us() {
    let (window, seen) = run(&Model::default(), 2_000, |_| Step::new(500 * MICRO));
    assert!((10..=24).contains(&window.aimd().window()), "{:?}", window.aimd());
    assert!(seen.drain <= NEAR, "{seen:?}");
    assert_never_dry(&seen);
}

#[test]
fn kernels_of_50_ms_go_one_by_one() {
    let (window, seen) = run(&Model::default(), 400, |_| Step::new(50 * MILLI));
    assert_eq!(window.aimd().window(), 1);
    // The next one is launched 0.1 ms before the end, so the card is never idle.
    assert!(seen.drain <= Nanos(50_300 * MICRO), "{seen:?}");
    // The controller knows how long a drop takes then.
    assert!((49_900 * MICRO..51 * MILLI).contains(&window.aimd().drain(1).0), "{:?}", window.aimd());
    assert_eq!(seen.idle, 0, "{seen:?}");
}

#[test]
fn the_card_is_not_idle_between_kernels_that_go_one_by_one_though_threads_wake_late() {
    let target = Nanos(200 * MICRO);
    let vary = |number: usize| Step::new(1_600 * MICRO + (number as u64 * 7919) % 40 * MICRO).of(1);
    let (window, seen) = run(&Model::with_target(target, 80 * MICRO), 4_000, vary);
    assert_eq!(window.aimd().window(), 1);
    assert!(seen.drain <= Nanos(2_000 * MICRO), "{seen:?}");
    assert_never_dry(&seen);
}

/// As a library does that prepares each product by a kernel of its own.
#[test]
fn the_card_is_not_idle_between_long_kernels_with_a_short_one_before_each() {
    let pair = |number: usize| Step::new(if number.is_multiple_of(2) { 5 * MICRO } else { 1_600 * MICRO });
    let (window, seen) = run(&Model::with_target(Nanos(200 * MICRO), 80 * MICRO), 8_000, pair);
    assert_eq!(window.aimd().window(), 1);
    assert!(seen.drain <= Nanos(3_300 * MICRO), "two of the long ones: {seen:?}");
    assert_never_dry(&seen);
}

#[test]
fn the_card_is_hardly_idle_between_long_kernels_with_eight_short_ones_before_each() {
    let step = |number: usize| Step::new(if number % 9 < 8 { 5 * MICRO } else { 2_100 * MICRO });
    let (window, seen) = run(&Model::with_target(Nanos(200 * MICRO), 80 * MICRO), 18_000, step);
    assert_eq!(window.aimd().window(), 1);
    assert!(seen.drain <= Nanos(4_400 * MICRO), "two of the long ones: {seen:?}");
    assert_never_dry(&seen);
}

/// The cost of most launches is a fiftieth of what some take.
#[test]
fn a_kernel_that_takes_far_longer_than_others_has_few_launches_behind_it() {
    let cost = |number: usize| Step::new(if number % 500 == 499 { 30 * MILLI } else { 600 * MICRO });
    let (_, seen) = run(&Model::with_target(Nanos(200 * MICRO), 0), 2_000, cost);
    assert!(seen.drain <= Nanos(33 * MILLI), "{seen:?}");
}

/// Each has one in flight, and waits for the others longer than a launch is held back.
#[test]
fn several_streams_of_long_kernels_get_no_head_start() {
    let stream = |number: usize| Step::new(50 * MILLI).on(Stream::Own(0x40 + number % 4));
    let (_, seen) = run(&Model::default(), 400, stream);
    assert!(seen.drain <= Nanos(7 * 50 * MILLI), "{seen:?}");
}

#[test]
fn kernels_of_200_ms_go_one_by_one_too() {
    let (window, seen) = run(&Model::default(), 2_000, |_| Step::new(200 * MILLI));
    assert_eq!(window.aimd().window(), 1);
    assert!(seen.drain <= Nanos(200_300 * MICRO), "{seen:?}");
}

#[test]
fn mixtures() {
    // Nine short kernels and a longer one take 545 µs on average.
    let mixed = |number| Step::new(if number % 10 == 0 { 5 * MILLI } else { 50 * MICRO });
    let (_, seen) = run(&Model::default(), 4_000, mixed);
    assert!(seen.drain <= Nanos(2 * DRAIN_TARGET.0), "{seen:?}");
    assert_never_dry(&seen);
    // Two thousand short kernels, and one that takes five targets alone.
    let mixed = |number| Step::new(if number % 2_000 == 0 { 50 * MILLI } else { 5 * MICRO });
    let (_, seen) = run(&Model::default(), 100_000, mixed);
    assert!(seen.drain <= Nanos(50 * MILLI + NEAR.0), "{seen:?}");
    assert_never_dry(&seen);
}

#[test]
fn a_program_whose_kernels_become_longer() {
    let cost = |number| if number < 20_000 { 5 * MICRO } else { 500 * MICRO };
    let (window, seen) = run(&Model::default(), 60_000, |number| Step::new(cost(number)).of(1));
    assert!((10..=24).contains(&window.aimd().window()), "{:?}", window.aimd());
    assert!(seen.drain <= NEAR, "{seen:?}");
}

#[test]
fn several_streams_on_one_engine() {
    let stream = |number| Stream::Own(0x40 * (1 + number % 4));
    let (window, seen) = run(&Model::default(), 8_000, |number| Step::new(100 * MICRO).on(stream(number)));
    assert!(seen.drain <= NEAR, "{seen:?} {:?}", window.aimd());
    assert_never_dry(&seen);
}

#[test]
fn several_streams_side_by_side() {
    let model = Model::with_an_engine_per_stream();
    let stream = |number| Stream::Own(0x40 * (1 + number % 4));
    let (window, seen) = run(&model, 16_000, |number| Step::new(100 * MICRO).on(stream(number)));
    // Four at once: four times as many for the same drain.
    assert!((300..=420).contains(&window.aimd().window()), "{:?}", window.aimd());
    assert!(seen.drain <= NEAR, "{seen:?}");
}

#[test]
fn the_streams_of_eight_threads() {
    let stream = |number| Stream::PerThread(0x1000, number % 8);
    let (window, seen) = run(&Model::default(), 16_000, |number| Step::new(50 * MICRO).on(stream(number)));
    assert!(seen.drain <= NEAR, "{seen:?} {:?}", window.aimd());
    assert_never_dry(&seen);
}

#[test]
fn the_legacy_stream_of_an_old_driver() {
    let model = Model::whose_markers_order_others();
    let (window, seen) = run(&model, 4_000, |_| Step::new(500 * MICRO).on(Stream::Legacy(0x1000)));
    assert!((10..=24).contains(&window.aimd().window()), "{:?}", window.aimd());
    assert!(seen.drain <= NEAR, "{seen:?}");
}

#[test]
fn graphs_count_as_their_kernels() {
    let graph = Step { size: 1_000, ..Step::new(5 * MILLI) };
    let (window, seen) = run(&Model::default(), 2_000, |_| graph);
    assert!((1_500..=2_100).contains(&window.aimd().window()), "{:?}", window.aimd());
    assert!(seen.drain <= Nanos(NEAR.0), "{seen:?}");
    // A graph that is larger than the window goes alone until shortly before its end.
    let large = Step { size: 20_000, ..Step::new(100 * MILLI) };
    let (_, seen) = run(&Model::default(), 200, |_| large);
    assert!(seen.drain <= Nanos(100_300 * MICRO), "{seen:?}");
    assert_eq!(seen.idle, 0, "{seen:?}");
}

/// The launches wait for one that comes later, and are more than a new window admits.
#[test]
fn a_program_whose_launches_wait_for_later_launches_ends() {
    for (ahead, patience) in [(10, 0), (70, 1), (100, 3), (1_000, 40)] {
        let model = Model::default();
        let step = |number| {
            let number = number as u64;
            Step {
                until: (number.is_multiple_of(ahead)).then_some(number + ahead),
                ..Step::new(5 * MICRO)
            }
        };
        let (window, _) = run(&model, 10_000, step);
        let (launches, let_through) = counted(&window);
        assert_eq!(launches, 10_000);
        assert!(let_through <= patience, "{ahead} ahead: {let_through} let through, {:?}", window.aimd());
        // Waiting made no kernel seem slow.
        assert!(window.aimd().cost() < Nanos(MILLI), "{ahead} ahead: {:?}", window.aimd());
    }
}

/// One stream waits for another, which has nothing in flight and is not held back.
#[test]
fn a_stream_that_feeds_another_is_not_held_back() {
    let model = Model::with_an_engine_per_stream();
    let step = |number: usize| {
        let number = number as u64;
        match number % 100 {
            99 => Step::new(5 * MICRO).on(Stream::Own(0x80)),
            0 => Step { until: Some(number + 100), ..Step::new(5 * MICRO) },
            _ => Step::new(5 * MICRO),
        }
    };
    let (window, _) = run(&model, 6_000, step);
    assert_eq!(counted(&window).0, 6_000);
    assert!(window.aimd().cost() < Nanos(MILLI), "{:?}", window.aimd());
}
