//! The programs that differentiation makes, as people read them, and what holds for all of them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod support;

use outboard_graph::{AutodiffError, Graph, InputKind, Op, OutputKind, Stage, stage_programs, zoo};
use support::{check_programs, stage};

/// A convolution, its norm and a skip connection in the middle of a pipeline: `%0` comes in, `%9` goes out, and `%0` is sent on
/// to a later reader.
const MIDDLE: &str = r#"graph "middle" {
  %0: f32[B,4,8,8] = activation "%0"
  %1: f32[4,4,3,3] = parameter "conv.weight"
  %2: f32[4] = parameter "bn.weight"
  %3: f32[4] = parameter "bn.bias"
  %4: f32[4] = buffer "bn.running_mean"
  %5: f32[4] = buffer "bn.running_var"
  %6: f32[B,4,8,8] = convolution(%0, %1, none, stride=[1,1], padding=[1,1], dilation=[1,1], groups=1) @ "conv" #7
  %7: f32[B,4,8,8], %8: f32[4], %9: f32[4], %10: f32[4], %11: f32[4] = _native_batch_norm_legit_functional(%6, %2, %3, %4, %5, momentum=0.1, eps=1e-5) @ "bn" #8
  %12: f32[B,4,8,8] = relu(%7) @ "relu" #9
  %13: f32[B,4,8,8] = add.Tensor(%12, %0, alpha=1.0) #10
  return buffer_update "bn.running_mean" %10, buffer_update "bn.running_var" %11, activation "%0" %0, activation "%13" %13
}
"#;

#[test]
fn a_stage_in_the_middle_gives_three_programs() {
    let programs = stage_programs(&stage(MIDDLE, &["%0", "%13"])).unwrap();
    check_programs(&stage(MIDDLE, &["%0", "%13"]), &programs);
    // The relu's result is saved, not its operand; the norm's statistics and operand; the convolution's operand.
    let saved = programs.forward.outputs.iter();
    let saved: Vec<&str> = (saved.filter(|output| output.kind == OutputKind::Saved))
        .map(|output| output.name.as_str())
        .collect();
    assert_eq!(saved, ["%0", "%6", "%8", "%9", "%12"]);
    // The cotangent of %0 starts with what the next stage sends, then adds the later reader's share, then the earlier one's.
    assert_eq!(
        programs.backward.to_string(),
        r#"graph "middle.B" {
  %0: f32[B,4,8,8] = cotangent "%0"
  %1: f32[B,4,8,8] = cotangent "%13"
  %2: f32[B,4,8,8] = saved "%12"
  %3: f32[B,4,8,8] = saved "%6"
  %4: f32[4] = parameter "bn.weight"
  %5: f32[4] = saved "%8"
  %6: f32[4] = saved "%9"
  %7: f32[4,4,3,3] = parameter "conv.weight"
  %8: f32[B,4,8,8] = add.Tensor(%0, %1, alpha=1.0) #10
  %9: f32[B,4,8,8] = threshold_backward(%1, %2, threshold=0.0) @ "relu" #9
  %10: f32[B,4,8,8], %11: f32[4], %12: f32[4] = native_batch_norm_backward(%9, %3, %4, %5, %6, eps=1e-5) @ "bn" #8
  %13: f32[B,4,8,8] = convolution_backward.input(%10, %7, input_shape=[B,4,8,8], stride=[1,1], padding=[1,1], dilation=[1,1], groups=1) @ "conv" #7
  %14: f32[B,4,8,8] = add.Tensor(%8, %13, alpha=1.0) @ "conv" #7
  return cotangent "%0" %14, parameter_gradient "bn.weight#8.1" %11, parameter_gradient "bn.bias#8.2" %12, saved "b%10" %10
}
"#
    );
    assert_eq!(
        programs.weight.to_string(),
        r#"graph "middle.W" {
  %0: f32[B,4,8,8] = saved "%0"
  %1: f32[B,4,8,8] = saved "b%10"
  %2: f32[4,4,3,3] = convolution_backward.weight(%1, %0, weight_shape=[4,4,3,3], stride=[1,1], padding=[1,1], dilation=[1,1], groups=1) @ "conv" #7
  return parameter_gradient "conv.weight#7.1" %2
}
"#
    );
    assert_eq!(programs.normaliser, None);
}

