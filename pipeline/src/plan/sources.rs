//! Where columns come from: fields, and pairs of columns.

use super::{Flow, Kernel, Kind, Planner, error, field_index};
use crate::decode::{FieldKind, Slot};
use crate::error::Result;
use crate::spec::{Column, Source};

impl<'a> Planner<'a> {
    pub(super) fn source(&mut self, column: &'a Column) -> Result<Flow> {
        match &column.from {
            Source::Field(name) => {
                let field = field_index(self.spec, column, name)?;
                Ok(self.field_source(field))
            }
            Source::Cross { first, second, seed } => {
                let slot = |name: &String| match self.flows.get(name.as_str()) {
                    None => error(format!(
                        "column {:?} crosses {name:?}, which no earlier column is named",
                        column.name
                    )),
                    Some(flow) if flow.kind == Kind::Id => error(format!(
                        "column {:?} crosses {name:?}, which a vocabulary numbers: cross its values, by a column \
                         without Vocabulary",
                        column.name
                    )),
                    Some(flow) if flow.missing.is_some() => error(format!(
                        "column {:?} crosses {name:?}, which may be missing: give it FillMissing",
                        column.name
                    )),
                    Some(flow) if flow.kind == Kind::Bytes => error(format!(
                        "column {:?} crosses {name:?}, which has text: give it Hash",
                        column.name
                    )),
                    Some(flow) => Ok(flow.slot),
                };
                let (first, second) = (slot(first)?, slot(second)?);
                let to = self.new_wide();
                self.kernels.push(Kernel::Cross { first, second, to, seed: *seed });
                let slot = Slot::Wide(to);
                Ok(Flow { kind: Kind::U64, slot, missing: None, signed: false, below: None })
            }
        }
    }

    /// The field's own slot for the last column that is made of it, copies for the others.
    fn field_source(&mut self, field: usize) -> Flow {
        let target = self.layout.target(field).expect("a field that a column is made of is read");
        let (kind, signed) = match self.kinds[field] {
            FieldKind::Int32 => (Kind::I32, true),
            FieldKind::Int64 => (Kind::I64, true),
            FieldKind::Uint64 => (Kind::U64, false),
            FieldKind::Hex32 => (Kind::U32, false),
            FieldKind::Float32 => (Kind::F32, true),
            FieldKind::Bytes => (Kind::Bytes, false),
            FieldKind::Skip => unreachable!("a field that a column is made of is read"),
        };
        let slot = match target.slot {
            Slot::Word(from) if self.uses_left[field] > 1 => {
                let to = self.new_word();
                self.kernels.push(Kernel::CopyWord { from, to });
                Slot::Word(to)
            }
            Slot::Wide(from) if self.uses_left[field] > 1 => {
                let to = self.new_wide();
                self.kernels.push(Kernel::CopyWide { from, to });
                Slot::Wide(to)
            }
            // Byte strings change only where they were missing.
            slot => slot,
        };
        if let Slot::Bytes(bytes) = slot
            && self.uses_left[field] > 1
        {
            self.shared_bytes.insert(bytes);
        }
        self.uses_left[field] -= 1;
        let missing = (!self.spec.fields[field].required).then_some(target.missing);
        Flow { kind, slot, missing, signed, below: None }
    }
}
