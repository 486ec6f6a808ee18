//! Tests of the places of markers, of counting and of expiry. The model of the card asserts the places.

use std::sync::atomic::Ordering::Relaxed;

use gpushare_proto::Nanos;

use super::card::{MICRO, MILLI, Model, Step};
use crate::window::Card;
use crate::window::aimd::DRAIN_TARGET;
use crate::window::launch_window::Window;
use crate::window::stream::Stream;

fn launches(window: &Window) -> u64 {
    window.counters.launches.load(Relaxed)
}

#[test]
fn the_first_window_is_admitted_at_once_and_has_its_markers() {
    let (model, window) = (Model::default(), Window::default());
    for _ in 0..64 {
        model.launch(&window, Step::new(MILLI));
    }
    assert_eq!(model.now_nanos(), 64 * MICRO, "no launch waited");
    assert_eq!(window.in_flight(), 64);
    // The first follows the first launch, then one follows every four.
    assert_eq!(model.markers_made(), 16);
}

#[test]
fn a_full_window_waits_for_the_oldest_marker_and_not_for_the_stream() {
    let (model, window) = (Model::default(), Window::default());
    for _ in 0..65 {
        model.launch(&window, Step::new(100 * MICRO));
    }
    // The marker behind the first launch is done, the sixty-four are not.
    assert!(model.now_nanos() < MILLI, "{}", model.now_nanos());
    assert_eq!(window.counters.held_back.load(Relaxed), 1);
}

#[test]
fn a_launch_of_any_size_is_admitted_when_nothing_is_in_flight() {
    let (model, window) = (Model::default(), Window::default());
    model.launch(&window, Step { size: 1_000_000, ..Step::new(MILLI) });
    assert_eq!(model.now_nanos(), MICRO);
    assert_eq!(window.in_flight(), 1_000_000);
}

#[test]
fn a_launch_is_held_back_for_four_targets_and_no_longer() {
    let (model, window) = (Model::default(), Window::default());
    // Work in flight never ends.
    for _ in 0..65 {
        model.launch(&window, Step { until: Some(u64::MAX), ..Step::new(MICRO) });
    }
    let waited = model.now_nanos();
    assert!((40 * MILLI..41 * MILLI).contains(&waited), "{waited}");
    assert_eq!(window.counters.let_through.load(Relaxed), 1);
    // Then two markers' worth of launches goes through.
    for _ in 0..7 {
        model.launch(&window, Step::new(MICRO));
    }
    assert_eq!(model.now_nanos(), waited + 7 * MICRO);
}

#[test]
fn nothing_is_counted_and_nothing_marked_while_the_process_captures() {
    let (model, window) = (Model::default(), Window::default());
    model.launch(&window, Step::new(MILLI));
    model.capture(true);
    for _ in 0..500 {
        model.launch(&window, Step::new(MILLI));
    }
    assert_eq!((launches(&window), model.now_nanos()), (1, 501 * MICRO));
    model.capture(false);
    model.launch(&window, Step::new(MILLI));
    assert_eq!(launches(&window), 2);
}

/// Every launch but each hundredth has programmatic dependence; the model asserts that no marker precedes
/// one.
#[test]
fn no_marker_comes_before_a_launch_with_programmatic_dependence() {
    let (model, window) = (Model::default(), Window::default());
    let step = |number| Step { programmatic: number % 100 != 0, ..Step::new(5 * MICRO) };
    model.run(&window, (0..20_000).map(step));
    assert!(model.markers_made() > 0);
    let (model, window) = (Model::whose_markers_order_others(), Window::default());
    model.run(&window, (0..20_000).map(|number| step(number).on(Stream::Legacy(0x1000))));
    assert!(model.markers_made() > 0);
}

/// The model asserts that nothing came between a launch and its marker.
#[test]
fn a_marker_that_orders_other_streams_comes_right_after_a_launch_there() {
    let (model, window) = (Model::whose_markers_order_others(), Window::default());
    let step = |number: usize| match number % 3 {
        0 => Step::new(50 * MICRO).on(Stream::Legacy(0x1000)),
        _ => Step::new(50 * MICRO),
    };
    model.run(&window, (0..3_000).map(step));
    assert!(model.markers_made() > 0);
}

