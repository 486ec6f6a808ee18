//! Nodes that allocate and free: memory that is there from one place in a graph to another one.

use simgpu_card::ids::PoolId;
use simgpu_card::wire::{Kind as MemoryKind, Op};

use crate::api::node::{add, made};
use crate::api::prelude::*;
use crate::graphs::{Kind, Node};
use crate::location::{AccessDescription, Location};
use crate::mapping::Reservation;
use crate::pools::{self, Properties};
use crate::state::{Allocation, Source};

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocateParams {
    pool: Properties,
    access: In<AccessDescription>,
    access_count: usize,
    bytes: usize,
    address: u64,
}

api! {
    fn cuGraphAddMemAllocNode("cuGraphAddMemAllocNode", 11040)(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: InOut<AllocateParams>,
    ) {
        add(node, graph, after, count, allocation(params)?)
    }

    fn cuGraphAddMemFreeNode("cuGraphAddMemFreeNode", 11040)(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, address: u64,
    ) {
        add(node, graph, after, count, release(address)?)
    }

    fn cuGraphMemFreeNodeGetParams("cuGraphMemFreeNodeGetParams", 11040)(node: Handle, address: Out<u64>) {
        let mut state = driver()?.state();
        let (graph, id) = state.node(node)?;
        match graph.nodes[&id].work.as_slice() {
            [Op::Release(found)] => address.set(*found),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

/// The address is there at once, the memory with each launch.
pub(crate) fn allocation(params: InOut<AllocateParams>) -> Answer<Node> {
    let wanted = In::from(params).get()?;
    let address = reserve(&wanted)?;
    let pool = PoolId(pools::of_graphs(wanted.pool.location.id)?);
    Out::from(params).set(AllocateParams { address, ..wanted })?;
    let len = wanted.bytes as u64;
    Ok(made(Kind::Allocate, vec![Op::Allocate { address, len, pool }]))
}

pub(crate) fn release(address: u64) -> Answer<Node> {
    let state = driver()?.state();
    let found = state.allocations.get(&address).map(|found| &found.source);
    if !matches!(found, Some(Source::Graph(_))) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(made(Kind::Free, vec![Op::Release(address)]))
}

/// Addresses for a node's memory.
fn reserve(wanted: &AllocateParams) -> Answer<u64> {
    let peers = (0..wanted.access_count).map(|index| wanted.access.at(index)?.location.device());
    let on_device = wanted.pool.location.kind == Location::DEVICE && wanted.pool.handle_types == 0;
    if !on_device || wanted.bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let device = wanted.pool.location.id;
    for peer in peers {
        if peer? != device {
            return Err(Code::NOT_SUPPORTED);
        }
    }
    let context = current::context()?;
    let addresses = Reservation::new(wanted.bytes)?;
    let address = addresses.address;
    let allocation = Allocation {
        len: wanted.bytes as u64,
        kind: MemoryKind::Device,
        context,
        flags: 0,
        device,
        source: Source::Graph(addresses),
    };
    driver()?.state().allocations.insert(address, allocation);
    Ok(address)
}
