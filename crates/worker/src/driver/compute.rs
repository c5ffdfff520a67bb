//! The compute thread: one job after another, inside a rayon pool of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use outboard_exec::Executor;
use tokio::sync::mpsc;

use super::{WorkerError, WorkerOptions};
use crate::event::{Job, JobDone, JobId};
use crate::runtime::Runtime;

/// The I/O side's hold on the compute thread, which ends when this is dropped.
pub(super) struct Compute {
    jobs: SyncSender<(JobId, Job)>,
    results: mpsc::Receiver<JobDone>,
    cancel: Arc<AtomicBool>,
}

impl Compute {
    pub(super) fn start<E: Executor + 'static>(
        engine: E,
        options: &WorkerOptions,
        epoch: Instant,
    ) -> Result<Self, WorkerError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads.max(1))
            .thread_name(|index| format!("outboard-pool-{index}"))
            .build()
            .map_err(|error| WorkerError::Threads(error.to_string()))?;
        // The core gives out one job at a time, so neither channel ever holds more than one.
        let (jobs, inbox) = sync_channel::<(JobId, Job)>(1);
        let (outbox, results) = mpsc::channel(1);
        let cancel = Arc::new(AtomicBool::new(false));
        let cancelled = cancel.clone();
        let freed = options.freed;
        thread::Builder::new()
            .name("outboard-compute".to_owned())
            .spawn(move || {
                let mut runtime = Runtime::new(engine);
                while let Ok((id, job)) = inbox.recv() {
                    let started = epoch.elapsed();
                    let frees = matches!(job, Job::DropRun | Job::Profile { .. });
                    let result =
                        pool.install(|| runtime.execute(job, &cancelled, &|| epoch.elapsed()));
                    if frees {
                        freed();
                    }
                    let done = JobDone {
                        id,
                        started,
                        took: epoch.elapsed().saturating_sub(started),
                        result,
                    };
                    if outbox.blocking_send(done).is_err() {
                        break;
                    }
                }
            })
            .map_err(super::threads)?;
        Ok(Compute {
            jobs,
            results,
            cancel,
        })
    }

    /// Starts a job.
    pub(super) fn submit(&self, id: JobId, job: Job) -> Result<(), WorkerError> {
        self.cancel.store(false, Ordering::Relaxed);
        self.jobs
            .try_send((id, job))
            .map_err(|_| WorkerError::ComputeGone)
    }

    /// Asks the job in progress to end early.
    pub(super) fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// The next result. May be dropped and called again without losing one.
    pub(super) async fn result(&mut self) -> Result<JobDone, WorkerError> {
        self.results.recv().await.ok_or(WorkerError::ComputeGone)
    }
}
