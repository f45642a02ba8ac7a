//! The keys: one for each option of the shared groups.

use crate::args::{AnswerArgs, EngineArgs, MemoryArgs, OutputArgs, SamplingArgs, ThreadsArgs};
use clap::{Arg, ArgAction, Args, Command};

/// A setting that all layers can give.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// The word in `lamella.toml`.
    pub(crate) name: String,
    arg: Arg,
}

/// Every key, in the order of the help.
pub(crate) fn keys() -> Vec<Key> {
    let command = Command::new("keys");
    let command = AnswerArgs::augment_args(command);
    let command = SamplingArgs::augment_args(command);
    let command = EngineArgs::augment_args(command);
    let command = MemoryArgs::augment_args(command);
    let command = ThreadsArgs::augment_args(command);
    let command = OutputArgs::augment_args(command);
    let args = command.get_arguments();
    args.map(|arg| Key {
        name: arg.get_id().to_string(),
        arg: arg.clone(),
    })
    .collect()
}

impl Key {
    /// The word in `lamella.toml`.
    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    /// The environment variable.
    pub(crate) fn variable(&self) -> String {
        format!("{}{}", super::PREFIX, self.name.to_ascii_uppercase())
    }

    /// First line of the help.
    pub(crate) fn help(&self) -> String {
        self.arg
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    /// Whether the option takes no value.
    pub(crate) fn is_switch(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::SetTrue)
    }

    /// Whether the option may be given several times.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    /// Whether the option accepts these values.
    ///
    /// # Errors
    /// What it accepts, naming the key.
    pub(crate) fn check(&self, values: &[String]) -> Result<(), String> {
        let name = &self.name;
        if !self.is_list() && values.len() != 1 {
            return Err(format!("{name}: it takes one value, not {}", values.len()));
        }
        if self.is_switch() {
            let known = values.iter().all(|v| v == "true" || v == "false");
            return if known {
                Ok(())
            } else {
                Err(format!("{name}: it must be true or false"))
            };
        }
        let command = Command::new("key")
            .no_binary_name(true)
            .arg(self.arg.clone());
        let long = self.arg.get_long().unwrap_or(name);
        let typed = values.iter().map(|value| format!("--{long}={value}"));
        command
            .try_get_matches_from(typed)
            .map(|_| ())
            .map_err(|error| {
                let text = error.render().to_string();
                let text = text.strip_prefix("error: ").unwrap_or(&text);
                let body = text
                    .split("\n\nFor more information")
                    .next()
                    .unwrap_or_default();
                format!(
                    "{name}: {}",
                    body.split("\n\nUsage:").next().unwrap_or_default()
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn one_word_means_one_thing_everywhere() {
        for key in keys() {
            assert_eq!(key.arg.get_long().unwrap().replace('-', "_"), key.name);
            assert!(!key.help().is_empty(), "{} has no help", key.name);
            for command in Cli::command().get_subcommands() {
                for arg in command
                    .get_arguments()
                    .filter(|a| a.get_id().as_str() == key.name)
                {
                    assert_eq!(
                        arg.get_long(),
                        key.arg.get_long(),
                        "in {}",
                        command.get_name()
                    );
                }
            }
        }
    }

    #[test]
    fn bench_takes_a_list_of_threads_but_the_key_is_one_number() {
        let threads = keys()
            .into_iter()
            .find(|key| key.name == "threads")
            .unwrap();
        assert!(threads.check(&["2".into()]).is_ok());
        assert!(threads.check(&["1,2".into()]).is_err());
    }
}
