//! `embank-crash`: tests with thousands of power cuts and kills. `cargo xtask bench` starts it.

#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod commands;

#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
fn main() -> anyhow::Result<()> {
    commands::main()
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
fn main() -> anyhow::Result<()> {
    anyhow::bail!("system calls are recorded on 64-bit Linux with the GNU C library only")
}
