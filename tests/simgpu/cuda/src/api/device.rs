//! Devices and what they are.

use crate::api::prelude::*;
use crate::contexts;

/// Compute capability: that of the card whose rates were measured.
const CAPABILITY: (i32, i32) = (9, 0);

api! {
    fn cuDeviceGetCount("cuDeviceGetCount", 2000)(count: Out<i32>) {
        count.set(i32::try_from(driver()?.gpus.len()).map_err(|_| Code::UNKNOWN)?)
    }

    fn cuDeviceGet("cuDeviceGet", 2000)(device: Out<i32>, ordinal: i32) {
        driver()?.gpu(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName("cuDeviceGetName", 2000)(name: Out<c_char>, place: i32, device: i32) {
        name.set_text(&driver()?.gpu(device)?.description.name, place)
    }

    fn cuDeviceGetUuid("cuDeviceGetUuid", 9020)(uuid: Out<[u8; 16]>, device: i32) {
        // That of the GPU, also for an instance of it.
        let description = &driver()?.gpu(device)?.description;
        uuid.set(description.part_of.as_ref().map_or(description.uuid, |whole| whole.uuid))
    }

    fn cuDeviceGetUuid_v2("cuDeviceGetUuid", 11040)(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(driver()?.gpu(device)?.description.uuid)
    }

    fn cuDeviceTotalMem_v2("cuDeviceTotalMem", 3020)(bytes: Out<usize>, device: i32) {
        bytes.set(usize::try_from(driver()?.gpu(device)?.description.memory).map_err(|_| Code::UNKNOWN)?)
    }

    fn cuDeviceComputeCapability("cuDeviceComputeCapability", 2000)(major: Out<i32>, minor: Out<i32>, device: i32) {
        driver()?.gpu(device)?;
        major.set(CAPABILITY.0)?;
        minor.set(CAPABILITY.1)
    }

    fn cuDeviceGetAttribute("cuDeviceGetAttribute", 2000)(value: Out<i32>, attribute: u32, device: i32) {
        const CONCURRENT_MANAGED_ACCESS: u32 = 89;
        const READ_ONLY_HOST_REGISTER_SUPPORTED: u32 = 113;
        const HOST_NUMA_ID: u32 = 134;
        let description = &driver()?.gpu(device)?.description;
        value.set(match attribute {
            CONCURRENT_MANAGED_ACCESS => i32::from(description.concurrent_managed),
            READ_ONLY_HOST_REGISTER_SUPPORTED => i32::from(description.read_only_registration),
            HOST_NUMA_ID => i32::try_from(description.host_node).map_err(|_| Code::UNKNOWN)?,
            _ => attribute_value(attribute, i32::try_from(description.bus).unwrap_or(0))?,
        })
    }

    fn cuDeviceGetPCIBusId("cuDeviceGetPCIBusId", 4010)(text: Out<c_char>, place: i32, device: i32) {
        text.set_text(&bus_id(driver()?.gpu(device)?.description.bus), place)
    }

    fn cuDeviceGetByPCIBusId("cuDeviceGetByPCIBusId", 4010)(device: Out<i32>, text: Text) {
        let text = text.get()?.to_lowercase();
        let found = driver()?.gpus.iter().position(|gpu| bus_id(gpu.description.bus).ends_with(&text));
        device.set(found.and_then(|found| i32::try_from(found).ok()).ok_or(Code::INVALID_DEVICE)?)
    }

    fn cuDeviceCanAccessPeer("cuDeviceCanAccessPeer", 4000)(can: Out<i32>, device: i32, peer: i32) {
        driver()?.gpu(device)?;
        driver()?.gpu(peer)?;
        can.set(i32::from(device != peer))
    }

    fn cuDeviceGetP2PAttribute("cuDeviceGetP2PAttribute", 8000)(
        value: Out<i32>, attribute: u32, device: i32, peer: i32,
    ) {
        driver()?.gpu(device)?;
        driver()?.gpu(peer)?;
        if device == peer {
            return Err(Code::INVALID_DEVICE);
        }
        value.set(match attribute {
            1 => 0,     // rank of the link: all are alike
            2..=4 => 1, // access, atomics, arrays
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    fn cuDevicePrimaryCtxRetain("cuDevicePrimaryCtxRetain", 7000)(context: Out<Handle>, device: i32) {
        context.set(Tag::Context.handle(contexts::retain_primary(device)?.0))
    }

    fn cuDevicePrimaryCtxRelease("cuDevicePrimaryCtxRelease", 7000)
        = cuDevicePrimaryCtxRelease_v2("cuDevicePrimaryCtxRelease", 11000)(device: i32) {
        contexts::release_primary(device, false)
    }

    fn cuDevicePrimaryCtxReset("cuDevicePrimaryCtxReset", 7000)
        = cuDevicePrimaryCtxReset_v2("cuDevicePrimaryCtxReset", 11000)(device: i32) {
        contexts::release_primary(device, true)
    }

    fn cuDevicePrimaryCtxSetFlags("cuDevicePrimaryCtxSetFlags", 7000)
        = cuDevicePrimaryCtxSetFlags_v2("cuDevicePrimaryCtxSetFlags", 11000)(device: i32, flags: u32) {
        set_primary_flags(device, flags)
    }

    fn cuDevicePrimaryCtxGetState("cuDevicePrimaryCtxGetState", 7000)(
        device: i32, flags: Out<u32>, active: Out<i32>,
    ) {
        driver()?.gpu(device)?;
        let primary = driver()?.state().primaries[usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)?];
        flags.set(primary.flags)?;
        active.set(i32::from(primary.context.is_some()))
    }
}

fn set_primary_flags(device: i32, flags: u32) -> Answer {
    driver()?.gpu(device)?;
    let mut state = driver()?.state();
    let primary = &mut state.primaries[usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)?];
    primary.flags = flags;
    Ok(())
}

fn bus_id(bus: u32) -> String {
    format!("0000:{bus:02x}:00.0")
}

/// The attributes that programs decide by. Those of features that are not simulated are 0, so that nobody
/// tries.
fn attribute_value(attribute: u32, bus: i32) -> Answer<i32> {
    const LAST: u32 = 147;
    Ok(match attribute {
        1..=3 => 1024,     // threads of a block, block size x and y
        4 => 64,           // block size z
        5 => i32::MAX,     // grid size x
        6 | 7 => 65_535,   // grid size y and z
        8 => 48 << 10,     // shared memory of a block
        9 => 64 << 10,     // constant memory
        10 => 32,          // warp
        11 => i32::MAX,    // pitch
        12 | 82 => 65_536, // registers of a block, of a multiprocessor
        13 => 1_980_000,   // clock, kHz
        14 | 30 => 512,    // alignment of textures and surfaces
        15 => 1,           // overlap of copies and kernels
        16 => 132,         // multiprocessors
        19 | 31 | 41 => 1, // mapped host memory, concurrent kernels, unified addresses
        32 => 1,           // ECC
        33 => bus,         // PCI bus
        36 => 2_619_000,   // memory clock, kHz
        37 => 5_120,       // bus width, bits
        38 => 50 << 20,    // L2
        39 => 2048,        // threads of a multiprocessor
        40 => 2,           // copy engines
        51 => 32,          // alignment of pitches
        75 => CAPABILITY.0,
        76 => CAPABILITY.1,
        78..=80 => 1,    // stream priorities, L1 caches
        81 => 228 << 10, // shared memory of a multiprocessor
        83 | 90 => 1,    // managed memory, preemption
        92..=95 => 1,    // stream memory operations, cooperative launch
        97 => 227 << 10, // shared memory of a block, opted in
        99 => 1,         // registered host memory
        102 | 103 => 1,  // mappings of physical memory, their export by descriptor
        106 => 32,       // blocks of a multiprocessor
        111 => 1 << 10,  // reserved shared memory
        115 => 1,        // memory pools
        122 | 123 => 1,  // stream memory operations of today
        141 => 1,        // physical memory of the host's nodes
        0 | LAST.. => return Err(Code::INVALID_VALUE),
        _ => 0,
    })
}
