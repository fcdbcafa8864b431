//! Checks the hyperparameters that a program gives an optimizer.

/// Fails if a hyperparameter is negative, NaN or infinite.
pub(crate) fn check_not_negative(name: &str, value: f64) -> std::result::Result<(), String> {
    // Steps compute in f32, so the value must be finite in f32 too.
    if (value as f32).is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(format!("{name} must be finite and not negative, found {value}"))
}

/// Fails if a learning rate is negative, NaN or infinite.
pub(crate) fn check_learning_rate(lr: f64) -> std::result::Result<(), String> {
    check_not_negative("the learning rate", lr)
}
