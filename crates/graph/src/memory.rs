//! How much memory a program takes, by the lifetimes of its values.

use std::collections::{HashMap, HashSet};

use crate::{Graph, GraphError, Input, InputKind, OutputKind, ValueId};

impl Graph {
    /// The most bytes of tensors that are alive at once while this concrete program runs node by node.
    ///
    /// Inputs are alive from the start until their last use, or to the end when `kept` says so; outputs are alive from
    /// when they are made to the end. A node's operands and results are alive together. Each value counts in full, also
    /// where an engine would share memory between a view and its base; scratch memory of an engine comes on top.
    ///
    /// # Errors
    /// When a value depends on the batch.
    pub fn peak_bytes(&self, kept: impl Fn(&Input) -> bool) -> Result<u64, GraphError> {
        let forever = self.nodes.len();
        let mut last_use: HashMap<ValueId, usize> = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for value in node.operands.iter().flatten().chain(&node.results) {
                last_use.insert(*value, index);
            }
        }
        for output in &self.outputs {
            last_use.insert(output.value, forever);
        }
        for input in self.inputs.iter().filter(|input| kept(input)) {
            last_use.insert(input.value, forever);
        }

        let mut alive = 0_u64;
        let mut unused = 0_u64;
        for input in &self.inputs {
            let bytes = self.concrete_bytes(input.value)?;
            alive = alive.saturating_add(bytes);
            if !last_use.contains_key(&input.value) {
                unused = unused.saturating_add(bytes);
            }
        }
        let mut peak = alive;
        alive -= unused;
        for (index, node) in self.nodes.iter().enumerate() {
            for result in &node.results {
                alive = alive.saturating_add(self.concrete_bytes(*result)?);
            }
            peak = peak.max(alive);
            let touched: HashSet<ValueId> = (node.operands.iter().flatten())
                .chain(&node.results)
                .copied()
                .collect();
            for value in touched {
                if last_use.get(&value) == Some(&index) {
                    alive = alive.saturating_sub(self.concrete_bytes(value)?);
                }
            }
        }
        Ok(peak)
    }

    /// Bytes of the inputs of these kinds of a concrete program.
    ///
    /// # Errors
    /// When one depends on the batch.
    pub fn input_bytes(&self, kinds: &[InputKind]) -> Result<u64, GraphError> {
        let inputs = self.inputs.iter().filter(|i| kinds.contains(&i.kind));
        self.distinct_bytes(inputs.map(|input| input.value))
    }

    /// Bytes of the outputs of these kinds of a concrete program, a value that is returned twice counted once. With
    /// [`OutputKind::Saved`], what a micro-batch in flight holds.
    ///
    /// # Errors
    /// When one depends on the batch.
    pub fn output_bytes(&self, kinds: &[OutputKind]) -> Result<u64, GraphError> {
        let outputs = self.outputs.iter().filter(|o| kinds.contains(&o.kind));
        self.distinct_bytes(outputs.map(|output| output.value))
    }

    fn distinct_bytes(&self, values: impl Iterator<Item = ValueId>) -> Result<u64, GraphError> {
        let distinct: HashSet<ValueId> = values.collect();
        distinct.into_iter().try_fold(0_u64, |sum, value| {
            Ok(sum.saturating_add(self.concrete_bytes(value)?))
        })
    }

    fn concrete_bytes(&self, value: ValueId) -> Result<u64, GraphError> {
        let ty = self
            .ty(value)
            .ok_or(GraphError::Value(value, "is not a value of the graph"))?;
        if !ty.is_concrete() {
            return Err(GraphError::Value(
                value,
                "depends on the batch; instantiate first",
            ));
        }
        ty.bytes(1)
            .ok_or(GraphError::Value(value, "is beyond the limits"))
    }
}
