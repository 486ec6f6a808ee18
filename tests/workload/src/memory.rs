//! Device memory through each of the driver's doors, and what the driver says about it.

use std::alloc::{self, Layout};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use gpushare_proto::Bytes;
use serde::Serialize;

use crate::driver::layouts::{
    AccessDescription, AllocationNode, HandleProperties, IpcHandle, PoolProperties, Solid,
};
use crate::driver::{DevicePtr, Handle};
use crate::error::CudaError;
use crate::gpu::{DEFAULT_STREAM, Gpu};
use crate::kernels::Kernel;

/// How memory is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Door {
    /// `cuMemAlloc_v2`.
    #[default]
    Mem,
    /// `cuMemAllocPitch_v2`, rows of 1 KiB.
    Pitch,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemAllocAsync`, on the default stream.
    Async,
    /// `cuMemAllocFromPoolAsync`, from a pool of the program's own.
    Pool,
    /// A graph of one node that allocates, launched once.
    Graph,
    /// `cuMemCreate`, mapped at an address of its own.
    Handle,
    /// `cuArray3DCreate_v2`, rows of 16 KiB; its handle stands for an address.
    Array,
    /// `cuMipmappedArrayCreate` of one level, as `Array`.
    Mipmap,
    /// `cuMemHostAlloc`: memory of the host.
    Host,
    /// `cuMemHostRegister` of memory of the program, which it keeps until its end.
    Registered,
    /// `cuMemCreate` on the host's first NUMA node, not mapped; its handle stands for an address.
    HostHandle,
}

/// Device memory. Nobody frees it but [`Gpu::free`]: a program that ends or dies is part of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Buffer {
    /// Its first byte.
    pub address: DevicePtr,
    /// Its length as asked for.
    pub bytes: Bytes,
    /// How it was asked for.
    pub door: Door,
}

impl Buffer {
    /// Whole 32-bit words in it.
    pub fn words(self) -> u64 {
        self.bytes.0 / 4
    }

    fn len(self) -> usize {
        usize::try_from(self.words() * 4).unwrap_or(usize::MAX)
    }
}

/// Attributes of an address, as the driver reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PointerFacts {
    /// `CU_MEMORYTYPE_*`: 1 host, 2 device.
    pub memory_type: u32,
    /// Whether it calls the memory managed.
    pub managed: bool,
    /// The device.
    pub ordinal: c_int,
    /// Start of its range.
    pub range_start: DevicePtr,
    /// Length of its range.
    pub range_bytes: u64,
}

/// The program's own pool.
static POOL: Mutex<Option<Handle>> = Mutex::new(None);

const ATTACH_GLOBAL: c_uint = 1;
const PITCH_ROW: usize = 1024;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA`.
const HOST_NUMA: c_int = 3;
/// Device that stands for the host where memory moves (`CU_DEVICE_CPU`).
const HOST: c_int = -1;

const ATTRIBUTE_MEMORY_TYPE: c_int = 2;
const ATTRIBUTE_BUFFER_ID: c_int = 7;
const ATTRIBUTE_IS_MANAGED: c_int = 8;
const ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
const ATTRIBUTE_RANGE_START: c_int = 11;
const ATTRIBUTE_RANGE_SIZE: c_int = 12;

/// Whole pages of the host, which are never freed; zero if there are none.
fn pages(len: usize) -> DevicePtr {
    const PAGE: usize = 4096;
    let shape = Layout::from_size_align(len.max(1).next_multiple_of(PAGE), PAGE);
    // SAFETY: the length is not zero.
    shape.map_or(0, |shape| unsafe { alloc::alloc_zeroed(shape) }.expose_provenance() as DevicePtr)
}

