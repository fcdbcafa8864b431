//! Export and import: writes tables to files that other programs can read, and reads such files.

use std::ffi::{c_char, c_void};

use bytemuck::{Pod, Zeroable};
use embank::{DenseRows, ExportOptions, FileFormat, ImportOptions, exported_config};

use crate::callbacks::{self, embank_on_progress};
use crate::memory::{Place, path as path_of, text};
use crate::refusals::no_such_number;
use crate::settings::embank_table_settings;
use crate::sized::{self, Growing, Results, flag};
use crate::status::{Failure, call, embank_status};
use crate::table::{embank_table, table_of};

/// The file formats of exports and imports. docs/export.md describes their content.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_file_format {
    /// The format of the path's suffix: .safetensors, .npy or .parquet.
    BySuffix = 0,
    /// One safetensors file.
    Safetensors = 1,
    /// NumPy's format: several files, or one for a dense table without state.
    Npy = 2,
    /// One Parquet file. A library that was built without Parquet returns an error.
    Parquet = 3,
}

impl embank_file_format {
    fn to_rust(number: u32) -> Result<Option<FileFormat>, Failure> {
        const BY_SUFFIX: u32 = embank_file_format::BySuffix as u32;
        const SAFETENSORS: u32 = embank_file_format::Safetensors as u32;
        const NPY: u32 = embank_file_format::Npy as u32;
        const PARQUET: u32 = embank_file_format::Parquet as u32;
        match number {
            BY_SUFFIX => Ok(None),
            SAFETENSORS => Ok(Some(FileFormat::Safetensors)),
            NPY => Ok(Some(FileFormat::Npy)),
            PARQUET => Ok(Some(FileFormat::Parquet)),
            other => Err(no_such_number("embank_file_format", other)),
        }
    }
}

/// The options of an export. Call embank_export_options_init, then change fields.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct embank_export_options {
    /// Set by embank_export_options_init.
    pub size: usize,
    /// With dense: the number of rows of the matrix. A key that is not below this number is an
    /// error. 0 means the largest key plus 1. Default: 0.
    pub dense_rows: u64,
    /// One of embank_file_format. Default: EMBANK_FILE_FORMAT_BY_SUFFIX.
    pub format: u32,
    /// 0 or 1: with 1, the file also gets the optimizer's state, so that an import restores
    /// training exactly. If the table has tracking, the file also gets each row's number of uses
    /// and last use. Default: 0.
    pub state: u32,
    /// 0 or 1: with 1, the file is one matrix without the keys: row i is the row of key i. Not for
    /// Parquet. Default: 0.
    pub dense: u32,
    /// With dense, 0 or 1: with 1, the matrix has initial values for keys without a row. With 0, a
    /// key without a row is an error. Default: 0.
    pub fill_missing: u32,
    /// The callback that gets the progress. Default: NULL.
    pub progress: embank_on_progress,
    /// The first argument of the callback. Default: NULL.
    pub context: *mut c_void,
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. The other fields are numbers, and
// pointers that may be null. The fields' sizes add up to SIZE_MIN, so there is no padding.
unsafe impl Growing for embank_export_options {
    const NAME: &'static str = "embank_export_options";
    const FILLED_BY: &'static str = "embank_export_options_init";
    const SIZE_MIN: usize = 48;

    fn defaults() -> Self {
        Self {
            size: size_of::<Self>(),
            dense_rows: 0,
            format: embank_file_format::BySuffix as u32,
            state: 0,
            dense: 0,
            fill_missing: 0,
            progress: None,
            context: std::ptr::null_mut(),
        }
    }
}