/// One weight, used as it is, transposed, and twice within a chain of its own.
const TIED: &str = r#"graph "tied" {
  %0: f32[B,3] = data "input"
  %1: f32[3,3] = parameter "weight"
  %2: f32[3,3] = frozen "scale"
  %3: f32[B,3] = mm(%0, %1) @ "first"
  %4: f32[3,3] = permute(%1, dims=[1,0]) @ "second"
  %5: f32[B,3] = mm(%3, %4) @ "second"
  %6: f32[3,3] = mul.Tensor(%1, %2) @ "third"
  %7: f32[3,3] = add.Tensor(%6, %1, alpha=1.0) @ "third"
  %8: f32[B,3] = mm(%5, %7) @ "third"
  %9: f32[] = sum.dim_IntList(%8, dims=[], keepdim=false)
  return loss_sum "loss" %9
}
"#;

#[test]
fn every_use_of_a_weight_has_a_gradient_of_its_own() {
    let stage = Stage::whole(TIED.parse().unwrap());
    let programs = stage_programs(&stage).unwrap();
    check_programs(&stage, &programs);
    // Nothing to send back: B only passes the loss's cotangent on, and W does the work.
    assert_eq!(
        programs.backward.to_string(),
        r#"graph "tied.B" {
  %0: f32[] = cotangent "loss"
  return saved "b%0" %0
}
"#
    );
    // The third use's chain is computed again, for it is derived from weights alone. The second use's gradient needs no
    // transposition.
    assert_eq!(
        programs.weight.to_string(),
        r#"graph "tied.W" {
  %0: f32[3,3] = parameter "weight"
  %1: f32[3,3] = frozen "scale"
  %2: f32[B,3] = saved "%5"
  %3: f32[B,3] = saved "%3"
  %4: f32[B,3] = saved "%0"
  %5: f32[] = saved "b%0"
  %6: f32[B,3] = expand(%5, shape=[B,3]) #6
  %7: f32[3,3] = mul.Tensor(%0, %1) @ "third" #3
  %8: f32[3,3] = add.Tensor(%7, %0, alpha=1.0) @ "third" #4
  %9: f32[3,3] = permute(%8, dims=[1,0]) @ "third" #5
  %10: f32[B,3] = mm(%6, %9) @ "third" #5
  %11: f32[3,B] = permute(%2, dims=[1,0]) @ "third"
  %12: f32[3,3] = mm(%11, %6) @ "third" #5
  %13: f32[3,3] = mul.Tensor(%12, %1) @ "third" #3
  %14: f32[3,3] = add.Tensor(%12, %13, alpha=1.0) @ "third" #3
  %15: f32[B,3] = mm(%10, %0) @ "second" #2
  %16: f32[3,B] = permute(%10, dims=[1,0]) @ "second" #1
  %17: f32[3,3] = mm(%16, %3) @ "second" #1
  %18: f32[3,B] = permute(%4, dims=[1,0]) @ "first" #0
  %19: f32[3,3] = mm(%18, %15) @ "first" #0
  return parameter_gradient "weight#0.1" %19, parameter_gradient "weight#2.1" %17, parameter_gradient "weight#5.1" %14
}
"#
    );
}

