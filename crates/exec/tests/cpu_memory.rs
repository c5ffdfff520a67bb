//! The promised peak of memory against what the allocator counts. Alone in its binary: the counter sees the process.

#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test is the test's failure"
)]

use outboard_exec::{CpuExecutor, Executor, RandomKey};
use outboard_graph::{DType, Graph, Stage, Tensor, cut_candidates, slice, stage_programs, zoo};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Bytes of `gemm`'s packed panels that a thread may have kept from an earlier product: promised, but not taken again.
const PANELS: f64 = (1 << 20) as f64;

/// Some input of this type: small floats that are not all alike, class 0, flags set.
fn some(dtype: DType, dims: &[usize], seed: usize) -> Tensor {
    let count: usize = dims.iter().product();
    match dtype {
        DType::I64 => Tensor::from_i64(dims, &vec![0; count]),
        DType::Bool => Tensor::from_bool(dims, &vec![true; count]),
        _ => {
            let elements = (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1013) as f32 / 1013.0);
            Tensor::from_f32(dims, &elements.collect::<Vec<_>>())
        }
    }
    .unwrap()
}

/// Predicted and measured peak of one run.
fn peaks(engine: &CpuExecutor, program: &Graph) -> (usize, usize) {
    let plan = engine.compile(program).unwrap();
    let before = ALLOCATOR.current_usage();
    let inputs: Vec<_> = (program.inputs.iter().enumerate())
        .map(|(index, input)| {
            let ty = program.ty(input.value).unwrap();
            let tensor = some(ty.dtype, &ty.concrete().unwrap(), index);
            engine.upload(&tensor).unwrap()
        })
        .collect();
    // As a worker does: weights stay, all else is handed over.
    let weights: Vec<_> = (program.inputs.iter().zip(&inputs))
        .filter(|(input, _)| input.kind.is_weight())
        .map(|(_, tensor)| tensor.clone())
        .collect();
    ALLOCATOR.reset_peak_usage();
    let outputs = engine.run(&plan, inputs, RandomKey::default()).unwrap();
    let measured = ALLOCATOR.peak_usage() - before;
    drop((outputs, weights));
    (usize::try_from(engine.peak_bytes(&plan)).unwrap(), measured)
}

#[test]
fn the_peak_is_known_before() {
    let threads = 2;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    let engine = CpuExecutor::with_threads(threads);
    for (model, image_size, batch) in [
        ("mlp", 28, 64),
        ("resnet18", 32, 8),
        ("resnet18", 64, 4),
        ("resnet50", 64, 2),
        ("vit_tiny", 32, 8),
    ] {
        let options = zoo::ZooOptions {
            image_size,
            classes: 10,
            ..Default::default()
        };
        let graph = zoo::build(model, &options).unwrap();
        // The later half, which has an input gradient.
        let middle = graph.nodes.len() / 2;
        let candidates = cut_candidates(&graph).unwrap().into_iter();
        let mut cuts = candidates.filter(|cut| cut.is_legal() && cut.node >= middle);
        let cut = cuts.next().unwrap().node;
        let half = slice(&graph, &[cut]).unwrap().pop().unwrap();
        let whole = stage_programs(&Stage::whole(graph)).unwrap();
        let half = stage_programs(&half).unwrap();
        for (name, program) in [
            ("forward", whole.forward),
            ("weight", whole.weight),
            ("later half's backward", half.backward),
            ("later half's weight", half.weight),
        ] {
            let program = program.instantiate(batch).unwrap();
            assert!(!program.nodes.is_empty(), "{model} {name}");
            let (predicted, measured) = pool.install(|| peaks(&engine, &program));
            let text = format!(
                "{model} {image_size} batch {batch} {name}: predicted {:.1} MB, measured {:.1} MB",
                predicted as f64 / 1e6,
                measured as f64 / 1e6
            );
            println!("{text}");
            assert!(measured <= predicted, "{text}");
            // What the threads keep for good is a bound over processors and does not grow with the program.
            let of_program = predicted - threads * (4 << 20);
            assert!(
                of_program as f64 <= 1.5 * measured as f64 + PANELS,
                "{text}"
            );
        }
    }
}
