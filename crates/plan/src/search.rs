//! The search: device subsets and orders, micro-batch counts, cuts, schedules; the simulated step decides.
//!
//! ```text
//!   orders of devices --> cuts for each --> simulated on estimates --> the best few --> simulated on exact numbers
//!      (orders.rs)         (cuts.rs)            (candidate.rs)                          then their neighbours, uphill
//! ```

use std::collections::BTreeMap;

use outboard_graph::Graph;
use outboard_schedule::ScheduleKind;

use crate::candidate::{Candidate, Evaluated, Setting, evaluate, size_classes, split_batch};
use crate::climb::{climb, part_cost};
use crate::error::join;
use crate::model::Model;
use crate::options::{check_cuts, check_numbers, micro_batch_counts};
use crate::plan::{Alternative, LeftOut, Plan, PlannedStage};
use crate::workload::{StageNumbers, Workload};
use crate::{Device, PlanError, SearchOptions, UseDevices, cuts, orders};

/// Most devices that a search looks at.
pub const MAX_DEVICES: usize = 64;
/// Cut lists of one order that are all simulated; above, dynamic programming picks.
const EXHAUSTIVE_CUTS: usize = 1500;
/// Candidates kept of each order.
const KEPT: usize = 3;
/// Candidates evaluated exactly, at the least and at the most.
const EXACT: usize = 10;
const MOST_EXACT: usize = 200;
/// Cut lists of one order that cuts are moved from.
const STARTS: usize = 3;
/// Candidates this much slower than the best one so far are not worth moving cuts for.
const WORTH_MOVING: f64 = 1.25;
/// Times that the best plan's surroundings are looked at.
const ROUNDS: usize = 4;

/// Finds the plan with the shortest simulated step. `graph` is canonical and has passed `verify`; every device has measured
/// what [`signatures`](crate::signatures) lists for the micro-batch sizes in question
/// ([`micro_batch_sizes`](crate::micro_batch_sizes)).
///
/// # Errors
/// See [`PlanError`].
pub fn search(
    graph: &Graph,
    devices: &[Device],
    options: &SearchOptions,
) -> Result<Plan, PlanError> {
    check_numbers(devices, options)?;
    let mut model = Model::new(graph, devices, options)?;
    search_workload(&mut model, devices, options, EXHAUSTIVE_CUTS)
}

/// The search on any workload.
pub(crate) fn search_workload(
    workload: &mut dyn Workload,
    devices: &[Device],
    options: &SearchOptions,
    exhaustive_cuts: usize,
) -> Result<Plan, PlanError> {
    if devices.is_empty() || devices.len() > MAX_DEVICES {
        return Err(PlanError::Devices {
            given: devices.len(),
            most: MAX_DEVICES,
        });
    }
    let counts = micro_batch_counts(options, workload.smallest_micro_batch())?;
    check_cuts(workload, devices.len(), options)?;
    let setting = Setting {
        devices,
        batch: options.batch,
        host_seconds_per_byte: options.host_seconds_per_byte,
        commit_seconds: options.commit_seconds,
    };
    let mut search = Search {
        setting,
        options,
        exhaustive_cuts,
        pool: Vec::new(),
        shortest: f64::INFINITY,
        reasons: Vec::new(),
        exact: BTreeMap::new(),
    };
    search.collect(workload, &counts);
    search.finish(workload)
}

struct Search<'a> {
    setting: Setting<'a>,
    options: &'a SearchOptions,
    exhaustive_cuts: usize,
    /// Candidates with the seconds of their steps, on estimates.
    pool: Vec<(f64, Candidate)>,
    /// The shortest step in the pool.
    shortest: f64,
    /// Why orders have no candidate.
    reasons: Vec<(Vec<usize>, String)>,
    /// Everything evaluated exactly.
    exact: BTreeMap<Candidate, Result<Exact, String>>,
}

/// A candidate on exact numbers: for each stage, one element for each size class.
type Exact = (Evaluated, Vec<Vec<StageNumbers>>);

