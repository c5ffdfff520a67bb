//! Measurements for the planner: which programs a device has not timed yet, and the plan.

use std::collections::BTreeMap;
use std::path::Path;

use outboard_graph::Graph;
use outboard_plan::{
    Cached, Device, DeviceKey, DeviceProfile, LinkProfile, OpSignature, Plan, ProfileCache,
    SearchOptions, search, signatures,
};

use crate::core::{Command, Report};
use crate::{DeviceId, DeviceInfo, Host, Progress, RunError};

/// Programs timed in one go: few enough that progress shows and no device seems stalled.
const PROGRAMS: usize = 16;

/// One device's part of a profile.
struct Pending {
    profile: DeviceProfile,
    missing: Vec<OpSignature>,
    done: usize,
    asked: Vec<OpSignature>,
}

impl Host {
    /// Measures every program of one node that stages of `graph` can have at these micro-batch sizes, on every device that has
    /// not measured it before, all devices at once, as in a run. With a `cache` folder, what was measured before is taken
    /// from there, and what is measured now is kept.
    ///
    /// Gives the devices' profiles in their order, and what could not be read or written of the cache, for people: a run
    /// does not fail for that.
    ///
    /// # Errors
    ///
    /// A lost device; [`RunError::Plan`] for a model without gradients; [`RunError::Usage`] during a run.
    pub fn profile(
        &self,
        graph: &Graph,
        micro_batch_sizes: &[usize],
        cache: Option<&Path>,
        mut progress: impl FnMut(Progress),
    ) -> Result<(Vec<DeviceProfile>, Vec<String>), RunError> {
        let _claim = self.shared.claim()?;
        let wanted = signatures(graph, micro_batch_sizes)
            .map_err(|error| RunError::Plan(error.to_string()))?;
        let cache = cache.map(ProfileCache::new);
        let mut warnings = Vec::new();
        let mut pending: BTreeMap<DeviceId, Pending> = BTreeMap::new();
        for device in self.devices() {
            let key = key(device);
            let memory_bytes = device.hello.memory_bytes;
            let mut profile = match cache.as_ref().map(|cache| cache.load(&key)) {
                Some(Cached::Found(profile)) => profile,
                Some(Cached::Ignored { path, reason }) => {
                    warnings.push(format!("{} is measured again: {reason}", path.display()));
                    DeviceProfile::new(key, memory_bytes)
                }
                Some(Cached::Absent) | None => DeviceProfile::new(key, memory_bytes),
            };
            profile.memory_bytes = memory_bytes;
            let missing = profile.missing(&wanted).into_iter().cloned().collect();
            pending.insert(
                device.id,
                Pending {
                    profile,
                    missing,
                    done: 0,
                    asked: Vec::new(),
                },
            );
        }
        let mut running = 0;
        for (device, part) in &mut pending {
            running += usize::from(self.ask(*device, part, &mut progress)?);
        }
        while running > 0 {
            let Report::Profiled { device, seconds } = self.shared.receive()? else {
                continue;
            };
            let Some(part) = pending.get_mut(&device) else {
                continue;
            };
            part.done += seconds.len();
            for (signature, seconds) in part.asked.drain(..).zip(seconds) {
                part.profile.record(signature, seconds);
            }
            if self.ask(device, part, &mut progress)? {
                continue;
            }
            running -= 1;
            if let Some(Err(error)) = cache.as_ref().map(|cache| cache.save(&part.profile)) {
                warnings.push(error.to_string());
            }
        }
        Ok((
            pending.into_values().map(|part| part.profile).collect(),
            warnings,
        ))
    }

    /// Asks a device for its next programs; false when none are left.
    fn ask(
        &self,
        device: DeviceId,
        part: &mut Pending,
        progress: &mut impl FnMut(Progress),
    ) -> Result<bool, RunError> {
        let total = part.done + part.missing.len();
        if total > 0 {
            let name = self
                .devices()
                .get(device.0)
                .map(|device| device.name.clone());
            progress(Progress::Profiling {
                device: name.unwrap_or_default(),
                done: part.done,
                total,
            });
        }
        if part.missing.is_empty() {
            return Ok(false);
        }
        part.asked = part
            .missing
            .split_off(part.missing.len().saturating_sub(PROGRAMS));
        let programs = part
            .asked
            .iter()
            .map(|signature| signature.0.clone())
            .collect();
        self.shared.send(Command::Profile { device, programs })?;
        Ok(true)
    }

    /// The fastest plan of `graph` by what single operators take.
    pub(crate) fn search(
        &self,
        graph: &Graph,
        profiles: &[DeviceProfile],
        options: &SearchOptions,
    ) -> Result<Plan, RunError> {
        let devices: Vec<Device> = self
            .devices()
            .iter()
            .zip(profiles)
            .map(|(device, profile)| Device {
                name: device.name.clone(),
                profile: profile.clone(),
                link: (!device.in_process).then_some(LinkProfile {
                    up_bytes_per_second: device.link.to_host_bytes_per_second,
                    down_bytes_per_second: device.link.to_worker_bytes_per_second,
                    latency_seconds: device.link.latency_seconds,
                    // A device's link has a thread of its own beside those that compute.
                    device_seconds_per_byte: 0.0,
                }),
            })
            .collect();
        search(graph, &devices, options).map_err(|error| RunError::Plan(error.to_string()))
    }
}

fn key(device: &DeviceInfo) -> DeviceKey {
    DeviceKey {
        device_id: device.hello.device_id.clone(),
        build: device.hello.build.clone(),
        engine: device.hello.engine.clone(),
        threads: device.hello.threads,
    }
}
