//! Textures of linear memory. They are made and ended; kernels here do not read them.

use crate::api::prelude::*;

/// `CUDA_RESOURCE_DESC`, as linear memory has it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resource {
    kind: u32,
    address: u64,
}

/// `CU_RESOURCE_TYPE_LINEAR` and `CU_RESOURCE_TYPE_PITCH2D`.
const LINEAR: [u32; 2] = [2, 3];

api! {
    fn cuTexObjectCreate("cuTexObjectCreate", 5000)(
        object: Out<u64>, resource: In<Resource>, _texture: In<c_void>, _view: In<c_void>,
    ) {
        let Resource { kind, address } = resource.get()?;
        let mut state = driver()?.state();
        if !LINEAR.contains(&kind) {
            return Err(Code::NOT_SUPPORTED);
        }
        state.allocation_at(address).ok_or(Code::INVALID_VALUE)?;
        object.set(u64::from(state.fresh()))
    }

    fn cuTexObjectDestroy("cuTexObjectDestroy", 5000)(_object: u64) {
        Ok(())
    }
}
