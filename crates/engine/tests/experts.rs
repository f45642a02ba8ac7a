//! Models whose experts do not all fit into memory compute the same bits from disk.

mod common;

use common::{FAMILIES, bits, least, open, read, reference_sequence, repository};
use lamella_container::{ConvertOptions, Keep, ReadQueue, Store, convert};
use lamella_engine::{
    Cancel, Error, ExpertStatistics, Logits, Model, Options, ReadAccess, Span, Verify, lower,
};
use lamella_program::Encoding;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn options(want: Option<Encoding>) -> Options {
    Options {
        threads: Some(2),
        step_rows: 16,
        context: Some(64),
        want,
        ..Options::default()
    }
}

fn within(path: &Path, options: &Options, limit: u64) -> Arc<Model> {
    let options = Options {
        memory_limit: Some(limit),
        ..options.clone()
    };
    open(path, &options)
}

/// Logits of a prompt in pieces and of tokens one by one; and with the next tokens of the same
/// conversation in one step with another one, if `both` may be there.
fn through(model: &Model, ids: &[u32], both: bool) -> Vec<u32> {
    let mut session = model.session();
    let mut logits = read(model, &mut session, &ids[..20], 7);
    for id in &ids[20..32] {
        logits.extend(read(model, &mut session, &[*id], 1));
    }
    if !both {
        return bits(&logits);
    }
    let (mut other, mut outs) = (model.session(), [Vec::new(), Vec::new()]);
    let [out, other_out] = &mut outs;
    let mut spans = [
        Span {
            session: &mut session,
            tokens: &ids[32..34],
            logits: Logits::All,
            out,
        },
        Span {
            session: &mut other,
            tokens: &ids[..5],
            logits: Logits::All,
            out: other_out,
        },
    ];
    model.step(&mut spans, &Cancel::new()).expect("steps");
    logits.extend(outs.concat());
    bits(&logits)
}

/// Bytes that a short conversation takes.
fn one_more(model: &Model, ids: &[u32]) -> u64 {
    let mut session = model.session();
    read(model, &mut session, &ids[..32], 16);
    session.state_bytes()
}

/// The smallest limit above `least` that leaves no expert on disk.
fn whole(path: &Path, options: &Options, least: u64) -> u64 {
    let (mut some, mut all) = (least, least << 5);
    while all - some > 1 {
        let middle = some + (all - some) / 2;
        match within(path, options, middle).experts() {
            None => all = middle,
            Some(_) => some = middle,
        }
    }
    all
}

/// Runs `path` at several limits against all of it in memory; what the least one counted, if it
/// takes less with some of the experts on disk.
fn compare(path: &Path, ids: &[u32], want: Option<Encoding>) -> Option<ExpertStatistics> {
    let options = options(want);
    let all = open(path, &options);
    assert_eq!(all.experts(), None, "there is room for all");
    let expected = through(&all, ids, true);
    let state = one_more(&all, ids);
    let least = least(path, &options);
    within(path, &options, least).experts()?;
    let most = whole(path, &options, least);
    let mut first = None;
    let mut slots = 0;
    for tenths in [0, 1, 4, 8] {
        // The least holds one conversation's beginning.
        let both = tenths > 0;
        let more = ((most - least) * tenths / 10).max(if both { state } else { 0 });
        let limit = least + more;
        let options = Options {
            expert_ahead: tenths != 4,
            ..options.clone()
        };
        let model = within(path, &options, limit);
        let name = format!("{}, {want:?}, {limit}", path.display());
        assert_eq!(model.numeric_class(), all.numeric_class());
        let found = through(&model, ids, both);
        assert!(found == expected[..found.len()], "{name}");
        let Some(counted) = model.experts() else {
            assert!(more == state, "{name}");
            continue;
        };
        assert!(
            counted.slots >= slots && counted.slots <= counted.experts,
            "{name}"
        );
        assert!(counted.hits <= counted.uses && counted.uses > 0, "{name}");
        let report = model.report();
        assert!(
            report.resident_bytes + report.workspace_bytes <= limit,
            "{name}"
        );
        slots = counted.slots;
        first.get_or_insert(counted);
    }
    first
}

