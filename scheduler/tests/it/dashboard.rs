//! The page for browsers: who may see and change what, and peers that misbehave.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_proto::{Bytes, Token};
use serde_json::{Value, json};

use crate::deaths::holds;
use crate::harness::{Daemon, Folders, eventually};
use crate::processes::{Process, TURNS, wanting};

/// Longest time that a test waits for an answer.
const LONG: Duration = Duration::from_secs(30);

/// Asks for a link, as `gpushare-ctl dashboard` does.
fn link(daemon: &Daemon, read_only: bool) -> Result<(SocketAddr, Token), Failure> {
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Dashboard { read_only });
    match administrator.hear() {
        AdminReply::Dashboard { address, link, .. } => Ok((address.parse().unwrap(), link)),
        AdminReply::Error(failure) => Err(failure),
        other => panic!("no link: {other:?}"),
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Request of a raw client: method and path, more headers, and a body.
struct Asked<'a>(&'a str, &'a [&'a str], &'a str);

/// Sends a request without waiting for the answer. The host is the page's own unless a header names one.
fn send(address: SocketAddr, Asked(line, headers, body): &Asked<'_>) -> TcpStream {
    let mut stream = connect(address);
    let mut request = format!("{line} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|header| header.starts_with("Host:")) {
        request += &format!("Host: {address}\r\n");
    }
    headers.iter().for_each(|header| request += &format!("{header}\r\n"));
    stream.write_all(format!("{request}\r\n{body}").as_bytes()).unwrap();
    stream
}

/// Returns status, head and body of an answer.
fn ask(address: SocketAddr, asked: &Asked<'_>) -> (u16, String, String) {
    let mut answer = String::new();
    send(address, asked).read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

fn bearer(secret: &str) -> String {
    format!("Authorization: Bearer {secret}")
}

/// Exchanges a link for a key.
fn key(address: SocketAddr, link: &Token) -> String {
    let (status, _, body) = ask(address, &Asked("POST /api/key", &[&bearer(&link.to_hex())], ""));
    assert_eq!(status, 200, "{body}");
    let view: Value = serde_json::from_str(&body).unwrap();
    view["key"].as_str().unwrap().to_owned()
}

/// Sends a change, and returns the status with the answer.
fn change(address: SocketAddr, key: &str, change: &Value) -> (u16, String) {
    let headers = [&*bearer(key), "Content-Type: application/json"];
    let (status, _, body) = ask(address, &Asked("POST /api/change", &headers, &change.to_string()));
    (status, body)
}

/// Page as a browser knows it after some messages.
#[derive(Debug, Default)]
struct Page {
    cards: BTreeMap<u64, Value>,
    sessions: BTreeMap<u64, Value>,
    runs: BTreeMap<u64, Vec<Value>>,
}

impl Page {
    fn take(&mut self, message: &Value) {
        let list = |key: &str| message[key].as_array().cloned().unwrap_or_default();
        let number = |value: &Value| value.as_u64().unwrap();
        self.cards
            .extend(list("cards").into_iter().map(|row| (number(&row["gpu"]), row)));
        self.sessions
            .extend(list("sessions").into_iter().map(|row| (number(&row["id"]), row)));
        for run in list("runs") {
            let runs = self.runs.entry(number(&run[0])).or_default();
            match message["kind"].as_str() {
                Some("full") => runs.extend(run[1].as_array().unwrap().iter().cloned()),
                _ => runs.push(run[1].clone()),
            }
        }
    }
}

/// Stream of events, of which the chunks of HTTP are skipped.
struct Events {
    lines: BufReader<TcpStream>,
    page: Page,
}

impl Events {
    fn of(address: SocketAddr, headers: &[&str]) -> Self {
        let stream = send(address, &Asked("GET /api/events", headers, ""));
        let mut events = Self { lines: BufReader::new(stream), page: Page::default() };
        assert!(events.line().unwrap().starts_with("HTTP/1.1 200"));
        events
    }

    /// Returns the next line; none at the end of the stream.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).unwrap_or(0);
        (read > 0).then_some(line)
    }

    /// Returns the next message; none at the end of the stream.
    fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(data) = self.line()?.strip_prefix("data: ") {
                let message = serde_json::from_str(data).unwrap();
                self.page.take(&message);
                return Some(message);
            }
        }
    }

    /// Waits until `found` finds something in the page.
    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&Page) -> Option<T>) -> T {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(found) = found(&self.page) {
                return found;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}: {:?}", self.page);
            self.next().expect("the stream ended");
        }
    }

    /// Waits until `is_it` holds for a session's row.
    fn session(&mut self, id: u64, is_it: impl Fn(&Value) -> bool) -> Value {
        self.until("a row", |page| page.sessions.get(&id).filter(|row| is_it(row)).cloned())
    }
}

