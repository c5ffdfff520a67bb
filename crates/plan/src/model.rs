//! A graph as a workload: its stages' programs, sized and timed on each device.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use outboard_graph::{
    CutCandidate, Graph, GraphError, InputKind, OutputKind, Stage, StagePrograms, TensorType,
    cut_candidates, slice, stage_programs,
};

use crate::estimate::Estimate;
use crate::options::micro_batch_sizes;
use crate::plan::Bytes;
use crate::signature::{PROBE_ELEMENTS, model_error, node_signature, optimizer_probe};
use crate::workload::{StageNumbers, Workload};
use crate::{Device, DeviceProfile, OpSignature, PlanError, SearchOptions, signatures};

/// The seconds of every signature on every device.
pub(crate) struct Times {
    index: HashMap<OpSignature, usize>,
    names: Vec<String>,
    memory_bytes: Vec<u64>,
    /// `[device][signature]`; nothing where the device cannot run it.
    seconds: Vec<Vec<Option<f64>>>,
    /// Seconds that summing one `f32` element to another one takes on each device.
    pub(crate) sum_seconds: Vec<f64>,
}

impl Times {
    /// Fails when a device lacks a measurement.
    fn new(graph: &Graph, sizes: &[usize], devices: &[Device]) -> Result<Times, PlanError> {
        let wanted = signatures(graph, sizes)?;
        for device in devices {
            let missing = device.profile.missing(&wanted);
            if let Some(first) = missing.first() {
                return Err(PlanError::NotMeasured {
                    device: device.name.clone(),
                    missing: missing.len(),
                    wanted: wanted.len(),
                    signature: first.0.clone(),
                });
            }
        }
        let probe = optimizer_probe()?;
        let sum_seconds = |profile: &DeviceProfile| {
            profile.seconds.get(&probe).copied().unwrap_or(0.0) / PROBE_ELEMENTS as f64
        };
        Ok(Times {
            seconds: devices
                .iter()
                .map(|device| {
                    wanted
                        .iter()
                        .map(|signature| device.profile.seconds.get(signature).copied())
                        .collect()
                })
                .collect(),
            sum_seconds: devices
                .iter()
                .map(|device| sum_seconds(&device.profile))
                .collect(),
            names: devices.iter().map(|device| device.name.clone()).collect(),
            memory_bytes: devices
                .iter()
                .map(|device| device.profile.memory_bytes)
                .collect(),
            index: wanted
                .into_iter()
                .enumerate()
                .map(|(index, signature)| (signature, index))
                .collect(),
        })
    }

    /// The measured programs that a concrete program runs: for each node, its index; or the text of one that is unknown.
    fn of(&self, program: &Graph) -> Result<Vec<usize>, String> {
        (0..program.nodes.len())
            .map(|node| {
                let signature = node_signature(program, node).ok_or("a program is malformed")?;
                self.index
                    .get(&signature)
                    .copied()
                    .ok_or_else(|| format!("no device has measured\n{}", signature.0))
            })
            .collect()
    }

    /// The seconds of one signature on a device.
    pub(crate) fn seconds(&self, device: usize, signature: usize) -> Option<f64> {
        *self.seconds.get(device)?.get(signature)?
    }

    fn sum(&self, device: usize, signatures: &[usize]) -> Result<f64, String> {
        let mut sum = 0.0;
        for signature in signatures {
            sum += self
                .seconds(device, *signature)
                .ok_or_else(|| self.cannot_run(device, *signature))?;
        }
        Ok(sum)
    }

    pub(crate) fn cannot_run(&self, device: usize, signature: usize) -> String {
        let text = self
            .index
            .iter()
            .find(|(_, index)| **index == signature)
            .map_or("", |(text, _)| text.0.as_str());
        let name = self.names.get(device).map_or("a device", String::as_str);
        let memory = self.memory_bytes.get(device).copied().unwrap_or(u64::MAX);
        let sizes = text.parse::<Graph>().ok().and_then(|program| {
            let mut sizes = program.values.iter().map(|value| value.ty.bytes(1));
            sizes.try_fold(0_u64, |sum, bytes| sum.checked_add(bytes?))
        });
        format!(
            "{name}, with {} for stages, cannot run an operator whose tensors take {}:\n{text}",
            Bytes(memory),
            Bytes(sizes.unwrap_or(0))
        )
    }
}

/// One stage's programs at one size, before it is known which device runs them.
pub(crate) struct SizedStage {
    /// Measured programs of `F`, `B` and `W`, and the origin of the node each one times.
    pub(crate) programs: [Vec<(usize, u32)>; 3],
    /// Sizes; no seconds.
    pub(crate) numbers: StageNumbers,
}

