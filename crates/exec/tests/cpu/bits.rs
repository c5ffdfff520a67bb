//! The same bits on any number of threads, whatever ran before.

use outboard_exec::CpuExecutor;
use outboard_graph::Tensor;
use rayon::ThreadPoolBuilder;

use crate::cases::{Case, large, small};

fn run(threads: usize, cases: &[Case]) -> Vec<Vec<Tensor>> {
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    let engine = CpuExecutor::with_threads(threads);
    pool.install(|| {
        cases
            .iter()
            .map(|case| case.run(&engine, &case.inputs()))
            .collect()
    })
}

#[test]
fn threads_and_order_change_no_bit() {
    let mut cases = large();
    cases.extend(small());
    let expected = run(1, &cases);
    cases.reverse();
    for threads in [1, 2, 3] {
        let found = run(threads, &cases);
        for ((case, found), expected) in cases.iter().zip(found).zip(expected.iter().rev()) {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!(found.ty(), expected.ty());
                assert!(
                    found.data() == expected.data(),
                    "{threads} threads: {case:?}"
                );
            }
        }
    }
}
