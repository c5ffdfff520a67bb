//! What only moves or makes elements.

use outboard_graph::{DType, Op};

use super::case::{Case, Fill, Rounding, f, fixed, index};

pub(super) fn layouts(cases: &mut Vec<Case>) {
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
