//! What the rules build with: forward values as the backward programs know them, and nodes of the joint graph.

use crate::{Dim, InputKind, Node, Op, TensorType, ValueId};

use super::{
    AutodiffError, saved_name,
    sweep::{Sweep, type_in},
};

impl<'a> Sweep<'a> {
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
            // Only zeros for an activation that nothing differentiates.
            None => (
                op.name(),
                "",
                self.forward.nodes.first().map_or(0, |node| node.origin),
            ),
        };
        let results = (self.joint.graph.push(op, operands, scope, origin)).map_err(|source| {
            AutodiffError::Graph {
                op: name,
                scope: scope.to_owned(),
                source,
            }
        })?;
        self.joint.replayed.push(false);
        let index = self.joint.graph.nodes.len().saturating_sub(1);
        (self.made_by).extend(results.iter().map(|result| (*result, index)));
        Ok(results)
    }

    /// Reorders dimensions; undoes an earlier reordering instead of adding a second one.
    ///
    /// The gradient of a transposed weight (`Linear` computes `x @ w^T`) is made transposed in the first place:
    /// `(x^T @ g)^T = g^T @ x`. Only there: elsewhere a cut between the product and the transposition would show.
    pub(crate) fn permute(
        &mut self,
        value: ValueId,
        dims: &[usize],
    ) -> Result<ValueId, AutodiffError> {
        let before = self.made_by.get(&value);
        let before = before.and_then(|index| self.joint.graph.nodes.get(*index));
        if let Some(Node { op, operands, .. }) = before {
            match (op, operands.as_slice()) {
                (Op::Permute { dims: first }, [Some(source)])
                    if first.len() == dims.len()
                        && (dims.iter().enumerate())
                            .all(|(position, dim)| first.get(*dim) == Some(&position)) =>
                {
                    return Ok(*source);
                }
                (Op::Mm {}, [Some(a), Some(b)]) if self.in_use && dims == [1, 0] => {
                    let (a, b) = (*a, *b);
                    self.in_use = false; // one product at a time, however long the chain
                    let left = self.permute(b, dims)?;
                    let right = self.permute(a, dims)?;
                    self.in_use = true;
                    return self.push1(Op::Mm {}, &[left, right]);
                }
                _ => {}
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
            // Where only dimensions in front are summed, they go at once.
            let keepdim = dims.iter().any(|dim| *dim >= leading);
            gradient = self.push1(Op::Sum { dims, keepdim }, &[gradient])?;
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

    pub(super) fn forward_type(&self, value: ValueId) -> Result<&TensorType, AutodiffError> {
        type_in(self.forward, value)
    }

    pub(super) fn input(
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
