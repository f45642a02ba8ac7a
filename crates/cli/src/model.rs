//! From the word on the command line to an opened model.

use crate::args::Speculate;
use crate::demo;
use crate::progress::{Progress, Unit};
use crate::terminal::Terminal;
use lamella_container::Store;
use lamella_engine::{Error, Model, Options};
use lamella_text::Bundle;
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
    Ok(opened?)
}

/// [`open`] with the draft heads that `who` asks for: `auto` takes them if there are any and memory
/// holds them too.
fn open_to_draft(
    place: &Place,
    options: &Options,
    who: Speculate,
    terminal: &Terminal,
) -> anyhow::Result<Arc<Model>> {
    let open = |draft| {
        let options = Options {
            draft,
            ..options.clone()
        };
        open(place, &options, terminal)
    };
    match who {
        Speculate::Off | Speculate::Lookup => open(false),
        Speculate::Head => open(true),
        Speculate::Auto => open(true).or_else(|error| match error.downcast_ref::<Error>() {
            Some(Error::NoDraft { .. } | Error::Memory { .. }) => open(false),
            _ => Err(error),
        }),
    }
}

/// Opens the model, ready for the drafts of `who`, and loads its text files meanwhile: neither
/// waits for the other.
///
/// # Errors
/// As [`open`] and [`bundle`].
pub(crate) fn open_with_text(
    place: &Place,
    options: &Options,
    who: Speculate,
    terminal: &Terminal,
) -> anyhow::Result<(Arc<Model>, Bundle)> {
    std::thread::scope(|scope| {
        let text = scope.spawn(|| bundle(&store(place)?));
        let model = open_to_draft(place, options, who, terminal)?;
        let text = text
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((model, text?))
    })
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
