//! The error of each way to convolve, on the shapes of ResNet-34 with normally distributed data, against sums in f64.
//!
//! `cargo nextest run -p outboard-kernels --no-capture accuracy` prints the figures of docs/kernels.md; `OUTBOARD_LONG=1` takes
//! batches of 8 instead of 1.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed step of a test is the test's failure; its figures are for people"
)]

mod common;

use common::{convolution, expected, numbers, plane};
use outboard_kernels::{Isa, Method};

/// Normally distributed numbers (Box and Muller 1958).
fn normal(count: usize, seed: u32) -> Vec<f32> {
    let uniform = numbers(2 * count, seed);
    let pairs = uniform.chunks_exact(2).map(|pair| {
        let (a, b) = (f64::from(pair[0]) / 2.0 + 0.5, f64::from(pair[1]));
        ((-2.0 * (a + 1e-9).min(1.0).ln()).sqrt() * (std::f64::consts::PI * b).cos()) as f32
    });
    pairs.collect()
}

/// Relative L2, and the largest error over the largest element.
fn errors(got: &[f32], expected: &[f64]) -> (f64, f64) {
    let (mut square, mut of, mut largest, mut most) = (0.0_f64, 0.0_f64, 0.0_f64, 0.0_f64);
    for (got, expected) in got.iter().zip(expected) {
        let error = (f64::from(*got) - expected).abs();
        square += error * error;
        of += expected * expected;
        largest = largest.max(error);
        most = most.max(expected.abs());
    }
    ((square / of).sqrt(), largest / most)
}

#[test]
fn errors_on_the_shapes_of_resnet34() {
    let images = if std::env::var_os("OUTBOARD_LONG").is_some() {
        8
    } else {
        1
    };
    for (channels, side) in [(64, 56), (128, 28), (256, 14), (512, 7)] {
        let sizes = (1, channels, channels);
        let g = convolution(
            images,
            sizes,
            plane(side, side),
            plane(3, 3),
            [1; 3],
            [0, 1, 1],
            [1; 3],
        );
        let x = normal(images * side * side * channels, 1);
        let w = normal(channels * channels * 9, 2);
        let dy = normal(images * side * side * channels, 3);
        let e = expected(&g, &x, &w, &dy, &vec![0.0; channels]);
        for isa in Isa::all() {
            for (method, relative, most) in
                [(Method::Auto, 5e-6, 2e-5), (Method::Direct, 1e-6, 5e-6)]
            {
                let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
                let mut scratch = vec![
                    f32::NAN;
                    g.forward_scratch(method, 1, isa)
                        .max(g.input_grad_scratch(method, 1, isa))
                        .max(g.weight_grad_scratch(method, 1, isa))
                ];
                g.forward(method, &x, &w, None, &mut y, &mut scratch, isa);
                g.input_grad(method, &dy, &w, &mut dx, &mut scratch, isa);
                g.weight_grad(method, &dy, &x, &mut dw, &mut scratch, isa);
                for (pass, (l2, largest)) in [
                    ("forward", errors(&y, &e.forward)),
                    ("input gradient", errors(&dx, &e.input)),
                    ("weight gradient", errors(&dw, &e.weight)),
                ] {
                    let text = format!(
                        "{} {method:?} {channels} channels {side}x{side} {pass}: {l2:.1e} relative L2, {largest:.1e} at most",
                        isa.name()
                    );
                    println!("{text}");
                    assert!(l2 <= relative && largest <= most, "{text}");
                }
            }
        }
    }
}
