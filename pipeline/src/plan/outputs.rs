//! The ends of columns: vocabularies that number them, and outputs that show them.

use super::{
    Dtype, Flow, Kernel, Kind, LookUp, OutputFrom, OutputPlan, Planner, ValueSpace, VocabularyPlan,
    error,
};
use crate::decode::Slot;
use crate::error::Result;
use crate::kernels::MODULUS_MAX;
use crate::spec::Column;

impl Planner<'_> {
    pub(super) fn vocabulary(&mut self, column: &Column, name: &str, flow: Flow) -> Result<Flow> {
        let (kind, has_bank) = (flow.kind, self.has_bank);
        let place = &column.name;
        let space = match (kind, flow.below) {
            (Kind::U32, Some(below)) if below <= u64::from(MODULUS_MAX) => {
                ValueSpace::Below(below as u32)
            }
            (Kind::F32 | Kind::Id, _) => {
                return error(format!(
                    "column {place:?}: Vocabulary is for whole numbers and text, and the values are {kind:?} there"
                ));
            }
            (Kind::Bytes, _) if has_bank => ValueSpace::Strings,
            (Kind::I32 | Kind::U32 | Kind::I64 | Kind::U64, _) if has_bank => ValueSpace::Numbers,
            _ => {
                return error(format!(
                    "column {place:?}: Vocabulary takes values whose range is known: put Modulus (and Hash, for text) \
                     before it, or keep the vocabulary in a bank (Pipeline::with_bank), which takes any values"
                ));
            }
        };
        let known = self.vocabularies.iter().position(|vocabulary| vocabulary.name == name);
        let vocabulary = known.unwrap_or_else(|| {
            let settings = self.spec.vocabularies.iter().find(|of| of.name == name).cloned();
            self.vocabularies.push(VocabularyPlan { name: name.to_owned(), space, settings });
            self.vocabularies.len() - 1
        });
        let shared = &mut self.vocabularies[vocabulary];
        shared.space = match (shared.space, space) {
            (ValueSpace::Below(one), ValueSpace::Below(other)) => ValueSpace::Below(one.max(other)),
            (one, other) if one == other => one,
            _ => {
                return error(format!(
                    "column {place:?} shares vocabulary {name:?} with columns of other values: all of them must have \
                     values of a known range (by Modulus), or numbers, or text"
                ));
            }
        };
        let from = self.values_of_its_own(column, flow.slot);
        let ids = match space {
            ValueSpace::Below(_) => from,
            ValueSpace::Numbers | ValueSpace::Strings => Slot::Wide(self.new_wide()),
        };
        let signed = kind == Kind::I32;
        let id_max = i64::MAX.cast_unsigned();
        let (narrow, shown) = (None, Vec::new());
        let column = place.clone();
        self.look_ups.push(LookUp { column, vocabulary, from, signed, ids, narrow, id_max, shown });
        Ok(Flow { kind: Kind::Id, slot: ids, ..flow })
    }

    /// Values that nobody changes: look-ups come after all kernels. Columns of text that are made of one field have
    /// one slot, and fill it one after the other.
    fn values_of_its_own(&mut self, column: &Column, slot: Slot) -> Slot {
        let Slot::Bytes(from) = slot else { return slot };
        let others = self.spec.columns.iter().filter(|other| other.from == column.from);
        if others.count() == 1 {
            return slot;
        }
        let to = self.columns.2;
        self.columns.2 += 1;
        self.kernels.push(Kernel::CopyBytes { from, to });
        Slot::Bytes(to)
    }

    pub(super) fn outputs(&mut self) -> Result<Vec<OutputPlan>> {
        let mut outputs = Vec::new();
        for (index, output) in self.spec.outputs.iter().enumerate() {
            let mut flows = Vec::new();
            for (place, name) in output.columns.iter().enumerate() {
                let Some(&flow) = self.flows.get(name.as_str()) else {
                    return error(format!(
                        "output {:?} shows {name:?}, which no column is named",
                        output.name
                    ));
                };
                let refuse = |why: &str| {
                    error(format!(
                        "output {:?} can't show column {name:?} as {:?}: {why}",
                        output.name, output.dtype
                    ))
                };
                if flow.missing.is_some() {
                    return refuse(
                        "it may be missing; give it FillMissing, or make its field required",
                    );
                }
                match (output.dtype, flow.kind) {
                    (_, Kind::Bytes) => {
                        return refuse("it has text; Hash and Modulus make numbers of it");
                    }
                    (Dtype::F32, Kind::Id) => return refuse("ids of a vocabulary are no floats"),
                    (Dtype::F32, Kind::I64 | Kind::U64) => {
                        return refuse("it has 64 bits; give it Float");
                    }
                    (Dtype::I32 | Dtype::I64, Kind::F32) => return refuse("it has floats"),
                    (Dtype::I32, Kind::U32) if flow.below.is_none_or(|below| below > 1 << 31) => {
                        return refuse("its values may be too large; Modulus bounds them");
                    }
                    (Dtype::I64, Kind::U64) => {
                        return refuse(
                            "an unsigned number of 64 bits, as hashes are, may be too large; Modulus bounds it, and \
                             Vocabulary numbers it",
                        );
                    }
                    (Dtype::I32 | Dtype::Bits32, Kind::I64 | Kind::U64) => {
                        return refuse("it has 64 bits");
                    }
                    _ => {}
                }
                if flow.kind == Kind::Id {
                    let look_up = self.look_up_of(flow.slot);
                    look_up.shown.push((index, place));
                    look_up.id_max = look_up.id_max.min(match output.dtype {
                        Dtype::I32 => u64::from(i32::MAX.cast_unsigned()),
                        Dtype::Bits32 => u64::from(u32::MAX),
                        Dtype::I64 | Dtype::F32 => u64::MAX,
                    });
                }
                flows.push(flow);
            }
            let from = self.output_from(output.dtype, &flows);
            let (name, columns) = (output.name.clone(), output.columns.clone());
            outputs.push(OutputPlan { name, columns, dtype: output.dtype, from });
        }
        Ok(outputs)
    }

    fn look_up_of(&mut self, ids: Slot) -> &mut LookUp {
        let look_up = self.look_ups.iter_mut().find(|look_up| look_up.ids == ids);
        look_up.expect("ids come of a look-up")
    }

    /// Where ids of 64 bits go as words.
    fn narrow_ids(&mut self, ids: Slot) -> usize {
        if let Some(word) = self.look_up_of(ids).narrow {
            return word;
        }
        let word = self.new_word();
        self.look_up_of(ids).narrow = Some(word);
        word
    }

    fn output_from(&mut self, dtype: Dtype, flows: &[Flow]) -> OutputFrom {
        if dtype == Dtype::I64 {
            return OutputFrom::Wides(
                flows.iter().map(|flow| (flow.slot, flow.kind == Kind::I32)).collect(),
            );
        }
        let word = |flow: &Flow| {
            let word = match flow.slot {
                Slot::Word(word) => word,
                Slot::Wide(_) if flow.kind == Kind::Id => return self.narrow_ids(flow.slot),
                Slot::Wide(_) | Slot::Bytes(_) => unreachable!("64 bits are refused above"),
            };
            if dtype != Dtype::F32 || flow.kind == Kind::F32 {
                return word;
            }
            // Another output may show the number itself.
            let to = self.new_word();
            self.kernels.push(Kernel::CopyWord { from: word, to });
            self.kernels.push(match flow.kind {
                Kind::I32 => Kernel::FloatI32 { column: to },
                _ => Kernel::FloatU32 { column: to },
            });
            to
        };
        OutputFrom::Words(flows.iter().map(word).collect())
    }
}
