//! What reads at an index.

use outboard_graph::{Op, Reduction};

use super::case::{Case, Rounding, f, index, p};

pub(super) fn lookups(cases: &mut Vec<Case>) {
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
