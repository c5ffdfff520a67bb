//! The gradient of every differentiable operator against central differences, in f64 on the reference engine, over shapes
//! and attributes from seeds: strides that leave a rest, windows over padding, groups, broadcasting, empty lists.
//! (`gradients.rs` has one fixed example of each and sees that none is forgotten.)
//!
//! Around each operator stands the smallest model that trains: its float operands are parameters (the first with data
//! added, so that it is no function of weights alone), and its loss is the sum of its results, each element weighted.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod common;

use common::numbers::Numbers;
use common::{MicroBatch, Named, Pipeline};
use outboard_exec::{RandomKey, Reference, ReferenceTensor};
use outboard_graph::{
    Builder, DType, Graph, Op, OutputKind, Reduction, Stage, Tensor, TensorType, ValueId,
};

/// An operand of the operator under test.
enum Operand {
    /// A trained float, its elements between two bounds.
    Trained(Vec<usize>, f64, f64),
    /// A buffer, its elements between 0.5 and 2.
    Buffer(Vec<usize>),
    /// A float of which no gradient is asked.
    Given(Vec<usize>, Vec<f64>),
    Integers(Vec<usize>, Vec<i64>),
    Absent,
}

fn trained(dims: &[usize]) -> Operand {
    Operand::Trained(dims.to_vec(), -2.0, 2.0)
}

/// A model around an operator, with its weights and data.
struct Example {
    text: String,
    graph: Graph,
    weights: Named<ReferenceTensor>,
    data: Named<ReferenceTensor>,
}

fn tensor(dims: &[usize], elements: Vec<f64>) -> ReferenceTensor {
    ReferenceTensor::from_f64(dims, elements).unwrap()
}

fn upload(tensor: &Tensor) -> ReferenceTensor {
    outboard_exec::Executor::upload(&Reference, tensor).unwrap()
}

impl Example {
    /// `differentiable` says how many of the results, from the first, the loss depends on.
    fn new(op: Op, operands: Vec<Operand>, differentiable: usize, numbers: &mut Numbers) -> Self {
        let mut b = Builder::new("example");
        let (mut weights, mut data) = (Named::new(), Named::new());
        let mut values: Vec<Option<ValueId>> = Vec::new();
        let mut shifted = false;
        for (index, operand) in operands.into_iter().enumerate() {
            let name = format!("operand{index}");
            values.push(match operand {
                Operand::Absent => None,
                Operand::Trained(dims, low, high) => {
                    let ty = TensorType::fixed(DType::F32, &dims);
                    let count = dims.iter().product();
                    let parameter = b.parameter(&name, ty.clone()).unwrap();
                    // Keeps away from zero, where relu and its like have a corner.
                    let mut elements = numbers.floats(count, low, high);
                    elements
                        .iter_mut()
                        .filter(|x| x.abs() < 0.02)
                        .for_each(|x| *x = 0.1);
                    weights.insert(name, tensor(&dims, elements));
                    if shifted {
                        Some(parameter)
                    } else {
                        shifted = true;
                        let zero = b.data("zero", ty).unwrap();
                        data.insert("zero".to_owned(), tensor(&dims, vec![0.0; count]));
                        Some(b.op(Op::Add { alpha: 1.0 }, &[parameter, zero]).unwrap())
                    }
                }
                Operand::Buffer(dims) => {
                    let ty = TensorType::fixed(DType::F32, &dims);
                    let count = dims.iter().product();
                    weights.insert(name.clone(), tensor(&dims, numbers.floats(count, 0.5, 2.0)));
                    Some(b.buffer(&name, ty).unwrap())
                }
                Operand::Given(dims, elements) => {
                    let ty = TensorType::fixed(DType::F32, &dims);
                    data.insert(name.clone(), tensor(&dims, elements));
                    Some(b.data(&name, ty).unwrap())
                }
                Operand::Integers(dims, elements) => {
                    let ty = TensorType::fixed(DType::I64, &dims);
                    let integers = Tensor::from_i64(dims, &elements).unwrap();
                    data.insert(name.clone(), upload(&integers));
                    Some(b.data(&name, ty).unwrap())
                }
            });
        }
        let results = b.ops(op, &values).unwrap();
        let mut loss = None;
        for (index, &result) in results.iter().take(differentiable).enumerate() {
            let ty = b.ty(result).unwrap().clone();
            let dims = ty.concrete().unwrap();
            let name = format!("coefficients{index}");
            let coefficients = b.data(&name, ty).unwrap();
            data.insert(
                name,
                tensor(&dims, numbers.floats(dims.iter().product(), -1.0, 1.0)),
            );
            let product = b.op(Op::Mul {}, &[result, coefficients]).unwrap();
            let sum = b
                .op(
                    Op::Sum {
                        dims: vec![],
                        keepdim: false,
                    },
                    &[product],
                )
                .unwrap();
            loss = Some(match loss {
                None => sum,
                Some(loss) => b.op(Op::Add { alpha: 1.0 }, &[loss, sum]).unwrap(),
            });
        }
        let one = Op::Full {
            shape: vec![],
            value: 1.0,
            dtype: DType::F32,
        };
        let one = b.op(one, &[]).unwrap();
        b.output(OutputKind::LossSum, "loss", loss.unwrap())
            .unwrap();
        b.output(OutputKind::LossWeight, "loss", one).unwrap();
        let graph = b.finish();
        graph.verify().unwrap();
        Self {
            text: graph.to_string(),
            graph,
            weights,
            data,
        }
    }