impl embank_export_options {
    fn to_rust(self) -> Result<ExportOptions, Failure> {
        let fill_missing = flag("fill_missing", self.fill_missing)?;
        let rows = (self.dense_rows != 0).then_some(self.dense_rows);
        let dense = match flag("dense", self.dense)? {
            true => Some(DenseRows { rows, fill_missing }),
            false if fill_missing || rows.is_some() => {
                return Err(Failure::invalid(
                    "dense_rows and fill_missing are for dense exports; set dense, or set them to 0",
                ));
            }
            false => None,
        };
        let format = embank_file_format::to_rust(self.format)?;
        Ok(ExportOptions { format, state: flag("state", self.state)?, dense })
    }
}

/// The result of an export.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_exported {
    /// The size that the caller passed, sizeof(embank_exported).
    pub size: usize,
    /// The checkpoint whose rows were written.
    pub checkpoint: u64,
    /// The number of rows that came from the table.
    pub rows: u64,
    /// The number of rows of a dense file that have initial values.
    pub filled_rows: u64,
    /// The size of all files, in bytes.
    pub bytes: u64,
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. It is `Pod`, so it has no padding,
// and any bits are valid.
unsafe impl Growing for embank_exported {
    const NAME: &'static str = "embank_exported";
    const FILLED_BY: &'static str = "embank_table_export";
    const SIZE_MIN: usize = 40;

    fn defaults() -> Self {
        Self::zeroed()
    }
}

/// The options of an import. Call embank_import_options_init, then change fields.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct embank_import_options {
    /// Set by embank_import_options_init.
    pub size: usize,
    /// The name of the tensor or column with the keys; for npy, the name of the file with the keys.
    /// NULL means `keys` or `key`. If neither exists, row i is the row of key i; but the import
    /// fails if another tensor or column may hold keys. Default: NULL.
    pub keys: *const c_char,
    /// The name of the tensor or column with the vectors; for npy, the name of the file with the
    /// vectors. NULL means `rows` or `vector`, or else the only matrix. Default: NULL.
    pub rows: *const c_char,
    /// One of embank_file_format. Default: EMBANK_FILE_FORMAT_BY_SUFFIX.
    pub format: u32,
    /// 0 or 1: with 1, the import also takes the optimizer's state, if the file has it. In a table
    /// with tracking, it also takes each row's number of uses and last use. Default: 1.
    pub state: u32,
    /// 0 or 1: with 1, the import accepts NaN and infinite values, values that become infinite in
    /// the table's dtype, and negative sums of squares in the optimizer's state. With 0, such a
    /// value is an error. Default: 0.
    pub non_finite: u32,
    /// 0 or 1: with 1, row i is the row of key first_key + i, and the import ignores keys in the
    /// file. With several files, the keys continue from file to file. Default: 0.
    pub by_position: u32,
    /// The callback that gets the progress. Default: NULL.
    pub progress: embank_on_progress,
    /// The first argument of the callback. Default: NULL.
    pub context: *mut c_void,
    /// With by_position: the key of the first row. Default: 0.
    pub first_key: u64,
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. The other fields are numbers, and
// pointers that may be null. No field needs padding.
unsafe impl Growing for embank_import_options {
    const NAME: &'static str = "embank_import_options";
    const FILLED_BY: &'static str = "embank_import_options_init";
    const SIZE_MIN: usize = 56;

    fn defaults() -> Self {
        let ImportOptions { state, non_finite, .. } = ImportOptions::default();
        Self {
            size: size_of::<Self>(),
            keys: std::ptr::null(),
            rows: std::ptr::null(),
            format: embank_file_format::BySuffix as u32,
            state: u32::from(state),
            non_finite: u32::from(non_finite),
            by_position: 0,
            progress: None,
            context: std::ptr::null_mut(),
            first_key: 0,
        }
    }
}

