//! Losses inside the graph.
//!
//! A loss is always a sum (`loss_sum`) that the host divides by a weight (`loss_weight`) of the whole batch, so the cut
//! into micro-batches never shows: `sum(loss_sums) / sum(loss_weights)` is PyTorch's mean over the batch at once, with
//! uneven micro-batches, ignored targets and class weights alike. The weight is computed from the targets alone.

use crate::{Builder, DType, Dim, GraphError, Op, OutputKind, Reduction, TensorType, ValueId};

/// The name of the data input that holds the targets.
pub const TARGET: &str = "target";

/// A loss with PyTorch's settings and `reduction="mean"`.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// `torch.nn.CrossEntropyLoss` on logits `f32[N,classes]` and targets `i64[N]`.
    CrossEntropy {
        /// Targets of this value count nothing; PyTorch's default is -100.
        ignore_index: i64,
        /// A weight for each class, or all 1.
        class_weights: Option<Vec<f32>>,
        /// Between 0 and 1: how much of each target is spread over all classes.
        label_smoothing: f64,
    },
    /// `torch.nn.MSELoss` on predictions and targets of the same shape, `f32`.
    MeanSquaredError,
}

impl Default for Loss {
    /// Cross-entropy with PyTorch's defaults.
    fn default() -> Self {
        Loss::CrossEntropy {
            ignore_index: -100,
            class_weights: None,
            label_smoothing: 0.0,
        }
    }
}

/// Why a loss could not be added to a graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossError {
    /// The prediction has the wrong shape.
    #[error("the prediction is {0}; cross-entropy takes logits f32[samples,classes]")]
    Logits(TensorType),
    /// A class weight too many, too few, negative or not finite.
    #[error("class weights: {0}")]
    ClassWeights(String),
    /// The label smoothing is not a fraction.
    #[error("label smoothing is {0}; it must be between 0 and 1")]
    LabelSmoothing(f64),
    /// A node or an input did not fit into the graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl Loss {
    /// Adds the loss of `prediction` to a graph under construction: the data input `target`, the outputs `loss_sum` and
    /// `loss_weight`, both named `loss`.
    ///
    /// # Errors
    /// See [`LossError`].
    pub fn append(&self, b: &mut Builder, prediction: ValueId) -> Result<(), LossError> {
        let ty = b.ty(prediction)?.clone();
        let (sum, weight) = b.scoped("loss", |b| match self {
            Loss::CrossEntropy {
                ignore_index,
                class_weights,
                label_smoothing,
            } => {
                let logits = Logits::new(prediction, ty, *ignore_index, class_weights.as_deref())?;
                logits.cross_entropy(b, *label_smoothing)
            }
            Loss::MeanSquaredError => mean_squared_error(b, prediction, ty),
        })?;
        b.output(OutputKind::LossSum, "loss", sum)?;
        b.output(OutputKind::LossWeight, "loss", weight)?;
        Ok(())
    }
}

fn mean_squared_error(
    b: &mut Builder,
    prediction: ValueId,
    ty: TensorType,
) -> Result<(ValueId, ValueId), LossError> {
    let target = b.data(TARGET, ty)?;
    let weight = b.op(Op::Numel {}, &[target])?;
    let error = b.op(Op::Sub { alpha: 1.0 }, &[prediction, target])?;
    let squares = b.op(Op::PowScalar { exponent: 2.0 }, &[error])?;
    let sum = sum_all(b, squares)?;
    Ok((sum, weight))
}

/// What cross-entropy works on.
struct Logits<'a> {
    value: ValueId,
    ty: TensorType,
    samples: Dim,
    classes: usize,
    ignore_index: i64,
    class_weights: Option<&'a [f32]>,
}

impl<'a> Logits<'a> {
    fn new(
        value: ValueId,
        ty: TensorType,
        ignore_index: i64,
        class_weights: Option<&'a [f32]>,
    ) -> Result<Self, LossError> {
        let (samples, classes) = match ty.dims[..] {
            [samples, Dim::Fixed(classes)] if ty.dtype == DType::F32 => (samples, classes),
            _ => return Err(LossError::Logits(ty)),
        };
        if let Some(weights) = class_weights {
            if weights.len() != classes {
                let reason = format!("{} weights for {classes} classes", weights.len());
                return Err(LossError::ClassWeights(reason));
            }
            if let Some(weight) = weights.iter().find(|w| !w.is_finite() || **w < 0.0) {
                let reason = format!("{weight} is not a weight; give finite numbers from 0 on");
                return Err(LossError::ClassWeights(reason));
            }
        }
        Ok(Logits {
            value,
            ty,
            samples,
            classes,
            ignore_index,
            class_weights,
        })
    }

