//! Questions to the driver about devices, contexts and streams.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use gpushare_proto::tenant::GpuInfo;
use gpushare_proto::{Abilities, Bytes, GpuUuid};

use super::{Driver, MemoryCalls, answer};
use crate::driver::types::{
    ATTRIBUTE_BUFFER_ID, ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, ATTRIBUTE_CONTEXT,
    ATTRIBUTE_HANDLE_DESCRIPTORS, ATTRIBUTE_HOST_NODE, ATTRIBUTE_HOST_REGISTER, ATTRIBUTE_IS_MANAGED,
    ATTRIBUTE_MEMORY_TYPE, ATTRIBUTE_RANGE_SIZE, ATTRIBUTE_RANGE_START, ATTRIBUTE_VIRTUAL_MEMORY,
    CAPTURE_STATUS_ACTIVE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS, CUcontext,
    CUdevice, CUdeviceptr, CUevent, CUpointerAttribute, CUresult, CUstream, MEMORYTYPE_DEVICE,
    REFUSED_FOR_CAPTURE, STREAM_LEGACY, STREAM_PER_THREAD,
};
use crate::memory::mapped::Facts;
use crate::remap::vmm::Span;

impl Driver {
    /// Returns the context of a stream; the current context if the driver cannot say.
    pub(crate) fn context_of(&self, stream: CUstream) -> CUcontext {
        // A thread's own stream is in its current context.
        let ask = self.stream_get_ctx.filter(|_| stream.addr() > STREAM_PER_THREAD);
        // SAFETY: writes one handle; the stream is the application's.
        let known = ask.and_then(|ask| answer(null_mut(), |context| unsafe { ask(stream, context) }));
        known.unwrap_or_else(|| self.current_context())
    }

    /// Creates an event with these flags in a context that is alive.
    pub(crate) fn create_event(&self, context: CUcontext, flags: c_uint) -> Option<CUevent> {
        // SAFETY: writes one handle.
        let write = |event: &mut _| unsafe { (self.event_create)(event, flags) };
        let create = || answer(null_mut(), write);
        if self.current_context() == context {
            return create();
        }
        // SAFETY: the context is alive, as the caller promises.
        if unsafe { (self.ctx_push_current)(context) } != CUDA_SUCCESS {
            return None;
        }
        let event = create();
        let mut popped = null_mut();
        // SAFETY: pops the context that was pushed here.
        unsafe { (self.ctx_pop_current)(&raw mut popped) };
        event
    }

    /// Returns the `CUstreamCaptureStatus` of a stream other than the legacy one; `None` if the driver cannot
    /// say.
    pub(crate) fn capture_status(&self, stream: CUstream) -> Option<c_int> {
        let named = if stream.is_null() {
            without_provenance_mut(STREAM_PER_THREAD)
        } else {
            stream
        };
        let ask = self.stream_is_capturing?;
        // SAFETY: writes one integer; the stream is the application's, and alive.
        answer(CAPTURE_STATUS_ACTIVE, |status| unsafe { ask(named, status) })
    }

    /// Returns whether the legacy stream of the current context takes no work, because a blocking stream
    /// captures.
    pub(crate) fn is_legacy_unusable(&self) -> bool {
        let Some(ask) = self.stream_is_capturing else { return false };
        let mut status = 0;
        // SAFETY: writes one integer.
        let result = unsafe { ask(without_provenance_mut(STREAM_LEGACY), &raw mut status) };
        REFUSED_FOR_CAPTURE.contains(&result)
    }

    /// Returns UUID, name and memory size of a device; `None` for an invalid ordinal.
    pub(crate) fn describe(&self, device: CUdevice) -> Option<GpuInfo> {
        let (uuid, total) = (self.uuid(device)?, self.total(device)?);
        let mut name: [c_char; 128] = [0; 128];
        // SAFETY: writes within the buffer that it is given.
        if unsafe { (self.device_get_name)(name.as_mut_ptr(), 127, device) } != CUDA_SUCCESS {
            return None;
        }
        // SAFETY: the last byte of the buffer is never written.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Some(GpuInfo { uuid, name, total })
    }

    /// Returns whether an address is memory of a card that the driver never moves.
    pub(crate) fn is_device_memory(&self, address: CUdeviceptr) -> bool {
        let attribute = |attribute| self.pointer_attribute(attribute, address);
        attribute(ATTRIBUTE_MEMORY_TYPE) == Some(MEMORYTYPE_DEVICE.into())
            && attribute(ATTRIBUTE_IS_MANAGED) == Some(0)
    }

