#![doc = "Plimsoll."]
#![forbid(unsafe_code)]
pub mod hpa;
pub mod k8s;
