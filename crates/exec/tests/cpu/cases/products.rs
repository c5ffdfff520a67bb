//! Products of matrices.

use outboard_graph::Op;

use super::case::{Case, Random, Rounding, f};

pub(super) fn products(cases: &mut Vec<Case>, random: &mut Random) {
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