/// Every method fails with what the driver answered.
impl Gpu {
    /// Allocates at least `bytes`.
    pub fn allocate(&self, bytes: Bytes, door: Door) -> Result<Buffer, CudaError> {
        let len = usize::try_from(bytes.0).unwrap_or(usize::MAX);
        let driver = &self.device.driver;
        let mut address = 0;
        let mut pitch = 0;
        // SAFETY: the results are writable.
        unsafe {
            match door {
                Door::Mem => driver.mem_alloc(&raw mut address, len)?,
                Door::Async => driver.mem_alloc_async(&raw mut address, len, DEFAULT_STREAM)?,
                Door::Pool => {
                    let pool = self.own_pool()?;
                    driver.mem_alloc_from_pool_async(&raw mut address, len, pool, DEFAULT_STREAM)?;
                }
                Door::Graph => address = self.allocate_in_graph(len)?,
                Door::Handle => address = self.allocate_by_handle(len)?,
                Door::Array | Door::Mipmap => {
                    let (mut array, shape) = (0, Solid::new(len));
                    match door {
                        Door::Array => driver.array_3d_create(&raw mut array, &raw const shape)?,
                        _ => driver.mipmapped_array_create(&raw mut array, &raw const shape, 1)?,
                    }
                    address = array as DevicePtr;
                }
                Door::Managed => driver.mem_alloc_managed(&raw mut address, len, ATTACH_GLOBAL)?,
                Door::Host => driver.mem_host_alloc(&raw mut address, len, 0)?,
                Door::Registered => {
                    address = pages(len);
                    driver.mem_host_register(address, len, 0)?;
                }
                Door::HostHandle => {
                    let location = [HOST_NUMA, 0];
                    let properties = HandleProperties { kind: 1, handle_types: 0, location, rest: [0; 2] };
                    driver.mem_create(&raw mut address, len, &raw const properties, 0)?;
                }
                Door::Pitch => driver.mem_alloc_pitch(
                    &raw mut address,
                    &raw mut pitch,
                    PITCH_ROW,
                    len.div_ceil(PITCH_ROW),
                    4,
                )?,
            }
        }
        Ok(Buffer { address, bytes, door })
    }

    /// The program's own pool, made when it is first asked for, and again after it was destroyed.
    fn own_pool(&self) -> Result<Handle, CudaError> {
        let mut made = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = *made {
            return Ok(pool);
        }
        let properties = PoolProperties::new(self.device.ordinal);
        let mut pool = 0;
        // SAFETY: both live for the call.
        unsafe {
            self.device.driver.mem_pool_create(&raw mut pool, &raw const properties)?;
        };
        *made = Some(pool);
        Ok(pool)
    }

