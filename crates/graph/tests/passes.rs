//! Passes over whole graphs: canonical form, a given batch, evaluation, memory.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::HashMap;

use common::generated::{graph_from_script, interpret, script};
use outboard_graph::{Graph, GraphError, InputKind, Op, OutputKind};
use proptest::prelude::*;

proptest! {
    #![proptest_config(common::config(400))]

    #[test]
    fn generated_graphs_print_and_parse(script in script()) {
        let graph = graph_from_script(&script);
        graph.verify().unwrap();
        prop_assert_eq!(graph.to_string().parse::<Graph>().unwrap(), graph);
    }

    #[test]
    fn canonical_form_is_sound_and_final(script in script()) {
        let graph = graph_from_script(&script);
        let canonical = graph.canonicalize().unwrap();
        canonical.verify().unwrap();
        prop_assert_eq!(&canonical.canonicalize().unwrap(), &canonical);
        let inputs = |graph: &Graph| -> Vec<_> {
            let inputs = graph.inputs.iter();
            inputs.map(|input| (input.kind, input.name.clone(), graph.ty(input.value).cloned())).collect()
        };
        prop_assert_eq!(inputs(&canonical), inputs(&graph));
        for (index, node) in canonical.nodes.iter().enumerate() {
            prop_assert_eq!(node.origin as usize, index);
        }
        // Where nothing folds, the same is computed.
        let folds = |op: u8| matches!(op, 7..=11 | 18 | 21);
        if !script.iter().any(|(op, ..)| folds(*op)) {
            let nothing = HashMap::new();
            prop_assert_eq!(interpret(&canonical, &nothing), interpret(&graph, &nothing));
        }
    }

    #[test]
    fn a_batch_makes_a_graph_concrete(script in script(), batch in 1..5_usize) {
        let graph = graph_from_script(&script).canonicalize().unwrap();
        let concrete = graph.instantiate(batch);
        prop_assert_eq!(concrete.is_ok(), batch >= graph.min_batch());
        if let Ok(concrete) = concrete {
            prop_assert_eq!(concrete.to_string().parse::<Graph>().unwrap(), concrete.clone());
            let inputs: Vec<InputKind> = InputKind::ALL.to_vec();
            let peak = concrete.peak_bytes(|_| false).unwrap();
            let kept = concrete.peak_bytes(|_| true).unwrap();
            prop_assert!(peak <= kept);
            prop_assert!(concrete.input_bytes(&inputs).unwrap() <= peak);
            prop_assert!(concrete.output_bytes(&OutputKind::ALL).unwrap() <= peak);
        }
        let evaluation = graph.evaluation().unwrap();
        evaluation.verify().unwrap();
        prop_assert_eq!(evaluation.nodes.len(), graph.nodes.len());
    }
}

fn parse(text: &str) -> Graph {
    text.parse().unwrap()
}

#[test]
fn constants_fold_and_nothing_else_is_left() {
    let graph = parse(
        r#"graph "g" {
  %0: f32[B,4] = data "input"
  %1: f32[4] = parameter "unused"
  %2: f32[] = full(shape=[], value=2.0, dtype=f32)
  %3: f32[] = mul.Scalar(%2, scalar=0.25)
  %4: f32[B,1] = expand(%3, shape=[B,1])
  %5: f32[B,4] = clone(%0)
  %6: f32[B,4] = exp(%5)
  %7: f32[B,4] = view(%5, shape=[B,4])
  %8: f32[B,4] = mul.Tensor(%7, %4) @ "scale"
  return result "output" %8
}
"#,
    );
    assert_eq!(
        graph.canonicalize().unwrap().to_string(),
        r#"graph "g" {
  %0: f32[B,4] = data "input"
  %1: f32[4] = parameter "unused"
  %2: f32[B,1] = full(shape=[B,1], value=0.5, dtype=f32)
  %3: f32[B,4] = mul.Tensor(%0, %2) @ "scale"
  return result "output" %3
}
"#
    );
}

#[test]
fn slices_end_within_their_operand() {
    let text = r#"graph "g" {
  %0: f32[B,4] = data "input"
  %1: f32[B,3] = slice.Tensor(%0, dim=1, start=1, end=9223372036854775807, step=1)
  return result "output" %1
}
"#;
    let canonical = parse(text).canonicalize().unwrap().to_string();
    assert_eq!(canonical, text.replace("9223372036854775807", "4"));
}

#[test]
fn each_use_of_a_derived_value_gets_its_own_chain() {
    let graph = parse(
        r#"graph "tied" {
  %0: f32[B,4] = data "input"
  %1: f32[4,4] = parameter "w"
  %2: f32[4,4] = permute(%1, dims=[1,0])
  %3: f32[4,4] = mul.Tensor(%2, %2)
  %4: f32[B,4] = mm(%0, %3)
  %5: f32[B,4] = mm(%4, %3)
  return result "output" %5, result "weight" %3
}
"#,
    );
    assert_eq!(
        graph.canonicalize().unwrap().to_string(),
        r#"graph "tied" {
  %0: f32[B,4] = data "input"
  %1: f32[4,4] = parameter "w"
  %2: f32[4,4] = permute(%1, dims=[1,0])
  %3: f32[4,4] = mul.Tensor(%2, %2)
  %4: f32[B,4] = mm(%0, %3)
  %5: f32[4,4] = permute(%1, dims=[1,0])
  %6: f32[4,4] = mul.Tensor(%5, %5)
  %7: f32[B,4] = mm(%4, %6)
  %8: f32[4,4] = permute(%1, dims=[1,0])
  %9: f32[4,4] = mul.Tensor(%8, %8)
  return result "output" %7, result "weight" %9
}
"#
    );
}

