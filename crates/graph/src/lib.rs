//! The model as a typed graph of PyTorch's decomposed core ATen operators.
//!
//! This crate promises to be pure: it computes shapes, text, stages, gradients-as-graphs and bundle bytes from its
//! arguments alone, and touches no file but those it is told to read or write a bundle in. It never runs an operator, never knows PyTorch, a device, a socket or the clock, and no input makes
//! it panic: whatever comes from a file or a peer passes [`Graph::verify`] before anything else looks at it.

mod autodiff;
mod builder;
mod bundle;
mod canonical;
mod error;
mod fold;
mod graph;
mod infer;
pub mod init;
mod loss;
mod memory;
mod op;
mod rewrite;
mod slice;
mod specialise;
mod stage;
mod tensor;
mod tensor_file;
mod text;
mod types;
mod verify;
mod vjp;
pub mod zoo;

pub use autodiff::{AutodiffError, StagePrograms, stage_programs, values_with_gradient};
pub use builder::Builder;
pub use bundle::{
    Bundle, BundleError, GRAPH_KEY, VERSION, VERSION_KEY, Weights, WeightsError, check_weights,
    hex, weights_sha256,
};
pub use error::{GraphError, MAX_NAME};
pub use graph::{Graph, Input, InputKind, MAX_VALUES, Node, Output, OutputKind, Value, ValueId};
pub use infer::{InferError, MAX_OPERANDS, infer};
pub use loss::{Loss, LossError, TARGET};
pub use op::{Op, Reduction};
pub use slice::{Crossing, CutCandidate, SliceError, cut_candidates, slice};
pub use stage::Stage;
pub use tensor::{Tensor, TensorError};
pub use tensor_file::{FileError, TensorFile};
pub use text::{MAX_TEXT, TextError};
pub use types::{
    DType, Dim, LimitError, MAX_DIM, MAX_ELEMENTS, MAX_RANK, ParseTypeError, TensorType,
};
