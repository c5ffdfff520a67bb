//! Optimizer rules: what one step does to one parameter, exactly as `torch.optim` does it.

use std::ops::{Add, Div, Mul, Sub};

use pulp::Arch;
use rayon::prelude::*;

use crate::ExecError;

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

/// Elements that one thread updates at a time. The rules work element by element, so it does not change their results.
const CHUNK: usize = 1 << 14;

impl UpdateRule {
    /// One optimizer step on one parameter, in place: the arithmetic of `torch.optim` with `foreach=False`, operation by
    /// operation. In f32 its bits are those of PyTorch on processors with fused multiply-add, except where PyTorch's
    /// vectorised square root (Adam, AdamW) misses the last bit; ours is rounded correctly.
    ///
    /// `state` has one slice for each of [`UpdateRule::state_names`]. On the `first` step of a parameter it is written
    /// without being read. `size.step` is what Adam's bias correction counts.
    ///
    /// # Errors
    /// [`ExecError::Invalid`] when the slices differ in number or length from what the rule needs.
    pub fn apply<T: Real>(
        &self,
        size: StepSize,
        first: bool,
        parameter: &mut [T],
        gradient: &[T],
        state: &mut [&mut [T]],
    ) -> Result<(), ExecError> {
        let length = parameter.len();
        if gradient.len() != length || state.iter().any(|tensor| tensor.len() != length) {
            let state: Vec<usize> = state.iter().map(|tensor| tensor.len()).collect();
            return Err(ExecError::Invalid(format!(
                "optimizer: a parameter of {length} elements has a gradient of {} and a state of {state:?}",
                gradient.len(),
            )));
        }
        // Fused multiply-adds are instructions on most processors, but calls of a function where that is not known.
        let arch = Arch::new();
        let work = parameter
            .par_chunks_mut(CHUNK)
            .zip(gradient.par_chunks(CHUNK));
        match (*self, state) {
            (
                UpdateRule::Sgd {
                    momentum,
                    dampening,
                    weight_decay,
                    nesterov,
                },
                state,
            ) => {
                let step = SgdStep {
                    scale: T::of(f64::from(size.gradient_scale)),
                    weight_decay: (weight_decay != 0.0).then(|| T::of(weight_decay)),
                    momentum: T::of(momentum),
                    undampened: T::of(1.0 - dampening),
                    nesterov,
                    minus_rate: T::of(-size.learning_rate),
                    first,
                };
                match state {
                    [] if momentum == 0.0 => work.for_each(|(parameter, gradient)| {
                        arch.dispatch(|| {
                            for (p, &g) in parameter.iter_mut().zip(gradient) {
                                step.plain(p, g);
                            }
                        });
                    }),
                    [buffer] if momentum != 0.0 => {
                        work.zip(buffer.par_chunks_mut(CHUNK)).for_each(
                            |((parameter, gradient), buffer)| {
                                arch.dispatch(|| {
                                    let buffers = buffer.iter_mut();
                                    for ((p, &g), b) in
                                        parameter.iter_mut().zip(gradient).zip(buffers)
                                    {
                                        step.with_momentum(p, g, b);
                                    }
                                });
                            },
                        );
                    }
                    state => return Err(self.wrong_state(state.len())),
                }
            }
            (
                UpdateRule::Adam {
                    betas,
                    eps,
                    weight_decay,
                    amsgrad,
                },
                state,
            ) => {
                let mut step = AdamStep::new(betas, eps, size, first);
                step.l2_penalty = (weight_decay != 0.0).then(|| T::of(weight_decay));
                self.adam(&step, amsgrad, work, state)?;
            }
            (
                UpdateRule::AdamW {
                    betas,
                    eps,
                    weight_decay,
                    amsgrad,
                },
                state,
            ) => {
                let mut step = AdamStep::new(betas, eps, size, first);
                step.shrink =
                    (weight_decay != 0.0).then(|| T::of(1.0 - size.learning_rate * weight_decay));
                self.adam(&step, amsgrad, work, state)?;
            }
        }
        Ok(())
    }

    fn adam<'a, T: Real + 'a>(
        &self,
        step: &AdamStep<T>,
        amsgrad: bool,
        work: impl IndexedParallelIterator<Item = (&'a mut [T], &'a [T])>,
        state: &mut [&mut [T]],
    ) -> Result<(), ExecError> {
        let arch = Arch::new();
        match state {
            [mean, square] if !amsgrad => work
                .zip(mean.par_chunks_mut(CHUNK).zip(square.par_chunks_mut(CHUNK)))
                .for_each(|((parameter, gradient), (mean, square))| {
                    arch.dispatch(|| {
                        let moments = mean.iter_mut().zip(square);
                        for ((p, &g), (m, s)) in parameter.iter_mut().zip(gradient).zip(moments) {
                            step.moments(p, g, m, s);
                            step.descend(p, *m, *s);
                        }
                    });
                }),
            [mean, square, greatest] if amsgrad => work
                .zip(mean.par_chunks_mut(CHUNK).zip(square.par_chunks_mut(CHUNK)))
                .zip(greatest.par_chunks_mut(CHUNK))
                .for_each(|(((parameter, gradient), (mean, square)), greatest)| {
                    arch.dispatch(|| {
                        let moments = mean.iter_mut().zip(square).zip(greatest);
                        for ((p, &g), ((m, s), most)) in
                            parameter.iter_mut().zip(gradient).zip(moments)
                        {
                            step.moments(p, g, m, s);
                            *most = if step.first { T::of(0.0) } else { *most }.greater(*s);
                            step.descend(p, *m, *most);
                        }
                    });
                }),
            state => return Err(self.wrong_state(state.len())),
        }
        Ok(())
    }

