//! Every operator against the reference engine.

use std::collections::BTreeSet;

use outboard_exec::{CpuExecutor, Executor, Reference};
use outboard_graph::{DType, Op, Tensor};

use crate::cases::{Case, Rounding, large, small};

/// The unit roundoff of f32: the greatest relative error of one rounding.
const ROUNDOFF: f64 = 1.0 / (1 << 24) as f64;

fn numbers(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F32 => {
            let floats = tensor.to_f32_vec().unwrap();
            floats.into_iter().map(f64::from).collect()
        }
        DType::I64 => tensor
            .to_i64_vec()
            .unwrap()
            .iter()
            .map(|&x| x as f64)
            .collect(),
        // Two-byte floats are compared by their bits.
        _ => tensor.data().iter().map(|&x| f64::from(x)).collect(),
    }
}

/// What the reference gives, before it is rounded to f32, on these inputs or on their magnitudes.
fn reference(case: &Case, inputs: &[Tensor], magnitudes: bool) -> Vec<Vec<f64>> {
    let plan = Reference.compile(&case.graph()).unwrap();
    let inputs = (inputs.iter())
        .map(|x| {
            let x = if magnitudes && x.dtype() == DType::F32 {
                let elements = x.to_f32_vec().unwrap();
                let elements: Vec<f32> = elements.into_iter().map(f32::abs).collect();
                &Tensor::from_f32(x.dims(), &elements).unwrap()
            } else {
                x
            };
            Reference.upload(x).unwrap()
        })
        .collect();
    let outputs = Reference.run(&plan, inputs, crate::cases::KEY).unwrap();
    (outputs.iter())
        .map(|y| match y.dtype() {
            DType::F16 | DType::BF16 => numbers(&Reference.download(y).unwrap()),
            _ => y.to_f64_vec(),
        })
        .collect()
}

fn check(case: &Case) {
    let inputs = case.inputs();
    let found = case.run(&CpuExecutor::new(), &inputs);
    let exact = reference(case, &inputs, false);
    let magnitudes = match case.rounding {
        Rounding::Terms(_) => reference(case, &inputs, true),
        _ => exact.clone(),
    };
    assert_eq!(found.len(), exact.len(), "{case:?}");
    for (result, ((found, exact), magnitudes)) in
        found.iter().zip(&exact).zip(&magnitudes).enumerate()
    {
        let dtype = found.dtype();
        let found = numbers(found);
        assert_eq!(found.len(), exact.len(), "{case:?}");
        let greatest = exact.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
        for (index, ((found, exact), magnitude)) in
            found.iter().zip(exact).zip(magnitudes).enumerate()
        {
            let tolerance = match case.rounding {
                _ if dtype != DType::F32 => 0.0,
                Rounding::Exact => 0.0,
                Rounding::Steps(steps) => steps * ROUNDOFF * greatest,
                Rounding::Terms(terms) => (terms + 2) as f64 * ROUNDOFF * magnitude.abs(),
            };
            let same = found.to_bits() == exact.to_bits() || (found - exact).abs() <= tolerance;
            assert!(
                same,
                "result {result}, element {index}: {found} instead of {exact}, tolerance {tolerance:e}: {case:?}"
            );
        }
    }
}

#[test]
fn every_case_agrees_with_the_reference() {
    let cases = small();
    cases.iter().for_each(check);
    let names: BTreeSet<&str> = cases.iter().map(|case| case.op.name()).collect();
    let all: BTreeSet<&str> = Op::NAMES.iter().copied().collect();
    assert_eq!(names, all, "every operator has a case");
}

#[test]
fn large_products_agree_with_the_reference() {
    // The others are slow in the reference and do nothing new when they are large.
    let cases = large().into_iter();
    cases
        .filter(|case| matches!(case.op, Op::Mm {} | Op::Bmm {} | Op::Addmm {}))
        .for_each(|case| check(&case));
}
