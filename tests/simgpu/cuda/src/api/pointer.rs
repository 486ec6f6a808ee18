//! Attributes of addresses.

use simgpu_card::wire::Kind;

use crate::api::prelude::*;
use crate::state::{Source, State};

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

api! {
    fn cuPointerGetAttribute("cuPointerGetAttribute", 4000)(data: Out<u8>, attribute: u32, address: u64) {
        if data.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let state = driver()?.state();
        answer(&state, data, attribute, address)
    }

    /// Attributes that an address does not have are zero here, and no error.
    fn cuPointerGetAttributes("cuPointerGetAttributes", 7000)(
        count: u32, attributes: In<u32>, data: In<Out<u8>>, address: u64,
    ) {
        let state = driver()?.state();
        for index in 0..count as usize {
            let (attribute, data) = (attributes.at(index)?, data.at(index)?);
            match answer(&state, data, attribute, address) {
                Err(Code::INVALID_VALUE) if size(attribute) == 4 => data.cast::<u32>().set(0)?,
                Err(Code::INVALID_VALUE) => data.cast::<u64>().set(0)?,
                other => other?,
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute("cuPointerSetAttribute", 6000)(_value: In<u8>, attribute: u32, address: u64) {
        const SYNC_MEMOPS: u32 = 6;
        driver()?.state().allocation_at(address).ok_or(Code::INVALID_VALUE)?;
        if attribute == SYNC_MEMOPS { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}

/// Bytes of an attribute's value.
fn size(attribute: u32) -> u32 {
    match attribute {
        2 | 6 | 8..=10 | 13 | 15 | 16 | 21 => 4,
        _ => 8,
    }
}

fn answer(state: &State, data: Out<u8>, attribute: u32, address: u64) -> Answer {
    let (word, wide) = (data.cast::<u32>(), data.cast::<u64>());
    let Some((start, allocation)) = state.allocation_at(address) else {
        return staged(state, data, attribute, address);
    };
    let context = state.contexts.contains_key(&allocation.context);
    let own = matches!(allocation.source, Source::Own(_));
    let pool = match allocation.source {
        Source::Pool(pool, _) => Tag::Pool.handle(pool) as u64,
        _ => 0,
    };
    let on_host = allocation.kind == Kind::Pinned;
    match attribute {
        1 if !context => wide.set(0),
        1 => wide.set(Tag::Context.handle(allocation.context.0) as u64),
        2 => word.set(if on_host { HOST } else { DEVICE }),
        3 => wide.set(address),
        4 if allocation.kind == Kind::Device => Err(Code::INVALID_VALUE),
        4 => wide.set(address),
        6 | 15 | 21 => word.set(0),
        7 | 20 => wide.set(start >> 12),
        8 => word.set(u32::from(allocation.kind == Kind::Managed)),
        9 => data.cast::<i32>().set(allocation.device),
        10 => word.set(u32::from(own && allocation.kind == Kind::Device)),
        11 | 19 => wide.set(start),
        12 | 18 => wide.set(allocation.len),
        13 => word.set(1),
        14 => wide.set(0),
        17 => wide.set(pool),
        16 => word.set(3), // read and write
        _ => Err(Code::INVALID_VALUE),
    }
}

fn staged(state: &State, data: Out<u8>, attribute: u32, address: u64) -> Answer {
    let (start, len, _) = state.staged_at(address).ok_or(Code::INVALID_VALUE)?;
    match attribute {
        2 => data.cast::<u32>().set(HOST),
        4 => data.cast::<u64>().set(address),
        8 => data.cast::<u32>().set(0),
        11 => data.cast::<u64>().set(start),
        12 => data.cast::<u64>().set(len),
        _ => Err(Code::INVALID_VALUE),
    }
}
