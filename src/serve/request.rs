//! What a path of the API asks for.

use percent_encoding::percent_decode_str;

/// An API group that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum ApiGroup {
    /// Metrics of objects in the cluster.
    #[value(name = "custom.metrics.k8s.io")]
    Custom,
    /// Metrics of what is outside of it.
    #[value(name = "external.metrics.k8s.io")]
    External,
    /// What pods and nodes use.
    #[value(name = "metrics.k8s.io")]
    Resource,
}

impl ApiGroup {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Custom, Self::External, Self::Resource];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Custom => "custom.metrics.k8s.io",
            Self::External => "external.metrics.k8s.io",
            Self::Resource => "metrics.k8s.io",
        }
    }

    /// Its versions, the preferred one first.
    pub const fn versions(self) -> &'static [Version] {
        match self {
            Self::Custom => &[Version::V1Beta2, Version::V1Beta1],
            Self::External | Self::Resource => &[Version::V1Beta1],
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.as_str() == text)
    }
}

/// A path, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `/apis`.
    Groups,
    /// `/apis/{group}`.
    Group(ApiGroup),
    /// `/apis/{group}/{version}`.
    Resources(ApiGroup, Version),
    /// A metric of an object, or of all of a kind.
    Object(ObjectTarget),
    /// An external metric.
    External {
        /// Where it is asked for.
        namespace: String,
        /// Its name.
        metric: String,
    },
    /// What nodes use.
    Nodes {
        /// One of them; all, if none.
        name: Option<String>,
    },
    /// What pods use.
    Pods {
        /// Their namespace; all, if none.
        namespace: Option<String>,
        /// One of them; all, if none.
        name: Option<String>,
    },
}

/// A metric of an object, or of all of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectTarget {
    /// The version to answer in.
    pub version: Version,
    /// The object's namespace; empty for what has none.
    pub namespace: String,
    /// The object's resource, such as `pods` or `deployments.apps`.
    pub resource: String,
    /// Its name, or `*`.
    pub name: String,
    /// The metric's name.
    pub metric: String,
    /// Whether it was asked for as `namespaces/{name}/metrics/{metric}`.
    pub of_namespace: bool,
}

/// A version of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// The older one, which the HPA controller understands too.
    V1Beta1,
    /// The newer one.
    V1Beta2,
}

impl Version {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Beta2 => "v1beta2",
        }
    }
}

/// Why a path leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTarget {
    /// There is nothing at it.
    Unknown,
    /// It has the form of a metric's, but can't be one.
    Invalid,
}

