//! The chat template of a checkpoint, rendered as `transformers` renders it.
//!
//! Jinja through minijinja with `trim_blocks`, `lstrip_blocks`, loop controls, Python's methods
//! and Python's `json.dumps` as `tojson`. A template is a program from the checkpoint: it runs
//! under a limit of work, and what it cannot do is an error, never a fallback.

mod clock;
mod dumps;
mod python;
mod source;
mod stored;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, Serde};
use minijinja::{AutoEscape, Environment, Error as JinjaError, ErrorKind, State, Value, syntax};
use serde_json::Map;

use crate::{Error, Message};
pub use clock::{Clock, DateTime};
pub(crate) use dumps::{Style, dumps};

/// Work one rendering may do: about this many template instructions, or 64 times as many bytes
/// produced. A conversation of a thousand messages needs about a fiftieth.
const FUEL: u64 = 4_000_000;
/// Stack that templates are parsed and rendered on. minijinja recurses as deep as a template and
/// its values are nested; what the limits here allow needs up to about 16 MiB.
const STACK_BYTES: usize = 32 << 20;
/// Largest template, in bytes. The largest in use has about 20 kB.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Most templates one checkpoint may carry.
const MAX_TEMPLATES: usize = 64;
/// How deep calls may nest; a macro counts four.
const MAX_DEPTH: usize = 200;

/// Names a template sees that options may not redefine.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// One template and its name; a checkpoint may carry several (`default`, `tool_use`, `rag`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTemplate {
    /// Its name.
    pub name: String,
    /// Its Jinja source.
    pub source: String,
}

/// The special tokens a template sees by name: `bos_token`, `eos_token`, `pad_token` and so on.
pub type SpecialTokens = Map<String, serde_json::Value>;

/// What one rendering is asked for.
#[derive(Debug, Clone, Default)]
pub struct ChatOptions {
    /// Ends the prompt where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Tool definitions in the OpenAI shape, handed to the template as they are.
    pub tools: Option<Vec<serde_json::Value>>,
    /// Renders this one of several named templates.
    pub template: Option<String>,
    /// More variables for the template, such as `enable_thinking`. They win over the special
    /// tokens of the same name; `messages`, `tools` and `add_generation_prompt` are refused.
    pub variables: Map<String, serde_json::Value>,
}

impl ChatOptions {
    /// Options for a prompt that the assistant answers next.
    pub fn prompt() -> Self {
        Self {
            add_generation_prompt: true,
            ..Self::default()
        }
    }
}

/// A parsed chat template, or several by name. Cheap to clone, shared between threads.
#[derive(Clone)]
pub struct ChatTemplate(Arc<Inner>);

struct Inner {
    environment: Environment<'static>,
    file: String,
    names: Vec<String>,
    special: SpecialTokens,
}

impl ChatTemplate {
    /// Parses a single template. `file` is the name errors carry.
    pub fn new(file: &str, source: &str, special: SpecialTokens) -> Result<Self, Error> {
        let only = NamedTemplate {
            name: "default".into(),
            source: source.into(),
        };
        Self::named(file, &[only], special, Clock::utc())
    }

    /// Parses one or several templates, with a clock for `strftime_now`. Every one must parse.
    pub fn named(
        file: &str,
        templates: &[NamedTemplate],
        special: SpecialTokens,
        clock: Clock,
    ) -> Result<Self, Error> {
        if templates.is_empty() || templates.len() > MAX_TEMPLATES {
            let cause = format!(
                "{} templates; 1 to {MAX_TEMPLATES} expected",
                templates.len()
            );
            return Err(Error::field(file, "chat_template", cause));
        }
        let mut environment = environment(clock);
        let names: Vec<String> = templates.iter().map(|one| one.name.clone()).collect();
        for NamedTemplate { name, source } in templates {
            if names.iter().filter(|other| *other == name).count() > 1 {
                let cause = format!("two templates have the name `{name}`");
                return Err(Error::field(file, "chat_template", cause));
            }
            if source.len() > MAX_TEMPLATE_BYTES {
                let cause = format!("{} bytes; at most {MAX_TEMPLATE_BYTES}", source.len());
                return Err(Error::field(file, "chat_template", cause));
            }
            let place = place(file, name, names.len() > 1);
            let fail = |(line, cause)| Error::TemplateSyntax {
                file: place.clone(),
                line,
                cause,
            };
            let prepared = source::prepare(source).map_err(fail)?;
            let parse = || environment.add_template_owned(name.clone(), prepared);
            on_own_stack(parse, |cause| fail((0, cause)))?
                .map_err(|error| fail((line_of(&error), words(&error))))?;
        }
        Ok(Self(Arc::new(Inner {
            environment,
            file: file.into(),
            names,
            special,
        })))
    }

    /// The names of the templates, in the checkpoint's order.
    pub fn names(&self) -> &[String] {
        &self.0.names
    }

    /// The file the template came from.
    pub fn file(&self) -> &str {
        &self.0.file
    }

    /// Whether the templates ask for a variable of this name. What they do not ask for changes
    /// nothing.
    pub fn reads(&self, variable: &str) -> bool {
        let inner = &*self.0;
        inner.names.iter().any(|name| {
            let template = inner.environment.get_template(name);
            template.is_ok_and(|it| it.undeclared_variables(false).contains(variable))
        })
    }

