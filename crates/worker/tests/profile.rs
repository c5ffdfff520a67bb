//! Profiles: every operator of every model's programs accepts the inputs that are made up for it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use outboard_exec::CpuExecutor;
use outboard_graph::{
    Graph, Input, InputKind, Node, Output, OutputKind, Stage, ValueId, stage_programs, zoo,
};
use outboard_worker::{Job, JobOutput, Runtime};

const BUDGET: u64 = 1 << 30;

/// A node of a concrete program as a program of its own.
fn alone(program: &Graph, node: &Node) -> Graph {
    let mut operands: Vec<_> = node.operands.iter().flatten().copied().collect();
    operands.sort_unstable();
    operands.dedup();
    let mut graph = Graph {
        name: node.op.name().to_owned(),
        ..Graph::default()
    };
    let mut renumbered = BTreeMap::new();
    let mut value = |graph: &mut Graph, old: ValueId| {
        let new = ValueId(graph.values.len() as u32);
        graph.values.push(program.values[old.0 as usize].clone());
        renumbered.insert(old, new);
        new
    };
    for operand in operands {
        let new = value(&mut graph, operand);
        graph.inputs.push(Input {
            value: new,
            kind: InputKind::Data,
            name: format!("in{}", new.0),
        });
    }
    let results: Vec<_> = node
        .results
        .iter()
        .map(|result| value(&mut graph, *result))
        .collect();
    graph.outputs = results
        .iter()
        .map(|result| Output {
            value: *result,
            kind: OutputKind::Result,
            name: format!("out{}", result.0),
        })
        .collect();
    graph.nodes = vec![Node {
        operands: node
            .operands
            .iter()
            .map(|operand| operand.map(|operand| renumbered[&operand]))
            .collect(),
        results,
        origin: 0,
        ..node.clone()
    }];
    graph
}

/// Times programs on a clock that jumps 10 ms at every look, so that few repetitions are enough.
fn profile(programs: Vec<String>, cancel: bool) -> Vec<Option<f64>> {
    let looks = Cell::new(0_u32);
    let clock = || {
        looks.set(looks.get() + 1);
        Duration::from_millis(10) * looks.get()
    };
    let job = Job::Profile {
        programs,
        budget_bytes: BUDGET,
    };
    let mut runtime = Runtime::new(CpuExecutor::with_threads(1));
    match runtime.execute(job, &AtomicBool::new(cancel), &clock) {
        Ok(JobOutput::Profiled(seconds)) => seconds,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_operator_of_every_model_can_be_timed() {
    let mut programs = BTreeMap::new();
    for name in ["mlp", "resnet18", "vit_tiny"] {
        let options = zoo::ZooOptions {
            image_size: 16,
            classes: 10,
            ..zoo::ZooOptions::default()
        };
        let graph = zoo::build(name, &options).unwrap();
        let stage = stage_programs(&Stage::whole(graph)).unwrap();
        for program in [stage.forward, stage.backward, stage.weight] {
            let program = program.instantiate(4).unwrap();
            for node in &program.nodes {
                let text = alone(&program, node).to_string();
                programs.insert(text, format!("{:?} of {name}", node.op));
            }
        }
    }
    assert!(programs.len() > 100, "{} programs", programs.len());
    let seconds = profile(programs.keys().cloned().collect(), false);
    for (seconds, name) in seconds.iter().zip(programs.values()) {
        // One look at the clock before a run and one after it.
        assert_eq!(*seconds, Some(0.01), "{name}");
    }
}

#[test]
fn a_host_that_leaves_ends_a_profile() {
    let text = "graph \"relu\" {\n  %0: f32[4] = data \"x\"\n  %1: f32[4] = relu(%0)\n  return result \"y\" %1\n}\n";
    assert_eq!(profile(vec![text.into(); 3], false), [Some(0.01); 3]);
    assert_eq!(profile(vec![text.into(); 3], true), [None; 3]);
}
