//! The parsed path of a request.

use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// An API group that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum ApiGroup {
    /// Metrics of objects in the cluster.
    #[value(name = "custom.metrics.k8s.io")]
    Custom,
    /// Metrics of systems outside the cluster.
    #[value(name = "external.metrics.k8s.io")]
    External,
    /// Resource usage of pods and nodes.
    #[value(name = "metrics.k8s.io")]
    Resource,
    /// The decisions of Plimsoll itself.
    #[value(skip)]
    Decisions,
}

impl ApiGroup {
    /// All groups.
    pub const ALL: [Self; 4] = [Self::Custom, Self::External, Self::Resource, Self::Decisions];
    /// Those of metrics, which other adapters may serve.
    pub const METRICS: [Self; 3] = [Self::Custom, Self::External, Self::Resource];

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Custom => "custom.metrics.k8s.io",
            Self::External => "external.metrics.k8s.io",
            Self::Resource => "metrics.k8s.io",
            Self::Decisions => "decisions.plimsoll.dev",
        }
    }

    /// The served versions, the preferred one first.
    pub const fn versions(self) -> &'static [Version] {
        match self {
            Self::Custom => &[Version::V1Beta2, Version::V1Beta1],
            Self::External | Self::Resource => &[Version::V1Beta1],
            Self::Decisions => &[Version::V1Alpha1],
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.as_str() == text)
    }
}

/// The parsed path of a request, as upstream's `RequestInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestInfo {
    /// `/apis`.
    Groups,
    /// `/apis/{group}`.
    Group(ApiGroup),
    /// `/apis/{group}/{version}`.
    Resources(ApiGroup, Version),
    /// A metric of an object, or of all objects of a resource.
    Object(ObjectMetricRequest),
    /// An external metric.
    External {
        /// The namespace of the request.
        namespace: String,
        /// The name of the metric.
        metric: String,
    },
    /// Resource usage of nodes.
    Nodes {
        /// The name of one object; all, if none.
        name: Option<String>,
    },
    /// Resource usage of pods.
    Pods {
        /// The namespace; all, if none.
        namespace: Option<String>,
        /// The name of one object; all, if none.
        name: Option<String>,
    },
    /// Decisions.
    Decisions {
        /// The namespace; all, if none.
        namespace: Option<String>,
        /// The name of one object; all, if none.
        name: Option<String>,
    },
}

/// A request for a metric of an object, or of all objects of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMetricRequest {
    /// The API version of the response.
    pub version: Version,
    /// The object's namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's resource, such as `pods` or `deployments.apps`.
    pub resource: String,
    /// The object's name, or `*` for all that a selector matches.
    pub name: String,
    /// The metric's name.
    pub metric: String,
    /// Whether the path was `namespaces/{name}/metrics/{metric}`.
    pub of_namespace: bool,
}

impl ObjectMetricRequest {
    /// The namespace that it is counted to; empty for the whole cluster.
    pub fn flow(&self) -> &String {
        if self.of_namespace { &self.name } else { &self.namespace }
    }
}

/// A version of an API group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// `v1alpha1`.
    V1Alpha1,
    /// `v1beta1`.
    V1Beta1,
    /// `v1beta2`.
    V1Beta2,
}

impl Version {
    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "v1alpha1",
            Self::V1Beta1 => "v1beta1",
            Self::V1Beta2 => "v1beta2",
        }
    }
}

/// Why a path is not one of the metrics APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// There is no such path.
    NotFound,
    /// It has the form of a metric's path, but an invalid resource.
    Invalid,
}

/// The most segments behind the version: those of a metric of an object.
const MAX_PARTS: usize = 5;

