//! From the word on the command line to an opened model.

use crate::args::Speculate;
use crate::demo;
use crate::failure::Failure;
use crate::progress::{self, Progress, Unit};
use crate::terminal::Terminal;
use lamella_container::Store;
use lamella_engine::{Error, Model, Options};
use lamella_text::{Bundle, Tokenizer};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a model lies. Holds the unpacked demo model, which may be temporary.
pub(crate) enum Place {
    Directory(PathBuf),
    Demo(demo::Unpacked),
}

impl Place {
    /// What `typed` means: the demo model, or a directory.
    ///
    /// # Errors
    /// If the demo model cannot be unpacked.
    pub(crate) fn of(typed: &Path) -> anyhow::Result<Place> {
        // Compared as typed: `demo/` and `./demo` are directories.
        if typed.as_os_str() == demo::NAME {
            return Ok(Place::Demo(demo::unpack()?));
        }
        Ok(Place::Directory(typed.to_owned()))
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Place::Directory(path) => path,
            Place::Demo(unpacked) => unpacked.path(),
        }
    }
}

/// Opens the model, showing how far it is.
///
/// # Errors
/// Everything that keeps it from running.
pub(crate) fn open(
    place: &Place,
    options: &Options,
    terminal: &Terminal,
) -> anyhow::Result<Arc<Model>> {
    let mut progress = Progress::new(terminal, "loading", Unit::Bytes);
    let opened = Model::open(place.path(), options, &mut |p| {
        progress.update(p.done, p.total)
    });
    progress.finish();
    let model = opened?;
    if let Some(counts) = model.experts() {
        terminal.note(&format!(
            "{} of {} experts fit into memory ({}); the others are read from disk when needed",
            counts.slots,
            counts.experts,
            progress::bytes(model.report().resident_bytes)
        ));
    }
    Ok(model)
}

/// [`open`] with the draft heads that `who` asks for: `auto` takes them if there are any and memory
/// holds them beside everything else.
fn open_to_draft(
    place: &Place,
    options: &Options,
    who: Speculate,
    terminal: &Terminal,
) -> anyhow::Result<Arc<Model>> {
    let open = |draft, experts_on_disk| {
        let options = Options {
            draft,
            experts_on_disk,
            ..options.clone()
        };
        open(place, &options, terminal)
    };
    match who {
        Speculate::Off | Speculate::Lookup => open(false, true),
        Speculate::Head => open(true, true),
        Speculate::Auto => open(true, false).or_else(|error| match error.downcast_ref::<Error>() {
            Some(Error::NoDraft { .. } | Error::Memory { .. }) => open(false, true),
            _ => Err(error),
        }),
    }
}

/// Loads the model's text files, and opens it, ready for the drafts of `who`. The text comes first:
/// it takes a moment, and what is missing or unfit (as `usable` says) is told before the weights
/// are read, which may take minutes.
///
/// # Errors
/// As [`open`], [`bundle`] and `usable`.
pub(crate) fn open_with_text(
    place: &Place,
    options: &Options,
    who: Speculate,
    usable: impl FnOnce(&Bundle) -> anyhow::Result<()>,
    terminal: &Terminal,
) -> anyhow::Result<(Arc<Model>, Bundle)> {
    let text = bundle(&store(place)?)?;
    usable(&text)?;
    Ok((open_to_draft(place, options, who, terminal)?, text))
}

/// Refuses ids that the model does not have: a tokenizer that knows more tokens is another model's.
///
/// # Errors
/// If there is one, naming the file of the tokenizer, which lies in `dir`.
pub(crate) fn check_tokens(
    dir: &Path,
    tokenizer: &Tokenizer,
    ids: &[u32],
    vocabulary: usize,
) -> anyhow::Result<()> {
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        None => Ok(()),
        Some(id) => Err(Failure::model(format!(
            "{}: token {id} is outside the model's vocabulary of {vocabulary}",
            dir.join(tokenizer.file()).display()
        ))),
    }
}

/// The files of a model, without opening it for execution.
///
/// # Errors
/// If they are damaged or do not form a program.
pub(crate) fn store(place: &Place) -> anyhow::Result<Store> {
    Ok(Store::open(place.path(), &lamella_engine::lower)?)
}

/// The model's tokenizer, template and generation settings.
///
/// # Errors
/// If one of these files is damaged, or the tokenizer is missing.
pub(crate) fn bundle(store: &Store) -> anyhow::Result<Bundle> {
    let failed = RefCell::new(None);
    let read = |name: &str| {
        store.read_text(name).unwrap_or_else(|error| {
            failed.borrow_mut().get_or_insert(error);
            None
        })
    };
    let bundle = Bundle::load(&read);
    match failed.into_inner() {
        Some(error) => Err(error.into()),
        None => bundle.map_err(|error| text_error(store.dir(), error)),
    }
}

/// An error of the model's text files, which know only their names, with the model's directory.
pub(crate) fn text_error(dir: &Path, error: lamella_text::Error) -> anyhow::Error {
    use lamella_text::Error;
    let of_a_file = matches!(
        error,
        Error::Missing { .. }
            | Error::File { .. }
            | Error::Json { .. }
            | Error::Field { .. }
            | Error::TemplateSyntax { .. }
            | Error::TemplateRender { .. }
            | Error::ConversationRefused { .. }
            | Error::NoChatTemplate
    );
    let error = anyhow::Error::from(error);
    if of_a_file {
        error.context(dir.display().to_string())
    } else {
        error
    }
}
