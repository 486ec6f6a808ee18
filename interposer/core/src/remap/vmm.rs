//! Virtual memory management of a card: the driver's calls that move a chunk, one at a time.
//!
//! State machines hand out a [`Call`] and take its [`Answer`], so they never wait for the driver. [`perform`]
//! stands between them and the driver, for which tests put a model in its place.

use gpushare_proto::Bytes;

use crate::driver::types::{
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUdeviceptr, CUmemHandle, CUresult,
};

/// Range of device addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First address.
    pub address: CUdeviceptr,
    /// Number of bytes.
    pub size: Bytes,
}

impl Span {
    /// Returns the first address behind the range.
    pub const fn end(self) -> CUdeviceptr {
        self.address.saturating_add(self.size.0)
    }
}

/// Kind of physical memory under an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Memory of the card.
    Device,
    /// Memory of the host that kernels reach over the bus (`CU_MEM_LOCATION_TYPE_HOST_NUMA`).
    Host,
}

/// Direction of a copy, seen from the address that the application knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the address to registered host memory.
    Out,
    /// From registered host memory to the address.
    In,
}

/// Address of registered host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostAddress(pub u64);

/// One step of a chunk's way, which the driver is asked to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Creates physical memory (`cuMemCreate`).
    Create(Tier),
    /// Maps physical memory at the chunk's address (`cuMemMap`).
    Map(CUmemHandle),
    /// Lets the card and its enabled peers use the mapping (`cuMemSetAccess`).
    SetAccess,
    /// Removes the mapping, after which the address is a hole (`cuMemUnmap`).
    Unmap,
    /// Gives physical memory back (`cuMemRelease`).
    Release(CUmemHandle),
    /// Computes a digest of the bytes at the chunk's address.
    Digest,
    /// Begins a copy. Its end is reported later.
    Copy(Direction, HostAddress),
}

/// Answer to a [`Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The call succeeded and returned nothing. A copy has begun.
    Done,
    /// Physical memory was created.
    Created(CUmemHandle),
    /// Digest of the chunk's bytes.
    Digest(u128),
    /// The call failed and changed nothing.
    Failed(VmmError),
}

impl Answer {
    /// Returns the answer for one of several ranges, whose digests were computed together.
    pub fn of_digest(digests: &Result<Vec<u128>, VmmError>, number: usize) -> Self {
        let lacking = VmmError::Refused(CUDA_ERROR_UNKNOWN);
        match digests {
            Ok(digests) => digests
                .get(number)
                .map_or(Self::Failed(lacking), |digest| Self::Digest(*digest)),
            Err(error) => Self::Failed(*error),
        }
    }
}

/// Error of a driver call on a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmmError {
    /// Neither the card nor the host has memory for the call.
    #[error("the driver has no memory left for it")]
    OutOfMemory,
    /// The context has a sticky error, so its memory can be neither read nor written.
    #[error("the context failed with error {0}; its memory is lost")]
    ContextLost(CUresult),
    /// The driver refused the call for another reason.
    #[error("the driver refused it with error {0}")]
    Refused(CUresult),
}

/// Results after which a context answers every later call with the same error:
/// `CUDA_ERROR_ECC_UNCORRECTABLE`, `CUDA_ERROR_NVLINK_UNCORRECTABLE`, `CUDA_ERROR_CONTAINED`,
/// `CUDA_ERROR_ILLEGAL_ADDRESS`, `CUDA_ERROR_LAUNCH_TIMEOUT`, `CUDA_ERROR_ASSERT`, from
/// `CUDA_ERROR_HARDWARE_STACK_ERROR` to `CUDA_ERROR_LAUNCH_FAILED`, `CUDA_ERROR_TENSOR_MEMORY_LEAK`,
/// `CUDA_ERROR_MPS_CLIENT_TERMINATED` and `CUDA_ERROR_EXTERNAL_DEVICE`.
const STICKY: [CUresult; 15] = [214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 808, 911];

