//! Moving the cuts of one candidate, uphill; and what dynamic programming, which finds where to start, minimises.

use crate::Device;
use crate::candidate::BASE_WINDOW_BYTES;
use crate::workload::StageNumbers;

/// Simulations spent on moving cuts of one candidate.
const MOVES: usize = 80;

/// What dynamic programming minimises: a micro-batch's time in the slowest part, and in all parts.
pub(crate) fn part_cost(
    device: &Device,
    numbers: &StageNumbers,
    micro_batches: u16,
) -> Option<(f64, f64)> {
    // What comes in is about as large as what goes back to where it came from.
    let windows = (numbers
        .activation_bytes
        .saturating_add(numbers.cotangent_bytes))
    .saturating_mul(micro_batches.into());
    let fixed = [
        numbers.weight_bytes,
        numbers.gradient_bytes,
        numbers.optimizer_bytes,
        numbers.saved_bytes,
        numbers.program_bytes,
        windows,
        BASE_WINDOW_BYTES,
    ];
    let least = fixed.into_iter().fold(0, u64::saturating_add);
    if least > device.profile.memory_bytes {
        return None;
    }
    let compute: f64 = numbers.seconds.iter().sum();
    // Each direction carries the activations one way and cotangents of about their size the other way.
    let bytes = (numbers
        .activation_bytes
        .saturating_add(numbers.cotangent_bytes)) as f64;
    let transfer = device.link.map_or(0.0, |link| {
        bytes / link.up_bytes_per_second.min(link.down_bytes_per_second)
    });
    Some((compute.max(transfer), compute + transfer))
}

/// Moves one cut, or two neighbours together, as long as that shortens the step.
pub(crate) fn climb(
    points: &[usize],
    mut cuts: Vec<usize>,
    mut seconds: f64,
    simulate: &mut dyn FnMut(Vec<usize>) -> Option<f64>,
) {
    let (mut left, count) = (MOVES, cuts.len());
    loop {
        let mut improved = false;
        for (at, together) in (1..=2).flat_map(|together| (0..count).map(move |at| (at, together)))
        {
            for step in [-1isize, 1, -2, 2, -5, 5] {
                let Some(moved) = shifted(points, &cuts, at..at + together, step) else {
                    continue;
                };
                if left == 0 {
                    return;
                }
                left -= 1;
                if let Some(shorter) = simulate(moved.clone())
                    && shorter < seconds
                {
                    (cuts, seconds, improved) = (moved, shorter, true);
                }
            }
        }
        if !improved {
            return;
        }
    }
}

/// The cuts with some of them moved by this many cut points; nothing where that leaves the model or the order.
fn shifted(
    points: &[usize],
    cuts: &[usize],
    which: std::ops::Range<usize>,
    step: isize,
) -> Option<Vec<usize>> {
    let mut moved = cuts.to_vec();
    for cut in moved.get_mut(which)? {
        let position = points.binary_search(cut).ok()?;
        *cut = *points.get(position.checked_add_signed(step)?)?;
    }
    moved
        .windows(2)
        .all(|pair| pair[0] < pair[1])
        .then_some(moved)
}
