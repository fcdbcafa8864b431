//! Export and import: tables to and from files that other programs read.

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

/// The formats that a table can be written to and read from. docs/export.md describes their
/// content.
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
    /// With dense: the number of rows of the matrix; a larger key is an error. 0 means largest key
    /// + 1. Default: 0.
    pub dense_rows: u64,
    /// One of embank_file_format. Default: EMBANK_FILE_FORMAT_BY_SUFFIX.
    pub format: u32,
    /// 0 or 1: with 1, the file also gets the optimizer's state, so that an import restores
    /// training exactly, and for a table with tracking each row's uses and last use. Default: 0.
    pub state: u32,
    /// 0 or 1: with 1, the file is one matrix in order of the keys, without the keys. Not for
    /// Parquet. Default: 0.
    pub dense: u32,
    /// With dense, 0 or 1: with 1, keys without a row get their initial values; with 0 they are an
    /// error. Default: 0.
    pub fill_missing: u32,
    /// Is called with the progress. Default: NULL.
    pub progress: embank_on_progress,
    /// The first argument of the callback. Default: NULL.
    pub context: *mut c_void,
}

// SAFETY: the first field is `size`. The others are numbers and pointers that may be null. The
// fields' sizes add up to SIZE_MIN, so there is no padding.
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
    /// sizeof(embank_exported), as it was passed.
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

// SAFETY: the struct is `Pod`, so it has no padding, and its first field is `size`.
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
    /// The name of the tensor or column of the keys, or for npy the file. NULL means `keys` or
    /// `key`. If the file has neither, row i is the row of key i if nothing else in the file may be
    /// keys; otherwise the file is refused. Default: NULL.
    pub keys: *const c_char,
    /// The name of the tensor or column of the vectors, or for npy the file. NULL means `rows` or
    /// `vector`, or the only matrix. Default: NULL.
    pub rows: *const c_char,
    /// One of embank_file_format. Default: EMBANK_FILE_FORMAT_BY_SUFFIX.
    pub format: u32,
    /// 0 or 1: with 1, the optimizer's state is imported too, and in a table with tracking each
    /// row's uses and last use, if the file has them. Default: 1.
    pub state: u32,
    /// 0 or 1: with 1, NaN and infinite values are imported; with 0 they are an error. Default: 0.
    pub non_finite: u32,
    /// 0 or 1: with 1, row i is the row of key first_key + i, whatever else is in the file; rows of
    /// the next file follow. Default: 0.
    pub by_position: u32,
    /// Is called with the progress. Default: NULL.
    pub progress: embank_on_progress,
    /// The first argument of the callback. Default: NULL.
    pub context: *mut c_void,
    /// With by_position: the key of the first row. Default: 0.
    pub first_key: u64,
}

// SAFETY: the first field is `size`. The others are numbers and pointers that may be null. No field
// needs padding.
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
    /// Each name must be null or text that ends with a NUL and stays valid during the call.
    unsafe fn to_rust(self) -> Result<ImportOptions, Failure> {
        let by_position = flag("by_position", self.by_position)?;
        if !by_position && self.first_key != 0 {
            return Err(Failure::invalid("first_key is for by_position; set that, or set it to 0"));
        }
        let name = |what, pointer: *const c_char| {
            if pointer.is_null() {
                return Ok(None);
            }
            // SAFETY: not null, and `# Safety` obliges the caller to pass NUL-terminated text.
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
    /// sizeof(embank_imported), as it was passed.
    pub size: usize,
    /// The number of rows of the file.
    pub rows: u64,
    /// 1 if the file has the optimizer's state, otherwise 0.
    pub with_state: u64,
}

// SAFETY: the struct is `Pod`, so it has no padding, and its first field is `size`.
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
    // SAFETY: the caller keeps the header's rules: `options` is null or valid for the call.
    call(|| unsafe { sized::write(options, size, &embank_export_options::defaults()) })
}

/// Sets every option to its default. `size` is sizeof(embank_import_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_import_options_init(
    options: *mut embank_import_options,
    size: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `options` is null or valid for the call.
    call(|| unsafe { sized::write(options, size, &embank_import_options::defaults()) })
}

/// Writes the rows that the newest checkpoint has of the table to a file, in constant memory, while
/// training goes on. When the call returns, the file is complete and on stable storage, and has
/// replaced an older one. After a failure no part of it is left. `options` may be NULL for
/// defaults, and so may `exported`; `exported_size` is sizeof(embank_exported).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_export(
    table: *const embank_table,
    path: *const c_char,
    options: *const embank_export_options,
    exported: *mut embank_exported,
    exported_size: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `path`, `options` and `exported` are each null or valid for the call.
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

/// Puts the rows of a file into the table, in constant memory. The file is an export, or a matrix
/// that another program made. A row that exists is replaced. Durable with the next checkpoint;
/// after a failure the batches before it are in the table. `options` may be NULL for defaults, and
/// so may `imported`; `imported_size` is sizeof(embank_imported).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_import(
    table: *const embank_table,
    path: *const c_char,
    options: *const embank_import_options,
    imported: *mut embank_imported,
    imported_size: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `path`, `options` and `imported` are each null or valid for the call.
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

/// Imports `path_count` files or directories one after another, as embank_table_import does. All of
/// them are checked before the first row is put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_import_files(
    table: *const embank_table,
    paths: *const *const c_char,
    path_count: usize,
    options: *const embank_import_options,
    imported: *mut embank_imported,
    imported_size: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `paths`, `options` and `imported` are each null or valid for the call.
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

/// The settings of the table that a file was exported from, for embank_bank_table. `found` gets 1
/// if the file has them. Otherwise it gets 0, and `settings` stay unchanged. `format` is one of
/// embank_file_format. `settings` may be NULL; `size` is sizeof(embank_table_settings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_exported_settings(
    path: *const c_char,
    format: u32,
    settings: *mut embank_table_settings,
    size: usize,
    found: *mut u8,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `path`, `settings` and `found` are each null or
    // valid for the call.
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
        // SAFETY: the default names are null.
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
            // SAFETY: each name is null or a C string literal.
            let failure = unsafe { bad.to_rust() }.unwrap_err();
            assert_eq!(failure.status, embank_status::InvalidArgument);
        }
    }
}
