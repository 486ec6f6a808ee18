//! Edges of graphs: the order of their nodes.

use crate::api::prelude::*;
use crate::graphs::{Frontier, Graph};

api! {
    fn cuGraphGetEdges("cuGraphGetEdges", 10000)(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: InOut<usize>) {
        edges(graph, from, to, count)
    }

    fn cuGraphGetEdges_v2("cuGraphGetEdges", 12030)(
        graph: Handle, from: Out<Handle>, to: Out<Handle>, _data: Out<u8>, count: InOut<usize>,
    ) {
        edges(graph, from, to, count)
    }

    fn cuGraphGetRootNodes("cuGraphGetRootNodes", 10000)(graph: Handle, nodes: Out<Handle>, count: InOut<usize>) {
        let roots = {
            let mut state = driver()?.state();
            let (_, graph) = state.graph(graph)?;
            graph.nodes.iter().filter(|(_, node)| node.after.is_empty()).map(|(id, _)| *id).collect()
        };
        list(&roots, nodes, count)
    }

    fn cuGraphNodeGetDependencies("cuGraphNodeGetDependencies", 10000)(
        node: Handle, nodes: Out<Handle>, count: InOut<usize>,
    ) {
        list(&before(node)?, nodes, count)
    }

    fn cuGraphNodeGetDependencies_v2("cuGraphNodeGetDependencies", 12030)(
        node: Handle, nodes: Out<Handle>, _data: Out<u8>, count: InOut<usize>,
    ) {
        list(&before(node)?, nodes, count)
    }

    fn cuGraphNodeGetDependentNodes("cuGraphNodeGetDependentNodes", 10000)(
        node: Handle, nodes: Out<Handle>, count: InOut<usize>,
    ) {
        list(&after(node)?, nodes, count)
    }

    fn cuGraphNodeGetDependentNodes_v2("cuGraphNodeGetDependentNodes", 12030)(
        node: Handle, nodes: Out<Handle>, _data: Out<u8>, count: InOut<usize>,
    ) {
        list(&after(node)?, nodes, count)
    }

    fn cuGraphAddDependencies("cuGraphAddDependencies", 10000)(
        graph: Handle, from: In<Handle>, to: In<Handle>, count: usize,
    ) {
        change(graph, from, to, count, Change::Add)
    }

    fn cuGraphAddDependencies_v2("cuGraphAddDependencies", 12030)(
        graph: Handle, from: In<Handle>, to: In<Handle>, _data: In<c_void>, count: usize,
    ) {
        change(graph, from, to, count, Change::Add)
    }

    fn cuGraphRemoveDependencies("cuGraphRemoveDependencies", 10000)(
        graph: Handle, from: In<Handle>, to: In<Handle>, count: usize,
    ) {
        change(graph, from, to, count, Change::Remove)
    }

    fn cuGraphRemoveDependencies_v2("cuGraphRemoveDependencies", 12030)(
        graph: Handle, from: In<Handle>, to: In<Handle>, _data: In<c_void>, count: usize,
    ) {
        change(graph, from, to, count, Change::Remove)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Add,
    Remove,
}

/// Nodes of a graph that a caller lists.
pub(crate) fn frontier(graph: &Graph, nodes: In<Handle>, count: usize) -> Answer<Frontier> {
    let number = |index| {
        let id = Tag::GraphNode.id(nodes.at(index)?);
        id.filter(|id| graph.nodes.contains_key(id)).ok_or(Code::INVALID_VALUE)
    };
    (0..count).map(number).collect()
}

/// All edges are changed, or none.
fn change(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize, change: Change) -> Answer {
    let mut state = driver()?.state();
    let (_, graph) = state.graph(graph)?;
    let mut changed = graph.clone();
    for index in 0..count {
        let number = |nodes: In<Handle>| Tag::GraphNode.id(nodes.at(index)?).ok_or(Code::INVALID_VALUE);
        let (from, to) = (number(from)?, number(to)?);
        if from == to || !changed.nodes.contains_key(&from) {
            return Err(Code::INVALID_VALUE);
        }
        let after = &mut changed.nodes.get_mut(&to).ok_or(Code::INVALID_VALUE)?.after;
        let was_so = if change == Change::Add { !after.insert(from) } else { !after.remove(&from) };
        if was_so {
            return Err(Code::INVALID_VALUE);
        }
    }
    *graph = changed;
    Ok(())
}

fn before(node: Handle) -> Answer<Frontier> {
    let mut state = driver()?.state();
    let (graph, id) = state.node(node)?;
    Ok(graph.nodes[&id].after.clone())
}

fn after(node: Handle) -> Answer<Frontier> {
    let mut state = driver()?.state();
    let (graph, id) = state.node(node)?;
    let later = graph.nodes.iter().filter(|(_, node)| node.after.contains(&id));
    Ok(later.map(|(id, _)| *id).collect())
}

fn list(ids: &Frontier, nodes: Out<Handle>, count: InOut<usize>) -> Answer {
    let handles: Vec<Handle> = ids.iter().map(|id| Tag::GraphNode.handle(*id)).collect();
    if nodes.is_null() {
        return Out::from(count).set(handles.len());
    }
    let place = In::from(count).get()?;
    nodes.set_many(&handles, place);
    Out::from(count).set(handles.len().min(place))
}

fn edges(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: InOut<usize>) -> Answer {
    let mut state = driver()?.state();
    let (_, graph) = state.graph(graph)?;
    let pairs = graph
        .nodes
        .iter()
        .flat_map(|(id, node)| node.after.iter().map(move |before| (*before, *id)));
    let handle = |id| Tag::GraphNode.handle(id);
    let (before, after): (Vec<Handle>, Vec<Handle>) = pairs.map(|(a, b)| (handle(a), handle(b))).unzip();
    if from.is_null() {
        return Out::from(count).set(before.len());
    }
    let place = In::from(count).get()?;
    from.set_many(&before, place);
    to.set_many(&after, place);
    Out::from(count).set(before.len().min(place))
}
