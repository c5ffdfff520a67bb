//! Which devices, in which order: all of them for a few devices, a beam beyond.

/// Up to this many devices every subset and order is tried.
pub(crate) const EXHAUSTIVE: usize = 5;
/// Orders that live on from one number of devices to the next when there are more.
const BEAM: usize = 10;

/// Grows orders one device at a time. `score` gives the seconds of an order's best candidate, if it has one; it is called
/// for every order that is looked at, and sees to it that the candidates are kept. `same[a][b]` tells that two devices are
/// equal in all that matters: then only orders with `a < b` are tried.
pub(crate) fn explore(
    devices: usize,
    longest: usize,
    same: &dyn Fn(usize, usize) -> bool,
    score: &mut dyn FnMut(&[usize]) -> Option<f64>,
) {
    let mut alive: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..longest {
        let mut longer: Vec<Vec<usize>> = Vec::new();
        for order in &alive {
            for device in (0..devices).filter(|device| !order.contains(device)) {
                for at in 0..=order.len() {
                    let mut order = order.clone();
                    order.insert(at, device);
                    if canonical(&order, devices, same) {
                        longer.push(order);
                    }
                }
            }
        }
        longer.sort();
        longer.dedup();
        let mut scored: Vec<(f64, Vec<usize>)> = longer
            .into_iter()
            .map(|order| (score(&order).unwrap_or(f64::INFINITY), order))
            .collect();
        if devices > EXHAUSTIVE {
            scored.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
            scored.truncate(BEAM);
        }
        alive = scored.into_iter().map(|(_, order)| order).collect();
    }
}

/// Of equal devices, the first ones are used, and in the order of their indices.
fn canonical(order: &[usize], devices: usize, same: &dyn Fn(usize, usize) -> bool) -> bool {
    let position = |device: usize| {
        order
            .iter()
            .position(|other| *other == device)
            .unwrap_or(order.len())
    };
    (0..devices).all(|a| (a + 1..devices).all(|b| !same(a, b) || position(a) <= position(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explored(
        devices: usize,
        longest: usize,
        same: &dyn Fn(usize, usize) -> bool,
    ) -> Vec<Vec<usize>> {
        let mut seen = Vec::new();
        explore(devices, longest, same, &mut |order| {
            seen.push(order.to_vec());
            Some(order.iter().map(|device| *device as f64).sum())
        });
        seen
    }

    #[test]
    fn few_devices_are_tried_in_every_order() {
        let different = |_, _| false;
        assert_eq!(explored(3, 3, &different).len(), 3 + 6 + 6);
        assert_eq!(explored(4, 4, &different).len(), 4 + 12 + 24 + 24);
        assert_eq!(explored(4, 2, &different).len(), 4 + 12);
        // Three equal devices and another one: 0, 1 and 2 in this order, 3 anywhere.
        let same = |a: usize, b: usize| a < 3 && b < 3;
        let orders = explored(4, 4, &same);
        assert_eq!(orders.len(), 2 + (1 + 2) + (1 + 3) + 4, "{orders:?}");
    }

    #[test]
    fn many_devices_are_bounded() {
        let orders = explored(12, 12, &|_, _| false);
        assert!(
            orders.len() <= 12 + BEAM * 12 * 13 * 12 / 2,
            "{}",
            orders.len()
        );
        assert!(orders.iter().any(|order| order.len() == 12));
    }
}
