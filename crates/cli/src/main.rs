//! The `outboard` binary: parses what was typed, calls the libraries, tells what happened.
//!
//! It promises to have no domain logic of its own: what is trained, planned, sent or measured is decided in the libraries.

mod arguments;
mod bench;
mod demo;
mod devices;
mod evaluation;
mod events;
mod exit;
mod fleet;
mod identity;
mod interrupt;
mod local;
mod optimizer;
mod output;
mod plan;
mod planning;
mod resources;
mod train;
mod work;
mod worker;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::arguments::{Bench, Cli, Command};
use crate::events::Event;
use crate::output::Output;
use crate::train::Ending;

fn main() -> ExitCode {
    resources::keep_memory();
    let command = Cli::parse().command;
    let output = Output::new(match &command {
        Command::Demo(arguments) => arguments.json,
        Command::Worker(arguments) => arguments.json,
        Command::Devices(arguments) => arguments.json,
        Command::Plan(arguments) => arguments.json,
        Command::Train(arguments) => arguments.json,
        Command::Bench(Bench::Step(arguments)) => arguments.work.json,
        Command::Bench(Bench::Ops(arguments)) => arguments.work.json,
    });
    match run(&command, &output) {
        Ok(Ending::Complete) => ExitCode::SUCCESS,
        Ok(Ending::Interrupted) => ExitCode::from(interrupt::INTERRUPTED),
        Err(error) => {
            let code = exit::code(&error);
            output.event(&Event::Error {
                message: format!("{error:#}"),
                exit_code: code,
            });
            output.error(format!("{error:#}"));
            ExitCode::from(code)
        }
    }
}

fn run(command: &Command, output: &Output) -> Result<Ending> {
    match command {
        Command::Train(arguments) => return train::run(arguments, output),
        Command::Demo(arguments) => demo::run(arguments, output)?,
        Command::Worker(arguments) => worker::run(arguments, output)?,
        Command::Devices(arguments) => devices::run(arguments, output)?,
        Command::Plan(arguments) => plan::run(arguments, output)?,
        Command::Bench(arguments) => bench::run(arguments, output)?,
    }
    Ok(Ending::Complete)
}
