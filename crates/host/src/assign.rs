//! From a graph and its placement to what every worker is told.

use std::collections::{BTreeMap, BTreeSet};

use outboard_graph::{
    Graph, Input, InputKind, OutputKind, Stage, StagePrograms, Tensor, slice, stage_programs,
};
use outboard_schedule::{Limits, validate};
use outboard_wire::{Assign, SharedWeight, StageAssignment, StateKind, WeightSpec};
use sha2::{Digest, Sha256};

use crate::assignment::{Assignment, Feed};
use crate::core::{Cargo, Route, RunSpec, Upload};
use crate::placement::Placement;
use crate::{DeviceId, RunError, RunOptions};

/// One stage with everything made of it.
struct Part {
    index: u16,
    device: DeviceId,
    programs: Option<StagePrograms>,
    evaluation: Graph,
}

impl Part {
    fn graphs(&self) -> impl Iterator<Item = &Graph> {
        self.training_graphs().chain([&self.evaluation])
    }

    fn training_graphs(&self) -> impl Iterator<Item = &Graph> {
        self.programs
            .iter()
            .flat_map(|programs| [&programs.forward, &programs.backward, &programs.weight])
    }

    fn normaliser(&self) -> Option<&Graph> {
        self.programs.as_ref()?.normaliser.as_ref()
    }

    /// Names of all gradients of weights, in whichever program they fall out.
    fn gradients(&self) -> impl Iterator<Item = &str> {
        self.training_graphs()
            .flat_map(|graph| &graph.outputs)
            .filter(|output| output.kind == OutputKind::ParameterGradient)
            .map(|output| output.name.as_str())
    }

    /// Names of all weights that any program takes, sorted.
    fn weights(&self) -> BTreeSet<&str> {
        self.graphs()
            .flat_map(|graph| &graph.inputs)
            .filter(|input| {
                matches!(
                    input.kind,
                    InputKind::Parameter | InputKind::Frozen | InputKind::Buffer
                )
            })
            .map(|input| input.name.as_str())
            .collect()
    }
}

