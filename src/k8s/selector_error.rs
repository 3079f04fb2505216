//! Why a text or an object is not a selector.

/// Why a text or an object is not a selector, in upstream's words if it has them.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ParseSelectorError(pub(super) String);

/// A failure with this text.
pub(super) fn error<T>(text: impl Into<String>) -> Result<T, ParseSelectorError> {
    Err(ParseSelectorError(text.into()))
}
