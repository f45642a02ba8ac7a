//! The lamella command.
fn main() {}
