//! Every pass of every kind of convolution against sums in f64, over generated shapes, with poisoned outputs and scratch
//! memory, for every set of instructions and for one and three threads.

#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test is the test's failure"
)]

mod common;

use common::{convolution, expected, numbers, plane};
use outboard_kernels::{Convolution, Isa, Method};
use proptest::prelude::*;

fn close(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    let largest = expected.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        assert!(
            error <= tolerance * largest.max(1e-3),
            "{what} at {at}: {got} for {expected}, largest {largest}"
        );
    }
}

fn check(g: &Convolution) {
    let plane = |sizes: [usize; 3]| sizes.iter().product::<usize>();
    let x = numbers(g.images * plane(g.input) * g.in_channels, 1);
    let w = numbers(
        g.out_channels * (g.in_channels / g.groups) * plane(g.kernel),
        2,
    );
    let dy = numbers(g.images * plane(g.output) * g.out_channels, 3);
    let bias = numbers(g.out_channels, 4);
    let e = expected(g, &x, &w, &dy, &bias);
    for isa in Isa::all() {
        for method in [Method::Auto, Method::Direct] {
            let tolerance = if method == Method::Auto { 2e-5 } else { 3e-6 };
            let mut first: Option<[Vec<f32>; 3]> = None;
            for threads in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                let mut results = [
                    vec![f32::NAN; dy.len()],
                    vec![f32::NAN; x.len()],
                    vec![f32::NAN; w.len()],
                ];
                let poison = |count: usize| vec![f32::NAN; count];
                let [y, dx, dw] = &mut results;
                pool.install(|| {
                    g.forward(
                        method,
                        &x,
                        &w,
                        Some(&bias),
                        y,
                        &mut poison(g.forward_scratch(method, threads, isa)),
                        isa,
                    );
                    g.input_grad(
                        method,
                        &dy,
                        &w,
                        dx,
                        &mut poison(g.input_grad_scratch(method, threads, isa)),
                        isa,
                    );
                    g.weight_grad(
                        method,
                        &dy,
                        &x,
                        dw,
                        &mut poison(g.weight_grad_scratch(method, threads, isa)),
                        isa,
                    );
                });
                let what = |pass: &str| {
                    format!(
                        "{pass}, {method:?}, {}, {threads} threads, {g:?}",
                        isa.name()
                    )
                };
                close(&what("forward"), y, &e.forward, tolerance);
                close(&what("input gradient"), dx, &e.input, tolerance);
                close(&what("weight gradient"), dw, &e.weight, tolerance);
                match &first {
                    None => first = Some(results),
                    Some(first) => {
                        let bits = |results: &[Vec<f32>; 3]| {
                            results
                                .iter()
                                .flatten()
                                .map(|x| x.to_bits())
                                .collect::<Vec<_>>()
                        };
                        assert_eq!(bits(first), bits(&results), "threads change bits: {g:?}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// Anything: groups, odd sizes, size 1, strides over the kernel, padding beyond the input, three axes.
    #[test]
    fn any_convolution_is_right(
        images in 1..4_usize,
        channels in prop_oneof![(1..2_usize, 1..40_usize, 1..40_usize), (2..5_usize, 1..9_usize, 1..9_usize), (1..40_usize, 1..2_usize, 1..2_usize)],
        input in prop_oneof![(1..2_usize, 1..2_usize, 1..20_usize), (1..2_usize, 1..12_usize, 1..12_usize), (1..5_usize, 1..6_usize, 1..6_usize)],
        kernel in (1..4_usize, 1..6_usize, 1..6_usize),
        stride in (1..3_usize, 1..4_usize, 1..4_usize),
        padding in (0..3_usize, 0..5_usize, 0..5_usize),
        dilation in (1..3_usize, 1..4_usize, 1..4_usize),
    ) {
        let three = |(z, y, x): (usize, usize, usize)| [z, y, x];
        let flat = input.0 == 1;
        let axis = |sizes: (usize, usize, usize), one: usize| if flat { [one, sizes.1, sizes.2] } else { three(sizes) };
        check(&convolution(images, channels, three(input), axis(kernel, 1), axis(stride, 1), axis(padding, 0), axis(dilation, 1)));
    }

    /// Shapes that Winograd's filtering takes.
    #[test]
    fn winograd_is_right(
        images in 1..4_usize,
        inputs in 16..70_usize,
        outputs in 16..70_usize,
        height in 1..19_usize,
        width in 1..19_usize,
        padding in (1..4_usize, 1..4_usize),
    ) {
        let padding = plane(padding.0, padding.1);
        check(&convolution(images, (1, inputs, outputs), plane(height, width), plane(3, 3), [1; 3], [0, padding[1], padding[2]], [1; 3]));
    }
}

/// Fewer by default: three sets of instructions, two methods and two pools make twelve runs of each.
fn cases() -> u32 {
    std::env::var("OUTBOARD_CASES")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(48)
}

/// More depths, positions and channels than one block has.
#[test]
fn sums_over_several_blocks_are_right() {
    check(&convolution(
        3,
        (1, 200, 40),
        plane(13, 11),
        plane(3, 3),
        [1, 2, 2],
        [0, 1, 1],
        [1; 3],
    ));
    check(&convolution(
        2,
        (1, 3, 70),
        plane(40, 37),
        plane(7, 7),
        [1, 2, 2],
        [0, 3, 3],
        [1; 3],
    ));
    check(&convolution(
        2,
        (1, 130, 150),
        plane(17, 9),
        plane(1, 1),
        [1; 3],
        [0; 3],
        [1; 3],
    ));
    // More inputs than are transformed at a time, more outputs than a panel has.
    check(&convolution(
        2,
        (1, 260, 37),
        plane(9, 7),
        plane(3, 3),
        [1; 3],
        [0, 1, 1],
        [1; 3],
    ));
    check(&convolution(
        4,
        (1, 64, 48),
        plane(56, 28),
        plane(3, 3),
        [1; 3],
        [0, 1, 1],
        [1; 3],
    ));
}
