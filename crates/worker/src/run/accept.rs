//! Tensors that come in: only what is expected, once, in its shape.

use outboard_graph::{DType, TensorType};
use outboard_wire::{DataFrame, DataKind, StateKind, TensorEncoding, WeightSpec};

use super::{ArrivedWeight, Failure, Run, State, Work};
use crate::stage::Port;

impl Run {
    /// Takes a tensor into the mailbox, or says why it cannot be right.
    pub(crate) fn accept(&mut self, frame: DataFrame) -> Result<(), Failure> {
        let header = &frame.header;
        let about = format!(
            "{:?} {:?} for stage {}, micro-batch {}",
            header.kind, header.name, header.stage, header.micro_batch
        );
        match header.kind {
            DataKind::Weight => self.accept_weight(frame, StateKind::Weights, &about),
            DataKind::OptimizerState => self.accept_weight(frame, StateKind::Optimizer, &about),
            DataKind::Input
            | DataKind::Activation
            | DataKind::Cotangent
            | DataKind::SharedGradient => {
                let step = header.step;
                self.check(&frame)
                    .map_err(|reason| Failure::order(format!("{about}: {reason}")).at(step))?;
                if self.mailbox.put(frame) {
                    Ok(())
                } else {
                    Err(Failure::order(format!("{about} came twice")).at(step))
                }
            }
            DataKind::Result | DataKind::Probe => {
                Err(Failure::order(format!("{about} is nothing for a worker")))
            }
        }
    }

    fn accept_weight(
        &mut self,
        frame: DataFrame,
        state: StateKind,
        about: &str,
    ) -> Result<(), Failure> {
        let header = frame.header;
        let key = (header.stage, state, header.name.clone());
        let spec = match &self.state {
            State::Assigned(_) | State::Preparing | State::Loading => {
                self.awaited_weights.remove(&key)
            }
            State::Ready => None,
        };
        let Some(spec) = spec else {
            return Err(Failure::order(format!(
                "{about} is not in the assignment, or came twice"
            )));
        };
        let WeightSpec { dtype, dims, .. } = &spec;
        if header.dtype != *dtype
            || header.dims != *dims
            || header.encoding != TensorEncoding::F32
            || header.payload_bytes() != Some(frame.payload.len() as u64)
        {
            return Err(Failure::order(format!(
                "{about} is {:?} {:?}, announced as {dtype:?} {dims:?} without encoding",
                header.dtype, header.dims
            )));
        }
        self.arrived_weights.push_back(ArrivedWeight {
            stage: header.stage,
            spec,
            payload: frame.payload,
            frame_bytes: frame.frame.len() as u64,
        });
        Ok(())
    }

    /// Whether some action of an open step takes this tensor.
    fn check(&self, frame: &DataFrame) -> Result<(), String> {
        let header = &frame.header;
        let step = self
            .work
            .iter()
            .find_map(|work| match work {
                Work::Step(step) if step.number == header.step => Some(step),
                _ => None,
            })
            .ok_or_else(|| format!("step {} is not open", header.step))?;
        let signature = self
            .stages
            .get(&header.stage)
            .ok_or("this worker does not hold the stage")?;
        if header.kind == DataKind::SharedGradient {
            let dims = self
                .awaited_uses
                .iter()
                .find(|(stage, name, _)| *stage == header.stage && *name == header.name)
                .map(|(_, _, dims)| dims)
                .ok_or("no such use of a shared weight is awaited")?;
            return fits(frame, DType::F32, dims, TensorEncoding::F32);
        }
        let samples = step
            .samples(header.micro_batch)
            .ok_or("the step has fewer micro-batches")?;
        let ports = step
            .ports(signature)
            .ok_or("the stage has no program for this step")?;
        let local = |stage: Option<u16>| stage.is_some_and(|at| self.stages.contains_key(&at));
        let expected: &[Port] = match header.kind {
            DataKind::Input => &ports.data,
            DataKind::Activation if !local(header.stage.checked_sub(1)) => &ports.activations_in,
            DataKind::Cotangent if !local(header.stage.checked_add(1)) => &ports.cotangents_in,
            _ => &[],
        };
        let port = expected
            .iter()
            .find(|port| port.name == header.name)
            .ok_or("the stage takes no such tensor from the link")?;
        let dims = sizes(&port.ty, samples).ok_or("its shape is beyond 64 bits")?;
        let encoding = match header.kind {
            DataKind::Input => TensorEncoding::F32,
            _ if port.ty.dtype != DType::F32 => TensorEncoding::F32,
            _ => self.encoding,
        };
        fits(frame, port.ty.dtype, &dims, encoding)
    }
}

fn sizes(ty: &TensorType, samples: u32) -> Option<Vec<u64>> {
    Some(
        ty.sizes(usize::try_from(samples).ok()?)?
            .into_iter()
            .map(|size| size as u64)
            .collect(),
    )
}

fn fits(
    frame: &DataFrame,
    dtype: DType,
    dims: &[u64],
    encoding: TensorEncoding,
) -> Result<(), String> {
    let header = &frame.header;
    if header.dtype != dtype || header.dims != dims {
        return Err(format!(
            "it is {:?} {:?} instead of {dtype:?} {dims:?}",
            header.dtype, header.dims
        ));
    }
    // Integers and booleans always travel exactly, so a sender may label them either way.
    if header.encoding != encoding && dtype == DType::F32 {
        return Err(format!(
            "it is encoded as {:?} instead of {encoding:?}",
            header.encoding
        ));
    }
    if header.payload_bytes() != Some(frame.payload.len() as u64) {
        return Err(format!("it has {} bytes", frame.payload.len()));
    }
    Ok(())
}
