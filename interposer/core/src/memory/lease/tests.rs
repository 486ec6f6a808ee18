use std::cell::RefCell;

use std::sync::Mutex;

use gpushare_proto::GateState;

use super::MemoryKind::{Fixed, Movable};
use super::*;
use crate::process::lock;

fn page(free: u64) -> &'static Page {
    let page = Box::leak(Box::new(Page::new(GateState::Open)));
    page.gpus[3].free.store(free, Ordering::Relaxed);
    page
}

fn leased(free: u64) -> (Lease, &'static Page) {
    let (lease, page) = (Lease::default(), page(free));
    lease.use_page(page);
    lease.attach(0, GpuId(3));
    (lease, page)
}

fn free(page: &Page) -> u64 {
    page.gpus[3].free.load(Ordering::Relaxed)
}

fn fixed(lease: &Lease) -> Bytes {
    Bytes(lease.devices[0].leased_fixed()) + lease.debt(0, Fixed)
}

fn give(lease: &Lease, bytes: Bytes, kind: MemoryKind) -> Vec<Report> {
    let reports = RefCell::new(Vec::new());
    lease.give_back(0, bytes, kind, |report| {
        reports.borrow_mut().push(report);
        true
    });
    reports.into_inner()
}

fn fixed_reports(lease: &Lease) -> Vec<Report> {
    let reports = RefCell::new(Vec::new());
    lease.report_fixed(0, |report| {
        reports.borrow_mut().push(report);
        true
    });
    reports.into_inner()
}

#[test]
fn taken_bytes_count_and_can_be_taken_again_after_their_return() {
    let (lease, page) = leased(100);
    assert!(lease.take(0, Bytes(60), Movable));
    assert!(!lease.take(0, Bytes(60), Movable));
    assert_eq!(lease.used(0), Bytes(60));
    assert_eq!(give(&lease, Bytes(60), Movable), [], "a little stays for the next allocation");
    assert_eq!(free(page), 100);
    assert_eq!((lease.used(0), lease.peak()), (Bytes::ZERO, Bytes(60)));
}

#[test]
fn a_device_without_a_row_has_nothing_to_take() {
    let (lease, _) = leased(100);
    assert!(!lease.take(1, Bytes(1), Movable));
    assert!(!lease.take(-1, Bytes(1), Movable));
    assert!(!lease.take(99, Bytes(1), Movable));
    assert_eq!(lease.take_up_to(99, Bytes(1), Movable), Bytes::ZERO);
    assert_eq!(lease.figures(1), None);
    for device in [-1, 16, CUdevice::MAX] {
        lease.set_card_size(device, Bytes::gib(8));
        assert_eq!(lease.card_size(device), None);
    }
}

#[test]
fn the_size_of_a_card_is_known_until_it_is_forgotten() {
    let lease = Lease::default();
    assert_eq!(lease.card_size(0), None);
    lease.set_card_size(0, Bytes::gib(8));
    assert_eq!((lease.card_size(0), lease.card_size(1)), (Some(Bytes::gib(8)), None));
    lease.set_card_size(0, Bytes::ZERO);
    assert_eq!(lease.card_size(0), None);
}

#[test]
fn many_free_bytes_are_offered_back() {
    let (lease, _) = leased(Bytes::gib(1).0);
    assert!(lease.take(0, Bytes::gib(1), Movable));
    assert_eq!(give(&lease, Bytes::gib(1), Movable), [Report::Trim(GpuId(3))]);
}

#[test]
fn reported_fixed_bytes_go_back_to_the_daemon_others_to_the_page() {
    let (lease, page) = leased(100);
    lease.add_granted(0, Bytes(50), Fixed);
    assert!(lease.take(0, Bytes(30), Fixed));
    assert_eq!(give(&lease, Bytes(20), Fixed), [], "50 are reported, and 60 are left");
    assert_eq!(free(page), 90);
    assert_eq!(give(&lease, Bytes(25), Fixed), [Report::ReturnFixed(GpuId(3), Bytes(15))]);
    assert_eq!(free(page), 100);
    assert_eq!((fixed(&lease), lease.used(0)), (Bytes(35), Bytes(35)));
}