    /// Destroys the program's own pool, if there is one.
    pub fn destroy_pool(&self) -> Result<(), CudaError> {
        match POOL.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // SAFETY: the handle is one that the driver gave, and it is used no more.
            Some(pool) => unsafe { self.device.driver.mem_pool_destroy(pool) },
            None => Ok(()),
        }
    }

    /// Memory of a graph that was launched and is not needed any more.
    fn allocate_in_graph(&self, bytes: usize) -> Result<DevicePtr, CudaError> {
        let driver = &self.device.driver;
        let (mut graph, mut node, mut exec) = (0, 0, 0);
        let mut parameters = AllocationNode::new(self.device.ordinal, bytes);
        // SAFETY: all results are writable, and the handles are those that the driver gave.
        unsafe {
            driver.graph_create(&raw mut graph, 0)?;
            let made = driver.graph_add_mem_alloc_node(
                &raw mut node,
                graph,
                std::ptr::null(),
                0,
                &raw mut parameters,
            );
            if made.is_err() {
                driver.graph_destroy(graph)?;
            }
            made?;
            driver.graph_instantiate(&raw mut exec, graph, 0)?;
            driver.graph_launch(exec, DEFAULT_STREAM)?;
            driver.stream_synchronize(DEFAULT_STREAM)?;
        }
        Ok(parameters.address)
    }

    /// Memory of a handle that only its mapping keeps.
    fn allocate_by_handle(&self, bytes: usize) -> Result<DevicePtr, CudaError> {
        let driver = &self.device.driver;
        let location = [1, self.device.ordinal];
        let properties = HandleProperties { kind: 1, handle_types: 0, location, rest: [0; 2] };
        let access = AccessDescription { location, flags: 3 };
        let (mut handle, mut address) = (0, 0);
        // SAFETY: all results are writable, and the handles and addresses are those that the driver gave.
        unsafe {
            driver.mem_create(&raw mut handle, bytes, &raw const properties, 0)?;
            driver.mem_address_reserve(&raw mut address, bytes, 0, 0, 0)?;
            driver.mem_map(address, bytes, 0, handle, 0)?;
            driver.mem_set_access(address, bytes, &raw const access, 1)?;
            driver.mem_release(handle)?;
        }
        Ok(address)
    }

    /// Whether the driver gives a handle of the memory at an address, which is released at once.
    pub fn retain_handle(&self, address: DevicePtr) -> Result<(), CudaError> {
        let mut handle = 0;
        // SAFETY: the result is writable; an address is a number to the driver.
        unsafe {
            self.device
                .driver
                .mem_retain_handle(&raw mut handle, std::ptr::without_provenance(address as usize))?;
            self.device.driver.mem_release(handle)
        }
    }

    /// Asks for a handle by which another process can open a buffer.
    pub fn ipc_handle(&self, buffer: Buffer) -> Result<IpcHandle, CudaError> {
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: the result is writable.
        unsafe { self.device.driver.ipc_get_mem_handle(&raw mut handle, buffer.address)? };
        Ok(handle)
    }

    /// Opens a buffer of another process.
    pub fn open(&self, handle: IpcHandle, bytes: Bytes) -> Result<Buffer, CudaError> {
        const LAZY_PEER_ACCESS: c_uint = 1;
        let mut address = 0;
        // SAFETY: the result is writable.
        unsafe {
            self.device
                .driver
                .ipc_open_mem_handle(&raw mut address, handle, LAZY_PEER_ACCESS)?;
        };
        Ok(Buffer { address, bytes, door: Door::Mem })
    }

    /// Closes a buffer of another process.
    pub fn close(&self, buffer: Buffer) -> Result<(), CudaError> {
        // SAFETY: an address is a number to the driver, which refuses unknown ones.
        unsafe { self.device.driver.ipc_close_mem_handle(buffer.address) }
    }

    /// Asks of managed memory where it prefers to be.
    pub fn preferred_location(&self, buffer: Buffer) -> Result<c_int, CudaError> {
        const PREFERRED_LOCATION: c_int = 2;
        let mut place = 0;
        // SAFETY: the result is four bytes wide.
        unsafe {
            self.device.driver.mem_range_attribute(
                (&raw mut place).cast(),
                4,
                PREFERRED_LOCATION,
                buffer.address,
                buffer.len(),
            )?;
        }
        Ok(place)
    }

    /// Brings managed memory to the device or sends it to the host, in the order of the default stream.
    pub fn prefetch(&self, buffer: Buffer, to_host: bool) -> Result<(), CudaError> {
        let driver = &self.device.driver;
        let device = if to_host { HOST } else { self.device.ordinal };
        // SAFETY: the range is that of a living allocation of ours.
        unsafe { driver.mem_prefetch_async(buffer.address, buffer.len(), device, DEFAULT_STREAM) }
    }

    /// Gives back what graphs keep for their next launch.
    pub fn trim_graphs(&self) -> Result<(), CudaError> {
        // SAFETY: takes a number.
        unsafe { self.device.driver.device_graph_mem_trim(self.device.ordinal) }
    }

    /// Frees a buffer.
    pub fn free(&self, buffer: Buffer) -> Result<(), CudaError> {
        let driver = &self.device.driver;
        // SAFETY: addresses and handles are numbers to the driver, which refuses unknown ones.
        unsafe {
            match buffer.door {
                Door::Handle => {
                    driver.mem_unmap(buffer.address, buffer.len())?;
                    driver.mem_address_free(buffer.address, buffer.len())
                }
                Door::Array => driver.array_destroy(buffer.address as Handle),
                Door::Mipmap => driver.mipmapped_array_destroy(buffer.address as Handle),
                Door::Host => driver.mem_free_host(buffer.address),
                Door::Registered => driver.mem_host_unregister(buffer.address),
                Door::HostHandle => driver.mem_release(buffer.address),
                _ => driver.mem_free(buffer.address),
            }
        }
    }

    /// Frees a buffer in the order of a stream.
    pub fn free_async(&self, buffer: Buffer, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: an address is a number to the driver, which refuses unknown ones.
        unsafe { self.device.driver.mem_free_async(buffer.address, stream) }
    }

    /// The free and the total memory that the driver tells this process.
    pub fn memory_info(&self) -> Result<(Bytes, Bytes), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both results are writable.
        unsafe { self.device.driver.mem_info(&raw mut free, &raw mut total)? };
        Ok((Bytes(free as u64), Bytes(total as u64)))
    }

    /// Base and length of the allocation around an address.
    pub fn address_range(&self, address: DevicePtr) -> Result<(DevicePtr, Bytes), CudaError> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: both results are writable.
        unsafe {
            self.device.driver.mem_address_range(&raw mut base, &raw mut bytes, address)?;
        }
        Ok((base, Bytes(bytes as u64)))
    }

    /// The attributes of an address.
    pub fn pointer_facts(&self, address: DevicePtr) -> Result<PointerFacts, CudaError> {
        let attribute = |which| self.pointer_attribute(which, address);
        Ok(PointerFacts {
            memory_type: attribute(ATTRIBUTE_MEMORY_TYPE)? as u32,
            managed: attribute(ATTRIBUTE_IS_MANAGED)? as u8 != 0,
            ordinal: attribute(ATTRIBUTE_DEVICE_ORDINAL)? as c_int,
            range_start: attribute(ATTRIBUTE_RANGE_START)?,
            range_bytes: attribute(ATTRIBUTE_RANGE_SIZE)?,
        })
    }

    /// The number of the memory at an address.
    pub fn buffer_id(&self, address: DevicePtr) -> Result<u64, CudaError> {
        self.pointer_attribute(ATTRIBUTE_BUFFER_ID, address)
    }

    fn pointer_attribute(&self, which: c_int, address: DevicePtr) -> Result<u64, CudaError> {
        let mut value = 0u64;
        // SAFETY: every attribute asked for here is at most eight bytes wide.
        unsafe { self.device.driver.pointer_attribute((&raw mut value).cast(), which, address) }?;
        Ok(value)
    }

    /// Copies words to the start of a buffer and waits.
    pub fn upload(&self, to: Buffer, words: &[u32]) -> Result<(), CudaError> {
        let bytes = size_of_val(words);
        // SAFETY: the host memory is `words`, borrowed for the call; the driver checks the device side.
        unsafe { self.device.driver.memcpy_to_device(to.address, words.as_ptr().cast(), bytes) }
    }

    /// Fills `words` from the start of a buffer.
    pub fn download(&self, from: Buffer, words: &mut [u32]) -> Result<(), CudaError> {
        let bytes = size_of_val(words);
        // SAFETY: the host memory is `words`, borrowed for the call; the driver checks the device side.
        unsafe {
            self.device
                .driver
                .memcpy_to_host(words.as_mut_ptr().cast(), from.address, bytes)
        }
    }

    /// Starts a copy to a buffer. The host memory lives as long as the process.
    pub fn upload_async(
        &self,
        to: Buffer,
        words: &'static [AtomicU32],
        stream: Handle,
    ) -> Result<(), CudaError> {
        let bytes = size_of_val(words);
        // SAFETY: the host memory is never freed; the driver checks the device side.
        unsafe {
            self.device
                .driver
                .memcpy_to_device_async(to.address, words.as_ptr().cast(), bytes, stream)
        }
    }

    /// Starts a copy from a buffer. The host memory lives as long as the process.
    pub fn download_async(
        &self,
        from: Buffer,
        words: &'static [AtomicU32],
        stream: Handle,
    ) -> Result<(), CudaError> {
        let bytes = size_of_val(words);
        let to = words.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the host memory is never freed and made of atomics, so it may be written at any time.
        unsafe { self.device.driver.memcpy_to_host_async(to, from.address, bytes, stream) }
    }

    /// Copies a whole buffer to the start of another and waits.
    pub fn copy(&self, from: Buffer, to: Buffer) -> Result<(), CudaError> {
        // SAFETY: both are device addresses; the driver checks their ranges.
        unsafe { self.device.driver.memcpy_on_device(to.address, from.address, from.len()) }
    }

    /// Sets every word of a buffer, waiting for it unless a stream is named.
    pub fn set(&self, to: Buffer, value: u32, stream: Option<Handle>) -> Result<(), CudaError> {
        let words = to.len() / 4;
        // SAFETY: a device address; the driver checks its range.
        unsafe {
            match stream {
                None => self.device.driver.memset_d32(to.address, value, words),
                Some(stream) => self.device.driver.memset_d32_async(to.address, value, words, stream),
            }
        }
    }

    /// The checksum of a buffer, computed where it lies. Waits for everything before it.
    pub fn checksum(&self, buffer: Buffer) -> Result<u64, CudaError> {
        let sum = self.allocate(Bytes(8), Door::Mem)?;
        self.set(sum, 0, None)?;
        self.synchronize()?;
        let kernel = Kernel::Checksum { p: buffer.address, n: buffer.words(), out: sum.address };
        self.launch(kernel, DEFAULT_STREAM)?;
        let mut words = [0; 2];
        self.download(sum, &mut words)?;
        self.free(sum)?;
        Ok(u64::from(words[1]) << 32 | u64::from(words[0]))
    }
}
