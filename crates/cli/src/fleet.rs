//! The devices of a command: this process, the worker processes it starts, and those it dials.

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use indicatif::ProgressBar;
use outboard_exec::CpuExecutor;
use outboard_host::{Connection, DeviceInfo, DeviceSpec, Host, HostOptions, Progress};
use outboard_link::memory;
use outboard_worker::run_link;

use crate::arguments::{Conv, DeviceArguments, EngineArguments};
use crate::events::{self, Event};
use crate::identity;
use crate::local::LocalWorker;
use crate::output::{self, Output};
use crate::resources::{self, Share};

/// The name of the device that is this process.
pub(crate) const HERE: &str = "here";

/// Bytes that may wait between the coordinator and the device that is this process.
const MEMORY_LINK_BYTES: usize = 4 << 20;

/// Connected devices: first this process, then started workers, then dialled ones.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// The coordinator. It is dropped first, so that every device is told to go before its process ends.
    pub(crate) host: Host,
    addresses: Vec<String>,
    _processes: Vec<LocalWorker>,
}

impl Fleet {
    /// Starts and connects everything, and measures the links.
    pub(crate) fn open(
        devices: &DeviceArguments,
        engine: &EngineArguments,
        output: &Output,
    ) -> Result<Fleet> {
        let here = 1 + usize::from(devices.workers);
        let share = resources::share(engine, here);
        let mut processes = Vec::new();
        for number in 1..=devices.workers {
            processes.push(LocalWorker::start(
                &format!("worker-{number}"),
                share,
                engine.conv,
            )?);
        }
        let mut specs = vec![DeviceSpec {
            name: Some(HERE.to_owned()),
            connection: Connection::Link(in_process(share, engine.conv)?),
        }];
        let mut addresses = vec!["mem:here".to_owned()];
        for (number, process) in processes.iter().enumerate() {
            let name = format!("worker-{}", number + 1);
            specs.push(DeviceSpec {
                name: Some(name),
                connection: Connection::Url(process.address.clone()),
            });
            addresses.push(process.address.clone());
        }
        for address in &devices.devices {
            specs.push(DeviceSpec {
                name: None,
                connection: Connection::Url(address.clone()),
            });
            addresses.push(address.clone());
        }
        let options = HostOptions {
            worker_timeout: devices.worker_timeout,
            ..HostOptions::default()
        };
        let bar = output.progress(0, "devices");
        let host = Host::connect(specs, options, |progress| show(&bar, &progress));
        bar.finish_and_clear();
        Ok(Fleet {
            host: host?,
            addresses,
            _processes: processes,
        })
    }

    /// Twins of all devices, for `--json`.
    pub(crate) fn events(&self) -> Vec<events::Device> {
        self.host
            .devices()
            .iter()
            .zip(&self.addresses)
            .map(|(device, address)| twin(device, address))
            .collect()
    }

    /// The table of devices, for a person.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header([
            "device",
            "address",
            "engine",
            "threads",
            "memory",
            "latency",
            "to device",
            "to host",
        ]);
        for device in self.events() {
            table.add_row([
                device.name,
                device.address,
                format!("{} ({})", device.engine, device.hardware),
                device.threads.to_string(),
                output::bytes(device.memory_bytes),
                output::seconds(device.latency_seconds),
                format!("{}/s", output::bytes(device.bytes_per_second_down as u64)),
                format!("{}/s", output::bytes(device.bytes_per_second_up as u64)),
            ]);
        }
        table.to_string()
    }

    /// Tells a program which devices there are.
    pub(crate) fn announce(&self, output: &Output) {
        for device in self.events() {
            output.event(&Event::Device(device));
        }
    }
}

/// Starts the worker that is this process; gives the host's end of its link.
fn in_process(share: Share, conv: Conv) -> Result<outboard_link::Link> {
    let (host_end, worker_end) = memory::pair(HERE, MEMORY_LINK_BYTES);
    let options = identity::worker_options(HERE.to_owned(), share);
    // Its threads end with the link; there is nobody to tell how.
    run_link(
        worker_end,
        CpuExecutor::with_threads(share.threads).convolving(conv.into()),
        options,
    )
    .context("cannot start this process's own worker")?;
    Ok(host_end)
}

fn twin(device: &DeviceInfo, address: &str) -> events::Device {
    events::Device {
        name: device.name.clone(),
        address: address.to_owned(),
        engine: device.hello.engine.clone(),
        hardware: device.hello.hardware.clone(),
        threads: device.hello.threads,
        memory_bytes: device.hello.memory_bytes,
        latency_seconds: device.link.latency_seconds,
        bytes_per_second_up: device.link.to_host_bytes_per_second,
        bytes_per_second_down: device.link.to_worker_bytes_per_second,
    }
}

/// Puts what the host is doing on a bar.
pub(crate) fn show(bar: &ProgressBar, progress: &Progress) {
    match progress {
        Progress::Connecting { device } => bar.set_message(format!("connecting {device}")),
        Progress::Probing { device } => bar.set_message(format!("measuring the link to {device}")),
        Progress::Profiling {
            device,
            done,
            total,
        } => {
            bar.set_message(format!("timing operators on {device}: {done} of {total}"));
        }
        Progress::Rehearsing { done, total } => {
            bar.set_message(format!("rehearsing the plan: step {done} of {total}"));
        }
        Progress::Uploading {
            device,
            sent,
            total,
        } => {
            let (sent, total) = (crate::output::bytes(*sent), crate::output::bytes(*total));
            bar.set_message(format!("sending weights to {device}: {sent} of {total}"));
        }
        _ => {}
    }
}
