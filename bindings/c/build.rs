//! Sets the SONAME of libembank_c.so, the name by which linked programs load the library. A version
//! that breaks the ABI gets a new SONAME, so the old and the new version can be installed side by
//! side.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Before 1.0 a minor version may break the ABI, so the SONAME contains the minor version too.
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    let version = if major == "0" { format!("{major}.{minor}") } else { major.to_owned() };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libembank_c.so.{version}");
}
