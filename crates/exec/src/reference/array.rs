//! Tensors of the reference engine, and walks over their indices.

use half::{bf16, f16};
use outboard_graph::{DType, Tensor};

use super::Fault;

/// A dense row-major tensor. Floats of every type are held as f64.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Array {
    pub(super) dtype: DType,
    pub(super) dims: Vec<usize>,
    pub(super) data: Data,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    Float(Vec<f64>),
    Int(Vec<i64>),
    Bool(Vec<bool>),
}

/// Element type and concrete shape of a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) dtype: DType,
    pub(super) dims: Vec<usize>,
}

impl Shape {
    pub(super) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes that this engine holds for the value.
    pub(super) fn bytes(&self) -> u64 {
        let element = match self.dtype {
            DType::F32 | DType::F16 | DType::BF16 => size_of::<f64>(),
            DType::I64 => size_of::<i64>(),
            DType::Bool => size_of::<bool>(),
        };
        self.dims.iter().fold(element as u64, |bytes, &dim| {
            bytes.saturating_mul(dim as u64)
        })
    }
}

impl Array {
    /// Floats of this shape; rounded when the type is narrower than f32, which this engine holds exactly as f64.
    pub(super) fn floats(shape: &Shape, mut values: Vec<f64>) -> Self {
        match shape.dtype {
            DType::F16 => values
                .iter_mut()
                .for_each(|x| *x = f16::from_f64(*x).to_f64()),
            DType::BF16 => values
                .iter_mut()
                .for_each(|x| *x = bf16::from_f64(*x).to_f64()),
            _ => {}
        }
        Self {
            dtype: shape.dtype,
            dims: shape.dims.clone(),
            data: Data::Float(values),
        }
    }

    pub(super) fn ints(shape: &Shape, values: Vec<i64>) -> Self {
        Self {
            dtype: shape.dtype,
            dims: shape.dims.clone(),
            data: Data::Int(values),
        }
    }

    pub(super) fn bools(shape: &Shape, values: Vec<bool>) -> Self {
        Self {
            dtype: shape.dtype,
            dims: shape.dims.clone(),
            data: Data::Bool(values),
        }
    }

    pub(super) fn shape(&self) -> Shape {
        Shape {
            dtype: self.dtype,
            dims: self.dims.clone(),
        }
    }

    pub(super) fn as_floats(&self) -> Result<&[f64], Fault> {
        match &self.data {
            Data::Float(values) => Ok(values),
            _ => Err(Fault(format!("needs floats, got {}", self.dtype.name()))),
        }
    }

    pub(super) fn as_ints(&self) -> Result<&[i64], Fault> {
        match &self.data {
            Data::Int(values) => Ok(values),
            _ => Err(Fault(format!("needs i64, got {}", self.dtype.name()))),
        }
    }

    pub(super) fn as_bools(&self) -> Result<&[bool], Fault> {
        match &self.data {
            Data::Bool(values) => Ok(values),
            _ => Err(Fault(format!("needs bool, got {}", self.dtype.name()))),
        }
    }

    /// An array whose element at each index is this one's element at `source(index)`, or `fill` where that is `None`.
    /// All of layout is this.
    pub(super) fn gather(
        &self,
        dims: &[usize],
        fill: f64,
        source: impl Fn(&[usize]) -> Option<usize>,
    ) -> Result<Self, Fault> {
        fn pick<T: Copy>(
            from: &[T],
            fill: T,
            dims: &[usize],
            source: impl Fn(&[usize]) -> Option<usize>,
        ) -> Result<Vec<T>, Fault> {
            let mut values = Vec::with_capacity(dims.iter().product());
            let mut outside = None;
            for_each_index(dims, |index| {
                values.push(match source(index).map(|flat| (flat, from.get(flat))) {
                    None => fill,
                    Some((_, Some(&value))) => value,
                    Some((flat, None)) => {
                        outside = Some(flat);
                        fill
                    }
                });
            });
            match outside {
                None => Ok(values),
                Some(flat) => Err(Fault(format!("reads element {flat} of {}", from.len()))),
            }
        }
        let data = match &self.data {
            Data::Float(from) => Data::Float(pick(from, fill, dims, source)?),
            Data::Int(from) => Data::Int(pick(from, fill as i64, dims, source)?),
            Data::Bool(from) => Data::Bool(pick(from, fill != 0.0, dims, source)?),
        };
        Ok(Self {
            dtype: self.dtype,
            dims: dims.to_vec(),
            data,
        })
    }

