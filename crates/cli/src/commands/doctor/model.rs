//! A model: whether it is whole, speaks, fits, and lies on a disk that is fast enough.

use super::{Finding, Severity};
use crate::commands::plan::files;
use crate::commands::verify;
use crate::failure::Kind;
use crate::model::{self, Place};
use crate::progress::{Progress, Unit, bytes};
use crate::terminal::Terminal;
use lamella_container::manifest::MANIFEST_FILE;
use lamella_container::{Extent, Store};
use lamella_engine::plan::probe::{disk, system};
use lamella_engine::plan::{Placement, Question, placement};
use lamella_engine::{Options, Quarantined, quarantined, release};
use lamella_text::{Bundle, ChatOptions, Message};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Records that are read of a container unless all are.
const SAMPLE: usize = 64;
/// Damage that is told one by one.
const TOLD: usize = 20;
/// Time that the disk is measured for.
const DISK_TIME: Duration = Duration::from_secs(1);
/// Bytes per second below which experts on disk are slow.
const SLOW: f64 = 500e6;
/// Bytes of a read where a model has no experts.
const READ: u64 = 4 << 20;

pub(super) fn examine(place: &Place, deep: bool, terminal: &Terminal) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_container = place.path().join(MANIFEST_FILE).exists();
    if is_container {
        findings.extend(container(place, deep, terminal));
    }
    let store = match model::store(place) {
        Ok(store) => store,
        Err(error) => {
            let what = format!("{error:#}");
            if findings.iter().all(|f| f.what != what) {
                let why = "the model does not open";
                findings.push(damaged("files", what, why, is_container));
            }
            return findings;
        }
    };
    if !is_container {
        findings.extend(checkpoint(&store, deep, terminal));
    }
    let sound = findings.iter().all(|f| f.severity < Severity::Problem);
    if let Some(dir) = crate::files::quarantine_dir() {
        findings.push(quarantine(&dir, &store, deep && sound));
    }
    findings.push(speech(&store));
    let placed = fits(&store);
    let on_disk = placed
        .as_ref()
        .is_ok_and(|placement| placement.slot_bytes > 0);
    findings.push(match &placed {
        Ok(placement) => memory(placement),
        Err(finding) => finding.clone(),
    });
    findings.extend(disk_findings(&store, on_disk));
    findings
}

/// Something of a model that is not what it was.
fn damaged(id: &'static str, what: String, why: &str, is_container: bool) -> Finding {
    let fix = match is_container {
        true => "copy the container again, or `lamella convert` it from its checkpoint again",
        false => "fetch the named file again",
    };
    Finding::problem(Kind::Model, id, what, why).fix(fix)
}

fn container(place: &Place, deep: bool, terminal: &Terminal) -> Vec<Finding> {
    let extent = match deep {
        true => Extent::All,
        false => Extent::Sample(SAMPLE),
    };
    let mut progress = Progress::new(terminal, "verifying", Unit::Bytes);
    let found = verify::container(place, extent, &mut progress);
    progress.finish();
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            let why = "the container does not open";
            return vec![damaged("container", format!("{error:#}"), why, true)];
        }
    };
    told("container", &found, true, |read, records| match deep {
        true => format!("every digest fits: {read} in {records} records"),
        false => {
            format!("complete; {records} sampled records fit their digests ({read}; --deep: all)")
        }
    })
}

