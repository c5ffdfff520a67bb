//! From arguments to a plan: measure what is not known, search, show.

use anyhow::Result;
use comfy_table::{Table, presets};
use outboard_host::{Host, Placement, Rehearsal};
use outboard_plan::{MicroBatches, Plan, SearchOptions, UseDevices, micro_batch_sizes};
use outboard_schedule::{DrawOptions, ScheduleKind, Timeline, draw};
use outboard_wire::TensorEncoding;

use crate::arguments::{PipelineArguments, Use, Wire};
use crate::events::{self, Event};
use crate::exit::{Usage, require};
use crate::fleet;
use crate::output::{self, Output};
use crate::work::Work;

/// A plan and what it was asked for.
pub(crate) struct Planned {
    /// The plan.
    pub(crate) plan: Plan,
    /// For the run.
    pub(crate) placement: Placement,
    /// Whether the plan chose the number of micro-batches.
    micro_batches_chosen: bool,
}

/// Everything about cuts and schedules that was typed, understood.
pub(crate) fn search_options(
    arguments: &PipelineArguments,
    batch: usize,
    state_tensors: u64,
) -> Result<SearchOptions> {
    let micro_batches = match arguments.micro_batches.as_str() {
        "auto" => MicroBatches::Auto,
        text => match text.parse::<u16>() {
            Ok(count) if count > 0 => MicroBatches::Fixed(count),
            _ => {
                return Err(Usage(format!(
                    "--micro-batches {text}: give a number from 1, or auto"
                ))
                .into());
            }
        },
    };
    let schedule: ScheduleKind = arguments
        .schedule
        .parse()
        .map_err(|error| Usage(format!("--schedule: {error}")))?;
    let cuts = match arguments.cut.as_str() {
        "auto" => None,
        text => Some(cuts(text)?),
    };
    Ok(SearchOptions {
        micro_batches,
        schedule,
        cuts,
        use_devices: match arguments.use_devices {
            Use::Auto => UseDevices::Auto,
            Use::All => UseDevices::All,
        },
        optimizer_state_tensors: state_tensors,
        wire_f32_bytes: match arguments.wire {
            Wire::F32 => 4,
            Wire::F16 | Wire::Bf16 => 2,
        },
        ..SearchOptions::new(batch)
    })
}

/// `40,80`: ascending node numbers.
fn cuts(text: &str) -> Result<Vec<usize>> {
    let numbers: Result<Vec<usize>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    match numbers {
        Ok(cuts) if cuts.windows(2).all(|pair| pair[0] < pair[1]) => Ok(cuts),
        _ => Err(Usage(format!(
            "--cut {text}: give auto, or ascending node numbers such as 40,80"
        ))
        .into()),
    }
}

/// How tensors travel.
pub(crate) fn encoding(wire: Wire) -> TensorEncoding {
    match wire {
        Wire::F32 => TensorEncoding::F32,
        Wire::F16 => TensorEncoding::F16,
        Wire::Bf16 => TensorEncoding::BF16,
    }
}

/// Measures, searches and rehearses. Warns of what was left out, and of batch norm when the plan chose the micro-batches.
pub(crate) fn plan(
    host: &Host,
    work: &Work,
    options: &SearchOptions,
    rehearsal: &Rehearsal,
    cache: Option<&std::path::Path>,
    output: &Output,
) -> Result<Planned> {
    require!(
        options.cuts.as_ref().is_none_or(|cuts| cuts
            .iter()
            .all(|cut| (1..work.graph.nodes.len()).contains(cut))),
        "--cut: {} has {} nodes, so cuts lie between 1 and {}",
        work.graph.name,
        work.graph.nodes.len(),
        work.graph.nodes.len().saturating_sub(1)
    );
    let bar = output.progress(0, "plan");
    let sizes = micro_batch_sizes(options, work.graph.min_batch())?;
    let profiles = host.profile(&work.graph, &sizes, cache, |progress| {
        fleet::show(&bar, &progress)
    });
    let (profiles, warnings) = profiles?;
    for warning in warnings {
        output.warn(warning);
    }
    bar.set_message("searching");
    let plan = host.plan(&work.graph, &profiles, options, rehearsal, |progress| {
        fleet::show(&bar, &progress);
    })?;
    bar.finish_and_clear();
    let placement = Placement::of_plan(&plan, options.schedule);
    let planned = Planned {
        plan,
        placement,
        micro_batches_chosen: options.micro_batches == MicroBatches::Auto,
    };
    planned.announce(output);
    Ok(planned)
}

impl Planned {
    fn announce(&self, output: &Output) {
        for left_out in &self.plan.left_out {
            output.say(left_out.to_string());
            output.event(&Event::LeftOut {
                device: left_out.name.clone(),
                reason: left_out.to_string(),
            });
        }
        if self.micro_batches_chosen {
            output.say(format!(
                "micro-batches: {}, chosen by the plan; statistics of batch norm depend on that choice",
                self.plan.schedule.micro_batches
            ));
        }
        output.event(&Event::Plan(events::Plan {
            schedule: self.plan.schedule.name.clone(),
            micro_batches: self.plan.schedule.micro_batches,
            predicted_seconds_per_step: self.plan.predicted_step_seconds,
            stages: self.stages(),
        }));
    }

    /// Twins of the stages, for `--json`.
    pub(crate) fn stages(&self) -> Vec<events::Stage> {
        self.plan
            .stages
            .iter()
            .map(|stage| {
                let [forward_seconds, backward_seconds, weight_seconds] = stage.seconds;
                events::Stage {
                    device: stage.device_name.clone(),
                    nodes: stage.nodes.len(),
                    parameters: stage.parameters,
                    forward_seconds,
                    backward_seconds,
                    weight_seconds,
                }
            })
            .collect()
    }

    /// The table of stages, for a person.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_HORIZONTAL_ONLY)
            .set_header(Plan::COLUMNS);
        for row in self.plan.rows() {
            table.add_row(row);
        }
        table.to_string()
    }

    /// The predicted step, drawn.
    pub(crate) fn drawing(&self, terminal: &DrawOptions) -> String {
        self.draw(&self.plan.timeline, terminal)
    }

    /// A step of this plan's devices, drawn.
    pub(crate) fn draw(&self, timeline: &Timeline, terminal: &DrawOptions) -> String {
        draw(
            timeline,
            &DrawOptions {
                names: self.plan.device_names(),
                ..terminal.clone()
            },
        )
    }

    /// One line: what, how, how fast.
    pub(crate) fn summary(&self) -> String {
        let stages = self.plan.stages.len();
        format!(
            "{stages} stage{}, schedule {}, {} micro-batches, {} a step predicted",
            if stages == 1 { "" } else { "s" },
            self.plan.schedule.name,
            self.plan.schedule.micro_batches,
            output::seconds(self.plan.predicted_step_seconds)
        )
    }
}
