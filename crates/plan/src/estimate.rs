//! Nearly right costs of any range of nodes, in constant time: prefix sums over the whole model's programs.
//!
//! Every node of a program carries its origin, the forward node it is or is the gradient of. A stage's programs run just
//! the nodes whose origins are in its range, so its seconds are differences of prefix sums. The split into `B` and `W` is
//! read off the stage that begins at the first cut: whatever leads to its input's gradient is on the way to that of
//! every later cut. A first stage has no input gradient: all of its backward is `W`.

use std::ops::Range;

use outboard_graph::{CutCandidate, Graph, InputKind, OutputKind};

use crate::model::{SizedStage, Times, add_overhead, stage_of, wire_bytes};
use crate::workload::StageNumbers;
use crate::{Device, SearchOptions};

pub(crate) struct Estimate {
    /// `[device][kind]`: prefix sums of seconds by origin.
    seconds: Vec<[Vec<f64>; 3]>,
    /// `[device]`: origins of what it cannot run, with its signature, ascending.
    unsupported: Vec<Vec<(usize, usize)>>,
    action_seconds: Vec<f64>,
    /// Prefix sums of bytes by origin.
    saved: Vec<u64>,
    weights: Vec<u64>,
    parameters: Vec<u64>,
    /// Bytes of each data input, and the nodes that read it, ascending.
    data: Vec<(u64, Vec<usize>)>,
    /// Bytes that cross in front of each node, forward and backward, as they travel.
    crossing: Vec<(u64, u64)>,
}

impl Estimate {
    pub(crate) fn new(
        graph: &Graph,
        cuts: &[CutCandidate],
        size: usize,
        devices: &[Device],
        times: &Times,
        options: &SearchOptions,
    ) -> Result<Estimate, String> {
        let nodes = graph.nodes.len();
        let first_cut = cuts.first().map_or(0, |cut| cut.node);
        let mut seconds =
            vec![[vec![0.0; nodes], vec![0.0; nodes], vec![0.0; nodes]]; devices.len()];
        let mut unsupported = vec![Vec::new(); devices.len()];
        let mut saved = vec![0u64; nodes];
        for part in [0..first_cut, first_cut..nodes] {
            if part.is_empty() {
                continue;
            }
            let (stage, programs) = stage_of(graph, part)?;
            let sized = SizedStage::new(&stage, &programs, size, times, options)?;
            for (kind, program) in sized.programs.iter().enumerate() {
                for (signature, origin) in program {
                    let origin = *origin as usize;
                    for (device, (seconds, unsupported)) in
                        seconds.iter_mut().zip(&mut unsupported).enumerate()
                    {
                        match times.seconds(device, *signature) {
                            None => unsupported.push((origin, *signature)),
                            Some(time) => {
                                if let Some(slot) =
                                    seconds.get_mut(kind).and_then(|list| list.get_mut(origin))
                                {
                                    *slot += time;
                                }
                            }
                        }
                    }
                }
            }
            for program in [&programs.forward, &programs.backward] {
                add_saved(program, size, &mut saved);
            }
        }
        for list in &mut unsupported {
            list.sort_unstable();
        }

        let (mut weights, mut parameters) = (vec![0u64; nodes], vec![0u64; nodes]);
        let mut data = Vec::new();
        for input in &graph.inputs {
            let Some(ty) = graph.ty(input.value) else {
                continue;
            };
            let bytes = ty.bytes(size).unwrap_or(u64::MAX);
            let reads = |node: &outboard_graph::Node| node.operands.contains(&Some(input.value));
            let readers: Vec<usize> = graph
                .nodes
                .iter()
                .enumerate()
                .filter(|(_, node)| reads(node))
                .map(|(index, _)| index)
                .collect();
            match input.kind {
                InputKind::Data => data.push((bytes, readers)),
                _ => {
                    for reader in readers {
                        add(&mut weights, reader, bytes);
                        if input.kind == InputKind::Parameter {
                            add(
                                &mut parameters,
                                reader,
                                ty.elements(size).unwrap_or(u64::MAX),
                            );
                        }
                    }
                }
            }
        }

        let mut crossing = vec![(0u64, 0u64); nodes + 1];
        for cut in cuts {
            let Some(slot) = crossing.get_mut(cut.node) else {
                continue;
            };
            for value in &cut.crossing {
                let bytes = wire_bytes(&value.ty, size, options.wire_f32_bytes);
                slot.0 = slot.0.saturating_add(bytes);
                if value.differentiable {
                    slot.1 = slot.1.saturating_add(bytes);
                }
            }
        }
        Ok(Estimate {
            seconds: seconds
                .into_iter()
                .map(|kinds| kinds.map(|list| prefix_seconds(&list)))
                .collect(),
            unsupported,
            action_seconds: devices
                .iter()
                .map(|device| device.profile.action_seconds)
                .collect(),
            saved: prefix(&saved),
            weights: prefix(&weights),
            parameters: prefix(&parameters),
            data,
            crossing,
        })
    }