/// Cuts the model, differentiates its stages, and says which of so many devices gets what. [`crate::Host::start`] does this
/// itself; it is for those who drive a [`crate::core::Core`] of their own.
///
/// # Errors
///
/// [`RunError::Model`], [`RunError::Plan`] or [`RunError::Usage`], before anything is sent.
pub fn assign(run: &RunOptions, devices: usize) -> Result<(Assignment, RunSpec), RunError> {
    let graph = &run.graph;
    graph.verify().map_err(model_error)?;
    let placement = &run.placement;
    let in_flight = check_placement(placement, devices)?;
    let parts = parts(run)?;
    let weights = checked_weights(run)?;

    let mut assigns: BTreeMap<DeviceId, Assign> = BTreeMap::new();
    let mut uploads: BTreeMap<DeviceId, Vec<Upload>> = BTreeMap::new();
    let shared = shared_weights(&parts)?;
    let largest = largest_micro_batch(run, graph.min_batch());
    for (part, in_flight) in parts.iter().zip(&in_flight) {
        let assign = assigns.entry(part.device).or_insert_with(|| Assign {
            run: 0,
            seed: run.seed,
            first_step: run.first_step,
            encoding: run.encoding,
            optimizer: run.optimizer,
            stages: Vec::new(),
            shared: Vec::new(),
            largest_micro_batch: u32::try_from(largest).unwrap_or(u32::MAX),
            most_micro_batches: placement.schedule.micro_batches,
        });
        let mut specs = Vec::new();
        let upload = uploads.entry(part.device).or_default();
        let mut add = |name: &str, state, tensor: &Tensor| {
            specs.push(spec(name, state, tensor));
            upload.push(Upload {
                stage: part.index,
                state,
                name: name.to_owned(),
                tensor: tensor.clone(),
            });
        };
        let names = part.weights();
        for name in &names {
            let tensor = weights
                .get(name)
                .ok_or_else(|| RunError::Model(format!("the weights lack `{name}`")))?;
            add(name, StateKind::Weights, tensor);
        }
        if run.optimizer.is_some() {
            let state = run.optimizer_state.iter().filter(|(key, _)| {
                key.rsplit_once('/')
                    .is_some_and(|(name, _)| names.contains(name))
            });
            for (key, tensor) in state {
                add(key, StateKind::Optimizer, tensor);
            }
        }
        let text = |of: fn(&StagePrograms) -> &Graph| {
            part.programs
                .as_ref()
                .map(|programs| of(programs).to_string())
        };
        assign.stages.push(StageAssignment {
            stage: part.index,
            forward: text(|programs| &programs.forward),
            backward: text(|programs| &programs.backward),
            weight: text(|programs| &programs.weight),
            normaliser: part.normaliser().map(Graph::to_string),
            evaluate: Some(part.evaluation.to_string()),
            weights: specs,
            in_flight: *in_flight,
        });
    }
    for assign in assigns.values_mut() {
        let held: BTreeSet<u16> = assign.stages.iter().map(|stage| stage.stage).collect();
        assign.shared = shared
            .iter()
            .filter(|shared| shared.stages.iter().any(|stage| held.contains(stage)))
            .cloned()
            .collect();
    }

    let used: BTreeSet<&str> = parts.iter().flat_map(Part::weights).collect();
    let idle = run
        .weights
        .iter()
        .filter(|(name, _)| !used.contains(name.as_str()));
    let mut results = BTreeMap::new();
    let mut senders = BTreeMap::new();
    for part in &parts {
        for output in part
            .evaluation
            .outputs
            .iter()
            .filter(|output| output.kind == OutputKind::Result)
        {
            let ty = part.evaluation.ty(output.value).cloned().ok_or_else(|| {
                RunError::Model(format!("the result `{}` has no type", output.name))
            })?;
            results.insert(output.name.clone(), ty);
            senders.insert(output.name.clone(), part.device);
        }
    }
    let assignment = Assignment {
        trains: run.optimizer.is_some(),
        data: inputs(graph, InputKind::Data)
            .filter_map(|input| Some((input.name.clone(), graph.ty(input.value)?.clone())))
            .collect(),
        training_feeds: feeds(&parts, true),
        evaluation_feeds: feeds(&parts, false),
        results,
        smallest_micro_batch: graph.min_batch(),
        largest_batch: run.largest_batch,
        idle_weights: idle
            .map(|(name, tensor)| (name.clone(), tensor.clone()))
            .collect(),
        placement: placement.clone(),
        in_flight,
    };
    let spec = RunSpec {
        assigns: assigns.into_iter().collect(),
        uploads: uploads.into_iter().collect(),
        device_of_stage: parts.iter().map(|part| part.device).collect(),
        reporter_of_parameter: reporters(&parts),
        results: senders,
        routes: routes(&parts, &shared),
        clip_norm: run.clip_norm,
    };
    Ok((assignment, spec))
}

/// Checks the placement and gives the micro-batches in flight on each stage.
fn check_placement(placement: &Placement, devices: usize) -> Result<Vec<u16>, RunError> {
    let schedule = &placement.schedule;
    if schedule.stages() != placement.cuts.len() + 1 {
        return Err(RunError::Plan(format!(
            "{} cuts make {} stages, but the schedule has {}",
            placement.cuts.len(),
            placement.cuts.len() + 1,
            schedule.stages()
        )));
    }
    let distinct: BTreeSet<&usize> = placement.devices.iter().collect();
    if schedule.devices() != placement.devices.len() || distinct.len() != placement.devices.len() {
        return Err(RunError::Plan(format!(
            "the schedule is for {} devices, the plan names {:?}",
            schedule.devices(),
            placement.devices
        )));
    }
    if let Some(device) = placement.devices.iter().find(|device| **device >= devices) {
        return Err(RunError::Plan(format!(
            "the plan uses device {device}, only {devices} are connected"
        )));
    }
    validate(schedule, &Limits::none()).map_err(plan_error)
}

