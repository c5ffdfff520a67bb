//! The sweep: one pass over the forward nodes in descending order that builds the joint backward graph, from which `B`
//! and `W` are then split.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{Graph, InputKind, Node, Op, OutputKind, TensorType, ValueId, vjp};

use super::{AutodiffError, facts::Facts};

/// The gradient of one use of a parameter.
pub(crate) struct UseGradient {
    /// Position of the parameter among the forward graph's inputs.
    pub(crate) input: usize,
    /// The parameter.
    pub(crate) name: String,
    /// Origin of the first consumer that is not itself derived from parameters.
    pub(crate) origin: u32,
    /// Operand index there.
    pub(crate) operand: usize,
    /// The gradient in the joint graph.
    pub(crate) value: ValueId,
}

/// The joint backward graph before it is split into `B` and `W`.
pub(crate) struct Joint {
    /// Inputs are parameters, frozen weights, saved forward values and cotangents; it has no outputs yet.
    pub(crate) graph: Graph,
    /// For each node, whether it recomputes a forward value or a constant: cheap, and never passed from `B` to `W`.
    pub(crate) replayed: Vec<bool>,
    /// Cotangents of the stage's differentiable activations, in the order of its inputs.
    pub(crate) cotangents: Vec<(String, ValueId)>,
    /// Parameter gradients, by parameter, then by use.
    pub(crate) gradients: Vec<UseGradient>,
    /// Saved inputs by name, with the forward value each stands for.
    pub(crate) saved: BTreeMap<String, ValueId>,
}

/// State of the sweep; rules build their nodes through it.
pub(crate) struct Sweep<'a> {
    pub(super) forward: &'a Graph,
    pub(super) facts: &'a Facts,
    pub(super) joint: Joint,
    /// Forward values as they are known in the joint graph.
    pub(super) imported: HashMap<ValueId, ValueId>,
    /// Which node of the joint graph makes a value.
    pub(super) made_by: HashMap<ValueId, usize>,
    /// The forward node whose gradient is being built.
    pub(super) node: Option<&'a Node>,
    /// A gradient is being carried back along a chain derived from parameters alone.
    pub(super) in_use: bool,
}

impl<'a> Sweep<'a> {
    pub(crate) fn run(
        forward: &'a Graph,
        facts: &'a Facts,
        differentiable: &BTreeSet<String>,
    ) -> Result<Joint, AutodiffError> {
        let mut sweep = Sweep {
            forward,
            facts,
            joint: Joint {
                graph: Graph::default(),
                replayed: Vec::new(),
                cotangents: Vec::new(),
                gradients: Vec::new(),
                saved: BTreeMap::new(),
            },
            imported: HashMap::new(),
            made_by: HashMap::new(),
            node: None,
            in_use: false,
        };
        let mut adjoints = sweep.seeds(differentiable)?;

        for node in forward.nodes.iter().rev() {
            let derived = node.results.iter().all(|result| facts.derived(*result));
            if derived {
                continue; // differentiated once for every use, below
            }
            let contributions = sweep.pull_back(node, &adjoints)?;
            for (operand, value, gradient) in contributions {
                if facts.derived(value) {
                    sweep.pull_back_use(node, operand, value, gradient)?;
                } else {
                    sweep.node = Some(node);
                    sweep.fold(&mut adjoints, value, gradient)?;
                }
            }
        }

        sweep.node = None;
        for input in &forward.inputs {
            if input.kind != InputKind::Activation || !differentiable.contains(&input.name) {
                continue;
            }
            let gradient = match adjoints.get(&input.value) {
                Some(gradient) => *gradient,
                None => sweep.zeros(input.value)?,
            };
            sweep.joint.cotangents.push((input.name.clone(), gradient));
        }
        (sweep.joint.gradients).sort_by_key(|use_| (use_.input, use_.origin, use_.operand));
        Ok(sweep.joint)
    }

    /// The cotangents that come from outside: of the loss and of the activations sent.
    fn seeds(
        &mut self,
        differentiable: &BTreeSet<String>,
    ) -> Result<BTreeMap<ValueId, ValueId>, AutodiffError> {
        let mut adjoints = BTreeMap::new();
        for output in &self.forward.outputs {
            let name = match output.kind {
                OutputKind::LossSum if self.facts.derived(output.value) => {
                    return Err(AutodiffError::Loss {
                        name: output.name.clone(),
                        reason: "it depends on parameters alone; add it to a loss that depends on data",
                    });
                }
                OutputKind::LossSum if self.facts.trainable(output.value) => "loss",
                OutputKind::Activation
                    if differentiable.contains(&output.name)
                        && self.facts.trainable(output.value) =>
                {
                    output.name.as_str()
                }
                _ => continue,
            };
            let ty = self.forward_type(output.value)?.clone();
            let seed = self.input(InputKind::Cotangent, name, ty)?;
            self.fold(&mut adjoints, output.value, seed)?;
        }
        Ok(adjoints)
    }

