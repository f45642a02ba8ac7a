//! Who a model is: what two nodes must have in common to continue each other's conversations.

use crate::error::Error;
use crate::model::Model;
use crate::options::BackendKind;
use crate::state::Session;
use crate::state::snapshot::{self, Identity};
use crate::weights::Choice;
use lamella_kernels::RECIPE;
use lamella_program::Program;
use lamella_program::closure::draft_operands;
use std::borrow::Cow;
use std::io::{Read, Write};
use std::sync::PoisonError;

/// Names everything that decides the bits of a result: the program, the encodings it runs in, the
/// backend and its recipe. Models that agree in it compute the same bits on any machine, with any
/// number of threads and any instruction set. Draft heads decide no result.
pub(crate) fn numeric_class(program: &Program, choices: &[Choice], backend: BackendKind) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("lamella numeric class v1");
    let main = match program.draft {
        None => Cow::Borrowed(program),
        Some(_) => Cow::Owned(Program {
            draft: None,
            ..program.clone()
        }),
    };
    // Twice, since the text of a large model is long and nothing else needs it in memory.
    let mut length = Length(0);
    write_json(&main, &mut length);
    hasher.update(&length.0.to_le_bytes());
    write_json(&main, &mut hasher);
    let draft = draft_operands(program);
    for (id, choice) in (0..).map(lamella_program::OperandId).zip(choices) {
        if !draft.contains(&id) {
            hasher.update(choice.resident.name().as_bytes());
            hasher.update(&[0]);
        }
    }
    let digest = hasher.finalize().to_hex();
    format!("{}.{RECIPE}/{}", backend.name(), &digest[..32])
}

/// Counts what is written.
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn write_json(program: &Program, sink: &mut dyn Write) {
    serde_json::to_writer(sink, program).expect("a program has nothing that JSON cannot hold");
}

impl Model {
    /// What decides the bits of a result: program, encodings, backend and recipe. Nodes with the
    /// same class continue each other's conversations exactly, whatever their processors.
    #[must_use]
    pub fn numeric_class(&self) -> &str {
        &self.numeric_class
    }

    /// Writes the state of `session` to `sink`, to be restored by any model of the same files,
    /// layers and [`numeric_class`](Model::numeric_class). Two sessions that have read the same
    /// tokens write the same bytes, whatever was cancelled or taken back in between.
    ///
    /// # Errors
    /// [`SnapshotError`](crate::SnapshotError); [`Error::ForeignSession`].
    pub fn snapshot(&self, session: &Session, sink: &mut dyn Write) -> Result<(), Error> {
        let identity = self.snapshot_identity(session)?;
        snapshot::write(&identity, session, sink)
    }

    /// Replaces the state of `session` by the snapshot that `source` holds, and reads not a byte
    /// beyond it. The session may have a larger context than the one that was written.
    ///
    /// # Errors
    /// [`SnapshotError`](crate::SnapshotError); [`Error::ForeignSession`]. The session is then as
    /// it was.
    pub fn restore(&self, session: &mut Session, source: &mut dyn Read) -> Result<(), Error> {
        let identity = self.snapshot_identity(session)?;
        let make_room = |bytes| self.make_room(bytes);
        let threads = self.report().threads;
        snapshot::read(&identity, session, source, (threads, &make_room))
    }

    fn snapshot_identity(&self, session: &Session) -> Result<Identity, Error> {
        if !session.belongs_to(&self.identity) {
            return Err(Error::ForeignSession);
        }
        let layers = self.part.layers(&self.program);
        Ok(Identity {
            model: self.digest()?,
            layers: layers.start as u32..layers.end as u32,
            schema: self.program.boundary.state_schema.clone(),
            numeric_class: self.numeric_class.clone(),
            vocabulary: self.program.dims.vocabulary,
        })
    }

    /// Digest of the model's files, computed when it is first needed.
    fn digest(&self) -> Result<[u8; 32], Error> {
        let mut known = self.digest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(digest) = *known {
            return Ok(digest);
        }
        let digest = self.store().model_digest(&self.held)?;
        *known = Some(digest);
        Ok(digest)
    }
}
