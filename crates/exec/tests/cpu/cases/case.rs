//! A program of one node, and what its operands are filled with.

use outboard_exec::{Executor, RandomKey};
use outboard_graph::{Builder, DType, Dim, Graph, InputKind, Op, OutputKind, Tensor, TensorType};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Where the random numbers of a case come from.
pub(crate) const KEY: RandomKey = RandomKey {
    seed: 5,
    step: 1,
    micro_batch: 2,
};

/// How far an f32 result may lie from the exact one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rounding {
    /// The same bits.
    Exact,
    /// This many roundings of numbers as great as the greatest result.
    Steps(f64),
    /// A sum of this many products: each term is rounded at most that often, so the error is at most that many
    /// roundings of the sum of the terms' magnitudes (Higham 2002, section 3.1), which the operator gives on the
    /// magnitudes of its operands.
    Terms(usize),
}

/// What an operand is filled with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    /// Floats in -2..2.
    Normal,
    /// Floats in 0.1..2.
    Positive,
    /// Integers in 0..n.
    Index(usize),
    /// Zeros and ones.
    Flags,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) op: Op,
    pub(crate) operands: Vec<Option<(Vec<usize>, Fill)>>,
    pub(crate) rounding: Rounding,
    pub(crate) seed: u64,
}

/// Random numbers of the tests.
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.0.next_u64() % n as u64).unwrap()
    }

    pub(crate) fn unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32
    }
}

impl Case {
    pub(crate) fn graph(&self) -> Graph {
        let mut b = Builder::new("case");
        let operands: Vec<_> = (self.operands.iter().enumerate())
            .map(|(index, operand)| {
                operand.as_ref().map(|(dims, fill)| {
                    let dtype = match fill {
                        Fill::Normal | Fill::Positive => DType::F32,
                        Fill::Index(_) => DType::I64,
                        Fill::Flags => DType::Bool,
                    };
                    let ty = TensorType::fixed(dtype, dims);
                    b.input(InputKind::Data, format!("x{index}"), ty).unwrap()
                })
            })
            .collect();
        let results = b.ops(self.op.clone(), &operands);
        let results = results.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        for (index, result) in results.into_iter().enumerate() {
            b.output(OutputKind::Result, &format!("y{index}"), result)
                .unwrap();
        }
        b.finish()
    }

    pub(crate) fn inputs(&self) -> Vec<Tensor> {
        let mut random = Random::new(self.seed);
        (self.operands.iter().flatten())
            .map(|(dims, fill)| {
                let count = dims.iter().product();
                match *fill {
                    Fill::Normal => {
                        let x: Vec<f32> = (0..count).map(|_| 4.0 * random.unit() - 2.0).collect();
                        Tensor::from_f32(dims.clone(), &x)
                    }
                    Fill::Positive => {
                        let x: Vec<f32> = (0..count).map(|_| 0.1 + 1.9 * random.unit()).collect();
                        Tensor::from_f32(dims.clone(), &x)
                    }
                    Fill::Index(n) => {
                        let x: Vec<i64> = (0..count).map(|_| random.below(n) as i64).collect();
                        Tensor::from_i64(dims.clone(), &x)
                    }
                    Fill::Flags => {
                        let x: Vec<bool> = (0..count).map(|_| random.below(2) == 1).collect();
                        Tensor::from_bool(dims.clone(), &x)
                    }
                }
                .unwrap()
            })
            .collect()
    }

    /// Runs the case on an engine.
    pub(crate) fn run<E: Executor>(&self, engine: &E, inputs: &[Tensor]) -> Vec<Tensor> {
        let plan = engine.compile(&self.graph()).unwrap();
        let inputs = inputs.iter().map(|x| engine.upload(x).unwrap()).collect();
        let outputs = engine.run(&plan, inputs, KEY);
        let outputs = outputs.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        outputs
            .iter()
            .map(|y| engine.download(y).unwrap())
            .collect()
    }
}

pub(super) fn f(dims: &[usize]) -> Option<(Vec<usize>, Fill)> {
    Some((dims.to_vec(), Fill::Normal))
}

pub(super) fn p(dims: &[usize]) -> Option<(Vec<usize>, Fill)> {
    Some((dims.to_vec(), Fill::Positive))
}

pub(super) fn index(dims: &[usize], n: usize) -> Option<(Vec<usize>, Fill)> {
    Some((dims.to_vec(), Fill::Index(n)))
}

pub(super) fn fixed(dims: &[usize]) -> Vec<Dim> {
    dims.iter().copied().map(Dim::Fixed).collect()
}