/// Bytes of a value on the wire.
pub(crate) fn wire_bytes(ty: &TensorType, size: usize, wire_f32_bytes: u64) -> u64 {
    let element = if ty.dtype == outboard_graph::DType::F32 {
        wire_f32_bytes
    } else {
        ty.dtype.bytes() as u64
    };
    ty.elements(size)
        .unwrap_or(u64::MAX)
        .saturating_mul(element)
}

fn outputs_wire_bytes(graph: &Graph, size: usize, kind: OutputKind, wire_f32_bytes: u64) -> u64 {
    graph
        .outputs
        .iter()
        .filter(|output| output.kind == kind)
        .filter_map(|output| Some(wire_bytes(graph.ty(output.value)?, size, wire_f32_bytes)))
        .fold(0, u64::saturating_add)
}

/// The sizes of a stage, from its concrete graph and programs.
fn sizes(
    whole: &Graph,
    programs: &[Graph; 3],
    size: usize,
    options: &SearchOptions,
) -> Result<StageNumbers, GraphError> {
    let [forward, backward, weight] = programs;
    let both = |kind: OutputKind| -> Result<u64, GraphError> {
        Ok(backward
            .output_bytes(&[kind])?
            .saturating_add(weight.output_bytes(&[kind])?))
    };
    let parameter_bytes = whole.input_bytes(&[InputKind::Parameter])?;
    let mut program_bytes = 0;
    for program in programs {
        program_bytes = program_bytes.max(program.peak_bytes(|input| input.kind.is_weight())?);
    }
    let sent = |program, kind| outputs_wire_bytes(program, size, kind, options.wire_f32_bytes);
    Ok(StageNumbers {
        input_bytes: whole.input_bytes(&[InputKind::Data])?,
        activation_bytes: sent(forward, OutputKind::Activation),
        cotangent_bytes: sent(backward, OutputKind::Cotangent),
        saved_bytes: forward
            .output_bytes(&[OutputKind::Saved])?
            .saturating_add(backward.output_bytes(&[OutputKind::Saved])?),
        weight_bytes: whole.input_bytes(&[
            InputKind::Parameter,
            InputKind::Frozen,
            InputKind::Buffer,
        ])?,
        gradient_bytes: both(OutputKind::ParameterGradient)?,
        optimizer_bytes: parameter_bytes.saturating_mul(options.optimizer_state_tensors),
        program_bytes,
        parameters: parameter_bytes / 4,
        ..StageNumbers::default()
    })
}

impl SizedStage {
    pub(crate) fn new(
        stage: &Stage,
        programs: &StagePrograms,
        size: usize,
        times: &Times,
        options: &SearchOptions,
    ) -> Result<SizedStage, String> {
        let concrete =
            |program: &Graph| program.instantiate(size).map_err(|error| error.to_string());
        let programs = [
            concrete(&programs.forward)?,
            concrete(&programs.backward)?,
            concrete(&programs.weight)?,
        ];
        let whole = concrete(&stage.graph)?;
        let numbers = sizes(&whole, &programs, size, options).map_err(|error| error.to_string())?;
        let mut timed: [Vec<(usize, u32)>; 3] = Default::default();
        for (program, timed) in programs.iter().zip(&mut timed) {
            let origins = program.nodes.iter().map(|node| node.origin);
            *timed = times.of(program)?.into_iter().zip(origins).collect();
        }
        Ok(SizedStage {
            programs: timed,
            numbers,
        })
    }

    /// The same on a device.
    fn on(
        &self,
        device: usize,
        devices: &[Device],
        times: &Times,
        options: &SearchOptions,
    ) -> Result<StageNumbers, String> {
        let action = devices
            .get(device)
            .map_or(0.0, |device| device.profile.action_seconds);
        let mut numbers = self.numbers;
        for (seconds, program) in numbers.seconds.iter_mut().zip(&self.programs) {
            let signatures: Vec<usize> = program.iter().map(|(signature, _)| *signature).collect();
            *seconds = times.sum(device, &signatures)?;
        }
        add_overhead(
            &mut numbers,
            action,
            times.sum_seconds.get(device).copied().unwrap_or(0.0),
            options,
        );
        Ok(numbers)
    }
}

/// Adds what is no node: handling an action; `W`'s gradients, which are summed over micro-batches; and at the step a pass
/// over each gradient for its norm, one over the parameter and one over each tensor of the optimizer's state.
pub(crate) fn add_overhead(
    numbers: &mut StageNumbers,
    action_seconds: f64,
    sum_seconds: f64,
    options: &SearchOptions,
) {
    let sums = numbers.gradient_bytes as f64 / 4.0 * sum_seconds;
    let overhead = [action_seconds, action_seconds, action_seconds + sums];
    for (seconds, overhead) in numbers.seconds.iter_mut().zip(overhead) {
        *seconds += overhead;
    }
    let passes = 2 + options.optimizer_state_tensors;
    numbers.optimizer_seconds = numbers.parameters as f64 * passes as f64 * sum_seconds;
}

