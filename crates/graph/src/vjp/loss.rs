//! Losses.

use crate::{
    Op,
    autodiff::{AutodiffError, Sweep},
};

use super::{Gradients, Rule};

pub(super) fn gradients(sweep: &mut Sweep, rule: &Rule) -> Result<Gradients, AutodiffError> {
    let node = rule.node;
    let Op::NllLoss {
        reduction,
        ignore_index,
    } = node.op
    else {
        return Err(rule.no_rule());
    };
    let grad = rule.cotangent()?;
    let log_probabilities = sweep.operand(node, 0)?;
    let target = sweep.operand(node, 1)?;
    let class_weight = sweep.optional_operand(node, 2)?;
    let total_weight = sweep.result(node, 1)?;
    let operands = [
        Some(grad),
        Some(log_probabilities),
        Some(target),
        class_weight,
        Some(total_weight),
    ];
    let results = sweep.push(
        Op::NllLossGrad {
            reduction,
            ignore_index,
        },
        &operands,
    )?;
    Ok(rule.only([(0, results.first().copied())]))
}
