//! The rules of every block: a program that keeps them closes, and one that breaks one of them has
//! exactly that defect.

#[path = "../common/mod.rs"]
mod common;

mod compressed;
mod delta;
mod draft;
mod ffn;
mod grouped;
mod latent;
mod ngram;
mod residual;
mod sizes;
mod sources;
