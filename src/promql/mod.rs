//! Names, templates and queries. Pure: no I/O, no clock.

pub mod bounds;
pub mod functions;
pub mod growth;
pub mod guard;
pub mod matcher;
pub mod name;
pub mod plan;
pub mod query;
pub mod shape;
pub mod template;
pub mod tree;
