//! Sums and means.

use outboard_graph::Op;

use super::case::{Case, Rounding, f};

pub(super) fn reductions(cases: &mut Vec<Case>) {
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
