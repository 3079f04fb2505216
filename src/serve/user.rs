//! The user of a request, and errors of authentication.

use std::collections::BTreeMap;

/// The group of all users that are known.
pub const AUTHENTICATED: &str = "system:authenticated";

/// The user of a request, as upstream's `user.Info`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserInfo {
    /// The name.
    pub name: String,
    /// The UID; empty if it is not known.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
    /// Extra information, by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// The size of its strings in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let of = |texts: &[String]| -> usize {
            texts.iter().map(|text| size_of::<String>() + text.len()).sum()
        };
        let extra = self.extra.iter().map(|(key, values)| 64 + key.len() + of(values));
        self.name.len() + self.uid.len() + of(&self.groups) + extra.sum::<usize>()
    }
}

/// Why the user of a request is not known.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum AuthenticationError {
    /// There are no credentials, or they are not valid.
    #[error("no valid credentials")]
    InvalidCredentials,
    /// Too many tokens wait for a review.
    #[error("too many tokens to review")]
    TooManyReviews,
    /// The API server could not review the token. The cause is only logged, as it may name
    /// internals of the cluster, and this text is shown to anonymous clients.
    #[error("the token could not be reviewed")]
    Unavailable,
}
