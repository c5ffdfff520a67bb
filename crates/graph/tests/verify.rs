//! Corrupted graphs: `verify` says what is wrong, and no pass panics even on a graph that nobody verified.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::generated::{graph_from_script, script};
use outboard_graph::{
    DType, Dim, Graph, GraphError, InputKind, Op, OutputKind, Stage, TensorType, ValueId,
    cut_candidates, slice, stage_programs,
};
use proptest::prelude::*;

const GRAPH: &str = r#"graph "g" {
  %0: f32[B,4] = data "input"
  %1: f32[4] = parameter "w"
  %2: f32[4] = buffer "mean"
  %3: f32[B,4] = mul.Tensor(%0, %1)
  %4: f32[B,4] = relu(%3)
  %5: f32[] = sum.dim_IntList(%4, dims=[], keepdim=false)
  return result "output" %4, loss_sum "loss" %5, buffer_update "mean" %2
}
"#;

#[track_caller]
fn refused(change: impl FnOnce(&mut Graph), wanted: &str) {
    let mut graph: Graph = GRAPH.parse().unwrap();
    change(&mut graph);
    let error = graph.verify().unwrap_err().to_string();
    assert!(error.contains(wanted), "{error}");
}

#[test]
fn each_promise_is_checked() {
    refused(
        |g| g.nodes.swap(0, 1),
        "node 0 `relu(%3)` (at \"\"): %3 is not defined yet",
    );
    refused(
        |g| g.nodes[0].operands[0] = Some(ValueId(u32::MAX)),
        "%4294967295 is not defined yet",
    );
    refused(
        |g| g.nodes[0].operands[0] = None,
        "operand 0 must not be `none`",
    );
    refused(
        |g| g.nodes[0].results[0] = ValueId(0),
        "value %0 is defined twice",
    );
    refused(
        |g| g.nodes[0].results[0] = ValueId(99),
        "value %99 is not a value",
    );
    refused(|g| g.nodes[0].results.clear(), "has 1 results, not 0");
    refused(|g| drop(g.nodes.pop()), "value %5 is not defined");
    refused(
        |g| g.values[3].ty.dtype = DType::F16,
        "%3 is f32[B,4], not f16[B,4]",
    );
    refused(|g| g.values[1].ty.dims[0] = Dim::B, "depends on the batch");
    refused(
        |g| g.values[0].ty.dims[1] = Dim::Fixed(0),
        "dimension 1 is empty",
    );
    refused(
        |g| g.values[0].ty.dims[0] = Dim::Batch(0),
        "dimension 0 is empty",
    );
    refused(
        |g| g.values[0].ty.dims = vec![Dim::Fixed(1); 9],
        "9 dimensions, the most is 8",
    );
    refused(|g| g.values[1].ty.dtype = DType::I64, "has no gradients");
    refused(
        |g| g.inputs[2].name = "w".into(),
        "two inputs are named buffer \"w\"",
    );
    refused(
        |g| g.inputs[2].kind = InputKind::Frozen,
        "there is no buffer of this name",
    );
    refused(
        |g| g.inputs[0].name = "x".repeat(1025),
        "an input's name is longer than 1024 bytes",
    );
    refused(|g| g.nodes[0].scope = "x".repeat(1025), "a scope is longer");
    refused(
        |g| g.outputs[1].value = ValueId(4),
        "%4 is f32[B,4], not f32[]",
    );
    refused(|g| g.outputs[0].value = ValueId(77), "%77 is not a value");
    refused(
        |g| g.outputs.push(g.outputs[0].clone()),
        "the name is taken",
    );
    refused(
        |g| {
            let mut second = g.outputs[1].clone();
            second.name = "second".into();
            g.outputs.push(second);
        },
        "there is another loss",
    );
    refused(|g| g.outputs[2].value = ValueId(4), "the buffer is f32[4]");
    refused(
        |g| g.nodes[0].operands = vec![Some(ValueId(0)); 5000],
        "more than 4096 operands",
    );
}

