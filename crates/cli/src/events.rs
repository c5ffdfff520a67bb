//! Twins of what is reported: one JSON object a line on standard output, under `--json`.

use serde::Serialize;

/// A line of `--json`.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A worker listens here.
    Listening { address: String, name: String },
    /// A device answers.
    Device(Device),
    /// The plan of a run.
    Plan(Plan),
    /// A device was left out.
    LeftOut { device: String, reason: String },
    /// An image could not be read.
    CorruptImage { reason: String },
    /// A step was applied.
    Step {
        step: u64,
        loss: f64,
        seconds: f64,
        learning_rate: f64,
        gradient_norm: f64,
    },
    /// A checkpoint was written.
    Checkpoint { step: u64, folder: String },
    /// The person asked to stop.
    Interrupted { step: u64 },
    /// How fast a convolution and its gradients are.
    Convolution {
        input: Vec<usize>,
        weight: Vec<usize>,
        attributes: String,
        count: usize,
        forward_gflops: Option<f64>,
        input_gradient_gflops: Option<f64>,
        weight_gradient_gflops: Option<f64>,
    },
    /// The last line: all was done.
    Done(Done),
    /// The last line: something went wrong.
    Error { message: String, exit_code: u8 },
}

/// A device and its link.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) engine: String,
    pub(crate) hardware: String,
    pub(crate) threads: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) latency_seconds: f64,
    pub(crate) bytes_per_second_up: f64,
    pub(crate) bytes_per_second_down: f64,
}

/// Who runs what.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Plan {
    pub(crate) schedule: String,
    pub(crate) micro_batches: u16,
    pub(crate) predicted_seconds_per_step: f64,
    pub(crate) stages: Vec<Stage>,
}

/// One stage of a plan.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stage {
    pub(crate) device: String,
    pub(crate) nodes: usize,
    pub(crate) parameters: u64,
    /// Of one micro-batch.
    pub(crate) forward_seconds: f64,
    pub(crate) backward_seconds: f64,
    pub(crate) weight_seconds: f64,
}

/// The end of a run. Fields that do not apply to the command are left out.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Done {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) final_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weights_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds_per_step: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) predicted_seconds_per_step: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) schedule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stages: Option<Vec<Stage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test_accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) corrupt_images: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interrupted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speedup: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) devices: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forward_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backward_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
}
