//! Gives libembank_c.so its name for the dynamic linker. Programs that were linked with it ask for
//! that name, so a library with a break of the ABI, which has another one, can be installed beside
//! it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Before 1.0 a minor version may break the ABI.
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    let version = if major == "0" { format!("{major}.{minor}") } else { major.to_owned() };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libembank_c.so.{version}");
}
