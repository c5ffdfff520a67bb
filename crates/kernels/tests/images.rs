//! Batch norm, pooling and reordering against plain loops in f64, over generated shapes, with poisoned outputs and scratch
//! memory, for every set of instructions.

#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test is the test's failure"
)]

mod common;

use common::numbers;
use outboard_kernels::{
    Affine, Averaged, Gradient, Input, Isa, Pooling, Terms, Window, avg_pool, avg_pool_gradient,
    batch_norm_scratch, gradient_sums, input_gradient, max_pool, max_pool_gradient, moments,
    normalise, turn,
};
use proptest::prelude::*;

fn close(what: &str, got: f64, expected: f64, tolerance: f64) {
    let error = (got - expected).abs();
    assert!(
        error <= tolerance * expected.abs().max(1.0),
        "{what}: {got} for {expected}"
    );
}

fn check_batch_norm(rows: usize, channels: usize, offset: f32) {
    let x: Vec<f32> = (numbers(rows * channels, 1).into_iter())
        .map(|x| x + offset)
        .collect();
    let addend = numbers(x.len(), 2);
    let grad = numbers(x.len(), 3);
    let rectified: Vec<f32> = (numbers(x.len(), 4).into_iter())
        .map(|y| y.max(0.0))
        .collect();
    let lists = [5, 6, 7, 8].map(|seed| numbers(channels, seed));
    let column = |channel: usize| (0..rows).map(move |row| row * channels + channel);
    for isa in Isa::all() {
        let poison = || vec![f64::NAN; channels];
        let mut scratch = vec![f64::NAN; batch_norm_scratch(rows, channels)];
        let (mut mean, mut variance) = (poison(), poison());
        moments(&x, &mut mean, &mut variance, &mut scratch, isa);
        let (mut totals, mut dots) = (poison(), poison());
        let of = Gradient {
            grad: &grad,
            rectified: Some(&rectified),
        };
        scratch.fill(f64::NAN);
        gradient_sums(of, &x, &lists[0], &mut totals, &mut dots, &mut scratch, isa);
        for channel in 0..channels {
            let count = rows as f64;
            let at = |at: usize| f64::from(x[at]);
            let expected = column(channel).map(at).sum::<f64>() / count;
            close("mean", mean[channel], expected, 1e-9);
            let squares = column(channel).map(|i| (at(i) - expected).powi(2));
            close(
                "variance",
                variance[channel],
                squares.sum::<f64>() / count,
                1e-9,
            );
            let passed = |i: usize| {
                if rectified[i] <= 0.0 {
                    0.0
                } else {
                    f64::from(grad[i])
                }
            };
            close(
                "sum",
                totals[channel],
                column(channel).map(passed).sum(),
                1e-9,
            );
            let center = f64::from(lists[0][channel]);
            let dot = column(channel).map(|i| passed(i) * (at(i) - center));
            close("dot", dots[channel], dot.sum(), 1e-9);
        }
        let affine = Affine {
            mean: &lists[0],
            scale: &lists[1],
            shift: &lists[2],
        };
        let terms = Terms {
            mean: &lists[0],
            scale: &lists[1],
            slope: &lists[2],
            shift: &lists[3],
        };
        for (addend, relu) in [
            (None, false),
            (None, true),
            (Some(&addend[..]), true),
            (Some(&addend[..]), false),
        ] {
            let (mut out, mut in_place) = (vec![f32::NAN; x.len()], x.clone());
            normalise(Input::From(&x), affine, addend, relu, &mut out, isa);
            normalise(Input::InPlace, affine, addend, relu, &mut in_place, isa);
            assert_eq!(out, in_place);
            for (i, out) in out.iter().enumerate() {
                let [mean, scale, shift] =
                    [0, 1, 2].map(|list| f64::from(lists[list][i % channels]));
                let sum = (f64::from(x[i]) - mean) * scale
                    + shift
                    + addend.map_or(0.0, |a| f64::from(a[i]));
                let expected = if relu { sum.max(0.0) } else { sum };
                close(
                    "normalised",
                    f64::from(*out),
                    expected,
                    1e-5 * f64::from(1.0 + offset.abs()),
                );
            }
        }
        for rectified in [None, Some(&rectified[..])] {
            let (mut out, mut in_place) = (vec![f32::NAN; x.len()], grad.clone());
            input_gradient(Input::From(&grad), rectified, &x, terms, &mut out, isa);
            input_gradient(Input::InPlace, rectified, &x, terms, &mut in_place, isa);
            assert_eq!(out, in_place);
            for (i, out) in out.iter().enumerate() {
                let [mean, scale, slope, shift] =
                    [0, 1, 2, 3].map(|list| f64::from(lists[list][i % channels]));
                let dy = if rectified.is_some_and(|y| y[i] <= 0.0) {
                    0.0
                } else {
                    f64::from(grad[i])
                };
                let expected = dy * scale + ((f64::from(x[i]) - mean) * slope + shift);
                close(
                    "gradient",
                    f64::from(*out),
                    expected,
                    1e-5 * f64::from(1.0 + offset.abs()),
                );
            }
        }
    }
}

/// Taps of an output along one axis: inputs that exist.
fn seen(window: &Window, axis: usize, at: usize, size: usize) -> Vec<usize> {
    let taps = (0..window.kernel[axis]).filter_map(|tap| {
        (at * window.stride[axis] + tap * window.dilation[axis]).checked_sub(window.padding[axis])
    });
    taps.filter(|&at| at < size).collect()
}

