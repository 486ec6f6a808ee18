//! Watchers: they get all events, and the daemon waits for none of them.

use gpushare_proto::Bytes;
use gpushare_proto::admin::{Activity, AdminReply, AdminRequest, Mode, WatchEventKind};
use gpushare_proto::session::Terms;

use crate::harness::{Folders, eventually};
use crate::names::made;
use crate::processes::Process;

#[test]
fn a_watcher_is_told_how_things_are_and_then_what_happens() {
    let folders = Folders::new();
    let daemon = folders.start(&["--user"]);
    let (old, _) = daemon.register("old", None);
    let mut watcher = daemon.administrator();
    watcher.say(&AdminRequest::Watch);
    let mut told = Vec::new();
    let (new, token) = daemon.register("new", None);
    drop(Process::asking(&folders, Some(&token), Bytes::mib(8), 1));
    let mut last = gpushare_proto::Nanos::ZERO;
    while !told.iter().any(|what| matches!(what, WatchEventKind::ProcessLeft { .. })) {
        let AdminReply::Events(news) = watcher.hear() else { panic!("no news") };
        for happening in news {
            assert!(happening.at_ns >= last, "{happening:?}");
            last = happening.at_ns;
            told.push(happening.what);
        }
    }
    let began = |session, name: &str| WatchEventKind::SessionBegan { session, name: name.into() };
    assert!(matches!(told[0], WatchEventKind::Watching { .. }));
    assert_eq!(told[1], began(old, "old"));
    assert!(told.contains(&began(new, "new")));
    let holds = |what: &WatchEventKind| matches!(what, WatchEventKind::Turned { to: Activity::Holding, .. });
    assert!(told.iter().any(holds), "{told:?}");
    let mode =
        |what: &WatchEventKind| matches!(what, WatchEventKind::ModeChanged { mode: Mode::Parallel, .. });
    assert!(told.iter().any(mode), "{told:?}");
    assert!(
        told.iter()
            .any(|what| matches!(what, WatchEventKind::Allocated { bytes, .. } if *bytes >= Bytes::mib(8))),
        "{told:?}"
    );
}

#[test]
fn a_watcher_is_told_who_lost_its_name() {
    let folders = Folders::new();
    let daemon = folders.start(&["--user"]);
    let (session, _) = daemon.register("b", None);
    let mut watcher = daemon.administrator();
    watcher.say(&AdminRequest::Watch);
    assert!(matches!(watcher.hear(), AdminReply::Events(_)));
    made(&daemon, "b", Terms::default());
    let AdminReply::Events(news) = watcher.hear() else { panic!("no news") };
    let news: Vec<WatchEventKind> = news.into_iter().map(|happening| happening.what).collect();
    let renamed = WatchEventKind::SessionRenamed { session, name: "b-1".into() };
    assert_eq!(news.first(), Some(&renamed), "{news:?}");
    assert!(matches!(&news[1], WatchEventKind::SessionBegan { name, .. } if name == "b"));
}

#[test]
fn a_watcher_that_does_not_read_is_dropped_and_the_daemon_goes_on() {
    let folders = Folders::new();
    let daemon = folders.start(&["--user"]);
    let mut watcher = daemon.administrator();
    watcher.say(&AdminRequest::Watch);
    let (_, token) = daemon.register("busy", None);
    let dropped = eventually("the watcher is dropped", || {
        for _ in 0..20 {
            drop(daemon.join(Some(&token)));
        }
        folders.log().contains("it does not read").then_some(true)
    });
    assert!(dropped);
    assert_eq!(daemon.status().sessions.len(), 1);
}
