//! Bringing weights or optimizer state back.

use std::collections::{BTreeMap, BTreeSet};

use outboard_graph::Tensor;
use outboard_wire::{DataFrame, DataKind, StateKind, WeightSpec};

use super::net::{Fault, Net, tensor_of};
use super::{DeviceId, RunSpec};

/// A fetch in progress.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) state: StateKind,
    tensors: BTreeMap<String, Tensor>,
    received: BTreeMap<DeviceId, u32>,
    done: BTreeSet<DeviceId>,
}

impl Fetch {
    pub(super) fn new(state: StateKind) -> Self {
        Fetch {
            state,
            tensors: BTreeMap::new(),
            received: BTreeMap::new(),
            done: BTreeSet::new(),
        }
    }

    pub(super) fn is_done(&self, device: DeviceId) -> bool {
        self.done.contains(&device)
    }

    pub(super) fn devices_done(&self) -> usize {
        self.done.len()
    }

    pub(super) fn into_tensors(self) -> BTreeMap<String, Tensor> {
        self.tensors
    }

    /// Takes a tensor, which must be of the device's assignment. A weight that several stages hold comes from each of them
    /// and must be the same everywhere: it is one weight.
    pub(super) fn tensor(
        &mut self,
        device: DeviceId,
        frame: &DataFrame,
        spec: &RunSpec,
    ) -> Result<(), String> {
        let header = &frame.header;
        let wanted = match self.state {
            StateKind::Weights => DataKind::Weight,
            StateKind::Optimizer => DataKind::OptimizerState,
        };
        if header.kind != wanted {
            return Err(format!(
                "{:?} data in a fetch of {:?}",
                header.kind, self.state
            ));
        }
        let weight = match self.state {
            StateKind::Weights => Some(header.name.as_str()),
            // `NAME/STATE`, as in the assignment.
            StateKind::Optimizer => header.name.rsplit_once('/').map(|(name, _)| name),
        };
        let known =
            weight.and_then(|weight| weights_of(spec, device).find(|spec| spec.name == weight));
        let Some(known) = known else {
            return Err(format!("`{}`, which it does not hold", header.name));
        };
        if known.dtype != header.dtype || known.dims != header.dims {
            return Err(format!(
                "`{}` as {} {:?}; it is {} {:?}",
                header.name,
                header.dtype.name(),
                header.dims,
                known.dtype.name(),
                known.dims
            ));
        }
        let tensor = tensor_of(frame)?;
        *self.received.entry(device).or_default() += 1;
        match self.tensors.get(&header.name) {
            Some(other) if *other != tensor => Err(format!(
                "`{}` with other values than another stage that shares it",
                header.name
            )),
            Some(_) => Ok(()),
            None => {
                self.tensors.insert(header.name.clone(), tensor);
                Ok(())
            }
        }
    }

    pub(super) fn device_done(&mut self, device: DeviceId, tensors: u32) -> Result<(), String> {
        let received = self.received.get(&device).copied().unwrap_or(0);
        if received != tensors {
            return Err(format!(
                "Fetched after {received} tensors, it says {tensors}"
            ));
        }
        if !self.done.insert(device) {
            return Err("Fetched twice".to_owned());
        }
        Ok(())
    }

    /// That every weight of the run came. Optimizer state may be missing: there is none before the first step.
    pub(super) fn check(&self, net: &Net, spec: &RunSpec) -> Result<(), Fault> {
        if self.state == StateKind::Optimizer {
            return Ok(());
        }
        for (device, _) in &spec.assigns {
            let missing =
                weights_of(spec, *device).find(|weight| !self.tensors.contains_key(&weight.name));
            if let Some(weight) = missing {
                return Err(net.protocol(
                    *device,
                    None,
                    format!("Fetched without `{}`", weight.name),
                ));
            }
        }
        Ok(())
    }
}

/// All weights of a device's assignment, without optimizer state.
fn weights_of(spec: &RunSpec, device: DeviceId) -> impl Iterator<Item = &WeightSpec> {
    spec.assigns
        .iter()
        .filter(move |(member, _)| *member == device)
        .flat_map(|(_, assign)| &assign.stages)
        .flat_map(|stage| &stage.weights)
        .filter(|weight| weight.state == StateKind::Weights)
}