    /// The contributions of one node to the adjoints of its operands: `(operand index, operand, gradient)` in descending
    /// operand order. Empty if no gradient reaches the node or none of its operands wants one.
    fn pull_back(
        &mut self,
        node: &'a Node,
        adjoints: &BTreeMap<ValueId, ValueId>,
    ) -> Result<Vec<(usize, ValueId, ValueId)>, AutodiffError> {
        let cotangents: Vec<Option<ValueId>> = (node.results.iter())
            .map(|result| adjoints.get(result).copied())
            .collect();
        let wanted: Vec<bool> = (node.operands.iter().enumerate())
            .map(|(k, operand)| {
                operand.is_some_and(|value| self.facts.trainable(value))
                    && (cotangents.iter().enumerate())
                        .any(|(r, c)| c.is_some() && vjp::passes_gradient(&node.op, k, r))
            })
            .collect();
        if !wanted.contains(&true) {
            return Ok(Vec::new());
        }
        self.node = Some(node);
        let gradients = vjp::gradients(self, node, &cotangents, &wanted)?;

        let mut contributions = Vec::new();
        let operands = node.operands.iter().zip(&wanted).zip(gradients).enumerate();
        for (k, ((operand, wanted), gradient)) in operands {
            let (Some(value), true, Some(gradient)) = (*operand, *wanted, gradient) else {
                continue;
            };
            let (have, want) = (self.ty(gradient)?, self.forward_type(value)?);
            if have != want {
                return Err(AutodiffError::Mistyped {
                    op: node.op.name(),
                    scope: node.scope.clone(),
                    operand: k,
                    gradient: have.to_string(),
                    value: want.to_string(),
                });
            }
            contributions.push((k, value, gradient));
        }
        contributions.reverse();
        Ok(contributions)
    }

    /// Carries the gradient of one use of a derived value back to the parameters it was derived from.
    fn pull_back_use(
        &mut self,
        consumer: &'a Node,
        operand: usize,
        value: ValueId,
        gradient: ValueId,
    ) -> Result<(), AutodiffError> {
        let forward = self.forward;
        let mut adjoints = BTreeMap::from([(value, gradient)]);
        // Nodes that are still to be visited; the highest comes first, so each is complete when its turn comes.
        let mut waiting: BTreeSet<usize> = self.facts.producer(value).into_iter().collect();
        self.in_use = true;
        while let Some(index) = waiting.pop_last() {
            let node = forward
                .nodes
                .get(index)
                .ok_or(AutodiffError::Malformed("a node is missing"))?;
            for (_, value, gradient) in self.pull_back(node, &adjoints)? {
                self.node = Some(node);
                self.fold(&mut adjoints, value, gradient)?;
                waiting.extend(self.facts.producer(value).filter(|before| *before < index));
            }
        }
        self.in_use = false;
        for (value, gradient) in adjoints {
            let Some(index) = self.facts.input(value) else {
                continue;
            };
            let Some(input) = forward.inputs.get(index) else {
                continue;
            };
            if input.kind == InputKind::Parameter {
                self.joint.gradients.push(UseGradient {
                    input: index,
                    name: input.name.clone(),
                    origin: consumer.origin,
                    operand,
                    value: gradient,
                });
            }
        }
        Ok(())
    }

    /// One step of the left fold: adds a contribution to the adjoint of a forward value.
    fn fold(
        &mut self,
        adjoints: &mut BTreeMap<ValueId, ValueId>,
        value: ValueId,
        contribution: ValueId,
    ) -> Result<(), AutodiffError> {
        let sum = match adjoints.get(&value) {
            None => contribution,
            Some(so_far) => self.push1(Op::Add { alpha: 1.0 }, &[*so_far, contribution])?,
        };
        adjoints.insert(value, sum);
        Ok(())
    }

    /// Zeros of a forward value's type: the gradient of an activation that nothing in this stage differentiates.
    fn zeros(&mut self, value: ValueId) -> Result<ValueId, AutodiffError> {
        let ty = self.forward_type(value)?.clone();
        self.full(&ty, 0.0)
    }
}

pub(super) fn type_in(graph: &Graph, value: ValueId) -> Result<&TensorType, AutodiffError> {
    (graph.values.get(value.0 as usize))
        .map(|value| &value.ty)
        .ok_or(AutodiffError::Malformed("a value is missing"))
}
