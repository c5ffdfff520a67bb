//! Shape and element type inference: a table of what PyTorch gives, and what every operator refuses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::collections::BTreeSet;

use common::cases::{CASES, Case, parse, program};
use outboard_graph::Op;
use proptest::prelude::*;

#[test]
fn the_table_covers_every_operator() {
    let covered: BTreeSet<&str> = CASES.iter().map(|case| case.op).collect();
    let all: BTreeSet<&str> = Op::NAMES.iter().copied().collect();
    assert_eq!(covered, all);
}

#[test]
fn shapes_are_pytorchs() {
    for case in CASES {
        // Parsing compares the results that the text claims with the inferred ones.
        let graph = parse(&case.text()).unwrap_or_else(|error| panic!("{}: {error}", case.text()));
        assert_eq!(graph.to_string(), case.text());
    }
}

#[test]
fn a_fixed_batch_infers_the_same() {
    for case in CASES {
        let symbolic = parse(&case.text()).unwrap();
        for batch in [2, 3] {
            let concrete = symbolic.instantiate(batch).unwrap();
            assert!(concrete.values.iter().all(|value| value.ty.is_concrete()));
            for (a, b) in symbolic.values.iter().zip(&concrete.values) {
                assert_eq!(a.ty.sizes(batch), b.ty.concrete());
            }
        }
    }
}

/// The same case with other operands must not be a graph.
#[track_caller]
fn refused(case: &Case, operands: &[&str]) {
    let text = program(case.op, operands, case.attributes, &case.results());
    assert!(parse(&text).is_err(), "{text}");
}

#[test]
fn every_operator_refuses_operands_too_few_or_too_many() {
    for case in CASES {
        let mut operands = case.operands();
        operands.push("f32[B,4]");
        refused(case, &operands);
        operands.pop();
        if operands.pop().is_some() {
            refused(case, &operands);
        }
    }
}

#[test]
fn every_operator_refuses_operands_of_other_types() {
    // Operators that take any element type still refuse the claim that the result is a float.
    for case in CASES {
        for position in 0..case.operands().len() {
            let old = case.operands()[position];
            if old == "none" {
                continue;
            }
            let with = |other: &str| {
                let mut operands = case.operands();
                operands[position] = other;
                refused(case, &operands);
            };
            if !["_to_copy", "sym_numel"].contains(&case.op) {
                let shape = &old[old.find('[').unwrap()..];
                let other = if old.starts_with("f32") { "i64" } else { "f32" };
                with(&format!("{other}{shape}"));
            }
            // One dimension more changes the result of all that do not reduce to a scalar.
            if case.op != "sym_numel" && !case.attributes.starts_with("dims=[],") {
                with(&old.replace('[', "[7,").replace(",]", "]"));
            }
        }
    }
}

