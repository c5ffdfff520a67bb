//! Stages: what travels, what is copied, what is refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::generated::{check_stages, graph_from_script, script};
use outboard_graph::zoo::{self, ZooOptions};
use outboard_graph::{
    CutCandidate, Graph, InputKind, OutputKind, SliceError, Stage, cut_candidates, slice,
    stage_programs,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A skip over two cuts (`%3`), a weight used in two stages (`w`), data used late (`target`).
const SKIP: &str = r#"graph "skip" {
  %0: f32[B,4] = data "input"
  %1: f32[B,4] = data "target"
  %2: f32[4,4] = parameter "w"
  %3: f32[B,4] = mm(%0, %2)
  %4: f32[B,4] = relu(%3)
  %5: f32[4,4] = permute(%2, dims=[1,0])
  %6: f32[B,4] = mm(%4, %5)
  %7: f32[B,4] = add.Tensor(%6, %3, alpha=1.0)
  %8: f32[B,4] = sub.Tensor(%7, %1, alpha=1.0)
  %9: f32[B,4] = mul.Tensor(%8, %8)
  %10: f32[] = sum.dim_IntList(%9, dims=[], keepdim=false)
  %11: f32[] = sym_numel(%1)
  return result "output" %7, loss_sum "loss" %10, loss_weight "loss" %11
}
"#;

fn skip() -> Graph {
    SKIP.parse().unwrap()
}

#[test]
fn a_skip_is_forwarded_and_a_derived_weight_follows_its_consumer() {
    let graph = skip();
    assert_eq!(graph.canonicalize().unwrap(), graph);
    let stages = slice(&graph, &[1, 3, 5]).unwrap();
    let texts: Vec<String> = stages.iter().map(|stage| stage.graph.to_string()).collect();
    assert_eq!(
        texts,
        [
            r#"graph "skip/0" {
  %0: f32[B,4] = data "input"
  %1: f32[4,4] = parameter "w"
  %2: f32[B,4] = mm(%0, %1)
  return activation "%3" %2
}
"#,
            r#"graph "skip/1" {
  %0: f32[B,4] = activation "%3"
  %1: f32[B,4] = relu(%0) #1
  return activation "%3" %0, activation "%4" %1
}
"#,
            r#"graph "skip/2" {
  %0: f32[4,4] = parameter "w"
  %1: f32[B,4] = activation "%3"
  %2: f32[B,4] = activation "%4"
  %3: f32[4,4] = permute(%0, dims=[1,0]) #2
  %4: f32[B,4] = mm(%2, %3) #3
  %5: f32[B,4] = add.Tensor(%4, %1, alpha=1.0) #4
  return result "output" %5, activation "%7" %5
}
"#,
            r#"graph "skip/3" {
  %0: f32[B,4] = data "target"
  %1: f32[B,4] = activation "%7"
  %2: f32[B,4] = sub.Tensor(%1, %0, alpha=1.0) #5
  %3: f32[B,4] = mul.Tensor(%2, %2) #6
  %4: f32[] = sum.dim_IntList(%3, dims=[], keepdim=false) #7
  %5: f32[] = sym_numel(%0) #8
  return loss_sum "loss" %4, loss_weight "loss" %5
}
"#,
        ]
    );
    let differentiable = |index: usize| stages[index].differentiable.iter().collect::<Vec<_>>();
    assert_eq!(differentiable(0), ["%3"]);
    assert_eq!(differentiable(1), ["%3", "%4"]);
    assert_eq!(differentiable(2), ["%3", "%4", "%7"]);
    assert_eq!(differentiable(3), ["%7"]);
    check_stages(&graph, &stages);
}

