//! `outboard devices`.

use anyhow::Result;

use crate::arguments::Devices;
use crate::events::{Done, Event};
use crate::fleet::Fleet;
use crate::output::Output;

/// Shows the devices that answer.
pub(crate) fn run(arguments: &Devices, output: &Output) -> Result<()> {
    let fleet = Fleet::open(&arguments.devices, &arguments.engine, output)?;
    fleet.announce(output);
    output.say(fleet.table());
    output.event(&Event::Done(Done {
        devices: Some(fleet.host.devices().len()),
        ..Done::default()
    }));
    Ok(())
}
