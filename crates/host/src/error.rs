//! Why a run ended: who failed, in which step, and what to try.

use outboard_wire::FailureKind;

/// Why something asked of the host did not happen.
///
/// After an error a [`crate::Run`] is over; its devices have been told to free it, and those that still answer can take
/// another run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No link to the device could be made.
    #[error("cannot reach {device} at {address}: {cause}")]
    Unreachable {
        /// Device.
        device: String,
        /// What was dialled.
        address: String,
        /// What the link said.
        cause: String,
    },
    /// The device speaks another version of the protocol.
    #[error(
        "{device} speaks protocol {theirs} (build {build}), this host {ours}: install the same version on both"
    )]
    Version {
        /// Device.
        device: String,
        /// Its version.
        theirs: u16,
        /// Its build.
        build: String,
        /// The host's version.
        ours: u16,
    },
    /// The link to the device ended, or the device stopped answering.
    #[error("lost {device}{}: {cause}; resume from the last checkpoint, with or without it", at_step(.step))]
    DeviceLost {
        /// Device.
        device: String,
        /// The step in progress.
        step: Option<u64>,
        /// End of the stream, a reset, silence.
        cause: String,
    },
    /// The device answers but its work does not advance.
    #[error("{device} made no progress for {seconds} s{}: still waiting for {waiting}", at_step(.step))]
    Stalled {
        /// Device.
        device: String,
        /// The step in progress.
        step: Option<u64>,
        /// What the host waits for.
        waiting: String,
        /// How long it waited.
        seconds: u64,
    },
    /// The device said that it failed.
    #[error("{device} failed{}{}: {message} ({})", at_stage(.stage), at_step(.step), hint(*.kind))]
    Failed {
        /// Device.
        device: String,
        /// Step.
        step: Option<u64>,
        /// Stage.
        stage: Option<u16>,
        /// What kind of thing.
        kind: FailureKind,
        /// The device's own words.
        message: String,
    },
    /// The device sent something that does not fit the conversation.
    #[error("{device} broke the protocol{}: {what}", at_step(.step))]
    Protocol {
        /// Device.
        device: String,
        /// The step in progress.
        step: Option<u64>,
        /// What it sent.
        what: String,
    },
    /// A loss or a gradient is infinite or not a number. No weight has been changed by this step.
    #[error(
        "step {step}: {what} of stage {stage} on {device} is not finite; the weights are those before this step. \
         Try a lower learning rate, clipping, or f32 on the wire"
    )]
    NotFinite {
        /// Step.
        step: u64,
        /// Stage.
        stage: u16,
        /// Device.
        device: String,
        /// `loss` or the name of a parameter.
        what: String,
    },
    /// Weights differ between host and device.
    #[error("{device} holds other weights than the host sent: {what}")]
    Weights {
        /// Device.
        device: String,
        /// What differs.
        what: String,
    },
    /// The batch does not fit the model.
    #[error("this batch does not fit the model: {0}")]
    Batch(String),
    /// The model cannot be cut or trained as asked.
    #[error("{0}")]
    Model(String),
    /// The plan or its schedule does not fit the devices.
    #[error("{0}")]
    Plan(String),
    /// The host was used in an order it cannot serve.
    #[error("{0}")]
    Usage(String),
    /// The coordinator's thread has ended.
    #[error("the coordinator has stopped")]
    Stopped,
}

impl RunError {
    /// Whether a device was lost, as opposed to having failed: another try without it may succeed.
    pub fn is_device_lost(&self) -> bool {
        matches!(
            self,
            RunError::DeviceLost { .. } | RunError::Unreachable { .. } | RunError::Stalled { .. }
        )
    }

    /// The device that failed, if one did.
    pub fn device(&self) -> Option<&str> {
        match self {
            RunError::Unreachable { device, .. }
            | RunError::Version { device, .. }
            | RunError::DeviceLost { device, .. }
            | RunError::Stalled { device, .. }
            | RunError::Failed { device, .. }
            | RunError::Protocol { device, .. }
            | RunError::NotFinite { device, .. }
            | RunError::Weights { device, .. } => Some(device),
            _ => None,
        }
    }
}

fn at_step(step: &Option<u64>) -> String {
    step.map_or_else(String::new, |step| format!(" in step {step}"))
}

fn at_stage(stage: &Option<u16>) -> String {
    stage.map_or_else(String::new, |stage| format!(" in stage {stage}"))
}

/// What a person can do about a failure of this kind.
fn hint(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Busy => "stop the other host, or wait until it is done",
        FailureKind::Protocol => "install the same version on both sides",
        FailureKind::Program => "the device's build may be older than the host's",
        FailureKind::Memory => "use more stages, more micro-batches or a smaller batch",
        FailureKind::Hash => "the link corrupts data, or the two builds differ",
        FailureKind::Compute => {
            "run the same model on the host alone to tell the device from the model"
        }
        FailureKind::Order => "install the same version on both sides",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_device_step_and_what_to_try() {
        let lost = RunError::DeviceLost {
            device: "phone".into(),
            step: Some(7),
            cause: "end of stream".into(),
        };
        assert_eq!(
            lost.to_string(),
            "lost phone in step 7: end of stream; resume from the last checkpoint, with or without it"
        );
        assert!(lost.is_device_lost());
        let failed = RunError::Failed {
            device: "tablet".into(),
            step: None,
            stage: Some(1),
            kind: FailureKind::Memory,
            message: "stage 1 needs 3.1 GiB of 2.0 GiB".into(),
        };
        assert_eq!(
            failed.to_string(),
            "tablet failed in stage 1: stage 1 needs 3.1 GiB of 2.0 GiB (use more stages, more micro-batches or a \
             smaller batch)"
        );
    }
}
