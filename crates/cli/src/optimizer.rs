//! Optimizer arguments, understood.

use anyhow::Result;
use outboard_host::LearningRate;
use outboard_wire::Optimizer;

use crate::arguments::{OptimizerArguments, OptimizerName};
use crate::exit::{Usage, require};

/// An optimizer with its learning rates.
#[derive(Clone, Debug)]
pub(crate) struct Learning {
    /// The rule and its settings.
    pub(crate) optimizer: Optimizer,
    base: f64,
    /// A cosine over all steps unless it was said.
    rate: Option<LearningRate>,
    /// Global norm to clip to.
    pub(crate) clip_norm: Option<f64>,
}

impl Learning {
    /// Checks and fills in defaults.
    pub(crate) fn from_arguments(arguments: &OptimizerArguments) -> Result<Learning> {
        let not_negative = |name: &str, value: f64| -> Result<f64> {
            require!(
                value.is_finite() && value >= 0.0,
                "--{name} {value}: give a number from 0"
            );
            Ok(value)
        };
        let weight_decay = not_negative(
            "weight-decay",
            arguments.weight_decay.unwrap_or(match arguments.optimizer {
                OptimizerName::Adamw => 0.01,
                OptimizerName::Sgd | OptimizerName::Adam => 0.0,
            }),
        )?;
        let base = not_negative(
            "lr",
            arguments.lr.unwrap_or(match arguments.optimizer {
                OptimizerName::Sgd => 0.005,
                OptimizerName::Adam | OptimizerName::Adamw => 0.001,
            }),
        )?;
        let optimizer = match arguments.optimizer {
            OptimizerName::Sgd => {
                let momentum = not_negative("momentum", arguments.momentum)?;
                require!(
                    !arguments.nesterov || (momentum > 0.0 && arguments.dampening == 0.0),
                    "--nesterov needs a momentum and no dampening, as in torch.optim.SGD"
                );
                Optimizer::Sgd {
                    momentum,
                    dampening: not_negative("dampening", arguments.dampening)?,
                    weight_decay,
                    nesterov: arguments.nesterov,
                }
            }
            OptimizerName::Adam | OptimizerName::Adamw => Optimizer::Adam {
                betas: betas(&arguments.betas)?,
                eps: not_negative("eps", arguments.eps)?,
                weight_decay,
                amsgrad: arguments.amsgrad,
                decoupled: arguments.optimizer == OptimizerName::Adamw,
            },
        };
        if let Some(norm) = arguments.clip_norm {
            require!(
                norm.is_finite() && norm > 0.0,
                "--clip-norm {norm}: give a number over 0"
            );
        }
        let rate = match &arguments.lr_schedule {
            None => None,
            Some(text) => Some(
                text.parse::<LearningRate>()
                    .map_err(|error| Usage(format!("--lr-schedule {text}: {error}")))?,
            ),
        };
        Ok(Learning {
            optimizer,
            base,
            rate,
            clip_norm: arguments.clip_norm,
        })
    }

    /// The learning rate of a step of a run with this many.
    pub(crate) fn rate(&self, step: u64, steps: u64) -> f64 {
        match &self.rate {
            Some(rate) => rate.at(self.base, step),
            None => over_all_steps(self.base, step, steps),
        }
    }

    /// State tensors that the rule keeps for each parameter.
    pub(crate) fn state_tensors(&self) -> u64 {
        match self.optimizer {
            Optimizer::Sgd { momentum, .. } => u64::from(momentum != 0.0),
            Optimizer::Adam { amsgrad, .. } => 2 + u64::from(amsgrad),
        }
    }
}

/// A cosine from `base` to 0 over a run: it needs no choice of steps, and ends with weights that have settled.
pub(crate) fn over_all_steps(base: f64, step: u64, steps: u64) -> f64 {
    let cosine = LearningRate::Cosine {
        steps: steps.max(1),
        lowest: 0.0,
    };
    cosine.at(base, step)
}

/// `0.9,0.999`: two rates in [0, 1).
fn betas(text: &str) -> Result<(f64, f64)> {
    let rates: Option<Vec<f64>> = text
        .split(',')
        .map(|part| {
            part.trim()
                .parse()
                .ok()
                .filter(|rate| (0.0..1.0).contains(rate))
        })
        .collect();
    match rates.as_deref() {
        Some([first, second]) => Ok((*first, *second)),
        _ => Err(Usage(format!(
            "--betas {text}: give two numbers from 0 to below 1, such as 0.9,0.999"
        ))
        .into()),
    }
}