    fn check(self) {
        let pipeline = pipeline(&[Stage::whole(self.graph.canonicalize().unwrap())]);
        let batch = [MicroBatch {
            size: 1,
            data: self.data,
        }];
        let key = RandomKey {
            seed: 3,
            ..RandomKey::default()
        };
        let outcome = pipeline.train(&self.weights, &batch, key);
        let trained = self
            .graph
            .inputs
            .iter()
            .filter(|i| i.kind == outboard_graph::InputKind::Parameter);
        let mut checked = 0;
        for input in trained {
            let gradient = outcome
                .gradients
                .get(&input.name)
                .unwrap_or_else(|| panic!("no gradient of {}\n{}", input.name, self.text))
                .to_f64_vec();
            let dims = self.weights[&input.name].dims().to_vec();
            let elements = self.weights[&input.name].to_f64_vec();
            for at in 0..elements.len() {
                let loss = |step: f64| {
                    let mut moved = elements.clone();
                    moved[at] += step;
                    let mut weights = self.weights.clone();
                    weights.insert(input.name.clone(), tensor(&dims, moved));
                    pipeline.loss(&weights, &batch, key)
                };
                let difference = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
                let error = (difference - gradient[at]).abs();
                assert!(
                    error <= TOLERANCE * gradient[at].abs().max(1.0),
                    "{}[{at}]: gradient {}, difference {difference}\n{}",
                    input.name,
                    gradient[at],
                    self.text
                );
                checked += 1;
            }
        }
        assert!(checked > 0, "nothing to check in\n{}", self.text);
    }
}

/// Of the differences. Their error is of order `STEP^2` (1e-10) and of rounding, `1e-16 / STEP` (1e-11).
const STEP: f64 = 1e-5;
/// A hundred times that error.
const TOLERANCE: f64 = 1e-8;

fn pipeline(stages: &[Stage]) -> Pipeline<'static, Reference> {
    Pipeline::new(
        &Reference,
        stages,
        |_, value| tensor(&[], vec![value]),
        |_, scalar| scalar.to_f64_vec()[0],
    )
}

/// Checks examples made from seeds.
fn check(seeds: u64, make: impl Fn(&mut Numbers) -> (Op, Vec<Operand>, usize)) {
    for seed in 0..seeds {
        let mut numbers = Numbers(seed);
        let (op, operands, differentiable) = make(&mut numbers);
        Example::new(op, operands, differentiable, &mut numbers).check();
    }
}

/// A shape of a few small dimensions.
fn shape(numbers: &mut Numbers, low: usize, high: usize) -> Vec<usize> {
    let rank = numbers.between(low, high);
    (0..rank).map(|_| numbers.between(1, 3)).collect()
}

