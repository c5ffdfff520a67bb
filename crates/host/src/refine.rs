//! A plan's prediction, made again on its own programs: what operators cost alone is not quite what they cost in a row.

use std::collections::{BTreeMap, VecDeque};

use outboard_graph::Graph;
use outboard_plan::Plan;

use crate::core::{Command, Report};
use crate::{DeviceId, Host, Progress, RunError};

/// A program to time: its place in the plan's list, its text, and whether its time is known.
struct Asked {
    stage: usize,
    program: usize,
    text: String,
    timed: bool,
}

impl Host {
    /// Times the whole programs of a plan's stages, each on its device and all devices at once, as in a run, and predicts
    /// the step again. Where the stages lie stays as planned.
    ///
    /// # Errors
    ///
    /// A lost device; [`RunError::Plan`] for another graph's plan; [`RunError::Usage`] during a run.
    pub fn refine(
        &self,
        graph: &Graph,
        plan: &mut Plan,
        mut progress: impl FnMut(Progress),
    ) -> Result<(), RunError> {
        let _claim = self.shared.claim()?;
        let plan_error = |error: outboard_plan::PlanError| RunError::Plan(error.to_string());
        let texts = plan.programs(graph).map_err(plan_error)?;
        let mut waiting: BTreeMap<DeviceId, VecDeque<Asked>> = BTreeMap::new();
        for (place, stage) in texts.iter().enumerate() {
            let device = plan
                .stages
                .get(stage.stage)
                .map_or(0, |planned| planned.device);
            let waiting = waiting.entry(DeviceId(device)).or_default();
            for (program, text) in stage.programs.iter().enumerate() {
                let text = text.0.clone();
                waiting.push_back(Asked {
                    stage: place,
                    program,
                    text,
                    timed: false,
                });
            }
        }
        let total = 3 * texts.len();
        let mut measured = vec![[None; 3]; texts.len()];
        let mut done = 0;
        let mut running = 0;
        for (device, programs) in &waiting {
            running += usize::from(self.time_first(*device, programs)?);
        }
        while running > 0 {
            let Report::Profiled { device, seconds } = self.shared.receive()? else {
                continue;
            };
            let Some(programs) = waiting.get_mut(&device) else {
                continue;
            };
            running -= 1;
            let Some(mut first) = programs.pop_front() else {
                continue;
            };
            if !first.timed {
                first.timed = true;
                done += 1;
                if let Some(slot) = measured
                    .get_mut(first.stage)
                    .and_then(|slots| slots.get_mut(first.program))
                {
                    *slot = seconds.first().copied().flatten();
                }
                let name = self
                    .devices()
                    .get(device.0)
                    .map(|device| device.name.clone());
                progress(Progress::Profiling {
                    device: name.unwrap_or_default(),
                    done,
                    total,
                });
            }
            programs.push_back(first);
            // A device that is done goes round again while others are not: in a run they compete for memory, too.
            if done < total {
                running += usize::from(self.time_first(device, programs)?);
            }
        }
        plan.refine(&measured).map_err(plan_error)
    }

    /// Asks for the time of the first of a device's programs; false when it has none.
    fn time_first(&self, device: DeviceId, programs: &VecDeque<Asked>) -> Result<bool, RunError> {
        let Some(first) = programs.front() else {
            return Ok(false);
        };
        let programs = vec![first.text.clone()];
        self.shared.send(Command::Profile { device, programs })?;
        Ok(true)
    }
}