#[test]
fn a_process_that_ends_waits_for_nothing() {
    let (model, window) = (Model::default(), Window::default());
    model.exit();
    for _ in 0..200 {
        model.launch(&window, Step { until: Some(u64::MAX), ..Step::new(MICRO) });
    }
    assert!(model.now_nanos() < 10 * MILLI, "{}", model.now_nanos());
}

/// Threads come and go, and leave no marker behind their last launches.
#[test]
fn what_ended_threads_left_behind_does_not_fill_the_window() {
    let (model, window) = (Model::default(), Window::default());
    for number in 0..2_000 {
        model.launch(&window, Step::new(MICRO).on(Stream::PerThread(0x1000, number / 5)));
        model.pass_time(MILLI);
    }
    assert!(window.in_flight() <= 300, "{}", window.in_flight());
    assert_eq!(window.counters.let_through.load(Relaxed), 0);
    assert_eq!(launches(&window), 2_000);
    let before = model.now_nanos();
    for _ in 0..64 {
        model.launch(&window, Step::new(MICRO));
    }
    assert_eq!(window.counters.let_through.load(Relaxed), 0);
    assert!(model.now_nanos() - before < MILLI, "a new stream has its window");
}

#[test]
fn streams_and_contexts_take_their_launches_along() {
    let (model, window) = (Model::default(), Window::default());
    let markers = &window.markers;
    for handle in [0x40, 0x80, 0xc0] {
        for _ in 0..10 {
            model.launch(&window, Step::new(MILLI).on(Stream::Own(handle)));
        }
    }
    window.subtract(markers.end_stream(0x40, &model));
    assert_eq!(window.in_flight(), 20);
    assert_eq!(markers.end_stream(0x40, &model), 0, "it is gone already");
    let context = std::ptr::without_provenance_mut(0x1000);
    let other = std::ptr::without_provenance_mut(0x2000);
    window.subtract(markers.freeze(other).end_context());
    assert_eq!(window.in_flight(), 20);
    let frozen = markers.freeze(context);
    window.subtract(frozen.end_context());
    drop(frozen);
    assert_eq!((window.in_flight(), markers.all().count()), (0, 0));
}

#[test]
fn events_are_made_once_and_used_again() {
    let (model, window) = (Model::default(), Window::default());
    model.run(&window, (0..20_000).map(|_| Step::new(5 * MICRO)));
    // As many as may be pending, and the last that was done.
    assert!(model.markers_made() <= 33, "{}", model.markers_made());
}

/// More streams than places in the table, whose slots pass from one context to the other.
#[test]
fn a_marker_is_an_event_of_its_streams_own_context() {
    let (model, window) = (Model::default(), Window::default());
    for number in 0..2_000 {
        let stream = Stream::PerThread(0x1000 + number / 500 % 2 * 0x1000, number);
        for _ in 0..3 {
            model.launch(&window, Step::new(MICRO).on(stream));
            model.pass_time(10 * MICRO);
        }
        // The thread finds all of it done.
        model.pass_time(MILLI);
        window.ends_within(Nanos::ZERO, DRAIN_TARGET, &model);
        let slot = window.markers.slot(stream, &model);
        slot.into_iter().for_each(|slot| _ = slot.expire(model.now()));
    }
}

#[test]
fn a_stream_whose_marker_failed_is_watched_again_later() {
    let (model, window) = (Model::default(), Window::default());
    let launch = |times: usize| (0..times).for_each(|_| model.launch(&window, Step::new(5 * MICRO)));
    launch(20);
    for _ in 0..40 {
        model.refuse(true);
        launch(20);
        assert!(window.in_flight() <= 1, "nothing tells when these launches end");
        model.refuse(false);
        let before = launches(&window);
        launch(1_100);
        assert!(launches(&window) > before, "the stream is not watched any more");
    }
    assert!(model.markers_made() <= 32, "{} events, not each of which came back", model.markers_made());
}
