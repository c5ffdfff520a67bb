//! The most memory a run takes: what is alive at each node, and what its operator needs meanwhile.

use outboard_graph::{DType, Op};

use super::columns::Geometry;
use super::matmul::{BLOCK, is_large};
use super::plan::{CpuPlan, PlanNode};
use super::{conv, ops, reduce};
use crate::ExecError;

/// Handles, shapes and the bookkeeping of the allocator, for each value.
const BYTES_PER_VALUE: u64 = 512;
/// What a thread of `gemm` keeps for good: a second-level cache's worth, at most this on the processors we know of.
const BYTES_PER_THREAD: u64 = 4 << 20;
/// The deepest block that `gemm` packs; on most processors it is 512.
const GEMM_DEPTH: u64 = 2048;
/// `gemm` rounds rows and columns up to its register tile, which is smaller than this.
const GEMM_TILE: u64 = 64;

fn bytes((dtype, dims): &(DType, Vec<usize>)) -> u64 {
    let elements = dims.iter().map(|&dim| dim as u64);
    elements.fold(dtype.bytes() as u64, u64::saturating_mul)
}

fn f32s(elements: impl IntoIterator<Item = usize>) -> u64 {
    let elements = elements.into_iter().map(|size| size as u64);
    elements.fold(4, u64::saturating_mul)
}

/// The peak of a run; `kept` says which inputs stay in memory to the end whoever uses them.
pub(super) fn peak(plan: &CpuPlan, kept: &[bool], threads: usize) -> Result<u64, ExecError> {
    let size = |value: usize| bytes(&plan.values[value]).saturating_add(BYTES_PER_VALUE);
    let mut alive: u64 = 0;
    for input in &plan.inputs {
        alive = alive.saturating_add(size(input.value));
    }
    let mut peak = alive;
    let stays = |value: usize| {
        let mut inputs = plan.inputs.iter().zip(kept);
        inputs.any(|(input, kept)| *kept && input.value == value)
    };
    for (input, kept) in plan.inputs.iter().zip(kept) {
        if input.unused && !kept {
            alive = alive.saturating_sub(size(input.value));
        }
    }
    for node in &plan.nodes {
        for (result, _) in &node.results {
            alive = alive.saturating_add(size(*result));
        }
        peak = peak.max(alive.saturating_add(scratch(plan, node, threads)));
        for (operand, last) in node.operands.iter().flatten() {
            if *last && !stays(*operand) {
                alive = alive.saturating_sub(size(*operand));
            }
        }
        for (result, used) in &node.results {
            if !used {
                alive = alive.saturating_sub(size(*result));
            }
        }
    }
    let threads = threads as u64;
    peak.checked_add(threads.saturating_mul(BYTES_PER_THREAD))
        .filter(|&peak| peak <= isize::MAX as u64)
        .ok_or_else(|| {
            ExecError::Invalid("the program needs more memory than this machine can address".into())
        })
}

/// What `gemm` packs for one product of `[m, k]` and `[k, n]`.
fn gemm(m: usize, n: usize, k: usize) -> u64 {
    let sides = (m as u64)
        .saturating_add(n as u64)
        .saturating_add(2 * GEMM_TILE);
    sides
        .saturating_mul((k as u64).min(GEMM_DEPTH))
        .saturating_mul(4)
}

fn convolution(g: &Geometry) -> u64 {
    let (tile, block) = (conv::tile(g), BLOCK.min(g.out_channels / g.groups));
    let columns = if g.is_pointwise() {
        0
    } else {
        f32s([g.rows(), tile])
    };
    columns + f32s([tile, block]) + gemm(tile, block, g.rows())
}

fn convolution_input_grad(g: &Geometry) -> u64 {
    if let Some(transposed) = conv::as_forward(g) {
        return f32s([g.out_channels, g.rows()]) + convolution(&transposed);
    }
    let (tile, group_out) = (conv::skipping_tile(g), g.out_channels / g.groups);
    f32s([g.rows(), tile]) + f32s([group_out, tile]) + gemm(g.rows(), tile, group_out)
}

fn convolution_weight_grad(g: &Geometry) -> u64 {
    let (tile, group_out) = (conv::tile(g), g.out_channels / g.groups);
    if conv::is_weight_grad_direct(g) {
        let inputs = f32s([g.rows(), tile]) + f32s([group_out, tile]);
        return inputs + gemm(group_out, g.rows(), tile);
    }
    let block = BLOCK.min(group_out);
    f32s([g.rows(), tile])
        + f32s([group_out, tile])
        + f32s([g.rows(), block])
        + gemm(g.rows(), block, tile)
}

/// `[rows, inner] @ [inner, columns]`: the right factor rearranged, and a block of the product.
fn mm(rows: usize, inner: usize, columns: usize) -> u64 {
    if !is_large(rows, inner, columns) {
        return gemm(rows, columns, inner);
    }
    let block = BLOCK.min(columns);
    f32s([inner, columns]) + f32s([rows, block]) + gemm(rows, block, inner)
}

/// An upper bound on what an operator allocates beyond its results.
fn scratch(plan: &CpuPlan, node: &PlanNode, threads: usize) -> u64 {
    let dims = |value: usize| plan.values[value].1.as_slice();
    let operands: Vec<Option<&[usize]>> = (node.operands.iter())
        .map(|operand| operand.map(|(value, _)| dims(value)))
        .collect();
    let operand = |index: usize| operands.get(index).copied().flatten().unwrap_or(&[]);
    let result = node
        .results
        .first()
        .map_or(&[][..], |(value, _)| dims(*value));
    let geometry = || ops::geometry(&node.op, &operands, result);
    match &node.op {
        Op::Convolution { .. } => geometry().map_or(0, |g| convolution(&g)),
        Op::ConvolutionInputGrad { .. } => geometry().map_or(0, |g| convolution_input_grad(&g)),
        Op::ConvolutionWeightGrad { .. } => geometry().map_or(0, |g| convolution_weight_grad(&g)),
        Op::Addmm {} | Op::Mm {} | Op::Bmm {} => {
            let a = operand(usize::from(matches!(node.op, Op::Addmm {})));
            match (a, result) {
                ([.., depth], [batch, rows, columns]) => {
                    threads.min(*batch) as u64 * gemm(*rows, *columns, *depth)
                }
                ([.., inner], [rows, columns]) => mm(*rows, *inner, *columns),
                _ => 0,
            }
        }
        // Sums and factors of each channel.
        Op::BatchNormTraining { .. } | Op::BatchNormInference { .. } | Op::BatchNormGrad { .. } => {
            64 * operand(0).get(1).map_or(0, |&channels| channels as u64)
        }
        // A line of each operand, gathered.
        Op::Softmax { dim }
        | Op::LogSoftmax { dim }
        | Op::SoftmaxGrad { dim }
        | Op::LogSoftmaxGrad { dim } => {
            let length = result.get(*dim).copied().unwrap_or(1);
            2 * f32s([length, threads])
        }
        Op::Sum { dims, .. } | Op::Mean { dims, .. } => reduce::scratch(operand(0), dims),
        // The second operand times alpha, where shapes differ.
        Op::Add { alpha } | Op::Sub { alpha } if alpha.abs() != 1.0 => {
            f32s(operand(1).iter().copied())
        }
        _ => 0,
    }
}
