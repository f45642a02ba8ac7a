//! The commands of a chat.

use super::ChatSettings;
use crate::config::keys;
use clap::Parser;

/// What a line of a person means.
#[derive(Debug, PartialEq)]
pub(super) enum Slash<'a> {
    Message(&'a str),
    Help,
    Clear,
    Undo,
    Exit,
    System(Option<&'a str>),
    ShowSettings,
    Set(&'a str, &'a str),
    Unknown(&'a str),
}

/// Lines that begin with `/` are commands; ` /` or `//` at the start is not.
pub(super) fn parse(line: &str) -> Slash<'_> {
    if let Some(text) = line.strip_prefix('/').filter(|rest| rest.starts_with('/')) {
        return Slash::Message(text);
    }
    if !line.starts_with('/') {
        return Slash::Message(line);
    }
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match word {
        "/help" | "/?" => Slash::Help,
        "/clear" => Slash::Clear,
        "/undo" => Slash::Undo,
        "/exit" | "/quit" | "/bye" => Slash::Exit,
        "/system" => Slash::System(Some(rest).filter(|text| !text.is_empty())),
        "/set" if rest.is_empty() => Slash::ShowSettings,
        "/set" => match rest.split_once(|c: char| c.is_whitespace() || c == '=') {
            Some((name, value)) => Slash::Set(name, value.trim()),
            None => Slash::Set(rest, ""),
        },
        _ => Slash::Unknown(word),
    }
}

/// The value that takes a setting back.
const DEFAULT: &str = "default";

/// Changes one setting by the name it has everywhere, or takes it back to the model's default.
///
/// # Errors
/// What is wrong, for the person to read.
pub(super) fn set(settings: &mut ChatSettings, name: &str, value: &str) -> Result<(), String> {
    let name = name.replace('-', "_");
    let names: Vec<String> = changeable().collect();
    if !names.contains(&name) {
        return Err(format!(
            "{name} cannot be set here; these can: {}",
            names.join(", ")
        ));
    }
    if value == DEFAULT {
        unset(settings, &name);
        return Ok(());
    }
    if value.is_empty() {
        return Err(format!(
            "{name}: a value is missing; {DEFAULT} takes it back"
        ));
    }
    let key = keys().into_iter().find(|key| key.name == name);
    if let Some(key) = key {
        key.check(&[value.to_owned()])?;
    }
    let typed = format!("--{}={value}", name.replace('_', "-"));
    settings
        .try_update_from([typed])
        .map_err(|error| error.to_string())
}

/// Takes the setting `name`, one of [`changeable`], back to the model's default.
fn unset(settings: &mut ChatSettings, name: &str) {
    let (answer, sampling) = (&mut settings.answer, &mut settings.sampling);
    match name {
        "max_tokens" => answer.max_tokens = None,
        "stop" => answer.stop.clear(),
        "system" => answer.system = None,
        "thinking" => answer.thinking = None,
        "reasoning_effort" => answer.reasoning_effort = None,
        "tools" => answer.tools = None,
        "speculate" => answer.speculate = None,
        "draft_tokens" => answer.draft_tokens = None,
        "temperature" => sampling.temperature = None,
        "top_k" => sampling.top_k = None,
        "top_p" => sampling.top_p = None,
        "min_p" => sampling.min_p = None,
        "repetition_penalty" => sampling.repetition_penalty = None,
        "frequency_penalty" => sampling.frequency_penalty = None,
        "presence_penalty" => sampling.presence_penalty = None,
        "logit_bias" => sampling.logit_bias.clear(),
        "seed" => sampling.seed = None,
        _ => {}
    }
}

/// Whether `name` is the system message, which belongs to the conversation too.
pub(super) fn is_system(name: &str) -> bool {
    name == "system"
}

/// The settings that differ from the default, and the names of all.
pub(super) fn describe(settings: &ChatSettings) -> String {
    let (answer, sampling) = (&settings.answer, &settings.sampling);
    let bias: Vec<_> = sampling
        .logit_bias
        .iter()
        .map(|b| format!("{}={}", b.id, b.value))
        .collect();
    let quoted = |text: &String| format!("{text:?}");
    let stop: Vec<_> = answer.stop.iter().map(quoted).collect();
    let number = |value: Option<f64>| value.map(|v| v.to_string());
    let values = [
        ("max_tokens", answer.max_tokens.map(|v| v.to_string())),
        ("stop", Some(stop.join(", ")).filter(|s| !s.is_empty())),
        ("system", answer.system.as_ref().map(quoted)),
        (
            "thinking",
            answer
                .thinking
                .map(|on| if on { "on" } else { "off" }.into()),
        ),
        ("reasoning_effort", answer.reasoning_effort.clone()),
        (
            "tools",
            answer.tools.as_ref().map(|path| path.display().to_string()),
        ),
        ("speculate", answer.speculate.map(|v| v.name().to_owned())),
        ("draft_tokens", answer.draft_tokens.map(|v| v.to_string())),
        ("temperature", number(sampling.temperature)),
        ("top_k", sampling.top_k.map(|v| v.to_string())),
        ("top_p", number(sampling.top_p)),
        ("min_p", number(sampling.min_p)),
        ("repetition_penalty", number(sampling.repetition_penalty)),
        ("frequency_penalty", number(sampling.frequency_penalty)),
        ("presence_penalty", number(sampling.presence_penalty)),
        (
            "logit_bias",
            Some(bias.join(", ")).filter(|s| !s.is_empty()),
        ),
        ("seed", sampling.seed.map(|v| v.to_string())),
    ];
    let line = |(name, value): (&str, Option<String>)| {
        format!(
            "{name} = {}",
            value.unwrap_or_else(|| "(the model's default)".to_owned())
        )
    };
    values.map(line).join("\n")
}

fn changeable() -> impl Iterator<Item = String> {
    use clap::CommandFactory;
    let command = ChatSettings::command();
    let names: Vec<String> = command
        .get_arguments()
        .map(|a| a.get_id().to_string())
        .collect();
    names.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> ChatSettings {
        ChatSettings::try_parse_from(std::iter::empty::<&str>()).unwrap()
    }

    #[test]
    fn lines_are_messages_or_commands() {
        let cases = [
            ("hello /help", Slash::Message("hello /help")),
            ("//path", Slash::Message("/path")),
            (" /x", Slash::Message(" /x")),
            ("/?", Slash::Help),
            ("/system  Be brief. ", Slash::System(Some("Be brief."))),
            ("/system", Slash::System(None)),
            ("/set", Slash::ShowSettings),
            ("/set top-k 5", Slash::Set("top-k", "5")),
            ("/set seed=7", Slash::Set("seed", "7")),
            ("/sing", Slash::Unknown("/sing")),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line), expected, "{line}");
        }
    }

    #[test]
    fn settings_change_by_their_one_name() {
        let mut settings = settings();
        set(&mut settings, "top-k", "5").unwrap();
        set(&mut settings, "presence_penalty", "-0.5").unwrap();
        set(&mut settings, "stop", "a b").unwrap();
        set(&mut settings, "stop", "--c").unwrap();
        assert_eq!(settings.sampling.top_k, Some(5));
        assert_eq!(settings.sampling.presence_penalty, Some(-0.5));
        assert_eq!(
            settings.answer.stop,
            ["--c"],
            "the new list replaces the old one"
        );
        let refused = [
            ("top_k", "x"),
            ("threads", "1"),
            ("", ""),
            ("temperature", "-1"),
        ];
        for (name, value) in refused {
            assert!(set(&mut settings, name, value).is_err(), "{name}");
        }
        assert_eq!(settings.sampling.top_k, Some(5));
    }

    #[test]
    fn every_setting_goes_back_to_its_default() {
        let mut settings = settings();
        let fresh = describe(&settings);
        for name in changeable() {
            let value = match name.as_str() {
                "logit_bias" => "3=1",
                "speculate" | "thinking" => "off",
                _ => "1",
            };
            set(&mut settings, &name, value).unwrap();
            assert_ne!(describe(&settings), fresh, "{name}");
            set(&mut settings, &name, "default").unwrap();
            assert_eq!(describe(&settings), fresh, "{name}");
            assert!(set(&mut settings, &name, "").is_err(), "{name}");
        }
    }

    #[test]
    fn every_setting_is_described() {
        let text = describe(&settings());
        let described: Vec<&str> = text
            .lines()
            .map(|line| line.split(' ').next().unwrap())
            .collect();
        assert_eq!(described, changeable().collect::<Vec<_>>());
    }
}
