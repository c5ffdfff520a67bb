//! One program of one node for each operator, over generated shapes and inputs.

mod case;
mod convolutions;
mod layouts;
mod lookups;
mod norms;
mod pointwise;
mod pools;
mod products;
mod reductions;

use outboard_graph::Op;

pub(crate) use case::{Case, KEY, Random, Rounding};
use case::{f, p};
use convolutions::{Convolution, convolutions};
use layouts::layouts;
use lookups::lookups;
use norms::norms;
use pointwise::pointwise;
use pools::pools;
use products::products;
use reductions::reductions;

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