    pub(crate) fn stage(
        &self,
        nodes: Range<usize>,
        device: usize,
        times: &Times,
        options: &SearchOptions,
    ) -> Result<StageNumbers, String> {
        let unsupported = self.unsupported.get(device).ok_or("a device is missing")?;
        let first = unsupported.partition_point(|(origin, _)| *origin < nodes.start);
        if let Some((origin, signature)) = unsupported.get(first)
            && *origin < nodes.end
        {
            return Err(times.cannot_run(device, *signature));
        }
        let kinds = self.seconds.get(device).ok_or("a device is missing")?;
        let action = self.action_seconds.get(device).copied().unwrap_or(0.0);
        let [forward, backward, weight] = kinds
            .each_ref()
            .map(|list| at(list, nodes.end) - at(list, nodes.start));
        let between = |list: &[u64]| at(list, nodes.end).saturating_sub(at(list, nodes.start));
        let crossing = |cut: usize| self.crossing.get(cut).copied().unwrap_or_default();
        let input_bytes = self
            .data
            .iter()
            .filter(|(_, readers)| {
                readers
                    .get(readers.partition_point(|reader| *reader < nodes.start))
                    .is_some_and(|reader| *reader < nodes.end)
            })
            .fold(0u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
        let parameters = between(&self.parameters);
        let (weight_bytes, saved_bytes) = (between(&self.weights), between(&self.saved));
        let received = crossing(nodes.start).0;
        let sent = crossing(nodes.end).0;
        let mut numbers = StageNumbers {
            seconds: match nodes.start {
                0 => [forward, 0.0, backward + weight],
                _ => [forward, backward, weight],
            },
            input_bytes,
            activation_bytes: sent,
            cotangent_bytes: crossing(nodes.start).1,
            saved_bytes,
            weight_bytes,
            gradient_bytes: parameters.saturating_mul(4),
            optimizer_bytes: parameters
                .saturating_mul(4)
                .saturating_mul(options.optimizer_state_tensors),
            // What goes into `F` and comes out of it is there at once at the end.
            program_bytes: [weight_bytes, saved_bytes, received, sent]
                .into_iter()
                .fold(0, u64::saturating_add),
            parameters,
            ..StageNumbers::default()
        };
        add_overhead(
            &mut numbers,
            action,
            times.sum_seconds.get(device).copied().unwrap_or(0.0),
            options,
        );
        Ok(numbers)
    }
}

fn add(list: &mut [u64], at: usize, bytes: u64) {
    if let Some(slot) = list.get_mut(at) {
        *slot = slot.saturating_add(bytes);
    }
}

/// Adds the bytes of each saved value to the origin of the node that makes it; inputs that are saved belong to no node.
fn add_saved(program: &Graph, size: usize, saved: &mut [u64]) {
    let outputs = program
        .outputs
        .iter()
        .filter(|output| output.kind == OutputKind::Saved);
    for output in outputs {
        let maker = program
            .nodes
            .iter()
            .find(|node| node.results.contains(&output.value));
        if let (Some(node), Some(bytes)) = (
            maker,
            program.ty(output.value).and_then(|ty| ty.bytes(size)),
        ) {
            add(saved, node.origin as usize, bytes);
        }
    }
}

fn prefix(list: &[u64]) -> Vec<u64> {
    let mut sum = 0u64;
    std::iter::once(0)
        .chain(list.iter().map(|value| {
            sum = sum.saturating_add(*value);
            sum
        }))
        .collect()
}

fn prefix_seconds(list: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    std::iter::once(0.0)
        .chain(list.iter().map(|value| {
            sum += value;
            sum
        }))
        .collect()
}

fn at<T: Copy + Default>(list: &[T], index: usize) -> T {
    list.get(index).copied().unwrap_or_default()
}
