//! A compiled program: concrete shapes, which handle is let go where, and the peak of memory.

use outboard_graph::{DType, Graph, InputKind, Op, TensorType, ValueId};

use super::memory;
use crate::ExecError;

/// A program for this engine.
#[derive(Debug)]
pub struct CpuPlan {
    pub(super) inputs: Vec<PlanInput>,
    pub(super) nodes: Vec<PlanNode>,
    pub(super) outputs: Vec<usize>,
    /// Element type and sizes of each value.
    pub(super) values: Vec<(DType, Vec<usize>)>,
    pub(super) peak_bytes: u64,
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
    /// Each with whether this is its last use: then the handle itself goes to the operator.
    pub(super) operands: Vec<Option<(usize, bool)>>,
    /// Each with whether anything uses it.
    pub(super) results: Vec<(usize, bool)>,
    /// The node for error messages.
    pub(super) text: String,
    pub(super) scope: String,
}

/// Compiles a program that passed `verify`.
pub(super) fn compile(program: &Graph, threads: usize) -> Result<CpuPlan, ExecError> {
    let values = (program.values.iter().enumerate())
        .map(|(index, value)| concrete(index, &value.ty))
        .collect::<Result<Vec<_>, _>>()?;
    let known = |value: ValueId| {
        let index = value.0 as usize;
        (index < values.len())
            .then_some(index)
            .ok_or_else(|| ExecError::Invalid(format!("the program has no value %{}", value.0)))
    };
    // The last node that uses each value; outputs are used after all nodes.
    let mut last_use: Vec<Option<usize>> = vec![None; values.len()];
    for (at, node) in program.nodes.iter().enumerate() {
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
    let mut nodes = Vec::with_capacity(program.nodes.len());
    for (at, node) in program.nodes.iter().enumerate() {
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
            op: node.op.clone(),
            operands,
            results,
            text: text(node),
            scope: node.scope.clone(),
        };
        supported(&plan, &values)?;
        nodes.push(plan);
    }
    let outputs = (program.outputs.iter())
        .map(|output| known(output.value))
        .collect::<Result<_, _>>()?;
    let mut plan = CpuPlan {
        inputs,
        nodes,
        outputs,
        values,
        peak_bytes: 0,
    };
    let kept: Vec<bool> = program.inputs.iter().map(|i| stays(i.kind)).collect();
    plan.peak_bytes = memory::peak(&plan, &kept, threads)?;
    Ok(plan)
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
