//! Linear layers.

use tch::nn;

/// Makes a linear layer with the initial values of `torch.nn.Linear`: uniform, between plus and
/// minus 1 / sqrt(inputs). The range of `tch`'s default is 2.4 times as wide.
pub fn linear(path: nn::Path<'_>, from: i64, to: i64, bias: bool) -> nn::Linear {
    let bound = 1.0 / (from as f64).sqrt();
    let init = nn::Init::Uniform { lo: -bound, up: bound };
    nn::linear(path, from, to, nn::LinearConfig { ws_init: init, bs_init: Some(init), bias })
}
