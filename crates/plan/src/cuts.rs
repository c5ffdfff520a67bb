//! Where to cut for a given order of devices.
//!
//! With `m` micro-batches a step takes about `sum of stages + (m - 1) * slowest stage` (the pipeline fills once, then runs
//! at the pace of its slowest part), where a link between two stages counts as a stage. Dynamic programming finds the least
//! sum under a bound on the slowest part; a few bounds from the least possible one upwards give the cuts worth a
//! simulation.

use std::ops::Range;

/// Cost of a stage: `(nodes, position of its device)` to `(slowest part, sum)`, nothing where it cannot run there.
pub(crate) type PartCost<'a> = dyn Fn(Range<usize>, usize) -> Option<(f64, f64)> + 'a;

/// Sums this far above the least bottleneck are looked at.
const SLACKS: [f64; 6] = [1.0, 1.03, 1.1, 1.25, 1.6, f64::INFINITY];

/// Number of ways to choose `stages - 1` of the cut points, or `None` above `most`.
pub(crate) fn combinations(points: usize, stages: usize, most: usize) -> Option<usize> {
    let cuts = stages.checked_sub(1)?;
    if cuts > points {
        return Some(0);
    }
    let mut count = 1usize;
    for chosen in 0..cuts {
        count = count.checked_mul(points - chosen)? / (chosen + 1);
        if count > most {
            return None;
        }
    }
    Some(count)
}

/// All ways to choose `stages - 1` of the cut points, in lexicographic order.
pub(crate) fn all(points: &[usize], stages: usize) -> Vec<Vec<usize>> {
    let mut found = vec![Vec::new()];
    for _ in 1..stages {
        let longer = |cuts: &Vec<usize>| {
            let last = cuts.last().copied().unwrap_or(0);
            let cuts = cuts.clone();
            points
                .iter()
                .filter(move |point| **point > last)
                .map(move |point| [cuts.as_slice(), &[*point]].concat())
        };
        found = found.iter().flat_map(longer).collect();
    }
    found
}

/// The few cut lists worth a simulation.
pub(crate) fn promising(
    points: &[usize],
    nodes: usize,
    stages: usize,
    cost: &PartCost<'_>,
) -> Vec<Vec<usize>> {
    let table = Table::new(points, nodes, stages, cost);
    let Some(least) = table.least_bottleneck() else {
        return Vec::new();
    };
    let mut found: Vec<Vec<usize>> = Vec::new();
    for slack in SLACKS {
        // A hair above, so that the bound admits what it was found from.
        if let Some(cuts) = table.least_sum(least * slack * (1.0 + 1e-12))
            && !found.contains(&cuts)
        {
            found.push(cuts);
        }
    }
    found
}

/// `(slowest part, sum)` of a stage.
type Part = Option<(f64, f64)>;

/// Costs of every part: `costs[stage][from][to]` over the ends `0, points, nodes`.
struct Table {
    ends: Vec<usize>,
    stages: usize,
    costs: Vec<Vec<Vec<Part>>>,
}

impl Table {
    fn new(points: &[usize], nodes: usize, stages: usize, cost: &PartCost<'_>) -> Table {
        let ends: Vec<usize> = std::iter::once(0)
            .chain(points.iter().copied())
            .chain([nodes])
            .collect();
        let row = |stage: usize, from: usize| {
            let part = |to: &usize| {
                if *to > from {
                    cost(from..*to, stage)
                } else {
                    None
                }
            };
            ends.iter().map(part).collect()
        };
        let costs = (0..stages)
            .map(|stage| ends.iter().map(|from| row(stage, *from)).collect())
            .collect();
        Table {
            ends,
            stages,
            costs,
        }
    }

    fn part(&self, stage: usize, from: usize, to: usize) -> Part {
        *self.costs.get(stage)?.get(from)?.get(to)?
    }

    /// The best chain of parts from the first end to the last; `join` combines costs, which are compared by size.
    fn best(&self, join: impl Fn(f64, (f64, f64)) -> Option<f64>) -> Option<(f64, Vec<usize>)> {
        let count = self.ends.len();
        // For each end: the best cost of the stages so far that end there, and the ends they passed.
        let mut reached: Vec<Option<(f64, Vec<usize>)>> = vec![None; count];
        *reached.first_mut()? = Some((0.0, Vec::new()));
        for stage in 0..self.stages {
            let mut next: Vec<Option<(f64, Vec<usize>)>> = vec![None; count];
            for (from, state) in reached.iter().enumerate() {
                let Some((cost, passed)) = state else {
                    continue;
                };
                for (to, slot) in next.iter_mut().enumerate().skip(from + 1) {
                    let Some(joined) = self
                        .part(stage, from, to)
                        .and_then(|part| join(*cost, part))
                    else {
                        continue;
                    };
                    if slot.as_ref().is_none_or(|(best, _)| joined < *best) {
                        *slot = Some((joined, [passed.as_slice(), &[to]].concat()));
                    }
                }
            }
            reached = next;
        }
        reached.pop().flatten()
    }

    fn least_bottleneck(&self) -> Option<f64> {
        self.best(|cost, (slowest, _)| Some(cost.max(slowest)))
            .map(|(cost, _)| cost)
    }

    fn least_sum(&self, bound: f64) -> Option<Vec<usize>> {
        let (_, mut passed) =
            self.best(|cost, (slowest, sum)| (slowest <= bound).then_some(cost + sum))?;
        passed.pop();
        passed
            .iter()
            .map(|end| self.ends.get(*end).copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_lists_all() {
        let points = [2, 3, 5, 7, 8];
        for stages in 1..=7 {
            assert_eq!(
                combinations(5, stages, 1000),
                Some(all(&points, stages).len())
            );
        }
        assert_eq!(combinations(5, 4, 9), None);
        assert_eq!(combinations(usize::MAX, 3, 1000), None);
        assert_eq!(all(&points, 1), [Vec::<usize>::new()]);
        assert_eq!(all(&[1, 4, 6], 3), [[1, 4], [1, 6], [4, 6]]);
    }

    /// The bounds' first answer has the least possible bottleneck, the last one the least possible sum.
    #[test]
    fn dynamic_programming_equals_trying_all() {
        let weights = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0];
        let speeds = [1.0, 0.5, 2.0];
        let cost = |nodes: Range<usize>, stage: usize| {
            let seconds = weights[nodes].iter().sum::<f64>() * speeds.get(stage)?;
            Some((seconds, seconds))
        };
        let points: Vec<usize> = (1..weights.len()).collect();
        let parts = |cuts: &Vec<usize>| -> Vec<f64> {
            [0].iter()
                .chain(cuts)
                .zip(cuts.iter().chain([&weights.len()]))
                .enumerate()
                .map(|(stage, (from, to))| cost(*from..*to, stage).unwrap().0)
                .collect()
        };
        let found = promising(&points, weights.len(), 3, &cost);
        let every = all(&points, 3);
        let bottleneck = |cuts: &Vec<usize>| parts(cuts).into_iter().fold(0.0, f64::max);
        let sum = |cuts: &Vec<usize>| parts(cuts).into_iter().sum::<f64>();
        let least = |score: &dyn Fn(&Vec<usize>) -> f64| {
            every.iter().map(score).fold(f64::INFINITY, f64::min)
        };
        assert_eq!(bottleneck(found.first().unwrap()), least(&bottleneck));
        assert_eq!(sum(found.last().unwrap()), least(&sum));
        assert!(promising(&points, weights.len(), 11, &cost).is_empty());
    }
}
