//! What the exit code means, in one place: 0 all was done, 2 bad usage or input, 3 a lost device, 130 stopped by Ctrl-C, 1 anything else.

use std::io::ErrorKind;

use outboard_graph::FileError;
use outboard_host::{CheckpointError, RunError};

/// The person's input cannot be used: an argument, a file, a data set.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Fails with [`Usage`] unless the condition holds.
macro_rules! require {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::exit::Usage(format!($($message)+)).into());
        }
    };
}
pub(crate) use require;

/// The exit code for an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<Usage>()
            || cause.is::<outboard_data::DataError>()
            || cause.is::<outboard_graph::BundleError>()
        {
            return 2;
        }
        if let Some(checkpoint) = cause.downcast_ref::<CheckpointError>() {
            return match checkpoint {
                CheckpointError::Io { source, .. }
                | CheckpointError::File(FileError::Io { source, .. })
                    if source.kind() != ErrorKind::NotFound =>
                {
                    1
                }
                _ => 2,
            };
        }
        if cause.is::<outboard_plan::PlanError>() {
            return 2;
        }
        if let Some(run) = cause.downcast_ref::<RunError>() {
            return match run {
                error if error.is_device_lost() => 3,
                _ => 1,
            };
        }
    }
    1
}
