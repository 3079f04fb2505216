//! What a path of the API asks for.

use super::CUSTOM_METRICS;

/// A path, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `/apis`.
    Groups,
    /// `/apis/{group}`.
    Group,
    /// `/apis/{group}/{version}`.
    Resources(Version),
    /// A metric of an object, or of all of a kind.
    Object {
        /// The version to answer in.
        version: Version,
        /// The object's namespace.
        namespace: String,
        /// The object's resource, such as `pods`.
        resource: String,
        /// Its name, or `*`.
        name: String,
        /// The metric's name.
        metric: String,
    },
}

/// A version of `custom.metrics.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The older one, which the HPA controller understands too.
    V1Beta1,
    /// The one preferred.
    V1Beta2,
}

impl Version {
    /// All of them, the one preferred first.
    pub const ALL: [Self; 2] = [Self::V1Beta2, Self::V1Beta1];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Beta2 => "v1beta2",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }
}

impl Target {
    /// Takes a path apart; none where there is nothing at it.
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let ["apis", rest @ ..] = parts.as_slice() else { return None };
        let [CUSTOM_METRICS, rest @ ..] = rest else {
            return rest.is_empty().then_some(Self::Groups);
        };
        let [version, rest @ ..] = rest else { return Some(Self::Group) };
        let version = Version::parse(version)?;
        match rest {
            [] => Some(Self::Resources(version)),
            ["namespaces", namespace, resource, name, metric] => Some(Self::Object {
                version,
                namespace: decode(namespace)?,
                resource: decode(resource)?,
                name: decode(name)?,
                metric: decode(metric)?,
            }),
            _ => None,
        }
    }
}

/// A path segment without its percent-encoding; none where that is broken.
fn decode(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let code = digit(rest.next())? * 16 + digit(rest.next())?;
            bytes.push(u8::try_from(code).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        let base = "/apis/custom.metrics.k8s.io";
        assert_eq!(Target::parse("/apis"), Some(Target::Groups));
        assert_eq!(Target::parse("/apis/"), Some(Target::Groups));
        assert_eq!(Target::parse(base), Some(Target::Group));
        assert_eq!(
            Target::parse(&format!("{base}/v1beta1")),
            Some(Target::Resources(Version::V1Beta1))
        );
        for name in ["web-1", "*", "%2A", "%2a"] {
            let path = format!("{base}/v1beta2/namespaces/shop/pods/{name}/qps_total");
            let Some(Target::Object { name: parsed, metric, .. }) = Target::parse(&path) else {
                panic!("{path}");
            };
            assert_eq!(parsed, if name == "web-1" { name } else { "*" });
            assert_eq!(metric, "qps_total");
        }
    }

    #[test]
    fn other_paths_lead_nowhere() {
        for path in [
            "/",
            "/api/v1",
            "/apis/apps",
            "/apis/custom.metrics.k8s.io/v1",
            "/apis/custom.metrics.k8s.io/v1beta1/pods",
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/pods/a",
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/pods/a/b/c",
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/pods/%zz/m",
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces//pods/a/m",
        ] {
            assert_eq!(Target::parse(path), None, "{path}");
        }
    }
}
