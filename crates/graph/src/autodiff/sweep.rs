//! The sweep: one pass over the forward nodes in descending order that builds the joint backward graph, from which `B`
//! and `W` are then split.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{Dim, Graph, InputKind, Node, Op, OutputKind, TensorType, ValueId, vjp};

use super::{AutodiffError, facts::Facts, saved_name};

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
    forward: &'a Graph,
    facts: &'a Facts,
    joint: Joint,
    /// Forward values as they are known in the joint graph.
    imported: HashMap<ValueId, ValueId>,
    /// The forward node whose gradient is being built.
    node: Option<&'a Node>,
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
            node: None,
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
        let mut losses = 0;
        for output in &self.forward.outputs {
            let loss_error = |reason| AutodiffError::Loss {
                name: output.name.clone(),
                reason,
            };
            let name = match output.kind {
                OutputKind::LossSum if self.facts.trainable(output.value) => {
                    losses += 1;
                    if losses > 1 {
                        return Err(loss_error("a model has one loss; add the others to it"));
                    }
                    if self.facts.derived(output.value) {
                        return Err(loss_error(
                            "it depends on parameters alone; add it to a loss that depends on data",
                        ));
                    }
                    "loss"
                }
                OutputKind::Activation
                    if differentiable.contains(&output.name)
                        && self.facts.trainable(output.value) =>
                {
                    output.name.as_str()
                }
                _ => continue,
            };
            let ty = self.forward_type(output.value)?.clone();
            if name == "loss" && (!ty.dims.is_empty() || ty.dtype != crate::DType::F32) {
                return Err(loss_error("it must be an f32[]; sum it"));
            }
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

    // For the rules.

    /// A constant of a type.
    pub(crate) fn full(&mut self, ty: &TensorType, value: f64) -> Result<ValueId, AutodiffError> {
        let op = Op::Full {
            shape: ty.dims.clone(),
            value,
            dtype: ty.dtype,
        };
        let constant = self.push1(op, &[])?;
        if let Some(replayed) = self.joint.replayed.last_mut() {
            *replayed = true;
        }
        Ok(constant)
    }

    /// A forward value, as the backward programs know it: a parameter as itself, a value derived from parameters
    /// recomputed, a plain reshaping of a saved value redone, all else saved.
    pub(crate) fn value(&mut self, value: ValueId) -> Result<ValueId, AutodiffError> {
        if let Some(known) = self.imported.get(&value) {
            return Ok(*known);
        }
        let forward = self.forward;
        // The chain that has to be redone, last node first. Explicit, because a hostile graph may be deep.
        let mut chain = vec![value];
        while let Some(top) = chain.last().copied() {
            if self.imported.contains_key(&top) {
                chain.pop();
                continue;
            }
            let node = self
                .facts
                .producer(top)
                .and_then(|index| forward.nodes.get(index));
            if let Some(node) =
                node.filter(|node| self.facts.derived(top) || is_reshaping(&node.op))
            {
                let missing: Vec<ValueId> = (node.operands.iter().flatten().copied())
                    .filter(|operand| !self.imported.contains_key(operand))
                    .collect();
                if missing.is_empty() {
                    self.replay(node)?;
                    chain.pop();
                } else {
                    chain.extend(missing);
                }
                continue;
            }
            let kind = match self
                .facts
                .input(top)
                .and_then(|index| forward.inputs.get(index))
            {
                Some(input) if matches!(input.kind, InputKind::Parameter | InputKind::Frozen) => {
                    Some((input.kind, input.name.clone()))
                }
                _ => None,
            };
            let (kind, name) = kind.unwrap_or_else(|| (InputKind::Saved, saved_name(top)));
            let ty = self.forward_type(top)?.clone();
            let input = self.input(kind, &name, ty)?;
            if kind == InputKind::Saved {
                self.joint.saved.insert(name, top);
            }
            self.imported.insert(top, input);
            chain.pop();
        }
        self.imported
            .get(&value)
            .copied()
            .ok_or(AutodiffError::Malformed("a value is missing"))
    }

    /// Computes a forward node again in the joint graph; its operands are there.
    fn replay(&mut self, node: &'a Node) -> Result<(), AutodiffError> {
        let operands: Vec<Option<ValueId>> = (node.operands.iter())
            .map(|operand| operand.and_then(|value| self.imported.get(&value).copied()))
            .collect();
        let current = self.node.replace(node);
        let results = self.push(node.op.clone(), &operands)?;
        self.node = current;
        if let Some(replayed) = self.joint.replayed.last_mut() {
            *replayed = true;
        }
        for (result, copy) in node.results.iter().zip(results) {
            self.imported.insert(*result, copy);
        }
        Ok(())
    }

    /// A forward operand of `node`, see [`Sweep::value`].
    pub(crate) fn operand(&mut self, node: &Node, index: usize) -> Result<ValueId, AutodiffError> {
        let value = self.forward_operand(node, index)?;
        self.value(value)
    }

    /// A forward operand of `node` that may be left out.
    pub(crate) fn optional_operand(
        &mut self,
        node: &Node,
        index: usize,
    ) -> Result<Option<ValueId>, AutodiffError> {
        match node.operands.get(index).copied().flatten() {
            Some(value) => Ok(Some(self.value(value)?)),
            None => Ok(None),
        }
    }

    /// A forward result of `node`, see [`Sweep::value`].
    pub(crate) fn result(&mut self, node: &Node, index: usize) -> Result<ValueId, AutodiffError> {
        let value = (node.results.get(index).copied())
            .ok_or(AutodiffError::Malformed("a result is missing"))?;
        self.value(value)
    }

    /// The type of a forward operand of `node`; this saves nothing.
    pub(crate) fn operand_type(
        &self,
        node: &Node,
        index: usize,
    ) -> Result<TensorType, AutodiffError> {
        let value = self.forward_operand(node, index)?;
        Ok(self.forward_type(value)?.clone())
    }

    /// The type of a value of the joint graph.
    pub(crate) fn ty(&self, value: ValueId) -> Result<&TensorType, AutodiffError> {
        type_in(&self.joint.graph, value)
    }

    /// Appends a node with all operands present and one result.
    pub(crate) fn push1(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId, AutodiffError> {
        let operands: Vec<Option<ValueId>> = operands.iter().copied().map(Some).collect();
        let results = self.push(op, &operands)?;
        results
            .first()
            .copied()
            .ok_or(AutodiffError::Malformed("a node without results"))
    }

    /// Appends a node.
    pub(crate) fn push(
        &mut self,
        op: Op,
        operands: &[Option<ValueId>],
    ) -> Result<Vec<ValueId>, AutodiffError> {
        let (name, scope, origin) = match self.node {
            Some(node) => (node.op.name(), node.scope.as_str(), node.origin),
            None => (op.name(), "", 0),
        };
        let results = (self.joint.graph.push(op, operands, scope, origin)).map_err(|source| {
            AutodiffError::Graph {
                op: name,
                scope: scope.to_owned(),
                source,
            }
        })?;
        self.joint.replayed.push(false);
        Ok(results)
    }

    /// Reorders dimensions; undoes an earlier reordering instead of adding a second one.
    pub(crate) fn permute(
        &mut self,
        value: ValueId,
        dims: &[usize],
    ) -> Result<ValueId, AutodiffError> {
        let before =
            (self.joint.graph.nodes.iter().rev()).find(|node| node.results.contains(&value));
        if let Some(Node {
            op: Op::Permute { dims: first },
            operands,
            ..
        }) = before
            && let Some(Some(source)) = operands.first()
        {
            let identity = (dims.iter().enumerate())
                .all(|(position, dim)| first.get(*dim).copied() == Some(position));
            if identity && dims.len() == first.len() {
                return Ok(*source);
            }
        }
        self.push1(
            Op::Permute {
                dims: dims.to_vec(),
            },
            &[value],
        )
    }

    /// Sums a gradient over the dimensions along which an operand of type `ty` was broadcast, and converts it to the
    /// operand's element type.
    pub(crate) fn unbroadcast(
        &mut self,
        gradient: ValueId,
        ty: &TensorType,
    ) -> Result<ValueId, AutodiffError> {
        let have = self.ty(gradient)?.clone();
        let leading = have.dims.len().saturating_sub(ty.dims.len());
        let dims: Vec<usize> = (have.dims.iter().enumerate())
            .filter(|(position, dim)| {
                let operand = position.checked_sub(leading).and_then(|k| ty.dims.get(k));
                match operand {
                    None => true,
                    Some(own) => *own == Dim::Fixed(1) && **dim != Dim::Fixed(1),
                }
            })
            .map(|(position, _)| position)
            .collect();
        let mut gradient = gradient;
        if !dims.is_empty() {
            gradient = self.push1(
                Op::Sum {
                    dims,
                    keepdim: true,
                },
                &[gradient],
            )?;
        }
        if self.ty(gradient)?.dims != ty.dims {
            gradient = self.push1(
                Op::View {
                    shape: ty.dims.clone(),
                },
                &[gradient],
            )?;
        }
        if self.ty(gradient)?.dtype != ty.dtype {
            gradient = self.push1(Op::ToCopy { dtype: ty.dtype }, &[gradient])?;
        }
        Ok(gradient)
    }

    /// "This operator has a gradient, but not here."
    pub(crate) fn unsupported(&self, node: &Node, reason: &'static str) -> AutodiffError {
        AutodiffError::Unsupported {
            op: node.op.name(),
            scope: node.scope.clone(),
            reason,
        }
    }

    fn forward_operand(&self, node: &Node, index: usize) -> Result<ValueId, AutodiffError> {
        (node.operands.get(index).copied().flatten())
            .ok_or(AutodiffError::Malformed("an operand is missing"))
    }

    fn forward_type(&self, value: ValueId) -> Result<&TensorType, AutodiffError> {
        type_in(self.forward, value)
    }

    fn input(
        &mut self,
        kind: InputKind,
        name: &str,
        ty: TensorType,
    ) -> Result<ValueId, AutodiffError> {
        (self.joint.graph.input(kind, name, ty)).map_err(|source| AutodiffError::Graph {
            op: kind.name(),
            scope: name.to_owned(),
            source,
        })
    }
}

/// Reorderings of nothing: the result holds the operand's elements in the same order, or repeats them.
fn is_reshaping(op: &Op) -> bool {
    matches!(
        op,
        Op::View { .. } | Op::Squeeze { .. } | Op::Unsqueeze { .. } | Op::Expand { .. }
    )
}

fn type_in(graph: &Graph, value: ValueId) -> Result<&TensorType, AutodiffError> {
    (graph.values.get(value.0 as usize))
        .map(|value| &value.ty)
        .ok_or(AutodiffError::Malformed("a value is missing"))
}