#[test]
fn the_page_shows_who_holds_who_waits_and_what_changes() {
    let folders = Folders::new();
    let daemon = folders.start(&TURNS);
    let (address, link) = link(&daemon, false).unwrap();
    assert!(address.ip().is_loopback());
    let (first, first_token) = daemon.register("first", Some(Bytes::mib(256)));
    let (second, second_token) = daemon.register("second", None);
    let mut holder = Process::wanting_the_lock(&folders, &first_token);
    holds(&daemon, first);

    let mut events = Events::of(address, &[&bearer(&key(address, &link))]);
    assert_eq!(events.next(), Some(json!({"role": "admin"})));
    let full = events.next().unwrap();
    assert_eq!(full["kind"], "full");
    let card = &full["cards"][0];
    assert_eq!((card["name"].as_str(), card["mode"].as_str()), (Some("test card"), Some("serialized")));
    assert_eq!((&card["total"], &card["capacity"]), (&json!(1 << 30), &json!(128 << 20)));
    let row = &full["sessions"][0];
    assert_eq!((row["name"].as_str(), row["state"].as_str()), (Some("first"), Some("holding")));
    let memory = json!([[0, 100 << 20, 256 << 20]]);
    assert_eq!((&row["weight"], &row["priority"]), (&json!(100), &json!("normal")));

    // Figures that the full message lacks, and what happens later, come as changes.
    if row["memory"] != memory {
        events.session(first.0, |row| row["memory"] == memory);
    }
    let mut waiter = daemon.join(Some(&second_token));
    wanting(&mut waiter);
    let row = events.session(second.0, |row| row["state"] == "waiting");
    assert_eq!(row["name"], "second");
    let run = events.until("a tick of waiting", |page| {
        page.runs
            .get(&second.0)?
            .iter()
            .find(|run| run[1] == json!([0, 0, 100]))
            .cloned()
    });
    assert!(run[0].as_u64().unwrap() >= full["tick"].as_u64().unwrap());
    holder.kill();
    waiter.enter();
    let row = events.session(second.0, |row| row["state"] == "holding");
    assert_eq!((&row["turns"], &row["wait"]["count"]), (&json!(1), &json!(1)));
    events.until("the second handoff", |page| (page.cards[&0]["handoffs"] == 2).then_some(()));
    drop(waiter);
    drop(daemon);
    assert!(std::iter::from_fn(|| events.next()).all(|message| message["kind"] == "more"));
}

#[test]
fn without_a_key_there_are_numbers_and_no_names() {
    let folders = Folders::new();
    let daemon = folders.start(&[&TURNS[..], &["--dashboard", "127.0.0.1:0"]].concat());
    let (address, link) = link(&daemon, true).unwrap();
    let (secret, token) = daemon.register("secret-project", None);
    let mut client = daemon.join(Some(&token));
    wanting(&mut client);
    client.enter();
    let mut guest = Events::of(address, &[]);
    assert_eq!(guest.next(), Some(json!({"role": "guest"})));
    guest.session(secret.0, |row| row["state"] == "holding");
    assert!(!format!("{:?}", guest.page).contains("secret-project"), "{:?}", guest.page);
    // A change shows no name either.
    let (again, _) = daemon.register("secret-project-2", None);
    let row = guest.session(again.0, |_| true);
    assert_eq!(row.get("name"), None);
    // The same page with a key shows them.
    let mut viewer = Events::of(address, &[&bearer(&key(address, &link))]);
    assert_eq!(viewer.next(), Some(json!({"role": "viewer"})));
    assert!(viewer.next().unwrap().to_string().contains("secret-project-2"));
}