#[test]
fn a_full_graph_takes_no_more() {
    let mut graph = Graph::new("full");
    let ty = TensorType::scalar(DType::F32);
    let x = graph.input(InputKind::Data, "x", ty).unwrap();
    let value = graph.values[0].clone();
    graph.values.resize(outboard_graph::MAX_VALUES - 1, value);
    // Dropout has two results and there is room for one.
    let op = Op::Dropout { p: 0.5, key: 0 };
    let before = graph.values.len();
    assert_eq!(
        graph.push(op, &[Some(x)], "", 0),
        Err(GraphError::TooManyValues)
    );
    assert_eq!(graph.values.len(), before);
    assert!(graph.push(Op::Relu {}, &[Some(x)], "", 0).is_ok());
    assert_eq!(
        graph.push(Op::Relu {}, &[Some(x)], "", 0),
        Err(GraphError::TooManyValues)
    );
    assert!(
        graph
            .output(OutputKind::Result, "y", ValueId(u32::MAX))
            .is_err()
    );
}

/// One corruption of some part of a graph.
fn corrupt(graph: &mut Graph, what: u8, place: prop::sample::Index, number: u32) {
    let value = ValueId(number % (graph.values.len() as u32 + 2));
    let node = place.index(graph.nodes.len());
    let kind = number as usize;
    let (nodes, inputs, outputs) = (graph.nodes.len(), graph.inputs.len(), graph.outputs.len());
    let (input, output) = (place.index(inputs), place.index(outputs));
    match what {
        0 => graph.nodes[node].operands.push(Some(value)),
        1 => drop(graph.nodes[node].operands.pop()),
        2 => graph.nodes[node]
            .operands
            .iter_mut()
            .for_each(|operand| *operand = Some(value)),
        3 => graph.nodes[node]
            .results
            .iter_mut()
            .for_each(|result| *result = value),
        4 => graph.nodes.swap(node, kind % nodes),
        5 => drop(graph.nodes.remove(node)),
        6 => {
            let index = place.index(graph.values.len());
            graph.values[index]
                .ty
                .dims
                .push(Dim::Batch(number as usize));
        }
        7 => {
            let index = place.index(graph.values.len());
            graph.values.truncate(index);
        }
        8 => graph.inputs[input].kind = InputKind::ALL[kind % 7],
        9 => graph.inputs[input].value = value,
        10 => graph.outputs[output].kind = OutputKind::ALL[kind % 8],
        11 => graph.outputs[output].value = value,
        12 => graph.nodes[node].origin = number,
        _ => graph.nodes[node].op = graph.nodes[kind % nodes].op.clone(),
    }
    if graph.nodes.is_empty() {
        let fresh: Graph = GRAPH.parse().unwrap();
        graph.nodes = fresh.nodes;
    }
}

proptest! {
    #![proptest_config(common::config(1500))]

    #[test]
    fn nothing_panics_on_a_corrupt_graph(
        script in script(),
        corruptions in prop::collection::vec((0_u8..14, any::<prop::sample::Index>(), any::<u32>()), 1..4),
    ) {
        let mut graph = graph_from_script(&script);
        for (what, place, number) in corruptions {
            if !graph.values.is_empty() {
                corrupt(&mut graph, what, place, number);
            }
        }
        let sound = graph.verify().is_ok();
        let printed = graph.to_string();
        if sound {
            prop_assert_eq!(printed.parse::<Graph>().unwrap(), graph.clone());
        }
        // The rest is asked whether or not the graph is sound; only a sound one must give an answer.
        let canonical = graph.canonicalize();
        if sound {
            canonical.clone().unwrap().verify().unwrap();
        }
        let _ = graph.instantiate(3).map(|concrete| concrete.peak_bytes(|_| false));
        let _ = graph.evaluation();
        let _ = graph.min_batch();
        for candidate in [graph, canonical.unwrap_or_default()] {
            let _ = cut_candidates(&candidate);
            let _ = slice(&candidate, &[1]);
            for node in 0..=candidate.nodes.len() {
                let _ = candidate.single_node(node);
            }
            let _ = stage_programs(&Stage::whole(candidate));
        }
    }
}
