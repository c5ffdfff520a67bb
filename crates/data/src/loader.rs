//! Batches, decoded ahead of their use by threads that hold a bounded number of bytes.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use outboard_graph::{DType, Tensor};

use crate::{DataError, Dataset, Transform, epoch_order};

/// Where a run stands in its data; checkpoints store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Passes over the data that are complete.
    pub epoch: u64,
    /// Batches of this pass that are done.
    pub batch: u64,
}

/// What to do with an image that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnCorrupt {
    /// End with [`DataError::CorruptImage`].
    #[default]
    Fail,
    /// Leave it out of its batch and report it in [`Batch::skipped`].
    Skip,
}

/// How to load.
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// Samples of a batch; the last one of an epoch has what is left.
    pub batch: usize,
    /// Of the order and of random variation.
    pub seed: u64,
    /// Visit the samples in the order of [`epoch_order`], or as they lie.
    pub shuffle: bool,
    /// Where to start.
    pub start: Position,
    /// Where to end: the number of complete passes; `None` goes on for ever.
    pub epochs: Option<u64>,
    /// Threads that decode.
    pub threads: usize,
    /// Most bytes of batches that are being made or wait to be taken; one batch is always allowed. Decoding an image
    /// takes memory beside, at most once for each thread.
    pub memory_bytes: u64,
    /// What to do with an image that cannot be decoded.
    pub on_corrupt: OnCorrupt,
    /// What to make of an image.
    pub transform: Transform,
}

impl LoaderOptions {
    /// Shuffled for ever from the start, one thread, 256 MiB, corrupt images fatal.
    pub fn new(batch: usize, seed: u64, transform: Transform) -> Self {
        Self {
            batch,
            seed,
            shuffle: true,
            start: Position::default(),
            epochs: None,
            threads: 1,
            memory_bytes: 256 << 20,
            on_corrupt: OnCorrupt::Fail,
            transform,
        }
    }

    /// Every sample once, in order: for measuring.
    pub fn once(batch: usize, transform: Transform) -> Self {
        Self {
            shuffle: false,
            epochs: Some(1),
            ..Self::new(batch, 0, transform)
        }
    }
}

/// Samples that were loaded together.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Where it stands.
    pub position: Position,
    /// Where the batch behind it stands: to resume after this one, start there.
    pub next: Position,
    /// `f32[n, channels, height, width]`.
    pub images: Tensor,
    /// `i64[n]`.
    pub targets: Tensor,
    /// The samples' places in the data set.
    pub indices: Vec<usize>,
    /// Samples left out, of this batch and of those before it that had none left.
    pub skipped: Vec<Skipped>,
}

/// A sample that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its place in the data set.
    pub index: usize,
    /// Which file, and why.
    pub reason: String,
}

/// An iterator over batches. What it yields depends on the data, the seed and the position alone.
///
/// After an error it ends. Dropping it stops its threads, after the batches they are at.
#[derive(Debug)]
pub struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Number of the batch to yield next, counted from the beginning of epoch 0.
    next: u64,
    failed: bool,
}

struct Shared {
    dataset: Arc<dyn Dataset>,
    options: LoaderOptions,
    batches_per_epoch: u64,
    /// Number of the batch to end before.
    end: u64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Number of the batch that the next free thread makes.
    next_to_make: u64,
    ready: BTreeMap<u64, Result<Batch, DataError>>,
    /// Of batches that are being made or are ready.
    held_bytes: u64,
    /// The order of the epoch that is being made.
    order: Option<(u64, Arc<Vec<usize>>)>,
    stopped: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("dataset", &self.dataset.info().name)
            .finish_non_exhaustive()
    }
}

