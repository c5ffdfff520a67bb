//! Batch norms together with what stands around them: one pass over memory instead of two or three. And matrix products of
//! transposed matrices, which are read as they lie.
//!
//! ```text
//!   batch norm -> relu                  batch norm -> add -> relu        threshold_backward -> batch norm's gradient
//!   permute [1,0] -> mm or addmm
//! ```
//!
//! A fused operator rounds where its parts would, so that no bit tells whether a graph was cut between them.

use outboard_graph::{DType, Graph, Node, Op, TensorType, ValueId};

/// What an operator does beside its own work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fused {
    /// One more operand: what is added to the result, or the rectifier's output whose zeros the gradient passes first.
    pub(super) operand: bool,
    /// The result, with what was added, is rectified.
    pub(super) relu: bool,
    /// Of a matrix product, whether each factor's rows are read as columns.
    pub(super) turned: [bool; 2],
}

/// Where the operand of [`Fused`] stands.
pub(super) const OPERAND: usize = 5;

/// A node of the program, or several in one.
#[derive(Clone, Debug)]
pub(super) struct FusedNode<'a> {
    pub(super) node: &'a Node,
    pub(super) operands: Vec<Option<ValueId>>,
    pub(super) results: Vec<ValueId>,
    pub(super) fused: Fused,
}

/// Who uses a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Nobody,
    /// One node, once.
    Node(usize),
    /// More, or an output.
    Others,
}

struct Fusion<'a> {
    graph: &'a Graph,
    uses: Vec<Use>,
    /// What runs at the place of each node; nothing, where that is part of another.
    places: Vec<Option<FusedNode<'a>>>,
}

/// The program's nodes in an order to run them in. Values that the program does not have are left for others to find.
pub(super) fn fused(graph: &Graph) -> Vec<FusedNode<'_>> {
    let mut uses = vec![Use::Nobody; graph.values.len()];
    let mut count = |value: ValueId, by: Use| {
        if let Some(of_value) = uses.get_mut(value.index()) {
            *of_value = match of_value {
                Use::Nobody => by,
                _ => Use::Others,
            };
        }
    };
    for (index, node) in graph.nodes.iter().enumerate() {
        for operand in node.operands.iter().flatten() {
            count(*operand, Use::Node(index));
        }
    }
    for output in &graph.outputs {
        count(output.value, Use::Others);
    }
    let places = graph.nodes.iter().map(|node| {
        Some(FusedNode {
            node,
            operands: node.operands.clone(),
            results: node.results.clone(),
            fused: Fused::default(),
        })
    });
    let mut fusion = Fusion {
        graph,
        uses,
        places: places.collect(),
    };
    for (index, node) in graph.nodes.iter().enumerate() {
        match node.op {
            Op::BatchNormTraining { .. } | Op::BatchNormInference { .. } => {
                fusion.after_batch_norm(index);
            }
            Op::ThresholdGrad { threshold: 0.0 } => fusion.before_gradient(index),
            Op::Permute { ref dims } if dims[..] == [1, 0] => fusion.before_products(index),
            _ => {}
        }
    }
    fusion.places.into_iter().flatten().collect()
}

