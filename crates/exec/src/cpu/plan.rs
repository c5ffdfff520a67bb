//! A compiled program: concrete shapes, which handle is let go where, and the peak of memory.

use outboard_graph::{DType, Graph, InputKind, Op, TensorType, ValueId};

use std::sync::Arc;

use super::fuse::{self, Fused};
use super::order::{Wanted, wanted};
use super::scratch::{Memory, Settings};
use super::{batch_norm, conv, memory};
use crate::ExecError;

/// A program for this engine.
#[derive(Debug)]
pub struct CpuPlan {
    pub(super) inputs: Vec<PlanInput>,
    pub(super) nodes: Vec<PlanNode>,
    pub(super) outputs: Vec<usize>,
    /// Element type and sizes of each value.
    pub(super) values: Vec<(DType, Vec<usize>)>,
    /// Which values an earlier program saved: who holds them is the caller's matter, so they stay as they are.
    pub(super) is_saved: Vec<bool>,
    pub(super) peak_bytes: u64,
    /// The most `f32` of scratch memory that one of the nodes takes.
    pub(super) scratch_elements: usize,
    /// Where memory comes from.
    pub(super) memory: Arc<Memory>,
    pub(super) settings: Settings,
}

impl CpuPlan {
    pub(super) fn scratch_bytes(&self) -> u64 {
        // Whole cache lines.
        4 * (self.scratch_elements as u64).next_multiple_of(16)
    }

    /// Shapes of a node's operands.
    pub(super) fn operand_dims(&self, node: &PlanNode) -> Vec<Option<&[usize]>> {
        (node.operands.iter())
            .map(|operand| operand.map(|(value, _)| self.values[value].1.as_slice()))
            .collect()
    }
}

#[derive(Debug)]
pub(super) struct PlanInput {
    pub(super) value: usize,
    pub(super) name: String,
    /// No node and no output uses it.
    pub(super) unused: bool,
}

#[derive(Debug)]
pub(super) struct PlanNode {
    pub(super) op: Op,
    pub(super) fused: Fused,
    /// Each with whether this is its last use: then the handle itself goes to the operator.
    pub(super) operands: Vec<Option<(usize, bool)>>,
    /// The order that each operand is wanted in.
    pub(super) wanted: Vec<Wanted>,
    /// Each with whether anything uses it.
    pub(super) results: Vec<(usize, bool)>,
    /// The node for error messages.
    pub(super) text: String,
    pub(super) scope: String,
}

/// Compiles a program that passed `verify`.
pub(super) fn compile(
    program: &Graph,
    settings: &Settings,
    memory: Arc<Memory>,
) -> Result<CpuPlan, ExecError> {
    let values = (program.values.iter().enumerate())
        .map(|(index, value)| concrete(index, &value.ty))
        .collect::<Result<Vec<_>, _>>()?;
    let known = |value: ValueId| {
        let index = value.0 as usize;
        (index < values.len())
            .then_some(index)
            .ok_or_else(|| ExecError::Invalid(format!("the program has no value %{}", value.0)))
    };
    let fused = fuse::fused(program);
    // The last node that uses each value; outputs are used after all nodes.
    let mut last_use: Vec<Option<usize>> = vec![None; values.len()];
    for (at, node) in fused.iter().enumerate() {
        for value in node.operands.iter().flatten() {
            last_use[known(*value)?] = Some(at);
        }
    }
    for output in &program.outputs {
        last_use[known(output.value)?] = Some(usize::MAX);
    }
    let inputs = (program.inputs.iter())
        .map(|input| {
            let value = known(input.value)?;
            Ok(PlanInput {
                value,
                name: input.name.clone(),
                unused: last_use[value].is_none(),
            })
        })
        .collect::<Result<Vec<_>, ExecError>>()?;
    let mut nodes = Vec::with_capacity(fused.len());
    for (at, node) in fused.iter().enumerate() {
        let mut operands = Vec::with_capacity(node.operands.len());
        for (index, operand) in node.operands.iter().enumerate() {
            operands.push(match operand {
                None => None,
                Some(value) => {
                    // Of a value that the node uses twice, the last place takes the handle.
                    let again = node.operands[index + 1..].contains(operand);
                    let value = known(*value)?;
                    Some((value, last_use[value] == Some(at) && !again))
                }
            });
        }
        let results = (node.results.iter())
            .map(|result| {
                let value = known(*result)?;
                Ok((value, last_use[value].is_some()))
            })
            .collect::<Result<Vec<_>, ExecError>>()?;
        let plan = PlanNode {
            op: node.node.op.clone(),
            fused: node.fused,
            operands,
            wanted: Vec::new(),
            results,
            text: text(node.node),
            scope: node.node.scope.clone(),
        };
        supported(&plan, &values)?;
        nodes.push(plan);
    }
    let outputs = (program.outputs.iter())
        .map(|output| known(output.value))
        .collect::<Result<_, _>>()?;
    let mut is_saved = vec![false; values.len()];
    for input in program.inputs.iter().filter(|i| i.kind == InputKind::Saved) {
        is_saved[known(input.value)?] = true;
    }
    let mut plan = CpuPlan {
        inputs,
        nodes,
        outputs,
        values,
        is_saved,
        peak_bytes: 0,
        scratch_elements: 0,
        memory,
        settings: *settings,
    };
    let mut orders = Vec::with_capacity(plan.nodes.len());
    for node in &plan.nodes {
        let dims = plan.operand_dims(node);
        orders.push(
            (0..dims.len())
                .map(|index| wanted(&node.op, index, &dims))
                .collect(),
        );
        let need = scratch_elements(&plan, node, &dims);
        plan.scratch_elements = plan.scratch_elements.max(need);
    }
    for (node, wanted) in plan.nodes.iter_mut().zip(orders) {
        node.wanted = wanted;
    }
    let kept: Vec<bool> = program.inputs.iter().map(|i| stays(i.kind)).collect();
    plan.peak_bytes = memory::peak(&plan, &kept)?.saturating_add(plan.scratch_bytes());
    Ok(plan)
}

