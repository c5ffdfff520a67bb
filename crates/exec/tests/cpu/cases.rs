//! One program of one node for each operator, over generated shapes and inputs.

use outboard_exec::{Executor, RandomKey};
use outboard_graph::{
    Builder, DType, Dim, Graph, InputKind, Op, OutputKind, Reduction, Tensor, TensorType,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Where the random numbers of a case come from.
pub(crate) const KEY: RandomKey = RandomKey {
    seed: 5,
    step: 1,
    micro_batch: 2,
};

/// How far an f32 result may lie from the exact one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rounding {
    /// The same bits.
    Exact,
    /// This many roundings of numbers as great as the greatest result.
    Steps(f64),
    /// A sum of this many products: each term is rounded at most that often, so the error is at most that many
    /// roundings of the sum of the terms' magnitudes (Higham 2002, section 3.1), which the operator gives on the
    /// magnitudes of its operands.
    Terms(usize),
}

/// What an operand is filled with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    /// Floats in -2..2.
    Normal,
    /// Floats in 0.1..2.
    Positive,
    /// Integers in 0..n.
    Index(usize),
    /// Zeros and ones.
    Flags,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) op: Op,
    pub(crate) operands: Vec<Option<(Vec<usize>, Fill)>>,
    pub(crate) rounding: Rounding,
    pub(crate) seed: u64,
}

/// Random numbers of the tests.
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.0.next_u64() % n as u64).unwrap()
    }

    pub(crate) fn unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32
    }
}

impl Case {
    pub(crate) fn graph(&self) -> Graph {
        let mut b = Builder::new("case");
        let operands: Vec<_> = (self.operands.iter().enumerate())
            .map(|(index, operand)| {
                operand.as_ref().map(|(dims, fill)| {
                    let dtype = match fill {
                        Fill::Normal | Fill::Positive => DType::F32,
                        Fill::Index(_) => DType::I64,
                        Fill::Flags => DType::Bool,
                    };
                    let ty = TensorType::fixed(dtype, dims);
                    b.input(InputKind::Data, format!("x{index}"), ty).unwrap()
                })
            })
            .collect();
        let results = b.ops(self.op.clone(), &operands);
        let results = results.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        for (index, result) in results.into_iter().enumerate() {
            b.output(OutputKind::Result, &format!("y{index}"), result)
                .unwrap();
        }
        b.finish()
    }

    pub(crate) fn inputs(&self) -> Vec<Tensor> {
        let mut random = Random::new(self.seed);
        (self.operands.iter().flatten())
            .map(|(dims, fill)| {
                let count = dims.iter().product();
                match *fill {
                    Fill::Normal => {
                        let x: Vec<f32> = (0..count).map(|_| 4.0 * random.unit() - 2.0).collect();
                        Tensor::from_f32(dims.clone(), &x)
                    }
                    Fill::Positive => {
                        let x: Vec<f32> = (0..count).map(|_| 0.1 + 1.9 * random.unit()).collect();
                        Tensor::from_f32(dims.clone(), &x)
                    }
                    Fill::Index(n) => {
                        let x: Vec<i64> = (0..count).map(|_| random.below(n) as i64).collect();
                        Tensor::from_i64(dims.clone(), &x)
                    }
                    Fill::Flags => {
                        let x: Vec<bool> = (0..count).map(|_| random.below(2) == 1).collect();
                        Tensor::from_bool(dims.clone(), &x)
                    }
                }
                .unwrap()
            })
            .collect()
    }

    /// Runs the case on an engine.
    pub(crate) fn run<E: Executor>(&self, engine: &E, inputs: &[Tensor]) -> Vec<Tensor> {
        let plan = engine.compile(&self.graph()).unwrap();
        let inputs = inputs.iter().map(|x| engine.upload(x).unwrap()).collect();
        let outputs = engine.run(&plan, inputs, KEY);
        let outputs = outputs.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        outputs
            .iter()
            .map(|y| engine.download(y).unwrap())
            .collect()
    }
}