fn parts(run: &RunOptions) -> Result<Vec<Part>, RunError> {
    let placement = &run.placement;
    let evaluation = run.graph.evaluation().map_err(model_error)?;
    let evaluations = slice(&evaluation, &placement.cuts).map_err(model_error)?;
    let stages: Vec<Stage> = slice(&run.graph, &placement.cuts).map_err(model_error)?;
    let devices = placement.schedule.device_of_stage.iter();
    stages
        .iter()
        .zip(evaluations)
        .zip(devices)
        .map(|((stage, evaluation), device)| {
            let programs =
                match run.optimizer {
                    Some(_) => Some(stage_programs(stage).map_err(|error| {
                        RunError::Model(format!("stage {}: {error}", stage.index))
                    })?),
                    None => None,
                };
            let index = u16::try_from(stage.index)
                .map_err(|_| RunError::Model(format!("{} stages", stages.len())))?;
            let device = placement
                .devices
                .get(*device)
                .copied()
                .map(DeviceId)
                .ok_or_else(|| {
                    RunError::Plan(format!("the schedule's device {device} is not in the plan"))
                })?;
            Ok(Part {
                index,
                device,
                programs,
                evaluation: evaluation.graph,
            })
        })
        .collect()
}

/// The run's weights, each of the type that the graph gives it.
fn checked_weights(run: &RunOptions) -> Result<BTreeMap<&str, &Tensor>, RunError> {
    let graph = &run.graph;
    let mut known = BTreeMap::new();
    for input in graph.inputs.iter().filter(|input| input.kind.is_weight()) {
        let tensor = run
            .weights
            .get(&input.name)
            .ok_or_else(|| RunError::Model(format!("the weights lack `{}`", input.name)))?;
        let wanted = graph.ty(input.value);
        if wanted != Some(&tensor.ty()) {
            return Err(RunError::Model(format!(
                "`{}` is {}, the model takes {}",
                input.name,
                tensor.ty(),
                wanted.map_or_else(String::new, ToString::to_string)
            )));
        }
        known.insert(input.name.as_str(), tensor);
    }
    for (key, state) in &run.optimizer_state {
        let of = key.rsplit_once('/').and_then(|(name, _)| known.get(name));
        if of.is_none_or(|parameter| parameter.ty() != state.ty()) {
            return Err(RunError::Model(format!(
                "optimizer state `{key}` ({}) belongs to no parameter of this model",
                state.ty()
            )));
        }
    }
    Ok(known)
}

fn inputs(graph: &Graph, kind: InputKind) -> impl Iterator<Item = &Input> {
    graph.inputs.iter().filter(move |input| input.kind == kind)
}

/// Samples of the largest micro-batch that any batch can have. A batch that has fewer micro-batches than wanted, because
/// they may not be smaller than `smallest`, has less than two of the smallest in each.
fn largest_micro_batch(run: &RunOptions, smallest: usize) -> usize {
    let count = usize::from(run.placement.schedule.micro_batches).max(1);
    let even = run.largest_batch.div_ceil(count);
    even.max((2 * smallest.max(1) - 1).min(run.largest_batch))
        .max(1)
}

fn feeds(parts: &[Part], training: bool) -> Vec<Feed> {
    let mut feeds = Vec::new();
    for part in parts {
        let early: BTreeSet<&str> = match (training, part.normaliser()) {
            (true, Some(graph)) => inputs(graph, InputKind::Data)
                .map(|input| input.name.as_str())
                .collect(),
            _ => BTreeSet::new(),
        };
        let mut names = early.clone();
        if training {
            for graph in part.training_graphs() {
                names.extend(inputs(graph, InputKind::Data).map(|input| input.name.as_str()));
            }
        } else {
            names
                .extend(inputs(&part.evaluation, InputKind::Data).map(|input| input.name.as_str()));
        }
        feeds.extend(names.into_iter().map(|name| Feed {
            stage: part.index,
            name: name.to_owned(),
            early: early.contains(name),
        }));
    }
    feeds
}

