//! Names, templates and queries. Pure: no I/O, no clock.

pub mod bounds;
pub mod cost;
pub mod exactness;
pub mod functions;
pub mod growth;
pub mod guard;
pub mod matcher;
pub mod name;
pub mod parameterize;
pub mod patterns;
pub mod plan;
pub mod query;
pub mod quote;
pub mod scan;
pub mod shape;
pub mod template;
pub mod tree;
