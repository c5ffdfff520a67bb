//! The Gaussian error linear unit (Hendrycks and Gimpel 2016) and its gradient, exact or by its tanh approximation.

/// `sqrt(2 / pi)`, of the tanh approximation.
const BETA: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
/// The cubic term of the tanh approximation (section 2).
const CUBIC: f32 = 0.044_715;

/// The cumulative distribution of the normal distribution.
fn normal_cdf(x: f32) -> f32 {
    0.5 * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// `x` times the normal distribution's mass below `x`.
pub fn gelu(x: f32) -> f32 {
    x * normal_cdf(x)
}

/// The approximation of [`gelu`].
pub fn gelu_tanh(x: f32) -> f32 {
    let inner = BETA * (x + CUBIC * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// `dy` times the slope of [`gelu`].
pub fn gelu_gradient(dy: f32, x: f32) -> f32 {
    // The density of the normal distribution: 1 / sqrt(2 pi) is half of `BETA`.
    dy * (normal_cdf(x) + x * 0.5 * BETA * (-0.5 * x * x).exp())
}

/// `dy` times the slope of [`gelu_tanh`].
pub fn gelu_tanh_gradient(dy: f32, x: f32) -> f32 {
    let t = (BETA * (x + CUBIC * x * x * x)).tanh();
    let slope = BETA * (1.0 + 3.0 * CUBIC * x * x);
    dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
}