/// What runs have found damaged. What is `sound`, all of it, leaves the list.
fn quarantine(dir: &Path, store: &Store, sound: bool) -> Finding {
    const ID: &str = "quarantine";
    let listed = quarantined(dir, store).unwrap_or_default();
    let Some(first) = listed.first() else {
        return Finding::ok(ID, "no run has found an expert damaged");
    };
    let here = |entry: &Quarantined| entry.dir == store.dir();
    let others = listed.iter().filter(|entry| !here(entry)).count();
    if sound && others == 0 && release(dir, store, &here).is_ok() {
        let count = listed.len();
        return Finding::ok(
            ID,
            format!("{count} experts were found damaged and are whole again"),
        );
    }
    let more = match listed.len() {
        1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let (layer, expert) = (first.layer, first.expert);
    let what = format!("layer {layer}, expert {expert}: {}{more}", first.problem);
    let why = "runs have found this; steps that need it fail, or read a mirror";
    Finding::warning(ID, what, why).fix(match others {
        0 => format!(
            "copy the file again, then `lamella doctor --deep {}`",
            store.dir().display()
        ),
        _ => format!(
            "copy the file of that mirror again, then remove the list of this model in {}",
            dir.display()
        ),
    })
}

fn checkpoint(store: &Store, deep: bool, terminal: &Terminal) -> Vec<Finding> {
    if !deep {
        return vec![match store.check_filled() {
            Ok(()) => Finding::ok("checkpoint", "complete; --deep reads every number"),
            Err(error) => damaged(
                "checkpoint",
                error.to_string(),
                "it would compute noise",
                false,
            ),
        }];
    }
    let mut progress = Progress::new(terminal, "verifying", Unit::Bytes);
    let found = verify::checkpoint(store, &mut progress);
    progress.finish();
    told("checkpoint", &found, false, |read, records| {
        format!("complete and finite: {read} in {records} matrices; it records no digests")
    })
}

/// What a verification found, each damage by itself.
fn told(
    id: &'static str,
    found: &verify::Found,
    is_container: bool,
    sound: impl Fn(String, usize) -> String,
) -> Vec<Finding> {
    if found.damage.is_empty() {
        return vec![Finding::ok(id, sound(bytes(found.bytes), found.records))];
    }
    let one = |line: &String| {
        let why = "nothing is computed from it: steps that need it fail";
        damaged(id, line.clone(), why, is_container)
    };
    let mut findings: Vec<Finding> = found.damage.iter().take(TOLD).map(one).collect();
    if found.damage.len() > TOLD {
        let more = format!("{} more are damaged", found.damage.len() - TOLD);
        findings.push(Finding::note(id, more, "`lamella verify` lists all"));
    }
    findings
}

/// Whether a conversation can be written and read.
fn speech(store: &Store) -> Finding {
    let dir = store.dir();
    let bundle = match model::bundle(store) {
        Ok(bundle) => bundle,
        Err(error) => {
            let missing = matches!(
                error.downcast_ref(),
                Some(lamella_text::Error::Missing { .. })
            );
            let why = "prompts cannot be read; token ids can (`lamella exec`)";
            let what = format!("{error:#}");
            return match missing {
                true => Finding::warning("text", what, why)
                    .fix("put the tokenizer's files of the checkpoint beside the weights"),
                false => Finding::problem(Kind::Model, "text", what, why)
                    .fix("fetch the named file again"),
            };
        }
    };
    match rendered(&bundle, dir) {
        Ok(tokens) => {
            let words = bundle.tokenizer.vocabulary();
            Finding::ok(
                "text",
                format!("{words} tokens; a greeting is a prompt of {tokens}"),
            )
        }
        Err(what) => Finding::warning("text", what, "chats do not run")
            .fix("use --raw to continue plain text"),
    }
}

/// Tokens of a greeting as the chat format writes it.
fn rendered(bundle: &Bundle, dir: &Path) -> Result<usize, String> {
    let said = |error| format!("{:#}", model::text_error(dir, error));
    let chat = bundle.chat().map_err(said)?;
    let options = ChatOptions {
        add_generation_prompt: true,
        ..ChatOptions::default()
    };
    let prompt = chat
        .render(&[Message::user("Hello")], &options)
        .map_err(said)?;
    Ok(prompt.ids(&bundle.tokenizer).map_err(said)?.len())
}

/// Where the model would lie if it were opened now.
fn fits(store: &Store) -> Result<Placement, Finding> {
    let question = Question {
        options: Options::default(),
        sessions: 1,
        prompt: 1,
        hit_rate: None,
    };
    placement(store, &question).map_err(|error| {
        let why = "the model does not open";
        Finding::problem(Kind::Model, "fit", error.to_string(), why)
    })
}

fn memory(placement: &Placement) -> Finding {
    let least = bytes(placement.least_bytes);
    if let Some(refusal) = &placement.refusal {
        let what = format!("it does not open: {refusal}");
        return Finding::problem(Kind::Resources, "fit", what, "too little memory is free").fix(
            format!("free memory ({least} suffice), or `lamella plan` a shorter context"),
        );
    }
    if placement.slot_bytes > 0 {
        let what = format!(
            "{} experts fit into memory at once, the others are read when needed",
            placement.slots
        );
        let why = "each that is not there is waited for";
        return Finding::note("fit", what, why).fix("`lamella plan` tells what would help");
    }
    if !placement.fits {
        let what = format!(
            "{} hold everything but a whole context",
            bytes(placement.peak_bytes)
        );
        let why = "a conversation that grows to it ends for want of memory";
        return Finding::note("fit", what, why).fix("take a shorter --context");
    }
    Finding::ok(
        "fit",
        format!("all of it, in {}", bytes(placement.peak_bytes)),
    )
}

fn disk_findings(store: &Store, on_disk: bool) -> Vec<Finding> {
    let files = files(store);
    let mut findings = Vec::new();
    let refused = files.iter().find_map(|path| disk::open_direct(path).err());
    findings.push(match refused {
        None => Finding::ok("direct I/O", "the files can be read past the page cache"),
        Some(error) => Finding::warning(
            "direct I/O",
            format!("the files cannot be read past the page cache: {error}"),
            "experts on disk are then in memory twice, and reading them is slower",
        )
        .fix("put the model on a local file system (ext4, xfs, btrfs)"),
    });
    findings.extend(speed(store, &files, on_disk));
    findings.extend(read_ahead(store.dir()));
    findings.extend(free_disk(store.dir()));
    findings
}

fn speed(store: &Store, files: &[PathBuf], on_disk: bool) -> Option<Finding> {
    let bank = store.banks().first();
    let record = bank.and_then(|bank| {
        let encoding = *store.encodings(bank.gate).first()?;
        Some(store.expert_layout(bank, encoding)?.length as u64)
    });
    // Files without a whole page have nothing to measure.
    let speed = disk::measure(files, record.unwrap_or(READ), DISK_TIME).ok()?;
    let what = format!(
        "{:.2} GB/s in random reads of {}{}",
        speed.per_second / 1e9,
        bytes(speed.read_bytes),
        if speed.direct {
            ""
        } else {
            ", perhaps from the page cache"
        }
    );
    Some(match on_disk && speed.per_second < SLOW {
        true => Finding::warning("disk speed", what, "experts are read from this disk").fix(
            "put the model on a faster disk; `lamella plan --disk GB/S` tells what that brings",
        ),
        false => Finding::ok("disk speed", what),
    })
}

fn read_ahead(dir: &Path) -> Option<Finding> {
    const MOST: u64 = 1 << 20;
    let ahead = system::read_ahead(dir)?;
    let what = format!("{} are read ahead", bytes(ahead));
    Some(match ahead > MOST {
        true => Finding::note(
            "read-ahead",
            what,
            "experts read through the page cache (--reader buffered) bring much along that is not \
             needed",
        )
        .fix("echo 128 | sudo tee /sys/block/DISK/queue/read_ahead_kb"),
        false => Finding::ok("read-ahead", what),
    })
}

fn free_disk(dir: &Path) -> Option<Finding> {
    const LITTLE: u64 = 1 << 30;
    let free = system::free_disk(dir).ok()?;
    let what = format!("{} free beside the model", bytes(free));
    Some(match free < LITTLE {
        true => Finding::note("disk space", what, "there is no room to convert to"),
        false => Finding::ok("disk space", what),
    })
}
