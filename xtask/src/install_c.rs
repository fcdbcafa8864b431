//! `install-c`: installs the C library below a prefix, in the folders that `make install` of a C
//! project uses.
//!
//! ```text
//! PREFIX/include/embank.h
//! PREFIX/lib/libembank_c.so -> libembank_c.so.0.1 -> libembank_c.so.0.1.0
//! PREFIX/lib/libembank_c.a
//! PREFIX/lib/pkgconfig/embank.pc
//! PREFIX/lib/cmake/embank/embank-config.cmake, embank-config-version.cmake
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::{command, workspace};

/// Options of `install-c`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The prefix to install below: /usr/local, or a folder of your own
    prefix: PathBuf,
    /// Folder with libraries that are already built: install these instead of building them
    #[arg(long, value_name = "DIR")]
    libraries: Option<PathBuf>,
}

/// The version of the library: the version of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The system libraries that a static library of Rust needs on Linux.
const SYSTEM_LIBRARIES: &str = "-lgcc_s -lpthread -lm -ldl -lrt";

/// Builds the library, and installs it with its header and the files of pkg-config and CMake.
///
/// # Errors
/// Returns an error if the build fails or the prefix cannot be written.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = workspace::root()?;
    let libraries = match &args.libraries {
        Some(libraries) => libraries.clone(),
        None => build(&root)?,
    };
    let made = fs::create_dir_all(&args.prefix).and_then(|()| args.prefix.canonicalize());
    let prefix = made.with_context(|| format!("making {}", args.prefix.display()))?;
    install(&root, &libraries, &prefix)?;
    println!("installed below {}", prefix.display());
    println!("pkg-config finds it with PKG_CONFIG_PATH={}/lib/pkgconfig", prefix.display());
    println!("CMake finds it with -DCMAKE_PREFIX_PATH={}", prefix.display());
    Ok(ExitCode::SUCCESS)
}

fn build(root: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    command::shown(
        Command::new(cargo)
            .args(["build", "--release", "--locked", "--package", "embank-c"])
            .current_dir(root),
    )?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    Ok(target.join("release"))
}

fn install(root: &Path, libraries: &Path, prefix: &Path) -> Result<()> {
    let lib = prefix.join("lib");
    copy(&root.join("bindings/c/include/embank.h"), &prefix.join("include/embank.h"))?;
    copy(&libraries.join("libembank_c.a"), &lib.join("libembank_c.a"))?;
    let whole = format!("libembank_c.so.{VERSION}");
    copy(&libraries.join("libembank_c.so"), &lib.join(&whole))?;
    let so_name = format!("libembank_c.so.{}", abi_version());
    link(&whole, &lib.join(&so_name))?;
    link(&so_name, &lib.join("libembank_c.so"))?;
    write(&lib.join("pkgconfig/embank.pc"), &pkg_config(prefix))?;
    let cmake = lib.join("cmake/embank");
    write(&cmake.join("embank-config.cmake"), CMAKE)?;
    write(&cmake.join("embank-config-version.cmake"), &cmake_version())
}

/// Returns the version in the library's SONAME. `bindings/c/build.rs` computes it in the same way.
fn abi_version() -> String {
    match (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")) {
        ("0", minor) => format!("0.{minor}"),
        (major, _) => major.to_owned(),
    }
}

fn pkg_config(prefix: &Path) -> String {
    format!(
        "prefix={}
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: embank
Description: Embedding tables larger than memory, for training
Version: {VERSION}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -lembank_c
Libs.private: {SYSTEM_LIBRARIES}
",
        prefix.display()
    )
}

/// The CMake file finds the folders relative to itself, so the prefix may be moved as a whole.
const CMAKE: &str = r#"get_filename_component(_embank_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_package(Threads REQUIRED)
if(NOT TARGET embank::embank)
  add_library(embank::embank SHARED IMPORTED)
  set_target_properties(embank::embank PROPERTIES
    IMPORTED_LOCATION "${_embank_prefix}/lib/libembank_c.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_embank_prefix}/include")
  add_library(embank::embank_static STATIC IMPORTED)
  set_target_properties(embank::embank_static PROPERTIES
    IMPORTED_LOCATION "${_embank_prefix}/lib/libembank_c.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_embank_prefix}/include"
    INTERFACE_LINK_LIBRARIES "gcc_s;Threads::Threads;m;${CMAKE_DL_LIBS};rt")
endif()
unset(_embank_prefix)
"#;

fn cmake_version() -> String {
    // Before 1.0 a minor version may break the ABI, so a different minor version is not compatible.
    let abi = abi_version();
    format!(
        r#"set(PACKAGE_VERSION "{VERSION}")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION OR NOT "${{PACKAGE_FIND_VERSION}}." MATCHES "^{}[.]")
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"#,
        abi.replace('.', "[.]")
    )
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    make_parent(to)?;
    let is_same = || Ok::<_, std::io::Error>(from.canonicalize()? == to.canonicalize()?);
    if is_same().unwrap_or(false) {
        bail!("{} would be installed over itself", from.display());
    }
    // Removes the old file first, so that a running program that uses the old file keeps it.
    remove(to)?;
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

fn link(target: &str, at: &Path) -> Result<()> {
    remove(at)?;
    symlink(target, at).with_context(|| format!("linking {}", at.display()))
}

fn write(to: &Path, content: &str) -> Result<()> {
    make_parent(to)?;
    fs::write(to, content).with_context(|| format!("writing {}", to.display()))
}

fn make_parent(of: &Path) -> Result<()> {
    let parent = of.parent().context("a file has a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("replacing {}", file.display()))
        }
        _ => Ok(()),
    }
}
