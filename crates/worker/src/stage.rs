//! What a stage takes and gives, read off its programs.

use outboard_graph::TensorType;

/// A named tensor that crosses the stage's border.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Name, unique among ports of its kind.
    pub name: String,
    /// Type, with a symbolic batch.
    pub ty: TensorType,
}

/// What a stage takes and gives in steps of one mode.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ports {
    /// Data from the host.
    pub data: Vec<Port>,
    /// Activations from the stage before.
    pub activations_in: Vec<Port>,
    /// Activations for the stage after.
    pub activations_out: Vec<Port>,
    /// Cotangents from the stage after; not the loss's.
    pub cotangents_in: Vec<Port>,
    /// Cotangents for the stage before.
    pub cotangents_out: Vec<Port>,
}

/// Everything about a stage that the core has to know: what to wait for and whom to send to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    /// Index among all stages.
    pub stage: u16,
    /// Steps of training; `None` where the stage was assigned for inference.
    pub train: Option<Ports>,
    /// Steps of evaluation.
    pub evaluate: Option<Ports>,
    /// Names of the data that the normaliser takes; `Some` where the stage holds the loss.
    pub normaliser: Option<Vec<String>>,
    /// The names of its data that `F` takes in training.
    pub forward_data: Vec<String>,
    /// Uses of parameters whose gradients it gives, as `NAME#USE`, ascending.
    pub uses: Vec<String>,
    /// Micro-batches that memory was planned for at once.
    pub in_flight: u16,
}
