//! Settings in layers: flag, then `LAMELLA_*`, then `lamella.toml`, then the default.
//!
//! The keys are not listed here: they are the options of the shared groups in [`crate::args`].
//! Values of lower layers are handed to clap as defaults of the options, so that one parser reads
//! all layers and a command cannot tell them apart.

mod file;
mod keys;
mod nearest;

pub(crate) use keys::{Key, keys};

use crate::args::Cli;
use crate::failure::{Failure, Kind};
use crate::files;
use anyhow::Context;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

const PREFIX: &str = "LAMELLA_";
/// Names the configuration file; not a setting itself.
const CONFIG_VARIABLE: &str = "LAMELLA_CONFIG";
const FILE_NAME: &str = "lamella.toml";
/// Longest configuration file that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The command line, completed by the lower layers.
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    /// Every setting of the command that ran, with its origin.
    pub(crate) settings: Vec<Setting>,
}

/// One setting in effect.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// Its name.
    pub(crate) name: String,
    /// Its values as typed; empty if nothing was set.
    pub(crate) values: Vec<String>,
    /// `flag`, a variable, a file, or `default`.
    pub(crate) origin: String,
}

/// A value of a lower layer.
#[derive(Clone, Debug, PartialEq)]
struct Layered {
    values: Vec<String>,
    origin: String,
}

type Layers = BTreeMap<String, Layered>;

/// Parses the command line; `None` if it asked for help or the version, which is then printed.
///
/// # Errors
/// Wrong usage, and unknown or unusable keys of the environment and the configuration files.
pub(crate) fn parse(
    args: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> anyhow::Result<Option<Parsed>> {
    let args: Vec<OsString> = args.into_iter().collect();
    let typed = match command().try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) => return help_or_usage(error),
    };
    if matches!(
        typed.subcommand_name(),
        Some("completions" | "man" | "version")
    ) {
        let cli = Cli::from_arg_matches(&typed)?;
        return Ok(Some(Parsed {
            cli,
            settings: Vec::new(),
        }));
    }
    let environment: Vec<_> = environment.into_iter().collect();
    let layers = load(chosen_file(&typed, &environment), &environment)?;
    let command = with_defaults(command(), &layers);
    let matches = command.try_get_matches_from(&args).map_err(|e| usage(&e))?;
    let settings = effective(&matches, &layers);
    let cli = Cli::from_arg_matches(&matches).map_err(|e| usage(&e))?;
    Ok(Some(Parsed { cli, settings }))
}

/// The command line. A negative number is the value of an option: whether that is in its range is
/// for the option to say.
fn command() -> clap::Command {
    let amend = |arg: clap::Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    Cli::command().mut_subcommands(|command| command.mut_args(amend))
}

fn help_or_usage(error: clap::Error) -> anyhow::Result<Option<Parsed>> {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            error.print().context("standard output")?;
            Ok(None)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = writeln!(std::io::stderr().lock(), "{}", error.render());
            Err(Failure::usage("a command is needed"))
        }
        _ => Err(usage(&error)),
    }
}

/// clap's message as one line. The usage block gives way to a pointer to the help.
fn usage(error: &clap::Error) -> anyhow::Error {
    let text = error.render().to_string();
    let body = text.split("\n\nUsage:").next().unwrap_or_default();
    let body = body
        .split("\n\nFor more information")
        .next()
        .unwrap_or_default();
    let body = body.strip_prefix("error: ").unwrap_or(body);
    let parts: Vec<_> = body
        .split("\n\n")
        .map(str::trim)
        .filter(|p| !p.is_empty())
        .collect();
    Failure::usage(format!("{}; --help explains", parts.join("; ")))
}

fn chosen_file(typed: &ArgMatches, environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    let flag = typed.get_one::<PathBuf>("config").cloned();
    flag.or_else(|| {
        let variable = environment.iter().find(|(name, _)| name == CONFIG_VARIABLE);
        variable.map(|(_, path)| PathBuf::from(path))
    })
}

/// All lower layers, the stronger one winning key by key.
fn load(only: Option<PathBuf>, environment: &[(OsString, OsString)]) -> anyhow::Result<Layers> {
    let keys = keys();
    let mut layers = Layers::new();
    let files = match only {
        Some(file) => vec![file],
        None => default_files()
            .into_iter()
            .filter(|path| path.is_file())
            .collect(),
    };
    for path in files {
        let text = files::read_text(&path, MAX_FILE_BYTES)
            .map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
        layers.extend(read_file(&path, &text, &keys)?);
    }
    layers.extend(read_environment(environment, &keys)?);
    Ok(layers)
}