/// What is differentiable, one operator at a time: a node on `%0` (and more), in text.
const EXAMPLES: &[&str] = &[
    "%10: f32[B,4,4,4] = convolution(%4, %5, %6, stride=[2,2], padding=[1,1], dilation=[1,1], groups=2)",
    "%10: f32[B,3] = addmm(%3, %0, %2)",
    "%10: f32[B,3] = mm(%0, %2)",
    "%10: f32[B,3,3] = bmm(%1, %1)",
    "%10: f32[B,3] = embedding(%2, %7, padding_idx=0)",
    "%10: f32[B,4,8,8], %11: f32[4], %12: f32[4], %13: f32[4], %14: f32[4] = _native_batch_norm_legit_functional(%4, %6, %6, %8, %8, momentum=0.1, eps=1e-5)",
    "%10: f32[B,4,8,8] = _native_batch_norm_legit_no_training(%4, %6, %6, %8, %8, momentum=0.1, eps=1e-5)",
    "%10: f32[B,3,3], %11: f32[B,3,1], %12: f32[B,3,1] = native_layer_norm(%1, %3, %3, normalized_shape=[3], eps=1e-5)",
    "%10: f32[B,3] = _softmax(%0, dim=1)",
    "%10: f32[B,3] = _log_softmax(%0, dim=1)",
    "%10: f32[B,4,4,4], %11: i64[B,4,4,4] = max_pool2d_with_indices(%4, kernel_size=[3,3], stride=[2,2], padding=[1,1], dilation=[1,1], ceil_mode=false)",
    "%10: f32[B,4,4,4] = avg_pool2d(%4, kernel_size=[2,2], stride=[2,2], padding=[0,0], ceil_mode=false, count_include_pad=true, divisor_override=none)",
    "%10: f32[B,4,2,2] = _adaptive_avg_pool2d(%4, output_size=[2,2])",
    "%10: f32[B,3] = relu(%0)",
    "%10: f32[B,3] = gelu(%0, tanh=true)",
    "%10: f32[B,3] = sigmoid(%0)",
    "%10: f32[B,3] = tanh(%0)",
    "%10: f32[B,3] = exp(%0)",
    "%10: f32[B,3] = log(%0)",
    "%10: f32[B,3] = sqrt(%0)",
    "%10: f32[B,3] = rsqrt(%0)",
    "%10: f32[B,3] = neg(%0)",
    "%10: f32[B,3] = add.Tensor(%0, %3, alpha=2.0)",
    "%10: f32[B,3,3] = sub.Tensor(%1, %3, alpha=1.0)",
    "%10: f32[B,3] = mul.Tensor(%3, %0)",
    "%10: f32[B,3] = div.Tensor(%3, %0)",
    "%10: f32[B,3] = add.Scalar(%0, scalar=2.0)",
    "%10: f32[B,3] = mul.Scalar(%0, scalar=2.0)",
    "%10: f32[B,3] = pow.Tensor_Scalar(%0, exponent=3.0)",
    "%10: f16[B,3] = _to_copy(%0, dtype=f16)",
    "%10: f32[B,3], %11: bool[B,3] = native_dropout(%0, p=0.5, key=1)",
    "%10: f32[B,4] = sum.dim_IntList(%4, dims=[2,3], keepdim=false)",
    "%10: f32[1,3] = mean.dim(%0, dims=[0], keepdim=true)",
    "%10: f32[3B] = view(%0, shape=[3B])",
    "%10: f32[4,8,B,8] = permute(%4, dims=[1,3,0,2])",
    "%10: f32[2,B,3] = expand(%0, shape=[2,B,3])",
    "%10: f32[B,3] = clone(%0)",
    "%10: f32[B,6] = cat(%0, %0, dim=1)",
    "%10: f32[B,4,3,8] = slice.Tensor(%4, dim=2, start=1, end=7, step=2)",
    "%10: f32[B,8,8] = select.int(%4, dim=1, index=2)",
    "%10: f32[B,1,8,8], %11: f32[B,3,8,8] = split_with_sizes(%4, sizes=[1,3], dim=1)",
    "%10: f32[B,3] = squeeze.dims(%9, dims=[1])",
    "%10: f32[B,1,3] = unsqueeze(%0, dim=1)",
    "%10: f32[B,4,8,10] = constant_pad_nd(%4, pad=[3,-1], value=1.0)",
    "%10: f32[], %11: f32[] = nll_loss_forward(%0, %7, none, reduction=sum, ignore_index=-100)",
];

/// Operators of sources: nothing flows back through them.
const SOURCES: [&str; 2] = ["full", "sym_numel"];

fn example(node: &str) -> Stage {
    let results = node.split(" = ").next().unwrap().split(", %");
    let returned: Vec<String> = results
        .map(|result| {
            format!(
                "%{}",
                result.split(':').next().unwrap().trim_start_matches('%')
            )
        })
        .filter(|result| node.contains("split") || result == "%10")
        .map(|result| format!("activation \"{result}\" {result}"))
        .collect();
    let text = format!(
        "graph \"example\" {{
  %0: f32[B,3] = activation \"%0\"
  %1: f32[B,3,3] = activation \"%1\"
  %2: f32[3,3] = parameter \"matrix\"
  %3: f32[3] = parameter \"row\"
  %4: f32[B,4,8,8] = activation \"%4\"
  %5: f32[4,2,3,3] = parameter \"kernel\"
  %6: f32[4] = parameter \"channels\"
  %7: i64[B] = data \"indices\"
  %8: f32[4] = buffer \"statistics\"
  %9: f32[B,1,3] = activation \"%9\"
  {node}
  return {}
}}
",
        returned.join(", ")
    );
    stage(&text, &["%0", "%1", "%4", "%9", "%10", "%11"])
}

