//! A pseudo-terminal with a program in it: what the program shows, and the keys that a test presses.
//!
//! ```text
//!   test ── keys ──▶ master │ slave ──▶ program in a POSIX session of its own
//!        ◀─ screen ◀─ vt100 ◀─┘
//! ```

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context as _;
use gpushare_tests::{Process, World, patience};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// A terminal and the program in it, which is killed on drop.
pub(crate) struct Terminal {
    process: Process,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Starts a program in a terminal of this size. `setsid` keeps it apart from the tests' own terminal.
    pub(crate) fn start(
        world: &World,
        name: &str,
        command: &Command,
        (columns, lines): (u16, u16),
    ) -> anyhow::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size)?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = open(ptsname(&master, Vec::new())?, flags, Mode::empty())?;
        let mut apart = world.program(Path::new("/usr/bin/setsid"));
        apart
            .arg(command.get_program())
            .args(command.get_args())
            .env("TERM", "xterm-256color");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => apart.env(name, value),
                None => apart.env_remove(name),
            };
        }
        apart.stdin(Stdio::from(slave.try_clone()?)).stdout(Stdio::from(slave));
        let process = Process::start(apart, world.folder(), name)?;
        let keyboard = File::from(master);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(lines, columns, 0)));
        let (mut shown, written) = (keyboard.try_clone()?, Arc::clone(&screen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The last program in the terminal ends the reads.
            while let Ok(read @ 1..) = shown.read(&mut bytes) {
                written.lock().unwrap_or_else(PoisonError::into_inner).process(&bytes[..read]);
            }
        });
        Ok(Self { process, keyboard, screen })
    }

    /// Presses keys, as a terminal sends them.
    pub(crate) fn press(&mut self, keys: &str) -> anyhow::Result<()> {
        self.keyboard.write_all(keys.as_bytes()).context("the terminal takes no keys")
    }

    /// Gives the terminal another size, and tells the program.
    pub(crate) fn resize(&self, (columns, lines): (u16, u16)) -> anyhow::Result<()> {
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        self.screen().screen_mut().set_size(lines, columns);
        tcsetwinsize(&self.keyboard, size)?;
        self.process.signal(Signal::WINCH)
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        self.process.signal(signal)
    }

    /// Text of the screen, a line each.
    pub(crate) fn text(&self) -> String {
        self.screen().screen().contents()
    }

    /// Returns whether a character on the screen has a colour.
    pub(crate) fn has_colours(&self) -> bool {
        let parser = self.screen();
        let (lines, columns) = parser.screen().size();
        let mut places = (0..lines).flat_map(|line| (0..columns).map(move |column| (line, column)));
        let colour = |(line, column)| parser.screen().cell(line, column).map(vt100::Cell::fgcolor);
        places.any(|place| colour(place).is_some_and(|colour| colour != vt100::Color::Default))
    }

    /// Waits until `is_so` holds for the text of the screen.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> anyhow::Result<String> {
        let seen = patience::until(what, || Ok(Some(self.text()).filter(|text| is_so(text))));
        seen.with_context(|| format!("the terminal shows:\n{}\n{}", self.text(), self.process.stderr()))
    }

    /// Waits for the end of the program. Returns its exit status, and what it said on standard error.
    pub(crate) fn ended(&mut self) -> anyhow::Result<(ExitStatus, String)> {
        let status = self.process.wait()?;
        Ok((status, self.process.stderr()))
    }

    /// Returns whether the terminal is as a shell needs it: the usual screen with a cursor, lines and echo.
    pub(crate) fn is_usual(&self) -> anyhow::Result<bool> {
        let modes = tcgetattr(&self.keyboard)?.local_modes;
        let parser = self.screen();
        let screen = parser.screen();
        let shows = !screen.alternate_screen() && !screen.hide_cursor();
        Ok(shows && modes.contains(LocalModes::ICANON | LocalModes::ECHO))
    }

    fn screen(&self) -> std::sync::MutexGuard<'_, vt100::Parser> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
