//! The text form prints and parses, and refuses everything else with a place.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use outboard_graph::{Graph, TextError};
use proptest::prelude::*;

const RESIDUAL: &str = r#"graph "residual \"block\"" {
  %0: f32[B,4,8,8] = data "input"
  %1: f32[4,4,3,3] = parameter "conv.weight"
  %2: f32[4] = parameter "bn.weight"
  %3: f32[4] = frozen "bn.bias"
  %4: f32[4] = buffer "bn.running_mean"
  %5: f32[4] = buffer "bn.running_var"
  %6: f32[B,4,8,8] = convolution(%0, %1, none, stride=[1,1], padding=[1,1], dilation=[1,1], groups=1) @ "conv"
  %7: f32[B,4,8,8], %8: f32[4], %9: f32[4], %10: f32[4], %11: f32[4] = _native_batch_norm_legit_functional(%6, %2, %3, %4, %5, momentum=0.1, eps=1e-5) @ "bn"
  %12: f32[B,4,8,8] = add.Tensor(%7, %0, alpha=1.0) #9
  %13: f32[B,4,4,4], %14: i64[B,4,4,4] = max_pool2d_with_indices(%12, kernel_size=[2,2], stride=[2,2], padding=[0,0], dilation=[1,1], ceil_mode=false)
  %15: f32[B,64] = view(%13, shape=[B,64])
  %16: f32[B,64], %17: bool[B,64] = native_dropout(%15, p=0.5, key=18446744073709551615)
  %18: f32[64B,1] = view(%16, shape=[64B,1])
  %19: f32[1,64] = full(shape=[1,64], value=-inf, dtype=f32)
  return result "output" %18, buffer_update "bn.running_mean" %10, buffer_update "bn.running_var" %11
}
"#;

#[test]
fn canonical_text_survives() {
    let graph: Graph = RESIDUAL.parse().unwrap();
    assert_eq!(graph.to_string(), RESIDUAL);
    assert_eq!(graph.name, "residual \"block\"");
    assert_eq!(graph.nodes[2].origin, 9);
    assert_eq!(graph.nodes[0].scope, "conv");
    assert_eq!(
        graph.node_text(2),
        "%12: f32[B,4,8,8] = add.Tensor(%7, %0, alpha=1.0) #9"
    );
    assert_eq!(
        graph.nodes[7].op.to_string(),
        "full(shape=[1,64], value=-inf, dtype=f32)"
    );
}

#[track_caller]
fn refused(from: &str, to: &str, wanted: &str) {
    assert!(RESIDUAL.contains(from), "{from}");
    let error = RESIDUAL.replace(from, to).parse::<Graph>().unwrap_err();
    assert!(error.to_string().contains(wanted), "{error}");
}

#[test]
fn mistakes_are_named() {
    refused(
        "groups=1",
        "groups=one",
        "line 8, column 100: `one` is not a size",
    );
    refused("groups=1)", "groups=1", "line 8, column 102: expected `)`");
    refused("add.Tensor", "add.Tenser", "unknown operator `add.Tenser`");
    refused("%0, %1, none", "%0, %6, none", "%6 is not defined yet");
    refused(
        "%12: f32[B,4,8,8]",
        "%12: f32[B,4,8,9]",
        "%12 is f32[B,4,8,8], not f32[B,4,8,9]",
    );
    refused("%12: f32", "%11: f32", "%11 is defined twice");
    refused("%19: f32", "%20: f32", "%19 is not defined");
    refused("momentum=0.1, ", "", "expected attribute `momentum`");
    refused(
        "\"bn.bias\"",
        "\"bn.weight\"",
        "two inputs are named frozen \"bn.weight\"",
    );
    refused(
        "f32[4] = buffer \"bn.running_var\"",
        "f32[1B] = buffer \"x\"",
        "`1B` is not a dimension",
    );
    refused(
        "\"bn.running_var\" %11",
        "\"bn.running_x\" %11",
        "no buffer of this name",
    );
    refused(
        "shape=[B,64]",
        "shape=[B,65]",
        "as many elements as f32[B,65]",
    );
    refused(
        "return result",
        "return gift",
        "`gift` is not a kind of output",
    );
    refused("}\n", "}\n}", "text after the graph's end");
}

