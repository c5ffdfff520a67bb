//! Clipping by the global norm.

/// The norm of all gradients together, from the sum of squares of each, in the order given (that of names).
pub(crate) fn global_norm<'a>(squares: impl IntoIterator<Item = &'a f64>) -> f64 {
    squares.into_iter().sum::<f64>().sqrt()
}

/// What gradients are multiplied by, as `torch.nn.utils.clip_grad_norm_` computes it: `max_norm / (norm + 1e-6)`, at most 1.
/// Exactly 1 where nothing is clipped, so that gradients keep their bits.
pub(crate) fn gradient_scale(norm: f64, max_norm: Option<f64>) -> f32 {
    match max_norm {
        Some(max_norm) => {
            let scale = max_norm / (norm + 1e-6);
            if scale < 1.0 { scale as f32 } else { 1.0 }
        }
        None => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_norm_is_scaled_down_and_a_small_one_left_alone() {
        let norm = global_norm(&[9.0, 16.0]);
        assert_eq!(norm, 5.0);
        assert_eq!(gradient_scale(norm, None), 1.0);
        assert_eq!(gradient_scale(norm, Some(6.0)), 1.0);
        assert_eq!(gradient_scale(norm, Some(1.0)), (1.0 / (5.0 + 1e-6)) as f32);
        // PyTorch scales at the very limit too, by 1 / (1 + 1e-6 / max_norm).
        assert!(gradient_scale(norm, Some(5.0)) < 1.0);
    }
}