#[test]
fn an_administrator_changes_settings_and_the_audit_log_has_them() {
    let folders = Folders::new();
    let daemon = folders.start(&["--mode", "serialized"]);
    let (address, link) = link(&daemon, false).unwrap();
    let key = key(address, &link);
    let (session, token) = daemon.register("train", None);
    let mut client = daemon.join(Some(&token));
    client.attach();
    let mut events = Events::of(address, &[&bearer(&key)]);
    let done = |asked: Value| change(address, &key, &asked);
    let changed = |old: &str, new: &str| (200, format!("{{\"old\":\"{old}\",\"new\":\"{new}\"}}"));
    assert_eq!(done(json!({"set": "weight", "session": session, "value": 200})), changed("100", "200"));
    assert_eq!(
        done(json!({"set": "priority", "session": session, "value": "low"})),
        changed("normal", "low")
    );
    assert_eq!(done(json!({"set": "pause", "session": session})), changed("running", "paused"));
    assert_eq!(done(json!({"set": "quantum", "gpu": 0, "value": "100ms"})), changed("computed", "100ms"));
    assert_eq!(done(json!({"set": "mode", "gpu": 0, "value": "auto"})).0, 200);
    let row = events.session(session.0, |row| row["phase"] == "paused");
    assert_eq!((&row["weight"], &row["priority"]), (&json!(200), &json!("low")));
    assert_eq!(done(json!({"set": "resume", "session": session})), changed("paused", "running"));
    // Wrong ones change nothing and say why.
    for (asked, status, why) in [
        (json!({"set": "weight", "session": session, "value": 0}), 400, "weight is 1 to 10000, not 0"),
        (json!({"set": "weight", "session": 999, "value": 5}), 404, "999"),
        (json!({"set": "quantum", "gpu": 0, "value": "1us"}), 400, "quantum is 1ms to 3600s"),
        (json!({"set": "mode", "gpu": 7, "value": "auto"}), 404, "there is no gpu7"),
        (json!({"set": "capacity", "gpu": 0, "value": "1GiB"}), 400, "unknown variant"),
    ] {
        let (said, sentence) = done(asked);
        assert_eq!((said, sentence.contains(why)), (status, true), "{sentence}");
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
    }
    let audit = folders.path("run").join("audit.log");
    let log = eventually("the audit log", || {
        let log = std::fs::read_to_string(&audit).unwrap_or_default();
        log.contains("gpu.set_mode").then_some(log)
    });
    let pid = format!("\"pid\":{}", std::process::id());
    for operation in
        ["dashboard.link", "session.set_weight", "session.set_priority", "session.pause", "gpu.set_quantum"]
    {
        let line = log.lines().find(|line| line.contains(operation));
        assert!(line.is_some_and(|line| line.contains(&pid)), "{operation} of {pid} in {log}");
    }
    for secret in [link.to_hex(), key.clone()] {
        assert!(!log.contains(&secret) && !folders.log().contains(&secret), "a secret is in a log");
    }
}

#[test]
fn a_wrong_key_a_used_link_and_a_viewers_key_change_nothing() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (session, _) = daemon.register("train", None);
    let asked = json!({"set": "pause", "session": session});
    let (address, first) = link(&daemon, true).unwrap();
    let viewer = key(address, &first);
    let wrong = Token([7; 32]).to_hex();
    let refused = |secret: &str, status: u16, why: &str| {
        let (said, sentence) = change(address, secret, &asked);
        assert_eq!((said, sentence.contains(why)), (status, true), "{sentence}");
    };
    refused(&viewer, 403, "without --read-only");
    refused(&wrong, 401, "run `gpushare-ctl dashboard`");
    refused("x", 401, "run `gpushare-ctl dashboard`");
    refused(&first.to_hex(), 401, "run `gpushare-ctl dashboard`");
    let json_body = ["Content-Type: application/json"];
    assert_eq!(ask(address, &Asked("POST /api/change", &json_body, &asked.to_string())).0, 401);
    for secret in [first.to_hex(), wrong.clone(), viewer.clone()] {
        let (status, _, sentence) = ask(address, &Asked("POST /api/key", &[&bearer(&secret)], ""));
        assert_eq!((status, sentence.contains("older than two minutes")), (401, true), "{sentence}");
    }
    assert_eq!(ask(address, &Asked("GET /api/events", &[&bearer(&wrong)], "")).0, 401);
    // A key ends when its owner says so.
    let (_, second) = link(&daemon, false).unwrap();
    let admin = key(address, &second);
    let mut events = Events::of(address, &[&bearer(&admin)]);
    assert_eq!(events.next(), Some(json!({"role": "admin"})));
    assert_eq!(ask(address, &Asked("POST /api/end", &[&bearer(&admin)], "")).0, 200);
    refused(&admin, 401, "missing, wrong or over");
    let ended = Instant::now();
    while events.next().is_some() {}
    assert!(ended.elapsed() < LONG, "the stream goes on without its key");
    assert_eq!(format!("{:?}", daemon.status().sessions[0].state.standing), "Good");
    folders.logged("a browser showed a key of the page that is wrong or over");
}

