//! Ctrl-C: the first asks the work to save and end, the second ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Exit code of a process that ended by Ctrl-C, by convention 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Whether the person has asked to stop.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for Ctrl-C and polite kill signals from now on.
    pub(crate) fn listen() -> Result<Interrupt> {
        let asked = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&asked);
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::SeqCst) {
                std::process::exit(INTERRUPTED.into());
            }
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(Interrupt(asked))
    }

    /// True once asked.
    pub(crate) fn asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
