//! What was measured: devices and links.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// A concrete program in graph text, usually of one node: what a device measures, and the name of its seconds.
///
/// The text is complete (operator, attributes, operand types), so equal work has equal text in every model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpSignature(pub String);

/// What a profile belongs to: another build, engine or thread count has other seconds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceKey {
    /// Stays the same over restarts of the device.
    pub device_id: String,
    /// Version and build of its program.
    pub build: String,
    /// Engine: `cpu`.
    pub engine: String,
    /// Compute threads.
    pub threads: u32,
}

/// What one device can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Whose.
    pub key: DeviceKey,
    /// Median seconds of each program measured.
    pub seconds: BTreeMap<OpSignature, f64>,
    /// Programs that the device cannot run.
    pub unsupported: BTreeSet<OpSignature>,
    /// Bytes that stages may take.
    pub memory_bytes: u64,
    /// Seconds that every action takes on top of its operators: finding it, handing tensors over.
    pub action_seconds: f64,
}

impl DeviceProfile {
    /// A profile in which nothing has been measured yet.
    pub fn new(key: DeviceKey, memory_bytes: u64) -> DeviceProfile {
        DeviceProfile {
            key,
            seconds: BTreeMap::new(),
            unsupported: BTreeSet::new(),
            memory_bytes,
            action_seconds: 0.0,
        }
    }

    /// Those of `wanted` that have not been measured on this device.
    pub fn missing<'a>(&self, wanted: &'a BTreeSet<OpSignature>) -> Vec<&'a OpSignature> {
        let known = |signature: &OpSignature| {
            self.seconds.contains_key(signature) || self.unsupported.contains(signature)
        };
        wanted
            .iter()
            .filter(|signature| !known(signature))
            .collect()
    }

    /// Takes in a measurement; `None` is a program that the device cannot run. A time that is negative or not finite is
    /// no measurement and is dropped.
    pub fn record(&mut self, signature: OpSignature, seconds: Option<f64>) {
        match seconds {
            None => {
                self.unsupported.insert(signature);
            }
            Some(seconds) if seconds.is_finite() && seconds >= 0.0 => {
                self.seconds.insert(signature, seconds);
            }
            Some(_) => {}
        }
    }
}

/// What a link between a device and the host can do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkProfile {
    /// From the device to the host.
    pub up_bytes_per_second: f64,
    /// From the host to the device.
    pub down_bytes_per_second: f64,
    /// One way.
    pub latency_seconds: f64,
    /// Compute time that the device loses to every byte it sends or receives: copies and checks on its only core.
    pub device_seconds_per_byte: f64,
}

/// A device that a plan may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// For people; in plans, tables and reasons.
    pub name: String,
    /// What it can do.
    pub profile: DeviceProfile,
    /// Its link to the host; `None` computes in the host's own process.
    pub link: Option<LinkProfile>,
}