#[test]
fn every_family_runs_with_a_single_expert_in_memory() {
    let (mut smaller, mut single) = (0, 0);
    for fixture in FAMILIES {
        let dir = repository("fixtures").join(fixture);
        let ids = reference_sequence(&dir);
        let counted = compare(&dir, &ids, None).expect("experts are most of it");
        // Where loading takes the most, more have room afterwards.
        single += usize::from((counted.slots, counted.hits) == (1, 0));
        assert!(counted.bytes_read > 0, "{fixture}");
        for want in [Encoding::Q8, Encoding::Q4] {
            // Quantised, the experts of a tiny model take less than the lists of what is where.
            smaller += usize::from(compare(&dir, &ids, Some(want)).is_some());
        }
    }
    assert!(
        smaller > FAMILIES.len() && single > 2,
        "{smaller}, {single}"
    );
}

/// A container of q4 experts, in a directory that goes with the first value.
fn container_of(fixture: &str) -> (tempfile::TempDir, std::path::PathBuf, Vec<u32>) {
    let dir = repository("fixtures").join(fixture);
    let temporary = tempfile::tempdir().expect("a directory");
    let container = temporary.path().join("q4");
    let source = Store::open(&dir, &lower).expect("a fixture");
    let settings = ConvertOptions::new(Keep::As(Encoding::Q4));
    let never = AtomicBool::new(false);
    convert(&source, &container, &settings, &mut |_| {}, &never).expect("converts");
    (temporary, container, reference_sequence(&dir))
}

fn container() -> (tempfile::TempDir, std::path::PathBuf, Vec<u32>) {
    container_of("olmoe-101")
}

#[test]
fn a_container_is_read_as_it_lies() {
    let (_temporary, container, ids) = container();
    let counted = compare(&container, &ids, None).expect("experts are most of it");
    assert!(counted.bytes_read > 0);
}

/// Ways of reading there are: direct reads are not for every file system, and not for experts that
/// do not lie in one piece as they are computed with; not every kernel has queues.
fn accesses(path: &Path) -> Vec<ReadAccess> {
    let store = Store::open(path, &lower).expect("a container");
    let bank = store.banks()[0];
    let record = store.expert_record(&bank, 0, Encoding::Q4);
    let direct = record.is_some_and(|record| store.is_direct(record.file));
    let queued = ReadQueue::new().is_ok();
    let ways = [ReadAccess::Buffered, ReadAccess::Direct, ReadAccess::Queued];
    let count = match (direct, queued) {
        (false, _) => 1,
        (true, false) => 2,
        (true, true) => 3,
    };
    ways[..count].to_vec()
}

#[test]
fn however_experts_are_read_the_bits_are_the_same() {
    let mut compared = 0;
    for fixture in FAMILIES {
        let (_temporary, path, ids) = container_of(fixture);
        let plain = options(None);
        let all = open(&path, &plain);
        let expected = through(&all, &ids, true);
        let state = one_more(&all, &ids);
        let least = least(&path, &plain);
        if within(&path, &plain, least).experts().is_none() {
            continue;
        }
        compared += 1;
        let most = whole(&path, &plain, least);
        let mut read_ahead = 0;
        for percent in [0, 10, 25, 50, 99] {
            for (access, ahead) in accesses(&path)
                .into_iter()
                .flat_map(|a| [(a, false), (a, true)])
            {
                let options = Options {
                    expert_access: Some(access),
                    expert_ahead: ahead,
                    expert_verify: [Verify::First, Verify::Always, Verify::Never][percent % 3],
                    ..plain.clone()
                };
                let more = (most - least) * percent as u64 / 100;
                let model = within(&path, &options, least + more);
                let both = more >= state;
                let name = format!("{fixture}, {percent} %, {access:?}, {ahead}");
                let found = through(&model, &ids, both);
                assert!(found == expected[..found.len()], "{name}");
                let counted = model.experts().expect("not all fit");
                assert!(ahead || counted.ahead == 0, "{name}");
                assert!(counted.hits < counted.uses || percent > 0, "{name}");
                read_ahead += counted.ahead_used;
            }
        }
        assert!(read_ahead > 0, "{fixture}");
    }
    assert!(compared > 4, "{compared}");
}

