//! `num_batches_tracked` is an integer and stays one, on every engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use outboard_exec::{CpuExecutor, Executor, RandomKey, Reference};
use outboard_graph::{Graph, Tensor};

const COUNTER: &str = r#"graph "counter" {
  %0: i64[] = buffer "num_batches_tracked"
  %1: i64[] = add.Scalar(%0, scalar=1.0)
  return buffer_update "num_batches_tracked" %1
}
"#;

fn count(engine: &impl Executor, seen: i64) -> Tensor {
    let program: Graph = COUNTER.parse().unwrap();
    let plan = engine.compile(&program).unwrap();
    let seen = engine
        .upload(&Tensor::from_i64(vec![], &[seen]).unwrap())
        .unwrap();
    let outputs = engine.run(&plan, vec![seen], RandomKey::default()).unwrap();
    engine.download(&outputs[0]).unwrap()
}

#[test]
fn counters_count_beyond_what_a_float_can() {
    for seen in [0, 41, (1 << 53) + 1] {
        let expected = Tensor::from_i64(vec![], &[seen + 1]).unwrap();
        assert_eq!(count(&Reference, seen), expected);
        assert_eq!(count(&CpuExecutor::new(), seen), expected);
    }
}
