//! Container images as archives: an OCI layout and Docker's `manifest.json` in one tar, which
//! `docker load`, `podman load` and `ctr images import` take. The same files give the same bytes.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod archive;
mod definition;
mod program;
mod source;

pub use archive::{Archive, Compression, File};
pub use definition::{Definition, root_certificates};
pub use program::architecture_of;
pub use source::source_url;