/// Packs are found where links lead, which spreads a container over disks.
#[cfg(unix)]
#[test]
fn packs_may_lie_on_another_disk() {
    let (temporary, path, ids) = container();
    let all = open(&path, &options(None));
    let expected = through(&all, &ids, false);
    let elsewhere = temporary.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    let mut moved = 0;
    for entry in std::fs::read_dir(&path).expect("a container") {
        let entry = entry.expect("a file");
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("experts-000") {
            let to = elsewhere.join(&name);
            std::fs::rename(entry.path(), &to).expect("moved");
            std::os::unix::fs::symlink(&to, entry.path()).expect("a link");
            moved += 1;
        }
    }
    assert!(moved > 1, "{moved}");
    let model = within(&path, &options(None), least(&path, &options(None)));
    assert!(through(&model, &ids, false) == expected);
    let read = model.experts().expect("not all fit").bytes_read;
    assert!(read > 0);
}

#[test]
fn direct_reads_of_what_cannot_be_read_so_are_refused() {
    let dir = repository("fixtures/olmoe-101");
    let options = Options {
        expert_access: Some(ReadAccess::Direct),
        memory_limit: Some(least(&dir, &options(None))),
        ..options(None)
    };
    match Model::open(&dir, &options, &mut |_| {}) {
        Err(Error::Setting { name, message }) => {
            assert_eq!(name, "reader");
            assert!(message.contains("checkpoint"), "{message}");
        }
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn damage_is_told_nothing_is_computed_from_it_and_the_conversation_goes_on() {
    let (_temporary, container, ids) = container();
    let least = least(&container, &options(None));
    let model = within(&container, &options(None), least);
    let mut session = model.session();
    read(&model, &mut session, &ids[..10], 5);
    let unit = match &model.program().layers[2].ffn.body {
        lamella_program::block::Ffn::Routed(routed) => routed.unit.clone(),
        other => panic!("{other:?}"),
    };
    let mut damaged = Vec::new();
    for expert in 0..model.program().operand(unit.up).items() {
        let record = model.store().stored(unit.up, Encoding::Q4, expert);
        damaged.push(record.expect("it is stored"));
    }
    let file = model.store().file(damaged[0].file).expect("its file");
    let sound = std::fs::read(file).expect("pack");
    let mut content = sound.clone();
    for record in &damaged {
        content[(record.offset + record.length / 2) as usize] ^= 1;
    }
    std::fs::write(file, content).expect("damage");
    let (cancel, mut out) = (Cancel::new(), Vec::new());
    for _ in 0..2 {
        let mut span = [Span {
            session: &mut session,
            tokens: &ids[10..13],
            logits: Logits::All,
            out: &mut out,
        }];
        let error = model.step(&mut span, &cancel).expect_err("it is damaged");
        let name = &model.program().operand(unit.up).name;
        assert!(error.to_string().contains(name.as_str()), "{error}");
        assert!(session.position() == 10 && out.is_empty());
    }
    std::fs::write(file, sound).expect("repair");
    let found = read(&model, &mut session, &ids[10..60], 3);
    let all = open(&container, &options(None));
    let mut undisturbed = all.session();
    read(&all, &mut undisturbed, &ids[..10], 5);
    let expected = read(&all, &mut undisturbed, &ids[10..60], 3);
    assert!(bits(&found) == bits(&expected));
}

#[test]
fn conversations_take_memory_from_experts_and_give_it_back() {
    let dir = repository("fixtures/olmoe-101");
    let ids = reference_sequence(&dir);
    let options = options(None);
    let all = open(&dir, &options);
    let expected = bits(&read(&all, &mut all.session(), &ids[..30], 7));
    let limit = least(&dir, &options) + 3 * one_more(&all, &ids);
    let model = within(&dir, &options, limit);
    let slots = |model: &Model| model.experts().expect("not all fit").slots;
    let (before, mut held, mut fewest) = (slots(&model), Vec::new(), u64::MAX);
    let refused = loop {
        let mut session = model.session();
        let mut span = [Span {
            session: &mut session,
            tokens: &ids[..30],
            logits: Logits::Last,
            out: &mut Vec::new(),
        }];
        match model.step(&mut span, &Cancel::new()) {
            Ok(()) => {
                session.truncate(0).expect("back");
                assert!(bits(&read(&model, &mut session, &ids[..30], 7)) == expected);
                assert!(slots(&model) <= fewest);
                fewest = slots(&model);
                held.push(session);
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Memory { .. }), "{refused}");
    assert!(
        refused.to_string().contains("End other conversations"),
        "{refused}"
    );
    assert_eq!((held.len(), slots(&model)), (4, 1));
    // Those that are there go on.
    let last = held.last_mut().expect("there are some");
    read(&model, last, &ids[30..40], 1);
    held.truncate(1);
    let found = read(&model, &mut model.session(), &ids[..30], 7);
    assert!(bits(&found) == expected && slots(&model) > fewest);
    held.clear();
    read(&model, &mut model.session(), &ids[..1], 1);
    // One conversation's beginning has its room from the start.
    assert_eq!(slots(&model), before);
    let mut written = Vec::new();
    let mut session = model.session();
    read(&model, &mut session, &ids[..30], 7);
    model.snapshot(&session, &mut written).expect("a snapshot");
    held.extend((0..2).map(|_| {
        let mut restored = model.session();
        let read = model.restore(&mut restored, &mut written.as_slice());
        read.expect("there is room");
        restored
    }));
    let next = read(&model, &mut session, &ids[30..40], 3);
    for restored in &mut held {
        assert!(bits(&read(&model, restored, &ids[30..40], 3)) == bits(&next));
    }
}

#[test]
fn what_was_much_used_is_there_before_it_is_asked_for() {
    let (_temporary, container, ids) = container();
    let kept = tempfile::tempdir().expect("a directory");
    let plain = options(None);
    let all = open(&container, &plain);
    let expected = through(&all, &ids, true);
    let least = least(&container, &plain);
    let most = whole(&container, &plain, least);
    let limit = least + ((most - least) / 2).max(one_more(&all, &ids));
    for (run, pin) in [(0, 0), (1, 0), (2, 50), (3, 100)] {
        let options = Options {
            heat: Some(kept.path().join("heat")),
            pin,
            expert_ahead: false,
            ..plain.clone()
        };
        let model = within(&container, &options, limit);
        assert!(through(&model, &ids, true) == expected, "{run}");
        let counted = model.experts().expect("not all fit");
        assert_eq!(counted.ahead > 0, run > 0, "{run}: {counted:?}");
        assert!(counted.ahead < counted.experts);
    }
    let files = std::fs::read_dir(kept.path().join("heat")).expect("lists");
    assert_eq!(files.count(), 1);
}

#[test]
fn one_byte_less_than_the_least_is_refused_with_the_sum() {
    let dir = repository("fixtures/olmoe-101");
    let options = options(None);
    let least = least(&dir, &options);
    within(&dir, &options, least);
    let less = Options {
        memory_limit: Some(least - 1),
        ..options
    };
    match Model::open(&dir, &less, &mut |_| {}) {
        Err(Error::Memory { sum, .. }) => {
            assert!(sum.contains(&format!("= {least} bytes")), "{sum}");
            assert!(sum.contains("one expert"), "{sum}");
        }
        other => panic!("{:?}", other.err()),
    }
}
