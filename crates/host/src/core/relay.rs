//! Tensors between workers: routed by their head, forwarded as they came.

use outboard_wire::{DataFrame, DataKind};

use super::flow::{Body, Outgoing};
use super::net::{Fault, Net, tensor_of};
use super::run::Run;
use super::{Cargo, DeviceId, Route};

impl Run {
    /// Forwards a worker's frame to the device of the stage it is for. The sender's window stays taken until the frame
    /// has left. Only what the stages of this run really exchange is let through, each tensor once.
    pub(super) fn relay(
        &mut self,
        net: &mut Net,
        device: DeviceId,
        frame: DataFrame,
    ) -> Result<(), Fault> {
        let header = &frame.header;
        let in_progress = self.step_in_progress();
        let broke = |net: &Net, what: String| Err(net.protocol(device, in_progress, what));
        let Some(cargo) = Cargo::of(header.kind) else {
            return broke(net, format!("{:?} data for another worker", header.kind));
        };
        let route = Route {
            stage: header.stage,
            cargo,
            name: header.name.clone(),
        };
        if self.spec.routes.get(&route) != Some(&device) {
            return broke(
                net,
                format!(
                    "{cargo:?} `{}` for stage {}, which it does not send",
                    header.name, header.stage
                ),
            );
        }
        let Some(to) = self
            .spec
            .device_of_stage
            .get(usize::from(header.stage))
            .copied()
        else {
            return broke(net, format!("data for stage {}", header.stage));
        };
        let Some(step) = self.steps.iter_mut().find(|step| step.step == header.step) else {
            return broke(
                net,
                format!("data of step {}, which is not in progress", header.step),
            );
        };
        let micro_batch = if cargo == Cargo::SharedGradient {
            0
        } else {
            header.micro_batch
        };
        if usize::from(micro_batch) >= step.sizes.len() {
            return broke(net, format!("data of micro-batch {micro_batch}"));
        }
        if !step.relayed.insert((micro_batch, route)) {
            return broke(
                net,
                format!(
                    "{cargo:?} `{}` of micro-batch {micro_batch} twice",
                    header.name
                ),
            );
        }
        let queued = net.now;
        net.push(
            to,
            Outgoing {
                header: frame.header,
                body: Body::Frame(frame.frame),
                origin: Some(device),
                queued,
            },
        );
        Ok(())
    }

    /// Takes a result of an evaluation.
    pub(super) fn result(
        &mut self,
        net: &mut Net,
        device: DeviceId,
        frame: &DataFrame,
    ) -> Result<(), Fault> {
        let header = &frame.header;
        let in_progress = self.step_in_progress();
        let broke = |net: &Net, what: String| Err(net.protocol(device, in_progress, what));
        debug_assert_eq!(header.kind, DataKind::Result);
        if self.spec.results.get(&header.name) != Some(&device) {
            return broke(
                net,
                format!("a result `{}`, which it does not send", header.name),
            );
        }
        let Some(step) = self.steps.iter_mut().find(|step| step.step == header.step) else {
            return broke(
                net,
                format!("a result of step {}, which is not in progress", header.step),
            );
        };
        let tensor = match tensor_of(frame) {
            Ok(tensor) => tensor,
            Err(what) => return broke(net, format!("result {what}")),
        };
        let Some(results) = step.results.get_mut(usize::from(header.micro_batch)) else {
            return broke(
                net,
                format!("a result of micro-batch {}", header.micro_batch),
            );
        };
        if results.insert(header.name.clone(), tensor).is_some() {
            return broke(net, format!("result `{}` twice", header.name));
        }
        Ok(())
    }
}
