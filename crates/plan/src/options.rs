//! What a search is asked for, and whether that can be.

use outboard_schedule::{MAX_MICRO_BATCHES, ScheduleKind};

use crate::candidate::split_batch;
use crate::workload::Workload;
use crate::{Device, PlanError};

/// Micro-batch counts that `auto` tries.
const COUNTS: [u16; 8] = [1, 2, 4, 6, 8, 12, 16, 32];

/// Number of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroBatches {
    /// This many, or the most that the batch and the model allow.
    Fixed(u16),
    /// The fastest. Statistics of batch normalisation then depend on the choice.
    Auto,
}

/// Whether devices may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseDevices {
    /// A device that would slow the run is left out.
    Auto,
    /// Every device gets a stage.
    All,
}

/// What a search is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// Samples of a step.
    pub batch: usize,
    /// Micro-batches of a step.
    pub micro_batches: MicroBatches,
    /// Kind of schedule.
    pub schedule: ScheduleKind,
    /// Cuts, as node indices of the canonical graph; nothing lets the search choose.
    pub cuts: Option<Vec<usize>>,
    /// Whether devices may be left out.
    pub use_devices: UseDevices,
    /// Tensors of optimizer state for each parameter: 0 (plain SGD) to 3 (Adam with `amsgrad`).
    pub optimizer_state_tensors: u64,
    /// Bytes of an `f32` element on the wire: 4, or 2 for `f16` and `bf16`.
    pub wire_f32_bytes: u64,
    /// Compute time that the host's own stage loses to every byte that the host sends or receives.
    pub host_seconds_per_byte: f64,
    /// Time of the host between the last gradient report and the commit.
    pub commit_seconds: f64,
}

impl SearchOptions {
    /// Four micro-batches, everything else chosen by the search, exact tensors on the wire, one tensor of optimizer state.
    pub fn new(batch: usize) -> SearchOptions {
        SearchOptions {
            batch,
            micro_batches: MicroBatches::Fixed(4),
            schedule: ScheduleKind::Auto,
            cuts: None,
            use_devices: UseDevices::Auto,
            optimizer_state_tensors: 1,
            wire_f32_bytes: 4,
            host_seconds_per_byte: 0.0,
            commit_seconds: 0.0,
        }
    }
}

/// The micro-batch sizes that a search with these options may use, for [`signatures`](crate::signatures).
/// `smallest` is the least that the model accepts (`Graph::min_batch`).
///
/// # Errors
/// When the batch is smaller than that.
pub fn micro_batch_sizes(
    options: &SearchOptions,
    smallest: usize,
) -> Result<Vec<usize>, PlanError> {
    let counts = micro_batch_counts(options, smallest)?;
    let mut sizes: Vec<usize> = counts
        .into_iter()
        .flat_map(|count| split_batch(options.batch, count))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

pub(crate) fn micro_batch_counts(
    options: &SearchOptions,
    smallest: usize,
) -> Result<Vec<u16>, PlanError> {
    let error = |reason: String| PlanError::MicroBatches {
        batch: options.batch,
        reason,
    };
    let most = options.batch / smallest.max(1);
    if most == 0 {
        return Err(error(format!(
            "the model needs at least {smallest} in each"
        )));
    }
    let most = u16::try_from(most.min(MAX_MICRO_BATCHES)).unwrap_or(u16::MAX);
    match options.micro_batches {
        MicroBatches::Fixed(0) => Err(error("0 were asked for".into())),
        MicroBatches::Fixed(count) => Ok(vec![count.min(most)]),
        MicroBatches::Auto => Ok(COUNTS.into_iter().filter(|count| *count <= most).collect()),
    }
}

pub(crate) fn check_numbers(devices: &[Device], options: &SearchOptions) -> Result<(), PlanError> {
    let number = |what: String, value: f64, good: bool, needs: &'static str| {
        if good && value.is_finite() {
            Ok(())
        } else {
            Err(PlanError::Number { what, value, needs })
        }
    };
    const TIME: &str = "it must be finite and not negative";
    for device in devices {
        let Device {
            name,
            profile,
            link,
        } = device;
        let action = profile.action_seconds;
        number(
            format!("the time of an action on {name}"),
            action,
            action >= 0.0,
            TIME,
        )?;
        for (signature, seconds) in &profile.seconds {
            if !(seconds.is_finite() && *seconds >= 0.0) {
                number(
                    format!("the time of {} on {name}", signature.0),
                    *seconds,
                    false,
                    TIME,
                )?;
            }
        }
        if let Some(link) = link {
            for bandwidth in [link.up_bytes_per_second, link.down_bytes_per_second] {
                number(
                    format!("a bandwidth of {name}"),
                    bandwidth,
                    bandwidth > 0.0,
                    "it must be finite and positive",
                )?;
            }
            for time in [link.latency_seconds, link.device_seconds_per_byte] {
                number(format!("a link time of {name}"), time, time >= 0.0, TIME)?;
            }
        }
    }
    for time in [options.host_seconds_per_byte, options.commit_seconds] {
        number("a time of the host".into(), time, time >= 0.0, TIME)?;
    }
    Ok(())
}

pub(crate) fn check_cuts(
    workload: &dyn Workload,
    devices: usize,
    options: &SearchOptions,
) -> Result<(), PlanError> {
    let fail = |cuts: &[usize], reason| {
        Err(PlanError::Cuts {
            cuts: cuts.to_vec(),
            reason,
        })
    };
    let points = workload.cut_points();
    let Some(cuts) = &options.cuts else {
        return match options.use_devices {
            UseDevices::All if points.len() + 1 < devices => {
                let reason = format!(
                    "the model can be cut into {} stages at the most, for {devices} devices",
                    points.len() + 1
                );
                fail(&[], reason)
            }
            _ => Ok(()),
        };
    };
    if let Some(pair) = cuts.windows(2).find(|pair| pair[0] >= pair[1]) {
        return fail(
            cuts,
            format!("{} does not come before {}; cuts ascend", pair[0], pair[1]),
        );
    }
    if let Some(cut) = cuts.iter().find(|cut| !points.contains(cut)) {
        let below = points.iter().rev().find(|point| *point < cut);
        let above = points.iter().find(|point| *point > cut);
        let near: Vec<String> = below
            .into_iter()
            .chain(above)
            .map(usize::to_string)
            .collect();
        let hint = if near.is_empty() {
            "it cannot be cut at all".into()
        } else {
            format!("the nearest that can be is {}", near.join(" or "))
        };
        return fail(
            cuts,
            format!(
                "the model of {} nodes cannot be cut at {cut}; {hint}",
                workload.nodes()
            ),
        );
    }
    let stages = cuts.len() + 1;
    let several = matches!(
        options.schedule,
        ScheduleKind::Interleaved | ScheduleKind::Auto
    );
    let fits = |devices: usize| stages == devices || (several && stages.is_multiple_of(devices));
    let possible = match options.use_devices {
        UseDevices::All => fits(devices),
        UseDevices::Auto => (1..=devices).any(fits),
    };
    if !possible {
        return fail(
            cuts,
            format!(
                "they make {stages} stages, which do not fit {devices} devices with --schedule {}",
                options.schedule
            ),
        );
    }
    Ok(())
}
