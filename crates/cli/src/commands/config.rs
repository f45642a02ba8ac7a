//! `lamella config`: the settings in effect, as a file that could be read again.

use crate::args::ConfigArgs;
use crate::config::{Key, Setting, keys};
use crate::terminal;
use serde_json::json;

pub(crate) fn run(args: &ConfigArgs, settings: &[Setting]) -> anyhow::Result<()> {
    if args.json {
        let object = settings.iter().map(|s| {
            (
                s.name.clone(),
                json!({ "values": s.values, "origin": s.origin }),
            )
        });
        let object: serde_json::Map<_, _> = object.collect();
        return terminal::print_json_pretty(&object);
    }
    let mut text = String::new();
    for setting in settings {
        if let Some(key) = keys().iter().find(|key| key.name == setting.name) {
            text.push_str(&line(key, setting));
        }
    }
    terminal::write(&text)
}

/// `name = value  # origin`; what is unset is commented out and explained.
fn line(key: &Key, setting: &Setting) -> String {
    let name = &setting.name;
    if setting.values.is_empty() {
        return format!(
            "# {name}: {}\n",
            key.help().split_whitespace().collect::<Vec<_>>().join(" ")
        );
    }
    let values: Vec<String> = setting.values.iter().map(|v| literal(key, v)).collect();
    let value = if key.is_list() {
        format!("[{}]", values.join(", "))
    } else {
        values.concat()
    };
    format!("{name} = {value}  # {}\n", setting.origin)
}

fn literal(key: &Key, value: &str) -> String {
    let plain = value == "true" || value == "false" || value.parse::<i64>().is_ok();
    if plain && !key.is_list() {
        return value.to_owned();
    }
    toml::Value::String(value.to_owned()).to_string()
}
