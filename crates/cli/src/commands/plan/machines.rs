//! The table of machines, as a person writes it.

use crate::args::size;
use crate::failure::Failure;
use anyhow::Context;
use lamella_engine::memory::MemoryLimit;
use lamella_engine::plan::{Machine, Node, Rate, Rates};
use lamella_kernels::Isa;
use serde::Deserialize;
use std::path::Path;

/// Bytes per second of a link that the table does not tell: ten gigabits.
const LINK: f64 = 1.25e9;
/// Seconds of a message that it does not tell.
const LATENCY: f64 = 200e-6;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    machine: Vec<Line>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    memory: Size,
    cores: Option<usize>,
    /// GB/s.
    disk: Option<f64>,
    /// GB/s.
    memory_bandwidth: Option<f64>,
    /// GB/s.
    link: Option<f64>,
    latency_ms: Option<f64>,
}

/// Bytes as a number, or a size like 12G.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    fn bytes(&self) -> Result<u64, String> {
        match self {
            Size::Bytes(bytes) => Ok(*bytes),
            Size::Text(text) => size(text),
        }
    }
}

/// Reads a table of machines.
///
/// # Errors
/// If it cannot be read or is no such table; wrong usage that names file, machine and field.
pub(super) fn read(path: &Path) -> anyhow::Result<Table> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| file.clone())?;
    let json = path.extension().is_some_and(|end| end == "json");
    let table: Result<Table, String> = match json {
        true => serde_json::from_str(&text).map_err(|e| e.to_string()),
        false => toml::from_str(&text).map_err(|e| e.to_string()),
    };
    let table = table.map_err(|cause| Failure::usage(format!("{file}: {cause}")))?;
    table
        .check()
        .map_err(|cause| Failure::usage(format!("{file}: {cause}")))?;
    Ok(table)
}

impl Table {
    fn check(&self) -> Result<(), String> {
        for (index, line) in self.machine.iter().enumerate() {
            let of = |field: &str, cause: &str| {
                format!("machine {} ({}), {field}: {cause}", index + 1, line.name)
            };
            line.memory.bytes().map_err(|cause| of("memory", &cause))?;
            let numbers = [
                ("disk", line.disk),
                ("memory_bandwidth", line.memory_bandwidth),
                ("link", line.link),
            ];
            for (field, number) in numbers {
                if number.is_some_and(|n| !(n > 0.0 && n < 1e6)) {
                    return Err(of(field, "it must be above 0, in GB/s"));
                }
            }
            if line.latency_ms.is_some_and(|n| !(0.0..1e6).contains(&n)) {
                return Err(of("latency_ms", "it must be at least 0"));
            }
            if line.cores.is_some_and(|n| !(1..=1024).contains(&n)) {
                return Err(of("cores", "there must be 1 to 1024"));
            }
            let same = |other: &Line| other.name == line.name;
            if self.machine[..index].iter().any(same) {
                return Err(of("name", "another machine has it"));
            }
        }
        Ok(())
    }

    /// The machines; what is not told of them is as on `here`, by cores where that matters.
    pub(super) fn nodes(&self, here: &Machine) -> Vec<Node> {
        self.machine.iter().map(|line| line.node(here)).collect()
    }
}

impl Line {
    fn node(&self, here: &Machine) -> Node {
        let threads = self.cores.unwrap_or(here.threads);
        let per_core = threads as f64 / here.threads as f64;
        let told = |value: f64| Rate::new(value * 1e9, "given");
        let memory = self.memory_bandwidth.map_or(here.memory.clone(), told);
        // Weights pass through products as fast as here, beside the memory and by cores.
        let share = memory.per_second / here.memory.per_second;
        let decode = here.decode.per_second * share.min(per_core.max(1.0));
        let like_here = |value| Rate::new(value, "as measured here");
        let rates = Rates {
            decode: like_here(decode),
            products: like_here(here.products.per_second * per_core),
            disk: self.disk.map_or(here.disk.clone(), told),
            page_cache: here.page_cache.clone(),
            memory,
        };
        let limit = MemoryLimit {
            bytes: self.memory.bytes().unwrap_or(0),
            origin: "the table of machines".to_owned(),
        };
        Node {
            name: self.name.clone(),
            machine: Machine::new(threads, Isa::detect(), limit, rates),
            link: self.link.map_or(LINK, |link| link * 1e9),
            latency: self.latency_ms.map_or(LATENCY, |ms| ms / 1e3),
        }
    }
}
