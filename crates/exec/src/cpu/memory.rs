//! The most memory a run takes: what is alive at each node, and what its operator needs meanwhile.

use outboard_graph::{DType, Op};
use outboard_kernels::matmul_bytes;

use super::order::{self, Wanted};
use super::plan::{CpuPlan, PlanNode};
use super::reduce;
use super::tensor::Order;
use crate::ExecError;

/// Handles, shapes and the bookkeeping of the allocator, for each value.
const BYTES_PER_VALUE: u64 = 512;
/// What a thread of `gemm` keeps for good: a second-level cache's worth, at most this on the processors we know of.
const BYTES_PER_THREAD: u64 = 4 << 20;
fn bytes((dtype, dims): &(DType, Vec<usize>)) -> u64 {
    let elements = dims.iter().map(|&dim| dim as u64);
    elements.fold(dtype.bytes() as u64, u64::saturating_mul)
}

fn f32s(elements: impl IntoIterator<Item = usize>) -> u64 {
    let elements = elements.into_iter().map(|size| size as u64);
    elements.fold(4, u64::saturating_mul)
}

/// The order that a value is in, as far as that is known before a run; whether it may be held twice, in both orders.
#[derive(Clone, Copy)]
struct Held {
    order: Option<Order>,
    twice: bool,
}

/// The values of a plan as its nodes find them.
struct Values<'a> {
    plan: &'a CpuPlan,
    /// Inputs that stay in memory to the end whoever uses them.
    kept: Vec<bool>,
    held: Vec<Held>,
    alive: u64,
}

impl<'a> Values<'a> {
    fn new(plan: &'a CpuPlan, kept: &[bool]) -> Self {
        let first = Held {
            order: Some(Order::First),
            twice: false,
        };
        let mut values = Values {
            plan,
            kept: vec![false; plan.values.len()],
            held: vec![first; plan.values.len()],
            alive: 0,
        };
        for (input, kept) in plan.inputs.iter().zip(kept) {
            values.alive = values.alive.saturating_add(values.size(input.value));
            values.kept[input.value] = *kept;
            let images = plan.values[input.value].1.len() > 2;
            // Weights are as they came; of other images the caller decides.
            if images && !kept {
                values.held[input.value].order = None;
            }
        }
        values
    }

    fn size(&self, value: usize) -> u64 {
        bytes(&self.plan.values[value]).saturating_add(BYTES_PER_VALUE)
    }

    fn let_go(&mut self, value: usize) {
        let copies = 1 + u64::from(self.held[value].twice);
        if !self.kept[value] {
            self.alive = self
                .alive
                .saturating_sub(copies.saturating_mul(self.size(value)));
        } else if self.held[value].twice {
            self.alive = self.alive.saturating_sub(self.size(value));
        }
        self.held[value].twice = false;
    }

    /// The node's operands are put in the order that it wants; what it takes meanwhile, and while it runs.
    fn put_in_order(&mut self, node: &PlanNode) -> (u64, u64) {
        let order = |values: &Self, value: usize| values.held[value].order;
        let operands = || node.operands.iter().flatten().map(|(value, _)| *value);
        let any_last = operands().any(|value| order(self, value) == Some(Order::Last));
        let all_first = operands().all(|value| order(self, value) == Some(Order::First));
        let (mut meanwhile, mut running): (u64, u64) = (0, 0);
        for (operand, wanted) in node.operands.iter().zip(&node.wanted) {
            let Some((value, last)) = *operand else {
                continue;
            };
            let to = match wanted {
                Wanted::Any => continue,
                Wanted::Is(order) => Some(order.of(&self.plan.values[value].1)),
                Wanted::Alike if any_last => Some(Order::Last),
                Wanted::Alike if all_first => Some(Order::First),
                Wanted::Alike => None,
            };
            let from = order(self, value);
            if from.is_some() && from == to {
                continue;
            }
            let size = self.size(value);
            meanwhile = meanwhile.max(running.saturating_add(size));
            if self.plan.is_saved[value] {
                // A copy for this node alone.
                running = running.saturating_add(size);
                continue;
            }
            self.held[value].order = to;
            // What the caller holds too stays beside its copy.
            let is_input = self.plan.inputs.iter().any(|input| input.value == value);
            if is_input && !self.held[value].twice && !last {
                self.held[value].twice = true;
                self.alive = self.alive.saturating_add(size);
            } else if is_input && last {
                running = running.saturating_add(size);
            }
        }
        (meanwhile, running)
    }
}

