//! The plan: what a search decides, and why.

use std::fmt;
use std::ops::Range;

use outboard_schedule::{CostModel, Schedule, Timeline};

/// Which device runs which stage, when, and how long a step will take.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Stages from the input to the loss.
    pub stages: Vec<PlannedStage>,
    /// Where the canonical graph is cut: stage `k` holds the nodes `[cuts[k - 1], cuts[k])`.
    pub cuts: Vec<usize>,
    /// The device, as an index into the list given to the search, behind each device of the schedule.
    pub devices: Vec<usize>,
    /// Samples of each micro-batch.
    pub micro_batch_sizes: Vec<usize>,
    /// What every device does in a step.
    pub schedule: Schedule,
    /// What the prediction rests on.
    pub cost_model: CostModel,
    /// The predicted step.
    pub timeline: Timeline,
    /// Seconds of a step, by simulation.
    pub predicted_step_seconds: f64,
    /// Devices that the plan does not use.
    pub left_out: Vec<LeftOut>,
    /// The best candidates, the chosen one first, then others with the reason where they are impossible.
    pub alternatives: Vec<Alternative>,
}

/// One stage of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedStage {
    /// Index into the devices given to the search.
    pub device: usize,
    /// Its name.
    pub device_name: String,
    /// Nodes of the canonical graph.
    pub nodes: Range<usize>,
    /// Where its first and last nodes stand in the model's code.
    pub scopes: (String, String),
    /// Elements of all its parameters.
    pub parameters: u64,
    /// What it takes in memory.
    pub memory: StageMemory,
    /// Seconds that `F`, `B` and `W` of one full micro-batch take on the device.
    pub seconds: [f64; 3],
    /// Most micro-batches in flight.
    pub in_flight: u16,
}

/// Bytes that one stage takes on its device, by what takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageMemory {
    /// Parameters, frozen weights and buffers.
    pub weights: u64,
    /// A gradient sum for each use of a parameter.
    pub gradients: u64,
    /// The optimizer's state.
    pub optimizer: u64,
    /// Saved values of all micro-batches in flight.
    pub saved: u64,
    /// The greatest peak of any of its programs.
    pub program: u64,
    /// What may wait to be used after it has arrived.
    pub windows: u64,
    /// What may wait to be sent.
    pub sending: u64,
}

impl StageMemory {
    /// All of it, where programs of several stages take turns: everything but the program peak.
    pub(crate) fn resident(&self) -> u64 {
        [
            self.weights,
            self.gradients,
            self.optimizer,
            self.saved,
            self.windows,
            self.sending,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.resident().saturating_add(self.program)
    }
}

/// A device that the plan does not use.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// Index into the devices given to the search.
    pub device: usize,
    /// Its name.
    pub name: String,
    /// Seconds of a step in the best plan found that uses it on top of the plan's devices, or else uses it at all; nothing when
    /// there is none.
    pub step_with: Option<f64>,
    /// Seconds of a step in this plan.
    pub step_without: f64,
    /// Why there is no plan with it, where there is none.
    pub impossible: Option<String>,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is left out: ", self.name)?;
        match (self.step_with, &self.impossible) {
            (Some(with), _) => write!(
                f,
                "a step takes {} without it, {} with it",
                Seconds(self.step_without),
                Seconds(with)
            ),
            (None, Some(reason)) => f.write_str(reason),
            (None, None) => f.write_str("no plan that uses it was found"),
        }
    }
}

/// A candidate that the search looked at closely.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// Indices into the devices given to the search, in the order of stages.
    pub devices: Vec<usize>,
    /// Cuts.
    pub cuts: Vec<usize>,
    /// Micro-batches of a step.
    pub micro_batches: u16,
    /// Seconds of a step and the schedule's name, or why it is impossible.
    pub outcome: Result<(f64, String), String>,
}

/// Seconds as people read them: `1.24 s`, `35.1 ms`.
pub(crate) struct Seconds(pub(crate) f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            s if s >= 1.0 => write!(f, "{s:.2} s"),
            s if s >= 1e-3 => write!(f, "{:.1} ms", s * 1e3),
            s => write!(f, "{:.1} us", s * 1e6),
        }
    }
}

/// Bytes as people read them: `1.50 GiB`.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => write!(f, "{:.2} {name}", self.0 as f64 / *unit as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl Plan {
    /// The heads of [`Plan::rows`].
    pub const COLUMNS: [&'static str; 8] = [
        "stage",
        "device",
        "nodes",
        "from",
        "to",
        "parameters",
        "memory",
        "F / B / W per micro-batch",
    ];

    /// Names of the devices of the schedule, in its order.
    pub fn device_names(&self) -> Vec<String> {
        let name = |device: &usize| {
            let stage = self.stages.iter().find(|stage| stage.device == *device);
            stage.map_or_else(String::new, |stage| stage.device_name.clone())
        };
        self.devices.iter().map(name).collect()
    }

    /// One row a stage for a table.
    pub fn rows(&self) -> Vec<[String; 8]> {
        self.stages
            .iter()
            .enumerate()
            .map(|(index, stage)| {
                let [forward, backward, weight] = stage.seconds;
                [
                    index.to_string(),
                    stage.device_name.clone(),
                    format!("{}..{}", stage.nodes.start, stage.nodes.end),
                    stage.scopes.0.clone(),
                    stage.scopes.1.clone(),
                    stage.parameters.to_string(),
                    Bytes(stage.memory.total()).to_string(),
                    format!(
                        "{} / {} / {}",
                        Seconds(forward),
                        Seconds(backward),
                        Seconds(weight)
                    ),
                ]
            })
            .collect()
    }
}