#[test]
fn the_loss_weight_stays_with_the_loss() {
    // The weight's node comes first, as the zoo's losses have it; it still lives where the loss is.
    let text = r#"graph "g" {
  %0: f32[B,4] = data "input"
  %1: i64[B] = data "target"
  %2: f32[4] = parameter "w"
  %3: f32[] = sym_numel(%1)
  %4: f32[B,4] = mul.Tensor(%0, %2)
  %5: f32[] = sum.dim_IntList(%4, dims=[], keepdim=false)
  return loss_sum "loss" %5, loss_weight "loss" %3
}
"#;
    let stages = slice(&text.parse().unwrap(), &[2]).unwrap();
    assert!(!stages[0].graph.to_string().contains("target"));
    assert!(stages[1].graph.to_string().contains("sym_numel"));
    assert_eq!(stages[0].graph.nodes.len(), 1);
}

#[test]
fn a_gradient_is_only_asked_for_where_one_flows() {
    let text = SKIP.replace("parameter", "frozen");
    for stage in slice(&text.parse().unwrap(), &[1, 5]).unwrap() {
        assert!(stage.differentiable.is_empty());
    }
    let text = SKIP.replace("loss_sum \"loss\" %10, ", "");
    for stage in slice(&text.parse().unwrap(), &[1, 5]).unwrap() {
        assert!(stage.differentiable.is_empty());
    }
}

#[test]
fn evaluation_takes_the_same_cuts() {
    let graph = skip().evaluation().unwrap();
    let stages = slice(&graph, &[1, 5]).unwrap();
    assert_eq!(stages.len(), 3);
    // Nothing is left of the loss, and the last stage gets nothing.
    assert!(stages[2].graph.nodes.is_empty());
    assert!(stages[2].graph.inputs.is_empty());
    assert_eq!(stages[1].graph.outputs.len(), 1);
    check_stages(&graph, &stages);
}

#[test]
fn impossible_cuts_are_refused() {
    let graph = skip();
    for cuts in [&[0][..], &[9], &[3, 3], &[5, 3], &[usize::MAX]] {
        assert!(
            matches!(slice(&graph, cuts), Err(SliceError::Cuts { .. })),
            "{cuts:?}"
        );
    }
    assert!(matches!(
        slice(&graph, &[2, 3]),
        Err(SliceError::EmptyStage { stage: 1, cut: 3 })
    ));
    assert!(slice(&Graph::default(), &[]).is_ok());
    assert!(slice(&Graph::default(), &[1]).is_err());
}

#[test]
fn a_buffer_lives_in_one_stage() {
    let text = r#"graph "g" {
  %0: f32[B,4] = data "input"
  %1: f32[4] = buffer "mean"
  %2: f32[4] = buffer "var"
  %3: f32[B,4] = sub.Tensor(%0, %1, alpha=1.0)
  %4: f32[B,4] = relu(%3)
  %5: f32[B,4], %6: f32[4], %7: f32[4], %8: f32[4], %9: f32[4] = _native_batch_norm_legit_functional(%4, none, none, %1, %2, momentum=0.1, eps=1e-5)
  %10: f32[B,4] = relu(%5)
  return result "output" %10, buffer_update "mean" %8
}
"#;
    let graph: Graph = text.parse().unwrap();
    let error = slice(&graph, &[2]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "buffer \"mean\" is used by nodes 0 to 2; no cut may lie in 1..=2, but 2 does"
    );
    assert!(slice(&graph, &[3]).is_ok());
    let legal: Vec<bool> = (cut_candidates(&graph).unwrap().iter())
        .map(CutCandidate::is_legal)
        .collect();
    assert_eq!(legal, [false, false, true]);
    // `var` is read once and never updated; reading it twice is no obstacle.
    let unchanged = text.replace(", buffer_update \"mean\" %8", "");
    let stages = slice(&unchanged.parse().unwrap(), &[1]).unwrap();
    for stage in &stages {
        assert!(stage.graph.inputs.iter().any(|input| input.name == "mean"));
    }
}

