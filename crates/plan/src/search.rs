//! The search: device subsets and orders, micro-batch counts, cuts, schedules; the simulated step decides.
//!
//! ```text
//!   orders of devices --> cuts for each --> simulated on estimates --> the best few --> simulated on exact numbers
//!      (orders.rs)         (cuts.rs)            (candidate.rs)                          then their neighbours, uphill
//! ```

use std::collections::BTreeMap;

use outboard_graph::Graph;
use outboard_schedule::{MAX_MICRO_BATCHES, ScheduleKind};

use crate::candidate::{
    BASE_WINDOW_BYTES, Candidate, Evaluated, Setting, evaluate, size_classes, split_batch,
};
use crate::error::join;
use crate::model::Model;
use crate::plan::{Alternative, LeftOut, Plan, PlannedStage};
use crate::workload::{StageNumbers, Workload};
use crate::{Device, PlanError, cuts, orders};

/// Most devices that a search looks at.
pub const MAX_DEVICES: usize = 64;
/// Cut lists of one order that are all simulated; above, dynamic programming picks.
const EXHAUSTIVE_CUTS: usize = 1500;
/// Candidates kept of each order.
const KEPT: usize = 3;
/// Candidates evaluated exactly, at the least and at the most.
const EXACT: usize = 10;
const MOST_EXACT: usize = 200;
/// Simulations spent on moving cuts of one candidate.
const MOVES: usize = 80;
/// Cut lists of one order that cuts are moved from.
const STARTS: usize = 3;
/// Candidates this much slower than the best one so far are not worth moving cuts for.
const WORTH_MOVING: f64 = 1.25;
/// Times that the best plan's surroundings are looked at.
const ROUNDS: usize = 4;
/// Micro-batch counts that `auto` tries.
const COUNTS: [u16; 8] = [1, 2, 4, 6, 8, 12, 16, 32];

/// Number of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroBatches {
    /// This many, or the most that the batch and the model allow.
    Fixed(u16),
    /// The fastest. Statistics of batch normalisation then depend on the choice.
    Auto,
}

/// Whether devices may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseDevices {
    /// A device that would slow the run is left out.
    Auto,
    /// Every device gets a stage.
    All,
}

/// What a search is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// Samples of a step.
    pub batch: usize,
    /// Micro-batches of a step.
    pub micro_batches: MicroBatches,
    /// Kind of schedule.
    pub schedule: ScheduleKind,
    /// Cuts, as node indices of the canonical graph; nothing lets the search choose.
    pub cuts: Option<Vec<usize>>,
    /// Whether devices may be left out.
    pub use_devices: UseDevices,
    /// Tensors of optimizer state for each parameter: 0 (plain SGD) to 3 (Adam with `amsgrad`).
    pub optimizer_state_tensors: u64,
    /// Bytes of an `f32` element on the wire: 4, or 2 for `f16` and `bf16`.
    pub wire_f32_bytes: u64,
    /// Compute time that the host's own stage loses to every byte that the host sends or receives.
    pub host_seconds_per_byte: f64,
    /// Time of the host between the last gradient report and the commit.
    pub commit_seconds: f64,
}

impl SearchOptions {
    /// Four micro-batches, everything else chosen by the search, exact tensors on the wire, one tensor of optimizer state.
    pub fn new(batch: usize) -> SearchOptions {
        SearchOptions {
            batch,
            micro_batches: MicroBatches::Fixed(4),
            schedule: ScheduleKind::Auto,
            cuts: None,
            use_devices: UseDevices::Auto,
            optimizer_state_tensors: 1,
            wire_f32_bytes: 4,
            host_seconds_per_byte: 0.0,
            commit_seconds: 0.0,
        }
    }
}

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

