//! Who may read the page's data: only the browser that was given its key. Other users of this machine reach the
//! port, too, and so does each web page that the user visits.
//!
//! The key is in the fragment of the address, which browsers send to no server, and the page sends it in the
//! header `Authorization`. It is no cookie: browsers send cookies of 127.0.0.1 to every port of it, also to a
//! server of another user.

use super::error::UiError;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use sha2::{Digest, Sha256};

/// Checks requests.
pub struct Access {
    port: u16,
    key: String,
}

/// The number of random bytes of a key.
const KEY_BYTES: usize = 32;

/// Where the data is. What is elsewhere is the same for everyone.
pub const DATA: &str = "/api/";
/// Where a change is tried, the only place that anything is sent to. Nothing is written there, either.
pub const CHANGE: &str = "/api/change";

impl Access {
    /// With a new key, for the page at this port of 127.0.0.1.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub fn new(port: u16) -> Result<Self, UiError> {
        let mut bytes = [0; KEY_BYTES];
        let random = rustls::crypto::ring::default_provider().secure_random;
        random.fill(&mut bytes).map_err(|_| UiError::Random)?;
        Ok(Self { port, key: bytes.iter().map(|byte| format!("{byte:02x}")).collect() })
    }

    /// The address of the page, with its key.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/#key={}", self.port, self.key)
    }

    /// Checks a request.
    ///
    /// # Errors
    /// The status and text with which it is refused.
    pub fn check(&self, parts: &Parts) -> Result<(), (StatusCode, String)> {
        let is_trial = parts.method == Method::POST && parts.uri.path() == CHANGE;
        if parts.method != Method::GET && parts.method != Method::HEAD && !is_trial {
            let text = "This page only reads: GET, HEAD, and POST of a change to try.";
            return Err((StatusCode::METHOD_NOT_ALLOWED, text.to_owned()));
        }
        let forbidden = |text: String| Err((StatusCode::FORBIDDEN, text));
        let hosts = ["127.0.0.1", "localhost"].map(|host| format!("{host}:{}", self.port));
        let text = |name| parts.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        // A name of another site that resolves to 127.0.0.1 (DNS rebinding) stands in Host.
        if !text(header::HOST).is_some_and(|host| hosts.iter().any(|ours| ours == host)) {
            return forbidden(format!(
                "This page is at 127.0.0.1:{} and no other host or port. Forward the same port: \
                 ssh -L {0}:127.0.0.1:{0}.",
                self.port
            ));
        }
        if parts.headers.get_all(header::HOST).iter().count() > 1 {
            return forbidden("A request has one Host.".to_owned());
        }
        let is_ours = |origin: &str| hosts.iter().any(|ours| origin == format!("http://{ours}"));
        if text(header::ORIGIN).is_some_and(|origin| !is_ours(origin)) {
            return forbidden("Another web page may not read this one.".to_owned());
        }
        let key = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        if parts.uri.path().starts_with(DATA) && !key.is_some_and(|key| self.is_key(key)) {
            return forbidden(
                "The key is wrong: open the address that plimsoll ui printed.".to_owned(),
            );
        }
        Ok(())
    }

    /// Compares digests: how long that takes tells nothing of the key.
    fn is_key(&self, given: &str) -> bool {
        Sha256::digest(given) == Sha256::digest(&self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn check(access: &Access, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        access.check(&parts).map_or_else(|(code, _)| code.as_u16(), |()| 200)
    }

    #[test]
    fn data_needs_the_key_of_this_process() {
        let access = Access::new(80).unwrap();
        let (host, key) = (("host", "127.0.0.1:80"), format!("Bearer {}", access.key));
        assert_eq!(access.key.len(), 2 * KEY_BYTES);
        assert_eq!(check(&access, "/api/autoscalers", &[host, ("authorization", &key)]), 200);
        let other = format!("Bearer {}", Access::new(80).unwrap().key);
        for wrong in ["", "Bearer ", "Bearer x", &other, &access.key, &format!("{key} ")] {
            let headers = [host, ("authorization", wrong)];
            assert_eq!(check(&access, "/api/autoscalers", &headers), 403, "{wrong}");
        }
        assert_eq!(check(&access, "/api/autoscalers", &[host]), 403);
        assert_eq!(check(&access, "/", &[host]), 200);
    }

    #[test]
    fn other_hosts_and_other_web_pages_are_refused() {
        let access = Access::new(4711).unwrap();
        for (host, expected) in [
            ("127.0.0.1:4711", 200),
            ("localhost:4711", 200),
            ("127.0.0.1", 403),
            ("127.0.0.1:4712", 403),
            ("evil.example:4711", 403),
            ("127.0.0.1.evil.example:4711", 403),
            ("[::1]:4711", 403),
        ] {
            assert_eq!(check(&access, "/", &[("host", host)]), expected, "{host}");
        }
        assert_eq!(check(&access, "/", &[]), 403);
        let twice = [("host", "127.0.0.1:4711"), ("host", "evil.example:4711")];
        assert_eq!(check(&access, "/", &twice), 403);
        for (origin, expected) in [
            ("http://127.0.0.1:4711", 200),
            ("https://127.0.0.1:4711", 403),
            ("http://evil.example", 403),
            ("http://127.0.0.1:8080", 403),
            ("null", 403),
        ] {
            let headers = [("host", "127.0.0.1:4711"), ("origin", origin)];
            assert_eq!(check(&access, "/", &headers), expected, "{origin}");
        }
    }

    #[test]
    fn nothing_is_written() {
        let access = Access::new(1).unwrap();
        let code = |method: &str, path: &str, key: &str| {
            let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:1");
            let request = request.header("authorization", format!("Bearer {key}"));
            let parts = request.body(()).unwrap().into_parts().0;
            access.check(&parts).map_or_else(|(code, _)| code.as_u16(), |()| 200)
        };
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT"] {
            for path in ["/", "/api/autoscaler", "/api/change/x"] {
                assert_eq!(code(method, path, &access.key), 405, "{method} {path}");
            }
        }
        // A change is only tried, and only by who has the key.
        assert_eq!(code("POST", CHANGE, &access.key), 200);
        assert_eq!(code("POST", CHANGE, "other"), 403);
        assert_eq!(code("PUT", CHANGE, &access.key), 405);
    }
}