    /// Whether the source of one of the templates has these characters.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        let inner = &*self.0;
        inner.names.iter().any(|name| {
            let template = inner.environment.get_template(name);
            template.is_ok_and(|it| it.source().contains(text))
        })
    }

    /// The prompt text of a conversation.
    ///
    /// Of several templates, `tool_use` is taken when there are tools and the checkpoint has one,
    /// otherwise `default`, as `transformers` does. Encode the result without added specials.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, Error> {
        let inner = &*self.0;
        let name = self.choose(options)?;
        let place = place(&inner.file, name, inner.names.len() > 1);
        let fail = |line, cause: String| Error::TemplateRender {
            file: place.clone(),
            line,
            cause,
        };
        if let Some(key) = RESERVED
            .iter()
            .find(|key| options.variables.contains_key(**key))
        {
            return Err(fail(
                0,
                format!("the variable `{key}` is set by the conversation itself"),
            ));
        }
        let render = || {
            let context = self.context(messages, options);
            inner.environment.get_template(name)?.render(context)
        };
        on_own_stack(render, |cause| fail(0, cause))?.map_err(|error| {
            match python::raised(&error) {
                Some(cause) => Error::ConversationRefused { cause },
                None => fail(line_of(&error), words(&error)),
            }
        })
    }

    fn context(&self, messages: &[Message], options: &ChatOptions) -> BTreeMap<String, Value> {
        let mut context = BTreeMap::from([("documents".to_owned(), Value::from(()))]);
        for (key, value) in self.0.special.iter().chain(&options.variables) {
            context.insert(key.clone(), Value::from(Serde(value)));
        }
        context.insert("messages".into(), Value::from(Serde(messages)));
        context.insert("tools".into(), Value::from(Serde(&options.tools)));
        context.insert(
            "add_generation_prompt".into(),
            options.add_generation_prompt.into(),
        );
        context
    }

    fn choose<'a>(&'a self, options: &'a ChatOptions) -> Result<&'a str, Error> {
        let names = &self.0.names;
        let known = |name: &str| names.iter().any(|known| known == name);
        match &options.template {
            Some(name) if known(name) => Ok(name),
            None if options.tools.is_some() && known("tool_use") => Ok("tool_use"),
            None if known("default") => Ok("default"),
            wanted => {
                let what = match wanted {
                    Some(name) => format!("there is no template `{name}`"),
                    None => "there is no template `default`".into(),
                };
                let cause = format!("{what}; there are {}", names.join(", "));
                Err(Error::field(&self.0.file, "chat_template", cause))
            }
        }
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("file", &self.0.file)
            .field("names", &self.0.names)
            .finish_non_exhaustive()
    }
}

/// Runs `work` on a stack of known size. `failed` makes an error of a panic.
fn on_own_stack<T: Send>(
    work: impl FnOnce() -> T + Send,
    failed: impl FnOnce(String) -> Error,
) -> Result<T, Error> {
    on_thread(std::thread::Builder::new().stack_size(STACK_BYTES), work)?
        .map_err(|_| failed("the template engine panicked, which is a defect".into()))
}

fn on_thread<T: Send>(
    builder: std::thread::Builder,
    work: impl FnOnce() -> T + Send,
) -> Result<std::thread::Result<T>, Error> {
    std::thread::scope(|scope| {
        let thread = builder.name("chat-template".into());
        let thread = thread
            .spawn_scoped(scope, work)
            .map_err(|error| Error::Thread {
                cause: error.to_string(),
            })?;
        Ok(thread.join())
    })
}

fn line_of(error: &JinjaError) -> usize {
    error.line().unwrap_or(0)
}

fn place(file: &str, name: &str, several: bool) -> String {
    if several {
        format!("{file} (template `{name}`)")
    } else {
        file.to_owned()
    }
}

/// A Jinja error in one line, without the place, which goes into our own error.
fn words(error: &JinjaError) -> String {
    let mut words = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        words.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    words
}

/// The Jinja that `transformers` gives a template.
fn environment(clock: Clock) -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = syntax::SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    // The default delimiters cannot clash, so this cannot fail.
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(python::format);
    environment.set_unknown_method_callback(python::method);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_debug(false);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", python::string);
    environment.add_test("iterable", python::iterable);
    environment.add_filter("stored", stored::stored);
    environment.add_filter("attached", stored::attached);
    // Not part of Jinja2; they print or chain values without bound.
    for filter in ["zip", "chain"] {
        environment.remove_filter(filter);
    }
    environment.remove_global("debug");
    environment.add_function(
        "raise_exception",
        |message: Value| -> Result<Value, JinjaError> { Err(python::raise(message.to_string())) },
    );
    environment.add_function("strftime_now", move |format: &str| {
        clock::format(&clock.now(), format)
            .map_err(|cause| JinjaError::new(ErrorKind::InvalidOperation, cause))
    });
    environment
}

/// `tojson` as `transformers` defines it:
/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn to_json(
    state: &State<'_, '_>,
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, JinjaError> {
    let argument = |index: usize, name: &str| -> Result<Value, JinjaError> {
        match positional.get(index) {
            Some(value) => Ok(value.clone()),
            None => Ok(named.get::<Option<Value>>(name)?.unwrap_or(Value::from(()))),
        }
    };
    let style = Style::new(
        &argument(0, "ensure_ascii")?,
        &argument(1, "indent")?,
        &argument(2, "separators")?,
        &argument(3, "sort_keys")?,
    )?;
    named.assert_all_used()?;
    let text = dumps(value, &style, &|bytes| state.consume_fuel(bytes as u64 / 4))?;
    Ok(Value::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_thread_is_no_fault_of_the_template() {
        // A stack that no system has room for.
        let builder = std::thread::Builder::new().stack_size(1 << 55);
        let error = on_thread(builder, || ()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Thread { .. }), "{error}");
    }
}