/// The parameter of a gradient's name, `NAME#ORIGIN.OPERAND`, and its use.
fn parameter_and_use(gradient: &str) -> Result<(&str, (u64, u64)), RunError> {
    let split = || {
        let (name, used) = gradient.rsplit_once('#')?;
        let (origin, operand) = used.split_once('.')?;
        Some((name, (origin.parse().ok()?, operand.parse().ok()?)))
    };
    split().ok_or_else(|| RunError::Model(format!("a gradient named `{gradient}`")))
}

/// A gradient of a parameter: origin and operand of the use, and its whole name.
type Use<'a> = ((u64, u64), &'a str);

/// The parameters whose gradients come from several stages. Their uses are added up by node, then operand.
fn shared_weights(parts: &[Part]) -> Result<Vec<SharedWeight>, RunError> {
    let mut uses: BTreeMap<&str, Vec<Use<'_>>> = BTreeMap::new();
    for gradient in parts.iter().flat_map(Part::gradients) {
        let (name, used) = parameter_and_use(gradient)?;
        uses.entry(name).or_default().push((used, gradient));
    }
    let mut shared = Vec::new();
    for (name, mut uses) in uses {
        let stages: Vec<u16> = parts
            .iter()
            .filter(|part| part.weights().contains(name))
            .map(|part| part.index)
            .collect();
        if stages.len() > 1 {
            uses.sort_unstable();
            shared.push(SharedWeight {
                name: name.to_owned(),
                uses: uses
                    .into_iter()
                    .map(|(_, gradient)| gradient.to_owned())
                    .collect(),
                stages,
            });
        }
    }
    Ok(shared)
}

/// Who reports each parameter's gradient: the device of the first stage that holds it.
fn reporters(parts: &[Part]) -> BTreeMap<String, DeviceId> {
    let trained: BTreeSet<&str> = parts
        .iter()
        .flat_map(Part::gradients)
        .filter_map(|gradient| gradient.rsplit_once('#').map(|(name, _)| name))
        .collect();
    let mut reporters = BTreeMap::new();
    for part in parts {
        for name in part.weights().intersection(&trained) {
            reporters.entry((*name).to_owned()).or_insert(part.device);
        }
    }
    reporters
}

/// Everything that devices send each other, and who does.
fn routes(parts: &[Part], shared: &[SharedWeight]) -> BTreeMap<Route, DeviceId> {
    let mut routes = BTreeMap::new();
    let mut add = |to: &Part, cargo, name: &str, from: &Part| {
        if from.device != to.device {
            let route = Route {
                stage: to.index,
                cargo,
                name: name.to_owned(),
            };
            routes.insert(route, from.device);
        }
    };
    for pair in parts.windows(2) {
        let [lower, upper] = pair else { continue };
        for graph in upper.graphs() {
            for input in inputs(graph, InputKind::Activation) {
                add(upper, Cargo::Activation, &input.name, lower);
            }
        }
        for graph in lower.training_graphs() {
            for input in inputs(graph, InputKind::Cotangent) {
                add(lower, Cargo::Cotangent, &input.name, upper);
            }
        }
    }
    for weight in shared {
        for holder in parts
            .iter()
            .filter(|part| weight.stages.contains(&part.index))
        {
            for gradient in holder
                .gradients()
                .filter(|name| weight.uses.iter().any(|used| used == name))
            {
                for other in parts
                    .iter()
                    .filter(|part| weight.stages.contains(&part.index))
                {
                    add(other, Cargo::SharedGradient, gradient, holder);
                }
            }
        }
    }
    routes
}

fn spec(name: &str, state: StateKind, tensor: &Tensor) -> WeightSpec {
    WeightSpec {
        name: name.to_owned(),
        state,
        dtype: tensor.dtype(),
        dims: tensor.dims().iter().map(|dim| *dim as u64).collect(),
        sha256: Sha256::digest(tensor.data()).into(),
    }
}

fn model_error(error: impl std::fmt::Display) -> RunError {
    RunError::Model(error.to_string())
}

fn plan_error(error: impl std::fmt::Display) -> RunError {
    RunError::Plan(error.to_string())
}
