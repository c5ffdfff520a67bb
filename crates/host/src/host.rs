//! The synchronous face of the coordinator: devices, measurements, runs.

use std::sync::{Arc, Mutex, PoisonError};

use outboard_link::Link;
use outboard_wire::DeviceHello;

use crate::core::{Command, DeviceName, Report};
use crate::driver::Handle;
use crate::{DeviceId, HostOptions, LinkMeasure, Progress, Run, RunError, RunOptions};

/// A device to connect to.
#[derive(Debug)]
pub struct DeviceSpec {
    /// Name for people; errors use it. Without one, a device is called by its address until it says its own name.
    pub name: Option<String>,
    /// How to reach it.
    pub connection: Connection,
}

/// How to reach a device.
#[derive(Debug)]
pub enum Connection {
    /// A URL to dial, such as `tcp://10.0.0.7:7070`.
    Url(String),
    /// A link that is there already, such as the host's half of `link::memory` to a worker in this process.
    Link(Link),
}

/// A device that takes part.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Its index in the list that was given.
    pub id: DeviceId,
    /// Its name in that list, or its own.
    pub name: String,
    /// What it said of itself.
    pub hello: DeviceHello,
    /// Its link, measured.
    pub link: LinkMeasure,
    /// Whether it is in this process, at the other end of a [`Connection::Link`].
    pub in_process: bool,
}

/// All devices, and the thread that talks to them. Dropping it takes leave of them.
#[derive(Debug)]
pub struct Host {
    pub(crate) shared: Arc<Shared>,
    devices: Vec<DeviceInfo>,
    options: HostOptions,
}

/// What a host and its run share.
#[derive(Debug)]
pub(crate) struct Shared {
    handle: Mutex<Handle>,
    running: std::sync::atomic::AtomicBool,
}

impl Shared {
    pub(crate) fn send(&self, command: Command) -> Result<(), RunError> {
        self.lock().send(command)
    }

    /// The next report. The core bounds every wait, so this returns.
    pub(crate) fn receive(&self) -> Result<Report, RunError> {
        match self.lock().receive()? {
            Report::Failed(error) => Err(error),
            report => Ok(report),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Handle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the devices for a run or a measurement.
    pub(crate) fn claim(self: &Arc<Self>) -> Result<Claim, RunError> {
        if self.running.swap(true, std::sync::atomic::Ordering::AcqRel) {
            return Err(RunError::Usage(
                "the devices are busy with a run; finish it first".to_owned(),
            ));
        }
        Ok(Claim(Arc::clone(self)))
    }
}

/// The right to talk to the devices, given back when dropped.
#[derive(Debug)]
pub(crate) struct Claim(pub(crate) Arc<Shared>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0
            .running
            .store(false, std::sync::atomic::Ordering::Release);
    }
}

impl Host {
    /// Connects to all devices at once, then measures their links one after another, half a second each at the most.
    ///
    /// # Errors
    ///
    /// The first device that cannot be reached, speaks another version or serves another host; none is kept then.
    pub fn connect(
        devices: Vec<DeviceSpec>,
        options: HostOptions,
        mut progress: impl FnMut(Progress),
    ) -> Result<Host, RunError> {
        let names: Vec<DeviceName> = devices.iter().map(name_of).collect();
        for device in &names {
            progress(Progress::Connecting {
                device: device.text.clone(),
            });
        }
        let in_process: Vec<bool> = devices
            .iter()
            .map(|device| matches!(device.connection, Connection::Link(_)))
            .collect();
        let connections = devices
            .into_iter()
            .map(|device| device.connection)
            .collect();
        let handle = Handle::start(options.clone(), names.clone(), connections)?;
        let shared = Arc::new(Shared {
            handle: Mutex::new(handle),
            running: false.into(),
        });
        let mut hellos = vec![None; names.len()];
        while hellos.iter().any(Option::is_none) {
            if let Report::Connected {
                device,
                name,
                hello,
            } = shared.receive()?
                && let Some(slot) = hellos.get_mut(device.0)
            {
                *slot = Some((name, hello));
            }
        }
        let mut known = Vec::new();
        for (index, (name, hello)) in hellos.into_iter().flatten().enumerate() {
            let id = DeviceId(index);
            progress(Progress::Probing {
                device: name.clone(),
            });
            let link = probe(&shared, id)?;
            known.push(DeviceInfo {
                id,
                name,
                hello,
                link,
                in_process: in_process.get(index).copied().unwrap_or(false),
            });
        }
        Ok(Host {
            shared,
            devices: known,
            options,
        })
    }

    /// The devices, in the order given.
    pub fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    /// The options given.
    pub fn options(&self) -> &HostOptions {
        &self.options
    }

    /// Measures a link again.
    ///
    /// # Errors
    ///
    /// A lost device; [`RunError::Usage`] during a run.
    pub fn probe(&mut self, device: DeviceId) -> Result<LinkMeasure, RunError> {
        let _claim = self.shared.claim()?;
        let link = probe(&self.shared, device)?;
        if let Some(known) = self.devices.get_mut(device.0) {
            known.link = link;
        }
        Ok(link)
    }

    /// Begins a run: cuts the model, sends every device its stages and weights, and waits until all are ready.
    ///
    /// # Errors
    ///
    /// A model that cannot be cut so, a device over its memory, a lost device; [`RunError::Usage`] during another run.
    pub fn start(&self, run: RunOptions, progress: impl FnMut(Progress)) -> Result<Run, RunError> {
        Run::start(
            self.shared.claim()?,
            &self.devices,
            &self.options,
            run,
            progress,
        )
    }
}

fn name_of(spec: &DeviceSpec) -> DeviceName {
    let address = match &spec.connection {
        Connection::Url(address) => address.clone(),
        Connection::Link(link) => link.peer.to_string(),
    };
    DeviceName {
        text: spec.name.clone().unwrap_or(address),
        until_hello: spec.name.is_none(),
    }
}

fn probe(shared: &Shared, device: DeviceId) -> Result<LinkMeasure, RunError> {
    shared.send(Command::Probe(device))?;
    loop {
        if let Report::Probed {
            device: probed,
            link,
        } = shared.receive()?
            && probed == device
        {
            return Ok(link);
        }
    }
}
