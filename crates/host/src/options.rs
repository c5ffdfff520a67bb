//! What the application may choose.

use std::collections::BTreeMap;
use std::time::Duration;

use outboard_graph::{Graph, Tensor};
use outboard_wire::{Optimizer, TensorEncoding};

use crate::Placement;

/// How long the host waits, and how much it keeps in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostOptions {
    /// Name that workers show to people.
    pub name: String,
    /// To dial a device and hear its hello.
    pub connect_timeout: Duration,
    /// Silence after which a device counts as lost. A ping goes out every quarter of it.
    pub worker_timeout: Duration,
    /// Time without progress after which a run that still answers pings counts as stalled.
    pub stall_timeout: Duration,
    /// Bytes of activations, results and weights that each worker may have under way to the host, on each stream.
    pub receive_window_bytes: u64,
    /// Evaluation steps in flight at once.
    pub evaluations_in_flight: usize,
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions {
            name: "outboard host".to_owned(),
            connect_timeout: Duration::from_secs(10),
            worker_timeout: Duration::from_secs(4),
            stall_timeout: Duration::from_secs(600),
            receive_window_bytes: 64 << 20,
            evaluations_in_flight: 4,
        }
    }
}

/// What to train, on which part of which device.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The whole model, canonical, with a symbolic batch.
    pub graph: Graph,
    /// Where to cut it, where its stages run, and in how many micro-batches; a batch has fewer where it or the model does not
    /// allow as many (see [`crate::split`]).
    pub placement: Placement,
    /// Every parameter, frozen weight and buffer of the graph, by name.
    pub weights: BTreeMap<String, Tensor>,
    /// The optimizer; `None` for a run that only evaluates.
    pub optimizer: Option<Optimizer>,
    /// Optimizer state to resume from, by `NAME/STATE`; empty at the beginning.
    pub optimizer_state: BTreeMap<String, Tensor>,
    /// Optimizer steps that `weights` has already had.
    pub first_step: u64,
    /// Seed of dropout.
    pub seed: u64,
    /// How f32 tensors between stages travel.
    pub encoding: TensorEncoding,
    /// Clip gradients to this norm over all parameters, as `torch.nn.utils.clip_grad_norm_` does.
    pub clip_norm: Option<f64>,
    /// Samples of the largest batch that will be submitted.
    pub largest_batch: usize,
}

/// What the host is doing, for progress bars.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Progress {
    /// Dialling.
    Connecting {
        /// Device.
        device: String,
    },
    /// Measuring a link.
    Probing {
        /// Device.
        device: String,
    },
    /// Timing operators that the cache does not have.
    Profiling {
        /// Device.
        device: String,
        /// Timed.
        done: usize,
        /// All.
        total: usize,
    },
    /// Trying a plan on zeros.
    Rehearsing {
        /// Steps taken.
        done: u64,
        /// All.
        total: u64,
    },
    /// Sending weights.
    Uploading {
        /// Device.
        device: String,
        /// Bytes sent.
        sent: u64,
        /// All.
        total: u64,
    },
}
