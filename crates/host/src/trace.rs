//! Step reports as Chrome/Perfetto trace events (`chrome://tracing`, `ui.perfetto.dev`).
//!
//! One track a device with a slice an action and the optimizer's update, and one track for each direction of each link with a
//! slice a tensor. Times are microseconds on the host's clock. The format is the JSON array of "Trace Event Format" (Google,
//! 2016), whose closing bracket may be missing: a trace of an interrupted run opens too.

use std::io::{self, Write};

use outboard_schedule::Kind;
use serde_json::{Value, json};

use crate::{DeviceId, StepReport, Transfer};

/// Process of the device tracks.
const DEVICES: u32 = 1;
/// Process of the link tracks.
const LINKS: u32 = 2;

/// Writes a trace, a step at a time.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    out: W,
    begun: bool,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace of devices with these names, in the order given to [`crate::Host::connect`].
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn new(out: W, names: &[String]) -> io::Result<Self> {
        let mut trace = TraceWriter { out, begun: false };
        for (process, name) in [(DEVICES, "devices"), (LINKS, "links")] {
            trace.event(&json!({
                "ph": "M", "pid": process, "name": "process_name", "args": { "name": name },
            }))?;
        }
        for (index, name) in names.iter().enumerate() {
            trace.name_track(DEVICES, index, name)?;
            trace.name_track(LINKS, 2 * index, &format!("to {name}"))?;
            trace.name_track(LINKS, 2 * index + 1, &format!("from {name}"))?;
        }
        Ok(trace)
    }

    /// Adds a step.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn step(&mut self, report: &StepReport) -> io::Result<()> {
        for device in &report.devices {
            let DeviceId(track) = device.device;
            for timed in &device.actions {
                let category = match timed.action.kind {
                    Kind::Forward => "forward",
                    Kind::Backward => "backward",
                    Kind::Weight => "weight",
                };
                self.event(&json!({
                    "ph": "X", "pid": DEVICES, "tid": track,
                    "name": timed.action.to_string(), "cat": category,
                    "ts": timed.start.as_micros() as u64, "dur": timed.duration.as_micros() as u64,
                    "args": { "step": report.step },
                }))?;
            }
            let last = device
                .actions
                .iter()
                .map(|timed| timed.start + timed.duration)
                .max();
            if let Some(last) = last
                && device.update_seconds > 0.0
            {
                // The update follows the commit, which waits for the last device's gradients.
                let micros = (device.update_seconds * 1e6) as u64;
                let ended = report.ended.as_micros() as u64;
                self.event(&json!({
                    "ph": "X", "pid": DEVICES, "tid": track, "name": "update", "cat": "update",
                    "ts": ended.saturating_sub(micros).max(last.as_micros() as u64), "dur": micros,
                    "args": { "step": report.step },
                }))?;
            }
            self.event(&json!({
                "ph": "C", "pid": DEVICES, "tid": track, "name": format!("memory of device {track}"),
                "ts": report.ended.as_micros() as u64, "args": { "bytes": device.peak_bytes },
            }))?;
        }
        for transfer in &report.transfers {
            if let Some(to) = transfer.to {
                self.transfer(report.step, 2 * to.0, transfer)?;
            }
            if let Some(from) = transfer.from {
                self.transfer(report.step, 2 * from.0 + 1, transfer)?;
            }
        }
        Ok(())
    }

    /// Ends the trace and gives the writer back.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        writeln!(self.out, "\n]")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn transfer(&mut self, step: u64, track: usize, transfer: &Transfer) -> io::Result<()> {
        let queued = transfer.queued.as_micros() as u64;
        let written = transfer.written.as_micros() as u64;
        self.event(&json!({
            "ph": "X", "pid": LINKS, "tid": track,
            "name": format!("{:?} {}.{}", transfer.kind, transfer.stage, transfer.micro_batch),
            "cat": "transfer", "ts": queued, "dur": written.saturating_sub(queued),
            "args": { "step": step, "bytes": transfer.bytes },
        }))
    }

    fn name_track(&mut self, process: u32, track: usize, name: &str) -> io::Result<()> {
        self.event(&json!({
            "ph": "M", "pid": process, "tid": track, "name": "thread_name", "args": { "name": name },
        }))
    }

    fn event(&mut self, event: &Value) -> io::Result<()> {
        let separator = if std::mem::replace(&mut self.begun, true) {
            ",\n"
        } else {
            "[\n"
        };
        write!(self.out, "{separator}{event}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outboard_schedule::Action;
    use outboard_wire::DataKind;

    use super::*;
    use crate::{DeviceStep, TimedAction};

    #[test]
    fn a_trace_has_a_track_a_device_and_a_slice_an_action() {
        let millis = Duration::from_millis;
        let report = StepReport {
            step: 4,
            loss: 1.0,
            sizes: vec![2],
            grad_norm: 1.0,
            gradient_scale: 1.0,
            learning_rate: 0.1,
            seconds: 0.010,
            started: millis(0),
            ended: millis(10),
            devices: vec![DeviceStep {
                device: DeviceId(1),
                actions: vec![TimedAction {
                    action: Action {
                        stage: 1,
                        kind: Kind::Forward,
                        micro_batch: 0,
                    },
                    start: millis(2),
                    duration: millis(3),
                }],
                update_seconds: 0.001,
                peak_bytes: 77,
                heat: None,
            }],
            transfers: vec![Transfer {
                from: Some(DeviceId(0)),
                to: Some(DeviceId(1)),
                kind: DataKind::Activation,
                stage: 1,
                micro_batch: 0,
                bytes: 64,
                queued: millis(1),
                written: millis(2),
            }],
        };
        let mut trace = TraceWriter::new(Vec::new(), &["host".into(), "phone".into()]).unwrap();
        trace.step(&report).unwrap();
        let text = String::from_utf8(trace.finish().unwrap()).unwrap();
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        let named = |name: &str| -> Vec<&Value> {
            events
                .iter()
                .filter(|event| event["name"] == name)
                .collect()
        };
        assert_eq!(named("thread_name").len(), 6);
        let slice = named("1F0");
        assert_eq!(slice.len(), 1);
        assert_eq!(
            (&slice[0]["tid"], &slice[0]["ts"], &slice[0]["dur"]),
            (&json!(1), &json!(2000), &json!(3000))
        );
        assert_eq!(named("update")[0]["ts"], json!(9000));
        // The sender's way out and the receiver's way in.
        let tracks: Vec<&Value> = named("Activation 1.0")
            .iter()
            .map(|event| &event["tid"])
            .collect();
        assert_eq!(tracks, [&json!(2), &json!(1)]);
    }
}