/// The user's file, then the one here: the later wins.
fn default_files() -> Vec<PathBuf> {
    let user = directories::ProjectDirs::from("", "", "lamella");
    let user = user.map(|dirs| dirs.config_dir().join(FILE_NAME));
    user.into_iter().chain([PathBuf::from(FILE_NAME)]).collect()
}

fn read_file(path: &Path, text: &str, keys: &[Key]) -> anyhow::Result<Layers> {
    let origin = path.display().to_string();
    let entries = file::entries(text).map_err(|e| Failure::usage(format!("{origin}: {e}")))?;
    let mut layers = Layers::new();
    for (name, values) in entries {
        let known = keys.iter().find(|key| key.name == name);
        let key = known.ok_or_else(|| unknown(&origin, "key", &name, keys, Key::name))?;
        check(key, &values).with_context(|| origin.clone())?;
        layers.insert(
            name,
            Layered {
                values,
                origin: origin.clone(),
            },
        );
    }
    Ok(layers)
}

fn read_environment(environment: &[(OsString, OsString)], keys: &[Key]) -> anyhow::Result<Layers> {
    let mut layers = Layers::new();
    for (variable, value) in environment {
        let Some(variable) = variable.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        if variable == CONFIG_VARIABLE {
            continue;
        }
        let known = keys.iter().find(|key| key.variable() == variable);
        let key = known
            .ok_or_else(|| unknown("environment", "variable", variable, keys, Key::variable))?;
        let value = value.to_str().ok_or_else(|| {
            Failure::usage(format!("environment: {variable}: the value is not UTF-8"))
        })?;
        let values = vec![value.to_owned()];
        check(key, &values).with_context(|| format!("environment: {variable}"))?;
        layers.insert(
            key.name.clone(),
            Layered {
                values,
                origin: variable.to_owned(),
            },
        );
    }
    Ok(layers)
}

fn check(key: &Key, values: &[String]) -> anyhow::Result<()> {
    key.check(values)
        .map_err(|message| Failure::new(Kind::Usage, message).into())
}

