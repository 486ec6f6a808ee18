//! `hold`: contexts besides the primary one, and parts of a card.

use clap::Subcommand;
use gpushare_proto::Bytes;
use serde_json::json;

use super::desk::{self, Answer, Desk, done};
use crate::contexts::Held;
use crate::memory::Door;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum ContextCommand {
    /// Keep the primary context current on this thread: each later command of it makes its own calls only
    Stay,
    /// Make the primary context current
    Enter,
    /// Whether the primary context is current
    Current,
    /// Make a context
    Make { context: String },
    /// Make a part of the card, and its context
    Green { context: String },
    /// Become one more user of a context
    Attach { context: String },
    /// Be one user less; the last one ends it
    Detach { context: String },
    /// Be one user less of the primary context
    DetachPrimary,
    /// Destroy a context or a part
    End { context: String },
    /// Allocate a buffer in a context
    AllocIn { context: String, buffer: String, bytes: Bytes },
}

impl Desk {
    pub(super) fn in_contexts(&self, command: &ContextCommand) -> Answer {
        let gpu = self.gpu()?;
        match command {
            ContextCommand::Stay => desk::stay(),
            ContextCommand::Enter => gpu.enter()?,
            ContextCommand::Current => return Ok(json!({ "matches": gpu.is_current()? })),
            ContextCommand::Make { context } => self.contexts.put(context, gpu.make_context()?),
            ContextCommand::Green { context } => self.contexts.put(context, gpu.make_part()?),
            ContextCommand::Attach { context } => gpu.attach(self.contexts.get(context)?)?,
            ContextCommand::Detach { context } => gpu.detach(self.contexts.get(context)?)?,
            ContextCommand::DetachPrimary => gpu.detach(gpu.primary())?,
            ContextCommand::End { context } => {
                let held: Held = self.contexts.get(context)?;
                gpu.end(held)?;
                self.contexts.take(context)?;
            }
            ContextCommand::AllocIn { context, buffer, bytes } => {
                let held = self.contexts.get(context)?;
                let made = gpu.inside(held, || gpu.allocate(*bytes, Door::Mem))?;
                self.buffers.put(buffer, made);
                return Ok(json!(made));
            }
        }
        done()
    }
}
