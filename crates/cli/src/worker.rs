//! `outboard worker`.

use std::io::Read;

use anyhow::{Context, Result};
use outboard_exec::CpuExecutor;
use outboard_link::{LinkAddress, LinkError, ListenOptions, Listener};
use outboard_worker::serve;

use crate::arguments::Worker;
use crate::events::Event;
use crate::exit::Usage;
use crate::identity;
use crate::output::{self, Output};
use crate::resources;

/// Offers this computer, for ever.
pub(crate) fn run(arguments: &Worker, output: &Output) -> Result<()> {
    let address: LinkAddress = format!("tcp://{}", arguments.listen)
        .parse()
        .map_err(|error: LinkError| Usage(format!("--listen: {error}")))?;
    let name = arguments
        .name
        .clone()
        .unwrap_or_else(identity::computer_name);
    let share = resources::share(&arguments.engine, 1);
    if arguments.exit_with_parent {
        end_with_standard_input()?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the worker's input and output")?;
    runtime.block_on(async {
        let options = ListenOptions {
            allow_non_loopback: arguments.insecure_listen,
        };
        let listener = Listener::bind(&address, options)
            .await
            .map_err(|error| match error {
                LinkError::NotLoopback { .. } => Usage(format!(
                    "{error}; --insecure-listen allows it, for networks where you trust everyone"
                )),
                error => Usage(error.to_string()),
            })?;
        output.say(format!(
            "{name} listens on {}: {} thread{}, {} for stages",
            listener.address(),
            share.threads,
            if share.threads == 1 { "" } else { "s" },
            output::bytes(share.memory)
        ));
        output.say(format!(
            "on the host: outboard train resnet18 --device {}",
            listener.address()
        ));
        output.event(&Event::Listening {
            address: listener.address().to_string(),
            name: name.clone(),
        });
        let engine =
            CpuExecutor::with_threads(share.threads).convolving(arguments.engine.conv.into());
        serve(listener, engine, identity::worker_options(name, share))
            .await
            .context("the worker stopped")
    })
}

/// Ends this process when its standard input does: the process that started it holds the other end.
fn end_with_standard_input() -> Result<()> {
    std::thread::Builder::new()
        .name("parent".to_owned())
        .spawn(|| {
            let mut nothing = [0; 64];
            while matches!(std::io::stdin().read(&mut nothing), Ok(read) if read > 0) {}
            std::process::exit(0);
        })
        .context("cannot watch the process that started this worker")?;
    Ok(())
}
