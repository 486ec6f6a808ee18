//! Nodes of any kind by one call: `CUgraphNodeParams` holds a kind and a union of what that kind needs.

use simgpu_card::wire::Op;

use crate::api::memory_node;
use crate::api::node::{KernelNodeV2, add, child, host, kernel, made, memcpy, memset};
use crate::api::prelude::*;
use crate::graphs::{Kind, Node};

/// Where the union begins, and where the copy is in that of a memcpy node.
const UNION: usize = 16;
const COPY: usize = UNION + 16;

api! {
    fn cuGraphAddNode("cuGraphAddNode", 12020)(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: InOut<u32>,
    ) {
        add(node, graph, after, count, any(params)?)
    }

    fn cuGraphAddNode_v2("cuGraphAddNode", 12030)(
        node: Out<Handle>, graph: Handle, after: In<Handle>, _edges: In<c_void>, count: usize, params: InOut<u32>,
    ) {
        add(node, graph, after, count, any(params)?)
    }
}

/// The members of the union begin as the parameters of the calls for one kind do.
fn any(params: InOut<u32>) -> Answer<Node> {
    const KERNEL: u32 = Kind::Kernel as u32;
    const MEMCPY: u32 = Kind::Memcpy as u32;
    const MEMSET: u32 = Kind::Memset as u32;
    const HOST: u32 = Kind::Host as u32;
    const GRAPH: u32 = Kind::Graph as u32;
    const EMPTY: u32 = Kind::Empty as u32;
    const WAIT_EVENT: u32 = Kind::WaitEvent as u32;
    const RECORD_EVENT: u32 = Kind::RecordEvent as u32;
    const ALLOCATE: u32 = Kind::Allocate as u32;
    const FREE: u32 = Kind::Free as u32;
    let handle = || In::<Handle>::from(params.inside(UNION)).get();
    let event = || driver()?.state().event(handle()?);
    match In::from(params).get()? {
        KERNEL => kernel(In::<KernelNodeV2>::from(params.inside(UNION)).get()?.one()),
        MEMCPY => memcpy(In::from(params.inside(COPY)).get()?),
        MEMSET => memset(In::from(params.inside(UNION)).get()?),
        HOST => host(In::from(params.inside(UNION)).get()?),
        GRAPH => child(handle()?),
        EMPTY => Ok(made(Kind::Empty, Vec::new())),
        WAIT_EVENT => Ok(made(Kind::WaitEvent, vec![Op::WaitEvent(event()?)])),
        RECORD_EVENT => Ok(made(Kind::RecordEvent, vec![Op::Record(event()?)])),
        ALLOCATE => memory_node::allocation(params.inside(UNION)),
        FREE => memory_node::release(handle()? as u64),
        _ => Err(Code::NOT_SUPPORTED),
    }
}
