//! Constants that a checkpoint repeats: compared with those of the program when it is opened.

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use lamella_program::{Defect, Program};

/// Bytes of one constant.
const BYTES: usize = 8;

/// Every tensor of constants whose numbers are not the program's, each by its first difference. The
/// program has been checked against the tensor table, so each is as long as the program's. It then
/// names them no more: it is the program that a container of this checkpoint has.
pub(crate) fn compare(
    program: &mut Program,
    checkpoint: &Checkpoint,
) -> Result<Vec<Defect>, Error> {
    let mut defects = Vec::new();
    for embedding in &mut program.entry.per_layer_embeddings {
        for (tensor, values) in embedding.stored_constants() {
            let mut bytes = vec![0; values.len().saturating_mul(BYTES)];
            checkpoint.read(tensor, 0, &mut bytes)?;
            let found = bytes.as_chunks().0.iter().copied().map(i64::from_le_bytes);
            let mut pairs = found.zip(values).enumerate();
            let differs = |&(_, (found, expected)): &(usize, (i64, &u64))| {
                u64::try_from(found).ok() != Some(*expected)
            };
            if let Some((index, (found, &expected))) = pairs.find(differs) {
                defects.push(Defect::StoredConstant {
                    tensor: tensor.to_owned(),
                    index,
                    found,
                    expected,
                });
            }
        }
        embedding.stored = None;
    }
    Ok(defects)
}