#[test]
fn a_shared_derived_value_must_be_canonicalized_first() {
    let text = r#"graph "g" {
  %0: f32[B,4] = data "input"
  %1: f32[4,4] = parameter "w"
  %2: f32[4,4] = permute(%1, dims=[1,0])
  %3: f32[B,4] = mm(%0, %2)
  %4: f32[B,4] = mm(%3, %2)
  return result "output" %4
}
"#;
    let graph: Graph = text.parse().unwrap();
    assert!(matches!(
        slice(&graph, &[2]),
        Err(SliceError::NotCanonical { node: 0 })
    ));
    let canonical = graph.canonicalize().unwrap();
    assert_eq!(canonical.nodes.len(), 4);
    let stages = slice(&canonical, &[2]).unwrap();
    assert_eq!(stages[0].graph.nodes.len(), 2);
    assert_eq!(stages[1].graph.nodes.len(), 2);
    check_stages(&canonical, &stages);
}

#[test]
fn candidates_say_what_crosses() {
    let candidates = cut_candidates(&skip()).unwrap();
    let crossing: Vec<String> = (candidates.iter())
        .map(|candidate| {
            let names: Vec<_> = (candidate.crossing.iter())
                .map(|crossing| crossing.name.as_str())
                .collect();
            format!(
                "{} {} {}",
                candidate.node,
                names.join(","),
                candidate.is_legal()
            )
        })
        .collect();
    assert_eq!(
        crossing,
        [
            "1 %3 true",
            "2 %3,%4 true",
            "3 %3,%4 false",
            "4 %3,%6 true",
            "5 %7 true",
            "6 %8 true",
            "7 %9 true",
            "8  false",
        ]
    );
    assert_eq!(candidates[1].forward_bytes(3), 2 * 3 * 4 * 4);
    assert_eq!(candidates[1].backward_bytes(3), 2 * 3 * 4 * 4);
    assert_eq!(candidates[1].forward_bytes(usize::MAX), u64::MAX);
}

#[test]
fn zoo_models_slice_everywhere_legal() {
    let options = ZooOptions {
        image_size: 32,
        ..ZooOptions::default()
    };
    for name in ["mlp", "resnet18", "vit_tiny"] {
        let graph = zoo::build(name, &options).unwrap();
        graph.verify().unwrap();
        assert_eq!(graph.canonicalize().unwrap(), graph, "{name}");
        assert_eq!(graph.to_string().parse::<Graph>().unwrap(), graph);
        let legal: Vec<usize> = (cut_candidates(&graph).unwrap().iter())
            .filter(|candidate| candidate.is_legal())
            .map(|candidate| candidate.node)
            .collect();
        assert!(!legal.is_empty());
        let evaluation = graph.evaluation().unwrap();
        for cut in &legal {
            check_stages(&graph, &slice(&graph, &[*cut]).unwrap());
        }
        // All legal cuts at once.
        check_stages(&graph, &slice(&graph, &legal).unwrap());
        check_stages(&evaluation, &slice(&evaluation, &legal).unwrap());
    }
}

