//! Makes `src/counters.rs` from the tables of counters of the crates `embank-kv` and `embank`.
//!
//! A C program finds a counter by its place in a struct. So the fields keep the order that they
//! have in the present file, and a new counter comes at the end.

use embank::{BankStats, TableStats};

/// A field of a C struct.
struct CField {
    name: String,
    docs: Vec<String>,
    /// The Rust expression for the field's value. It reads the snapshot `now`.
    value: String,
}

/// Returns the new text of `src/counters.rs`. `found` is the file's present text.
pub(crate) fn source(found: &str) -> String {
    let bank = Struct {
        name: "embank_bank_stats",
        snapshot: "BankStats",
        docs: "What a bank has done since it was opened. docs/python.md explains the main counters.",
        fields: bank_fields(),
    };
    let table = Struct {
        name: "embank_table_stats",
        snapshot: "TableStats",
        docs: "What a table has done since its bank was opened. Rows are counted once per batch.",
        fields: table_fields(),
    };
    format!(
        "//! The structs of C for statistics.\n\
         //!\n\
         //! Made by `EMBANK_BLESS=1 cargo test -p embank-c --test header`; the statistics of\n\
         //! the crates `embank-kv` and `embank` describe each number.\n\n\
         use bytemuck::{{Pod, Zeroable}};\n\
         use embank::{{BankStats, TableStats}};\n\n{}\n{}",
        bank.source(found),
        table.source(found)
    )
}

fn bank_fields() -> Vec<CField> {
    let stats = BankStats::default();
    let mut fields = vec![CField {
        name: "memory_used_bytes".to_owned(),
        docs: vec![" Gauge: what is taken of the memory budget, in bytes.".to_owned()],
        value: "now.memory_used_bytes()".to_owned(),
    }];
    // A counter without a `place` serves only monitoring, so the C struct has no field for it.
    for (prefix, path, numbers) in [
        ("", "now.store", stats.store.fields()),
        ("lookahead_", "now.lookahead", stats.lookahead.fields()),
        ("", "now", stats.fields()),
    ] {
        fields.extend(numbers.iter().filter(|number| number.place.is_some()).map(|number| {
            CField {
                name: format!("{prefix}{}", number.name),
                docs: number.docs.iter().map(|line| without_links(line)).collect(),
                value: format!("{path}.{}", number.name),
            }
        }));
    }
    fields
}

fn table_fields() -> Vec<CField> {
    let numbers = TableStats::default().fields();
    let field = |number: &_| {
        let embank_kv::metrics::Field { name, docs, .. } = number;
        CField {
            name: (*name).to_owned(),
            docs: docs.iter().map(|line| without_links(line)).collect(),
            value: format!("now.{name}"),
        }
    };
    numbers.iter().map(field).collect()
}

/// Removes links to Rust items from a line of documentation, and gives functions their C names.
fn without_links(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, link)) = rest.split_once("[`")
        && let Some((name, after)) = link.split_once("`]")
    {
        text.push_str(before);
        text.push_str(name);
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    (text + rest).replace("Bank::", "embank_bank_")
}

struct Struct {
    name: &'static str,
    snapshot: &'static str,
    docs: &'static str,
    fields: Vec<CField>,
}

impl Struct {
    fn source(&self, found: &str) -> String {
        let ordered = self.in_order(found);
        let declared: String = ordered
            .iter()
            .map(|field| {
                let docs: String =
                    field.docs.iter().map(|line| format!("    ///{line}\n")).collect();
                format!("{docs}    pub {}: u64,\n", field.name)
            })
            .collect();
        let read: String = ordered
            .iter()
            .map(|field| format!("            {}: {},\n", field.name, field.value))
            .collect();
        let Self { name, snapshot, docs, .. } = self;
        format!(
            "/// {docs}\n#[repr(C)]\n#[derive(Debug, Clone, Copy, Pod, Zeroable)]\npub struct {name} {{\n    \
             /// sizeof({name}), as it was passed.\n    pub size: usize,\n{declared}}}\n\n\
             impl {name} {{\n    \
             /// The numbers of a snapshot, for a caller's struct of `size` bytes.\n    \
             pub(crate) fn of(now: &{snapshot}, size: usize) -> Self {{\n        \
             Self {{\n            size,\n{read}        }}\n    }}\n}}\n"
        )
    }

    /// Returns the fields in the order of the present file's text `found`, and then the new fields.
    fn in_order(&self, found: &str) -> Vec<&CField> {
        let declaration = format!("pub struct {} {{", self.name);
        let body = found.split_once(&declaration).map_or("", |(_, body)| body);
        let body = body.split_once('}').map_or("", |(body, _)| body);
        let field_of = |line: &str| {
            line.trim().strip_prefix("pub ")?.strip_suffix(": u64,").map(str::to_owned)
        };
        let promised: Vec<String> = body.lines().filter_map(field_of).collect();
        let named = |name: &String| {
            self.fields.iter().find(|field| field.name == *name).unwrap_or_else(|| {
                panic!("the header has promised {name} of {}, and nothing counts it", self.name)
            })
        };
        let mut ordered: Vec<&CField> = promised.iter().map(named).collect();
        ordered.extend(self.fields.iter().filter(|field| !promised.contains(&field.name)));
        ordered
    }
}
