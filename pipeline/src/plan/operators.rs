//! What an operator does to a column of a type: its kernel, and the type that comes out.

use super::{FIELD_BYTES_MAX, Flow, Kernel, Kind, Planner, error};
use crate::decode::{Slot, uint64};
use crate::error::Result;
use crate::kernels::{MODULUS_MAX, Modulus};
use crate::spec::{Column, Operator, Value};

impl Planner<'_> {
    pub(super) fn operator(
        &mut self,
        column: &Column,
        place: usize,
        operator: &Operator,
        flow: Flow,
    ) -> Result<Flow> {
        let name = &column.name;
        if flow.kind == Kind::Id {
            return error(format!("column {name:?}: Vocabulary must be its last operator"));
        }
        if let Operator::FillMissing(value) = operator {
            return self.fill(name, value, flow);
        }
        if *operator == Operator::Hex2Int {
            let first =
                column.operators[..place].iter().all(|o| matches!(o, Operator::FillMissing(_)));
            if flow.kind == Kind::U32 && first {
                return Ok(flow);
            }
            return error(format!(
                "column {name:?}: Hex2Int must be its first operator, on a field of text"
            ));
        }
        if flow.missing.is_some() {
            return error(format!(
                "column {name:?} may be missing: put FillMissing before {}, or make its field required",
                operator_name(operator)
            ));
        }
        match operator {
            Operator::FillMissing(_) | Operator::Hex2Int => unreachable!("handled above"),
            Operator::Modulus(divisor) => self.modulus(name, *divisor, flow),
            Operator::Hash { seed } => self.hash(name, *seed, flow),
            Operator::Neg2Zero => self.neg2zero(name, flow),
            Operator::Clip { low, high } => self.clip(name, *low, *high, flow),
            Operator::Logarithm => self.logarithm(name, flow),
            Operator::Bucketize(boundaries) => self.bucketize(name, boundaries, flow),
            Operator::Float => self.float(name, flow),
            Operator::Vocabulary(vocabulary) => self.vocabulary(column, vocabulary, flow),
        }
    }

    fn modulus(&mut self, name: &str, divisor: u32, flow: Flow) -> Result<Flow> {
        if !(1..=MODULUS_MAX).contains(&divisor) {
            return error(format!("column {name:?}: a modulus is from 1 to 2^31, not {divisor}"));
        }
        let modulus = Modulus::new(divisor);
        let slot = match (flow.kind, flow.slot) {
            (Kind::I32, Slot::Word(column)) => {
                self.kernels.push(Kernel::ModulusI32 { column, modulus });
                flow.slot
            }
            (Kind::U32, Slot::Word(column)) => {
                self.kernels.push(Kernel::ModulusU32 { column, modulus });
                flow.slot
            }
            (Kind::I64, Slot::Wide(from)) => {
                let to = self.new_word();
                self.kernels.push(Kernel::ModulusI64 { from, to, modulus });
                Slot::Word(to)
            }
            (Kind::U64, Slot::Wide(from)) => {
                let to = self.new_word();
                self.kernels.push(Kernel::ModulusU64 { from, to, modulus });
                Slot::Word(to)
            }
            _ => {
                return wrong(name, "Modulus", "whole numbers; give text Hash before it", flow);
            }
        };
        let below = Some(u64::from(divisor));
        Ok(Flow { kind: Kind::U32, slot, missing: None, signed: false, below })
    }

    fn hash(&mut self, name: &str, seed: u64, flow: Flow) -> Result<Flow> {
        let to = match (flow.kind, flow.slot) {
            (Kind::I32, Slot::Word(from)) => {
                let to = self.new_wide();
                self.kernels.push(Kernel::HashI32 { from, to, seed });
                to
            }
            (Kind::U32, Slot::Word(from)) => {
                let to = self.new_wide();
                self.kernels.push(Kernel::HashU32 { from, to, seed });
                to
            }
            (Kind::I64 | Kind::U64, Slot::Wide(column)) => {
                self.kernels.push(Kernel::HashWide { column, seed });
                column
            }
            (Kind::Bytes, Slot::Bytes(from)) => {
                let to = self.new_wide();
                self.kernels.push(Kernel::HashBytes { from, to, seed });
                to
            }
            _ => return wrong(name, "Hash", "whole numbers and text", flow),
        };
        let slot = Slot::Wide(to);
        Ok(Flow { kind: Kind::U64, slot, missing: None, signed: false, below: None })
    }

    fn neg2zero(&mut self, name: &str, flow: Flow) -> Result<Flow> {
        match (flow.kind, flow.slot) {
            (Kind::I32, Slot::Word(column)) => {
                self.kernels.push(Kernel::ClipI32 { column, low: 0, high: i32::MAX });
            }
            (Kind::I64, Slot::Wide(column)) => {
                self.kernels.push(Kernel::ClipI64 { column, low: 0, high: i64::MAX });
            }
            (Kind::F32, Slot::Word(column)) => {
                self.kernels.push(Kernel::ClipF32 { column, low: 0.0, high: f32::MAX });
            }
            (Kind::U32 | Kind::U64, _) => {}
            _ => return wrong(name, "Neg2Zero", "numbers", flow),
        }
        Ok(Flow { signed: false, ..flow })
    }

    fn logarithm(&mut self, name: &str, flow: Flow) -> Result<Flow> {
        if flow.signed {
            return error(format!(
                "column {name:?} may be negative: put Neg2Zero, or Clip from 0 on, before Logarithm"
            ));
        }
        let slot = match (flow.kind, flow.slot) {
            (Kind::I32, Slot::Word(column)) => {
                self.kernels.push(Kernel::LogI32 { column });
                flow.slot
            }
            (Kind::U32, Slot::Word(column)) => {
                self.kernels.push(Kernel::LogU32 { column });
                flow.slot
            }
            (Kind::F32, Slot::Word(column)) => {
                self.kernels.push(Kernel::LogF32 { column });
                flow.slot
            }
            (Kind::I64 | Kind::U64, Slot::Wide(from)) => {
                let to = self.new_word();
                self.kernels.push(Kernel::LogWide { from, to });
                Slot::Word(to)
            }
            _ => return wrong(name, "Logarithm", "numbers", flow),
        };
        Ok(Flow { kind: Kind::F32, slot, missing: None, signed: false, below: None })
    }

    fn bucketize(&mut self, name: &str, boundaries: &[f32], flow: Flow) -> Result<Flow> {
        let ascends = boundaries.windows(2).all(|pair| pair[0] < pair[1]);
        if boundaries.is_empty() || !ascends || boundaries.iter().any(|b| !b.is_finite()) {
            return error(format!("column {name:?}: boundaries must be finite and ascend"));
        }
        let below = Some(boundaries.len() as u64 + 1);
        let boundaries = boundaries.to_vec();
        self.kernels.push(match (flow.kind, flow.slot) {
            (Kind::I32, Slot::Word(column)) => Kernel::BucketI32 { column, boundaries },
            (Kind::U32, Slot::Word(column)) => Kernel::BucketU32 { column, boundaries },
            (Kind::F32, Slot::Word(column)) => Kernel::BucketF32 { column, boundaries },
            _ => {
                let needs = "numbers of 32 bits; Float makes them of others";
                return wrong(name, "Bucketize", needs, flow);
            }
        });
        Ok(Flow { kind: Kind::U32, signed: false, below, ..flow })
    }

    fn float(&mut self, name: &str, flow: Flow) -> Result<Flow> {
        let slot = match (flow.kind, flow.slot) {
            (Kind::F32, slot) => slot,
            (Kind::I32, Slot::Word(column)) => {
                self.kernels.push(Kernel::FloatI32 { column });
                flow.slot
            }
            (Kind::U32, Slot::Word(column)) => {
                self.kernels.push(Kernel::FloatU32 { column });
                flow.slot
            }
            (Kind::I64, Slot::Wide(from)) => {
                let to = self.new_word();
                self.kernels.push(Kernel::FloatI64 { from, to });
                Slot::Word(to)
            }
            (Kind::U64, Slot::Wide(from)) => {
                let to = self.new_word();
                self.kernels.push(Kernel::FloatU64 { from, to });
                Slot::Word(to)
            }
            _ => return wrong(name, "Float", "numbers", flow),
        };
        Ok(Flow { kind: Kind::F32, slot, below: None, ..flow })
    }

    fn fill(&mut self, name: &str, value: &Value, flow: Flow) -> Result<Flow> {
        let filled = Flow { missing: None, ..flow };
        let wrong = || {
            error(format!(
                "column {name:?}: FillMissing has {value:?}, and the values are {:?} there",
                flow.kind
            ))
        };
        if matches!(value, Value::Float(value) if !value.is_finite()) {
            // No number of JSON either, so the pipeline could not be written down.
            return wrong();
        }
        let Some(missing) = flow.missing else { return Ok(filled) };
        let word = match (flow.kind, value) {
            (Kind::I32, Value::Int(value)) => i32::try_from(*value).ok().map(i32::cast_unsigned),
            (Kind::U32, Value::Int(value)) => u32::try_from(*value).ok(),
            (Kind::U32, Value::Text(text)) => crate::decode::hex32(text.as_bytes()).ok().flatten(),
            (Kind::F32, Value::Int(value)) => Some((*value as f32).to_bits()),
            (Kind::F32, Value::Float(value)) if value.is_finite() => {
                Some((*value as f32).to_bits())
            }
            (Kind::I64, Value::Int(value)) => {
                if let (Slot::Wide(column), true) = (flow.slot, *value != 0) {
                    let value = value.cast_unsigned();
                    self.kernels.push(Kernel::FillWide { column, missing, value });
                }
                return Ok(filled);
            }
            (Kind::U64, Value::Int(_) | Value::Text(_)) => {
                let value = match value {
                    Value::Int(value) => u64::try_from(*value).ok(),
                    Value::Text(text) => uint64(text.as_bytes()).ok().flatten(),
                    Value::Float(_) => None,
                };
                let Some(value) = value else { return wrong() };
                if let (Slot::Wide(column), true) = (flow.slot, value != 0) {
                    self.kernels.push(Kernel::FillWide { column, missing, value });
                }
                return Ok(filled);
            }
            (Kind::Bytes, Value::Text(text)) => {
                if text.len() > FIELD_BYTES_MAX {
                    return error(format!(
                        "column {name:?}: FillMissing has {} bytes, and text {FIELD_BYTES_MAX} at most",
                        text.len()
                    ));
                }
                // Empty fields are read as empty; but where several columns share the slot, another has filled it.
                let shared =
                    matches!(flow.slot, Slot::Bytes(slot) if self.shared_bytes.contains(&slot));
                if let (Slot::Bytes(column), true) = (flow.slot, shared || !text.is_empty()) {
                    let value = text.clone().into_bytes();
                    self.kernels.push(Kernel::FillBytes { column, missing, value });
                }
                return Ok(filled);
            }
            _ => return wrong(),
        };
        let (Some(value), Slot::Word(column)) = (word, flow.slot) else { return wrong() };
        // Empty fields are read as zeros.
        if value != 0 {
            self.kernels.push(Kernel::FillWord { column, missing, value });
        }
        Ok(filled)
    }

    fn clip(&mut self, name: &str, low: f64, high: f64, flow: Flow) -> Result<Flow> {
        if !low.is_finite() || !high.is_finite() || low > high {
            return error(format!(
                "column {name:?}: Clip from {low} to {high} has no values, or an end that is no number"
            ));
        }
        if flow.kind == Kind::U64 {
            return error(format!(
                "column {name:?}: Clip is not for unsigned numbers of 64 bits, as hashes are: put Modulus before it"
            ));
        }
        let whole = low.fract() == 0.0 && high.fract() == 0.0;
        if flow.kind != Kind::F32 && !whole {
            return error(format!(
                "column {name:?}: Clip from {low} to {high} of whole numbers: whole ends, or Float before it"
            ));
        }
        let (least, largest) = match flow.kind {
            Kind::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
            Kind::U32 => (0.0, f64::from(u32::MAX)),
            Kind::F32 => (f64::from(f32::MIN), f64::from(f32::MAX)),
            _ => (i64::MIN as f64, i64::MAX as f64),
        };
        if low > largest || high < least {
            return error(format!(
                "column {name:?}: Clip from {low} to {high} has no value that a {:?} can be",
                flow.kind
            ));
        }
        // Conversions saturate, which is right for an end that no value reaches.
        match (flow.kind, flow.slot) {
            (Kind::I32, Slot::Word(column)) => {
                self.kernels.push(Kernel::ClipI32 { column, low: low as i32, high: high as i32 });
            }
            (Kind::U32, Slot::Word(column)) => {
                self.kernels.push(Kernel::ClipU32 { column, low: low as u32, high: high as u32 });
            }
            (Kind::I64, Slot::Wide(column)) => {
                self.kernels.push(Kernel::ClipI64 { column, low: low as i64, high: high as i64 });
            }
            (Kind::F32, Slot::Word(column)) => {
                self.kernels.push(Kernel::ClipF32 { column, low: low as f32, high: high as f32 });
            }
            _ => {
                return error(format!(
                    "column {name:?}: Clip is for numbers, and the values are {:?} there",
                    flow.kind
                ));
            }
        }
        let below = if flow.kind == Kind::U32 && high >= 0.0 {
            Some(u64::from(high as u32) + 1)
        } else {
            None
        };
        Ok(Flow { signed: flow.signed && low < 0.0, below, ..flow })
    }
}

fn wrong(name: &str, operator: &str, needs: &str, flow: Flow) -> Result<Flow> {
    error(format!(
        "column {name:?}: {operator} is for {needs}, and the values are {:?} there",
        flow.kind
    ))
}

fn operator_name(operator: &Operator) -> &'static str {
    match operator {
        Operator::FillMissing(_) => "FillMissing",
        Operator::Hex2Int => "Hex2Int",
        Operator::Modulus(_) => "Modulus",
        Operator::Hash { .. } => "Hash",
        Operator::Vocabulary(_) => "Vocabulary",
        Operator::Neg2Zero => "Neg2Zero",
        Operator::Logarithm => "Logarithm",
        Operator::Clip { .. } => "Clip",
        Operator::Bucketize(_) => "Bucketize",
        Operator::Float => "Float",
    }
}
