//! Accuracy on the test images, through the pipeline.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context, Result, bail};
use outboard_data::{Loader, LoaderOptions, OnCorrupt, Split};
use outboard_graph::Tensor;
use outboard_host::Run;

use crate::events::Event;
use crate::output::Output;
use crate::work::Work;

/// Batches in flight over the devices.
const IN_FLIGHT: usize = 4;

/// The share of test images whose highest score is their class, and how many could not be read.
pub(crate) fn accuracy(
    run: &mut Run,
    work: &Work,
    batch: usize,
    output: &Output,
) -> Result<(f64, u64)> {
    let test = work.spec.open(Split::Test)?;
    let mut options = LoaderOptions::once(batch, work.transform.clone());
    options.on_corrupt = OnCorrupt::Skip;
    let loader = Loader::new(test, options)?;
    let bar = output.progress(loader.batches_per_epoch(), "test");
    // The run takes batches and gives results in one order; what must wait for its result waits here.
    let waiting: RefCell<VecDeque<Tensor>> = RefCell::default();
    let mut skipped = 0;
    let mut unreadable = None;
    let batches = loader.map_while(|batch| match batch {
        Ok(batch) => {
            for image in &batch.skipped {
                skipped += 1;
                output.warn(format!("skipped an image: {}", image.reason));
                output.event(&Event::CorruptImage {
                    reason: image.reason.clone(),
                });
            }
            waiting.borrow_mut().push_back(batch.targets);
            Some(vec![(work.images.clone(), batch.images)])
        }
        Err(error) => {
            unreadable = Some(error);
            None
        }
    });
    let (mut right, mut all) = (0, 0);
    let mut misfit = false;
    run.evaluate(batches, IN_FLIGHT, |_, results| {
        bar.inc(1);
        let targets = waiting.borrow_mut().pop_front();
        match counted(&results, &work.scores, targets) {
            Some((batch_right, batch_all)) => {
                right += batch_right;
                all += batch_all;
            }
            None => misfit = true,
        }
    })?;
    bar.finish_and_clear();
    if let Some(error) = unreadable {
        return Err(error.into());
    }
    if misfit {
        bail!("the model's scores do not fit the test images");
    }
    let accuracy = Some(right as f64 / all as f64).filter(|accuracy| accuracy.is_finite());
    Ok((accuracy.context("there are no test images")?, skipped))
}

/// Right answers and all answers of a batch.
fn counted(
    results: &BTreeMap<String, Tensor>,
    scores: &str,
    targets: Option<Tensor>,
) -> Option<(u64, u64)> {
    let targets = targets?.to_i64_vec().ok()?;
    let scores = results.get(scores)?.to_f32_vec().ok()?;
    let classes = scores
        .len()
        .checked_div(targets.len())
        .filter(|classes| *classes > 0)?;
    let right = scores
        .chunks_exact(classes)
        .zip(&targets)
        .filter(|(scores, target)| {
            usize::try_from(**target).is_ok_and(|target| target == highest(scores))
        })
        .count();
    Some((right as u64, targets.len() as u64))
}

/// Index of the first highest score.
fn highest(scores: &[f32]) -> usize {
    let mut best = 0;
    for (index, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = index;
        }
    }
    best
}
