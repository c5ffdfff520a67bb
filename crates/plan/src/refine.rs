//! A truer prediction: the plan's own programs, measured whole.
//!
//! Operators measured one by one run with warm caches and the device to themselves. Once the plan stands, its few whole
//! programs can be measured as they will run; playing the schedule through on those gives the prediction to report.

use outboard_graph::Graph;
use outboard_schedule::simulate;

use crate::candidate::size_classes;
use crate::model::stage_of;
use crate::signature::model_error;
use crate::{OpSignature, Plan, PlanError};

/// The whole programs of one stage at one micro-batch size, for its device to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct StageProgramTexts {
    /// Stage.
    pub stage: usize,
    /// Samples of the micro-batch.
    pub size: usize,
    /// `F`, `B` and `W`.
    pub programs: [OpSignature; 3],
}

impl Plan {
    /// What to measure for [`Plan::refine`], of the graph that the plan was made for.
    ///
    /// # Errors
    /// [`PlanError::Model`] when the graph is another one.
    pub fn programs(&self, graph: &Graph) -> Result<Vec<StageProgramTexts>, PlanError> {
        let mut texts = Vec::new();
        for (stage, planned) in self.stages.iter().enumerate() {
            let (_, programs) = stage_of(graph, planned.nodes.clone()).map_err(PlanError::Model)?;
            for size in self.sizes() {
                let text = |program: &Graph| -> Result<OpSignature, PlanError> {
                    Ok(OpSignature(
                        program.instantiate(size).map_err(model_error)?.to_string(),
                    ))
                };
                let programs = [
                    text(&programs.forward)?,
                    text(&programs.backward)?,
                    text(&programs.weight)?,
                ];
                texts.push(StageProgramTexts {
                    stage,
                    size,
                    programs,
                });
            }
        }
        Ok(texts)
    }

    /// The distinct micro-batch sizes, largest first: the size classes of the cost model.
    fn sizes(&self) -> Vec<usize> {
        let batch = self.micro_batch_sizes.iter().sum();
        size_classes(batch, self.schedule.micro_batches).0
    }

    /// Replaces the sums of operators by measured seconds of `F`, `B` and `W`, in the order of [`Plan::programs`], and
    /// predicts again. A program that was not measured (`None`, or no sensible time) keeps its sum. The schedule stays.
    ///
    /// # Errors
    /// When the plan's schedule and cost model do not belong together any more.
    pub fn refine(&mut self, measured: &[[Option<f64>; 3]]) -> Result<(), PlanError> {
        let classes = self.sizes().len();
        for (at, programs) in measured.iter().enumerate() {
            let (stage, class) = (at / classes.max(1), at % classes.max(1));
            let (Some(planned), Some(cost)) = (
                self.stages.get_mut(stage),
                self.cost_model.stages.get_mut(stage),
            ) else {
                break;
            };
            let Some(cost) = cost.classes.get_mut(class) else {
                continue;
            };
            for ((seconds, measured), overhead) in cost
                .seconds
                .iter_mut()
                .zip(programs)
                .zip(planned.overhead_seconds)
            {
                if let Some(measured) = measured.filter(|time| time.is_finite() && *time >= 0.0) {
                    *seconds = measured + overhead;
                }
            }
            if class == 0 {
                planned.seconds = cost.seconds;
            }
        }
        self.timeline = simulate(&self.schedule, &self.cost_model).map_err(model_error)?;
        self.predicted_step_seconds = self.timeline.step_seconds;
        Ok(())
    }
}