fn unknown(
    origin: &str,
    what: &str,
    found: &str,
    keys: &[Key],
    form: fn(&Key) -> String,
) -> anyhow::Error {
    let known: Vec<String> = keys.iter().map(form).collect();
    let near = nearest::nearest(found, known.iter().map(String::as_str));
    let hint = match near.as_slice() {
        [] => format!("known: {}", known.join(", ")),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    Failure::usage(format!("{origin}: unknown {what} {found:?}; {hint}"))
}

/// The command with the values of the lower layers as defaults of its options.
fn with_defaults(command: clap::Command, layers: &Layers) -> clap::Command {
    let keys = keys();
    let mirrored = |id: &str| {
        layers
            .get(id)
            .filter(|_| keys.iter().any(|key| key.name == id))
    };
    let amend = |arg: clap::Arg| match mirrored(arg.get_id().as_str()) {
        Some(layered) => arg.default_values(layered.values.clone()),
        None => arg,
    };
    command
        .mut_args(amend)
        .mut_subcommands(move |sub| sub.mut_args(amend))
}

fn effective(matches: &ArgMatches, layers: &Layers) -> Vec<Setting> {
    let Some((_, matches)) = matches.subcommand() else {
        return Vec::new();
    };
    let present = |key: &Key| matches.try_contains_id(&key.name).is_ok();
    keys()
        .iter()
        .filter(|key| present(key))
        .map(|key| setting(key, matches, layers))
        .collect()
}

fn setting(key: &Key, matches: &ArgMatches, layers: &Layers) -> Setting {
    let name = key.name.clone();
    let typed = matches.value_source(&name) == Some(ValueSource::CommandLine);
    match layers.get(&name) {
        Some(layered) if !typed => Setting {
            name,
            values: layered.values.clone(),
            origin: layered.origin.clone(),
        },
        _ if typed => {
            let raw = matches.get_raw(&name).into_iter().flatten();
            let mut values: Vec<_> = raw.map(|v| v.to_string_lossy().into_owned()).collect();
            if key.is_switch() {
                values = vec!["true".to_owned()];
            }
            Setting {
                name,
                values,
                origin: "flag".to_owned(),
            }
        }
        _ => Setting {
            name,
            values: Vec::new(),
            origin: "default".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;

    /// Parses with one configuration file and an environment.
    fn parse_with(args: &[&str], toml: &str, env: &[(&str, &str)]) -> anyhow::Result<Parsed> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("test.toml");
        std::fs::write(&file, toml).unwrap();
        let mut all: Vec<OsString> = vec!["lamella".into()];
        all.extend(args.iter().map(OsString::from));
        all.extend(["--config".into(), file.into_os_string()]);
        let env = env
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Ok(parse(all, env)?.expect("no help was asked for"))
    }

    fn error_of(args: &[&str], toml: &str, env: &[(&str, &str)]) -> String {
        match parse_with(args, toml, env) {
            Ok(_) => panic!("accepted: {args:?} {toml:?} {env:?}"),
            Err(error) => format!("{error:#}"),
        }
    }

    fn max_tokens(args: &[&str], toml: &str, env: &[(&str, &str)]) -> Option<usize> {
        match parse_with(args, toml, env).unwrap().cli.command {
            Command::Run(args) => args.answer.max_tokens,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_flag_beats_the_environment_beats_the_file() {
        let (run, toml, env) = (
            ["run", "m"],
            "max_tokens = 1",
            [("LAMELLA_MAX_TOKENS", "2")],
        );
        assert_eq!(max_tokens(&run, "", &[]), None);
        assert_eq!(max_tokens(&run, toml, &[]), Some(1));
        assert_eq!(max_tokens(&run, toml, &env), Some(2));
        assert_eq!(
            max_tokens(&["run", "m", "--max-tokens", "3"], toml, &env),
            Some(3)
        );
    }

    #[test]
    fn lists_tables_and_switches_come_from_a_file() {
        let toml = "stop = [\"a\", \"-b\"]\nquiet = true\nlogit_bias = { 3 = -1.5, 4 = 2 }";
        let parsed = parse_with(&["run", "m"], toml, &[]).unwrap();
        assert!(parsed.cli.global.output.quiet);
        let Command::Run(args) = parsed.cli.command else {
            panic!("run")
        };
        assert_eq!(args.answer.stop, ["a", "-b"]);
        let bias: Vec<_> = args
            .sampling
            .logit_bias
            .iter()
            .map(|b| (b.id, b.value))
            .collect();
        assert_eq!(bias, [(3, -1.5), (4, 2.0)]);
        let typed = parse_with(&["run", "m", "--stop", "c"], toml, &[]).unwrap();
        let Command::Run(args) = typed.cli.command else {
            panic!("run")
        };
        assert_eq!(args.answer.stop, ["c"], "a typed list replaces the other");
    }

    #[test]
    fn unknown_keys_name_the_nearest() {
        let text = error_of(&["run", "m"], "max_token = 1", &[]);
        assert!(
            text.contains("unknown key \"max_token\"; did you mean max_tokens?"),
            "{text}"
        );
        let text = error_of(&["run", "m"], "", &[("LAMELLA_TEMPRATURE", "1")]);
        assert!(text.contains("\"LAMELLA_TEMPRATURE\"") && text.contains("LAMELLA_TEMPERATURE?"));
        assert!(error_of(&["run", "m"], "[run]\nstop = 1", &[]).contains("unknown key \"run\""));
    }

    #[test]
    fn bad_values_name_their_place() {
        /// File, environment, words of the message.
        type Case = (
            &'static str,
            &'static [(&'static str, &'static str)],
            &'static [&'static str],
        );
        let cases: [Case; 5] = [
            (
                "temperature = \"hot\"",
                &[],
                &["test.toml", "temperature", "hot"],
            ),
            (
                "temperature = -1",
                &[],
                &["test.toml", "temperature", "at least 0"],
            ),
            ("quiet = 3", &[], &["test.toml", "quiet", "true or false"]),
            (
                "threads = [1, 2]",
                &[],
                &["test.toml", "threads", "one value"],
            ),
            (
                "",
                &[("LAMELLA_ISA", "sse")],
                &["LAMELLA_ISA", "sse", "avx2"],
            ),
        ];
        for (toml, env, wanted) in cases {
            let text = error_of(&["run", "m"], toml, env);
            assert!(
                wanted.iter().all(|w| text.contains(w)),
                "{text} lacks one of {wanted:?}"
            );
        }
        assert!(error_of(&["run", "m"], "a = [", &[]).contains("line 1"));
    }

    #[test]
    fn conversion_takes_its_encoding_from_the_command_line_only() {
        let text = error_of(&["convert", "a", "b"], "encoding = \"q4\"", &[]);
        assert!(text.contains("--encoding"), "{text}");
    }

    #[test]
    fn settings_say_where_they_come_from() {
        let args = ["config", "--top-k", "5"];
        let parsed = parse_with(&args, "seed = 1", &[("LAMELLA_THREADS", "2")]).unwrap();
        let origin = |name: &str| {
            let found = parsed.settings.iter().find(|s| s.name == name).unwrap();
            (
                found.values.join(","),
                found.origin.rsplit('/').next().unwrap().to_owned(),
            )
        };
        assert_eq!(origin("top_k"), ("5".into(), "flag".into()));
        assert_eq!(origin("threads"), ("2".into(), "LAMELLA_THREADS".into()));
        assert_eq!(origin("seed"), ("1".into(), "test.toml".into()));
        assert_eq!(origin("top_p"), (String::new(), "default".into()));
    }
}