#[test]
fn only_more_fixed_bytes_are_reported() {
    let (lease, _) = leased(100);
    assert!(lease.take(0, Bytes(30), Fixed));
    assert_eq!(fixed_reports(&lease), [Report::Fixed(GpuId(3), Bytes(30))]);
    assert_eq!(fixed_reports(&lease), []);
    assert_eq!(give(&lease, Bytes(30), Fixed), [Report::ReturnFixed(GpuId(3), Bytes(30))]);
    assert_eq!(fixed_reports(&lease), []);
}

#[test]
fn a_lost_report_is_repeated() {
    let (lease, _) = leased(100);
    assert!(lease.take(0, Bytes(30), Fixed));
    lease.report_fixed(0, |_| false);
    assert_eq!(fixed_reports(&lease), [Report::Fixed(GpuId(3), Bytes(30))]);
}

#[test]
fn bytes_given_back_pay_debts_first() {
    let (lease, page) = leased(10);
    lease.add_debt(0, Bytes(40), Fixed);
    assert!(lease.has_debt(0));
    assert_eq!((lease.used(0), fixed(&lease)), (Bytes(40), Bytes(40)));
    assert_eq!(fixed_reports(&lease), [], "they are not leased");
    lease.add_granted(0, Bytes(30), Movable);
    assert_eq!(give(&lease, Bytes(30), Movable), []);
    assert_eq!((lease.debt(0, Fixed), lease.used(0)), (Bytes(10), Bytes(40)));
    assert_eq!(free(page), 10);
    assert_eq!(give(&lease, Bytes(40), Fixed), []);
    assert!(!lease.has_debt(0));
    assert_eq!(free(page), 40);
    assert_eq!((lease.used(0), fixed(&lease)), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn the_payment_of_a_debt_that_was_paid_meanwhile_is_left_over() {
    let (lease, _) = leased(0);
    lease.add_debt(0, Bytes(40), Movable);
    lease.add_granted(0, Bytes(40), Movable);
    assert_eq!(give(&lease, Bytes(25), Movable), []);
    assert_eq!(lease.pay_debt(0, Bytes(40), Movable), Bytes(25));
    assert!(!lease.has_debt(0));
    assert_eq!(lease.used(0), Bytes(40), "15 paid, and 25 left over");
}

#[derive(Debug, Default)]
struct Daemon {
    leased: i64,
    fixed: i64,
}

#[test]
fn the_daemon_never_counts_more_fixed_bytes_than_there_are() {
    for _ in 0..20 {
        let (lease, page) = leased(0);
        let daemon = Mutex::new(Daemon::default());
        let receive = |report| {
            let mut daemon = lock(&daemon);
            match report {
                Report::Fixed(_, bytes) => daemon.fixed = bytes.0 as i64,
                Report::ReturnFixed(_, bytes) => {
                    daemon.leased -= bytes.0 as i64;
                    daemon.fixed = (daemon.fixed - bytes.0 as i64).max(0);
                }
                Report::Trim(_) => {}
            }
            true
        };
        std::thread::scope(|scope| {
            for seed in 0..4_u64 {
                let (lease, receive, daemon) = (&lease, &receive, &daemon);
                scope.spawn(move || {
                    for round in 0..300_u64 {
                        let bytes = Bytes(1 + (seed * 7 + round * 13) % 40);
                        let kind = if (seed + round) % 3 == 0 { Movable } else { Fixed };
                        let debt = (seed + round) % 5 == 0;
                        if debt {
                            lease.add_debt(0, bytes, kind);
                        } else if !lease.take(0, bytes, kind) {
                            lease.report_fixed(0, receive);
                            let mut daemon = lock(daemon);
                            daemon.leased += bytes.0 as i64;
                            if kind == Fixed {
                                daemon.fixed += bytes.0 as i64;
                            }
                            lease.add_granted(0, bytes, kind);
                        }
                        lease.give_back(0, bytes, kind, receive);
                    }
                });
            }
        });
        let daemon = lock(&daemon);
        assert_eq!((lease.used(0), fixed(&lease)), (Bytes::ZERO, Bytes::ZERO));
        assert!(!lease.has_debt(0));
        assert!(daemon.fixed <= 0, "{daemon:?}");
        assert_eq!(free(page) as i64, daemon.leased, "every byte is in one place");
    }
}

#[test]
fn a_returned_daemon_books_the_used_bytes_and_brings_an_empty_page() {
    let (lease, _) = leased(100);
    assert!(lease.take(0, Bytes(60), Fixed));
    lease.add_debt(0, Bytes(5), Movable);
    assert_eq!(fixed_reports(&lease).len(), 1);
    let fresh = page(0);
    lease
        .replace_page(|used| {
            assert_eq!(used, [(0, Bytes(65))]);
            Ok::<_, ()>((fresh, vec![GpuId(5)]))
        })
        .unwrap();
    assert_eq!(lease.gpu(0), Some(GpuId(5)));
    assert!(!lease.take(0, Bytes(1), Movable), "the rest of the old lease is gone");
    assert!(!lease.has_debt(0), "the daemon booked all");
    assert_eq!(fixed_reports(&lease), [Report::Fixed(GpuId(5), Bytes(60))]);
    assert_eq!(give(&lease, Bytes(5), Movable), []);
    assert_eq!(fresh.gpus[5].free.load(Ordering::Relaxed), 5);
}

#[test]
fn figures_include_the_quota_and_the_use_of_siblings() {
    let (lease, page) = leased(100);
    page.gpus[3].limit.store(1000, Ordering::Relaxed);
    page.gpus[3].siblings.store(200, Ordering::Relaxed);
    assert!(lease.take(0, Bytes(50), Movable));
    let figures = lease.figures(0).unwrap();
    assert_eq!(figures, Figures { limit: Bytes(1000), ceiling: Bytes::MAX, used: Bytes(250) });
    assert_eq!((figures.total(Bytes(5000)), figures.free(Bytes(5000))), (Bytes(1000), Bytes(750)));
    assert_eq!((figures.total(Bytes(600)), figures.free(Bytes(600))), (Bytes(600), Bytes(350)));
}

#[test]
fn a_quota_beyond_the_capacity_keeps_its_total_and_has_less_free() {
    let (lease, page) = leased(100);
    page.gpus[3].limit.store(1000, Ordering::Relaxed);
    page.gpus[3].ceiling.store(400, Ordering::Relaxed);
    let figures = lease.figures(0).unwrap();
    assert_eq!((figures.total(Bytes(5000)), figures.free(Bytes(5000))), (Bytes(1000), Bytes(400)));
}

#[test]
fn one_report_tells_the_daemon_of_all_refusals_until_it_looks() {
    let (lease, page) = leased(100);
    assert!(lease.count_refusal(0) && lease.count_refusal(0), "a daemon that reads no number hears each");
    assert!(!lease.uncount_refusal(0));
    page.features.store(FEATURE_REFUSALS, Ordering::Relaxed);
    let reports = (0..100).filter(|_| lease.count_refusal(0)).count();
    assert_eq!(reports, 1);
    assert_eq!(page.gpus[3].refused.swap(0, Ordering::Relaxed), 100);
    assert!(lease.count_refusal(0), "the daemon has looked");
}

#[test]
fn a_refusal_that_was_not_reported_is_not_counted() {
    let (lease, page) = leased(100);
    page.features.store(FEATURE_REFUSALS, Ordering::Relaxed);
    assert!(lease.count_refusal(0));
    assert!(!lease.uncount_refusal(0));
    assert!(lease.count_refusal(0));
    assert!(!lease.count_refusal(0), "by another thread");
    assert!(lease.uncount_refusal(0), "the other thread's is to be reported");
    assert_eq!(page.gpus[3].refused.load(Ordering::Relaxed), 1);
}