proptest! {
    #![proptest_config(common::config(400))]

    #[test]
    fn generated_graphs_slice(
        script in script(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let graph = graph_from_script(&script).canonicalize().unwrap();
        let range = graph.nodes.len().max(2) - 1;
        let cuts: std::collections::BTreeSet<usize> = cuts.iter().map(|cut| cut.index(range) + 1).collect();
        let cuts: Vec<usize> = cuts.into_iter().filter(|&cut| cut < graph.nodes.len()).collect();
        let legal = cut_candidates(&graph).unwrap();
        match slice(&graph, &cuts) {
            Ok(stages) => check_stages(&graph, &stages),
            Err(SliceError::EmptyStage { .. } | SliceError::Buffer { .. }) => {
                let illegal = cuts.iter().any(|cut| !legal[cut - 1].is_legal());
                prop_assert!(illegal, "all of {cuts:?} were legal");
            }
            Err(error) => panic!("{error}"),
        }
        // One cut crosses what its candidate says.
        for candidate in legal.iter().filter(|candidate| candidate.is_legal()) {
            let stages = slice(&graph, &[candidate.node]).unwrap();
            let sent = stages[0].graph.outputs.iter().filter(|o| o.kind == outboard_graph::OutputKind::Activation);
            let names: Vec<&str> = candidate.crossing.iter().map(|crossing| crossing.name.as_str()).collect();
            prop_assert_eq!(sent.map(|output| output.name.as_str()).collect::<Vec<_>>(), names);
        }
    }
}

#[test]
fn a_graph_of_many_long_values_is_refused_rather_than_planned_for_ever() {
    // 3,000 values that all live to the end: 4.5 million crossings.
    let mut text = String::from("graph \"g\" {\n  %0: f32[B] = data \"x\"\n");
    let count = 3000;
    for node in 1..=count {
        text.push_str(&format!("  %{node}: f32[B] = exp(%0)\n"));
    }
    let operands = |from: usize| {
        (from..from + 3000)
            .map(|v| format!("%{v}"))
            .collect::<Vec<_>>()
    };
    text.push_str(&format!(
        "  %{}: f32[3000B] = cat({}, dim=0)\n  return result \"y\" %{}\n}}\n",
        count + 1,
        operands(1).join(", "),
        count + 1
    ));
    assert!(matches!(
        cut_candidates(&text.parse().unwrap()),
        Err(SliceError::TooManyCrossings(_))
    ));
}

proptest! {
    #![proptest_config(common::config(300))]

    /// Each stage sends back exactly the cotangents that the stage before it waits for.
    #[test]
    fn cotangents_match_across_every_cut(
        script in script(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let graph = graph_from_script(&script).canonicalize().unwrap();
        let legal: Vec<usize> = (cut_candidates(&graph).unwrap().iter())
            .filter(|candidate| candidate.is_legal())
            .map(|candidate| candidate.node)
            .collect();
        prop_assume!(!legal.is_empty());
        let cuts: std::collections::BTreeSet<usize> = cuts.iter().map(|cut| *cut.get(&legal)).collect();
        let cuts: Vec<usize> = cuts.into_iter().collect();
        let whole = stage_programs(&Stage::whole(graph.clone()));
        let mut sent_back: Option<BTreeSet<String>> = None;
        let mut gradients = BTreeSet::new();
        for stage in slice(&graph, &cuts).unwrap().iter().rev() {
            let programs = match (stage_programs(stage), &whole) {
                (Ok(programs), Ok(_)) => programs,
                // What has no gradient has none in pieces either.
                (Err(_), Err(_)) => return Ok(()),
                (Ok(_), Err(_)) => continue,
                (Err(error), Ok(_)) => panic!("{error}"),
            };
            for program in [&programs.forward, &programs.backward, &programs.weight] {
                program.verify().unwrap();
                for output in &program.outputs {
                    if output.kind == OutputKind::ParameterGradient {
                        prop_assert!(gradients.insert(output.name.clone()), "{} twice", output.name);
                    }
                }
            }
            let waited: BTreeSet<String> = [&programs.backward, &programs.weight].iter()
                .flat_map(|program| &program.inputs)
                .filter(|input| input.kind == InputKind::Cotangent && input.name != "loss")
                .map(|input| input.name.clone())
                .collect();
            if let Some(sent_back) = sent_back {
                prop_assert!(waited.is_subset(&sent_back), "{waited:?} of {sent_back:?}");
                let promised: BTreeSet<String> = (stage.graph.outputs.iter())
                    .filter(|o| o.kind == OutputKind::Activation && stage.differentiable.contains(&o.name))
                    .map(|o| o.name.clone())
                    .collect();
                prop_assert_eq!(sent_back, promised);
            }
            sent_back = Some((programs.backward.outputs.iter())
                .filter(|output| output.kind == OutputKind::Cotangent)
                .map(|output| output.name.clone())
                .collect());
        }
        if let Ok(whole) = whole {
            let all: BTreeSet<String> = [&whole.backward, &whole.weight].iter()
                .flat_map(|program| &program.outputs)
                .filter(|output| output.kind == OutputKind::ParameterGradient)
                .map(|output| output.name.clone())
                .collect();
            prop_assert_eq!(gradients, all);
        }
    }
}
