//! What the daemon tells the service manager that started it.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::Folders;

/// Longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_service_manager_hears_ready_then_signs_of_life_then_the_end() {
    let folders = Folders::new();
    let address = folders.path("notify");
    let manager = UnixDatagram::bind(&address).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = || {
        let mut message = [0; 32];
        let length = manager.recv(&mut message).expect("a message of the daemon");
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    let daemon =
        folders.start_with(&[("NOTIFY_SOCKET", address.to_str().unwrap()), ("WATCHDOG_USEC", "100000")]);
    assert_eq!(hear(), "READY=1");
    for _ in 0..3 {
        assert_eq!(hear(), "WATCHDOG=1");
    }
    // The daemon drops what finds the queue full, so all of it is heard.
    let pid = Pid::from_raw(daemon.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let last = std::iter::repeat_with(hear).find(|message| message != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
    assert_eq!(daemon.wait().code(), Some(0));
}