impl Fusion<'_> {
    /// The one node that uses a value, and its place.
    fn user(&self, value: ValueId) -> Option<(usize, &Node)> {
        match self.uses.get(value.index()) {
            Some(Use::Node(index)) => Some((*index, self.graph.nodes.get(*index)?)),
            _ => None,
        }
    }

    /// `value`, rectified: the rectifier's place and result.
    fn rectifier(&self, value: ValueId) -> Option<(usize, ValueId)> {
        let (place, node) = self.user(value)?;
        match (&node.op, node.results.as_slice()) {
            (Op::Relu {}, [result]) => Some((place, *result)),
            _ => None,
        }
    }

    /// `value + addend`, of one shape: the sum's place, the addend and the result.
    fn sum(&self, value: ValueId) -> Option<(usize, ValueId, ValueId)> {
        let (place, node) = self.user(value)?;
        let (Op::Add { alpha: 1.0 }, [Some(a), Some(b)], [result]) =
            (&node.op, node.operands.as_slice(), node.results.as_slice())
        else {
            return None;
        };
        let addend = if *a == value { *b } else { *a };
        (self.graph.ty(addend)? == self.graph.ty(value)?).then_some((place, addend, *result))
    }

    fn after_batch_norm(&mut self, place: usize) {
        let Some(Some(norm)) = self.places.get(place) else {
            return;
        };
        let (Some(&value), others) = (norm.results.first(), norm.results.get(1..)) else {
            return;
        };
        if let Some((relu, result)) = self.rectifier(value) {
            self.put(place, place, &[relu], None, true, result);
            return;
        }
        let Some((sum, addend, result)) = self.sum(value) else {
            return;
        };
        // It moves to the place of the sum: nothing between may wait for its statistics.
        let is_waited_for = |value: &ValueId| self.user(*value).is_some();
        let is_free =
            matches!(self.places.get(sum), Some(Some(at)) if matches!(at.node.op, Op::Add { .. }));
        if !is_free || others.unwrap_or_default().iter().any(is_waited_for) {
            return;
        }
        match self.rectifier(result) {
            Some((relu, rectified)) => {
                self.put(place, sum, &[relu], Some(addend), true, rectified);
            }
            None => self.put(place, sum, &[], Some(addend), false, result),
        }
    }

    /// The batch norm of `place` runs at `to`, and with it what stood there and at the `absorbed` places.
    fn put(
        &mut self,
        place: usize,
        to: usize,
        absorbed: &[usize],
        addend: Option<ValueId>,
        relu: bool,
        result: ValueId,
    ) {
        let Some(mut norm) = self.places.get_mut(place).and_then(Option::take) else {
            return;
        };
        norm.results[0] = result;
        norm.fused = Fused {
            operand: addend.is_some(),
            relu,
            ..Fused::default()
        };
        if addend.is_some() {
            norm.operands.resize(OPERAND, None);
            norm.operands.push(addend);
        }
        for absorbed in absorbed {
            self.places[*absorbed] = None;
        }
        self.places[to] = Some(norm);
    }

    /// The transposition of `place`, where products alone use it.
    fn before_products(&mut self, place: usize) {
        let Some(node) = self.graph.nodes.get(place) else {
            return;
        };
        let ([Some(from)], [to]) = (node.operands.as_slice(), node.results.as_slice()) else {
            return;
        };
        let is_output = self.graph.outputs.iter().any(|output| output.value == *to);
        let is_f32 = |ty: &TensorType| ty.dtype == DType::F32;
        if is_output || !self.graph.ty(*to).is_some_and(is_f32) {
            return;
        }
        let mut factors = Vec::new();
        for (index, node) in self.graph.nodes.iter().enumerate() {
            for (operand, _) in (node.operands.iter().enumerate()).filter(|(_, o)| **o == Some(*to))
            {
                let factor = match node.op {
                    Op::Mm {} => Some(operand),
                    Op::Addmm {} => operand.checked_sub(1),
                    _ => None,
                };
                let Some(factor @ 0..2) = factor else { return };
                factors.push((index, operand, factor));
            }
        }
        let from = *from;
        for (index, operand, factor) in factors {
            if let Some(Some(product)) = self.places.get_mut(index) {
                product.operands[operand] = Some(from);
                product.fused.turned[factor] = true;
            }
        }
        self.places[place] = None;
    }

    fn before_gradient(&mut self, place: usize) {
        let Some(node) = self.graph.nodes.get(place) else {
            return;
        };
        let ([Some(grad), Some(output)], [passed]) =
            (node.operands.as_slice(), node.results.as_slice())
        else {
            return;
        };
        let Some((user, gradient)) = self.user(*passed) else {
            return;
        };
        let is_first = gradient.operands.first() == Some(&Some(*passed));
        if !matches!(gradient.op, Op::BatchNormGrad { .. }) || !is_first {
            return;
        }
        let (grad, output) = (*grad, *output);
        if let Some(Some(gradient)) = self.places.get_mut(user) {
            gradient.operands.resize(OPERAND, None);
            gradient.operands[0] = Some(grad);
            gradient.operands.push(Some(output));
            gradient.fused.operand = true;
            self.places[place] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of what runs, with what is fused.
    fn names(text: &str) -> Vec<String> {
        let graph: Graph = text.parse().unwrap();
        let nodes = fused(&graph).into_iter();
        nodes
            .map(|node| {
                let Fused {
                    operand,
                    relu,
                    turned: [a, b],
                } = node.fused;
                let more = [(operand, "+operand"), (relu, "+relu"), (a, "+a"), (b, "+b")];
                let more = more.iter().filter(|(is, _)| *is).map(|(_, name)| *name);
                node.node.op.name().to_owned() + &more.collect::<String>()
            })
            .collect()
    }

    /// A block of a residual network whose skip connection has a batch norm too.
    fn block(outputs: &str) -> String {
        format!(
            r#"graph "block" {{
  %0: f32[B,4,8,8] = data "x"
  %1: f32[4] = parameter "w"
  %2: f32[4] = buffer "m"
  %3: f32[4] = buffer "v"
  %4: f32[B,4,8,8], %5: f32[4], %6: f32[4], %7: f32[4], %8: f32[4] = _native_batch_norm_legit_functional(%0, %1, %1, %2, %3, momentum=0.1, eps=1e-5)
  %9: f32[B,4,8,8] = relu(%4)
  %10: f32[B,4,8,8], %11: f32[4], %12: f32[4], %13: f32[4], %14: f32[4] = _native_batch_norm_legit_functional(%9, %1, %1, %2, %3, momentum=0.1, eps=1e-5)
  %15: f32[B,4,8,8], %16: f32[4], %17: f32[4], %18: f32[4], %19: f32[4] = _native_batch_norm_legit_functional(%0, %1, %1, %2, %3, momentum=0.1, eps=1e-5)
  %20: f32[B,4,8,8] = add.Tensor(%10, %15, alpha=1.0)
  %21: f32[B,4,8,8] = relu(%20)
  return {outputs}
}}
"#
        )
    }

    #[test]
    fn a_residual_block_is_three_batch_norms() {
        let norm = "_native_batch_norm_legit_functional";
        assert_eq!(
            names(&block("result \"y\" %21")),
            [
                format!("{norm}+relu"),
                norm.to_owned(),
                format!("{norm}+operand+relu")
            ]
        );
    }

    #[test]
    fn what_someone_else_needs_is_computed() {
        let norm = "_native_batch_norm_legit_functional";
        let text = block("result \"y\" %21, saved \"%4\" %4, saved \"%20\" %20");
        assert_eq!(
            names(&text),
            [norm, "relu", norm, &format!("{norm}+operand"), "relu"]
        );
    }

    #[test]
    fn products_read_transposed_matrices_as_they_lie() {
        let linear = |outputs: &str| {
            names(&format!(
                r#"graph "linear" {{
  %0: f32[B,4] = data "x"
  %1: f32[3,4] = parameter "w"
  %2: f32[3] = parameter "b"
  %3: f32[4,3] = permute(%1, dims=[1,0])
  %4: f32[B,3] = addmm(%2, %0, %3)
  %5: f32[4,B] = permute(%0, dims=[1,0])
  %6: f32[4,3] = mm(%5, %4)
  return {outputs}
}}
"#
            ))
        };
        assert_eq!(linear("result \"y\" %6"), ["addmm+b", "mm+a"]);
        assert_eq!(
            linear("result \"y\" %6, saved \"%3\" %3"),
            ["permute", "addmm", "mm+a"]
        );
    }
}
