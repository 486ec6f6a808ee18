//! Headless Chromium, driven by the DevTools protocol over two pipes: pages are opened, asked and pictured.
//!
//! ```text
//!   command: {"id":7,"method":…}\0 ─▶ descriptor 3 ┐
//!                                                  ├ chromium
//!   answer, event: {"id":7,…}\0    ◀─ descriptor 4 ┘
//! ```

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use base64::Engine as _;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::tools;

/// Program, and Debian's package of it.
const PROGRAM: &str = "chromium-headless-shell";
/// Moves the pipes to the descriptors that Chromium expects, and becomes Chromium.
const MOVE: &str = r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null"#;
/// Longest wait for something on a page.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks at a page.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest wait for the browser's own end.
const CLOSING: Duration = Duration::from_secs(10);

/// A running browser. It ends on drop, with all its processes.
#[derive(Debug)]
pub(crate) struct Chromium {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    last: u64,
    /// Errors and refusals that pages reported.
    complaints: Vec<String>,
}

/// Appearance of a page: size in CSS pixels, and colours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Pixels of the picture for each CSS pixel.
    pub(crate) scale: f64,
    pub(crate) dark: bool,
}

/// A page of the browser, by the protocol's number of the session with it.
#[derive(Clone, Debug)]
pub(crate) struct Tab(String);

impl Chromium {
    /// Starts the browser with a profile in `folder`. Installs the browser if it is missing.
    pub(crate) fn start(folder: &Path) -> anyhow::Result<Self> {
        tools::need(PROGRAM, PROGRAM)?;
        let mut command = Command::new("sh");
        command.args(["-c", MOVE, "sh", PROGRAM, "--headless", "--remote-debugging-pipe"]);
        // Root has no sandbox, and the browser opens only our own page.
        command.args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]);
        command.arg(format!("--user-data-dir={}", folder.join("chromium").display()));
        command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.process_group(0);
        let mut child = command.spawn().context("cannot start the browser")?;
        let commands = child.stdin.take().context("the browser has no pipe")?;
        let answers = BufReader::new(child.stdout.take().context("the browser has no pipe")?);
        Ok(Self { child, commands, answers, last: 0, complaints: Vec::new() })
    }

    /// Opens a page in a window of its own, with this appearance.
    pub(crate) fn open(&mut self, url: &str, look: Look) -> anyhow::Result<Tab> {
        let made = self.ask(None, "Target.createTarget", &json!({"url": "about:blank"}))?;
        let attached = json!({"targetId": made["targetId"], "flatten": true});
        let attached = self.ask(None, "Target.attachToTarget", &attached)?;
        let tab = Tab(attached["sessionId"].as_str().context("no session")?.to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            self.on(&tab, &format!("{domain}.enable"), &json!({}))?;
        }
        self.show(&tab, look)?;
        let went = self.on(&tab, "Page.navigate", &json!({"url": url}))?;
        ensure!(went.get("errorText").is_none(), "cannot open {url}: {went}");
        Ok(tab)
    }

    /// Gives a page another appearance.
    pub(crate) fn show(&mut self, tab: &Tab, look: Look) -> anyhow::Result<()> {
        let Look { width, height, scale, dark } = look;
        let size = json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": false});
        self.on(tab, "Emulation.setDeviceMetricsOverride", &size)?;
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.on(tab, "Emulation.setEmulatedMedia", &media).map(drop)
    }

    /// Returns the value of a JavaScript expression.
    pub(crate) fn value(&mut self, tab: &Tab, expression: &str) -> anyhow::Result<Value> {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.on(tab, "Runtime.evaluate", &asked)?;
        ensure!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        Ok(answer["result"]["value"].take())
    }

    /// Waits until a JavaScript expression is true. An exception means not yet: the page may be loading.
    pub(crate) fn until(&mut self, tab: &Tab, expression: &str) -> anyhow::Result<()> {
        self.until_within(tab, expression, PATIENCE)
    }

    /// Waits for at most `patience` until a JavaScript expression is true.
    pub(crate) fn until_within(
        &mut self,
        tab: &Tab,
        expression: &str,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let value = self.value(tab, expression);
            if matches!(&value, Ok(Value::Bool(true))) {
                return Ok(());
            }
            if begun.elapsed() > patience {
                let text = self.value(tab, "document.body.innerText")?;
                bail!("waited in vain for {expression}: {value:?} in {text}; {:?}", self.complaints);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Presses and releases a key that makes no text, like `Tab`.
    pub(crate) fn press(&mut self, tab: &Tab, key: &str, code: u32) -> anyhow::Result<()> {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.on(tab, "Input.dispatchKeyEvent", &event)?;
        }
        Ok(())
    }

    /// Types a text into the field that has the focus.
    pub(crate) fn write(&mut self, tab: &Tab, text: &str) -> anyhow::Result<()> {
        self.on(tab, "Input.insertText", &json!({"text": text})).map(drop)
    }

    /// Returns a picture of the window as PNG.
    pub(crate) fn picture(&mut self, tab: &Tab) -> anyhow::Result<Vec<u8>> {
        let answer = self.on(tab, "Page.captureScreenshot", &json!({"format": "png"}))?;
        let text = answer["data"].as_str().context("no picture")?;
        Ok(base64::engine::general_purpose::STANDARD.decode(text)?)
    }

    /// Returns the errors and refusals that pages have reported so far, and forgets them.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    fn on(&mut self, Tab(session): &Tab, method: &str, params: &Value) -> anyhow::Result<Value> {
        self.ask(Some(session), method, params)
    }

    fn ask(&mut self, session: Option<&str>, method: &str, params: &Value) -> anyhow::Result<Value> {
        self.send(session, method, params)?;
        loop {
            let mut text = Vec::new();
            self.answers.read_until(0, &mut text)?;
            ensure!(text.pop() == Some(0), "the browser has ended");
            let mut message: Value = serde_json::from_slice(&text)?;
            if message["id"] == self.last {
                ensure!(message.get("error").is_none(), "{method}: {message}");
                return Ok(message["result"].take());
            }
            self.hear(&message);
        }
    }

    /// Sends a command with the next number, and does not wait for its answer.
    fn send(&mut self, session: Option<&str>, method: &str, params: &Value) -> io::Result<()> {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes())?;
        self.commands.flush()
    }

    /// Kills the browser and the processes that it started.
    fn kill(&self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Notes what a page complains about.
    fn hear(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(params["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.complaints.push(params["entry"]["text"].to_string());
            }
            _ => {}
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // A browser that closes waits for its own processes, which would write into the profile while it is removed.
        let _ = self.send(None, "Browser.close", &json!({}));
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > CLOSING {
                self.kill();
            }
            thread::sleep(PAUSE);
        }
    }
}
