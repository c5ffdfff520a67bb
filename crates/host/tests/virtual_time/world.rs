//! Devices, the hosts that come to them, and what becomes of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outboard_graph::{Tensor, weights_sha256};
use outboard_host::core::{Command, Report};
use outboard_host::{RunError, RunOptions, assign};
use outboard_testkit::{FakeDevice, LinkId, LinkProfile, Network, NodeId, Noise};
use outboard_wire::{StateKind, StepMode};

use super::device::Device;
use super::host::Host;
use super::party::Party;
use crate::models::batch;

/// Longer than anything here takes that goes well.
const LONG: Duration = Duration::from_secs(120);

/// Samples of each step's batch: three micro-batches, uneven ones, and fewer than the schedule was made for.
const BATCHES: [usize; 3] = [6, 7, 2];

/// Devices on a network, without a host.
pub(crate) struct World {
    pub(crate) network: Network<Party>,
    pub(crate) devices: Vec<NodeId>,
    noise: Noise,
}

/// A host that is connected.
pub(crate) struct Connected {
    pub(crate) node: NodeId,
    /// To the devices, in the order in which the host knows them.
    pub(crate) links: Vec<LinkId>,
}

/// What a run comes to; the same wherever it ran.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) losses: Vec<f64>,
    /// Hashes of weights, optimizer state and results of an evaluation.
    pub(crate) weights: [u8; 32],
    pub(crate) state: [u8; 32],
    pub(crate) results: [u8; 32],
}

impl World {
    /// Devices of all kinds: each with its own pace, and its own idea of what time it is.
    pub(crate) fn new(seed: u64, devices: usize) -> Self {
        let mut noise = Noise::new(seed ^ 0x5eed);
        let mut network = Network::new(seed);
        let devices = (0..devices)
            .map(|index| {
                // From 50 us to 13 ms a job.
                let usual = Duration::from_micros(50 << noise.below(9));
                let hot_from = noise.duration(Duration::from_secs(1));
                let pace = FakeDevice::new(noise.bits(), usual)
                    .with_pace("prepare", 4 * usual)
                    .with_jitter(noise.fraction())
                    .slower_from(hot_from, 1.0 + noise.fraction());
                let ahead = noise.duration(Duration::from_secs(1_000_000));
                let device = Device::new(name(index), pace, ahead);
                network.add(Party::Device(Box::new(device)))
            })
            .collect();
        World {
            network,
            devices,
            noise,
        }
    }

    /// Starts a host that connects to these devices, in this order, and waits until all have said hello.
    pub(crate) fn connect(&mut self, devices: &[usize]) -> Connected {
        let now = self.network.now();
        let names = devices.iter().map(|device| name(*device)).collect();
        let host = Party::Host(Box::new(Host::new(now, names)));
        let node = self.network.add(host);
        let mut links = Vec::new();
        for device in devices {
            let profile = self.link_profile();
            let at = now + self.noise.duration(Duration::from_millis(100));
            let link = self.network.link(node, self.devices[*device], profile, at);
            links.push(link);
            self.network.act(node, |party, _| {
                party.host_mut().add_link(link);
                Vec::new()
            });
        }
        let count = devices.len();
        let greeted = self.network.run_until(now + LONG, |network| {
            reports(network, node)
                .iter()
                .filter(|(_, report)| matches!(report, Report::Connected { .. }))
                .count()
                == count
        });
        assert!(greeted, "no hello: {:?}", reports(&self.network, node));
        Connected { node, links }
    }

    /// From a cable to a bad radio.
    fn link_profile(&mut self) -> LinkProfile {
        let latency = Duration::from_micros(20 << self.noise.below(10));
        LinkProfile {
            latency,
            jitter: self.noise.duration(4 * latency),
            bytes_per_second: 1e6 * f64::from(1_u32 << self.noise.below(8)),
            piece_bytes: 16 << self.noise.below(8),
        }
    }

    fn command(&mut self, host: &Connected, command: Command) {
        self.network.act(host.node, |party, now| {
            party.host_mut().command(now, command)
        });
    }

