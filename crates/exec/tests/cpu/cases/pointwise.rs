//! Arithmetic element by element.

use outboard_graph::{DType, Op};

use super::case::{Case, Fill, Rounding, f, index, p};

pub(super) fn pointwise(cases: &mut Vec<Case>) {
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