#[test]
fn convolution() {
    check(24, |n| {
        let spatial = n.between(1, 2);
        let groups = n.between(1, 2);
        let (inputs, outputs) = (n.between(1, 2), n.between(1, 2));
        let mut attribute = |low, high| {
            (0..spatial)
                .map(|_| n.between(low, high))
                .collect::<Vec<_>>()
        };
        let (kernel, stride) = (attribute(1, 3), attribute(1, 2));
        let (padding, dilation, size) = (attribute(0, 1), attribute(1, 2), attribute(5, 6));
        let input = [&[n.between(1, 2), groups * inputs], &size[..]].concat();
        let weight = [&[groups * outputs, inputs], &kernel[..]].concat();
        let bias = if n.coin() {
            trained(&[groups * outputs])
        } else {
            Operand::Absent
        };
        let op = Op::Convolution {
            stride,
            padding,
            dilation,
            groups,
        };
        (op, vec![trained(&input), trained(&weight), bias], 1)
    });
}

#[test]
fn matrix_products() {
    check(6, |n| {
        let (rows, inner, columns) = (n.between(1, 4), n.between(1, 4), n.between(1, 4));
        let bias = if n.coin() {
            vec![columns]
        } else {
            vec![rows, columns]
        };
        let operands = vec![
            trained(&bias),
            trained(&[rows, inner]),
            trained(&[inner, columns]),
        ];
        (Op::Addmm {}, operands, 1)
    });
    check(4, |n| {
        let (rows, inner, columns) = (n.between(1, 4), n.between(1, 4), n.between(1, 4));
        (
            Op::Mm {},
            vec![trained(&[rows, inner]), trained(&[inner, columns])],
            1,
        )
    });
    check(4, |n| {
        let (batch, rows, inner, columns) = (
            n.between(1, 3),
            n.between(1, 3),
            n.between(1, 3),
            n.between(1, 3),
        );
        let operands = vec![
            trained(&[batch, rows, inner]),
            trained(&[batch, inner, columns]),
        ];
        (Op::Bmm {}, operands, 1)
    });
}

/// The indices repeat, so rows add up; the padding row's true difference is not its gradient, which PyTorch sets to 0.
#[test]
fn embedding() {
    check(6, |n| {
        let (rows, width) = (n.between(2, 4), n.between(1, 3));
        let indices = (0..6).map(|_| n.between(0, rows - 1) as i64).collect();
        let operands = vec![
            trained(&[rows, width]),
            Operand::Integers(vec![2, 3], indices),
        ];
        (Op::Embedding { padding_idx: None }, operands, 1)
    });
}

#[test]
fn normalisation() {
    check(8, |n| {
        let channels = n.between(1, 3);
        let input: Vec<usize> =
            [&[n.between(2, 3), channels][..], &vec![2; n.between(0, 2)]].concat();
        let affine = n.coin();
        let weight = |affine: bool| {
            if affine {
                trained(&[channels])
            } else {
                Operand::Absent
            }
        };
        let operands = vec![
            trained(&input),
            weight(affine),
            weight(affine),
            Operand::Buffer(vec![channels]),
            Operand::Buffer(vec![channels]),
        ];
        if n.coin() {
            (
                Op::BatchNormInference {
                    momentum: 0.1,
                    eps: 1e-3,
                },
                operands,
                1,
            )
        } else {
            (
                Op::BatchNormTraining {
                    momentum: 0.1,
                    eps: 1e-3,
                },
                operands,
                1,
            )
        }
    });
    check(8, |n| {
        let normalized_shape = shape(n, 1, 2);
        let input = [&shape(n, 0, 2)[..], &normalized_shape].concat();
        let affine = n.coin();
        let weight = || {
            if affine {
                trained(&normalized_shape)
            } else {
                Operand::Absent
            }
        };
        let operands = vec![trained(&input), weight(), weight()];
        (
            Op::LayerNorm {
                normalized_shape,
                eps: 1e-2,
            },
            operands,
            1,
        )
    });
}

