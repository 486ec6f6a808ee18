//! `hold`: memory that the program creates by handle and maps itself.

use std::sync::{MutexGuard, PoisonError};

use clap::Subcommand;
use gpushare_proto::Bytes;
use serde_json::json;

use super::desk::{Answer, Desk, Failure, done};
use crate::segments::Segment;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum SegmentCommand {
    /// Create COUNT handles of BYTES each, and map them one behind the other: a buffer of the same name
    Segment { name: String, bytes: Bytes, count: usize },
    /// Create COUNT handles of BYTES each, and reserve addresses
    MakeSegment { name: String, bytes: Bytes, count: usize },
    /// Map all handles of a segment
    MapSegment { segment: String },
    /// Give the device access to all of a segment again
    AllowSegment { segment: String },
    /// Map the first handle of a segment at a second address: a segment of this name
    MapAgain { segment: String, name: String },
    /// Unmap COUNT handles of a segment from the first one on, or all
    UnmapSegment {
        segment: String,
        #[arg(default_value_t = 0)]
        first: usize,
        count: Option<usize>,
    },
    /// Release the handles of a segment
    ReleaseSegment { segment: String },
    /// Give the addresses of a segment back
    FreeSegment { segment: String },
    /// Unmap a segment and release its handles at the exit of the program
    EndSegmentAtExit { segment: String },
    /// Export the first handle of a segment, or by another kind of handle
    ExportSegment {
        segment: String,
        #[arg(default_value_t = 1)]
        kind: i32,
    },
    /// As what the first handle of a segment was created
    SegmentProperties { segment: String },
}

impl Desk {
    /// Names of the segments that end at the exit of the program.
    pub(super) fn ending(&self) -> MutexGuard<'_, Vec<String>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unmaps a segment and releases its handles.
    pub(super) fn end_segment(&self, name: &str) -> Result<(), Failure> {
        let (gpu, segment) = (self.gpu_without_context()?, self.segments.get(name)?);
        gpu.unmap_segment(&segment, 0, segment.handles.len())?;
        gpu.release_segment(&segment)?;
        Ok(())
    }

    pub(super) fn segments(&self, command: &SegmentCommand) -> Answer {
        let gpu = self.gpu()?;
        match command {
            SegmentCommand::Segment { name, bytes, count } => {
                let segment = gpu.make_segment(*bytes, *count)?;
                self.segments.put(name, segment.clone());
                gpu.map_segment(&segment)?;
                self.buffers.put(name, segment.buffer());
                return Ok(json!({ "address": segment.address }));
            }
            SegmentCommand::MakeSegment { name, bytes, count } => {
                let segment = gpu.make_segment(*bytes, *count)?;
                self.buffers.put(name, segment.buffer());
                self.segments.put(name, segment);
            }
            SegmentCommand::MapSegment { segment } => gpu.map_segment(&self.segments.get(segment)?)?,
            SegmentCommand::AllowSegment { segment } => gpu.allow_segment(&self.segments.get(segment)?)?,
            SegmentCommand::MapAgain { segment, name } => {
                let first = self.segments.get(segment)?;
                let address = gpu.reserve(first.piece)?;
                let handles = first.handles.into_iter().take(1).collect();
                let second = Segment { address, handles, ..first };
                gpu.map_segment(&second)?;
                self.buffers.put(name, second.buffer());
                self.segments.put(name, second);
            }
            SegmentCommand::UnmapSegment { segment, first, count } => {
                let segment = self.segments.get(segment)?;
                gpu.unmap_segment(&segment, *first, count.unwrap_or(segment.handles.len()))?;
            }
            SegmentCommand::ReleaseSegment { segment } => {
                gpu.release_segment(&self.segments.get(segment)?)?;
            }
            SegmentCommand::FreeSegment { segment } => gpu.free_segment(&self.segments.get(segment)?)?,
            SegmentCommand::EndSegmentAtExit { segment } => self.ending().push(segment.clone()),
            SegmentCommand::ExportSegment { segment, kind } => {
                gpu.export_of_segment(&self.segments.get(segment)?, 0, *kind)?;
            }
            SegmentCommand::SegmentProperties { segment } => {
                let [exports, kind, device] = gpu.properties_of_segment(&self.segments.get(segment)?, 0)?;
                return Ok(json!({ "exports": exports, "kind": kind, "device": device }));
            }
        }
        done()
    }
}
