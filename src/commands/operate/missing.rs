//! What was probably meant by a name that the cluster does not have.

use super::super::story::{counted, enumerated, plain};
use super::error::OperateError;
use crate::control::within;
use crate::nearest::nearest;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::{Api, Client, Error, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// The error of an object that could not be read. If there is none of the name, with what was probably meant: a namespace
/// that there is, that name in another one, or a name like it in the namespace. `of_namespace` and `all` read its kind.
pub async fn with_hint<K>(
    error: OperateError,
    client: &Client,
    (namespace, name): (&str, &str),
    [of_namespace, all]: [Api<K>; 2],
) -> OperateError
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    if !error.is_missing() {
        return error;
    }
    let missing = no_namespace(client, namespace).await;
    let mut hint = missing.map(|missing| format!("; {missing}")).unwrap_or_default();
    if hint.is_empty() {
        hint = elsewhere(&all, name).await;
    }
    if hint.is_empty() {
        let params = ListParams::default();
        let listed = within(of_namespace.list_metadata(&params)).await;
        let names = listed.iter().flatten().map(ResourceExt::name_any);
        hint = nearest(name, names).map_or_else(String::new, |name| meant(&name));
    }
    OperateError::Refused(format!("{error}{hint}"))
}

fn meant(name: &str) -> String {
    format!("; did you mean {:?}?", plain(name))
}

/// That there is no such namespace, with the one that is most like it. None if there is one, or if that can't be known.
pub async fn no_namespace(client: &Client, namespace: &str) -> Option<String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match within(namespaces.get_metadata(namespace)).await {
        Err(Error::Api(status)) if status.code == 404 => {}
        _ => return None,
    }
    let listed = within(namespaces.list_metadata(&ListParams::default())).await;
    let names = listed.iter().flatten().map(ResourceExt::name_any);
    let meant = nearest(namespace, names).map(|name| meant(&name)).unwrap_or_default();
    Some(format!("there is no namespace {:?}{meant}", plain(namespace)))
}

/// The most namespaces that are named.
const MAX_NAMED: usize = 3;

/// The namespaces that have an object of this name.
async fn elsewhere<K>(all: &Api<K>, name: &str) -> String
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let params = ListParams::default().fields(&format!("metadata.name={name}"));
    let listed = within(all.list_metadata(&params)).await;
    let of_name = listed.iter().flatten().filter(|one| one.name_any() == name);
    let found: Vec<String> = of_name.filter_map(ResourceExt::namespace).collect();
    let mut named: Vec<String> =
        found.iter().take(MAX_NAMED).map(|namespace| plain(namespace).into_owned()).collect();
    match found.len() {
        0 => String::new(),
        1 => format!("; there is one in {0}: -n {0}", enumerated(named)),
        all => {
            if all > MAX_NAMED {
                named.push(counted((all - MAX_NAMED) as i64, "other"));
            }
            format!("; there is one each in {}: -n NAMESPACE", enumerated(named))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::error_before_write;
    use super::*;
    use crate::crd::Autoscaler;
    use crate::fake::{api, failure};
    use serde_json::{Value, json};

    /// What is said of an Autoscaler that is not found, where shop has the Autoscaler `web`.
    async fn said(namespace: &str, name: &str) -> String {
        let list = |objects: &[(&str, &str)]| {
            let item = |(namespace, name): &(&str, &str)| json!({"metadata": {"namespace": namespace, "name": name}});
            let items: Vec<Value> = objects.iter().map(item).collect();
            (200, json!({"metadata": {}, "items": items}))
        };
        let (client, _) = api(move |request| match &*request.line {
            "GET /api/v1/namespaces" => list(&[("", "default"), ("", "shop")]),
            "GET /api/v1/namespaces/shop" | "GET /api/v1/namespaces/default" => {
                (200, json!({"metadata": {"name": "shop"}}))
            }
            "GET /apis/plimsoll.dev/v1alpha1/namespaces/shop/autoscalers" => {
                list(&[("shop", "web"), ("shop", "api-2")])
            }
            "GET /apis/plimsoll.dev/v1alpha1/autoscalers" => list(&[
                ("shop", "web"),
                ("a", "api"),
                ("b", "api"),
                ("a", "db"),
                ("b", "db"),
                ("c", "db"),
                ("d", "db"),
            ]),
            line if line.ends_with("/autoscalers") => list(&[]),
            _ => failure(404, "NotFound", "not found"),
        });
        let apis =
            [Api::<Autoscaler>::namespaced(client.clone(), namespace), Api::all(client.clone())];
        let error = apis[0].get_metadata(name).await.unwrap_err();
        let error = error_before_write("autoscaler")(error);
        with_hint(error, &client, (namespace, name), apis).await.to_string()
    }

    #[tokio::test]
    async fn a_name_that_is_not_found_comes_with_what_was_meant() {
        for (namespace, name, expected) in [
            ("shop", "webb", "; nothing was written; did you mean \"web\"?"),
            ("default", "web", "; nothing was written; there is one in shop: -n shop"),
            ("shopp", "web", "; there is no namespace \"shopp\"; did you mean \"shop\"?"),
            ("other", "web", "; there is no namespace \"other\""),
            ("shop", "payments", "; nothing was written"),
            ("shop", "api", "; there is one each in a and b: -n NAMESPACE"),
            ("default", "api", "; there is one each in a and b: -n NAMESPACE"),
            ("default", "db", "; there is one each in a, b, c and 1 other: -n NAMESPACE"),
        ] {
            let text = said(namespace, name).await;
            assert!(text.ends_with(expected), "{namespace}/{name}: {text}");
        }
    }
}