/// The micro-batch sizes that a search with these options may use, for [`signatures`](crate::signatures).
/// `smallest` is the least that the model accepts (`Graph::min_batch`).
///
/// # Errors
/// When the batch is smaller than that.
pub fn micro_batch_sizes(
    options: &SearchOptions,
    smallest: usize,
) -> Result<Vec<usize>, PlanError> {
    let counts = micro_batch_counts(options, smallest)?;
    let mut sizes: Vec<usize> = counts
        .into_iter()
        .flat_map(|count| split_batch(options.batch, count))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

fn micro_batch_counts(options: &SearchOptions, smallest: usize) -> Result<Vec<u16>, PlanError> {
    let error = |reason: String| PlanError::MicroBatches {
        batch: options.batch,
        reason,
    };
    let most = options.batch / smallest.max(1);
    if most == 0 {
        return Err(error(format!(
            "the model needs at least {smallest} in each"
        )));
    }
    let most = u16::try_from(most.min(MAX_MICRO_BATCHES)).unwrap_or(u16::MAX);
    match options.micro_batches {
        MicroBatches::Fixed(0) => Err(error("0 were asked for".into())),
        MicroBatches::Fixed(count) => Ok(vec![count.min(most)]),
        MicroBatches::Auto => Ok(COUNTS.into_iter().filter(|count| *count <= most).collect()),
    }
}

fn check_numbers(devices: &[Device], options: &SearchOptions) -> Result<(), PlanError> {
    let number = |what: String, value: f64, good: bool, needs: &'static str| {
        if good && value.is_finite() {
            Ok(())
        } else {
            Err(PlanError::Number { what, value, needs })
        }
    };
    const TIME: &str = "it must be finite and not negative";
    for device in devices {
        let Device {
            name,
            profile,
            link,
        } = device;
        let action = profile.action_seconds;
        number(
            format!("the time of an action on {name}"),
            action,
            action >= 0.0,
            TIME,
        )?;
        for (signature, seconds) in &profile.seconds {
            if !(seconds.is_finite() && *seconds >= 0.0) {
                number(
                    format!("the time of {} on {name}", signature.0),
                    *seconds,
                    false,
                    TIME,
                )?;
            }
        }
        if let Some(link) = link {
            for bandwidth in [link.up_bytes_per_second, link.down_bytes_per_second] {
                number(
                    format!("a bandwidth of {name}"),
                    bandwidth,
                    bandwidth > 0.0,
                    "it must be finite and positive",
                )?;
            }
            for time in [link.latency_seconds, link.device_seconds_per_byte] {
                number(format!("a link time of {name}"), time, time >= 0.0, TIME)?;
            }
        }
    }
    for time in [options.host_seconds_per_byte, options.commit_seconds] {
        number("a time of the host".into(), time, time >= 0.0, TIME)?;
    }
    Ok(())
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

fn check_cuts(
    workload: &dyn Workload,
    devices: usize,
    options: &SearchOptions,
) -> Result<(), PlanError> {
    let fail = |cuts: &[usize], reason| {
        Err(PlanError::Cuts {
            cuts: cuts.to_vec(),
            reason,
        })
    };
    let points = workload.cut_points();
    let Some(cuts) = &options.cuts else {
        return match options.use_devices {
            UseDevices::All if points.len() + 1 < devices => {
                let reason = format!(
                    "the model can be cut into {} stages at the most, for {devices} devices",
                    points.len() + 1
                );
                fail(&[], reason)
            }
            _ => Ok(()),
        };
    };
    if let Some(pair) = cuts.windows(2).find(|pair| pair[0] >= pair[1]) {
        return fail(
            cuts,
            format!("{} does not come before {}; cuts ascend", pair[0], pair[1]),
        );
    }
    if let Some(cut) = cuts.iter().find(|cut| !points.contains(cut)) {
        let below = points.iter().rev().find(|point| *point < cut);
        let above = points.iter().find(|point| *point > cut);
        let near: Vec<String> = below
            .into_iter()
            .chain(above)
            .map(usize::to_string)
            .collect();
        let hint = if near.is_empty() {
            "it cannot be cut at all".into()
        } else {
            format!("the nearest that can be is {}", near.join(" or "))
        };
        return fail(
            cuts,
            format!(
                "the model of {} nodes cannot be cut at {cut}; {hint}",
                workload.nodes()
            ),
        );
    }
    let stages = cuts.len() + 1;
    let several = matches!(
        options.schedule,
        ScheduleKind::Interleaved | ScheduleKind::Auto
    );
    let fits = |devices: usize| stages == devices || (several && stages.is_multiple_of(devices));
    let possible = match options.use_devices {
        UseDevices::All => fits(devices),
        UseDevices::Auto => (1..=devices).any(fits),
    };
    if !possible {
        return fail(
            cuts,
            format!(
                "they make {stages} stages, which do not fit {devices} devices with --schedule {}",
                options.schedule
            ),
        );
    }
    Ok(())
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
                    overhead_seconds: numbers
                        .first()
                        .map_or([0.0; 3], |numbers| numbers.overhead_seconds),
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

/// What dynamic programming minimises: a micro-batch's time in the slowest part, and in all parts.
fn part_cost(device: &Device, numbers: &StageNumbers, micro_batches: u16) -> Option<(f64, f64)> {
    // What comes in is about as large as what goes back to where it came from.
    let windows = (numbers
        .activation_bytes
        .saturating_add(numbers.cotangent_bytes))
    .saturating_mul(micro_batches.into());
    let fixed = [
        numbers.weight_bytes,
        numbers.gradient_bytes,
        numbers.optimizer_bytes,
        numbers.saved_bytes,
        numbers.program_bytes,
        windows,
        BASE_WINDOW_BYTES,
    ];
    let least = fixed.into_iter().fold(0, u64::saturating_add);
    if least > device.profile.memory_bytes {
        return None;
    }
    let compute: f64 = numbers.seconds.iter().sum();
    // Each direction carries the activations one way and cotangents of about their size the other way.
    let bytes = (numbers
        .activation_bytes
        .saturating_add(numbers.cotangent_bytes)) as f64;
    let transfer = device.link.map_or(0.0, |link| {
        bytes / link.up_bytes_per_second.min(link.down_bytes_per_second)
    });
    Some((compute.max(transfer), compute + transfer))
}

/// Moves one cut, or two neighbours together, as long as that shortens the step.
fn climb(
    points: &[usize],
    mut cuts: Vec<usize>,
    mut seconds: f64,
    simulate: &mut dyn FnMut(Vec<usize>) -> Option<f64>,
) {
    let (mut left, count) = (MOVES, cuts.len());
    loop {
        let mut improved = false;
        for (at, together) in (1..=2).flat_map(|together| (0..count).map(move |at| (at, together)))
        {
            for step in [-1isize, 1, -2, 2, -5, 5] {
                let Some(moved) = shifted(points, &cuts, at..at + together, step) else {
                    continue;
                };
                if left == 0 {
                    return;
                }
                left -= 1;
                if let Some(shorter) = simulate(moved.clone())
                    && shorter < seconds
                {
                    (cuts, seconds, improved) = (moved, shorter, true);
                }
            }
        }
        if !improved {
            return;
        }
    }
}

/// The cuts with some of them moved by this many cut points; nothing where that leaves the model or the order.
fn shifted(
    points: &[usize],
    cuts: &[usize],
    which: std::ops::Range<usize>,
    step: isize,
) -> Option<Vec<usize>> {
    let mut moved = cuts.to_vec();
    for cut in moved.get_mut(which)? {
        let position = points.binary_search(cut).ok()?;
        *cut = *points.get(position.checked_add_signed(step)?)?;
    }
    moved
        .windows(2)
        .all(|pair| pair[0] < pair[1])
        .then_some(moved)
}

impl Plan {
    /// The cuts as `--cut` takes them.
    pub fn cut_argument(&self) -> String {
        join(&self.cuts)
    }
}

#[cfg(test)]
mod tests;