impl embank_import_options {
    /// # Safety
    /// `self.keys` and `self.rows` must each be null, or text that ends with a NUL and stays valid
    /// during the call.
    unsafe fn to_rust(self) -> Result<ImportOptions, Failure> {
        let by_position = flag("by_position", self.by_position)?;
        if !by_position && self.first_key != 0 {
            return Err(Failure::invalid("first_key is for by_position; set that, or set it to 0"));
        }
        let name = |what, pointer: *const c_char| {
            if pointer.is_null() {
                return Ok(None);
            }
            // SAFETY: the pointer is not null. By this function's `# Safety`, it is text that ends
            // with a NUL.
            unsafe { text(what, pointer) }.map(|name| Some(name.to_owned()))
        };
        Ok(ImportOptions {
            format: embank_file_format::to_rust(self.format)?,
            keys: name("keys' name", self.keys)?,
            rows: name("rows' name", self.rows)?,
            first_key: by_position.then_some(self.first_key),
            state: flag("state", self.state)?,
            non_finite: flag("non_finite", self.non_finite)?,
        })
    }
}

/// The result of an import.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_imported {
    /// The size that the caller passed, sizeof(embank_imported).
    pub size: usize,
    /// The number of imported rows.
    pub rows: u64,
    /// 1 if the import took the optimizer's state from the file, otherwise 0.
    pub with_state: u64,
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. It is `Pod`, so it has no padding,
// and any bits are valid.
unsafe impl Growing for embank_imported {
    const NAME: &'static str = "embank_imported";
    const FILLED_BY: &'static str = "embank_table_import";
    const SIZE_MIN: usize = 24;

    fn defaults() -> Self {
        Self::zeroed()
    }
}

/// Sets every option to its default. `size` is sizeof(embank_export_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_export_options_init(
    options: *mut embank_export_options,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `options` is null or valid until the call returns.
    call(|| unsafe { sized::write(options, size, &embank_export_options::defaults()) })
}

/// Sets every option to its default. `size` is sizeof(embank_import_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_import_options_init(
    options: *mut embank_import_options,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `options` is null or valid until the call returns.
    call(|| unsafe { sized::write(options, size, &embank_import_options::defaults()) })
}

/// Writes the table's rows, as the newest checkpoint has them, to a file. Training may go on
/// meanwhile. The memory that the call takes does not depend on the number of rows. When the call
/// returns, the file is complete and on stable storage, and has replaced an older file at `path`.
/// After a failure, the call leaves no part of the new file. If `options` is NULL, every option has
/// its default. `exported` may be NULL; `exported_size` is sizeof(embank_exported).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_export(
    table: *const embank_table,
    path: *const c_char,
    options: *const embank_export_options,
    exported: *mut embank_exported,
    exported_size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `path`, `options` and
    // `exported` are each null or valid until the call returns. The callback returns.
    call(|| unsafe {
        let results = Results::new(exported, exported_size)?;
        let table = table_of(table)?;
        let path = path_of("path", path)?;
        let options = sized::read_or_defaults(options)?;
        let progress = |now| callbacks::tell(options.progress, options.context, now);
        let found = table.export_with(path, &options.to_rust()?, progress)?;
        results.set(&embank_exported {
            size: exported_size,
            checkpoint: found.checkpoint,
            rows: found.rows,
            filled_rows: found.filled_rows,
            bytes: found.bytes,
        })
    })
}

/// Puts the rows of a file into the table, and replaces rows that exist. The file is an export, or
/// a matrix that another program made. The memory that the call takes does not depend on the number
/// of rows. The next checkpoint makes the rows durable. After a failure, the table has the rows of
/// the batches before the failure. If `options` is NULL, every option has its default. `imported`
/// may be NULL; `imported_size` is sizeof(embank_imported).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_import(
    table: *const embank_table,
    path: *const c_char,
    options: *const embank_import_options,
    imported: *mut embank_imported,
    imported_size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `path`, `options` and
    // `imported` are each null or valid until the call returns. The callback returns.
    call(|| unsafe {
        let results = Results::new(imported, imported_size)?;
        let table = table_of(table)?;
        let path = path_of("path", path)?;
        let options = sized::read_or_defaults(options)?;
        let progress = |now| callbacks::tell(options.progress, options.context, now);
        let found = table.import_with(path, &options.to_rust()?, progress)?;
        results.set(&embank_imported {
            size: imported_size,
            rows: found.rows,
            with_state: u64::from(found.with_state),
        })
    })
}