fn f(dims: &[usize]) -> Option<(Vec<usize>, Fill)> {
    Some((dims.to_vec(), Fill::Normal))
}

fn p(dims: &[usize]) -> Option<(Vec<usize>, Fill)> {
    Some((dims.to_vec(), Fill::Positive))
}

fn index(dims: &[usize], n: usize) -> Option<(Vec<usize>, Fill)> {
    Some((dims.to_vec(), Fill::Index(n)))
}

fn fixed(dims: &[usize]) -> Vec<Dim> {
    dims.iter().copied().map(Dim::Fixed).collect()
}

/// A convolution's shapes.
struct Convolution {
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
    fn square(
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

    fn cases(&self, seed: u64) -> Vec<Case> {
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

fn convolutions(cases: &mut Vec<Case>, random: &mut Random) {
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

fn pools(cases: &mut Vec<Case>, random: &mut Random) {
    for seed in 0..40 {
        let dilation = vec![1 + random.below(2), 1 + random.below(2)];
        let kernel_size = vec![1 + random.below(3), 1 + random.below(3)];
        let stride = vec![1 + random.below(3), 1 + random.below(3)];
        let (ceil_mode, max) = (random.below(2) == 1, random.below(2) == 1);
        let reach = |axis: usize| {
            let dilation = if max { dilation[axis] } else { 1 };
            (kernel_size[axis] - 1) * dilation + 1
        };
        let padding: Vec<usize> = (0..2).map(|a| random.below(reach(a) / 2 + 1)).collect();
        let size = |axis: usize, random: &mut Random| reach(axis) + random.below(6);
        let input = [
            1 + random.below(2),
            1 + random.below(3),
            size(0, random),
            size(1, random),
        ];
        let plane = input[2] * input[3];
        let case = |op: Op, operands, rounding| Case {
            op,
            operands,
            rounding,
            seed,
        };
        // The output's shape as inference gives it.
        let output = |case: &Case| {
            let graph = case.graph();
            graph
                .ty(graph.outputs[0].value)
                .unwrap()
                .concrete()
                .unwrap()
        };
        let terms = Rounding::Terms(2 + reach(0) * reach(1));
        if max {
            let forward = case(
                Op::MaxPool2d {
                    kernel_size: kernel_size.clone(),
                    stride: stride.clone(),
                    padding: padding.clone(),
                    dilation: dilation.clone(),
                    ceil_mode,
                },
                vec![f(&input)],
                Rounding::Exact,
            );
            let pooled = output(&forward);
            cases.push(forward);
            cases.push(case(
                Op::MaxPool2dGrad {
                    input_shape: fixed(&input),
                    kernel_size,
                    stride,
                    padding,
                    dilation,
                    ceil_mode,
                },
                vec![f(&pooled), index(&pooled, plane)],
                Rounding::Terms(pooled[2] * pooled[3]),
            ));
            continue;
        }
        let count_include_pad = random.below(2) == 1;
        let divisor_override = (random.below(3) == 0).then_some(3);
        let forward = case(
            Op::AvgPool2d {
                kernel_size: kernel_size.clone(),
                stride: stride.clone(),
                padding: padding.clone(),
                ceil_mode,
                count_include_pad,
                divisor_override,
            },
            vec![f(&input)],
            terms,
        );
        let pooled = output(&forward);
        cases.push(forward);
        cases.push(case(
            Op::AvgPool2dGrad {
                input_shape: fixed(&input),
                kernel_size,
                stride,
                padding,
                ceil_mode,
                count_include_pad,
                divisor_override,
            },
            vec![f(&pooled)],
            terms,
        ));
    }
    for (seed, [height, width, out_height, out_width]) in
        [[7, 7, 1, 1], [5, 8, 3, 3], [2, 3, 4, 7], [1, 1, 1, 1]]
            .into_iter()
            .enumerate()
    {
        let input = [2, 3, height, width];
        let pooled = [2, 3, out_height, out_width];
        let adaptive = |op, dims: &[usize]| Case {
            op,
            operands: vec![f(dims)],
            rounding: Rounding::Terms(2 + height * width * out_height * out_width),
            seed: seed as u64,
        };
        let output_size = vec![out_height, out_width];
        cases.push(adaptive(Op::AdaptiveAvgPool2d { output_size }, &input));
        let input_shape = fixed(&input);
        cases.push(adaptive(Op::AdaptiveAvgPool2dGrad { input_shape }, &pooled));
    }
}

fn products(cases: &mut Vec<Case>, random: &mut Random) {
    for seed in 0..12 {
        let mut size = || 1 + random.below(if seed < 6 { 5 } else { 40 });
        let (batch, m, k, n) = (size(), size(), size(), size());
        let mut case = |op, operands, terms| {
            cases.push(Case {
                op,
                operands,
                rounding: Rounding::Terms(terms),
                seed,
            });
        };
        case(Op::Mm {}, vec![f(&[m, k]), f(&[k, n])], k);
        case(Op::Bmm {}, vec![f(&[batch, m, k]), f(&[batch, k, n])], k);
        for bias in [&[n][..], &[m, n], &[m, 1], &[1], &[]] {
            case(Op::Addmm {}, vec![f(bias), f(&[m, k]), f(&[k, n])], k + 1);
        }
    }
}

fn norms(cases: &mut Vec<Case>) {
    let (momentum, eps) = (0.1, 1e-5);
    for (seed, dims) in [
        &[2, 3][..],
        &[5, 4, 7],
        &[2, 3, 4, 5],
        &[1, 1, 1, 2],
        &[3, 8, 9, 9],
    ]
    .into_iter()
    .enumerate()
    {
        let channels = [dims[1]];
        let mut case = |op, operands| {
            cases.push(Case {
                op,
                operands,
                // The input is of the size of the output; mean, deviation, product and sum are rounded once each, and a
                // small deviation magnifies that.
                rounding: Rounding::Steps(64.0),
                seed: seed as u64,
            });
        };
        for affine in [f(&channels), None] {
            let operands = vec![
                f(dims),
                affine.clone(),
                affine.clone(),
                f(&channels),
                p(&channels),
            ];
            case(Op::BatchNormTraining { momentum, eps }, operands.clone());
            case(Op::BatchNormInference { momentum, eps }, operands);
            case(
                Op::BatchNormGrad { eps },
                vec![f(dims), f(dims), affine, f(&channels), p(&channels)],
            );
        }
        let width = &dims[dims.len() / 2..];
        let mut stats = dims.to_vec();
        stats[dims.len() / 2..].fill(1);
        let normalized_shape = width.to_vec();
        for affine in [f(width), None] {
            let normalized_shape = normalized_shape.clone();
            case(
                Op::LayerNorm {
                    normalized_shape: normalized_shape.clone(),
                    eps,
                },
                vec![f(dims), affine.clone(), affine.clone()],
            );
            case(
                Op::LayerNormGrad { normalized_shape },
                vec![f(dims), f(dims), f(&stats), p(&stats), affine],
            );
        }
    }
    for dim in 0..3 {
        let dims = [3, 5, 4];
        let mut case = |op, operands| {
            cases.push(Case {
                op,
                operands,
                rounding: Rounding::Steps(16.0),
                seed: 1,
            });
        };
        case(Op::Softmax { dim }, vec![f(&dims)]);
        case(Op::LogSoftmax { dim }, vec![f(&dims)]);
        case(Op::SoftmaxGrad { dim }, vec![f(&dims), p(&dims)]);
        case(Op::LogSoftmaxGrad { dim }, vec![f(&dims), f(&dims)]);
    }
}

fn pointwise(cases: &mut Vec<Case>) {
    for dims in [&[][..], &[1], &[3, 7]] {
        let mut case = |op, operands| {
            cases.push(Case {
                op,
                operands,
                rounding: Rounding::Steps(16.0),
                seed: 3,
            });
        };
        for op in [
            Op::Relu {},
            Op::Gelu { tanh: false },
            Op::Gelu { tanh: true },
            Op::Sigmoid {},
            Op::Tanh {},
            Op::Exp {},
            Op::Neg {},
            Op::AddScalar { scalar: 0.75 },
            Op::MulScalar { scalar: -1.5 },
            Op::PowScalar { exponent: 2.0 },
            Op::PowScalar { exponent: 3.0 },
            Op::ToCopy { dtype: DType::F16 },
            Op::ToCopy { dtype: DType::BF16 },
            Op::ToCopy { dtype: DType::I64 },
            Op::ToCopy { dtype: DType::Bool },
            Op::Clone {},
            Op::Numel {},
            Op::Dropout { p: 0.3, key: 9 },
            Op::Dropout { p: 0.0, key: 9 },
            Op::Dropout { p: 1.0, key: 9 },
        ] {
            case(op, vec![f(dims)]);
        }
        for exponent in [0.5, -0.5, -1.0, -2.0, 1.7] {
            case(Op::PowScalar { exponent }, vec![p(dims)]);
        }
        for op in [Op::Log {}, Op::Sqrt {}, Op::Rsqrt {}] {
            case(op, vec![p(dims)]);
        }
        for op in [
            Op::ThresholdGrad { threshold: 0.0 },
            Op::GeluGrad { tanh: false },
            Op::GeluGrad { tanh: true },
            Op::SigmoidGrad {},
            Op::TanhGrad {},
        ] {
            case(op, vec![f(dims), f(dims)]);
        }
        let flags = Some((dims.to_vec(), Fill::Flags));
        case(
            Op::DropoutGrad { scale: 1.25 },
            vec![f(dims), flags.clone()],
        );
        case(Op::ToCopy { dtype: DType::F32 }, vec![flags]);
        case(Op::ToCopy { dtype: DType::F32 }, vec![index(dims, 1000)]);
        case(Op::ToCopy { dtype: DType::Bool }, vec![index(dims, 2)]);
    }
    let shapes: [[&[usize]; 2]; 6] = [
        [&[3, 4], &[3, 4]],
        [&[3, 4], &[4]],
        [&[1], &[2, 3]],
        [&[2, 1, 3], &[4, 1]],
        [&[], &[2]],
        [&[5, 1], &[1, 6]],
    ];
    for [a, b] in shapes {
        for op in [
            Op::Add { alpha: 1.0 },
            Op::Add { alpha: -0.5 },
            Op::Sub { alpha: 1.0 },
            Op::Sub { alpha: 2.0 },
            Op::Mul {},
            Op::Div {},
        ] {
            cases.push(Case {
                op,
                operands: vec![f(a), p(b)],
                rounding: Rounding::Steps(4.0),
                seed: 4,
            });
        }
    }
}

fn layouts(cases: &mut Vec<Case>) {
    let dims = [3, 4, 5];
    let mut case = |op, operands| {
        cases.push(Case {
            op,
            operands,
            rounding: Rounding::Exact,
            seed: 6,
        });
    };
    for x in [
        f(&dims),
        index(&dims, 50),
        Some((dims.to_vec(), Fill::Flags)),
    ] {
        for op in [
            Op::View {
                shape: fixed(&[6, 10]),
            },
            Op::Permute {
                dims: vec![2, 0, 1],
            },
            Op::Expand {
                shape: fixed(&[2, 3, 4, 5]),
            },
            Op::Slice {
                dim: 1,
                start: 1,
                end: 4,
                step: 2,
            },
            Op::Slice {
                dim: 0,
                start: 0,
                end: 2,
                step: 1,
            },
            Op::Select { dim: 0, index: 2 },
            Op::Select { dim: 2, index: 0 },
            Op::Split {
                sizes: vec![1, 3],
                dim: 1,
            },
            Op::Unsqueeze { dim: 1 },
            Op::Unsqueeze { dim: 3 },
            Op::Squeeze { dims: vec![1] },
        ] {
            case(op, vec![x.clone()]);
        }
    }
    for dim in 0..3 {
        let mut other = dims;
        other[dim] = 2;
        case(Op::Cat { dim }, vec![f(&dims), f(&other), f(&dims)]);
        let mut grad = dims;
        grad[dim] = 2;
        case(
            Op::SliceGrad {
                input_shape: fixed(&dims),
                dim,
                start: 0,
                end: 3,
                step: 2,
            },
            vec![f(&grad)],
        );
        let mut plane = dims.to_vec();
        plane.remove(dim);
        let input_shape = fixed(&dims);
        case(
            Op::SelectGrad {
                input_shape,
                dim,
                index: 1,
            },
            vec![f(&plane)],
        );
    }
    case(Op::Squeeze { dims: vec![0, 2] }, vec![f(&[1, 3, 1, 2])]);
    case(
        Op::Expand {
            shape: fixed(&[4, 3, 2]),
        },
        vec![f(&[3, 1])],
    );
    for pad in [
        vec![1, 2],
        vec![0, 0, 2, 1],
        vec![-1, 1, 1, -2],
        vec![-2, -1, -1, 3, -1, 2],
    ] {
        case(Op::ConstantPad { pad, value: 0.5 }, vec![f(&dims)]);
    }
    for dtype in [DType::F32, DType::I64, DType::Bool, DType::F16, DType::BF16] {
        let shape = fixed(&[2, 3]);
        case(
            Op::Full {
                shape,
                value: 1.0,
                dtype,
            },
            vec![],
        );
    }
}

fn reductions(cases: &mut Vec<Case>) {
    let dims = [3, 1, 4, 5];
    for over in [
        vec![],
        vec![0],
        vec![3],
        vec![1],
        vec![0, 2],
        vec![1, 2, 3],
        vec![0, 1, 2, 3],
    ] {
        for keepdim in [false, true] {
            for mean in [false, true] {
                let dims_of = over.clone();
                let op = if mean {
                    Op::Mean {
                        dims: dims_of,
                        keepdim,
                    }
                } else {
                    Op::Sum {
                        dims: dims_of,
                        keepdim,
                    }
                };
                cases.push(Case {
                    op,
                    operands: vec![f(&dims)],
                    rounding: Rounding::Terms(2),
                    seed: 7,
                });
            }
        }
    }
}

fn lookups(cases: &mut Vec<Case>) {
    for reduction in [Reduction::None, Reduction::Sum, Reduction::Mean] {
        for weight in [p(&[5]), None] {
            let ignore_index = 2;
            for samples in [&[6][..], &[]] {
                let log = [samples, &[5]].concat();
                let mut case = |op, operands| {
                    cases.push(Case {
                        op,
                        operands,
                        rounding: Rounding::Terms(12),
                        seed: 8,
                    });
                };
                case(
                    Op::NllLoss {
                        reduction,
                        ignore_index,
                    },
                    vec![f(&log), index(samples, 5), weight.clone()],
                );
                let grad = match reduction {
                    Reduction::None => f(samples),
                    _ => f(&[]),
                };
                case(
                    Op::NllLossGrad {
                        reduction,
                        ignore_index,
                    },
                    vec![grad, f(&log), index(samples, 5), weight.clone(), p(&[])],
                );
            }
        }
    }
    for padding_idx in [None, Some(3)] {
        cases.push(Case {
            op: Op::Embedding { padding_idx },
            operands: vec![f(&[7, 3]), index(&[2, 4], 7)],
            rounding: Rounding::Exact,
            seed: 9,
        });
        cases.push(Case {
            op: Op::EmbeddingGrad {
                num_weights: 7,
                padding_idx,
            },
            operands: vec![f(&[2, 9, 3]), index(&[2, 9], 7)],
            rounding: Rounding::Terms(18),
            seed: 9,
        });
    }
}

/// All cases of small shapes.
pub(crate) fn small() -> Vec<Case> {
    let mut random = Random::new(1);
    let mut cases = Vec::new();
    convolutions(&mut cases, &mut random);
    pools(&mut cases, &mut random);
    products(&mut cases, &mut random);
    norms(&mut cases);
    pointwise(&mut cases);
    layouts(&mut cases);
    reductions(&mut cases);
    lookups(&mut cases);
    cases
}

/// Shapes large enough that work is spread over threads.
pub(crate) fn large() -> Vec<Case> {
    let mut cases = Vec::new();
    for (seed, convolution) in [
        Convolution::square(4, [32, 48], 30, [3, 1, 1]),
        Convolution::square(4, [24, 64], 31, [3, 2, 1]),
        Convolution::square(8, [160, 192], 14, [1, 1, 0]),
        Convolution::square(2, [3, 64], 64, [7, 2, 3]),
        Convolution::square(8, [256, 256], 4, [3, 1, 1]),
    ]
    .iter()
    .enumerate()
    {
        cases.extend(convolution.cases(300 + seed as u64));
    }
    for (op, operands, terms) in [
        (Op::Mm {}, vec![f(&[300, 260]), f(&[260, 310])], 260),
        (Op::Mm {}, vec![f(&[33, 1500]), f(&[1500, 520])], 1500),
        (Op::Bmm {}, vec![f(&[12, 65, 64]), f(&[12, 64, 65])], 64),
        (
            Op::Addmm {},
            vec![f(&[300]), f(&[260, 400]), f(&[400, 300])],
            401,
        ),
    ] {
        cases.push(Case {
            op,
            operands,
            rounding: Rounding::Terms(terms),
            seed: 10,
        });
    }
    let mut case = |op, operands| {
        cases.push(Case {
            op,
            operands,
            rounding: Rounding::Steps(64.0),
            seed: 10,
        });
    };
    let (image, channels) = ([6, 20, 40, 41], [20]);
    let (momentum, eps) = (0.1, 1e-5);
    case(
        Op::BatchNormTraining { momentum, eps },
        vec![
            f(&image),
            f(&channels),
            f(&channels),
            f(&channels),
            p(&channels),
        ],
    );
    case(
        Op::BatchNormGrad { eps },
        vec![
            f(&image),
            f(&image),
            f(&channels),
            f(&channels),
            p(&channels),
        ],
    );
    let normalized_shape = vec![192];
    case(
        Op::LayerNorm {
            normalized_shape: normalized_shape.clone(),
            eps,
        },
        vec![f(&[8, 65, 192]), f(&[192]), f(&[192])],
    );
    case(
        Op::LayerNormGrad { normalized_shape },
        vec![
            f(&[8, 65, 192]),
            f(&[8, 65, 192]),
            f(&[8, 65, 1]),
            p(&[8, 65, 1]),
            f(&[192]),
        ],
    );
    case(Op::Softmax { dim: 2 }, vec![f(&[24, 65, 65])]);
    case(Op::LogSoftmax { dim: 1 }, vec![f(&[24, 65, 65])]);
    case(Op::Relu {}, vec![f(&image)]);
    case(Op::Add { alpha: 1.0 }, vec![f(&image), f(&image)]);
    case(Op::Mul {}, vec![f(&image), f(&[20, 1, 1])]);
    case(Op::Dropout { p: 0.4, key: 3 }, vec![f(&image)]);
    for dims in [vec![], vec![0, 2, 3], vec![0], vec![1, 3], vec![3]] {
        case(
            Op::Sum {
                dims,
                keepdim: false,
            },
            vec![f(&image)],
        );
    }
    let output_size = vec![7, 7];
    case(Op::AdaptiveAvgPool2d { output_size }, vec![f(&image)]);
    case(
        Op::MaxPool2d {
            kernel_size: vec![3, 3],
            stride: vec![2, 2],
            padding: vec![1, 1],
            dilation: vec![1, 1],
            ceil_mode: false,
        },
        vec![f(&image)],
    );
    cases
}