#[test]
fn other_sites_and_other_names_are_refused() {
    let folders = Folders::new();
    let flags = ["--config", &*folders.path("config.toml").display().to_string()];
    std::fs::write(folders.path("config.toml"), "[dashboard]\nhosts = ['gpu1.example.org']\n").unwrap();
    let daemon = folders.start(&flags);
    let (session, _) = daemon.register("train", None);
    let (address, link) = link(&daemon, false).unwrap();
    let authorization = bearer(&key(address, &link));
    let asked = json!({"set": "pause", "session": session}).to_string();
    let change = |more: &str| {
        let headers = [&*authorization, "Content-Type: application/json", more];
        ask(address, &Asked("POST /api/change", &headers, &asked))
    };
    for (header, why) in [
        ("Origin: http://evil.example", "http://evil.example asks"),
        ("Origin: null", "null asks"),
        ("Origin: http://127.0.0.1:1", "http://127.0.0.1:1 asks"),
        ("Sec-Fetch-Site: cross-site", "(cross-site) asks"),
        ("Sec-Fetch-Site: same-site", "(same-site) asks"),
        ("Host: evil.example", "not served as `evil.example`"),
    ] {
        let (status, _, sentence) = change(header);
        assert_eq!((status, sentence.contains(why)), (403, true), "{header}: {sentence}");
    }
    assert_eq!(format!("{:?}", daemon.status().sessions[0].state.standing), "Good");
    for path in ["GET /", "GET /app.js", "GET /api/events"] {
        assert_eq!(ask(address, &Asked(path, &["Host: rebound.example"], "")).0, 403, "{path}");
    }
    for host in ["Host: gpu1.example.org", "Host: localhost:1", "Host: [::1]:80"] {
        assert_eq!(ask(address, &Asked("GET /", &[host], "")).0, 200, "{host}");
    }
    let own = format!("Origin: http://{address}");
    assert_eq!(change(&own).0, 200);
}

#[test]
fn every_answer_forbids_other_content_frames_and_caches() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (address, _) = link(&daemon, false).unwrap();
    for (line, status, kind) in [
        ("GET /", 200, "text/html"),
        ("HEAD /", 200, "text/html"),
        ("GET /app.js", 200, "text/javascript"),
        ("GET /style.css", 200, "text/css"),
        ("GET /icon.svg", 200, "image/svg+xml"),
        ("GET /../etc/passwd", 404, "text/plain"),
        ("POST /", 405, "text/plain"),
        ("GET /api/key", 405, "text/plain"),
        ("DELETE /api/events", 405, "text/plain"),
    ] {
        let (said, head, body) = ask(address, &Asked(line, &[], ""));
        assert_eq!(said, status, "{line}: {body}");
        assert!(head.contains(&format!("content-type: {kind}")), "{line}: {head}");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "frame-ancestors 'none'",
            "x-frame-options: deny",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(header), "{line} without {header}: {head}");
        }
        assert!(!head.contains("access-control") && !head.contains("set-cookie"), "{head}");
    }
    // The page needs nothing from elsewhere.
    for path in ["GET /", "GET /app.js", "GET /style.css"] {
        let (_, _, body) = ask(address, &Asked(path, &[], ""));
        assert!(!body.contains("//cdn") && !body.contains("https://") && !body.contains("@import"), "{path}");
        assert!(!body.contains("innerHTML") && !body.contains("onclick="), "{path}");
    }
}