/// Imports `path_count` files or directories one after another, as embank_table_import does. Checks
/// all files before it puts the first row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_import_files(
    table: *const embank_table,
    paths: *const *const c_char,
    path_count: usize,
    options: *const embank_import_options,
    imported: *mut embank_imported,
    imported_size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `options` and
    // `imported` are each null or valid until the call returns. `paths` has `path_count` pointers
    // to texts that end with a NUL. The callback returns.
    call(|| unsafe {
        let results = Results::new(imported, imported_size)?;
        let table = table_of(table)?;
        if path_count > 0 && (paths.is_null() || !paths.is_aligned()) {
            return Err(Failure::invalid(
                "paths is NULL or misaligned, with a length that is not 0",
            ));
        }
        let paths = (0..path_count).map(|place| path_of("path", *paths.add(place)));
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        let options = sized::read_or_defaults(options)?;
        let progress = |now| callbacks::tell(options.progress, options.context, now);
        let found = table.import_files_with(&paths, &options.to_rust()?, progress)?;
        results.set(&embank_imported {
            size: imported_size,
            rows: found.rows,
            with_state: u64::from(found.with_state),
        })
    })
}

/// `settings` gets the settings of the table from which the file was exported, for
/// embank_bank_table. `found` gets 1 if the file has settings. Otherwise `found` gets 0, and
/// `settings` stays unchanged. `format` is one of embank_file_format. `settings` may be NULL;
/// `size` is sizeof(embank_table_settings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_exported_settings(
    path: *const c_char,
    format: u32,
    settings: *mut embank_table_settings,
    size: usize,
    found: *mut u8,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `path`, `settings` and `found` are each null or valid until
    // the call returns.
    call(|| unsafe {
        let place = Place::required("answer", found)?;
        let results = Results::new(settings, size)?;
        let format = embank_file_format::to_rust(format)?;
        let config = exported_config(path_of("path", path)?, format)?;
        if let Some(config) = &config {
            results.set(&embank_table_settings::from_rust(config)?)?;
        }
        place.set(u8::from(config.is_some()));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let options = embank_export_options::defaults();
        assert_eq!(options.size, embank_export_options::SIZE_MIN);
        assert_eq!(options.to_rust().unwrap(), ExportOptions::default());
        let options = embank_import_options::defaults();
        assert_eq!(options.size, size_of::<embank_import_options>());
        // SAFETY: in the defaults, `keys` and `rows` are null.
        assert_eq!(unsafe { options.to_rust() }.unwrap(), ImportOptions::default());
    }

    #[test]
    fn numbers_without_a_meaning_are_refused() {
        let none = embank_export_options::defaults();
        let all = embank_import_options::defaults();
        for bad in [
            embank_export_options { format: 99, ..none },
            embank_export_options { state: 2, ..none },
            embank_export_options { dense: 2, ..none },
            embank_export_options { dense_rows: 1, ..none },
            embank_export_options { fill_missing: 1, ..none },
        ] {
            assert_eq!(bad.to_rust().unwrap_err().status, embank_status::InvalidArgument);
        }
        for bad in [
            embank_import_options { format: 99, ..all },
            embank_import_options { state: 2, ..all },
            embank_import_options { non_finite: 2, ..all },
            embank_import_options { by_position: 2, ..all },
            embank_import_options { first_key: 1, ..all },
            embank_import_options { keys: c"\xff".as_ptr(), ..all },
        ] {
            // SAFETY: `keys` is null or a C string literal, and `rows` is null.
            let failure = unsafe { bad.to_rust() }.unwrap_err();
            assert_eq!(failure.status, embank_status::InvalidArgument);
        }
    }
}
