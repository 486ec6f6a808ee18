//! Tasks of the pool: what they are for, what they do, and how they fail.

use std::fmt;

use gpushare_proto::Bytes;

use super::REGION;
use crate::driver::types::CUresult;
use crate::remap::vmm::HostAddress;

/// Step in the life of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Maps anonymous memory and touches each page.
    Touch,
    /// Registers the memory with the driver (`cuMemHostRegister`).
    Register(HostAddress),
    /// Removes the registration.
    Unregister(HostAddress),
    /// Gives the memory back to the system.
    Unmap(HostAddress),
    /// Registers a copy of this size with the driver, for reading.
    RegisterCopy(HostAddress, Bytes),
    /// Removes the registration of a copy.
    UnregisterCopy(HostAddress, Bytes),
    /// Gives a copy up.
    EndCopy(HostAddress, Bytes),
}

/// Limit of the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Memory limit of a control group of the process.
    Group,
    /// Memory of the machine.
    Machine,
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Group => "the control group of the process",
            Self::Machine => "the machine",
        })
    }
}

/// Error of a [`Task`], which has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The system has no memory for the region.
    #[error("the host has no memory for {size} more, error {errno}")]
    NoMemory {
        /// Size of the region.
        size: Bytes,
        /// Error of the system.
        errno: i32,
    },
    /// The machine or the control groups of the process have no room for the region. The kernel would kill a program.
    #[error("{limit} has room for {room}, and {size} are needed")]
    NoRoom {
        /// Size of the region.
        size: Bytes,
        /// Bytes that may still be taken.
        room: Bytes,
        /// Limit that leaves no more.
        limit: Limit,
    },
    /// The driver refused the call on registered memory.
    #[error("the driver refused registered memory with error {0}")]
    Refused(CUresult),
}

/// Host memory that is prepared for copies.
pub trait HostMemory {
    /// Maps and touches anonymous memory, and returns its address.
    ///
    /// # Errors
    /// Error of the system; nothing is mapped.
    fn touch(&self, size: Bytes) -> Result<HostAddress, HostError>;
    /// Registers memory with the driver, for copies at the speed of the bus.
    ///
    /// # Errors
    /// Error of the driver; the memory is not registered.
    fn register(&self, address: HostAddress, size: Bytes) -> Result<(), HostError>;
    /// Removes a registration. One that ended with its context is removed already.
    ///
    /// # Errors
    /// Error of the driver; the memory stays registered.
    fn unregister(&self, address: HostAddress, size: Bytes) -> Result<(), HostError>;
    /// Gives memory that is not registered back to the system.
    ///
    /// # Errors
    /// Error of the system; the memory keeps its pages.
    fn unmap(&self, address: HostAddress, size: Bytes) -> Result<(), HostError>;
    /// Registers memory with the driver from which it only reads.
    ///
    /// # Errors
    /// Error of the driver; the memory is not registered.
    fn register_to_read(&self, address: HostAddress, size: Bytes) -> Result<(), HostError>;
    /// Gives up a copy that is not registered.
    fn end_copy(&self, address: HostAddress, size: Bytes);
}

/// Performs a task, and returns the address of a region that was touched.
///
/// # Errors
/// Error of the system or the driver.
pub fn perform(task: Task, host: &impl HostMemory) -> Result<Option<HostAddress>, HostError> {
    match task {
        Task::Touch => host.touch(REGION).map(Some),
        Task::Register(address) => host.register(address, REGION).map(|()| None),
        Task::Unregister(address) => host.unregister(address, REGION).map(|()| None),
        Task::Unmap(address) => host.unmap(address, REGION).map(|()| None),
        Task::RegisterCopy(address, size) => host.register_to_read(address, size).map(|()| None),
        Task::UnregisterCopy(address, size) => host.unregister(address, size).map(|()| None),
        Task::EndCopy(address, size) => {
            host.end_copy(address, size);
            Ok(None)
        }
    }
}

/// Region or copy that a task is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryId {
    /// Region of this number.
    Region(u32),
    /// Copy of this number.
    Copy(u32),
}