impl Values<'_> {
    /// The orders that a node leaves its results in.
    fn set_orders(&mut self, node: &PlanNode) {
        let dims = self.plan.operand_dims(node);
        let orders: Vec<Option<Order>> = (node.operands.iter())
            .map(|operand| operand.and_then(|(value, _)| self.held[value].order))
            .collect();
        let order = order::result(&node.op, &orders, &dims);
        for (result, _) in &node.results {
            self.held[*result].order = order.map(|order| order.of(&self.plan.values[*result].1));
        }
    }
}

/// The peak of a run without scratch memory; `kept` says which inputs stay in memory to the end whoever uses them.
pub(super) fn peak(plan: &CpuPlan, kept: &[bool]) -> Result<u64, ExecError> {
    let mut values = Values::new(plan, kept);
    let mut peak = values.alive;
    for input in plan.inputs.iter().filter(|input| input.unused) {
        values.let_go(input.value);
    }
    for node in &plan.nodes {
        let (meanwhile, running) = values.put_in_order(node);
        peak = peak.max(values.alive.saturating_add(meanwhile));
        for (result, _) in &node.results {
            values.alive = values.alive.saturating_add(values.size(*result));
        }
        let beside = extra(plan, node).saturating_add(running);
        peak = peak.max(values.alive.saturating_add(beside));
        values.set_orders(node);
        for (operand, last) in node.operands.iter().flatten() {
            if *last {
                values.let_go(*operand);
            }
        }
        for (result, used) in &node.results {
            if !used {
                values.let_go(*result);
            }
        }
    }
    let threads = plan.settings.threads as u64;
    peak.checked_add(threads.saturating_mul(BYTES_PER_THREAD))
        .filter(|&peak| peak <= isize::MAX as u64)
        .ok_or_else(|| {
            ExecError::Invalid("the program needs more memory than this machine can address".into())
        })
}

/// An upper bound on what an operator allocates beyond its results and its scratch memory.
fn extra(plan: &CpuPlan, node: &PlanNode) -> u64 {
    let threads = plan.settings.threads;
    let operands = plan.operand_dims(node);
    let operand = |index: usize| operands.get(index).copied().flatten().unwrap_or(&[]);
    let result = node
        .results
        .first()
        .map_or(&[][..], |(value, _)| plan.values[*value].1.as_slice());
    match &node.op {
        Op::Addmm {} | Op::Mm {} | Op::Bmm {} => {
            let first = usize::from(matches!(node.op, Op::Addmm {}));
            let inner = match (operand(first), node.fused.turned) {
                ([inner, _], [true, _]) => *inner,
                ([.., inner], _) => *inner,
                _ => 0,
            };
            match result {
                [batch, rows, columns] => {
                    threads.min(*batch) as u64 * matmul_bytes(*rows, inner, *columns)
                }
                [rows, columns] => matmul_bytes(*rows, inner, *columns),
                _ => 0,
            }
        }
        // Factors of each channel.
        Op::BatchNormTraining { .. } | Op::BatchNormInference { .. } | Op::BatchNormGrad { .. } => {
            16 * operand(0).get(1).map_or(0, |&channels| channels as u64)
        }
        Op::Sum { dims, .. } | Op::Mean { dims, .. } => reduce::scratch(operand(0), dims),
        // The second operand times alpha, where shapes differ.
        Op::Add { alpha } | Op::Sub { alpha } if alpha.abs() != 1.0 => {
            f32s(operand(1).iter().copied())
        }
        _ => 0,
    }
}
