//! Frames on a Unix stream socket: a head, a payload, and perhaps one descriptor.
//!
//! ```text
//! | head length u32 | payload length u32 | descriptors u32 | head (bincode) | payload |
//! ```
//!
//! A descriptor is attached to the frame's first byte, so it is never later than the frame it belongs to.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

const HEADER: usize = 12;

/// Nobody has a reason to send more at once; more is a broken peer.
const LIMIT: usize = 1 << 30;

const READ_AT_ONCE: usize = 64 << 10;

/// A frame ready to be sent.
#[derive(Debug)]
pub struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    fd: Option<OwnedFd>,
}

impl Frame {
    /// Encodes a frame.
    pub fn new(head: &impl Serialize, payload: &[u8], fd: Option<OwnedFd>) -> io::Result<Self> {
        let mut bytes = vec![0; HEADER];
        bincode::serde::encode_into_std_write(head, &mut bytes, bincode::config::standard())
            .map_err(io::Error::other)?;
        let head_len = bytes.len() - HEADER;
        bytes.extend_from_slice(payload);
        for (at, value) in [(0, head_len), (4, payload.len()), (8, usize::from(fd.is_some()))] {
            let value = u32::try_from(value).map_err(io::Error::other)?;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        Ok(Self { bytes, sent: 0, fd })
    }

    /// Sends as much as the socket takes and answers whether that was all.
    pub fn send(&mut self, socket: impl AsFd) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let fds: Vec<_> = self.fd.iter().map(AsFd::as_fd).collect();
            if !fds.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(&fds));
            }
            let rest = [IoSlice::new(&self.bytes[self.sent..])];
            match sendmsg(&socket, &rest, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.sent += count;
                    self.fd = None;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

/// A frame that has come.
#[derive(Debug)]
pub struct Received<T> {
    /// The decoded head.
    pub head: T,
    /// The raw bytes after it.
    pub payload: Vec<u8>,
    /// The descriptor that came along.
    pub fd: Option<OwnedFd>,
}

/// Bytes and descriptors that have come and are not frames yet.
///
/// ```text
/// buffer  | taken | start .. not yet frames .. end | room |
/// ```
#[derive(Debug, Default)]
pub struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    fds: VecDeque<OwnedFd>,
}

impl Inbox {
    /// Reads once. Answers `false` at the end of the stream.
    pub fn fill(&mut self, socket: impl AsFd) -> io::Result<bool> {
        self.make_room();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let result = loop {
            let mut room = [IoSliceMut::new(&mut self.buffer[self.end..])];
            match recvmsg(&socket, &mut room, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result,
            }
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        let count = result?.bytes;
        self.end += count;
        Ok(count > 0)
    }

    /// Room for the rest of the frame under way, and for a few small ones.
    fn make_room(&mut self) {
        let wanted = READ_AT_ONCE.max(self.missing().min(LIMIT));
        if self.buffer.len() - self.end < wanted {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= std::mem::take(&mut self.start);
        }
        if self.buffer.len() - self.end < wanted {
            // Zeroed by the allocator: filling it element by element takes a millisecond in a debug build.
            let mut larger = vec![0; (self.end + wanted).next_power_of_two()];
            larger[..self.end].copy_from_slice(&self.buffer[..self.end]);
            self.buffer = larger;
        }
    }

    /// The next whole frame.
    pub fn take<T: DeserializeOwned>(&mut self) -> io::Result<Option<Received<T>>> {
        let Some((head_len, payload_len, fds)) = self.header() else {
            return Ok(None);
        };
        if head_len > LIMIT || payload_len > LIMIT {
            return Err(io::Error::other("a frame claims more than a gigabyte"));
        }
        let head_at = self.start + HEADER;
        let waiting = &self.buffer[..self.end];
        let Some(frame) = waiting.get(head_at..head_at + head_len + payload_len) else {
            return Ok(None);
        };
        let (head, payload) = frame.split_at(head_len);
        let (head, _) =
            bincode::serde::decode_from_slice(head, bincode::config::standard()).map_err(io::Error::other)?;
        let payload = payload.to_vec();
        self.start = head_at + head_len + payload_len;
        let fd = if fds > 0 { self.fds.pop_front() } else { None };
        Ok(Some(Received { head, payload, fd }))
    }

    fn header(&self) -> Option<(usize, usize, usize)> {
        let header = self.buffer[..self.end].get(self.start..self.start + HEADER)?;
        let word = |at: usize| {
            let bytes = header[at..at + 4].try_into().unwrap_or_default();
            u32::from_le_bytes(bytes) as usize
        };
        Some((word(0), word(4), word(8)))
    }

    /// How many bytes the frame under way still lacks.
    fn missing(&self) -> usize {
        let Some((head_len, payload_len, _)) = self.header() else {
            return 0;
        };
        (HEADER + head_len + payload_len).saturating_sub(self.end - self.start)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn frames_and_descriptors_arrive_in_order() {
        let (near, far) = UnixStream::pair().unwrap();
        let fd = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(Frame::new(&1u32, b"one", None).unwrap().send(&near).unwrap());
        assert!(Frame::new(&2u32, b"", Some(fd)).unwrap().send(&near).unwrap());
        let mut inbox = Inbox::default();
        let mut next = || loop {
            if let Some(frame) = inbox.take::<u32>().unwrap() {
                return (frame.head, frame.payload, frame.fd.is_some());
            }
            assert!(inbox.fill(&far).unwrap());
        };
        assert_eq!(next(), (1, b"one".to_vec(), false));
        assert_eq!(next(), (2, Vec::new(), true));
    }

    #[test]
    fn a_claimed_terabyte_is_refused_before_it_is_read() {
        let (mut near, far) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut near, &[0xff; HEADER]).unwrap();
        let mut inbox = Inbox::default();
        inbox.fill(&far).unwrap();
        assert!(inbox.take::<u32>().is_err());
    }
}
