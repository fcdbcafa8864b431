//! The definitions of the optimizers, as plain loops over single values. The vectorised steps must
//! give the bits of these loops on every processor, and must be faster. Only row-wise Adagrad may
//! differ by rounding, because its plain loop adds the squares in another order.

use super::{Optimizer, RowState};

/// Takes one step with plain loops.
pub(crate) fn step(optimizer: &Optimizer, row: RowState<'_>, gradient: &[f32]) {
    match *optimizer {
        Optimizer::None => {}
        Optimizer::Sgd(sgd) => {
            let [lr, momentum, decay] = [sgd.lr, sgd.momentum, sgd.weight_decay].map(|x| x as f32);
            for i in 0..gradient.len() {
                let g = row.vector[i].mul_add(decay, gradient[i]);
                let mut direction = g;
                if sgd.momentum != 0.0 {
                    let buffer = &mut row.state[i];
                    *buffer = if row.step == 1 {
                        g
                    } else {
                        g.mul_add((1.0 - sgd.dampening) as f32, *buffer * momentum)
                    };
                    direction = if sgd.nesterov { buffer.mul_add(momentum, g) } else { *buffer };
                }
                row.vector[i] = direction.mul_add(-lr, row.vector[i]);
            }
        }
        Optimizer::Adagrad(adagrad) => {
            let steps_before = f64::from(row.step.max(1) - 1);
            let lr = (adagrad.lr / (1.0 + steps_before * adagrad.lr_decay)) as f32;
            for i in 0..gradient.len() {
                let g = row.vector[i].mul_add(adagrad.weight_decay as f32, gradient[i]);
                row.state[i] = g.mul_add(g, row.state[i]);
                let denominator = row.state[i].sqrt() + adagrad.eps as f32;
                if denominator >= f32::MIN_POSITIVE {
                    row.vector[i] += (-lr * g) / denominator;
                }
            }
        }
        Optimizer::RowWiseAdagrad(adagrad) => {
            let decay = adagrad.weight_decay as f32;
            let g: Vec<f32> =
                gradient.iter().zip(&*row.vector).map(|(&g, v)| v.mul_add(decay, g)).collect();
            let squares: f64 = g.iter().map(|&g| f64::from(g).powi(2)).sum();
            row.scalars[0] += (squares / gradient.len() as f64) as f32;
            let root = row.scalars[0].sqrt() + adagrad.eps as f32;
            let rate = adagrad.lr as f32 / root;
            if rate.is_finite() {
                for (value, g) in row.vector.iter_mut().zip(g) {
                    *value = g.mul_add(-rate, *value);
                }
            }
        }
        Optimizer::Adam(adam) => adam_step(&adam, false, row, gradient),
        Optimizer::AdamW(adam) => adam_step(&adam.as_adam(), true, row, gradient),
        Optimizer::Ftrl(ftrl) => {
            let [lr, beta, l1, l2] = [ftrl.lr, ftrl.beta, ftrl.l1, ftrl.l2].map(|x| x as f32);
            let (sums, leaders) = row.state.split_at_mut(gradient.len());
            for i in 0..gradient.len() {
                let g = gradient[i];
                let value = &mut row.vector[i];
                let before = sums[i].sqrt();
                sums[i] += g * g;
                let after = sums[i].sqrt();
                let roots = (before + after) * lr;
                let sigma = if roots < f32::MIN_POSITIVE { 0.0 } else { g * g / roots };
                leaders[i] = (-sigma).mul_add(*value, leaders[i] + g);
                let strength = (beta + after) / lr + l2;
                if strength >= f32::MIN_POSITIVE {
                    let z = leaders[i];
                    let shrunk = if z.abs() <= l1 { 0.0 } else { z - l1.copysign(z) };
                    *value = -shrunk / strength;
                }
            }
        }
    }
}

fn adam_step(adam: &super::Adam, decoupled: bool, row: RowState<'_>, gradient: &[f32]) {
    let (beta1, beta2) = adam.betas;
    let step = f64::from(row.step);
    let rate = (adam.lr / (1.0 - beta1.powf(step))) as f32;
    let correction = (1.0 - beta2.powf(step)).sqrt() as f32;
    let weight = 1.0 - beta1;
    let (means, squares) = row.state.split_at_mut(gradient.len());
    for i in 0..gradient.len() {
        let mut g = gradient[i];
        let value = &mut row.vector[i];
        if decoupled {
            *value *= (1.0 - adam.lr * adam.weight_decay) as f32;
        } else {
            g = value.mul_add(adam.weight_decay as f32, g);
        }
        let apart = g - means[i];
        means[i] = if (weight as f32) < 0.5 {
            apart.mul_add(weight as f32, means[i])
        } else {
            apart.mul_add(-((1.0 - weight) as f32), g)
        };
        squares[i] = ((1.0 - beta2) as f32 * g).mul_add(g, squares[i] * beta2 as f32);
        let denominator = squares[i].sqrt() / correction + adam.eps as f32;
        if denominator >= f32::MIN_POSITIVE {
            *value += -rate * means[i] / denominator;
        }
    }
}
