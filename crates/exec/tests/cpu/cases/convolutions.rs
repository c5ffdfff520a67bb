//! Convolutions and their gradients.

use outboard_graph::Op;

use super::case::{Case, Fill, Random, Rounding, f, fixed};

/// A convolution's shapes.
pub(super) struct Convolution {
    images: usize,
    channels: [usize; 2],
    groups: usize,
    input: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
}

impl Convolution {
    fn random(random: &mut Random) -> Self {
        let rank = 1 + random.below(3);
        let groups = 1 + random.below(3);
        let mut list = |from: usize, n: usize| (0..rank).map(|_| from + random.below(n)).collect();
        let (kernel, stride, padding, dilation): (Vec<usize>, _, Vec<usize>, Vec<usize>) =
            (list(1, 3), list(1, 2), list(0, 3), list(1, 2));
        // From exactly one window to a few more.
        let input = (0..rank)
            .map(|axis| {
                let reach = (kernel[axis] - 1) * dilation[axis] + 1;
                reach.saturating_sub(2 * padding[axis]).max(1) + random.below(7)
            })
            .collect();
        Convolution {
            images: 1 + random.below(3),
            channels: [
                groups * (1 + random.below(4)),
                groups * (1 + random.below(4)),
            ],
            groups,
            input,
            kernel,
            stride,
            padding,
            dilation,
        }
    }

    /// A square convolution of two dimensions.
    pub(super) fn square(
        images: usize,
        channels: [usize; 2],
        size: usize,
        [kernel, stride, padding]: [usize; 3],
    ) -> Self {
        Convolution {
            images,
            channels,
            groups: 1,
            input: vec![size; 2],
            kernel: vec![kernel; 2],
            stride: vec![stride; 2],
            padding: vec![padding; 2],
            dilation: vec![1; 2],
        }
    }

    pub(super) fn cases(&self, seed: u64) -> Vec<Case> {
        let [channels, outputs] = self.channels;
        let output: Vec<usize> = (0..self.input.len())
            .map(|axis| {
                let reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1;
                (self.input[axis] + 2 * self.padding[axis] - reach) / self.stride[axis] + 1
            })
            .collect();
        let input = [&[self.images, channels], &self.input[..]].concat();
        let grad = [&[self.images, outputs], &output[..]].concat();
        let weight = [&[outputs, channels / self.groups], &self.kernel[..]].concat();
        let (stride, padding) = (self.stride.clone(), self.padding.clone());
        let (dilation, groups) = (self.dilation.clone(), self.groups);
        let taps: usize = self.kernel.iter().product();
        let case = |op, operands, terms| Case {
            op,
            operands,
            rounding: Rounding::Terms(terms),
            seed,
        };
        let bias = seed
            .is_multiple_of(2)
            .then(|| (vec![outputs], Fill::Normal));
        vec![
            case(
                Op::Convolution {
                    stride: stride.clone(),
                    padding: padding.clone(),
                    dilation: dilation.clone(),
                    groups,
                },
                vec![f(&input), f(&weight), bias],
                channels / groups * taps + 1,
            ),
            case(
                Op::ConvolutionInputGrad {
                    input_shape: fixed(&input),
                    stride: stride.clone(),
                    padding: padding.clone(),
                    dilation: dilation.clone(),
                    groups,
                },
                vec![f(&grad), f(&weight)],
                outputs / groups * taps,
            ),
            case(
                Op::ConvolutionWeightGrad {
                    weight_shape: weight,
                    stride,
                    padding,
                    dilation,
                    groups,
                },
                vec![f(&grad), f(&input)],
                self.images * output.iter().product::<usize>(),
            ),
        ]
    }
}

pub(super) fn convolutions(cases: &mut Vec<Case>, random: &mut Random) {
    for seed in 0..60 {
        cases.extend(Convolution::random(random).cases(seed));
    }
    let fixed = [
        // Pointwise; strided without overlap; padded beyond the kernel; several tiles; one position.
        Convolution::square(2, [6, 4], 5, [1, 1, 0]),
        Convolution::square(2, [5, 3], 8, [1, 2, 0]),
        Convolution::square(1, [2, 3], 4, [1, 1, 2]),
        Convolution::square(3, [8, 16], 24, [3, 1, 1]),
        Convolution::square(2, [3, 8], 33, [7, 2, 3]),
        Convolution::square(1, [7, 5], 3, [3, 1, 0]),
    ];
    for (seed, convolution) in fixed.iter().enumerate() {
        cases.extend(convolution.cases(100 + seed as u64));
    }
    let depthwise = Convolution {
        groups: 6,
        ..Convolution::square(2, [6, 12], 9, [3, 1, 1])
    };
    cases.extend(depthwise.cases(200));
}
