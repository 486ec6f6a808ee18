//! Arrays: memory that a program names by a handle and not by an address.
//!
//! ```text
//! slice 0 | row 0 | row 1 | ... |   slice 1 | row 0 | ...      rows one after the other, nothing between them
//! ```
//!
//! A real array is laid out for textures. Nobody can see that from outside, and nothing here reads
//! textures: the card keeps a plain allocation, and copies know where a row of it is.

use simgpu_card::ids::ContextId;

use crate::codes::{Answer, Code};
use crate::handles::{Handle, Tag};
use crate::state::State;

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) width: usize,
    /// 0 for an array of one dimension.
    pub(crate) height: usize,
    /// 0 for an array of two dimensions; the number of layers of a layered one.
    pub(crate) depth: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Array {
    pub(crate) descriptor: Descriptor,
    pub(crate) address: u64,
    pub(crate) context: ContextId,
    /// A level of a mipmap, which ends with that.
    pub(crate) is_level: bool,
}

/// Levels of one picture, each half as large as the one before.
#[derive(Debug, Clone)]
pub(crate) struct Mipmap {
    pub(crate) address: u64,
    pub(crate) context: ContextId,
    pub(crate) levels: Vec<u32>,
}

/// Layered, surfaces, cube maps, gather, depth: what changes how an array is read, not what it holds.
const KNOWN_FLAGS: u32 = 0x1f;
const LAYERED: u32 = 1;

impl Descriptor {
    /// Bytes of one element.
    fn element(&self) -> Answer<usize> {
        let channel = match self.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            _ => return Err(Code::INVALID_VALUE),
        };
        match self.channels {
            1 | 2 | 4 => Ok(channel * self.channels as usize),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Bytes of a row.
    pub(crate) fn pitch(&self) -> Answer<usize> {
        self.width.checked_mul(self.element()?).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn rows(&self) -> usize {
        self.height.max(1)
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> Answer<usize> {
        if self.width == 0 || self.flags > KNOWN_FLAGS {
            return Err(Code::INVALID_VALUE);
        }
        let slice = self.pitch()?.checked_mul(self.rows());
        let all = slice.and_then(|slice| slice.checked_mul(self.depth.max(1)));
        all.ok_or(Code::INVALID_VALUE)
    }

    /// The most levels that a mipmap of this can have.
    pub(crate) fn levels(&self) -> u32 {
        let layered = self.flags & LAYERED != 0;
        let largest = self.width.max(self.height).max(if layered { 0 } else { self.depth });
        usize::BITS - largest.leading_zeros()
    }

    /// Descriptor of a level of the mipmap, halved that often.
    pub(crate) fn level(self, level: u32) -> Self {
        let half = |size: usize| if size == 0 { 0 } else { (size >> level).max(1) };
        let layered = self.flags & LAYERED != 0;
        Self {
            width: half(self.width),
            height: half(self.height),
            depth: if layered { self.depth } else { half(self.depth) },
            ..self
        }
    }
}

impl State {
    pub(crate) fn array(&self, handle: Handle) -> Answer<(u32, Array)> {
        let id = Tag::Array.id(handle).ok_or(Code::INVALID_HANDLE)?;
        let found = self.arrays.get(&id).copied().ok_or(Code::INVALID_HANDLE)?;
        Ok((id, found))
    }

    pub(crate) fn mipmap(&self, handle: Handle) -> Answer<(u32, &Mipmap)> {
        let id = Tag::Mipmap.id(handle).ok_or(Code::INVALID_HANDLE)?;
        Ok((id, self.mipmaps.get(&id).ok_or(Code::INVALID_HANDLE)?))
    }
}