impl Loader {
    /// Starts to load.
    ///
    /// # Errors
    /// [`DataError::Options`] when the options do not fit each other or the data.
    pub fn new(dataset: Arc<dyn Dataset>, options: LoaderOptions) -> Result<Self, DataError> {
        let refuse = |reason: String| Err(DataError::Options(reason));
        let (samples, batch) = (dataset.len(), options.batch);
        if batch == 0 || samples == 0 {
            return refuse(format!(
                "cannot make batches of {batch} from {samples} samples"
            ));
        }
        let sample_bytes = options
            .transform
            .elements()
            .saturating_mul(DType::F32.bytes());
        if batch
            .checked_mul(sample_bytes)
            .is_none_or(|bytes| bytes > isize::MAX as usize)
        {
            return refuse(format!(
                "a batch of {batch} images does not fit this machine"
            ));
        }
        let batches_per_epoch = samples.div_ceil(batch) as u64;
        let Position { epoch, batch: done } = options.start;
        if done >= batches_per_epoch {
            return refuse(format!(
                "cannot start at batch {done}: an epoch of {samples} samples has {batches_per_epoch} batches of \
                 {batch}; resume with the batch size and data of the first run"
            ));
        }
        let number = |epoch: u64, batch: u64| {
            epoch
                .checked_mul(batches_per_epoch)
                .and_then(|number| number.checked_add(batch))
        };
        let Some(start) = number(epoch, done) else {
            return refuse(format!("cannot start at epoch {epoch}"));
        };
        let end = options
            .epochs
            .and_then(|epochs| number(epochs, 0))
            .unwrap_or(u64::MAX);
        let thread_count = options.threads.max(1);
        let shared = Arc::new(Shared {
            dataset,
            options,
            batches_per_epoch,
            end,
            state: Mutex::new(State {
                next_to_make: start,
                ready: BTreeMap::new(),
                held_bytes: 0,
                order: None,
                stopped: false,
            }),
            changed: Condvar::new(),
        });
        let mut loader = Self {
            shared,
            threads: Vec::new(),
            next: start,
            failed: false,
        };
        for thread in 0..thread_count {
            let shared = Arc::clone(&loader.shared);
            let spawned = thread::Builder::new()
                .name(format!("loader-{thread}"))
                .spawn(move || shared.make_batches());
            match spawned {
                Ok(handle) => loader.threads.push(handle),
                // Fewer threads than wished for are as good, only slower.
                Err(_) if thread > 0 => break,
                Err(error) => {
                    return refuse(format!("cannot start a thread to load with: {error}"));
                }
            }
        }
        Ok(loader)
    }

