//! Virtual-time network, fake devices and a hard model for tests.
//!
//! This crate promises that a simulation is a function of its seed: it reads no clock, starts no thread and touches no
//! socket. It moves bytes between nodes and knows nothing of what they mean, so that the real encoders, decoders and
//! state machines run unchanged inside; and it cuts those bytes anywhere, as networks do.

mod device;
mod model;
mod network;
mod noise;

pub use device::FakeDevice;
pub use model::tied;
pub use network::{Effect, Event, LinkId, LinkProfile, Network, Node, NodeId};
pub use noise::Noise;
