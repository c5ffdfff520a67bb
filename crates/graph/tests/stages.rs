//! The cut never changes the result: whatever the stages, every loss, buffer update and parameter gradient is the same
//! expression of weights and data, operation by operation, in the same order.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use outboard_graph::{
    Graph, InputKind, Loss, Op, OutputKind, Stage, StagePrograms, cut_candidates, slice,
    stage_programs,
    zoo::{self, ZooOptions},
};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use support::{check_programs, small};

/// Stands for an expression: two values with the same digest are computed by the same operations on the same leaves.
type Digest = u64;

fn digest(parts: impl Hash) -> Digest {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// What one program computes, given what the programs before it gave: outputs by kind and name.
type Known = BTreeMap<(&'static str, String), Digest>;

fn evaluate(graph: &Graph, known: &Known, outputs: &mut Known) {
    let mut values: Vec<Option<Digest>> = vec![None; graph.values.len()];
    for input in &graph.inputs {
        // Weights and data are leaves; so is the cotangent of the loss.
        let key = (input.kind.name(), input.name.clone());
        let found = match input.kind {
            InputKind::Activation | InputKind::Saved => Some(known[&key]),
            InputKind::Cotangent if input.name != "loss" => Some(known[&key]),
            _ => Some(digest(("leaf", &key))),
        };
        values[input.value.index()] = found;
    }
    for node in &graph.nodes {
        let operands: Vec<Option<Digest>> = (node.operands.iter())
            .map(|operand| operand.map(|value| values[value.index()].unwrap()))
            .collect();
        for (position, result) in node.results.iter().enumerate() {
            values[result.index()] = Some(digest((node.op.to_string(), &operands, position)));
        }
    }
    for output in &graph.outputs {
        let value = values[output.value.index()].unwrap();
        outputs.insert((output.kind.name(), output.name.clone()), value);
    }
}

/// Runs a pipeline symbolically and gives what is left of it for the user and the optimizer.
fn run(stages: &[(Stage, StagePrograms)]) -> Known {
    let mut results = Known::new();
    let mut saved: Vec<Known> = Vec::new();
    let mut sent = Known::new();
    for (_, programs) in stages {
        let mut outputs = Known::new();
        evaluate(&programs.forward, &sent, &mut outputs);
        if let Some(normaliser) = &programs.normaliser {
            evaluate(normaliser, &Known::new(), &mut outputs);
        }
        sent = take(&mut outputs, OutputKind::Activation);
        saved.push(take(&mut outputs, OutputKind::Saved));
        results.extend(outputs);
    }
    assert!(sent.is_empty());
    for ((_, programs), mut known) in stages.iter().zip(saved).rev() {
        known.extend(std::mem::take(&mut sent));
        let mut outputs = Known::new();
        evaluate(&programs.backward, &known, &mut outputs);
        sent = take(&mut outputs, OutputKind::Cotangent);
        known.extend(take(&mut outputs, OutputKind::Saved));
        evaluate(&programs.weight, &known, &mut outputs);
        results.extend(outputs);
    }
    assert!(sent.is_empty());
    results
}

fn take(outputs: &mut Known, kind: OutputKind) -> Known {
    let (taken, rest) =
        (std::mem::take(outputs).into_iter()).partition(|((k, _), _)| *k == kind.name());
    *outputs = rest;
    taken
}

fn names<'a>(names: impl Iterator<Item = &'a String>) -> BTreeSet<&'a String> {
    names.collect()
}

fn inputs(graph: &Graph, kind: InputKind) -> BTreeSet<&String> {
    names(
        graph
            .inputs
            .iter()
            .filter(|i| i.kind == kind)
            .map(|i| &i.name),
    )
}

fn outputs(graph: &Graph, kind: OutputKind) -> BTreeSet<&String> {
    names(
        graph
            .outputs
            .iter()
            .filter(|o| o.kind == kind)
            .map(|o| &o.name),
    )
}

/// Slices, differentiates, and checks each stage and each pair of neighbours.
fn pipeline(graph: &Graph, cuts: &[usize]) -> Vec<(Stage, StagePrograms)> {
    let stages = slice(graph, cuts).unwrap_or_else(|error| panic!("{cuts:?}: {error}"));
    let stages: Vec<_> = (stages.into_iter())
        .map(|stage| {
            let programs = stage_programs(&stage).unwrap();
            check_programs(&stage, &programs);
            (stage, programs)
        })
        .collect();
    for pair in stages.windows(2) {
        let [(_, before), (_, after)] = pair else {
            continue;
        };
        assert_eq!(
            outputs(&before.forward, OutputKind::Activation),
            inputs(&after.forward, InputKind::Activation),
            "{cuts:?}"
        );
        assert_eq!(
            inputs(&before.backward, InputKind::Cotangent),
            outputs(&after.backward, OutputKind::Cotangent),
            "{cuts:?}"
        );
    }
    let (first, _) = &stages[0];
    assert!(inputs(&first.graph, InputKind::Activation).is_empty());
    stages
}

