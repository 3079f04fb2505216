//! Names, templates and queries. Pure: no I/O, no clock.

pub mod bounds;
pub mod constant;
pub mod cost;
mod exactness;
pub mod formula;
pub mod functions;
pub mod guard;
pub mod kind_of_value;
pub mod matcher;
pub mod name;
pub mod narrow;
mod parameterize;
pub mod plan;
pub mod query;
pub mod quote;
pub mod ranges;
mod regexes;
pub mod result_label;
mod scan;
pub mod shape;
pub mod template;
pub mod tree;
pub mod union;
mod written_labels;
