//! The machine: processor, memory, limits and settings of the system.

use super::Finding;
use crate::progress::bytes;
use lamella_engine::plan::probe::system::{self, Allowed};
use lamella_kernels::Isa;

/// Files that are open at a time with a large model: two for each layer and encoding.
const FILES: u64 = 1024;
/// Free memory below which little runs.
const LITTLE: u64 = 1 << 30;

pub(super) fn examine() -> Vec<Finding> {
    vec![
        processor(),
        memory(),
        control_group(),
        address_space(),
        open_files(),
        locked_memory(),
        huge_pages(),
        io_uring(),
    ]
}

/// Features that kernels could use, by their names in `/proc/cpuinfo`, and the instruction set
/// whose kernels do.
const FEATURES: [(&str, Option<Isa>); 14] = [
    ("avx2", Some(Isa::Avx2)),
    ("fma", Some(Isa::Avx2)),
    ("f16c", Some(Isa::Avx2)),
    ("avx512f", Some(Isa::Avx512)),
    ("avx512bw", Some(Isa::Avx512)),
    ("avx512dq", Some(Isa::Avx512)),
    ("avx512vl", Some(Isa::Avx512)),
    ("avx512_vnni", Some(Isa::Avx512)),
    ("amx_tile", Some(Isa::Amx)),
    ("amx_int8", Some(Isa::Amx)),
    ("avx_vnni", None),
    ("avx512_bf16", None),
    ("avx512_fp16", None),
    ("amx_bf16", None),
];

fn processor() -> Finding {
    let best = Isa::detect();
    let rank = |isa: Isa| Isa::ALL.iter().position(|other| *other == isa);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find(|line| line.starts_with("flags"));
    let flags: Vec<&str> = flags.unwrap_or_default().split_whitespace().collect();
    let here = FEATURES.iter().filter(|(name, _)| flags.contains(name));
    let is_used = |isa: &Option<Isa>| isa.is_some_and(|isa| rank(isa) <= rank(best));
    let (used, unused): (Vec<_>, Vec<_>) = here.partition(|(_, isa)| is_used(isa));
    let names = |list: &[&(&str, Option<Isa>)]| match list {
        [] => "none".to_owned(),
        list => list
            .iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(" "),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let what = format!(
        "{best} kernels, {threads} threads; used: {}; not used: {}",
        names(&used),
        names(&unused)
    );
    match best {
        Isa::Scalar => Finding::warning(
            "processor",
            what,
            "kernels without vectors are many times slower",
        )
        .fix(
            "run on a processor with AVX2 and FMA; in a virtual machine let it see the host's \
             (`-cpu host`)",
        ),
        Isa::Avx2 => Finding::note(
            "processor",
            what,
            "prompts are read about half as fast as with AVX-512 VNNI",
        ),
        _ => Finding::ok("processor", what),
    }
}

fn memory() -> Finding {
    let free = system::free_memory();
    let what = format!("{} {}", bytes(free.bytes), free.origin);
    match free.bytes < LITTLE {
        true => Finding::warning("memory", what, "hardly a model fits").fix("end other programs"),
        false => Finding::ok("memory", what),
    }
}

fn control_group() -> Finding {
    match system::control_group() {
        None => Finding::ok("control group", "no limit of memory"),
        Some(left) => {
            let what = format!("{} left under its limit", bytes(left));
            let why = "what takes more is killed; models are opened within it";
            let fix =
                "raise memory.max of the group (docker run --memory, MemoryMax= of a service)";
            match left < LITTLE {
                true => Finding::warning("control group", what, why).fix(fix),
                false => Finding::note("control group", what, why),
            }
        }
    }
}

fn address_space() -> Finding {
    match system::address_space().now {
        None => Finding::ok("address space", "no limit"),
        Some(limit) => Finding::warning(
            "address space",
            format!("at most {}", bytes(limit)),
            "weights and state are mapped into it; models are opened within it",
        )
        .fix("ulimit -v unlimited"),
    }
}

/// A limit in words.
fn said(limit: Option<u64>, of: impl Fn(u64) -> String) -> String {
    limit.map_or("no limit".to_owned(), of)
}

fn open_files() -> Finding {
    let Allowed { now, most, .. } = system::open_files();
    let count = |n: u64| n.to_string();
    let what = format!("{} (at most {})", said(now, count), said(most, count));
    if now.is_none_or(|now| now >= FILES) {
        return Finding::ok("open files", what);
    }
    let why = "a container has a file for each layer and encoding, and each may be open twice";
    let raise = match most {
        Some(most) if most < FILES => {
            format!("raise the hard limit to {FILES} in /etc/security/limits.conf (nofile)")
        }
        _ => format!("ulimit -n {FILES}"),
    };
    Finding::warning("open files", what, why).fix(raise)
}

fn locked_memory() -> Finding {
    let Allowed { now, most, .. } = system::locked_memory();
    let what = format!("{} (at most {})", said(now, bytes), said(most, bytes));
    // Nothing of ours is locked: any limit will do.
    Finding::ok("locked memory", format!("{what}; none is needed"))
}

fn huge_pages() -> Finding {
    const PATH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    match system::huge_pages().as_deref() {
        Some("never") => Finding::warning(
            "huge pages",
            "never given",
            "weights are read through many more entries of the page table, which is slower",
        )
        .fix(format!("echo madvise | sudo tee {PATH}")),
        Some(word) => Finding::ok("huge pages", format!("given: {word}")),
        None => Finding::note(
            "huge pages",
            "this system does not tell whether it gives any",
            "without them weights are read a little slower",
        ),
    }
}

fn io_uring() -> Finding {
    match system::io_uring() {
        Ok(()) => Finding::ok(
            "io_uring",
            "allowed; experts are read by threads, which need none",
        ),
        Err(error) => Finding::ok(
            "io_uring",
            format!("not allowed ({error}); experts are read by threads, which need none"),
        ),
    }
}
