//! The C interface: layer ranges (Segment, version 1) and the two ends of a model (Edge, version
//! 2), under the names, layouts and rules that hosts are written against.
//!
//! A host registers adapters, opens engines by their ids and creates sessions; each call is
//! checked here, in the documented order, before the adapter sees it. The adapters may be a
//! host's own. The headers in `include/` are generated from this crate and compared in its tests.
//!
//! No panic leaves a function of this crate: it becomes an error like any other. Every handle is a
//! number in a table, never an address that is followed, so that a closed or foreign one is
//! refused. The table and the adapters are the one process-wide state of the workspace: the
//! interface has no other place for them.

pub mod adapters;
pub mod additions;
mod boundary;
mod checks;
pub mod edge;
mod handles;
pub mod lamella;
mod registry;
mod report;
pub mod segment;
