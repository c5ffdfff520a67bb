//! Sums in f64 that kernels are compared with.

#![allow(dead_code, reason = "each test binary uses some of it")]

use outboard_kernels::Convolution;

/// Pixels that a tap pairs: `visit(input element of channel 0, output element of channel 0, tap)`.
fn pairs(g: &Convolution, mut visit: impl FnMut(usize, usize, usize)) {
    let ranges = |sizes: [usize; 3]| {
        (0..sizes[0]).flat_map(move |z| {
            (0..sizes[1]).flat_map(move |y| (0..sizes[2]).map(move |x| [z, y, x]))
        })
    };
    let pixel = |image: usize, at: [usize; 3], sizes: [usize; 3]| {
        ((image * sizes[0] + at[0]) * sizes[1] + at[1]) * sizes[2] + at[2]
    };
    for image in 0..g.images {
        for out in ranges(g.output) {
            for (tap, at) in ranges(g.kernel).enumerate() {
                let seen = |axis: usize| {
                    (out[axis] * g.stride[axis] + at[axis] * g.dilation[axis])
                        .checked_sub(g.padding[axis])
                        .filter(|&at| at < g.input[axis])
                };
                if let (Some(z), Some(y), Some(x)) = (seen(0), seen(1), seen(2)) {
                    visit(
                        pixel(image, [z, y, x], g.input) * g.in_channels,
                        pixel(image, out, g.output) * g.out_channels,
                        tap,
                    );
                }
            }
        }
    }
}

/// Results of all passes in f64.
pub(crate) struct Expected {
    pub(crate) forward: Vec<f64>,
    pub(crate) input: Vec<f64>,
    pub(crate) weight: Vec<f64>,
}

/// All passes in f64.
pub(crate) fn expected(
    g: &Convolution,
    x: &[f32],
    w: &[f32],
    dy: &[f32],
    bias: &[f32],
) -> Expected {
    let (of_input, of_output) = (g.in_channels / g.groups, g.out_channels / g.groups);
    let taps: usize = g.kernel.iter().product();
    let mut e = Expected {
        forward: (0..dy.len())
            .map(|at| f64::from(bias[at % g.out_channels]))
            .collect(),
        input: vec![0.0; x.len()],
        weight: vec![0.0; w.len()],
    };
    pairs(g, |input, output, tap| {
        for o in 0..g.out_channels {
            for i in 0..of_input {
                let at = input + o / of_output * of_input + i;
                let weight = (o * of_input + i) * taps + tap;
                let (xv, wv, dv) = (
                    f64::from(x[at]),
                    f64::from(w[weight]),
                    f64::from(dy[output + o]),
                );
                e.forward[output + o] += xv * wv;
                e.input[at] += dv * wv;
                e.weight[weight] += dv * xv;
            }
        }
    });
    e
}

/// Numbers from -1 to 1.
pub(crate) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// A convolution whose output is not empty; `kernel` beyond the padded input is cut.
pub(crate) fn convolution(
    images: usize,
    channels: (usize, usize, usize),
    input: [usize; 3],
    kernel: [usize; 3],
    stride: [usize; 3],
    padding: [usize; 3],
    dilation: [usize; 3],
) -> Convolution {
    let (groups, of_input, of_output) = channels;
    let mut g = Convolution {
        images,
        in_channels: groups * of_input,
        out_channels: groups * of_output,
        groups,
        input,
        output: [0; 3],
        kernel,
        stride,
        padding,
        dilation,
    };
    for axis in 0..3 {
        let padded = input[axis] + 2 * padding[axis];
        g.kernel[axis] = kernel[axis].min((padded - 1) / dilation[axis] + 1);
        g.output[axis] = (padded - (g.kernel[axis] - 1) * dilation[axis] - 1) / stride[axis] + 1;
    }
    g
}

/// Sizes of a plane.
pub(crate) fn plane(y: usize, x: usize) -> [usize; 3] {
    [1, y, x]
}
