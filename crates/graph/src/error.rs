//! Why a graph is not one.

use std::fmt::Write as _;

use crate::graph::MAX_VALUES;
use crate::{InputKind, Op, OutputKind, ValueId};

/// What is wrong with a graph, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A node whose operator does not take its operands, or whose results are not what the operator gives.
    #[error("node {node} `{text}` (at {scope:?}): {reason}")]
    Node {
        /// Index of the node.
        node: usize,
        /// Operator and operands.
        text: String,
        /// Where the user's code made it.
        scope: String,
        /// What is wrong.
        reason: String,
    },
    /// Two inputs of one name. Parameters, frozen weights and buffers share their names.
    #[error("two inputs are named {kind} {name:?}")]
    DuplicateInput {
        /// Kind of the second.
        kind: InputKind,
        /// The name.
        name: String,
    },
    /// An input that must not be as it is.
    #[error("input {kind} {name:?}: {reason}")]
    Input {
        /// Its kind.
        kind: InputKind,
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// An output that must not be as it is.
    #[error("output {kind} {name:?}: {reason}")]
    Output {
        /// Its kind.
        kind: OutputKind,
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A value that nothing defines, or two things define.
    #[error("value {0} {1}")]
    Value(ValueId, &'static str),
    /// The graph is larger than this crate accepts.
    #[error("more than {MAX_VALUES} values")]
    TooManyValues,
    /// A name, scope or the graph's own name that is too long.
    #[error("{0} is longer than {MAX_NAME} bytes")]
    NameTooLong(&'static str),
    /// A batch size that the graph cannot have.
    #[error("a batch of {batch}: {reason}")]
    Batch {
        /// The batch size.
        batch: usize,
        /// What is wrong.
        reason: String,
    },
}

/// Longest name of a graph, input, output or scope, in bytes.
pub const MAX_NAME: usize = 1024;

/// Operator and operands as an error message shows them, of bounded length.
pub(crate) fn node_text(op: &Op, operands: &[Option<ValueId>]) -> String {
    let mut text = format!("{}(", op.name());
    for (index, operand) in operands.iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        if index == 8 {
            text.push_str("...");
            break;
        }
        match operand {
            // Writing to a string cannot fail.
            Some(value) => _ = write!(text, "{value}"),
            None => text.push_str("none"),
        }
    }
    text.push(')');
    text
}