    /// Number of batches of an epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        self.shared.batches_per_epoch
    }

    /// Bytes of batches that are being made or wait to be taken.
    pub fn held_bytes(&self) -> u64 {
        self.shared.lock().held_bytes
    }

    /// The next batch as it was made, maybe without a sample.
    fn take(&mut self) -> Option<Result<Batch, DataError>> {
        if self.next >= self.shared.end {
            return None;
        }
        let mut state = self.shared.lock();
        loop {
            if let Some(batch) = state.ready.remove(&self.next) {
                state.held_bytes = state
                    .held_bytes
                    .saturating_sub(self.shared.batch_bytes(self.next));
                self.shared.changed.notify_all();
                self.next += 1;
                return Some(batch);
            }
            state = self
                .shared
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Iterator for Loader {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let mut skipped: Vec<Skipped> = Vec::new();
        let mut empty_batches = 0;
        loop {
            let mut batch = match self.take()? {
                Ok(batch) => batch,
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            };
            skipped.append(&mut batch.skipped);
            if !batch.indices.is_empty() {
                batch.skipped = skipped;
                return Some(Ok(batch));
            }
            empty_batches += 1;
            if empty_batches == self.shared.batches_per_epoch || self.next >= self.shared.end {
                self.failed = true;
                return Some(Err(DataError::NothingReadable {
                    dataset: self.shared.dataset.info().name.clone(),
                    images: skipped.len(),
                    first: skipped
                        .into_iter()
                        .next()
                        .map(|first| first.reason)
                        .unwrap_or_default(),
                }));
            }
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; and if it did, the counts would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life.
    fn make_batches(&self) {
        while let Some((number, order)) = self.claim() {
            let batch = catch_unwind(AssertUnwindSafe(|| self.make(number, &order)))
                .unwrap_or_else(|_| {
                    Err(DataError::Options("a loading thread panicked".to_owned()))
                });
            self.lock().ready.insert(number, batch);
            self.changed.notify_all();
        }
    }

    /// Waits until the next batch fits the memory, and claims it. Batches are claimed in order, so the one that is
    /// taken next is always among those held: the bound cannot lock up.
    fn claim(&self) -> Option<(u64, Arc<Vec<usize>>)> {
        let mut state = self.lock();
        loop {
            if state.stopped || state.next_to_make >= self.end {
                return None;
            }
            let number = state.next_to_make;
            let bytes = self.batch_bytes(number);
            let total = state.held_bytes.saturating_add(bytes);
            if state.held_bytes == 0 || total <= self.options.memory_bytes {
                state.held_bytes = total;
                state.next_to_make += 1;
                let order = self.order(&mut state, number / self.batches_per_epoch);
                return Some((number, order));
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn order(&self, state: &mut State, epoch: u64) -> Arc<Vec<usize>> {
        match &state.order {
            Some((of, order)) if *of == epoch => Arc::clone(order),
            _ => {
                let samples = self.dataset.len();
                let order = Arc::new(if self.options.shuffle {
                    epoch_order(samples, self.options.seed, epoch)
                } else {
                    (0..samples).collect()
                });
                state.order = Some((epoch, Arc::clone(&order)));
                order
            }
        }
    }

    fn position(&self, number: u64) -> Position {
        Position {
            epoch: number / self.batches_per_epoch,
            batch: number % self.batches_per_epoch,
        }
    }

    /// The samples of a batch, as a range of the epoch's order.
    fn range(&self, number: u64) -> std::ops::Range<usize> {
        let first = self.position(number).batch as usize * self.options.batch;
        first..(first + self.options.batch).min(self.dataset.len())
    }

    /// Bytes of a batch's images, targets and indices.
    fn batch_bytes(&self, number: u64) -> u64 {
        let sample = self.options.transform.elements() * DType::F32.bytes()
            + DType::I64.bytes()
            + size_of::<usize>();
        (self.range(number).len() as u64).saturating_mul(sample as u64)
    }

    fn make(&self, number: u64, order: &[usize]) -> Result<Batch, DataError> {
        let Position { epoch, batch: _ } = self.position(number);
        let LoaderOptions {
            transform,
            seed,
            on_corrupt,
            ..
        } = &self.options;
        let wanted = order.get(self.range(number)).unwrap_or_default();
        let mut images =
            Vec::with_capacity(wanted.len() * transform.elements() * DType::F32.bytes());
        let (mut targets, mut indices) = (Vec::new(), Vec::new());
        let mut skipped = Vec::new();
        for &index in wanted {
            match self.dataset.get(index) {
                Ok(sample) => {
                    let pixels = transform.apply(&sample.image, *seed, epoch, index);
                    images.extend(pixels.iter().flat_map(|pixel| pixel.to_le_bytes()));
                    targets.push(sample.label as i64);
                    indices.push(index);
                }
                Err(error @ DataError::CorruptImage { .. }) if *on_corrupt == OnCorrupt::Skip => {
                    skipped.push(Skipped {
                        index,
                        reason: error.to_string(),
                    });
                }
                Err(error) => return Err(error),
            }
        }
        let [channels, height, width] = transform.dims();
        let dims = [indices.len(), channels, height, width];
        let unfit = |error: outboard_graph::TensorError| DataError::Options(error.to_string());
        Ok(Batch {
            position: self.position(number),
            next: self.position(number + 1),
            images: Tensor::from_bytes(DType::F32, dims, images.into()).map_err(unfit)?,
            targets: Tensor::from_i64([indices.len()], &targets).map_err(unfit)?,
            indices,
            skipped,
        })
    }
}