#[test]
fn softmax_and_losses() {
    for log in [false, true] {
        check(6, |n| {
            let input = shape(n, 1, 3);
            let dim = n.between(0, input.len() - 1);
            let op = if log {
                Op::LogSoftmax { dim }
            } else {
                Op::Softmax { dim }
            };
            (op, vec![trained(&input)], 1)
        });
    }
    for reduction in [Reduction::None, Reduction::Sum, Reduction::Mean] {
        check(6, |n| {
            let (samples, classes) = (n.between(2, 5), n.between(2, 4));
            let mut targets: Vec<i64> = (0..samples)
                .map(|_| n.between(0, classes - 1) as i64)
                .collect();
            targets[0] = -100;
            let weight = if n.coin() {
                Operand::Given(vec![classes], n.floats(classes, 0.5, 2.0))
            } else {
                Operand::Absent
            };
            let operands = vec![
                trained(&[samples, classes]),
                Operand::Integers(vec![samples], targets),
                weight,
            ];
            (
                Op::NllLoss {
                    reduction,
                    ignore_index: -100,
                },
                operands,
                1,
            )
        });
    }
}

#[test]
fn pooling() {
    check(12, |n| {
        let mut pair = |low, high| vec![n.between(low, high), n.between(low, high)];
        let (kernel_size, stride, dilation) = (pair(2, 3), pair(1, 3), pair(1, 2));
        let (padding, size) = (pair(0, 1), pair(5, 6));
        let (batch, channels, ceil_mode) = (n.between(1, 2), n.between(1, 2), n.coin());
        let input = trained(&[batch, channels, size[0], size[1]]);
        (
            Op::MaxPool2d {
                kernel_size,
                stride,
                padding,
                dilation,
                ceil_mode,
            },
            vec![input],
            1,
        )
    });
    check(12, |n| {
        let mut pair = |low, high| vec![n.between(low, high), n.between(low, high)];
        let (kernel_size, stride, padding, size) = (pair(2, 3), pair(1, 3), pair(0, 1), pair(4, 6));
        let input = trained(&[1, n.between(1, 2), size[0], size[1]]);
        let op = Op::AvgPool2d {
            kernel_size,
            stride,
            padding,
            ceil_mode: n.coin(),
            count_include_pad: n.coin(),
            divisor_override: n.coin().then_some(3),
        };
        (op, vec![input], 1)
    });
    check(6, |n| {
        let output_size = vec![n.between(1, 4), n.between(1, 4)];
        let input = trained(&[n.between(1, 2), 1, n.between(3, 6), n.between(3, 6)]);
        (Op::AdaptiveAvgPool2d { output_size }, vec![input], 1)
    });
}

#[test]
fn element_by_element() {
    let anywhere = [
        Op::Relu {},
        Op::Gelu { tanh: false },
        Op::Gelu { tanh: true },
        Op::Sigmoid {},
        Op::Tanh {},
        Op::Exp {},
        Op::Neg {},
        Op::AddScalar { scalar: 1.5 },
        Op::MulScalar { scalar: -2.5 },
        Op::PowScalar { exponent: 3.0 },
        Op::ToCopy { dtype: DType::F32 },
        Op::Clone {},
    ];
    for op in anywhere {
        check(2, |n| (op.clone(), vec![trained(&shape(n, 0, 3))], 1));
    }
    let positive = [
        Op::Log {},
        Op::Sqrt {},
        Op::Rsqrt {},
        Op::PowScalar { exponent: -1.5 },
    ];
    for op in positive {
        check(2, |n| {
            (
                op.clone(),
                vec![Operand::Trained(shape(n, 0, 3), 0.5, 2.0)],
                1,
            )
        });
    }
    for p in [0.0, 0.3, 1.0] {
        check(2, |n| {
            (Op::Dropout { p, key: 5 }, vec![trained(&shape(n, 1, 3))], 1)
        });
    }
}

