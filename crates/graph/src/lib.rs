//! The model as a typed graph of PyTorch's decomposed core ATen operators.
//!
//! This crate promises to be pure: it computes shapes, text, stages, gradients-as-graphs and bundle bytes from its
//! arguments alone. It never runs an operator, never knows PyTorch, a device, a socket or the clock, and no input makes
//! it panic: whatever comes from a file or a peer passes [`Graph::verify`] before anything else looks at it.

mod graph;
mod op;
mod tensor;
mod types;

pub use graph::{Graph, Input, InputKind, Node, Output, OutputKind, Value, ValueId};
pub use op::{Op, Reduction};
pub use tensor::Tensor;
pub use types::{DType, Dim, TensorType};
