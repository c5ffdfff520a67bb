//! Whoever sits at a node of the network.

use std::time::Duration;

use outboard_testkit::{Effect, Event, Node};

use super::device::Device;
use super::host::Host;

/// A process that talks over links.
pub(crate) enum Party {
    Host(Box<Host>),
    Device(Box<Device>),
}

impl Node for Party {
    fn handle(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        match self {
            Party::Host(host) => host.handle(now, event),
            Party::Device(device) => device.handle(now, event),
        }
    }
}

impl Party {
    pub(crate) fn host(&self) -> &Host {
        match self {
            Party::Host(host) => host,
            Party::Device(_) => panic!("a device, not a host"),
        }
    }

    pub(crate) fn host_mut(&mut self) -> &mut Host {
        match self {
            Party::Host(host) => host,
            Party::Device(_) => panic!("a device, not a host"),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        match self {
            Party::Device(device) => device,
            Party::Host(_) => panic!("a host, not a device"),
        }
    }
}
