//! Real workers in this process, and a small model for them.

use std::time::Duration;

use outboard_exec::CpuExecutor;
use outboard_graph::zoo::{self, ZooOptions};
use outboard_graph::{Graph, Tensor, init};
use outboard_host::{Batch, Connection, DeviceSpec, Host, HostOptions, Placement, RunOptions};
use outboard_link::{LinkAddress, ListenOptions, Listener, memory};
use outboard_wire::{Optimizer, TensorEncoding};
use outboard_worker::{WorkerOptions, run_link};

/// Where the workers are.
pub(crate) enum Devices {
    Memory(usize),
    Tcp(Vec<Relay>),
}

/// A worker behind a TCP port. Ending the relay resets the connection, as the death of its process would.
pub(crate) struct Relay {
    address: LinkAddress,
    kill: tokio::sync::watch::Sender<bool>,
}

fn worker_options(index: usize) -> WorkerOptions {
    WorkerOptions {
        name: format!("device {index}"),
        device_id: format!("id {index}"),
        ..WorkerOptions::default()
    }
}

impl Devices {
    pub(crate) fn in_memory(count: usize) -> Devices {
        Devices::Memory(count)
    }

    pub(crate) fn over_tcp(count: usize) -> Devices {
        Devices::Tcp((0..count).map(Relay::start).collect())
    }

    pub(crate) fn connect(&self) -> Host {
        let spec = |index: usize, connection| DeviceSpec {
            name: Some(format!("device {index}")),
            connection,
        };
        let specs = match self {
            Devices::Memory(count) => (0..*count)
                .map(|index| {
                    let (ours, theirs) = memory::pair(&format!("device-{index}"), memory::CAPACITY);
                    run_link(theirs, CpuExecutor::with_threads(1), worker_options(index))
                        .expect("threads");
                    spec(index, Connection::Link(ours))
                })
                .collect(),
            Devices::Tcp(relays) => relays
                .iter()
                .enumerate()
                .map(|(index, relay)| spec(index, Connection::Url(relay.address.to_string())))
                .collect(),
        };
        Host::connect(specs, HostOptions::default(), |_| {}).expect("all devices answer")
    }

    pub(crate) fn kill(&self, index: usize) {
        if let Devices::Tcp(relays) = self {
            relays[index].kill.send(true).expect("it lives");
        }
    }
}

impl Relay {
    /// Accepts one host and pipes its bytes to a worker.
    fn start(index: usize) -> Relay {
        let (address_sender, address) = std::sync::mpsc::sync_channel(1);
        let (kill, mut killed) = tokio::sync::watch::channel(false);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let any: LinkAddress = "tcp://127.0.0.1:0".parse().expect("an address");
                let mut listener = Listener::bind(&any, ListenOptions::default())
                    .await
                    .expect("a port");
                address_sender
                    .send(listener.address().clone())
                    .expect("the test waits");
                let mut host = listener.accept().await.expect("a host");
                let (mut ours, theirs) = memory::pair("relay", memory::CAPACITY);
                run_link(theirs, CpuExecutor::with_threads(1), worker_options(index))
                    .expect("threads");
                tokio::select! {
                    _ = tokio::io::copy(&mut host.reader, &mut ours.writer) => {}
                    _ = tokio::io::copy(&mut ours.reader, &mut host.writer) => {}
                    _ = killed.wait_for(|killed| *killed) => {}
                }
            });
        });
        Relay {
            address: address
                .recv_timeout(Duration::from_secs(10))
                .expect("it listens"),
            kill,
        }
    }
}

/// A model of the zoo for tiny images.
pub(crate) fn model(name: &str, options: &ZooOptions) -> Graph {
    let classes = if options.classes == 1000 {
        10
    } else {
        options.classes
    };
    let options = ZooOptions {
        image_size: 4,
        channels: 1,
        classes,
        ..options.clone()
    };
    zoo::build(name, &options).expect("a model of the zoo")
}

/// A batch that follows from its number.
pub(crate) fn batch(graph: &Graph, size: usize, number: u64) -> Batch {
    graph
        .inputs
        .iter()
        .filter(|input| input.kind == outboard_graph::InputKind::Data)
        .map(|input| {
            let ty = graph.ty(input.value).expect("typed");
            let dims = ty.sizes(size).expect("small");
            let count: usize = dims.iter().product();
            let noise = |index: usize| {
                let x = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (number << 32));
                (x >> 40) % 1000
            };
            let tensor = match ty.dtype {
                outboard_graph::DType::I64 => {
                    let values: Vec<i64> = (0..count).map(|i| (noise(i) % 10) as i64).collect();
                    Tensor::from_i64(dims, &values)
                }
                _ => {
                    let values: Vec<f32> =
                        (0..count).map(|i| noise(i) as f32 / 500.0 - 1.0).collect();
                    Tensor::from_f32(dims, &values)
                }
            };
            (input.name.clone(), tensor.expect("it fits"))
        })
        .collect()
}

/// A run of SGD with momentum from seed 7.
pub(crate) fn run_options(graph: &Graph, placement: Placement) -> RunOptions {
    RunOptions {
        graph: graph.clone(),
        placement,
        weights: init::weights(graph, 7).expect("initial weights"),
        optimizer: Some(Optimizer::Sgd {
            momentum: 0.9,
            dampening: 0.0,
            weight_decay: 1e-4,
            nesterov: false,
        }),
        optimizer_state: Default::default(),
        first_step: 0,
        seed: 7,
        encoding: TensorEncoding::F32,
        clip_norm: Some(1.0),
        largest_batch: 7,
    }
}