fn check_pools(images: usize, p: &Pooling, window: Window) {
    let (in_plane, out_plane) = (p.input[0] * p.input[1], p.output[0] * p.output[1]);
    let x = numbers(images * in_plane * p.channels, 1);
    let grad = numbers(images * out_plane * p.channels, 2);
    for isa in Isa::all() {
        let (mut out, mut places) = (vec![f32::NAN; grad.len()], vec![-7; grad.len()]);
        max_pool(p, window, &x, &mut out, &mut places, isa);
        let mut dx = vec![f32::NAN; x.len()];
        assert!(max_pool_gradient(p, &grad, &places, &mut dx));
        let mut expected_dx = vec![0.0_f64; x.len()];
        for (i, out) in out.iter().enumerate() {
            let (pixel, channel) = (i / p.channels, i % p.channels);
            let (image, at) = (pixel / out_plane, pixel % out_plane);
            let mut best: Option<(f32, usize)> = None;
            for y in seen(&window, 0, at / p.output[1], p.input[0]) {
                for xs in seen(&window, 1, at % p.output[1], p.input[1]) {
                    let place = y * p.input[1] + xs;
                    let value = x[(image * in_plane + place) * p.channels + channel];
                    if best.is_none_or(|(most, _)| value > most) {
                        best = Some((value, place));
                    }
                }
            }
            let (value, place) = best.unwrap();
            assert_eq!((*out, places[i]), (value, place as i64));
            expected_dx[(image * in_plane + place) * p.channels + channel] += f64::from(grad[i]);
        }
        for (got, expected) in dx.iter().zip(&expected_dx) {
            close("max gradient", f64::from(*got), *expected, 1e-5);
        }
        if window.dilation != [1, 1] {
            continue;
        }
        let averaged = Averaged::Windows {
            window,
            count_include_pad: false,
            divisor: None,
        };
        out.fill(f32::NAN);
        dx.fill(f32::NAN);
        avg_pool(p, averaged, &x, &mut out, isa);
        avg_pool_gradient(p, averaged, &grad, &mut dx, isa);
        let mut expected_dx = vec![0.0_f64; x.len()];
        for (i, out) in out.iter().enumerate() {
            let (pixel, channel) = (i / p.channels, i % p.channels);
            let (image, at) = (pixel / out_plane, pixel % out_plane);
            let ys = seen(&window, 0, at / p.output[1], p.input[0]);
            let xs = seen(&window, 1, at % p.output[1], p.input[1]);
            let count = (ys.len() * xs.len()) as f64;
            let mut sum = 0.0;
            for y in &ys {
                for at in &xs {
                    let place = (image * in_plane + y * p.input[1] + at) * p.channels + channel;
                    sum += f64::from(x[place]);
                    expected_dx[place] += f64::from(grad[i]) / count;
                }
            }
            close("mean", f64::from(*out), sum / count, 1e-5);
        }
        for (got, expected) in dx.iter().zip(&expected_dx) {
            close("mean gradient", f64::from(*got), *expected, 1e-5);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn batch_norm_is_right(rows in 1..200_usize, channels in 1..70_usize, offset in prop::sample::select(vec![0.0_f32, 3.0, -1000.0])) {
        check_batch_norm(rows, channels, offset);
    }

    #[test]
    fn pools_are_right(
        images in 1..3_usize,
        channels in 1..70_usize,
        size in (1..12_usize, 1..12_usize),
        kernel in (1..4_usize, 1..4_usize),
        stride in (1..4_usize, 1..4_usize),
        dilation in (1..3_usize, 1..3_usize),
        padded in any::<bool>(),
    ) {
        let (input, dilation) = ([size.0, size.1], [dilation.0, dilation.1]);
        let kernel = [kernel.0, kernel.1];
        let padding = if padded { [kernel[0] / 2, kernel[1] / 2] } else { [0, 0] };
        let window = Window { kernel, stride: [stride.0, stride.1], padding, dilation };
        let output = [0, 1].map(|axis| {
            (input[axis] + 2 * padding[axis])
                .checked_sub((kernel[axis] - 1) * dilation[axis] + 1)
                .map_or(0, |rest| rest / window.stride[axis] + 1)
        });
        prop_assume!(output.iter().all(|&size| size > 0));
        // Every window sees a pixel, as shape inference demands.
        let sees = |axis: usize| (0..output[axis]).all(|at| !seen(&window, axis, at, input[axis]).is_empty());
        prop_assume!(sees(0) && sees(1));
        check_pools(images, &Pooling { channels, input, output }, window);
    }

    #[test]
    fn turning_is_a_permutation(images in 1..3_usize, rows in 1..100_usize, columns in 1..100_usize) {
        let from = numbers(images * rows * columns, 1);
        for isa in Isa::all() {
            let mut to = vec![f32::NAN; from.len()];
            turn(&from, rows, columns, &mut to, isa);
            for (i, value) in from.iter().enumerate() {
                let (image, row, column) = (i / (rows * columns), i / columns % rows, i % columns);
                assert_eq!(to[(image * columns + column) * rows + row], *value);
            }
        }
    }
}

/// More rows than one thread sums.
#[test]
fn long_batch_norms_are_right() {
    check_batch_norm(5000, 19, 0.5);
}