    /// Returns what the driver states about memory of a device that is mapped at `span`.
    pub(crate) fn facts(&self, span: Span, device: CUdevice) -> Facts {
        let attribute =
            |attribute, otherwise: u64| self.pointer_attribute(attribute, span.address).unwrap_or(otherwise);
        let range = Span {
            address: attribute(ATTRIBUTE_RANGE_START, span.address),
            size: Bytes(attribute(ATTRIBUTE_RANGE_SIZE, span.size.0)),
        };
        let context = attribute(ATTRIBUTE_CONTEXT, 0) as usize;
        Facts { range, device, context, buffer: attribute(ATTRIBUTE_BUFFER_ID, span.address) }
    }

    /// Returns an attribute of an address, which has at most eight bytes.
    fn pointer_attribute(&self, attribute: CUpointerAttribute, address: CUdeviceptr) -> Option<u64> {
        let mut value = 0_u64;
        let ask = self.pointer_get_attribute?;
        // SAFETY: the attributes asked for have at most eight bytes.
        let result = unsafe { ask((&raw mut value).cast(), attribute, address) };
        (result == CUDA_SUCCESS).then_some(value)
    }

    /// Returns whether the driver knows nothing of an address: it is ordinary memory of the host.
    pub(crate) fn is_pageable(&self, address: *const c_void) -> bool {
        let mut value = 0_u64;
        self.pointer_get_attribute.is_some_and(|ask| {
            // SAFETY: the attribute has four bytes.
            let result =
                unsafe { ask((&raw mut value).cast(), ATTRIBUTE_MEMORY_TYPE, address.addr() as CUdeviceptr) };
            result == CUDA_ERROR_INVALID_VALUE
        })
    }

    /// Returns what a device and the driver can do with memory. Without an answer managed memory is
    /// concurrent, as on every Linux card since Pascal that is not virtual.
    pub(crate) fn abilities(&self, device: CUdevice) -> Abilities {
        let attribute = |which| self.attribute(device, which);
        Abilities {
            concurrent_managed: attribute(ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != Some(0),
            handles: MemoryCalls::of(self).is_some() && attribute(ATTRIBUTE_VIRTUAL_MEMORY) == Some(1),
            registration: attribute(ATTRIBUTE_HOST_REGISTER) != Some(0),
        }
    }

    /// Returns whether memory of a device that is created by handle can be given to other processes by a
    /// descriptor.
    pub(crate) fn can_export(&self, device: CUdevice) -> bool {
        self.mem_export.is_some() && self.attribute(device, ATTRIBUTE_HANDLE_DESCRIPTORS) == Some(1)
    }

    /// Returns the NUMA node of the host that is next to a device, if the system has nodes and the driver says.
    pub(crate) fn host_node(&self, device: CUdevice) -> Option<c_int> {
        self.attribute(device, ATTRIBUTE_HOST_NODE).filter(|&node| node >= 0)
    }

    /// Returns an attribute of a device, if the driver says.
    fn attribute(&self, device: CUdevice, which: c_int) -> Option<c_int> {
        // SAFETY: writes one integer.
        self.device_get_attribute
            .and_then(|ask| answer(0, |value| unsafe { ask(value, which, device) }))
    }

    /// Returns the number of devices that the process sees, if the driver says.
    pub(crate) fn device_count(&self) -> Option<CUdevice> {
        // SAFETY: writes one integer.
        self.device_get_count.and_then(|ask| answer(0, |count| unsafe { ask(count) }))
    }

    /// Returns whether `cuInit` was called, as far as the driver says.
    pub(crate) fn is_initialized(&self) -> bool {
        let mut count = 0;
        // SAFETY: writes one integer.
        let result = self.device_get_count.map(|ask| unsafe { ask(&raw mut count) });
        result != Some(CUDA_ERROR_NOT_INITIALIZED)
    }

    /// Returns the size of a device's memory; `None` for an invalid ordinal.
    pub fn total(&self, device: CUdevice) -> Option<Bytes> {
        // SAFETY: writes one integer.
        let total = answer(0, |total| unsafe { (self.device_total_mem)(total, device) });
        total.map(|total| Bytes(total as u64))
    }

    /// Returns a device's UUID; `None` for an invalid ordinal. For a MIG instance the old driver function
    /// returns the UUID of the GPU, and the new one that of the instance.
    pub fn uuid(&self, device: CUdevice) -> Option<GpuUuid> {
        let ask = |get_uuid: unsafe extern "C-unwind" fn(*mut [u8; 16], CUdevice) -> CUresult| {
            // SAFETY: writes sixteen bytes.
            answer([0; 16], |uuid| unsafe { get_uuid(uuid, device) })
        };
        let gpu = ask(self.device_get_uuid);
        match self.device_get_uuid_v2.and_then(ask) {
            Some(own) if gpu.is_some_and(|gpu| gpu != own) => Some(GpuUuid::mig(own)),
            Some(own) => Some(GpuUuid::gpu(own)),
            None => gpu.map(GpuUuid::gpu),
        }
    }
}