impl Target {
    /// Takes a path apart.
    ///
    /// # Errors
    /// Where there is nothing at it.
    pub fn parse(path: &str) -> Result<Self, NoTarget> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let parts: Vec<&str> = path.split('/').collect();
        let ["", "apis", rest @ ..] = parts.as_slice() else { return Err(NoTarget::Unknown) };
        let [group, rest @ ..] = rest else { return Ok(Self::Groups) };
        let group = ApiGroup::parse(group).ok_or(NoTarget::Unknown)?;
        let [version, rest @ ..] = rest else { return Ok(Self::Group(group)) };
        let version = group.versions().iter().find(|known| known.as_str() == *version);
        let version = *version.ok_or(NoTarget::Unknown)?;
        if rest.is_empty() {
            return Ok(Self::Resources(group, version));
        }
        let decoded: Option<Vec<String>> = rest.iter().map(|part| decode(part)).collect();
        let decoded = decoded.ok_or(NoTarget::Unknown)?;
        let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        let owned = |text: &str| text.to_owned();
        match group {
            ApiGroup::Custom => object(version, &parts).map(Self::Object),
            ApiGroup::External => match parts.as_slice() {
                ["namespaces", namespace, metric] => {
                    Ok(Self::External { namespace: owned(namespace), metric: owned(metric) })
                }
                _ => Err(NoTarget::Unknown),
            },
            ApiGroup::Resource => match parts.as_slice() {
                ["nodes"] => Ok(Self::Nodes { name: None }),
                ["nodes", name] => Ok(Self::Nodes { name: Some(owned(name)) }),
                ["pods"] => Ok(Self::Pods { namespace: None, name: None }),
                ["namespaces", namespace, "pods"] => {
                    Ok(Self::Pods { namespace: Some(owned(namespace)), name: None })
                }
                ["namespaces", namespace, "pods", name] => {
                    let name = Some(owned(name));
                    Ok(Self::Pods { namespace: Some(owned(namespace)), name })
                }
                _ => Err(NoTarget::Unknown),
            },
        }
    }

    /// The namespace that it is about, where it is about one.
    pub fn namespace(&self) -> Option<&str> {
        let namespace = match self {
            Self::Object(object) if object.of_namespace => &object.name,
            Self::Object(object) => &object.namespace,
            Self::External { namespace, .. } => namespace,
            Self::Pods { namespace, .. } => namespace.as_ref()?,
            Self::Groups | Self::Group(_) | Self::Resources(..) | Self::Nodes { .. } => {
                return None;
            }
        };
        Some(namespace).filter(|namespace| !namespace.is_empty()).map(String::as_str)
    }

    /// Its path, in the one form that it has: each segment as it was understood.
    pub fn path(&self) -> String {
        let base = |group: ApiGroup, version: Version| {
            format!("/apis/{}/{}", group.as_str(), version.as_str())
        };
        let v1beta1 = Version::V1Beta1;
        let (mut path, segments): (String, Vec<&str>) = match self {
            Self::Groups => ("/apis".to_owned(), vec![]),
            Self::Group(group) => (format!("/apis/{}", group.as_str()), vec![]),
            Self::Resources(group, version) => (base(*group, *version), vec![]),
            Self::Object(object) => {
                let ObjectTarget { namespace, resource, name, metric, .. } = object;
                let segments: Vec<&str> = match (object.of_namespace, namespace.is_empty()) {
                    (true, _) => vec!["namespaces", name, "metrics", metric],
                    (false, true) => vec![resource, name, metric],
                    (false, false) => vec!["namespaces", namespace, resource, name, metric],
                };
                (base(ApiGroup::Custom, object.version), segments)
            }
            Self::External { namespace, metric } => {
                (base(ApiGroup::External, v1beta1), vec!["namespaces", namespace, metric])
            }
            Self::Nodes { name } => {
                let name = name.as_deref();
                (base(ApiGroup::Resource, v1beta1), ["nodes"].into_iter().chain(name).collect())
            }
            Self::Pods { namespace, name } => {
                let namespace = namespace.iter().flat_map(|namespace| ["namespaces", namespace]);
                let segments = namespace.chain(["pods"]).chain(name.as_deref());
                (base(ApiGroup::Resource, v1beta1), segments.collect())
            }
        };
        for segment in segments {
            path.push('/');
            path.extend(percent_encoding::utf8_percent_encode(segment, SEGMENT));
        }
        path
    }

    /// Whether it tells what there is to ask for, and no metric.
    pub fn is_discovery(&self) -> bool {
        matches!(self, Self::Groups | Self::Group(_) | Self::Resources(..))
    }

    /// Whether it names no object, so that all are listed.
    pub fn is_list(&self) -> bool {
        matches!(
            self,
            Self::External { .. } | Self::Nodes { name: None } | Self::Pods { name: None, .. }
        )
    }

    /// The group that it is of.
    pub fn group(&self) -> Option<ApiGroup> {
        match self {
            Self::Groups => None,
            Self::Group(group) | Self::Resources(group, _) => Some(*group),
            Self::Object(_) => Some(ApiGroup::Custom),
            Self::External { .. } => Some(ApiGroup::External),
            Self::Nodes { .. } | Self::Pods { .. } => Some(ApiGroup::Resource),
        }
    }
}

fn object(version: Version, parts: &[&str]) -> Result<ObjectTarget, NoTarget> {
    let (namespace, resource, name, metric, of_namespace) = match parts {
        ["namespaces", namespace, "metrics", metric] => {
            ("", "namespaces", *namespace, *metric, true)
        }
        ["namespaces", namespace, resource, name, metric] => {
            (*namespace, *resource, *name, *metric, false)
        }
        // The name of a namespace alone is no path to a metric.
        ["namespaces", _, _] => return Err(NoTarget::Invalid),
        [resource, name, metric] => ("", *resource, *name, *metric, false),
        _ => return Err(NoTarget::Unknown),
    };
    Ok(ObjectTarget {
        version,
        namespace: namespace.to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
        metric: metric.to_owned(),
        of_namespace,
    })
}

/// What is written with a percent sign in a path segment: all but the characters
/// that RFC 3986 leaves as they are, and `*`.
const SEGMENT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'*');

/// Whether a path has one reading only: no empty segment but the last, none that
/// stands for another folder, and no slash, percent sign or control character in one.
/// Source: `IsValidPathSegmentName` of k8s.io/apimachinery.
pub fn is_canonical(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let segments = rest.strip_suffix('/').unwrap_or(rest).split('/');
    rest.is_empty() || { segments }.all(|segment| decode(segment).is_some())
}

