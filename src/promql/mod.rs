//! Names, templates and queries. Pure: no I/O, no clock.

pub mod guard;
pub mod matcher;
pub mod name;
pub mod plan;
pub mod query;
pub mod template;