#[test]
fn refusals_say_why() {
    let cases: &[(&str, &str, &str, &str, &str)] = &[
        (
            "convolution",
            "f32[B,3,8,8] f32[4,2,3,3] none",
            "stride=[1,1], padding=[1,1], dilation=[1,1], groups=1",
            "f32[B,4,8,8]",
            "operand 1 is f32[4,2,3,3], expected 3 input channels / 1 groups",
        ),
        (
            "convolution",
            "f32[B,3,8,8] f32[4,3,3,3] none",
            "stride=[0,1], padding=[1,1], dilation=[1,1], groups=1",
            "f32[B,4,8,8]",
            "attribute `stride` must not be zero",
        ),
        (
            "convolution",
            "f32[B,3,8,8] f32[4,3,3,3] none",
            "stride=[1], padding=[1,1], dilation=[1,1], groups=1",
            "f32[B,4,8,8]",
            "attribute `stride` has 1 elements, not 2",
        ),
        (
            "convolution",
            "f32[B,3,2,8] f32[4,3,3,3] none",
            "stride=[1,1], padding=[0,0], dilation=[1,1], groups=1",
            "f32[B,4,8,8]",
            "at least the window's 3 elements in padded dimension 2",
        ),
        (
            "convolution",
            "f32[B,3,8,8] f32[4,3,3,3] none",
            "stride=[1,1], padding=[9223372036854775807,1], dilation=[18446744073709551615,1], groups=1",
            "f32[B,4,8,8]",
            "is out of range",
        ),
        (
            "convolution",
            "f32[B,3,8,B] f32[4,3,3,3] none",
            "stride=[1,1], padding=[1,1], dilation=[1,1], groups=1",
            "f32[B,4,8,8]",
            "dimension 3 of operand 0 depends on the batch",
        ),
        (
            "max_pool2d_with_indices",
            "f32[B,1,8,8]",
            "kernel_size=[2,2], stride=[2,2], padding=[2,0], dilation=[1,1], ceil_mode=false",
            "f32[B,1,8,8] i64[B,1,8,8]",
            "more than half of the kernel's 2",
        ),
        (
            "add.Tensor",
            "f32[B,3] f32[B,4]",
            "alpha=1.0",
            "f32[B,4]",
            "operand 1 is f32[B,4], expected a shape that broadcasts with f32[B,3]",
        ),
        (
            "add.Tensor",
            "f32[B,3] f32[2,3]",
            "alpha=1.0",
            "f32[B,3]",
            "expected a shape that broadcasts",
        ),
        (
            "add.Tensor",
            "f32[B,3] i64[B,3]",
            "alpha=1.0",
            "f32[B,3]",
            "operand 1 is i64, not f32; insert `_to_copy`",
        ),
        (
            "_native_batch_norm_legit_functional",
            "f32[1,4] none none f32[4] f32[4]",
            "momentum=0.1, eps=1e-5",
            "f32[1,4] f32[4] f32[4] f32[4] f32[4]",
            "more than 1 value per channel",
        ),
        (
            "squeeze.dims",
            "f32[B,3]",
            "dims=[0]",
            "f32[3]",
            "dimension 0 of operand 0 depends on the batch",
        ),
        (
            "slice.Tensor",
            "f32[B,3]",
            "dim=1, start=2, end=2, step=1",
            "f32[B,0]",
            "an empty slice of 3 elements",
        ),
        (
            "permute",
            "f32[B,3]",
            "dims=[1,1]",
            "f32[3,3]",
            "names dimension 1 twice",
        ),
        (
            "view",
            "f32[B,4]",
            "shape=[4,4]",
            "f32[4,4]",
            "as many elements as f32[4,4]",
        ),
        (
            "native_dropout",
            "f32[B]",
            "p=1.5, key=0",
            "f32[B] bool[B]",
            "not a probability",
        ),
        (
            "full",
            "",
            "shape=[2147483648], value=0.0, dtype=f32",
            "f32[2147483648]",
            "dimension 0 is larger than 2147483647",
        ),
        (
            "full",
            "",
            "shape=[2147483647,2147483647], value=0.0, dtype=f32",
            "f32[2147483647,2147483647]",
            "more than 1099511627776 elements",
        ),
        (
            "full",
            "",
            "shape=[1], value=NaN, dtype=f32",
            "f32[1]",
            "is not a number",
        ),
        (
            "split_with_sizes",
            "f32[B,10]",
            "sizes=[3,18446744073709551615], dim=1",
            "f32[B,3] f32[B,7]",
            "must add up to the 10",
        ),
        (
            "constant_pad_nd",
            "f32[B,3]",
            "pad=[-9223372036854775808,9223372036854775807], value=0.0",
            "f32[B,3]",
            "attribute `pad` is",
        ),
    ];
    for (op, operands, attributes, results, reason) in cases {
        let operands: Vec<&str> = operands.split_whitespace().collect();
        let results: Vec<&str> = results.split_whitespace().collect();
        let error = parse(&program(op, &operands, attributes, &results)).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}\nnot: {reason}");
        assert!(
            error.to_string().starts_with(&format!("node 0 `{op}(")),
            "{error}"
        );
    }
}

/// Numbers that break unchecked arithmetic.
const EDGES: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "7",
    "B",
    "2B",
    "-1",
    "2147483647",
    "2147483648",
    "4294967296B",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e308",
    "-0.0",
    "inf",
];

proptest! {
    #![proptest_config(common::config(3000))]

    /// Any numbers in any operator: an error, or a graph that prints and parses.
    #[test]
    fn no_numbers_panic(
        which in 0..CASES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..EDGES.len()), 1..5),
    ) {
        let mut text = CASES[which].text();
        for (place, edge) in changes {
            // Replaces one run of digits.
            let runs: Vec<(usize, usize)> = digit_runs(&text);
            let (start, end) = runs[place.index(runs.len())];
            text.replace_range(start..end, EDGES[edge]);
        }
        if let Ok(graph) = parse(&text) {
            prop_assert_eq!(&parse(&graph.to_string()).unwrap(), &graph);
            for batch in [1, 3, usize::MAX] {
                if let Ok(concrete) = graph.instantiate(batch) {
                    concrete.verify().unwrap();
                    concrete.peak_bytes(|_| false).unwrap();
                }
            }
        }
    }
}

fn digit_runs(text: &str) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut start = None;
    for (index, byte) in text.bytes().enumerate() {
        match (byte.is_ascii_digit() || byte == b'B', start) {
            (true, None) => start = Some(index),
            (false, Some(from)) => {
                runs.push((from, index));
                start = None;
            }
            _ => {}
        }
    }
    runs
}