/// A path segment without its percent-encoding; none where that is broken, or where
/// it is no name.
fn decode(segment: &str) -> Option<String> {
    let broken = segment.match_indices('%').any(|(at, _)| {
        let digits = segment.as_bytes().get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    let text = percent_decode_str(segment).decode_utf8().ok().filter(|_| !broken)?;
    let is_name = !matches!(&*text, "" | "." | "..")
        && !text.contains(|sign: char| matches!(sign, '/' | '%') || sign.is_control());
    is_name.then(|| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        let base = "/apis/custom.metrics.k8s.io";
        assert_eq!(Target::parse("/apis"), Ok(Target::Groups));
        assert_eq!(Target::parse("/apis/"), Ok(Target::Groups));
        assert_eq!(Target::parse(base), Ok(Target::Group(ApiGroup::Custom)));
        assert_eq!(
            Target::parse(&format!("{base}/v1beta1")),
            Ok(Target::Resources(ApiGroup::Custom, Version::V1Beta1))
        );
        for name in ["web-1", "*", "%2A", "%2a"] {
            let path = format!("{base}/v1beta2/namespaces/shop/pods/{name}/qps_total");
            let Ok(Target::Object(object)) = Target::parse(&path) else { panic!("{path}") };
            assert_eq!(object.name, if name == "web-1" { name } else { "*" });
            assert_eq!((object.namespace.as_str(), object.metric.as_str()), ("shop", "qps_total"));
        }
        let Ok(Target::Object(node)) = Target::parse(&format!("{base}/v1beta1/nodes/a/load"))
        else {
            panic!("a node's metric")
        };
        assert_eq!((node.namespace.as_str(), node.resource.as_str()), ("", "nodes"));
        let path = format!("{base}/v1beta1/namespaces/shop/metrics/load");
        let Ok(Target::Object(namespace)) = Target::parse(&path) else { panic!("{path}") };
        assert_eq!((namespace.resource.as_str(), namespace.name.as_str()), ("namespaces", "shop"));
        assert!(namespace.namespace.is_empty() && namespace.of_namespace);
        assert_eq!(
            Target::parse("/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/queue"),
            Ok(Target::External { namespace: "shop".to_owned(), metric: "queue".to_owned() })
        );
        assert_eq!(
            Target::parse("/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/a"),
            Ok(Target::Pods { namespace: Some("shop".to_owned()), name: Some("a".to_owned()) })
        );
    }

    #[test]
    fn a_path_is_written_as_it_was_understood() {
        for (path, written) in [
            ("/apis/custom.metrics.k8s.io/v1beta2/namespaces/shop/pods/%2A/qps", None),
            ("/apis/custom.metrics.k8s.io/v1beta2/nodes/a/load", None),
            ("/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/metrics/load", None),
            ("/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/a%20%3f", Some("a%20%3F")),
            ("/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/a", None),
            ("/apis/metrics.k8s.io/v1beta1/nodes", None),
            ("/apis/external.metrics.k8s.io/v1beta1", None),
        ] {
            let target = Target::parse(path).unwrap();
            let expected = written.map_or(path.replace("%2A", "*"), |end| {
                format!("{}/{end}", path.rsplit_once('/').unwrap().0)
            });
            assert_eq!(target.path(), expected);
            assert_eq!(Target::parse(&target.path()), Ok(target));
        }
    }

    #[test]
    fn a_path_with_two_readings_is_not_canonical() {
        for path in ["/", "/apis", "/apis/", "/a/%2A/b", "/a/%c3%a4"] {
            assert!(is_canonical(path), "{path}");
        }
        for path in [
            "",
            "apis",
            "//",
            "//apis",
            "/a//b",
            "/a/./b",
            "/a/../b",
            "/a/..",
            "/a/%2e%2E/b",
            "/a/%2f/b",
            "/a/b%2Fc",
            "/a/%25/b",
            "/a/%00",
            "/a/%zz",
            "/a/%2",
            "/a/%ff",
        ] {
            assert!(!is_canonical(path), "{path}");
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
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/pods/a/b/c",
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/pods/%zz/m",
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces//pods/a/m",
            "/apis/external.metrics.k8s.io/v1beta2/namespaces/shop/queue",
            "/apis/external.metrics.k8s.io/v1beta1/queue",
        ] {
            assert_eq!(Target::parse(path), Err(NoTarget::Unknown), "{path}");
        }
        let path = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/load";
        assert_eq!(Target::parse(path), Err(NoTarget::Invalid));
    }
}