/// A graph as a workload.
pub(crate) struct Model<'a> {
    graph: &'a Graph,
    devices: &'a [Device],
    options: &'a SearchOptions,
    times: Times,
    cut_points: Vec<usize>,
    estimates: BTreeMap<usize, Estimate>,
    stages: BTreeMap<(usize, usize), Result<(Stage, StagePrograms), String>>,
    sized: BTreeMap<(usize, usize, usize), Result<SizedStage, String>>,
}

impl<'a> Model<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        devices: &'a [Device],
        options: &'a SearchOptions,
    ) -> Result<Self, PlanError> {
        let sizes = micro_batch_sizes(options, graph.min_batch())?;
        let times = Times::new(graph, &sizes, devices)?;
        let cuts: Vec<CutCandidate> = cut_candidates(graph)
            .map_err(model_error)?
            .into_iter()
            .filter(CutCandidate::is_legal)
            .collect();
        let cut_points = cuts.iter().map(|cut| cut.node).collect();
        let mut estimates = BTreeMap::new();
        for size in sizes {
            let estimate =
                Estimate::new(graph, &cuts, size, devices, &times, options).map_err(model_error)?;
            estimates.insert(size, estimate);
        }
        Ok(Model {
            graph,
            devices,
            options,
            times,
            cut_points,
            estimates,
            stages: BTreeMap::new(),
            sized: BTreeMap::new(),
        })
    }

    fn sized(&mut self, nodes: Range<usize>, size: usize) -> Result<&SizedStage, String> {
        let key = (nodes.start, nodes.end, size);
        if !self.sized.contains_key(&key) {
            let graph = self.graph;
            let stage = self
                .stages
                .entry((nodes.start, nodes.end))
                .or_insert_with(|| stage_of(graph, nodes.clone()));
            let sized = match stage {
                Ok((stage, programs)) => {
                    SizedStage::new(stage, programs, size, &self.times, self.options)
                }
                Err(reason) => Err(reason.clone()),
            };
            self.sized.insert(key, sized);
        }
        match self.sized.get(&key) {
            Some(Ok(sized)) => Ok(sized),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("a stage is missing".into()),
        }
    }
}

/// The stage of a range of nodes, and its programs.
pub(crate) fn stage_of(
    graph: &Graph,
    nodes: Range<usize>,
) -> Result<(Stage, StagePrograms), String> {
    let cuts: Vec<usize> = [nodes.start, nodes.end]
        .into_iter()
        .filter(|cut| *cut > 0 && *cut < graph.nodes.len())
        .collect();
    let index = usize::from(nodes.start > 0);
    let stages = slice(graph, &cuts).map_err(|error| error.to_string())?;
    let stage = stages.into_iter().nth(index).ok_or("a stage is missing")?;
    let programs = stage_programs(&stage).map_err(|error| error.to_string())?;
    Ok((stage, programs))
}

impl Workload for Model<'_> {
    fn nodes(&self) -> usize {
        self.graph.nodes.len()
    }

    fn cut_points(&self) -> &[usize] {
        &self.cut_points
    }

    fn smallest_micro_batch(&self) -> usize {
        self.graph.min_batch()
    }

    fn interchangeable(&self, _a: usize, _b: usize) -> bool {
        // Equal profiles and links give equal costs; the search compares those itself.
        true
    }

    fn estimate(
        &self,
        nodes: Range<usize>,
        size: usize,
        device: usize,
    ) -> Result<StageNumbers, String> {
        self.estimates.get(&size).ok_or("a size is missing")?.stage(
            nodes,
            device,
            &self.times,
            self.options,
        )
    }

    fn exact(
        &mut self,
        nodes: Range<usize>,
        size: usize,
        device: usize,
    ) -> Result<StageNumbers, String> {
        self.sized(nodes.clone(), size)?;
        let (devices, options) = (self.devices, self.options);
        let sized = self.sized.get(&(nodes.start, nodes.end, size));
        match sized {
            Some(Ok(sized)) => sized.on(device, devices, &self.times, options),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("a stage is missing".into()),
        }
    }

    fn scopes(&self, nodes: Range<usize>) -> (String, String) {
        let scope =
            |node: Option<usize>| {
                node.and_then(|node| self.graph.nodes.get(node))
                    .map_or(String::new(), |node| match node.scope.as_str() {
                        "" => node.op.name().to_owned(),
                        scope => scope.to_owned(),
                    })
            };
        (scope(Some(nodes.start)), scope(nodes.end.checked_sub(1)))
    }
}
