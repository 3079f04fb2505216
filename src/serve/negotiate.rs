//! The form of an answer, by what the client accepts.

use axum::http::{HeaderMap, header};

/// The forms that a client accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// A table of the object, rather than the object.
    pub table: bool,
    /// The object as JSON.
    pub json: bool,
}

impl Accepted {
    /// What a request's headers say.
    pub fn of(headers: &HeaderMap) -> Self {
        let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        let mut accepted = Self { table: false, json: accept.is_none() };
        for kind in accept.unwrap_or_default().split(',') {
            let mut parts = kind.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            if !matches!(name, "*/*" | "application/*" | "application/json") {
                continue;
            }
            match parts.find_map(|part| part.strip_prefix("as=")) {
                // Asked for by those who read discovery.
                None | Some("APIGroupDiscoveryList") => accepted.json = true,
                Some("Table") => accepted.table |= !accepted.json,
                Some(_) => {}
            }
        }
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_given_is_given() {
        let of = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            let Accepted { table, json } = Accepted::of(&headers);
            (table, json)
        };
        assert_eq!(Accepted::of(&HeaderMap::new()), Accepted { table: false, json: true });
        assert_eq!(of("*/*"), (false, true));
        assert_eq!(of("application/vnd.kubernetes.protobuf,application/json"), (false, true));
        assert_eq!(of("application/json;as=Table;v=v1;g=meta.k8s.io"), (true, false));
        assert_eq!(
            of("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
            (true, true)
        );
        assert_eq!(of("application/vnd.kubernetes.protobuf"), (false, false));
        assert_eq!(of("text/html"), (false, false));
    }
}
