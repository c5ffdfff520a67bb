//! Checking a graph that comes from a file, a peer or a pass: after [`Graph::verify`] every other function may trust it.

use std::collections::HashSet;

use crate::error::{MAX_NAME, node_text};
use crate::graph::MAX_VALUES;
use crate::{
    DType, Graph, GraphError, Input, InputKind, Node, Output, OutputKind, TensorType, ValueId,
};

impl Graph {
    /// Checks everything that a graph promises: each value is defined once and before its use, has the type that
    /// inference gives and keeps the limits; names are unique; inputs and outputs are what their kinds say.
    ///
    /// Takes time and memory linear in the size of the graph, whatever it says.
    ///
    /// # Errors
    /// The first thing that is wrong, with the node, input or output it is about.
    pub fn verify(&self) -> Result<(), GraphError> {
        if self.values.len() > MAX_VALUES || self.nodes.len() > MAX_VALUES {
            return Err(GraphError::TooManyValues);
        }
        check_name("the graph's name", &self.name)?;
        let mut defined = Defined(vec![false; self.values.len()]);
        let mut names = HashSet::new();
        for input in &self.inputs {
            defined.define(input.value)?;
            self.verify_input(input)?;
            // Parameters, frozen weights and buffers share the names of one file.
            let family = if input.kind.is_weight() {
                InputKind::Parameter
            } else {
                input.kind
            };
            if !names.insert((family, &input.name)) {
                return Err(GraphError::DuplicateInput {
                    kind: input.kind,
                    name: input.name.clone(),
                });
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            self.verify_node(index, node, &mut defined)?;
        }
        if let Some(undefined) = defined.first_undefined() {
            return Err(GraphError::Value(undefined, "is not defined"));
        }
        self.verify_outputs()
    }

    fn verify_input(&self, input: &Input) -> Result<(), GraphError> {
        check_name("an input's name", &input.name)?;
        let error = |reason: String| GraphError::Input {
            kind: input.kind,
            name: input.name.clone(),
            reason,
        };
        let ty = self
            .ty(input.value)
            .ok_or_else(|| error(format!("{} is not a value", input.value)))?;
        ty.check_limits()
            .map_err(|limit| error(limit.to_string()))?;
        if input.kind.is_weight() && !ty.is_concrete() {
            return Err(error(format!("a weight of type {ty} depends on the batch")));
        }
        let needs_float = matches!(input.kind, InputKind::Parameter | InputKind::Cotangent);
        if needs_float && !ty.dtype.is_float() {
            return Err(error(format!("{ty} has no gradients")));
        }
        Ok(())
    }

    fn verify_node(
        &self,
        index: usize,
        node: &Node,
        defined: &mut Defined,
    ) -> Result<(), GraphError> {
        check_name("a scope", &node.scope)?;
        let error = |reason: String| GraphError::Node {
            node: index,
            text: node_text(&node.op, &node.operands),
            scope: node.scope.clone(),
            reason,
        };
        let undefined = (node.operands.iter().flatten()).find(|operand| !defined.has(**operand));
        if let Some(operand) = undefined {
            return Err(error(format!("{operand} is not defined yet")));
        }
        let inferred = self.infer_node(index, &node.op, &node.operands, &node.scope)?;
        if inferred.len() != node.results.len() {
            return Err(error(format!(
                "has {} results, not {}",
                inferred.len(),
                node.results.len()
            )));
        }
        for (&result, ty) in node.results.iter().zip(&inferred) {
            defined.define(result)?;
            if self.ty(result) != Some(ty) {
                let said = self.ty(result).map(TensorType::to_string);
                return Err(error(format!(
                    "{result} is {ty}, not {}",
                    said.unwrap_or_default()
                )));
            }
        }
        Ok(())
    }

    fn verify_outputs(&self) -> Result<(), GraphError> {
        let mut names = HashSet::new();
        let buffers = (self.inputs.iter())
            .filter(|input| input.kind == InputKind::Buffer)
            .map(|input| (&input.name, self.ty(input.value)))
            .collect::<std::collections::HashMap<_, _>>();
        let mut losses = 0_usize;
        for output in &self.outputs {
            let Output { value, kind, name } = output;
            check_name("an output's name", name)?;
            let error = |reason: String| GraphError::Output {
                kind: *kind,
                name: name.clone(),
                reason,
            };
            let ty = self
                .ty(*value)
                .ok_or_else(|| error(format!("{value} is not a value")))?;
            if !names.insert((kind, name)) {
                return Err(error("the name is taken".into()));
            }
            match kind {
                OutputKind::LossSum | OutputKind::LossWeight => {
                    if *ty != TensorType::scalar(DType::F32) {
                        return Err(error(format!("{value} is {ty}, not f32[]")));
                    }
                    losses += usize::from(*kind == OutputKind::LossSum);
                    if losses > 1 {
                        return Err(error("there is another loss; add them up".into()));
                    }
                }
                OutputKind::BufferUpdate => match buffers.get(name) {
                    None => return Err(error("there is no buffer of this name".into())),
                    Some(buffer) if *buffer != Some(ty) => {
                        let buffer = buffer.map(TensorType::to_string).unwrap_or_default();
                        return Err(error(format!("{value} is {ty}, the buffer is {buffer}")));
                    }
                    Some(_) => {}
                },
                OutputKind::Cotangent | OutputKind::ParameterGradient => {
                    if !ty.dtype.is_float() {
                        return Err(error(format!("{value} is {ty}, no gradient")));
                    }
                }
                OutputKind::Result | OutputKind::Activation | OutputKind::Saved => {}
            }
        }
        Ok(())
    }
}

fn check_name(what: &'static str, name: &str) -> Result<(), GraphError> {
    if name.len() <= MAX_NAME {
        return Ok(());
    }
    Err(GraphError::NameTooLong(what))
}

/// Which values have been defined so far.
struct Defined(Vec<bool>);

impl Defined {
    fn has(&self, value: ValueId) -> bool {
        self.0.get(value.index()).copied().unwrap_or(false)
    }

    fn define(&mut self, value: ValueId) -> Result<(), GraphError> {
        match self.0.get_mut(value.index()) {
            None => Err(GraphError::Value(value, "is not a value of the graph")),
            Some(true) => Err(GraphError::Value(value, "is defined twice")),
            Some(defined) => {
                *defined = true;
                Ok(())
            }
        }
    }

    fn first_undefined(&self) -> Option<ValueId> {
        let index = self.0.iter().position(|&defined| !defined)?;
        u32::try_from(index).ok().map(ValueId)
    }
}
