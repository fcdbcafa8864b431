//! `embank-crash`: power cuts and kills by the thousand. `cargo xtask bench` is the front door.

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