impl RequestInfo {
    /// Parses a path.
    ///
    /// # Errors
    /// If there is no such path.
    pub fn parse(path: &str) -> Result<Self, PathError> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut segments = path.split('/');
        if (segments.next(), segments.next()) != (Some(""), Some("apis")) {
            return Err(PathError::NotFound);
        }
        let Some(group) = segments.next() else { return Ok(Self::Groups) };
        let group = ApiGroup::parse(group).ok_or(PathError::NotFound)?;
        let Some(version) = segments.next() else { return Ok(Self::Group(group)) };
        let version = group.versions().iter().find(|known| known.as_str() == version);
        let version = *version.ok_or(PathError::NotFound)?;
        let (mut decoded, mut count): ([Cow<'_, str>; MAX_PARTS], usize) = Default::default();
        for segment in segments {
            let part = decoded.get_mut(count).ok_or(PathError::NotFound)?;
            *part = decode(segment).ok_or(PathError::NotFound)?;
            count += 1;
        }
        let parts = decoded.each_ref().map(|part| &**part);
        let parts = &parts[..count];
        if parts.is_empty() {
            return Ok(Self::Resources(group, version));
        }
        let owned = |text: &str| text.to_owned();
        match group {
            ApiGroup::Decisions => match parts {
                ["decisions"] => Ok(Self::Decisions { namespace: None, name: None }),
                ["namespaces", namespace, "decisions"] => {
                    Ok(Self::Decisions { namespace: Some(owned(namespace)), name: None })
                }
                ["namespaces", namespace, "decisions", name] => {
                    let name = Some(owned(name));
                    Ok(Self::Decisions { namespace: Some(owned(namespace)), name })
                }
                _ => Err(PathError::NotFound),
            },
            ApiGroup::Custom => object(version, parts).map(Self::Object),
            ApiGroup::External => match parts {
                ["namespaces", namespace, metric] => {
                    Ok(Self::External { namespace: owned(namespace), metric: owned(metric) })
                }
                _ => Err(PathError::NotFound),
            },
            ApiGroup::Resource => match parts {
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
                _ => Err(PathError::NotFound),
            },
        }
    }

    /// The namespace of the request, if it is for one.
    pub fn namespace(&self) -> Option<&str> {
        let namespace = match self {
            Self::Object(object) => object.flow(),
            Self::External { namespace, .. } => namespace,
            Self::Pods { namespace, .. } | Self::Decisions { namespace, .. } => {
                namespace.as_ref()?
            }
            Self::Groups | Self::Group(_) | Self::Resources(..) | Self::Nodes { .. } => {
                return None;
            }
        };
        Some(namespace).filter(|namespace| !namespace.is_empty()).map(String::as_str)
    }

    /// The canonical path: each segment as it was parsed.
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
                let ObjectMetricRequest { namespace, resource, name, metric, .. } = object;
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
            Self::Decisions { namespace, name } => {
                let namespace = namespace.iter().flat_map(|namespace| ["namespaces", namespace]);
                let segments = namespace.chain(["decisions"]).chain(name.as_deref());
                (base(ApiGroup::Decisions, Version::V1Alpha1), segments.collect())
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

    /// Whether it is a discovery path.
    pub fn is_discovery(&self) -> bool {
        matches!(self, Self::Groups | Self::Group(_) | Self::Resources(..))
    }

    /// Whether it lists objects, as it names none.
    pub fn is_list(&self) -> bool {
        matches!(
            self,
            Self::External { .. }
                | Self::Nodes { name: None }
                | Self::Pods { name: None, .. }
                | Self::Decisions { name: None, .. }
        )
    }

    /// The API group, if it is for one.
    pub fn group(&self) -> Option<ApiGroup> {
        match self {
            Self::Groups => None,
            Self::Group(group) | Self::Resources(group, _) => Some(*group),
            Self::Object(_) => Some(ApiGroup::Custom),
            Self::External { .. } => Some(ApiGroup::External),
            Self::Nodes { .. } | Self::Pods { .. } => Some(ApiGroup::Resource),
            Self::Decisions { .. } => Some(ApiGroup::Decisions),
        }
    }
}

fn object(version: Version, parts: &[&str]) -> Result<ObjectMetricRequest, PathError> {
    let (namespace, resource, name, metric, of_namespace) = match parts {
        ["namespaces", namespace, "metrics", metric] => {
            ("", "namespaces", *namespace, *metric, true)
        }
        ["namespaces", namespace, resource, name, metric] => {
            (*namespace, *resource, *name, *metric, false)
        }
        // `namespaces/shop/load`: a namespace's metrics are below `metrics` only.
        ["namespaces", _, _] => return Err(PathError::Invalid),
        [resource, name, metric] => ("", *resource, *name, *metric, false),
        _ => return Err(PathError::NotFound),
    };
    Ok(ObjectMetricRequest {
        version,
        namespace: namespace.to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
        metric: metric.to_owned(),
        of_namespace,
    })
}

/// The characters that are percent-encoded in a path segment: all but the unreserved ones of
/// RFC 3986, and `*`.
const SEGMENT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'*');

/// Whether a path is unambiguous, so that what is authorized is what is served: it has no empty
/// segment but the last, no `.` or `..`, and no encoded slash, percent sign or control character.
/// Source: `IsValidPathSegmentName` of k8s.io/apimachinery.
pub fn is_canonical(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let segments = rest.strip_suffix('/').unwrap_or(rest).split('/');
    rest.is_empty() || { segments }.all(|segment| decode(segment).is_some())
}

/// A path segment without its percent-encoding; none if that is malformed, or if the segment is
/// not a valid name.
fn decode(segment: &str) -> Option<Cow<'_, str>> {
    let broken = segment.match_indices('%').any(|(at, _)| {
        let digits = segment.as_bytes().get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    let text = percent_decode_str(segment).decode_utf8().ok().filter(|_| !broken)?;
    let is_name = !matches!(&*text, "" | "." | "..")
        && !text.contains(|sign: char| matches!(sign, '/' | '%') || sign.is_control());
    is_name.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_parsed() {
        let base = "/apis/custom.metrics.k8s.io";
        assert_eq!(RequestInfo::parse("/apis"), Ok(RequestInfo::Groups));
        assert_eq!(RequestInfo::parse("/apis/"), Ok(RequestInfo::Groups));
        assert_eq!(RequestInfo::parse(base), Ok(RequestInfo::Group(ApiGroup::Custom)));
        assert_eq!(
            RequestInfo::parse(&format!("{base}/v1beta1")),
            Ok(RequestInfo::Resources(ApiGroup::Custom, Version::V1Beta1))
        );
        for name in ["web-1", "*", "%2A", "%2a"] {
            let path = format!("{base}/v1beta2/namespaces/shop/pods/{name}/qps_total");
            let Ok(RequestInfo::Object(object)) = RequestInfo::parse(&path) else {
                panic!("{path}")
            };
            assert_eq!(object.name, if name == "web-1" { name } else { "*" });
            assert_eq!((object.namespace.as_str(), object.metric.as_str()), ("shop", "qps_total"));
        }
        let Ok(RequestInfo::Object(node)) =
            RequestInfo::parse(&format!("{base}/v1beta1/nodes/a/load"))
        else {
            panic!("a node's metric")
        };
        assert_eq!((node.namespace.as_str(), node.resource.as_str()), ("", "nodes"));
        let path = format!("{base}/v1beta1/namespaces/shop/metrics/load");
        let Ok(RequestInfo::Object(namespace)) = RequestInfo::parse(&path) else {
            panic!("{path}")
        };
        assert_eq!((namespace.resource.as_str(), namespace.name.as_str()), ("namespaces", "shop"));
        assert!(namespace.namespace.is_empty() && namespace.of_namespace);
        assert_eq!(
            RequestInfo::parse("/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/queue"),
            Ok(RequestInfo::External { namespace: "shop".to_owned(), metric: "queue".to_owned() })
        );
        assert_eq!(
            RequestInfo::parse("/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/a"),
            Ok(RequestInfo::Pods {
                namespace: Some("shop".to_owned()),
                name: Some("a".to_owned())
            })
        );
    }

    #[test]
    fn a_path_is_written_as_it_was_parsed() {
        for (path, written) in [
            ("/apis/custom.metrics.k8s.io/v1beta2/namespaces/shop/pods/%2A/qps", None),
            ("/apis/custom.metrics.k8s.io/v1beta2/nodes/a/load", None),
            ("/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/metrics/load", None),
            ("/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/a%20%3f", Some("a%20%3F")),
            ("/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/a", None),
            ("/apis/metrics.k8s.io/v1beta1/nodes", None),
            ("/apis/external.metrics.k8s.io/v1beta1", None),
        ] {
            let info = RequestInfo::parse(path).unwrap();
            let expected = written.map_or(path.replace("%2A", "*"), |end| {
                format!("{}/{end}", path.rsplit_once('/').unwrap().0)
            });
            assert_eq!(info.path(), expected);
            assert_eq!(RequestInfo::parse(&info.path()), Ok(info));
        }
    }

    #[test]
    fn an_ambiguous_path_is_not_canonical() {
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
    fn other_paths_are_not_found() {
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
            assert_eq!(RequestInfo::parse(path), Err(PathError::NotFound), "{path}");
        }
        let path = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/load";
        assert_eq!(RequestInfo::parse(path), Err(PathError::Invalid));
    }
}
