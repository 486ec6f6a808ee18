//! `hold`: allocating, freeing, and asking the driver about memory.

use clap::Subcommand;
use gpushare_proto::Bytes;
use serde_json::json;

use super::command::On;
use super::desk::{Answer, Desk, done};
use crate::driver::layouts::IpcHandle;
use crate::memory::{Buffer, Door};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum MemoryCommand {
    /// Allocate a buffer
    Alloc {
        name: String,
        bytes: Bytes,
        #[arg(long, value_enum, default_value_t)]
        door: Door,
    },
    /// Free a buffer
    Free { buffer: String },
    /// Free an address, whatever it is
    FreeAddress { address: u64 },
    /// Free a buffer in the order of a stream
    FreeAsync {
        buffer: String,
        #[command(flatten)]
        stream: On,
    },
    /// Destroy the program's own pool; the next buffer by `--door pool` is of a new one
    DestroyPool,
    /// Give back what graphs keep for their next launch
    TrimGraphs,
    /// Free and total memory
    MemInfo,
    /// Total memory of the device
    TotalMem,
    /// Attribute of the device, by its number in the driver's headers
    DeviceAttribute { number: i32 },
    /// Attributes of a buffer's address, OFFSET bytes in
    Attributes {
        buffer: String,
        #[arg(default_value = "0")]
        offset: Bytes,
    },
    /// Number of the memory at a buffer's address, which no other memory of the program ever has
    BufferId { buffer: String },
    /// Address range around a buffer's address, OFFSET bytes in
    Range {
        buffer: String,
        #[arg(default_value = "0")]
        offset: Bytes,
    },
    /// A handle of the physical memory of a buffer
    Retain { buffer: String },
    /// A handle by which another process can open a buffer
    Ipc { buffer: String },
    /// Open a buffer of another process by its handle
    Import { name: String, handle: IpcHandle, bytes: Bytes },
    /// Close a buffer of another process
    CloseImport { buffer: String },
    /// Bring managed memory to the device, or send it to the host
    Prefetch {
        buffer: String,
        #[arg(long)]
        to_host: bool,
    },
    /// Where managed memory prefers to be
    Preferred { buffer: String },
    /// Name, UUID, memory and driver of the device
    Facts,
    /// Destroy everything in the primary context
    Reset,
    /// Release the primary context
    Release,
}

impl Desk {
    pub(super) fn memory(&self, command: &MemoryCommand) -> Answer {
        let gpu = self.gpu()?;
        match command {
            MemoryCommand::Alloc { name, bytes, door } => {
                let buffer = gpu.allocate(*bytes, *door)?;
                self.buffers.put(name, buffer);
                Ok(json!(buffer))
            }
            MemoryCommand::Free { buffer } => {
                gpu.free(self.buffers.get(buffer)?)?;
                self.buffers.take(buffer)?;
                done()
            }
            MemoryCommand::DestroyPool => {
                gpu.destroy_pool()?;
                done()
            }
            MemoryCommand::FreeAsync { buffer, stream } => {
                gpu.free_async(self.buffers.get(buffer)?, self.stream(stream)?)?;
                self.buffers.take(buffer)?;
                done()
            }
            MemoryCommand::TrimGraphs => {
                gpu.trim_graphs()?;
                done()
            }
            MemoryCommand::FreeAddress { address } => {
                gpu.free(Buffer { address: *address, bytes: Bytes::ZERO, door: Door::Mem })?;
                done()
            }
            MemoryCommand::MemInfo => {
                let (free, total) = gpu.memory_info()?;
                Ok(json!({ "free_bytes": free, "total_bytes": total }))
            }
            MemoryCommand::TotalMem => Ok(json!({ "total_bytes": gpu.device.total_memory()? })),
            MemoryCommand::DeviceAttribute { number } => {
                Ok(json!({ "value": gpu.device.attribute(*number)? }))
            }
            MemoryCommand::Attributes { buffer, offset } => {
                Ok(json!(gpu.pointer_facts(self.buffers.get(buffer)?.address + offset.0)?))
            }
            MemoryCommand::BufferId { buffer } => {
                Ok(json!({ "number": gpu.buffer_id(self.buffers.get(buffer)?.address)? }))
            }
            MemoryCommand::Range { buffer, offset } => {
                let (base, bytes) = gpu.address_range(self.buffers.get(buffer)?.address + offset.0)?;
                Ok(json!({ "address": base, "bytes": bytes }))
            }
            MemoryCommand::Retain { buffer } => {
                gpu.retain_handle(self.buffers.get(buffer)?.address)?;
                done()
            }
            MemoryCommand::Ipc { buffer } => {
                let handle = gpu.ipc_handle(self.buffers.get(buffer)?)?;
                Ok(json!({ "handle": handle.to_string() }))
            }
            MemoryCommand::Import { name, handle, bytes } => {
                let buffer = gpu.open(*handle, *bytes)?;
                self.buffers.put(name, buffer);
                Ok(json!(buffer))
            }
            MemoryCommand::CloseImport { buffer } => {
                gpu.close(self.buffers.get(buffer)?)?;
                self.buffers.take(buffer)?;
                done()
            }
            MemoryCommand::Prefetch { buffer, to_host } => {
                gpu.prefetch(self.buffers.get(buffer)?, *to_host)?;
                done()
            }
            MemoryCommand::Preferred { buffer } => {
                Ok(json!({ "device": gpu.preferred_location(self.buffers.get(buffer)?)? }))
            }
            MemoryCommand::Facts => Ok(json!(gpu.device.facts()?)),
            MemoryCommand::Reset => {
                gpu.reset()?;
                done()
            }
            MemoryCommand::Release => {
                gpu.release()?;
                done()
            }
        }
    }
}
