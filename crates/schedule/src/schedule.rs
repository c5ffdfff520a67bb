//! A schedule: the list of actions of every device for one step.

use crate::{Action, Kind};

/// Most stages of a schedule.
pub const MAX_STAGES: usize = 1024;
/// Most micro-batches of a step.
pub const MAX_MICRO_BATCHES: usize = 16_384;
/// Most actions of a schedule, over all devices; three for each stage and micro-batch.
pub const MAX_ACTIONS: usize = 1 << 20;

/// What every device does in one step, in order. A plain value: [`validate`](crate::validate) says whether it is sound.
///
/// Prints and parses:
///
/// ```text
/// schedule 1f1b
/// micro-batches 2
/// stages on devices 0 1
/// 0: 0F0 0F1 0B0 0W0 0B1 0W1
/// 1: 1F0 1B0 1W0 1F1 1B1 1W1
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Who made it: `1f1b`. One word.
    pub name: String,
    /// Micro-batches of a step.
    pub micro_batches: u16,
    /// The device, from 0, that holds each stage.
    pub device_of_stage: Vec<usize>,
    /// The actions of each device, in the order in which it runs them.
    pub actions: Vec<Vec<Action>>,
}

impl Schedule {
    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.device_of_stage.len()
    }

    /// Number of devices.
    pub fn devices(&self) -> usize {
        self.actions.len()
    }

    /// The stages that a device holds, ascending.
    pub fn stages_of_device(&self, device: usize) -> impl Iterator<Item = usize> {
        self.device_of_stage
            .iter()
            .enumerate()
            .filter(move |(_, holder)| **holder == device)
            .map(|(stage, _)| stage)
    }

    /// The same schedule without gradients: what a step of inference does.
    pub fn forward_only(&self) -> Schedule {
        let forward = |list: &Vec<Action>| {
            list.iter()
                .copied()
                .filter(|action| action.kind == Kind::Forward)
                .collect()
        };
        Schedule {
            actions: self.actions.iter().map(forward).collect(),
            ..self.clone()
        }
    }

    /// Whether no action is a gradient.
    pub fn is_forward_only(&self) -> bool {
        self.actions
            .iter()
            .flatten()
            .all(|action| action.kind == Kind::Forward)
    }
}
