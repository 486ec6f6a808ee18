//! Arrays and mipmaps: made, described, ended. Copies of them are in `copy.rs`.

use simgpu_card::wire::Kind;

use crate::api::memory;
use crate::api::prelude::*;
use crate::arrays::{Array, Descriptor, Mipmap};

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptor2d {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

api! {
    fn cuArrayCreate_v2("cuArrayCreate", 3020)(array: Out<Handle>, descriptor: In<Descriptor2d>) {
        let Descriptor2d { width, height, format, channels } = descriptor.get()?;
        create(array, Descriptor { width, height, depth: 0, format, channels, flags: 0 })
    }

    fn cuArray3DCreate_v2("cuArray3DCreate", 3020)(array: Out<Handle>, descriptor: In<Descriptor>) {
        create(array, descriptor.get()?)
    }

    fn cuArrayGetDescriptor_v2("cuArrayGetDescriptor", 3020)(descriptor: Out<Descriptor2d>, array: Handle) {
        let Descriptor { width, height, format, channels, .. } = driver()?.state().array(array)?.1.descriptor;
        descriptor.set(Descriptor2d { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2("cuArray3DGetDescriptor", 3020)(descriptor: Out<Descriptor>, array: Handle) {
        descriptor.set(driver()?.state().array(array)?.1.descriptor)
    }

    fn cuArrayDestroy("cuArrayDestroy", 2000)(array: Handle) {
        let (id, found) = driver()?.state().array(array)?;
        if found.is_level {
            return Err(Code::INVALID_HANDLE);
        }
        memory::free(found.address, &[Kind::Device])?;
        driver()?.state().arrays.remove(&id);
        Ok(())
    }

    fn cuMipmappedArrayCreate("cuMipmappedArrayCreate", 5000)(
        mipmap: Out<Handle>, descriptor: In<Descriptor>, levels: u32,
    ) {
        let descriptor = descriptor.get()?;
        if mipmap.is_null() || levels == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let levels: Vec<Descriptor> = (0..levels.min(descriptor.levels())).map(|at| descriptor.level(at)).collect();
        let bytes = levels.iter().map(Descriptor::bytes).sum::<Answer<usize>>()?;
        let context = current::context()?;
        let address = memory::allocate(bytes, Kind::Device, 0)?;
        let mut state = driver()?.state();
        let mut found = Mipmap { address, context, levels: Vec::new() };
        let mut at = address;
        for descriptor in levels {
            let id = state.fresh();
            state.arrays.insert(id, Array { descriptor, address: at, context, is_level: true });
            found.levels.push(id);
            at += descriptor.bytes()? as u64;
        }
        let id = state.fresh();
        state.mipmaps.insert(id, found);
        mipmap.set(Tag::Mipmap.handle(id))
    }

    fn cuMipmappedArrayGetLevel("cuMipmappedArrayGetLevel", 5000)(array: Out<Handle>, mipmap: Handle, level: u32) {
        let state = driver()?.state();
        let (_, found) = state.mipmap(mipmap)?;
        let level = found.levels.get(level as usize).ok_or(Code::INVALID_VALUE)?;
        array.set(Tag::Array.handle(*level))
    }

    fn cuMipmappedArrayDestroy("cuMipmappedArrayDestroy", 5000)(mipmap: Handle) {
        let (id, address) = {
            let state = driver()?.state();
            let (id, found) = state.mipmap(mipmap)?;
            (id, found.address)
        };
        memory::free(address, &[Kind::Device])?;
        let mut state = driver()?.state();
        for level in state.mipmaps.remove(&id).into_iter().flat_map(|found| found.levels) {
            state.arrays.remove(&level);
        }
        Ok(())
    }
}

fn create(array: Out<Handle>, descriptor: Descriptor) -> Answer {
    if array.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let context = current::context()?;
    let address = memory::allocate(descriptor.bytes()?, Kind::Device, 0)?;
    let mut state = driver()?.state();
    let id = state.fresh();
    let made = Array { descriptor, address, context, is_level: false };
    state.arrays.insert(id, made);
    array.set(Tag::Array.handle(id))
}