    fn wrong_state(&self, found: usize) -> ExecError {
        ExecError::Invalid(format!(
            "optimizer: this rule keeps {:?} for each parameter but was given {found} tensors; was the checkpoint \
             written with another optimizer?",
            self.state_names()
        ))
    }
}

/// The settings of one SGD step, each rounded once.
struct SgdStep<T> {
    scale: T,
    weight_decay: Option<T>,
    momentum: T,
    undampened: T,
    nesterov: bool,
    minus_rate: T,
    first: bool,
}

impl<T: Real> SgdStep<T> {
    #[inline(always)]
    fn penalised(&self, parameter: T, gradient: T) -> T {
        let gradient = gradient * self.scale;
        self.weight_decay
            .map_or(gradient, |decay| parameter.fused(decay, gradient))
    }

    #[inline(always)]
    fn plain(&self, parameter: &mut T, gradient: T) {
        *parameter = self
            .penalised(*parameter, gradient)
            .fused(self.minus_rate, *parameter);
    }

    #[inline(always)]
    fn with_momentum(&self, parameter: &mut T, gradient: T, buffer: &mut T) {
        let gradient = self.penalised(*parameter, gradient);
        *buffer = if self.first {
            gradient
        } else {
            gradient.fused(self.undampened, *buffer * self.momentum)
        };
        let direction = if self.nesterov {
            buffer.fused(self.momentum, gradient)
        } else {
            *buffer
        };
        *parameter = direction.fused(self.minus_rate, *parameter);
    }
}

/// The settings of one step of Adam or AdamW, each rounded once.
struct AdamStep<T> {
    scale: T,
    /// Adam's weight decay, added to the gradient.
    l2_penalty: Option<T>,
    /// AdamW's weight decay, a factor on the weight.
    shrink: Option<T>,
    /// `1 - beta1`.
    mean_weight: T,
    beta2: T,
    /// `1 - beta2`.
    square_weight: T,
    root_of_correction: T,
    eps: T,
    minus_step_size: T,
    first: bool,
}

impl<T: Real> AdamStep<T> {
    fn new((beta1, beta2): (f64, f64), eps: f64, size: StepSize, first: bool) -> Self {
        // In f64, as Python computes them.
        let steps = (size.step as f64) + 1.0;
        let correction1 = 1.0 - beta1.powf(steps);
        let correction2 = 1.0 - beta2.powf(steps);
        Self {
            scale: T::of(f64::from(size.gradient_scale)),
            l2_penalty: None,
            shrink: None,
            mean_weight: T::of(1.0 - beta1),
            beta2: T::of(beta2),
            square_weight: T::of(1.0 - beta2),
            root_of_correction: T::of(correction2.sqrt()),
            eps: T::of(eps),
            minus_step_size: T::of(-(size.learning_rate / correction1)),
            first,
        }
    }

    /// Decays the weight and takes the gradient into its averages.
    #[inline(always)]
    fn moments(&self, parameter: &mut T, gradient: T, mean: &mut T, square: &mut T) {
        let mut gradient = gradient * self.scale;
        if let Some(shrink) = self.shrink {
            *parameter = *parameter * shrink;
        }
        if let Some(penalty) = self.l2_penalty {
            gradient = parameter.fused(penalty, gradient);
        }
        let (old_mean, old_square) = if self.first {
            (T::of(0.0), T::of(0.0))
        } else {
            (*mean, *square)
        };
        *mean = lerp(old_mean, gradient, self.mean_weight);
        *square = (self.square_weight * gradient).fused(gradient, old_square * self.beta2);
    }

    #[inline(always)]
    fn descend(&self, parameter: &mut T, mean: T, square: T) {
        let denominator = square.root() / self.root_of_correction + self.eps;
        *parameter = *parameter + self.minus_step_size * mean / denominator;
    }
}

/// `torch.lerp`, which starts from the nearer end.
#[inline(always)]
fn lerp<T: Real>(start: T, end: T, weight: T) -> T {
    if weight < T::of(0.5) {
        weight.fused(end - start, start)
    } else {
        (weight - T::of(1.0)).fused(end - start, end)
    }
}

/// Arithmetic of one precision: f32 for training, f64 for the reference engine.
pub trait Real:
    Copy
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// Rounds a setting to this precision.
    fn of(value: f64) -> Self;
    /// `self * a + b`, rounded once.
    fn fused(self, a: Self, b: Self) -> Self;
    /// The square root.
    fn root(self) -> Self;
    /// The greater of two numbers; NaN when either is.
    fn greater(self, other: Self) -> Self;
}

macro_rules! real {
    ($float:ty) => {
        impl Real for $float {
            fn of(value: f64) -> Self {
                value as $float
            }
            #[inline(always)]
            fn fused(self, a: Self, b: Self) -> Self {
                self.mul_add(a, b)
            }
            fn root(self) -> Self {
                self.sqrt()
            }
            fn greater(self, other: Self) -> Self {
                if self.is_nan() || self > other {
                    self
                } else {
                    other
                }
            }
        }
    };
}

real!(f32);
real!(f64);
