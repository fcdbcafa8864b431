//! Finds out that a folder belongs to a table format, whose log says which of the folder's files
//! count.
//!
//! Delta Lake, Iceberg, Hudi and the file sink of Spark's structured streaming leave files in the
//! folder that are no part of the table: removed or rewritten rows, and the files of jobs that
//! failed. A run that read all files of the folder would read such rows too.

use std::path::Path;

/// Returns the name of the format if the files of `folder`, an absolute path, belong to a table
/// format. Also looks into the folders above while `folder` is one of their partitions
/// (`day=2024-01-02`) or Iceberg's folder `data`.
pub(super) fn table_format(folder: &Path) -> Option<&'static str> {
    for folder in folder.ancestors() {
        if let Some(format) = log_of(folder) {
            return Some(format);
        }
        let name = folder.file_name().unwrap_or_default().as_encoded_bytes();
        if !name.contains(&b'=') && name != b"data" {
            return None;
        }
    }
    None
}

/// The format whose log lies in the folder.
fn log_of(folder: &Path) -> Option<&'static str> {
    let logs = [
        ("_delta_log", "Delta Lake"),
        ("_symlink_format_manifest", "Delta Lake"),
        (".hoodie", "Hudi"),
        (".hoodie_partition_metadata", "Hudi"),
        ("_spark_metadata", "Spark's structured streaming"),
    ];
    let log = logs.into_iter().find(|(name, _)| folder.join(name).exists());
    if log.is_some() {
        return log.map(|(_, format)| format);
    }
    let mut metadata = std::fs::read_dir(folder.join("metadata")).into_iter().flatten().flatten();
    let is_iceberg = |name: &std::ffi::OsStr| {
        let name = name.to_string_lossy();
        name.ends_with(".metadata.json") || name == "version-hint.text"
    };
    metadata.any(|entry| is_iceberg(&entry.file_name())).then_some("Iceberg")
}
