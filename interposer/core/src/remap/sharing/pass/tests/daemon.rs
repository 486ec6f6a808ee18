//! Daemon of the tests, which answers questions about copies and tells what it has heard.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, channel, sync_channel};

use gpushare_proto::codec;
use gpushare_proto::tenant::{TenantReply, TenantRequest};
use gpushare_sys::{memory_file, socket};

use super::*;
use crate::daemon::address::Address;

/// Message that the daemon has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Hello,
    /// Question for a name, and the number of chunks.
    Copy(CopyName, u32),
    End(CopyName),
    HungUp,
}

pub(super) type Answer = (CopyAnswer, Option<OwnedFd>);

/// Daemon of the test, which lasts as long as the test's process.
pub(super) struct Daemon {
    heard: Receiver<Heard>,
    folder: tempfile::TempDir,
}

impl Daemon {
    pub(super) fn start(answer: impl FnMut(CopyName, u32) -> Answer + Send + 'static) -> Self {
        let (tell, heard) = channel();
        Self::telling(answer, move |message| _ = tell.send(message), heard)
    }

    /// Daemon that takes no message before the test has heard of the one before.
    pub(super) fn slow(answer: impl FnMut(CopyName, u32) -> Answer + Send + 'static) -> Self {
        let (tell, heard) = sync_channel(0);
        Self::telling(answer, move |message| _ = tell.send(message), heard)
    }

    /// Daemon that makes a copy for the second chunk with the same bytes.
    pub(super) fn with_copy() -> Self {
        let mut copy: Option<OwnedFd> = None;
        Self::start(move |_, chunks| match (&copy, chunks) {
            (Some(copy), _) => (CopyAnswer::Made, Some(copy.try_clone().unwrap())),
            (None, 1) => (CopyAnswer::Alone, None),
            (None, _) => {
                let file = memory_file::create("copy").unwrap();
                let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
                // SAFETY: changes the size of a file of the test's own.
                assert_eq!(unsafe { libc::ftruncate(descriptor, SIZE.0 as i64) }, 0);
                copy = Some(file.try_clone().unwrap());
                (CopyAnswer::Fill, Some(file))
            }
        })
    }

    fn telling(
        mut answer: impl FnMut(CopyName, u32) -> Answer + Send + 'static,
        tell: impl Fn(Heard) + Send + 'static,
        heard: Receiver<Heard>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                serve(&stream.unwrap(), &mut answer, &tell);
            }
        });
        Self { heard, folder }
    }

    pub(super) fn sharing(&self) -> Sharing {
        let sharing = Sharing::default();
        sharing.use_address(Address::new(vec![self.folder.path().join("socket")], None, None));
        sharing
    }

    pub(super) fn hears(&self) -> Heard {
        self.heard.recv_timeout(PATIENCE).unwrap()
    }
}

fn serve(stream: &UnixStream, answer: &mut impl FnMut(CopyName, u32) -> Answer, tell: impl Fn(Heard)) {
    let (mut buffer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        while let Some((request, length)) = codec::split::<TenantRequest>(&buffer).unwrap() {
            buffer.drain(..length);
            let (reply, file) = match request {
                TenantRequest::Hello(_) => {
                    tell(Heard::Hello);
                    (TenantReply::Ready { protocol: 1 }, None)
                }
                TenantRequest::Copy { request, name, chunks, .. } => {
                    tell(Heard::Copy(name, chunks));
                    let (answer, file) = answer(name, chunks);
                    (TenantReply::CopyAnswered { request, answer }, file)
                }
                TenantRequest::EndCopy { name, .. } => {
                    tell(Heard::End(name));
                    continue;
                }
                other => panic!("{other:?}"),
            };
            let frame = codec::encode(&reply).unwrap();
            socket::send_with_fd(stream, &frame, file.as_ref().map(std::os::fd::AsFd::as_fd)).unwrap();
        }
        match socket::recv_with_fd(stream, &mut piece) {
            Ok((length, _)) if length > 0 => buffer.extend_from_slice(&piece[..length]),
            _ => return tell(Heard::HungUp),
        }
    }
}