impl Search<'_> {
    /// Fills the pool.
    fn collect(&mut self, workload: &dyn Workload, counts: &[u16]) {
        let devices = self.setting.devices;
        let same = |a: usize, b: usize| match (devices.get(a), devices.get(b)) {
            (Some(a), Some(b)) => {
                a.link == b.link
                    && a.profile.memory_bytes == b.profile.memory_bytes
                    && a.profile.action_seconds == b.profile.action_seconds
                    && a.profile.seconds == b.profile.seconds
                    && a.profile.unsupported == b.profile.unsupported
            }
            _ => false,
        };
        let pairs: Vec<Vec<bool>> = (0..devices.len())
            .map(|a| {
                (0..devices.len())
                    .map(|b| workload.interchangeable(a, b) && same(a, b))
                    .collect()
            })
            .collect();
        let same = |a: usize, b: usize| {
            pairs
                .get(a)
                .and_then(|row| row.get(b))
                .copied()
                .unwrap_or(false)
        };
        let most_stages = match &self.options.cuts {
            Some(cuts) => cuts.len() + 1,
            None => workload.cut_points().len() + 1,
        };
        let longest = devices.len().min(most_stages);
        orders::explore(devices.len(), longest, &same, &mut |order| {
            // Where all orders are tried, those that may not be chosen need no score either.
            let all = self.options.use_devices == UseDevices::All;
            if all && order.len() < devices.len() && devices.len() <= orders::EXHAUSTIVE {
                return None;
            }
            let mut best: Option<f64> = None;
            for count in counts {
                for stages in self.stage_counts(order.len(), workload) {
                    let seconds = self.candidates_of(workload, order, *count, stages);
                    best = [best, seconds].into_iter().flatten().reduce(f64::min);
                }
            }
            best
        });
    }

    /// Numbers of stages to try on this many devices.
    fn stage_counts(&self, devices: usize, workload: &dyn Workload) -> Vec<usize> {
        let several = matches!(
            self.options.schedule,
            ScheduleKind::Interleaved | ScheduleKind::Auto
        );
        if let Some(cuts) = &self.options.cuts {
            let stages = cuts.len() + 1;
            let fits = stages == devices || (several && stages.is_multiple_of(devices));
            return if fits { vec![stages] } else { Vec::new() };
        }
        let twice = devices > 1 && workload.cut_points().len() + 1 >= 2 * devices;
        match self.options.schedule {
            ScheduleKind::Interleaved if twice => vec![2 * devices],
            _ => vec![devices],
        }
    }

    /// Kinds simulated on estimates: `auto` itself is tried on exact numbers.
    fn quick_kinds(&self, devices: usize, stages: usize) -> Vec<ScheduleKind> {
        match self.options.schedule {
            ScheduleKind::Auto if stages == devices => {
                vec![
                    ScheduleKind::OneFOneB,
                    ScheduleKind::ZbH1,
                    ScheduleKind::GPipe,
                ]
            }
            ScheduleKind::Auto if stages > devices => vec![ScheduleKind::Interleaved],
            kind => vec![kind],
        }
    }

    /// Looks for cuts for one order; keeps the best and gives the seconds of the very best.
    fn candidates_of(
        &mut self,
        workload: &dyn Workload,
        order: &[usize],
        count: u16,
        stages: usize,
    ) -> Option<f64> {
        let (sizes, _) = size_classes(self.setting.batch, count);
        let size = sizes.first().copied().unwrap_or(1);
        let kinds = self.quick_kinds(order.len(), stages);
        let mut reason = None;
        let mut found: Vec<(f64, Candidate)> = Vec::new();
        let mut simulate = |cuts: Vec<usize>| {
            let candidate = Candidate {
                devices: order.to_vec(),
                cuts,
                micro_batches: count,
            };
            if let Some((seconds, _)) = found.iter().find(|(_, known)| *known == candidate) {
                return Some(*seconds);
            }
            let numbers = numbers_of(
                &candidate,
                workload.nodes(),
                &sizes,
                &mut |nodes, size, device| workload.estimate(nodes, size, device),
            );
            match numbers.and_then(|numbers| evaluate(&self.setting, &candidate, &kinds, &numbers))
            {
                Ok(evaluated) => {
                    let seconds = evaluated.timeline.step_seconds;
                    found.push((seconds, candidate));
                    Some(seconds)
                }
                Err(error) => {
                    reason.get_or_insert(error);
                    None
                }
            }
        };
        let points = workload.cut_points();
        if let Some(cuts) = &self.options.cuts {
            simulate(cuts.clone());
        } else if cuts::combinations(points.len(), stages, self.exhaustive_cuts).is_some() {
            for cuts in cuts::all(points, stages) {
                simulate(cuts);
            }
        } else {
            let devices = self.setting.devices;
            let cost = |nodes: std::ops::Range<usize>, stage: usize| {
                let index = *order.get(stage % order.len().max(1))?;
                let device = devices.get(index)?;
                let numbers = workload.estimate(nodes, size, index).ok()?;
                part_cost(device, &numbers, count)
            };
            let starts = cuts::promising(points, workload.nodes(), stages, &cost);
            let mut starts: Vec<(f64, Vec<usize>)> = starts
                .into_iter()
                .filter_map(|cuts| Some((simulate(cuts.clone())?, cuts)))
                .collect();
            starts.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (seconds, cuts) in starts.into_iter().take(STARTS) {
                if seconds <= self.shortest * WORTH_MOVING {
                    climb(points, cuts, seconds, &mut simulate);
                }
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        found.truncate(KEPT);
        let best = found.first().map(|(seconds, _)| *seconds);
        self.shortest = best.map_or(self.shortest, |seconds| seconds.min(self.shortest));
        if best.is_none() {
            let reason =
                reason.unwrap_or_else(|| format!("it cannot be cut into {stages} stages that fit"));
            self.reasons.push((order.to_vec(), reason));
        }
        self.pool.extend(found);
        best
    }

    /// Evaluates on exact numbers; gives the seconds.
    fn evaluate(&mut self, workload: &mut dyn Workload, candidate: &Candidate) -> Option<f64> {
        if !self.exact.contains_key(candidate) {
            let (sizes, _) = size_classes(self.setting.batch, candidate.micro_batches);
            let nodes = workload.nodes();
            let numbers = numbers_of(candidate, nodes, &sizes, &mut |nodes, size, device| {
                workload.exact(nodes, size, device)
            });
            let outcome = numbers.and_then(|numbers| {
                Ok((
                    evaluate(&self.setting, candidate, &[self.options.schedule], &numbers)?,
                    numbers,
                ))
            });
            self.exact.insert(candidate.clone(), outcome);
        }
        let (evaluated, _) = self.exact.get(candidate)?.as_ref().ok()?;
        Some(evaluated.timeline.step_seconds)
    }

    fn allowed(&self, candidate: &Candidate) -> bool {
        self.options.use_devices == UseDevices::Auto
            || candidate.devices.len() == self.setting.devices.len()
    }

    fn finish(mut self, workload: &mut dyn Workload) -> Result<Plan, PlanError> {
        let mut pool = std::mem::take(&mut self.pool);
        // At equal length the plan with fewer devices is better.
        pool.sort_by(|a, b| {
            a.0.total_cmp(&b.0)
                .then(a.1.devices.len().cmp(&b.1.devices.len()))
                .then_with(|| a.1.cmp(&b.1))
        });
        // The best ones; and the best ones of every device, to know what leaving it out is worth.
        let (mut tried, mut possible) = (0, 0);
        let allowed: Vec<&Candidate> = pool
            .iter()
            .map(|(_, candidate)| candidate)
            .filter(|candidate| self.allowed(candidate))
            .collect();
        for candidate in allowed {
            if tried == MOST_EXACT || (tried >= EXACT && possible > 0) {
                break;
            }
            tried += 1;
            possible += usize::from(self.evaluate(workload, candidate).is_some());
        }
        if self.options.use_devices == UseDevices::Auto {
            for device in 0..self.setting.devices.len() {
                for (_, candidate) in pool
                    .iter()
                    .filter(|(_, candidate)| candidate.devices.contains(&device))
                    .take(KEPT)
                {
                    self.evaluate(workload, candidate);
                }
            }
        }
        let Some((mut seconds, mut best)) = self.best(|_| true) else {
            return Err(PlanError::Impossible {
                reasons: self.distinct_reasons(),
            });
        };
        // Exact numbers may prefer another neighbour, or a plan with one device more: look again until nothing changes.
        for _ in 0..ROUNDS {
            if self.options.cuts.is_none() {
                let points = workload.cut_points().to_vec();
                climb(&points, best.cuts.clone(), seconds, &mut |cuts| {
                    self.evaluate(
                        workload,
                        &Candidate {
                            cuts,
                            ..best.clone()
                        },
                    )
                });
            }
            for device in
                (0..self.setting.devices.len()).filter(|device| !best.devices.contains(device))
            {
                let adds = |(_, candidate): &&(f64, Candidate)| uses_too(candidate, &best, device);
                for (_, candidate) in pool.iter().filter(adds).take(KEPT) {
                    self.evaluate(workload, candidate);
                }
            }
            match self.best(|_| true) {
                Some((shorter, better)) if better != best => (seconds, best) = (shorter, better),
                _ => break,
            }
        }
        self.plan(workload, &best, seconds)
    }

    /// The fastest of those evaluated exactly.
    fn best(&self, wanted: impl Fn(&Candidate) -> bool) -> Option<(f64, Candidate)> {
        self.exact
            .iter()
            .filter(|(candidate, _)| self.allowed(candidate) && wanted(candidate))
            .filter_map(|(candidate, outcome)| {
                Some((outcome.as_ref().ok()?.0.timeline.step_seconds, candidate))
            })
            .min_by(|a, b| {
                a.0.total_cmp(&b.0)
                    .then(a.1.devices.len().cmp(&b.1.devices.len()))
            })
            .map(|(seconds, candidate)| (seconds, candidate.clone()))
    }

    fn distinct_reasons(&self) -> Vec<String> {
        let exact = self
            .exact
            .values()
            .filter_map(|outcome| outcome.as_ref().err());
        let all = self.options.use_devices == UseDevices::All;
        let count = self.setting.devices.len();
        let estimated = self
            .reasons
            .iter()
            .filter(|(devices, _)| !all || devices.len() == count)
            .map(|(_, reason)| reason);
        let mut reasons: Vec<String> = Vec::new();
        for reason in exact.chain(estimated) {
            if !reasons.contains(reason) && reasons.len() < 4 {
                reasons.push(reason.clone());
            }
        }
        reasons
    }

    fn plan(
        mut self,
        workload: &dyn Workload,
        best: &Candidate,
        seconds: f64,
    ) -> Result<Plan, PlanError> {
        let left_out = self.left_out(best, seconds);
        let alternatives = self.alternatives(best);
        let Some(Ok((evaluated, numbers))) = self.exact.remove(best) else {
            return Err(PlanError::Impossible {
                reasons: self.distinct_reasons(),
            });
        };
        let stages = best
            .stages(workload.nodes())
            .into_iter()
            .zip(&numbers)
            .zip(&evaluated.memory)
            .enumerate()
            .map(
                |(stage, (((nodes, device), numbers), memory))| PlannedStage {
                    device,
                    device_name: self
                        .setting
                        .devices
                        .get(device)
                        .map_or(String::new(), |device| device.name.clone()),
                    scopes: workload.scopes(nodes.clone()),
                    nodes,
                    parameters: numbers.first().map_or(0, |numbers| numbers.parameters),
                    memory: *memory,
                    seconds: numbers.first().map_or([0.0; 3], |numbers| numbers.seconds),
                    in_flight: evaluated
                        .timeline
                        .peak_in_flight
                        .get(stage)
                        .copied()
                        .unwrap_or(0),
                },
            )
            .collect();
        Ok(Plan {
            stages,
            cuts: best.cuts.clone(),
            devices: best.devices.clone(),
            micro_batch_sizes: split_batch(self.setting.batch, best.micro_batches),
            schedule: evaluated.schedule,
            cost_model: evaluated.model,
            timeline: evaluated.timeline,
            predicted_step_seconds: seconds,
            left_out,
            alternatives,
        })
    }

    fn left_out(&self, best: &Candidate, seconds: f64) -> Vec<LeftOut> {
        let unused =
            (0..self.setting.devices.len()).filter(|device| !best.devices.contains(device));
        unused
            .filter_map(|device| {
                let uses = |devices: &[usize]| devices.contains(&device);
                let with = self
                    .best(|candidate| uses_too(candidate, best, device))
                    .or_else(|| self.best(|candidate| uses(&candidate.devices)));
                let exact = self
                    .exact
                    .iter()
                    .filter(|(candidate, _)| uses(&candidate.devices));
                let reason = exact
                    .filter_map(|(_, outcome)| outcome.as_ref().err())
                    .chain(
                        self.reasons
                            .iter()
                            .filter(|(devices, _)| uses(devices))
                            .map(|(_, reason)| reason),
                    )
                    .next()
                    .cloned();
                Some(LeftOut {
                    device,
                    name: self.setting.devices.get(device)?.name.clone(),
                    step_with: with.as_ref().map(|(seconds, _)| *seconds),
                    step_without: seconds,
                    impossible: if with.is_some() { None } else { reason },
                })
            })
            .collect()
    }

    /// The chosen one, the other ways to use devices in order of their steps, then the impossible ones.
    fn alternatives(&self, best: &Candidate) -> Vec<Alternative> {
        let mut all: Vec<Alternative> = self
            .exact
            .iter()
            .map(|(candidate, outcome)| Alternative {
                devices: candidate.devices.clone(),
                cuts: candidate.cuts.clone(),
                micro_batches: candidate.micro_batches,
                outcome: match outcome {
                    Ok((evaluated, _)) => Ok((
                        evaluated.timeline.step_seconds,
                        evaluated.schedule.name.clone(),
                    )),
                    Err(reason) => Err(reason.clone()),
                },
            })
            .collect();
        let seconds = |alternative: &Alternative| {
            alternative
                .outcome
                .as_ref()
                .map_or(f64::INFINITY, |(seconds, _)| *seconds)
        };
        let chosen = |alternative: &Alternative| {
            alternative.devices == best.devices
                && alternative.cuts == best.cuts
                && alternative.micro_batches == best.micro_batches
        };
        all.sort_by(|a, b| {
            chosen(b)
                .cmp(&chosen(a))
                .then(seconds(a).total_cmp(&seconds(b)))
        });
        all.truncate(24);
        all
    }
}

/// Whether a candidate uses the device on top of all that another one uses.
fn uses_too(candidate: &Candidate, other: &Candidate, device: usize) -> bool {
    candidate.devices.contains(&device)
        && other
            .devices
            .iter()
            .all(|used| candidate.devices.contains(used))
}

/// The numbers of each stage, one element a size class.
fn numbers_of(
    candidate: &Candidate,
    nodes: usize,
    sizes: &[usize],
    numbers: &mut dyn FnMut(std::ops::Range<usize>, usize, usize) -> Result<StageNumbers, String>,
) -> Result<Vec<Vec<StageNumbers>>, String> {
    candidate
        .stages(nodes)
        .into_iter()
        .map(|(nodes, device)| {
            sizes
                .iter()
                .map(|size| numbers(nodes.clone(), *size, device))
                .collect()
        })
        .collect()
}

impl Plan {
    /// The cuts as `--cut` takes them.
    pub fn cut_argument(&self) -> String {
        join(&self.cuts)
    }
}

#[cfg(test)]
mod tests;