#[test]
fn broadcasting() {
    for op in [
        Op::Add { alpha: -1.5 },
        Op::Sub { alpha: 0.5 },
        Op::Mul {},
        Op::Div {},
    ] {
        check(8, |n| {
            let whole = shape(n, 0, 3);
            let narrow = |n: &mut Numbers| {
                let skip = n.between(0, whole.len());
                whole[skip..]
                    .iter()
                    .map(|&dim| if n.coin() { 1 } else { dim })
                    .collect::<Vec<_>>()
            };
            let (a, b) = (narrow(n), narrow(n));
            (
                op.clone(),
                vec![
                    Operand::Trained(a, -2.0, 2.0),
                    Operand::Trained(b, 0.5, 2.0),
                ],
                1,
            )
        });
    }
}

#[test]
fn reductions() {
    for mean in [false, true] {
        check(8, |n| {
            let input = shape(n, 1, 3);
            let dims: Vec<usize> = (0..input.len()).filter(|_| n.coin()).collect();
            let keepdim = n.coin();
            let op = if mean {
                Op::Mean { dims, keepdim }
            } else {
                Op::Sum { dims, keepdim }
            };
            (op, vec![trained(&input)], 1)
        });
    }
}

#[test]
fn layout() {
    check(6, |n| {
        let input = shape(n, 1, 4);
        let mut dims: Vec<usize> = (0..input.len()).collect();
        for last in (1..dims.len()).rev() {
            dims.swap(last, n.between(0, last));
        }
        (Op::Permute { dims }, vec![trained(&input)], 1)
    });
    check(2, |n| {
        let input = vec![n.between(1, 3), 4];
        (
            Op::View {
                shape: vec![2.into(), (input[0] * 2).into()],
            },
            vec![trained(&input)],
            1,
        )
    });
    check(4, |n| {
        let shape = [n.between(1, 3), n.between(1, 3), n.between(1, 3)];
        let input = vec![if n.coin() { 1 } else { shape[1] }, shape[2]];
        (
            Op::Expand {
                shape: shape.map(Into::into).to_vec(),
            },
            vec![trained(&input)],
            1,
        )
    });
    check(6, |n| {
        let mut first = shape(n, 1, 3);
        let dim = n.between(0, first.len() - 1);
        let parts = n.between(1, 3);
        let operands = (0..parts)
            .map(|_| {
                first[dim] = n.between(1, 3);
                trained(&first)
            })
            .collect();
        (Op::Cat { dim }, operands, 1)
    });
    check(8, |n| {
        let mut input = shape(n, 1, 3);
        let dim = n.between(0, input.len() - 1);
        input[dim] = n.between(3, 7);
        let (start, step) = (n.between(0, 2), n.between(1, 3));
        // The end may lie beyond, as ATen allows.
        let end = n.between(start + 1, 9);
        (
            Op::Slice {
                dim,
                start,
                end,
                step,
            },
            vec![trained(&input)],
            1,
        )
    });
    check(6, |n| {
        let input = shape(n, 1, 3);
        let dim = n.between(0, input.len() - 1);
        (
            Op::Select {
                dim,
                index: n.between(0, input[dim] - 1),
            },
            vec![trained(&input)],
            1,
        )
    });
    check(4, |n| {
        let mut input = shape(n, 1, 3);
        let dim = n.between(0, input.len() - 1);
        let sizes: Vec<usize> = (0..n.between(1, 3)).map(|_| n.between(1, 2)).collect();
        input[dim] = sizes.iter().sum();
        let results = sizes.len();
        (Op::Split { sizes, dim }, vec![trained(&input)], results)
    });
    check(2, |n| {
        (
            Op::Squeeze { dims: vec![1] },
            vec![trained(&[n.between(1, 3), 1, 2])],
            1,
        )
    });
    check(2, |n| {
        (
            Op::Unsqueeze {
                dim: n.between(0, 2),
            },
            vec![trained(&[2, 3])],
            1,
        )
    });
    check(6, |n| {
        let mut amount = || n.between(0, 4) as i64 - 2;
        let pad = vec![amount(), amount(), amount(), amount()];
        (
            Op::ConstantPad { pad, value: 1.5 },
            vec![trained(&[2, 5, 6])],
            1,
        )
    });
}
