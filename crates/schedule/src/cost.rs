//! What actions and transfers cost: the numbers that a simulation runs on.

use crate::Kind;

/// Costs of one step. Stages run where the schedule puts them, so their seconds are those of that device.
///
/// Devices hang off a host in a star: what one device sends to another goes up the first one's link and down the second
/// one's. A device without a link computes in the host's own process.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// Each stage.
    pub stages: Vec<StageCost>,
    /// The size class of each micro-batch, an index into [`StageCost::classes`]; empty when all are of class 0.
    pub class_of_micro_batch: Vec<usize>,
    /// The link of each device to the host; `None` computes in the host's process. Devices past the end have none.
    pub links: Vec<Option<LinkCost>>,
    /// What the host adds.
    pub host: HostCost,
}

/// Costs of one stage.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct StageCost {
    /// One element for each size of micro-batch that occurs in a step.
    pub classes: Vec<MicroBatchCost>,
    /// The optimizer, once a step.
    pub optimizer_seconds: f64,
}

/// Costs of one micro-batch of a certain size on one stage.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct MicroBatchCost {
    /// Seconds of `F`, `B` and `W`.
    pub seconds: [f64; 3],
    /// Bytes of data inputs that the host delivers for `F`.
    pub input_bytes: u64,
    /// Bytes that `F` sends to the next stage.
    pub activation_bytes: u64,
    /// Bytes that `B` sends to the previous stage.
    pub cotangent_bytes: u64,
    /// Bytes held from the start of `F` to the end of `W`.
    pub saved_bytes: u64,
}

/// A link between a device and the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCost {
    /// From the device to the host.
    pub up: Direction,
    /// From the host to the device.
    pub down: Direction,
    /// Compute time that the device loses to every byte it sends or receives.
    pub device_seconds_per_byte: f64,
}

/// One direction of a link: transfers take turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Direction {
    /// From the last byte sent to its arrival.
    pub latency_seconds: f64,
    /// Bandwidth; positive.
    pub bytes_per_second: f64,
}

/// What the host itself costs.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct HostCost {
    /// The device that computes on the host's own processor, and so loses time to the host's traffic.
    pub device: Option<usize>,
    /// Compute time that [`HostCost::device`] loses to every byte that enters or leaves the host on a link.
    pub seconds_per_byte: f64,
    /// Between the last gradient report and the commit.
    pub commit_seconds: f64,
}

/// Most size classes of micro-batches.
const MAX_CLASSES: usize = 16;

/// Numbers that no simulation can run on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// Another number of stages than the schedule's.
    #[error("the costs are for {costs} stages, the schedule has {schedule}")]
    Stages {
        /// Stages of the cost model.
        costs: usize,
        /// Stages of the schedule.
        schedule: usize,
    },
    /// A micro-batch without costs.
    #[error("stage {stage} has no cost for micro-batches of size class {class}")]
    Class {
        /// Stage.
        stage: usize,
        /// The class that lacks.
        class: usize,
    },
    /// Neither empty nor one class for each micro-batch.
    #[error("size classes are given for {given} micro-batches of {micro_batches}")]
    MicroBatches {
        /// Classes given.
        given: usize,
        /// Micro-batches of the schedule.
        micro_batches: usize,
    },
    /// A cost that is negative or not finite, or a bandwidth that is not positive.
    #[error("{what} is {value}; costs are finite and not negative, bandwidths positive")]
    Number {
        /// Whose.
        what: String,
        /// The number.
        value: f64,
    },
}

impl CostModel {
    /// Every stage and micro-batch with the same seconds of `F`, `B` and `W`; nothing else costs anything.
    pub fn uniform(stages: usize, seconds: [f64; 3]) -> CostModel {
        let class = MicroBatchCost {
            seconds,
            saved_bytes: 1,
            ..MicroBatchCost::default()
        };
        CostModel {
            stages: vec![
                StageCost {
                    classes: vec![class],
                    optimizer_seconds: 0.0
                };
                stages
            ],
            class_of_micro_batch: Vec::new(),
            links: Vec::new(),
            host: HostCost::default(),
        }
    }

    /// Checks that it gives a cost to every action of a schedule of this size.
    pub fn check(&self, stages: usize, micro_batches: usize) -> Result<(), CostError> {
        if self.stages.len() != stages {
            return Err(CostError::Stages {
                costs: self.stages.len(),
                schedule: stages,
            });
        }
        let given = self.class_of_micro_batch.len();
        if given != 0 && given != micro_batches {
            return Err(CostError::MicroBatches {
                given,
                micro_batches,
            });
        }
        let last_class = self.class_of_micro_batch.iter().copied().max().unwrap_or(0);
        let number = |what: String, value: f64, good: bool| {
            if good && value.is_finite() {
                Ok(())
            } else {
                Err(CostError::Number { what, value })
            }
        };
        for (stage, cost) in self.stages.iter().enumerate() {
            if last_class >= cost.classes.len().min(MAX_CLASSES) {
                return Err(CostError::Class {
                    stage,
                    class: last_class,
                });
            }
            for class in &cost.classes {
                for kind in Kind::ALL {
                    let seconds = class.seconds[kind.index()];
                    number(
                        format!("the cost of {} on stage {stage}", kind.letter()),
                        seconds,
                        seconds >= 0.0,
                    )?;
                }
            }
            let seconds = cost.optimizer_seconds;
            number(
                format!("the optimizer's cost on stage {stage}"),
                seconds,
                seconds >= 0.0,
            )?;
        }
        for (device, link) in self.links.iter().enumerate() {
            let Some(link) = link else { continue };
            for (name, way) in [("up", link.up), ("down", link.down)] {
                let (latency, bandwidth) = (way.latency_seconds, way.bytes_per_second);
                number(
                    format!("the latency {name} of device {device}"),
                    latency,
                    latency >= 0.0,
                )?;
                number(
                    format!("the bandwidth {name} of device {device}"),
                    bandwidth,
                    bandwidth > 0.0,
                )?;
            }
            let seconds = link.device_seconds_per_byte;
            number(
                format!("the cost of a byte on device {device}"),
                seconds,
                seconds >= 0.0,
            )?;
        }
        let host = self.host;
        number(
            "the cost of a byte on the host".into(),
            host.seconds_per_byte,
            host.seconds_per_byte >= 0.0,
        )?;
        number(
            "the cost of a commit".into(),
            host.commit_seconds,
            host.commit_seconds >= 0.0,
        )
    }

    /// The costs of a micro-batch on a stage; nothing where [`check`](Self::check) would fail.
    pub fn cost(&self, stage: usize, micro_batch: usize) -> MicroBatchCost {
        let class = self
            .class_of_micro_batch
            .get(micro_batch)
            .copied()
            .unwrap_or(0);
        self.stages
            .get(stage)
            .and_then(|cost| cost.classes.get(class))
            .copied()
            .unwrap_or_default()
    }

    /// The link of a device; `None` computes in the host's process.
    pub fn link(&self, device: usize) -> Option<&LinkCost> {
        self.links.get(device).and_then(Option::as_ref)
    }
}
