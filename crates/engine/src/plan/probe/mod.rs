//! Measuring a machine: how fast it reads memory and disks, how fast it multiplies, and what its
//! system allows.

pub mod disk;
mod machine;
pub mod memory;
pub mod products;
pub mod system;

pub use machine::{Known, machine};
