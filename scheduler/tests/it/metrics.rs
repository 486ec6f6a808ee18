//! The metrics endpoint: its page, and readers that misbehave.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use gpushare_proto::tenant::Returning;
use gpushare_proto::{Bytes, Token};
use gpushare_scheduler::metrics::{FAMILIES, Kind};

use crate::deaths::holds;
use crate::harness::{CARD, Client, Daemon, Folders, eventually};
use crate::processes::{Process, TURNS, wanting};
use crate::restart::{returning, written};

/// Longest time that a test waits for an answer.
const LONG: Duration = Duration::from_secs(30);

/// Starts a daemon with metrics that name sessions. Returns their address too.
fn start(folders: &Folders, flags: &[&str]) -> (Daemon, SocketAddr) {
    start_with(folders, &[&["--metrics-names"], flags].concat())
}

fn start_with(folders: &Folders, flags: &[&str]) -> (Daemon, SocketAddr) {
    let before = folders.log().len();
    let daemon = folders.start(&[&["--metrics", "127.0.0.1:0"], flags].concat());
    let address = eventually("the address in the log", || {
        let log = folders.log();
        let (_, address) = log[before..].split_once("metrics are at http://")?;
        let (address, _) = address.split_once("/metrics")?;
        Some(address.parse().unwrap())
    });
    (daemon, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Sends `request` and reads the answer to its end.
fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the status and the body of an answer.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// Returns the page, with `@` for the labels of the one card.
fn scrape(address: SocketAddr) -> String {
    let (status, page) = get(address, "/metrics");
    assert_eq!(status, 200, "{page}");
    page_of(&page)
}

fn page_of(page: &str) -> String {
    page.replace(&format!("gpu=\"0\",uuid=\"{CARD}\""), "@")
}

/// Waits for a page with all of these lines.
fn shows(address: SocketAddr, lines: &[&str]) {
    let mut last = String::new();
    for line in lines {
        eventually(&format!("{line} in the page"), || {
            let (status, page) = get(address, "/metrics");
            // So the endpoint answers where the daemon does not answer it in time.
            if status == 503 {
                return None;
            }
            assert_eq!(status, 200, "{page}");
            last = page_of(&page);
            last.lines().any(|said| said == *line).then_some(())
        });
    }
}

/// Returns a client that has 100 MiB and asked for the lock.
fn wanting_client(daemon: &Daemon, token: &Token) -> Client {
    let mut client = daemon.join(Some(token));
    wanting(&mut client);
    client
}

#[test]
fn a_scrape_shows_who_holds_and_who_waits() {
    let folders = Folders::new();
    let (daemon, address) = start(&folders, &TURNS);
    let (first, first_token) = daemon.register("first", Some(Bytes::mib(256)));
    let (_, second_token) = daemon.register("second", None);
    let mut holder = wanting_client(&daemon, &first_token);
    holder.enter();
    holds(&daemon, first);
    let _waiter = wanting_client(&daemon, &second_token);
    shows(
        address,
        &[
            "gpushare_ready 1",
            "gpushare_sessions 2",
            "gpushare_gpu_info{@,name=\"test card\"} 1",
            "gpushare_gpu_mode{@,mode=\"parallel\"} 0",
            "gpushare_gpu_mode{@,mode=\"serialized\"} 1",
            "gpushare_gpu_holder{@,session=\"1\",name=\"first\"} 1",
            "gpushare_gpu_holders{@} 1",
            "gpushare_gpu_waiters{@} 1",
            "gpushare_gpu_turns_total{@} 1",
            "gpushare_gpu_memory_bytes{@} 1073741824",
            "gpushare_gpu_capacity_bytes{@} 134217728",
            "gpushare_gpu_allocated_bytes{@} 209715200",
            "gpushare_gpu_grant_seconds_count{@} 1",
            "gpushare_gpu_wait_seconds_count{@} 1",
            "gpushare_gpu_handoff_seconds_count{@} 1",
            "gpushare_gpu_drain_seconds_count{@} 0",
            "gpushare_session_processes{session=\"1\",name=\"first\"} 1",
            "gpushare_session_quota_bytes{session=\"1\",name=\"first\"} 268435456",
            "gpushare_session_allocated_bytes{session=\"1\",name=\"first\",@} 104857600",
            "gpushare_session_allocated_bytes{session=\"2\",name=\"second\",@} 104857600",
        ],
    );
    let page = scrape(address);
    assert!(!page.contains("gpushare_session_quota_bytes{session=\"2\""));
    assert!(page.contains("gpushare_session_gpu_seconds_total{session=\"2\",name=\"second\"} 0\n"));
}

#[test]
fn without_a_request_no_session_is_named() {
    let folders = Folders::new();
    let (daemon, address) = start_with(&folders, &TURNS);
    let (_, token) = daemon.register("secret", Some(Bytes::mib(256)));
    let mut client = wanting_client(&daemon, &token);
    client.enter();
    shows(
        address,
        &[
            "gpushare_gpu_holder{@,session=\"1\"} 1",
            "gpushare_session_processes{session=\"1\"} 1",
            "gpushare_session_allocated_bytes{session=\"1\",@} 104857600",
        ],
    );
    assert!(!scrape(address).contains("secret"));
}

#[test]
fn the_last_figures_of_an_ended_session_stay_for_a_while() {
    let folders = Folders::new();
    let (_daemon, address) = start(&folders, &[]);
    let (mut process, session) = Process::registering(&folders);
    let client = Process::asking(&folders, None, Bytes::gib(64), 1);
    let labels = format!("session=\"{}\",name=\"short\"", session.0);
    shows(address, &["gpushare_sessions 2", &format!("gpushare_session_processes{{{labels}}} 0")]);
    process.kill();
    drop(client);
    shows(address, &["gpushare_sessions 0", &format!("gpushare_session_processes{{{labels}}} 0")]);
    let refusals = scrape(address);
    let of_sessions =
        |line: &&str| line.starts_with("gpushare_session_refusals_total") && line.ends_with(" 1");
    assert_eq!(refusals.lines().filter(of_sessions).count(), 1, "{refusals}");
    assert!(refusals.contains("gpushare_gpu_refusals_total{@,limit=\"capacity\"} 1\n"));
}

#[test]
fn the_endpoint_says_what_the_table_says() {
    let folders = Folders::new();
    let (daemon, address) = start(&folders, &[&TURNS[..], &["--managed-limit=2GiB"]].concat());
    let (session, token) = daemon.register("only", Some(Bytes::mib(256)));
    wanting_client(&daemon, &token).enter();
    let _client = wanting_client(&daemon, &token);
    holds(&daemon, session);
    let page = scrape(address);
    let said: BTreeSet<&str> = page.lines().filter(|line| line.starts_with('#')).collect();
    let mut unsaid = BTreeSet::new();
    let mut known = BTreeSet::new();
    for family in FAMILIES {
        let help = format!("# HELP {} {}", family.name, family.help);
        let kind = format!("# TYPE {} {}", family.name, family.kind.name());
        if !(said.contains(help.as_str()) && said.contains(kind.as_str())) {
            unsaid.insert(family.name);
        }
        known.extend([help, kind]);
        let first = match family.kind {
            Kind::Histogram => format!("{}_bucket{{", family.name),
            _ => format!("{}{{", family.name),
        };
        if let Some(line) = page.lines().find(|line| line.starts_with(&first)) {
            let labels = line.split_once('{').unwrap().1;
            let labels = labels.replace('@', "gpu=\"\",uuid=\"\"");
            let named = |label: &&str| labels.contains(&format!("{label}=\""));
            assert!(family.labels().iter().all(named), "{line}");
        }
    }
    // This machine has no NVML, and no program with remapped memory.
    let absent = [
        "gpushare_gpu_memory_used_bytes",
        "gpushare_gpu_power_watts",
        "gpushare_gpu_remapped_hosted_bytes",
        "gpushare_gpu_remapped_mapped_bytes",
        "gpushare_gpu_remapped_moving_bytes",
        "gpushare_gpu_remapped_prepared_bytes",
        "gpushare_gpu_remapped_resident_bytes",
        "gpushare_gpu_temperature_celsius",
        "gpushare_gpu_utilization_ratio",
        "gpushare_session_remapped_hosted_bytes",
        "gpushare_session_remapped_moving_bytes",
        "gpushare_session_remapped_resident_bytes",
    ];
    assert!(unsaid.is_subset(&absent.into()), "not in the page: {unsaid:?}");
    let strange: Vec<_> = said.iter().filter(|line| !known.contains(**line)).collect();
    assert_eq!(strange, [&""; 0], "not in the table");
}

#[test]
fn readers_that_do_not_read_do_no_harm() {
    let folders = Folders::new();
    let (daemon, address) = start(&folders, &[]);
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let _idle: Vec<_> = (0..10).map(|_| connect(address)).collect();
    let _slow: Vec<_> = (0..10)
        .map(|_| {
            let mut stream = connect(address);
            stream.write_all(request).unwrap();
            stream
        })
        .collect();
    for _ in 0..50 {
        connect(address).write_all(request).unwrap();
        connect(address).write_all(&request[..20]).unwrap();
    }
    let mut client = daemon.join(None);
    let gpu = client.attach();
    client.reserve(gpu, Bytes::mib(10));
    shows(address, &["gpushare_sessions 1", "gpushare_gpu_allocated_bytes{@} 10485760"]);
    assert_eq!(daemon.status().sessions.len(), 1);
}

#[test]
fn connections_that_say_nothing_are_closed() {
    let folders = Folders::new();
    let (_daemon, address) = start(&folders, &[]);
    let idle: Vec<_> = (0..200).map(|_| connect(address)).collect();
    shows(address, &["gpushare_sessions 0"]);
    for mut silent in idle {
        let mut heard = String::new();
        let _ = silent.read_to_string(&mut heard);
        assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 408"), "{heard}");
    }
}

#[test]
fn five_hundred_sessions_make_a_page_of_bounded_size() {
    let folders = Folders::new();
    let (daemon, address) = start(&folders, &[]);
    let clients: Vec<_> = (0..500)
        .map(|n| {
            let (_, token) = daemon.register(&format!("session-{n}"), Some(Bytes::mib(256)));
            let mut client = daemon.join(Some(&token));
            client.attach();
            client
        })
        .collect();
    shows(address, &["gpushare_sessions 500"]);
    let page = scrape(address);
    let of = |name: &str| page.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(of("gpushare_session_processes{"), 500);
    assert_eq!(of("gpushare_session_allocated_bytes{"), 500);
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
    drop(clients);
}

#[test]
fn a_taken_port_is_said_and_the_daemon_goes_on() {
    let folders = Folders::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let daemon = folders.start(&["--metrics", &address]);
    assert_eq!(daemon.status().daemon.pid, daemon.pid());
    folders.logged("cannot serve metrics");
    let log = folders.log();
    let said = log.lines().find(|line| line.contains("cannot serve metrics"));
    assert!(said.is_some_and(|line| line.contains(&address) && line.contains("WARN")), "{log}");
}

#[test]
fn a_daemon_is_ready_when_all_of_the_last_one_are_back() {
    let folders = Folders::new();
    let (daemon, address) = start(&folders, &TURNS);
    assert_eq!(get(address, "/readyz"), (200, "ok\n".to_owned()));
    let (first, first_token) = daemon.register("first", None);
    let (_, second_token) = daemon.register("second", None);
    let mut holder = Process::wanting_the_lock(&folders, &first_token);
    holds(&daemon, first);
    let waiter = wanting_client(&daemon, &second_token);
    written(&folders, 2);
    daemon.kill();

    let (daemon, address) = start(&folders, &TURNS);
    let (status, words) = get(address, "/readyz");
    assert_eq!((status, words.contains("2 processes")), (503, true), "{words}");
    assert_eq!(get(address, "/healthz").0, 200);
    shows(address, &["gpushare_ready 0", "gpushare_recovering_processes 2"]);
    let mut back = daemon.return_as(Returning { waiting: true, ..returning(&waiter, None) });
    holder.kill();
    back.enter();
    eventually("the daemon to be ready", || (get(address, "/readyz").0 == 200).then_some(()));
    shows(address, &["gpushare_ready 1", "gpushare_recovering_processes 0"]);
}

#[test]
fn other_paths_and_methods_are_refused() {
    let folders = Folders::new();
    let (_daemon, address) = start(&folders, &[]);
    let (status, words) = get(address, "/");
    assert_eq!((status, words.contains("/metrics")), (404, true));
    let posted = exchange(address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
    let head = exchange(address, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
}

#[test]
fn a_user_s_own_daemon_serves_no_metrics_unasked() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    assert_eq!(daemon.status().daemon.pid, daemon.pid());
    assert!(daemon.terminate().success());
    assert!(!folders.log().contains("metrics"), "{}", folders.log());
}