fn legal_cuts(graph: &Graph) -> Vec<usize> {
    let candidates = cut_candidates(graph).unwrap();
    let legal = candidates.iter().filter(|candidate| candidate.is_legal());
    legal.map(|candidate| candidate.node).collect()
}

fn models() -> Vec<Graph> {
    let smoothed = Loss::CrossEntropy {
        ignore_index: -100,
        class_weights: Some((1..=10).map(|class| class as f32).collect()),
        label_smoothing: 0.1,
    };
    let mut graphs: Vec<Graph> = ["resnet34", "resnet50", "vit_tiny"]
        .map(|name| zoo::build(name, &small()).unwrap())
        .into();
    for loss in [smoothed, Loss::MeanSquaredError] {
        let options = ZooOptions { loss, ..small() };
        graphs.push(zoo::build("mlp", &options).unwrap());
    }
    graphs.push(TIED.parse::<Graph>().unwrap().canonicalize().unwrap());
    graphs
}

/// A weight in two stages, one of them through a chain; a skip over everything; a value read twice by one node.
const TIED: &str = r#"graph "tied" {
  %0: f32[B,4] = data "input"
  %1: f32[4,4] = parameter "weight"
  %2: f32[4] = parameter "bias"
  %3: f32[4,4] = permute(%1, dims=[1,0])
  %4: f32[B,4] = addmm(%2, %0, %3)
  %5: f32[B,4] = relu(%4)
  %6: f32[B,4] = mul.Tensor(%5, %5)
  %7: f32[B,4] = mm(%6, %1)
  %8: f32[B,4] = add.Tensor(%7, %5, alpha=1.0)
  %9: f32[B,4] = tanh(%8)
  %10: f32[B,4] = addmm(%2, %9, %3)
  %11: f32[B,4] = sub.Tensor(%10, %5, alpha=0.5)
  %12: f32[B,4] = mul.Tensor(%11, %4)
  %13: f32[] = sum.dim_IntList(%12, dims=[], keepdim=false)
  %14: f32[] = sym_numel(%0)
  return result "output" %12, loss_sum "loss" %13, loss_weight "loss" %14
}
"#;

#[test]
fn every_single_cut_computes_the_same() {
    for graph in models() {
        let whole = run(&pipeline(&graph, &[]));
        let cuts = legal_cuts(&graph);
        assert!(cuts.len() >= 4, "{}", graph.name);
        for cut in cuts {
            assert_eq!(
                run(&pipeline(&graph, &[cut])),
                whole,
                "{} cut at {cut}",
                graph.name
            );
        }
    }
}

#[test]
fn many_cuts_compute_the_same() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for graph in models() {
        let whole = run(&pipeline(&graph, &[]));
        let legal = legal_cuts(&graph);
        for _ in 0..20 {
            let count = 2 + (random.next_u32() % 6) as usize;
            let cuts: BTreeSet<usize> = (0..count)
                .map(|_| legal[random.next_u32() as usize % legal.len()])
                .collect();
            let cuts: Vec<usize> = cuts.into_iter().collect();
            assert_eq!(
                run(&pipeline(&graph, &cuts)),
                whole,
                "{} cut at {cuts:?}",
                graph.name
            );
        }
    }
}

#[test]
fn no_value_that_weights_alone_determine_crosses_a_cut() {
    for graph in models() {
        let mut varies: BTreeSet<_> = (graph.inputs.iter())
            .filter(|input| matches!(input.kind, InputKind::Data | InputKind::Buffer))
            .map(|input| input.value)
            .collect();
        for node in &graph.nodes {
            let random = matches!(node.op, Op::Dropout { .. });
            if random
                || node
                    .operands
                    .iter()
                    .flatten()
                    .any(|value| varies.contains(value))
            {
                varies.extend(node.results.iter().copied());
            }
        }
        let varying: BTreeSet<String> = varies.iter().map(ToString::to_string).collect();
        for candidate in cut_candidates(&graph).unwrap() {
            for crossing in candidate.crossing {
                assert!(
                    varying.contains(&crossing.name),
                    "{} at {}",
                    crossing.name,
                    candidate.node
                );
            }
        }
    }
}
