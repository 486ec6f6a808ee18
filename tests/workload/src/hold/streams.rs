//! `hold`: streams, events, work that waits, capture and replay.

use clap::Subcommand;
use serde_json::json;

use super::command::On;
use super::desk::{Answer, Desk, done};
use crate::sharing;
use crate::streams::{CaptureMode, Latch};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum StreamCommand {
    /// Wait for a stream, or for everything
    Sync { stream: Option<String> },
    /// Make a stream
    Stream { name: String },
    /// Destroy a stream
    StreamDestroy { stream: String },
    /// Tell gpushare that a stream carries communication
    Mark { stream: String },
    /// Tell gpushare that it does no more
    Unmark { stream: String },
    /// Whether a stream is finished
    StreamQuery { stream: String },
    /// Make an event
    Event { name: String },
    /// Destroy an event
    EventDestroy { event: String },
    /// Record an event
    Record {
        event: String,
        #[command(flatten)]
        stream: On,
    },
    /// Wait for an event
    EventSync { event: String },
    /// Whether an event is over
    EventQuery { event: String },
    /// Milliseconds between two events
    Elapsed { from: String, to: String },
    /// Make a stream wait for an event
    WaitEvent {
        event: String,
        #[command(flatten)]
        stream: On,
    },
    /// Block a stream with a host function until `open`
    Latch {
        name: String,
        #[command(flatten)]
        stream: On,
    },
    /// Block a stream until the first word of a buffer is at least VALUE
    WaitValue {
        buffer: String,
        value: u32,
        #[command(flatten)]
        stream: On,
    },
    /// Store VALUE in the first word of a buffer in stream order
    WriteValue {
        buffer: String,
        value: u32,
        #[command(flatten)]
        stream: On,
    },
    /// Begin to capture a stream
    Capture {
        stream: String,
        #[arg(long, value_enum, default_value_t)]
        mode: CaptureMode,
    },
    /// End the capture of a stream as a graph
    EndCapture {
        stream: String,
        graph: String,
        /// Keep it as a template, which `instantiate` makes a graph
        #[arg(long)]
        template: bool,
    },
    /// Make a graph of a template
    Instantiate { template: String, graph: String },
    /// Change a graph to what a template is
    Update { graph: String, template: String },
    /// Launch a graph
    Replay {
        graph: String,
        #[command(flatten)]
        stream: On,
    },
    /// Destroy a graph
    GraphDestroy { graph: String },
}

impl Desk {
    pub(super) fn on_streams(&self, command: &StreamCommand) -> Answer {
        let gpu = self.gpu()?;
        match command {
            StreamCommand::Sync { stream: None } => gpu.synchronize()?,
            StreamCommand::Sync { stream: Some(stream) } => {
                gpu.synchronize_stream(self.streams.get(stream)?)?;
            }
            StreamCommand::Stream { name } => self.streams.put(name, gpu.stream()?),
            StreamCommand::StreamDestroy { stream } => gpu.destroy_stream(self.streams.take(stream)?)?,
            StreamCommand::Mark { stream } => sharing::mark_communication(self.streams.get(stream)?, true)?,
            StreamCommand::Unmark { stream } => {
                sharing::mark_communication(self.streams.get(stream)?, false)?;
            }
            StreamCommand::StreamQuery { stream } => {
                return Ok(json!({ "finished": gpu.stream_finished(self.streams.get(stream)?)? }));
            }
            StreamCommand::Event { name } => self.events.put(name, gpu.event()?),
            StreamCommand::EventDestroy { event } => gpu.destroy_event(self.events.take(event)?)?,
            StreamCommand::Record { event, stream } => {
                gpu.record(self.events.get(event)?, self.stream(stream)?)?;
            }
            StreamCommand::EventSync { event } => gpu.synchronize_event(self.events.get(event)?)?,
            StreamCommand::EventQuery { event } => {
                return Ok(json!({ "finished": gpu.event_finished(self.events.get(event)?)? }));
            }
            StreamCommand::Elapsed { from, to } => {
                let elapsed = gpu.elapsed_ms(self.events.get(from)?, self.events.get(to)?)?;
                return Ok(json!({ "elapsed_ms": elapsed }));
            }
            StreamCommand::WaitEvent { event, stream } => {
                gpu.wait_event(self.events.get(event)?, self.stream(stream)?)?;
            }
            StreamCommand::Latch { name, stream } => {
                let latch = Latch::default();
                self.latches.put(name, latch.clone());
                gpu.block_on(&latch, self.stream(stream)?)?;
            }
            StreamCommand::WaitValue { buffer, value, stream } => {
                gpu.wait_value(self.buffers.get(buffer)?.address, *value, self.stream(stream)?)?;
            }
            StreamCommand::WriteValue { buffer, value, stream } => {
                gpu.write_value(self.buffers.get(buffer)?.address, *value, self.stream(stream)?)?;
            }
            StreamCommand::Capture { stream, mode } => {
                gpu.begin_capture(self.streams.get(stream)?, *mode)?;
            }
            StreamCommand::EndCapture { stream, graph, template: true } => {
                self.templates
                    .put(graph, gpu.end_capture_as_template(self.streams.get(stream)?)?);
            }
            StreamCommand::Instantiate { template, graph } => {
                self.graphs.put(graph, gpu.instantiate(self.templates.get(template)?)?);
            }
            StreamCommand::Update { graph, template } => {
                gpu.update(self.graphs.get(graph)?, self.templates.get(template)?)?;
            }
            StreamCommand::EndCapture { stream, graph, template: false } => {
                self.graphs.put(graph, gpu.end_capture(self.streams.get(stream)?)?);
            }
            StreamCommand::Replay { graph, stream } => {
                gpu.replay(self.graphs.get(graph)?, self.stream(stream)?)?;
            }
            StreamCommand::GraphDestroy { graph } => gpu.destroy_graph(self.graphs.take(graph)?)?,
        }
        done()
    }
}