    /// The sum of losses and its weight.
    ///
    /// With smoothing `s`, as PyTorch has it: `(1 - s) nll + s / classes * sum over classes of w[c] * -log p[c]`, where the
    /// second part counts samples that are not ignored, without the weight of their class.
    fn cross_entropy(
        &self,
        b: &mut Builder,
        smoothing: f64,
    ) -> Result<(ValueId, ValueId), LossError> {
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(LossError::LabelSmoothing(smoothing));
        }
        let target = b.data(TARGET, TensorType::new(DType::I64, [self.samples]))?;
        // Only the weight of targets that count is asked for; the log-probabilities do not matter.
        let nothing = self.constant_rows(b, 0.0)?;
        let class_weights = self.class_weights(b)?;
        let (_, weight) = self.nll(b, Reduction::Sum, nothing, target, class_weights)?;

        let log_probabilities = b.op(Op::LogSoftmax { dim: 1 }, &[self.value])?;
        let class_weights = self.class_weights(b)?;
        let (nll, _) = self.nll(b, Reduction::Sum, log_probabilities, target, class_weights)?;
        if smoothing == 0.0 {
            return Ok((nll, weight));
        }

        let weighted = match self.class_weights(b)? {
            Some(weights) => b.op(Op::Mul {}, &[log_probabilities, weights])?,
            None => log_probabilities,
        };
        let by_sample = b.op(
            Op::Sum {
                dims: vec![1],
                keepdim: false,
            },
            &[weighted],
        )?;
        // The loss of log-probabilities -1 is 1 where the target counts and 0 where it is ignored.
        let ones = self.constant_rows(b, -1.0)?;
        let (counts, _) = self.nll(b, Reduction::None, ones, target, None)?;
        let counted = b.op(Op::Mul {}, &[by_sample, counts])?;
        let spread = sum_all(b, counted)?;
        let spread = b.op(
            Op::MulScalar {
                scalar: -smoothing / self.classes as f64,
            },
            &[spread],
        )?;
        let nll = b.op(
            Op::MulScalar {
                scalar: 1.0 - smoothing,
            },
            &[nll],
        )?;
        let sum = b.op(Op::Add { alpha: 1.0 }, &[nll, spread])?;
        Ok((sum, weight))
    }

    fn nll(
        &self,
        b: &mut Builder,
        reduction: Reduction,
        log_probabilities: ValueId,
        target: ValueId,
        class_weights: Option<ValueId>,
    ) -> Result<(ValueId, ValueId), LossError> {
        let op = Op::NllLoss {
            reduction,
            ignore_index: self.ignore_index,
        };
        let results = b.ops(op, &[Some(log_probabilities), Some(target), class_weights])?;
        match results[..] {
            [loss, total_weight] => Ok((loss, total_weight)),
            _ => Err(LossError::Logits(self.ty.clone())),
        }
    }

    /// One number in the shape of the logits.
    fn constant_rows(&self, b: &mut Builder, value: f64) -> Result<ValueId, LossError> {
        let op = Op::Full {
            shape: self.ty.dims.clone(),
            value,
            dtype: DType::F32,
        };
        Ok(b.op(op, &[])?)
    }

    /// The class weights as a constant: runs of equal weights, put together. Made anew for every reader, because constants
    /// do not cross cuts.
    fn class_weights(&self, b: &mut Builder) -> Result<Option<ValueId>, LossError> {
        let Some(weights) = self.class_weights else {
            return Ok(None);
        };
        let mut runs = Vec::new();
        for run in weights.chunk_by(|a, b| a == b) {
            let op = Op::Full {
                shape: vec![Dim::Fixed(run.len())],
                value: run.first().copied().map_or(0.0, f64::from),
                dtype: DType::F32,
            };
            runs.push(b.op(op, &[])?);
        }
        match runs[..] {
            [constant] => Ok(Some(constant)),
            _ => Ok(Some(b.op(Op::Cat { dim: 0 }, &runs)?)),
        }
    }
}

fn sum_all(b: &mut Builder, value: ValueId) -> Result<ValueId, GraphError> {
    let op = Op::Sum {
        dims: Vec::new(),
        keepdim: false,
    };
    b.op(op, &[value])
}