#[test]
fn every_operator_has_a_gradient_or_is_known_to_have_none() {
    let mut missing: Vec<&str> = Op::NAMES.to_vec();
    for node in EXAMPLES {
        let stage = example(node);
        let name = stage.graph.nodes[0].op.name();
        missing.retain(|other| *other != name);
        let programs = stage_programs(&stage).unwrap_or_else(|error| panic!("{node}: {error}"));
        check_programs(&stage, &programs);
        // Some gradient leaves through the node: zeros would have no cotangent to come from.
        let seeded = |graph: &Graph| graph.inputs.iter().any(|i| i.kind == InputKind::Cotangent);
        assert!(seeded(&programs.backward), "{node}");
    }
    missing.retain(|name| !SOURCES.contains(name) && !name.contains("_backward"));
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn what_cannot_be_differentiated_is_named() {
    let second_order = r#"graph "second" {
  %0: f32[B,3] = activation "%0"
  %1: f32[B,3] = data "input"
  %2: f32[B,3] = tanh_backward(%0, %1) @ "penalty"
  return activation "%2" %2
}
"#;
    let error = stage_programs(&stage(second_order, &["%0", "%2"])).unwrap_err();
    assert!(matches!(error, AutodiffError::NoRule { .. }));
    assert_eq!(
        error.to_string(),
        "`tanh_backward` (at \"penalty\") has no gradient; freeze the parameters before it or replace it"
    );

    let batched = r#"graph "batched" {
  %0: f32[B,3] = activation "%0"
  %1: f32[2B,3] = cat(%0, %0, dim=0) @ "pairs"
  return activation "%1" %1
}
"#;
    let error = stage_programs(&stage(batched, &["%0", "%1"])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`cat` (at \"pairs\"): concatenation along the batch mixes samples; concatenate along another dimension"
    );

    let loss = |returned: &str| {
        let text = format!(
            "graph \"loss\" {{
  %0: f32[3] = parameter \"weight\"
  %1: f32[B,3] = data \"input\"
  %2: f32[B,3] = mul.Tensor(%1, %0)
  %3: f32[] = sum.dim_IntList(%2, dims=[], keepdim=false)
  %4: f32[] = sum.dim_IntList(%0, dims=[], keepdim=false)
  return {returned}
}}
"
        );
        stage_programs(&Stage::whole(text.parse().unwrap()))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        loss("loss_sum \"loss\" %4"),
        "loss \"loss\": it depends on parameters alone; add it to a loss that depends on data"
    );
    assert_eq!(
        loss("loss_sum \"loss\" %3, loss_weight \"loss\" %4"),
        "loss \"loss\": what the loss is divided by must depend on data and constants alone, so that it is known before the forward pass"
    );
}

#[test]
fn nothing_trainable_means_nothing_to_do() {
    let frozen = MIDDLE.replace("parameter", "frozen");
    let stage = stage(&frozen, &[]);
    let programs = stage_programs(&stage).unwrap();
    check_programs(&stage, &programs);
    for program in [&programs.backward, &programs.weight] {
        assert!(
            program.nodes.is_empty() && program.inputs.is_empty() && program.outputs.is_empty()
        );
    }
    assert!(
        programs
            .forward
            .outputs
            .iter()
            .all(|output| output.kind != OutputKind::Saved)
    );
}

#[test]
fn the_zoo_differentiates_whole_and_every_parameter_gets_a_gradient() {
    for name in zoo::NAMES {
        let graph = zoo::build(name, &support::small()).unwrap();
        let stage = Stage::whole(graph);
        let programs = stage_programs(&stage).unwrap();
        check_programs(&stage, &programs);
        assert!(programs.backward.nodes.is_empty(), "{name}");
        let parameters = stage
            .graph
            .inputs
            .iter()
            .filter(|i| i.kind == InputKind::Parameter);
        let uses: Vec<&str> = (programs.weight.outputs.iter())
            .map(|output| output.name.rsplit_once('#').unwrap().0)
            .collect();
        for parameter in parameters {
            let count = uses.iter().filter(|name| **name == parameter.name).count();
            assert_eq!(count, 1, "{name}: {}", parameter.name);
        }
    }
}