/// Scratch memory that a node takes.
fn scratch_elements(plan: &CpuPlan, node: &PlanNode, dims: &[Option<&[usize]>]) -> usize {
    let result = node
        .results
        .first()
        .map_or(&[][..], |(value, _)| plan.values[*value].1.as_slice());
    match &node.op {
        Op::BatchNormTraining { .. } | Op::BatchNormGrad { .. } => dims
            .first()
            .copied()
            .flatten()
            .map_or(0, batch_norm::scratch),
        op => conv::sizes(op, dims, result).map_or(0, |g| conv::scratch(op, &g, &plan.settings)),
    }
}

/// Weights stay in memory whatever the program does with them: whoever runs it keeps them for the next run.
fn stays(kind: InputKind) -> bool {
    matches!(
        kind,
        InputKind::Parameter | InputKind::Frozen | InputKind::Buffer
    )
}

fn concrete(index: usize, ty: &TensorType) -> Result<(DType, Vec<usize>), ExecError> {
    let dims = ty.concrete().ok_or_else(|| {
        ExecError::Invalid(format!(
            "%{index} has type {ty}: instantiate the program for a batch size first"
        ))
    })?;
    if dims.contains(&0) {
        return Err(ExecError::Invalid(format!(
            "%{index} of type {ty} is empty"
        )));
    }
    Ok((ty.dtype, dims))
}

/// The node as the graph prints it, cut short.
fn text(node: &outboard_graph::Node) -> String {
    let operands: Vec<String> = (node.operands.iter().take(8))
        .map(|operand| operand.map_or("none".into(), |value| format!("%{}", value.0)))
        .collect();
    format!("{}({})", node.op.name(), operands.join(", "))
}

/// Arithmetic is in f32; only what moves or converts elements takes other floats.
fn supported(node: &PlanNode, values: &[(DType, Vec<usize>)]) -> Result<(), ExecError> {
    let moves = matches!(
        node.op,
        Op::ToCopy { .. }
            | Op::View { .. }
            | Op::Permute { .. }
            | Op::Expand { .. }
            | Op::Clone {}
            | Op::Cat { .. }
            | Op::Slice { .. }
            | Op::Select { .. }
            | Op::Split { .. }
            | Op::Squeeze { .. }
            | Op::Unsqueeze { .. }
            | Op::Full { .. }
            | Op::Numel {}
    );
    let operands = node.operands.iter().flatten().map(|(value, _)| *value);
    let all = operands.chain(node.results.iter().map(|(value, _)| *value));
    let half = |value: usize| matches!(values[value].0, DType::F16 | DType::BF16);
    // Padding keeps the element type; integers and flags are never padded by a model.
    let odd_pad = matches!(node.op, Op::ConstantPad { .. })
        && node
            .results
            .iter()
            .any(|(value, _)| values[*value].0 != DType::F32);
    if odd_pad || (!moves && all.into_iter().any(half)) {
        return Err(ExecError::Unsupported {
            engine: super::NAME,
            op: node.text.clone(),
            scope: node.scope.clone(),
        });
    }
    Ok(())
}
