//! What the typed options mean: settings for the engine and for sampling.

use crate::args::{EngineArgs, Memory, SamplingArgs};
use crate::failure::Failure;
use crate::files;
use lamella_engine::Options;
use lamella_engine::generate::Sampling;
use lamella_engine::memory::MemoryLimit;
use lamella_text::GenerationDefaults;
use std::hash::{BuildHasher, RandomState};

/// How to open a model, with at most so much memory and so many threads.
pub(crate) fn options(
    args: &EngineArgs,
    memory: Option<Memory>,
    threads: Option<usize>,
) -> Options {
    Options {
        want: args.encoding,
        source: args.source.unwrap_or_default(),
        backend: args.backend.unwrap_or_default(),
        threads,
        isa: args.isa,
        memory_limit: memory.and_then(memory_limit),
        context: args.context,
        expert_access: args.reader,
        expert_verify: args.verify.unwrap_or_default(),
        expert_ahead: args.prefetch.unwrap_or(true),
        mirrors: args.mirror.clone(),
        heat: args.heat.unwrap_or(false).then(files::heat_dir).flatten(),
        quarantine: files::quarantine_dir(),
        pin: u8::try_from(args.pin.unwrap_or(0)).unwrap_or(u8::MAX),
        ..Options::default()
    }
}

/// The memory limit in bytes; `None` is whatever is free.
pub(crate) fn memory_limit(asked: Memory) -> Option<u64> {
    match asked {
        Memory::Auto => None,
        Memory::Bytes(bytes) => Some(bytes),
        Memory::Part(part) => {
            let free = MemoryLimit::resolve(None).bytes;
            Some((free as f64 * part) as u64)
        }
    }
}

/// The same for a conversation, which remembers what experts it used unless told not to.
pub(crate) fn conversing(
    args: &EngineArgs,
    memory: Option<Memory>,
    threads: Option<usize>,
) -> Options {
    let heat = args.heat.or(Some(true));
    options(
        &EngineArgs {
            heat,
            ..args.clone()
        },
        memory,
        threads,
    )
}

/// Refuses more tokens, asked for by `option`, than a context of `context` holds.
///
/// # Errors
/// Wrong usage.
pub(crate) fn fits(option: &str, tokens: usize, context: usize) -> anyhow::Result<()> {
    if tokens <= context {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{option}: {tokens} tokens do not fit into the context of {context}"
    )))
}

/// How to choose tokens: as typed, otherwise as the checkpoint wishes, otherwise greedily. Only ids
/// below `sampleable`, those of the tokenizer, are chosen.
pub(crate) fn sampling(
    args: &SamplingArgs,
    model: &GenerationDefaults,
    sampleable: usize,
) -> Sampling {
    let samples = model.do_sample == Some(true);
    let wish = |value: Option<f32>| value.map(f64::from).filter(|_| samples);
    let default_temperature = if samples { 1.0 } else { 0.0 };
    let model_top_k = model.top_k.filter(|_| samples).map(|k| k as usize);
    let repetition = args
        .repetition_penalty
        .or(model.repetition_penalty.map(f64::from));
    Sampling {
        temperature: args
            .temperature
            .or(wish(model.temperature))
            .unwrap_or(default_temperature),
        top_k: args.top_k.or(model_top_k).unwrap_or(0),
        top_p: args.top_p.or(wish(model.top_p)).unwrap_or(1.0),
        min_p: args.min_p.or(wish(model.min_p)).unwrap_or(0.0),
        repetition_penalty: repetition.unwrap_or(1.0),
        frequency_penalty: args.frequency_penalty.unwrap_or(0.0),
        presence_penalty: args.presence_penalty.unwrap_or(0.0),
        logit_bias: args
            .logit_bias
            .iter()
            .map(|bias| (bias.id, bias.value))
            .collect(),
        sampleable: Some(sampleable),
    }
}

/// The seed asked for, or a new one.
pub(crate) fn seed(args: &SamplingArgs) -> u64 {
    // Every RandomState has fresh keys: the standard library's own source of randomness. TOML has
    // no integers from 2^63 on, and a seed should be fit for a `lamella.toml`.
    args.seed
        .unwrap_or_else(|| RandomState::new().hash_one("seed") >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_beats_the_model_beats_greedy() {
        let model = GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(0.5),
            top_k: Some(20),
            ..GenerationDefaults::default()
        };
        let typed = SamplingArgs {
            temperature: Some(0.25),
            ..SamplingArgs::default()
        };
        let nothing = SamplingArgs::default();
        assert_eq!(sampling(&typed, &model, 9).temperature, 0.25);
        assert_eq!(
            (sampling(&nothing, &model, 9).temperature, model.top_k),
            (0.5, Some(20))
        );
        let greedy = GenerationDefaults {
            do_sample: Some(false),
            ..model
        };
        assert_eq!(sampling(&nothing, &greedy, 9).temperature, 0.0);
        assert_eq!(sampling(&nothing, &greedy, 9).top_k, 0);
        let silent = GenerationDefaults::default();
        assert_eq!(sampling(&nothing, &silent, 9).temperature, 0.0);
    }

    #[test]
    fn seeds_differ_unless_given() {
        assert_ne!(
            seed(&SamplingArgs::default()),
            seed(&SamplingArgs::default())
        );
        assert_eq!(
            seed(&SamplingArgs {
                seed: Some(3),
                ..SamplingArgs::default()
            }),
            3
        );
    }
}
