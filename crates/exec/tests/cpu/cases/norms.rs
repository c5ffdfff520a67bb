//! Norms and softmax.

use outboard_graph::Op;

use super::case::{Case, Rounding, f, p};

pub(super) fn norms(cases: &mut Vec<Case>) {
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
