//! `lamella version`.

use crate::args::JsonArgs;
use crate::terminal;
use lamella_kernels::Isa;
use serde_json::json;

pub(crate) fn run(args: &JsonArgs) -> anyhow::Result<()> {
    let available: Vec<_> = Isa::ALL
        .into_iter()
        .filter(|isa| isa.is_available())
        .map(Isa::name)
        .collect();
    let families: Vec<_> = lamella_families::known_model_types().collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        return terminal::print_json(&json!({
            "version": version,
            "recipe": lamella_kernels::RECIPE,
            "container_format": lamella_container::FORMAT_VERSION,
            "program_version": lamella_program::program::PROGRAM_VERSION,
            "architecture": std::env::consts::ARCH,
            "isa": Isa::detect().name(),
            "isas": available,
            "threads": threads,
            "families": families,
        }));
    }
    terminal::print(&format!(
        "lamella {version}\n\
         numeric recipe {}, container format {}, program {}\n\
         {} with {} (best: {}), {threads} threads\n\
         families: {}\n",
        lamella_kernels::RECIPE,
        lamella_container::FORMAT_VERSION,
        lamella_program::program::PROGRAM_VERSION,
        std::env::consts::ARCH,
        available.join(", "),
        Isa::detect(),
        families.join(", "),
    ))
}