#[test]
fn copies_of_chains_are_bounded() {
    // 1,500 consumers of a chain of 1,500 nodes would be 2.2 million nodes.
    let mut text =
        String::from("graph \"g\" {\n  %0: f32[B] = data \"x\"\n  %1: f32[1] = parameter \"w\"\n");
    for node in 2..1502 {
        text.push_str(&format!("  %{node}: f32[1] = exp(%{})\n", node - 1));
    }
    text.push_str("  %1502: f32[B] = mul.Tensor(%0, %1501)\n");
    for node in 1503..3002 {
        text.push_str(&format!(
            "  %{node}: f32[B] = mul.Tensor(%{}, %1501)\n",
            node - 1
        ));
    }
    text.push_str("  return result \"y\" %3001\n}\n");
    assert_eq!(parse(&text).canonicalize(), Err(GraphError::TooManyValues));
}

#[test]
fn a_batch_norm_needs_two_values_a_channel() {
    let text = r#"graph "g" {
  %0: f32[B,4,1,1] = data "input"
  %1: f32[4] = buffer "mean"
  %2: f32[4] = buffer "var"
  %3: f32[B,4,1,1], %4: f32[4], %5: f32[4], %6: f32[4], %7: f32[4] = _native_batch_norm_legit_functional(%0, none, none, %1, %2, momentum=0.1, eps=1e-5)
  return result "output" %3, buffer_update "mean" %6
}
"#;
    let graph = parse(text);
    assert_eq!(graph.min_batch(), 2);
    assert_eq!(parse(&text.replace("1,1]", "1,2]")).min_batch(), 1);
    let error = graph.instantiate(1).unwrap_err().to_string();
    assert!(error.contains("a batch of 1: node 0"), "{error}");
    assert!(error.contains("more than 1 value per channel"), "{error}");
    assert!(graph.instantiate(2).is_ok());
    // In evaluation one sample is enough.
    let evaluation = graph.evaluation().unwrap();
    assert_eq!(evaluation.min_batch(), 1);
    assert!(evaluation.instantiate(1).is_ok());
    assert!(matches!(
        evaluation.nodes[0].op,
        Op::BatchNormInference { .. }
    ));
    assert_eq!(evaluation.outputs.len(), 1);
    assert!(graph.instantiate(0).is_err());
    assert!(graph.instantiate(usize::MAX).is_err());
    assert!(graph.instantiate(1 << 40).is_err());
}

#[test]
fn evaluation_refuses_what_has_no_meaning_there() {
    let graph = parse(
        r#"graph "g" {
  %0: f32[B,4] = data "input"
  %1: f32[B,4], %2: bool[B,4] = native_dropout(%0, p=0.5, key=1)
  %3: f32[B,4] = _to_copy(%2, dtype=f32)
  return result "output" %1, result "mask" %3
}
"#,
    );
    assert!(graph.evaluation().is_err());
}

#[test]
fn the_peak_is_counted_by_hand() {
    // Bytes of f32[2,4]: 32.
    //            x a b c
    // relu       x a        64
    // relu         a b      64
    // add          a b c    96
    let graph = parse(
        r#"graph "g" {
  %0: f32[B,4] = data "x"
  %1: f32[B,4] = relu(%0)
  %2: f32[B,4] = relu(%1)
  %3: f32[B,4] = add.Tensor(%1, %2, alpha=1.0)
  return result "c" %3, saved "%3" %3
}
"#,
    );
    assert!(graph.peak_bytes(|_| false).is_err());
    let concrete = graph.instantiate(2).unwrap();
    assert_eq!(concrete.peak_bytes(|_| false), Ok(96));
    assert_eq!(concrete.peak_bytes(|_| true), Ok(128));
    assert_eq!(concrete.input_bytes(&[InputKind::Data]), Ok(32));
    assert_eq!(concrete.output_bytes(&OutputKind::ALL), Ok(32));
    assert_eq!(concrete.output_bytes(&[OutputKind::Activation]), Ok(0));
}

#[test]
fn one_node_is_a_program() {
    let graph = parse(
        r#"graph "g" {
  %0: f32[2,4] = data "x"
  %1: f32[2,4] = relu(%0)
  %2: f32[2,4] = add.Tensor(%1, %0, alpha=1.0) @ "skip"
  return result "y" %2
}
"#,
    );
    assert_eq!(
        graph.single_node(1).unwrap().to_string(),
        r#"graph "add.Tensor" {
  %0: f32[2,4] = data "0"
  %1: f32[2,4] = data "1"
  %2: f32[2,4] = add.Tensor(%0, %1, alpha=1.0)
  return result "0" %2
}
"#
    );
    assert_eq!(graph.single_node(2), None);
}