#[test]
fn no_truncation_parses() {
    // The last two bytes are `}` and the newline, which may be missing.
    for length in 0..RESIDUAL.len() - 2 {
        let text = &RESIDUAL[..length];
        assert!(
            matches!(text.parse::<Graph>(), Err(TextError::Syntax { .. })),
            "{text}"
        );
    }
}

/// What the grammar is made of, and what it is not.
const TOKENS: &[&str] = &[
    "graph",
    "\"g\"",
    "{",
    "}",
    "%0",
    "%1",
    "%2",
    "%4294967295",
    "%99999999999",
    ":",
    "=",
    "(",
    ")",
    ",",
    "@",
    "#",
    "#7",
    "return",
    "result",
    "loss_sum",
    "data",
    "parameter",
    "buffer",
    "buffer_update",
    "activation",
    "\"x\"",
    "\"",
    "\\",
    "\"\\u{110000}\"",
    "f32[B,4]",
    "f32[4]",
    "i64[B]",
    "f32[]",
    "f32[",
    "bool[7B,2147483647]",
    "none",
    "relu",
    "relu(%0)",
    "add.Tensor(%0, %1, alpha=1.0)",
    "cat(",
    "dim=0",
    "dim=18446744073709551615",
    "full(shape=[2],",
    "value=nan,",
    "dtype=f32",
    "[1,2]",
    "[[",
    "1e999",
    "-1",
    "\n",
    "\u{0}",
    "é",
];

proptest! {
    #![proptest_config(common::config(3000))]

    #[test]
    fn token_soup_never_panics(
        tokens in prop::collection::vec((0..TOKENS.len(), any::<bool>()), 0..40),
        start in any::<bool>(),
    ) {
        let mut text = String::new();
        if start {
            text.push_str("graph \"g\" {\n%0: f32[B,4] = data \"x\"\n");
        }
        for (token, space) in tokens {
            text.push_str(TOKENS[token]);
            text.push_str(if space { " " } else { "" });
        }
        if let Ok(graph) = text.parse::<Graph>() {
            prop_assert_eq!(graph.to_string().parse::<Graph>().unwrap(), graph);
        }
    }

    #[test]
    fn mutated_text_is_an_error_or_another_graph(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..TOKENS.len(), 0..3_usize), 1..4),
    ) {
        let mut text = RESIDUAL.to_owned();
        for (place, token, removed) in changes {
            let start = place.index(text.len());
            let end = (start + removed).min(text.len());
            if text.is_char_boundary(start) && text.is_char_boundary(end) {
                text.replace_range(start..end, TOKENS[token]);
            }
        }
        if let Ok(graph) = text.parse::<Graph>() {
            prop_assert_eq!(graph.to_string().parse::<Graph>().unwrap(), graph);
        }
    }
}

#[test]
fn sizes_are_bounded() {
    let long = "x".repeat(1025);
    for (text, wanted) in [
        (
            format!("graph \"{long}\" {{\n  return\n}}\n"),
            "a name of more than 1024 bytes",
        ),
        (
            format!(
                "graph \"g\" {{\n  %0: f32[{}1] = data \"x\"",
                "1,".repeat(8)
            ),
            "is not a type",
        ),
        (
            format!(
                "graph \"g\" {{\n  %0: f32[1] = cat({}%0",
                "%0, ".repeat(5000)
            ),
            "more than 4096 operands",
        ),
        (
            format!(
                "graph \"g\" {{\n  %0: f32[1] = full(shape=[{}1",
                "1,".repeat(5000)
            ),
            "a list of more than 4096 elements",
        ),
    ] {
        let error = text.parse::<Graph>().unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