impl VmmError {
    /// Error of a copy or of earlier work, as its event tells. `CUDA_ERROR_UNKNOWN` leaves no way to go on
    /// there.
    pub fn of_work(result: CUresult) -> Self {
        match result {
            CUDA_ERROR_UNKNOWN => Self::ContextLost(result),
            other => other.into(),
        }
    }

    /// Returns the driver's result.
    pub const fn result(self) -> CUresult {
        match self {
            Self::OutOfMemory => CUDA_ERROR_OUT_OF_MEMORY,
            Self::ContextLost(result) | Self::Refused(result) => result,
        }
    }
}

impl From<CUresult> for VmmError {
    fn from(result: CUresult) -> Self {
        match result {
            CUDA_ERROR_OUT_OF_MEMORY => Self::OutOfMemory,
            sticky if STICKY.contains(&sticky) => Self::ContextLost(sticky),
            other => Self::Refused(other),
        }
    }
}

/// Most digests that are computed together.
pub const MOST_DIGESTS: usize = 8;

/// Driver calls on one card. No method waits for work of the application.
pub trait Vmm {
    /// Creates physical memory for a range of addresses and returns its handle.
    ///
    /// # Errors
    /// Error of the driver; nothing was created.
    fn create(&self, tier: Tier, span: Span) -> Result<CUmemHandle, VmmError>;
    /// Maps all of a handle's memory at a range of the same size.
    ///
    /// # Errors
    /// Error of the driver; the range stays a hole.
    fn map(&self, span: Span, handle: CUmemHandle) -> Result<(), VmmError>;
    /// Lets the card and each peer that was enabled by now use a mapped range.
    ///
    /// # Errors
    /// Error of the driver; the mapping stays unusable.
    fn set_access(&self, span: Span) -> Result<(), VmmError>;
    /// Removes the mapping of a range.
    ///
    /// # Errors
    /// Error of the driver; the range stays mapped.
    fn unmap(&self, span: Span) -> Result<(), VmmError>;
    /// Gives physical memory back, which is mapped nowhere.
    ///
    /// # Errors
    /// Error of the driver; the handle stays valid.
    fn release(&self, handle: CUmemHandle) -> Result<(), VmmError>;
    /// Returns digests of the bytes of mapped ranges, at most [`MOST_DIGESTS`].
    ///
    /// # Errors
    /// Error of the driver, for any of them.
    fn digests(&self, spans: &[Span]) -> Result<Vec<u128>, VmmError>;
    /// Begins a copy between a mapped range and registered host memory, in the stream of its direction.
    ///
    /// # Errors
    /// Error of the driver; no copy began.
    fn copy(&self, direction: Direction, span: Span, host: HostAddress) -> Result<(), VmmError>;
}

/// Makes one driver call for the chunk at `span`.
pub fn perform(call: Call, span: Span, vmm: &impl Vmm) -> Answer {
    let done = |result: Result<(), VmmError>| result.map(|()| Answer::Done);
    let answer = match call {
        Call::Create(tier) => vmm.create(tier, span).map(Answer::Created),
        Call::Map(handle) => done(vmm.map(span, handle)),
        Call::SetAccess => done(vmm.set_access(span)),
        Call::Unmap => done(vmm.unmap(span)),
        Call::Release(handle) => done(vmm.release(handle)),
        Call::Digest => Ok(Answer::of_digest(&vmm.digests(&[span]), 0)),
        Call::Copy(direction, host) => done(vmm.copy(direction, span, host)),
    };
    answer.unwrap_or_else(Answer::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_known_by_what_can_still_be_done_after_it() {
        assert_eq!(VmmError::from(2), VmmError::OutOfMemory);
        assert_eq!(VmmError::from(700), VmmError::ContextLost(700));
        assert_eq!(VmmError::from(1), VmmError::Refused(1));
        // A refused mapping may succeed later; a copy with this error never does.
        assert_eq!(VmmError::from(999), VmmError::Refused(999));
        assert_eq!(VmmError::of_work(999), VmmError::ContextLost(999));
        assert_eq!(VmmError::of_work(201), VmmError::Refused(201));
    }
}
