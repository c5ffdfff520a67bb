//! Real workers in this process.

use std::time::Duration;

use outboard_exec::CpuExecutor;
use outboard_host::{Connection, DeviceSpec, Host, HostOptions};
use outboard_link::{LinkAddress, ListenOptions, Listener, memory};
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