    pub(super) fn from_tensor(tensor: &Tensor) -> Self {
        let bytes = tensor.data();
        let data = match tensor.dtype() {
            DType::F32 => Data::Float(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&x| f64::from(f32::from_le_bytes(x)))
                    .collect(),
            ),
            DType::F16 => Data::Float(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&x| f16::from_le_bytes(x).to_f64())
                    .collect(),
            ),
            DType::BF16 => Data::Float(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&x| bf16::from_le_bytes(x).to_f64())
                    .collect(),
            ),
            DType::I64 => Data::Int(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&x| i64::from_le_bytes(x))
                    .collect(),
            ),
            DType::Bool => Data::Bool(bytes.iter().map(|&x| x != 0).collect()),
        };
        Self {
            dtype: tensor.dtype(),
            dims: tensor.dims().to_vec(),
            data,
        }
    }

    /// Rounds floats to their type.
    pub(super) fn to_tensor(&self) -> Result<Tensor, outboard_graph::TensorError> {
        let bytes: Vec<u8> = match (&self.data, self.dtype) {
            (Data::Float(values), DType::F16) => values
                .iter()
                .flat_map(|&x| f16::from_f64(x).to_le_bytes())
                .collect(),
            (Data::Float(values), DType::BF16) => values
                .iter()
                .flat_map(|&x| bf16::from_f64(x).to_le_bytes())
                .collect(),
            (Data::Float(values), _) => values
                .iter()
                .flat_map(|&x| (x as f32).to_le_bytes())
                .collect(),
            (Data::Int(values), _) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            (Data::Bool(values), _) => values.iter().map(|&x| u8::from(x)).collect(),
        };
        Tensor::from_bytes(self.dtype, self.dims.clone(), bytes.into())
    }
}

/// Row-major strides, in elements.
pub(super) fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

/// The flat position of an index.
pub(super) fn flat(index: &[usize], strides: &[usize]) -> usize {
    index
        .iter()
        .zip(strides)
        .map(|(i, stride)| i * stride)
        .sum()
}

/// Calls `visit` with every index of the shape, row-major; once with `[]` for a scalar.
pub(super) fn for_each_index(dims: &[usize], mut visit: impl FnMut(&[usize])) {
    if dims.contains(&0) {
        return;
    }
    let mut index = vec![0; dims.len()];
    loop {
        visit(&index);
        let mut axis = dims.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < dims[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// A shape seen from one of its axes: elements before it, along it, and behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) outer: usize,
    pub(super) size: usize,
    pub(super) inner: usize,
}

impl Axis {
    pub(super) fn of(dims: &[usize], axis: usize) -> Result<Self, Fault> {
        let size = *dims
            .get(axis)
            .ok_or_else(|| Fault(format!("has no dimension {axis} in shape {dims:?}")))?;
        Ok(Self {
            outer: dims[..axis].iter().product(),
            size,
            inner: dims[axis + 1..].iter().product(),
        })
    }

    /// For every line along the axis, the flat positions of its elements.
    pub(super) fn lines(self) -> impl Iterator<Item = impl Iterator<Item = usize> + Clone> {
        (0..self.outer).flat_map(move |outer| {
            (0..self.inner).map(move |inner| {
                let start = outer * self.size * self.inner + inner;
                (0..self.size).map(move |i| start + i * self.inner)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_come_row_major() {
        let mut seen = Vec::new();
        for_each_index(&[2, 3], |index| seen.push(flat(index, &strides(&[2, 3]))));
        assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
        let mut scalars = 0;
        for_each_index(&[], |index| scalars += 1 + index.len());
        assert_eq!(scalars, 1);
        for_each_index(&[2, 0], |_| panic!("an empty shape has no index"));
    }

    #[test]
    fn lines_along_an_axis() {
        let axis = Axis::of(&[2, 3, 2], 1).unwrap();
        let lines: Vec<Vec<usize>> = axis.lines().map(Iterator::collect).collect();
        assert_eq!(lines, [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]);
        assert!(Axis::of(&[2], 1).is_err());
    }

    #[test]
    fn halves_are_rounded_and_f32_is_not() {
        let shape = |dtype| Shape {
            dtype,
            dims: vec![1],
        };
        let third = 1.0 / 3.0;
        assert_eq!(
            Array::floats(&shape(DType::F32), vec![third])
                .as_floats()
                .unwrap(),
            [third]
        );
        assert_eq!(
            Array::floats(&shape(DType::F16), vec![third])
                .as_floats()
                .unwrap(),
            [0.333_251_953_125]
        );
        assert_eq!(
            Array::floats(&shape(DType::BF16), vec![third])
                .as_floats()
                .unwrap(),
            [0.333_984_375]
        );
        let there = Array::floats(&shape(DType::BF16), vec![third]);
        assert_eq!(Array::from_tensor(&there.to_tensor().unwrap()), there);
    }
}
