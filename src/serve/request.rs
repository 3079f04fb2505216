//! What a path of the API asks for.

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
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let ["apis", rest @ ..] = parts.as_slice() else { return Err(NoTarget::Unknown) };
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
