//! `outboard plan`.

use anyhow::Result;
use outboard_host::Rehearsal;
use outboard_wire::Optimizer;

use crate::arguments::Plan;
use crate::events::{Done, Event};
use crate::fleet::Fleet;
use crate::output::Output;
use crate::planning;
use crate::resources;
use crate::work::Work;

/// The optimizer that plans are made for: SGD with momentum, the default of `train`.
const OPTIMIZER: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    dampening: 0.0,
    weight_decay: 0.0,
    nesterov: false,
};
const STATE_TENSORS: u64 = 1;

/// Shows who would run what.
pub(crate) fn run(arguments: &Plan, output: &Output) -> Result<()> {
    let work = Work::open(&arguments.work)?;
    let search = planning::search_options(
        &arguments.pipeline,
        arguments.work.batch as usize,
        STATE_TENSORS,
    )?;
    let cache = resources::cache_folder(&arguments.cache);
    let fleet = Fleet::open(&arguments.devices, &arguments.engine, output)?;
    fleet.announce(output);
    output.say(fleet.table());
    let rehearsal = Rehearsal {
        steps: None,
        optimizer: OPTIMIZER,
        encoding: planning::encoding(arguments.pipeline.wire),
    };
    let planned = planning::plan(
        &fleet.host,
        &work,
        &search,
        &rehearsal,
        cache.as_deref(),
        output,
    )?;
    output.say(planned.table());
    output.say(planned.drawing(&output.terminal()));
    output.say(planned.summary());
    output.event(&Event::Done(Done {
        predicted_seconds_per_step: Some(planned.plan.predicted_step_seconds),
        schedule: Some(planned.plan.schedule.name.clone()),
        stages: Some(planned.stages()),
        ..Done::default()
    }));
    Ok(())
}
