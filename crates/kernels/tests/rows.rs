//! Layer norm, softmax and GELU against plain loops in f64, over generated shapes, with poisoned outputs, for every set of
//! instructions.

mod common;

use common::numbers;
use outboard_kernels::{
    Isa, LayerNormGradient, Softmax, gelu, gelu_gradient, gelu_tanh, gelu_tanh_gradient,
    layer_norm, softmax, softmax_gradient,
};
use proptest::prelude::*;

fn close(what: &str, got: f32, expected: f64, tolerance: f64) {
    let error = (f64::from(got) - expected).abs();
    assert!(
        error <= tolerance * expected.abs().max(1.0),
        "{what}: {got} for {expected}"
    );
}

fn check_layer_norm(rows: usize, width: usize, affine: bool) {
    const EPS: f64 = 1e-3;
    let (x, grad) = (numbers(rows * width, 1), numbers(rows * width, 2));
    let (weight, bias) = (numbers(width, 3), numbers(width, 4));
    let (weight, bias) = (affine.then_some(&weight[..]), affine.then_some(&bias[..]));
    for isa in Isa::all() {
        let nan = |count: usize| vec![f32::NAN; count];
        let (mut out, mut means, mut rstds) = (nan(x.len()), nan(rows), nan(rows));
        layer_norm(&x, weight, bias, EPS, &mut out, &mut means, &mut rstds, isa);
        let (mut dx, mut dw, mut db) = (nan(x.len()), nan(width), nan(width));
        let of = LayerNormGradient {
            grad: &grad,
            x: &x,
            means: &means,
            rstds: &rstds,
            weight,
        };
        of.gradients(&mut dx, &mut dw, &mut db, isa);
        let (mut expected_dw, mut expected_db) = (vec![0.0_f64; width], vec![0.0_f64; width]);
        for row in 0..rows {
            let at = |i: usize| f64::from(x[row * width + i]);
            let of_weight = |i: usize| weight.map_or(1.0, |w| f64::from(w[i]));
            let count = width as f64;
            let mean = (0..width).map(at).sum::<f64>() / count;
            let squares = (0..width).map(|i| (at(i) - mean).powi(2));
            let rstd = 1.0 / (squares.sum::<f64>() / count + EPS).sqrt();
            let normal = |i: usize| (at(i) - mean) * rstd;
            let dy = |i: usize| f64::from(grad[row * width + i]);
            let scaled = |i: usize| dy(i) * of_weight(i);
            let total = (0..width).map(scaled).sum::<f64>() / count;
            let dot = (0..width).map(|i| scaled(i) * normal(i)).sum::<f64>() / count;
            close("mean", means[row], mean, 1e-6);
            close("deviation", rstds[row], rstd, 1e-5);
            for i in 0..width {
                let expected = normal(i) * of_weight(i) + bias.map_or(0.0, |b| f64::from(b[i]));
                close("output", out[row * width + i], expected, 1e-4);
                let expected = rstd * (scaled(i) - total - normal(i) * dot);
                close("input gradient", dx[row * width + i], expected, 1e-3);
                expected_dw[i] += dy(i) * normal(i);
                expected_db[i] += dy(i);
            }
        }
        for i in 0..width {
            close("weight gradient", dw[i], expected_dw[i], 1e-3);
            close("bias gradient", db[i], expected_db[i], 1e-5);
        }
    }
}

fn check_softmax(outer: usize, length: usize, inner: usize) {
    let count = outer * length * inner;
    let x: Vec<f32> = numbers(count, 1).iter().map(|x| x * 20.0).collect();
    let grad = numbers(count, 2);
    let line = |block: usize, column: usize| {
        (0..length).map(move |i| (block * length + i) * inner + column)
    };
    for isa in Isa::all() {
        for kind in [Softmax::Plain, Softmax::Log] {
            let (mut y, mut dx) = (x.clone(), grad.clone());
            softmax(kind, &mut y, length, inner, isa);
            softmax_gradient(kind, &mut dx, &y, length, inner, isa);
            for (block, column) in (0..outer).flat_map(|b| (0..inner).map(move |c| (b, c))) {
                let at = |i: usize| f64::from(x[i]);
                let max = line(block, column)
                    .map(at)
                    .fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = line(block, column).map(|i| (at(i) - max).exp()).sum();
                let probability = |i: usize| (at(i) - max).exp() / total;
                let dy = |i: usize| f64::from(grad[i]);
                let sum: f64 = line(block, column).map(dy).sum();
                let dot: f64 = line(block, column).map(|i| dy(i) * probability(i)).sum();
                for i in line(block, column) {
                    let (expected, slope) = match kind {
                        Softmax::Plain => (probability(i), probability(i) * (dy(i) - dot)),
                        Softmax::Log => (at(i) - max - total.ln(), dy(i) - probability(i) * sum),
                    };
                    close("softmax", y[i], expected, 1e-5);
                    close("gradient", dx[i], slope, 1e-4);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn layer_norm_is_right(rows in 1..40_usize, width in 1..200_usize, affine in any::<bool>()) {
        check_layer_norm(rows, width, affine);
    }

    #[test]
    fn softmax_is_right(outer in 1..6_usize, length in 1..60_usize, inner in 1..40_usize) {
        check_softmax(outer, length, inner);
    }

    /// The slope is that of the function; far out it is the identity, and zero.
    #[test]
    fn gelu_has_its_gradient(x in -6.0_f64..6.0) {
        const STEP: f32 = 1.0 / 64.0;
        for (f, slope) in [(gelu as fn(f32) -> f32, gelu_gradient as fn(f32, f32) -> f32), (gelu_tanh, gelu_tanh_gradient)] {
            let x = x as f32;
            let difference = (f64::from(f(x + STEP)) - f64::from(f(x - STEP))) / f64::from(2.0 * STEP);
            prop_assert!((f64::from(slope(2.0, x)) - 2.0 * difference).abs() < 1e-3);
            prop_assert!((f(x + 20.0) - (x + 20.0)).abs() < 1e-5 && f(x - 20.0).abs() < 1e-5);
            prop_assert!((f(x) - gelu(x)).abs() < 1e-3);
        }
    }
}

#[test]
fn a_line_with_a_nan_is_nan() {
    for isa in Isa::all() {
        let mut x = [1.0, f32::NAN, 2.0, 0.5];
        softmax(Softmax::Plain, &mut x, 4, 1, isa);
        assert!(x.iter().all(|x| x.is_nan()));
    }
}