    /// Trains on a host's devices, evaluates, brings everything back and frees them.
    pub(crate) fn train(
        &mut self,
        host: &Connected,
        options: &RunOptions,
    ) -> Result<Outcome, RunError> {
        let from = self.reports(host).len();
        self.begin(host, options)?;
        let limit = self.network.now() + LONG;
        let ended = self.network.run_until(limit, |network| {
            reports(network, host.node)[from..]
                .iter()
                .any(|(_, report)| matches!(report, Report::Dropped | Report::Failed(_)))
        });
        let said = &self.reports(host)[from..];
        assert!(ended, "the run does not end: {said:?}");
        outcome(said)
    }

    /// Asks for all that [`World::train`] waits for.
    pub(crate) fn begin(&mut self, host: &Connected, options: &RunOptions) -> Result<(), RunError> {
        let (assignment, spec) = assign(options, host.links.len())?;
        self.command(host, Command::Start(Box::new(spec)));
        let mut scheduled = BTreeSet::new();
        for (step, size) in (0..).zip(BATCHES) {
            let batch = batch(&options.graph, size, step);
            let spec = assignment.step(step, StepMode::Train, &batch, 0.05)?;
            let micro_batches = u16::try_from(spec.sizes.len()).expect("few");
            if scheduled.insert(micro_batches) {
                let schedule = assignment.schedule(micro_batches)?;
                self.command(host, Command::Schedule(schedule));
            }
            self.command(host, Command::Step(Box::new(spec)));
        }
        self.command(host, Command::Fetch(StateKind::Weights));
        self.command(host, Command::Fetch(StateKind::Optimizer));
        let mut inputs = batch(&options.graph, 5, 99);
        inputs.retain(|(name, _)| name == "input");
        let evaluation = assignment.step(0, StepMode::Evaluate, &inputs, 0.0)?;
        self.command(host, Command::Step(Box::new(evaluation)));
        self.command(host, Command::Drop);
        Ok(())
    }

    /// Goes on until these devices hold nothing of any run; whether they do so in time.
    pub(crate) fn frees(&mut self, devices: &[usize], within: Duration) -> bool {
        self.wait(devices, within, Device::is_empty)
    }

    /// Goes on until these devices would serve another host; whether they do so in time.
    pub(crate) fn leaves(&mut self, devices: &[usize], within: Duration) -> bool {
        self.wait(devices, within, |device| {
            device.is_free() && device.is_empty()
        })
    }

    fn wait(
        &mut self,
        devices: &[usize],
        within: Duration,
        until: impl Fn(&Device) -> bool,
    ) -> bool {
        let limit = self.network.now() + within;
        let nodes: Vec<NodeId> = devices.iter().map(|at| self.devices[*at]).collect();
        self.network.run_until(limit, |network| {
            nodes.iter().all(|node| {
                network
                    .node(*node)
                    .is_some_and(|party| until(party.device()))
            })
        })
    }

    /// Everything that a host's application was told.
    pub(crate) fn reports(&self, host: &Connected) -> &[(Duration, Report)] {
        reports(&self.network, host.node)
    }
}

fn name(device: usize) -> String {
    format!("device {device}")
}

fn reports(network: &Network<Party>, host: NodeId) -> &[(Duration, Report)] {
    let party = network.node(host).expect("a node");
    &party.host().reports
}

fn outcome(said: &[(Duration, Report)]) -> Result<Outcome, RunError> {
    let mut losses = Vec::new();
    let mut fetched: BTreeMap<&str, &BTreeMap<String, Tensor>> = BTreeMap::new();
    let mut results = BTreeMap::new();
    for (_, report) in said {
        match report {
            Report::Failed(error) => return Err(error.clone()),
            Report::Stepped(report) => {
                assert_eq!(report.step, losses.len() as u64);
                losses.push(report.loss);
            }
            Report::Fetched { state, tensors } => {
                let which = match state {
                    StateKind::Weights => "weights",
                    StateKind::Optimizer => "state",
                };
                fetched.insert(which, tensors);
            }
            Report::Evaluated { results: of, .. } => {
                for (micro_batch, tensors) in of.iter().enumerate() {
                    for (name, tensor) in tensors {
                        results.insert(format!("{name} {micro_batch}"), tensor.clone());
                    }
                }
            }
            _ => {}
        }
    }
    assert_eq!(losses.len(), BATCHES.len());
    assert_eq!(results.len(), 3);
    Ok(Outcome {
        losses,
        weights: weights_sha256(fetched["weights"]),
        state: weights_sha256(fetched["state"]),
        results: weights_sha256(&results),
    })
}
