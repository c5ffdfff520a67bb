//! Optimizer rules: what one step does to one parameter, exactly as `torch.optim` does it.

/// What changes from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSize {
    /// Steps this parameter has been updated before, from 0.
    pub step: u64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Factor on the gradient before all else: clipping by the global norm. 1 leaves it as it is, bit for bit.
    pub gradient_scale: f32,
}

/// An optimizer with its settings, named as in `torch.optim`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpdateRule {
    /// `torch.optim.SGD`.
    Sgd {
        /// Momentum factor.
        momentum: f64,
        /// Dampening for momentum.
        dampening: f64,
        /// L2 penalty added to the gradient.
        weight_decay: f64,
        /// Nesterov momentum.
        nesterov: bool,
    },
    /// `torch.optim.Adam`.
    Adam {
        /// Decay rates of the averages of the gradient and of its square.
        betas: (f64, f64),
        /// Added to the denominator.
        eps: f64,
        /// L2 penalty added to the gradient.
        weight_decay: f64,
        /// Use the maximum of all second moments.
        amsgrad: bool,
    },
    /// `torch.optim.AdamW`: Adam with decoupled weight decay.
    AdamW {
        /// Decay rates of the averages of the gradient and of its square.
        betas: (f64, f64),
        /// Added to the denominator.
        eps: f64,
        /// Fraction of the weight, times the learning rate, taken away each step.
        weight_decay: f64,
        /// Use the maximum of all second moments.
        amsgrad: bool,
    },
}

impl UpdateRule {
    /// Names of the state tensors in order, as `torch.optim` names them in `state_dict()`.
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            UpdateRule::Sgd { momentum, .. } if *momentum != 0.0 => &["momentum_buffer"],
            UpdateRule::Sgd { .. } => &[],
            UpdateRule::Adam { amsgrad: false, .. } | UpdateRule::AdamW { amsgrad: false, .. } => {
                &["exp_avg", "exp_avg_sq"]
            }
            UpdateRule::Adam { .. } | UpdateRule::AdamW { .. } => {
                &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
            }
        }
    }
}