#[test]
fn long_requests_and_foreign_kinds_are_refused() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (address, link) = link(&daemon, false).unwrap();
    let authorization = bearer(&key(address, &link));
    let long = " ".repeat(5000) + "{}";
    let as_json = [&*authorization, "Content-Type: application/json"];
    let (status, _, sentence) = ask(address, &Asked("POST /api/change", &as_json, &long));
    assert_eq!((status, sentence.contains("at most 4096 bytes")), (413, true), "{sentence}");
    let as_form = [&*authorization, "Content-Type: application/x-www-form-urlencoded"];
    assert_eq!(ask(address, &Asked("POST /api/change", &as_form, "{}")).0, 415);
    let header = format!("X-Long: {}", "x".repeat(20_000));
    let mut stream = send(address, &Asked("GET /", &[&header], ""));
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(ask(address, &Asked("GET /", &[], "")).0, 200);
}

#[test]
fn many_connections_and_viewers_that_do_not_read_keep_nobody_out() {
    let folders = Folders::new();
    let daemon = folders.start(&["--dashboard", "127.0.0.1:0"]);
    let (address, link) = link(&daemon, false).unwrap();
    let mut admin = Events::of(address, &[&bearer(&key(address, &link))]);
    assert_eq!(admin.next(), Some(json!({"role": "admin"})));
    let _silent: Vec<_> = (0..100).map(|_| connect(address)).collect();
    // Guests that never read. Those beyond the places for guests are told so.
    let _guests: Vec<_> = (0..16).map(|_| send(address, &Asked("GET /api/events", &[], ""))).collect();
    eventually("the places for guests are taken", || {
        let mut line = String::new();
        let answer = send(address, &Asked("GET /api/events", &[], ""));
        BufReader::new(answer).read_line(&mut line).ok()?;
        line.contains("503").then_some(())
    });
    let (status, _, sentence) = ask(address, &Asked("GET /api/events", &[], ""));
    assert_eq!((status, &*sentence), (503, "too many browsers show this page; close one of them\n"));
    // More than fit: the page and the administrator's stream stay.
    let _more: Vec<_> = (0..200).map(|_| connect(address)).collect();
    assert_eq!(ask(address, &Asked("GET /", &[], "")).0, 200);
    let (session, token) = daemon.register("late", None);
    let _client = daemon.join(Some(&token));
    let row = admin.session(session.0, |row| row["processes"] == 1);
    assert_eq!(row["name"], "late");
}

#[test]
fn a_taken_port_and_a_page_that_is_off_are_told_in_one_sentence() {
    let folders = Folders::new();
    // An address of its own, so that no other test can be given the port once it is free.
    let taken = TcpListener::bind("127.0.0.2:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let daemon = folders.start(&["--dashboard", &address]);
    assert_eq!(daemon.status().daemon.pid, daemon.pid());
    folders.logged(&format!("cannot serve the page at {address}"));
    let failure = link(&daemon, false).unwrap_err();
    assert_eq!(failure.code, FailureCode::Unavailable);
    assert!(failure.message.contains(&address), "{}", failure.message);
    assert!(failure.message.contains("choose another address by --dashboard"), "{}", failure.message);
    drop(taken);
    // A program that another test starts has a copy of the socket until it runs.
    let link_of = eventually("the page can be had, since its port is free", || link(&daemon, false).ok());
    assert_eq!(link_of.0.to_string(), address);
    drop(daemon);
    let daemon = folders.start(&["--dashboard", "off"]);
    let failure = link(&daemon, false).unwrap_err();
    assert!(failure.message.contains("the page is off"), "{}", failure.message);
}

#[test]
fn nothing_is_served_until_an_administrator_asks() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    assert_eq!(daemon.status().daemon.pid, daemon.pid());
    assert!(!folders.log().contains("the page for browsers is at"), "{}", folders.log());
    let (address, _) = link(&daemon, false).unwrap();
    folders.logged(&format!("the page for browsers is at http://{address}/"));
    assert_eq!(link(&daemon, false).unwrap().0, address, "the same page");
    let (status, _, sentence) = ask(address, &Asked("GET /api/events", &[], ""));
    assert_eq!((status, &*sentence), (401, "this page needs a link; run `gpushare-ctl dashboard`\n"));
    assert!(daemon.terminate().success());
    assert!(TcpStream::connect(address).is_err());
}
