//! Making room for the experts of a model that do not all fit.

use super::layers::Layers;
use super::records::expert_access;
use super::store::ExpertStore;
use crate::error::Error;
use crate::ledger::Ledger;
use crate::model::{lower, setting};
use crate::need::Fit;
use crate::options::Options;
use lamella_container::Store;
use lamella_program::Program;
use std::path::Path;
use std::sync::Arc;

/// Room for some of the experts, if not all of them fit.
pub(crate) fn expert_store(
    (store, program, fit): (&Arc<Store>, &Program, &Fit),
    options: &Options,
    threads: usize,
    ledger: Option<&Arc<Ledger>>,
) -> Result<Option<ExpertStore>, Error> {
    let Some(layers) = Layers::of(program, &fit.choices)? else {
        return Ok(None);
    };
    let access = expert_access(store, &layers, options)?;
    let mut sources = vec![Arc::clone(store)];
    for path in &options.mirrors {
        sources.push(Arc::new(mirror(path, store)?));
    }
    let mut experts = ExpertStore::new(sources, layers, fit.slots, threads, access, options)?;
    if let Some(ledger) = ledger {
        experts.charge(ledger)?;
    }
    if let Some(dir) = &options.heat {
        experts.warm(dir, store.fingerprint()?, options.pin);
    }
    Ok(Some(experts))
}

/// The copy of the container `of` in the directory `path`.
///
/// # Errors
/// What opening returns; [`Error::Setting`] if it is another one.
fn mirror(path: &Path, of: &Store) -> Result<Store, Error> {
    let copy = Store::open(path, &lower)?;
    match of.identity() {
        Some(identity) if copy.identity() == Some(identity) => Ok(copy),
        Some(_) => Err(setting(
            "mirror",
            &format!("{} is no copy of {}", path.display(), of.dir().display()),
        )),
        None => Err(setting(
            "mirror",
            "only containers have copies that can be told from others; convert the checkpoint",
        )),
    }
}
